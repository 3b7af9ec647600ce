"""``gridcoll testbed``: a real multi-host grid on this machine."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from gridcoll.cli.options import JSON
from gridcoll.errors import UsageError
from gridcoll.gridfiles import find_gridfile

if TYPE_CHECKING:
    from gridcoll.testbed.instances import Instance

_MPI = click.option(
    "--mpi", help="launcher: mpich, openmpi or impi; default: that of the environment"
)
_CHECK = click.option("--check/--no-check", default=True, help="measure the grid before using it")
_SETTINGS = ("rate", "latency", "loss", "cut")
_ID = click.option("--id", "instance_id", help="which testbed; default: the only one that is up")


@click.group()
def command() -> None:
    """Emulate a grid on this machine: network namespaces, shaped links, real MPI (needs root)."""


@command.command()
@click.argument("grid")
@_MPI
@_CHECK
@click.option(
    "-n", "--ranks", type=click.IntRange(min=1), help="how many ranks; default: every slot"
)
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...")
def run(grid: str, mpi: str | None, check: bool, ranks: int | None, argv: tuple[str, ...]) -> None:
    """Bring GRID up, run COMMAND with one rank per host, take everything down.

    GRID is a grid file or the name of one in hostfiles/. The exit code is the command's. With
    ``dilation = K`` in the file, latencies are multiplied and rates divided by K. This helps where
    there are too few cores to emulate all hosts at full speed.
    """
    from gridcoll.testbed.run import interruptible, run_on_grid

    with interruptible():
        sys.exit(run_on_grid(find_gridfile(grid), argv, mpi=mpi, n_ranks=ranks, check=check))


@command.command()
@click.argument("grid")
@_CHECK
def up(grid: str, check: bool) -> None:
    """Bring GRID up, leave it up, and print its id."""
    from gridcoll.testbed.probe import prove
    from gridcoll.testbed.run import interruptible
    from gridcoll.testbed.testbed import Testbed

    with interruptible():
        testbed = Testbed.up(find_gridfile(grid), detached=True)
        try:
            if check:
                prove(testbed)
        except BaseException:
            testbed.down()
            raise
        testbed.start_events()
        testbed.let_go()
    click.echo(testbed.instance.id)


@command.command()
@click.argument("instance_id", required=False, metavar="[ID]")
@click.option("--all", "everything", is_flag=True, help="all of them: take every testbed down")
@click.option("--all-stale", is_flag=True, help="only clear up after killed testbeds")
def down(instance_id: str | None, everything: bool, all_stale: bool) -> None:
    """Take a testbed down, and every process on its hosts (default: the only one that is up)."""
    from gridcoll.testbed.instances import find_instance, list_instances
    from gridcoll.testbed.testbed import Testbed, clear_up

    for orphan in clear_up():
        click.echo(f"{orphan} was left by a killed process; it is down")
    if all_stale:
        return
    for instance in list_instances() if everything else [find_instance(instance_id)]:
        Testbed(instance).down()
        click.echo(f"{instance.id} is down")


@command.command("exec")
@_ID
@click.argument("host")
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...")
def exec_(instance_id: str | None, host: str, argv: tuple[str, ...]) -> None:
    """Run COMMAND on HOST of a testbed that is up; the exit code is the command's."""
    from gridcoll.testbed.instances import find_instance
    from gridcoll.testbed.run import interruptible, wait_for
    from gridcoll.testbed.testbed import Testbed

    with interruptible():
        testbed = Testbed(find_instance(instance_id))
        sys.exit(wait_for(testbed.popen(host, argv)))


@command.command("set")
@_ID
@click.argument("target")
@click.argument("settings", nargs=-1, metavar="[rate=R] [latency=T] [loss=P%] [cut=T]")
def set_(instance_id: str | None, target: str, settings: tuple[str, ...]) -> None:
    """Change a link or a host of a testbed that is up, from now on.

    TARGET is a link A:B between two clusters, sites or regions, or a host. A link has a rate, a
    latency and a loss; a host has a rate. With cut=5s nothing passes for that long. Without
    settings, the values of the grid file are restored.

    Example: gridcoll testbed set orsay:toulouse rate=10Mbit/s
    """
    from gridcoll.testbed.instances import find_instance
    from gridcoll.testbed.testbed import Testbed
    from gridcoll.topology.changes import ChangeSpec

    testbed = Testbed(find_instance(instance_id))
    given = dict(_setting(text) for text in settings)
    ends = target.split(":")
    if len(ends) > 2:
        raise UsageError(f"target {target!r}: expected HOST or A:B")
    link = (ends[0], ends[1]) if len(ends) == 2 else None
    spec = ChangeSpec(link=link, host=None if link else target, **given)
    testbed.change(testbed.spec.change(spec))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name not in _SETTINGS:
        raise UsageError(
            f"setting {text!r}: expected one of {', '.join(_SETTINGS)}, as rate=1Mbit/s"
        )
    return name, value


@command.command()
@JSON
def status(as_json: bool) -> None:
    """List the testbeds that are up."""
    from gridcoll.testbed.instances import list_instances

    rows = [_describe(instance) for instance in list_instances()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("no testbed is up")
        return
    from rich.table import Table

    from gridcoll.cli.gridmap import stdout_console

    table = Table("id", "grid", "hosts", "process", "ends with process")
    table.columns[0].min_width = max(len(row["id"]) for row in rows)  # not cut: --id needs all
    for row in rows:
        owner = row["owner_pid"] or "none: stays up"
        table.add_row(*map(str, (row["id"], row["grid"], len(row["hosts"]), row["pid"], owner)))
    stdout_console().print(table)


def _describe(instance: Instance) -> dict[str, Any]:
    from gridcoll.testbed.testbed import Testbed

    hosts = Testbed(instance).hosts.values()
    return {
        "id": instance.id,
        "grid": instance.grid,
        "place": instance.place,
        "pid": instance.pid,
        "owner_pid": instance.owner_pid,
        "hosts": {host.name: host.address for host in hosts},
    }
