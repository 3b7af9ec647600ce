"""``gridcoll export``: the plan of a call, for other simulators. Needs no MPI."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gridcoll.cli.options import ALGORITHM, GRID, ROOT
from gridcoll.errors import UsageError

if TYPE_CHECKING:
    from gridcoll.model import GridModel
    from gridcoll.plan import Plan


@click.command()
@click.argument("collective")
@click.option("--grid", required=True, help=GRID)
@click.option("--sizes", required=True, help="bytes, for example 64K; one size")
@ROOT
@ALGORITHM
@click.option(
    "--format",
    "kind",
    required=True,
    type=click.Choice(["goal", "smpi"]),
    help="goal for LogGOPSim, smpi for SimGrid",
)
@click.option(
    "-o",
    "--output",
    default="",
    help="write here; goal: a file (default: print it); smpi: a directory",
)
def command(
    collective: str, grid: str, sizes: str, root: int, algorithm: str, kind: str, output: str
) -> None:
    """Write the plan of COLLECTIVE on a grid as a GOAL schedule or as traces for SimGrid's SMPI.

    goal: a schedule for LogGOPSim, which has its own model of the network. smpi: a directory with a
    platform made from the grid, the hosts of the ranks and their traces; the command that replays
    them is printed.

    Without --algorithm, the fastest plan is written. The native collective has no plan.
    """
    from gridcoll.cli.models import load_model

    if kind == "smpi" and not output:
        raise UsageError("--output: name a directory for platform, hosts and trace")
    model = load_model(grid)
    plan = _plan(collective, model, sizes, root, algorithm)
    if kind == "goal":
        _write_goal(plan, output)
    else:
        _write_smpi(plan, grid, model, Path(output))


def _plan(collective: str, model: GridModel, sizes: str, root: int, algorithm: str) -> Plan:
    """Return the plan asked for, after checking it."""
    from gridcoll.plan import check_plan, choose
    from gridcoll.topology.units import parse_size_bytes

    if "," in sizes:
        raise UsageError(f"--sizes {sizes}: a plan has one size")
    n_bytes = parse_size_bytes(sizes)
    choice = choose(collective, model, n_bytes, root, forced=algorithm)
    candidates = [choice.winner] if algorithm else [choice.winner, *choice.candidates]
    build = next((candidate.build for candidate in candidates if candidate.build), None)
    if build is None:
        raise UsageError(f"{collective}, {choice.winner.name}: has no plan to export")
    plan = build(n_bytes)
    check_plan(plan)
    return plan


def _write_goal(plan: Plan, out: str) -> None:
    from gridcoll.files import write_atomically
    from gridcoll.plan.exports import goal_lines

    text = "".join(goal_lines(plan))
    if out:
        write_atomically(out, text)
    else:
        click.echo(text, nl=False)


def _write_smpi(plan: Plan, grid: str, model: GridModel, out: Path) -> None:
    from gridcoll.bench.simgrid import Folder
    from gridcoll.cli.models import load_wires
    from gridcoll.plan.exports import smpi_lines

    folder = Folder.write(out, *load_wires(grid))
    folder.write_trace(smpi_lines(plan, model))
    click.echo(f"cd {shlex.quote(str(out))} && {shlex.join(folder.replay_command())}")
