"""``gridcoll discover``: measure the grid that a job spans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gridcoll.errors import UsageError
from gridcoll.files import check_writable

if TYPE_CHECKING:
    from gridcoll.model import GridModel


@click.command()
@click.option("-o", "--output", default="", help="keep the model in this file, for GRIDCOLL_GRID")
@click.option("--name", default="", help="what to call the grid")
@click.option(
    "--tolerance",
    metavar="ρ",
    default="",
    help="how unlike latencies in one cluster may be; GRIDCOLL_TOLERANCE or 0.3 if not given",
)
@click.option("--both-directions", is_flag=True, help="measure every link from both ends")
@click.option("--no-native", is_flag=True, help="do not time the MPI library's own collectives")
@click.option("--json", "as_json", is_flag=True, help="print the model itself, for scripts")
def command(
    output: str,
    name: str,
    tolerance: str,
    both_directions: bool,
    no_native: bool,
    as_json: bool,
) -> None:
    """Measure the grid that a job spans.

    Run it under mpiexec, with the ranks and hosts of the application. Finds the nodes, the
    latencies between them, the clusters, then pLogP for one pair of ranks per cluster and per pair
    of clusters, and the times of the MPI library's own collectives.
    """
    from gridcoll.cli.voice import need_mpi

    need_mpi()
    from mpi4py import MPI

    from gridcoll.cli.progress import Stages
    from gridcoll.cli.voice import one_voice
    from gridcoll.engine.agreement import require_equal, together
    from gridcoll.measure.discover import discover

    comm = MPI.COMM_WORLD.Dup()
    speaks = comm.Get_rank() == 0
    with one_voice(comm):
        limit = together(comm, lambda: _tolerance(tolerance))
        options = f"ρ={limit} both-directions={both_directions} native={not no_native}"
        require_equal(comm, "options of discover", options)
        together(comm, lambda: _check_output(output) if speaks else None)
        with Stages(silent=not speaks) as stages:
            model = discover(
                comm,
                limit,
                both_directions=both_directions,
                native=not no_native,
                progress=stages,
                name=name,
            )
        n_measured = stages.counts.get("pLogP of links", 0)
        if speaks:
            together(comm, lambda: _finish(model, n_measured, both_directions, output, as_json))
        else:
            together(comm, lambda: None)
    comm.Free()


def _tolerance(text: str) -> float:
    from gridcoll.comm.settings import read_settings

    if not text:
        return read_settings().tolerance
    try:
        return read_settings({"GRIDCOLL_TOLERANCE": text}).tolerance
    except UsageError as error:
        raise UsageError(str(error).replace("GRIDCOLL_TOLERANCE", "--tolerance")) from None


def _check_output(path: str) -> None:
    """Fail before measuring, not after it."""
    if path:
        check_writable(path)
    if path and Path(path).suffix == ".toml":
        raise UsageError(f"output {path}: .toml files are declared grids; a model's ends in .json")


def _finish(
    model: GridModel, n_measured: int, both_directions: bool, output: str, as_json: bool
) -> None:
    from gridcoll.cli.gridmap import print_map
    from gridcoll.model import format_model, write_model

    if output:
        write_model(model, output)
    if as_json:
        click.echo(format_model(model))
        return
    print_map(model)
    click.echo(f"\n{measured_line(model.n_clusters, n_measured, both_directions)}")
    if output:
        click.echo(f"model in {output}; use it with GRIDCOLL_GRID={output}")


def measured_line(n_clusters: int, n_measured: int, both_directions: bool) -> str:
    """How many pLogP measurements were made, and how many there may be."""
    from gridcoll.cli.gridmap import count

    pairs = n_clusters * (n_clusters - 1) // (1 if both_directions else 2)
    rule = "C(C-1) + C" if both_directions else "C(C-1)/2 + C"
    made = f"{count(n_measured, 'pLogP measurement')} for {count(n_clusters, 'cluster')}"
    return f"{made}; at most {rule} = {pairs + n_clusters} are needed"
