"""``gridcoll discover``: measure the grid that a job spans."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gridcoll.errors import UsageError
from gridcoll.files import check_writable, is_stream
from gridcoll.variables import Written

if TYPE_CHECKING:
    from mpi4py import MPI

    from gridcoll.model import GridModel


@click.command()
@click.option("-o", "--output", default="", help="write here: the model, for GRIDCOLL_GRID")
@click.option("--name", default="", help="name of the grid")
@click.option(
    "--tolerance",
    metavar="ρ",
    default="",
    help="how much latencies in a cluster may differ; default: GRIDCOLL_TOLERANCE, or 0.3",
)
@click.option("--both-directions", is_flag=True, help="measure every link from both ends")
@click.option("--no-native", is_flag=True, help="do not time the MPI library's own collectives")
@click.option(
    "--budget",
    metavar="TIME",
    default="",
    help="spend at most this time, as 60s or 10min: first a quick look, then the most valuable "
    "measurements",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON: the model itself")
def command(
    output: str,
    name: str,
    tolerance: str,
    both_directions: bool,
    no_native: bool,
    budget: str,
    as_json: bool,
) -> None:
    """Measure the grid that a job spans.

    Run it under mpiexec, with the ranks and hosts of the application. It finds the nodes, the
    latencies between them and the clusters. Then it measures pLogP of one pair of ranks per cluster
    and per pair of clusters, and times the MPI library's own collectives.

    The result is kept in the cache for later jobs. With --output, the model is written after every
    stage. If the command is interrupted or its budget runs out, the same command continues there.
    """
    from gridcoll.cli.voice import need_mpi

    need_mpi()
    from mpi4py import MPI

    from gridcoll.cli.progress import Stages
    from gridcoll.cli.voice import one_voice
    from gridcoll.engine.agreement import require_equal, together
    from gridcoll.measure.discover import discover
    from gridcoll.model import write_model

    comm = MPI.COMM_WORLD.Dup()
    is_rank_0 = comm.Get_rank() == 0
    with one_voice(comm):
        limit = together(comm, lambda: _tolerance(tolerance))
        budget_s = together(comm, lambda: _budget_s(budget))
        options = f"ρ={limit} both-directions={both_directions} native={not no_native} {budget_s}"
        require_equal(comm, "options of discover", options)
        together(comm, lambda: _check_output(output) if is_rank_0 else None)
        known = _unfinished_model(comm, output, limit, both_directions, not no_native)

        def keep(found: GridModel) -> None:
            if output and not is_stream(Path(output)):
                together(comm, lambda: write_model(found, output) if is_rank_0 else None)

        if is_rank_0 and known is not None:
            click.echo(f"gridcoll: continuing {output}, has {', '.join(known.stages)}", err=True)
        with Stages(silent=not is_rank_0) as stages:
            model = discover(
                comm,
                limit,
                both_directions=both_directions,
                native=not no_native,
                progress=stages,
                name=name,
                known=known,
                keep=keep,
                budget_s=budget_s,
            )
        n_measured = stages.counts.get("pLogP of links", 0)
        if is_rank_0:
            together(
                comm,
                lambda: _finish(model, n_measured, both_directions, not no_native, output, as_json),
            )
        else:
            together(comm, lambda: None)
    comm.Free()


def _unfinished_model(
    comm: MPI.Intracomm, output: str, tolerance: float, both_directions: bool, native: bool
) -> GridModel | None:
    """Return what an unfinished discovery of this job left at ``output``, or None. Collective.

    A finished model, or one of another job, is not continued but measured again.
    """
    from mpi4py import MPI

    from gridcoll.errors import FileError
    from gridcoll.measure.find_model import check_fit
    from gridcoll.model import format_model, parse_model, read_model
    from gridcoll.model.summary import is_symmetric

    hosts = comm.gather(MPI.Get_processor_name(), 0)
    data = b""
    if hosts is not None and output and Path(output).is_file():
        try:
            found = read_model(output)
            check_fit(found, hosts, output)
        except FileError:
            found = None
        if (
            found is not None
            and found.stages
            and _stages_left(found, native)
            and found.tolerance == tolerance
            and (found.n_clusters == 1 or both_directions != is_symmetric(found))
        ):
            data = format_model(found)
    data = comm.bcast(data, 0)
    return parse_model(data, output) if data else None


def _budget_s(text: str) -> float:
    from gridcoll.topology.units import parse_duration_s

    return parse_duration_s(text) if text else math.inf


def _tolerance(text: str) -> float:
    from gridcoll.comm.settings import read_settings

    option = {"GRIDCOLL_TOLERANCE": Written(text, "--tolerance")} if text else None
    return read_settings(option).tolerance


def _check_output(path: str) -> None:
    """Raise an error before measuring rather than after it."""
    if path:
        check_writable(path)
    if path and Path(path).suffix == ".toml":
        raise UsageError(f"output {path}: .toml files are declared grids; a model's ends in .json")


def _finish(
    model: GridModel,
    n_measured: int,
    both_directions: bool,
    native: bool,
    output: str,
    as_json: bool,
) -> None:
    from gridcoll.cli.gridmap import print_map
    from gridcoll.measure.cache.folder import find_places
    from gridcoll.measure.find_model import keep_model
    from gridcoll.model import format_model, write_model

    if output:
        write_model(model, output)
    if warning := keep_model(model, find_places()):
        click.echo(f"gridcoll: {warning}", err=True)
    if as_json:
        click.echo(format_model(model))
        return
    print_map(model)
    click.echo(f"\n{measured_line(model.n_clusters, n_measured, both_directions)}")
    if output:
        click.echo(f"model in {output}; use it with GRIDCOLL_GRID={output}")
    if left := _stages_left(model, native):
        click.echo(f"out of budget before: {', '.join(left)}; run the same command to continue")


def _stages_left(model: GridModel, native: bool) -> list[str]:
    from gridcoll.measure.discover import stage_names

    if len(set(model.grid.host_of)) == 1:
        return []
    return [stage for stage in stage_names(native) if stage not in model.stages]


def measured_line(n_clusters: int, n_measured: int, both_directions: bool) -> str:
    """Return how many pLogP measurements were made and how many are needed at most, as text."""
    from gridcoll.cli.gridmap import count

    pairs = n_clusters * (n_clusters - 1) // (1 if both_directions else 2)
    rule = "C(C-1) + C" if both_directions else "C(C-1)/2 + C"
    made = f"{count(n_measured, 'pLogP measurement')} for {count(n_clusters, 'cluster')}"
    return f"{made}; at most {rule} = {pairs + n_clusters} are needed"
