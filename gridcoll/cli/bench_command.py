"""``gridcoll bench``: time a collective against the MPI library's own and the physical limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gridcoll.cli.completion import algorithms as algorithms_of
from gridcoll.cli.options import GRID, ROOT, RenamedOptions
from gridcoll.draw.figures import new_figure, write_picture
from gridcoll.errors import UsageError
from gridcoll.files import check_writable, write_atomically
from gridcoll.gridfiles import find_gridfile
from gridcoll.topology.units import parse_duration_s, parse_size_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

    from gridcoll.bench.runs import Row
    from gridcoll.comm.communicator import GridComm
    from gridcoll.model.wires import Wires

DEFAULT_SIZES = "8,1K,64K,1M,4M"
ALL = "all"
FORMER_CANDIDATES = "tried"
"""The former name of ``candidates``, accepted for one release."""


@click.command(
    cls=RenamedOptions,
    renamed={
        "--algorithms": "--algorithm",
        "--model-file": "--model",
        "--keep": "--model",
        "--trace": "--trace-plot",
    },
)
@click.argument("collectives", nargs=-1, required=True, metavar="COLLECTIVE[:SIZES]...")
@click.option(
    "--sizes",
    default=DEFAULT_SIZES,
    show_default=True,
    help="Bytes, for example 8,64K,1M; used for collectives without sizes of their own.",
)
@click.option(
    "--repeats",
    default=10,
    show_default=True,
    type=click.IntRange(3),
    help="Runs of each variant; short ones are run up to five times as often.",
)
@click.option(
    "--longest",
    default="8s",
    show_default=True,
    help="Stop running a variant at a size once it has taken this long; if its first run did, "
    "run it once more.",
)
@ROOT
@click.option(
    "--algorithm",
    "algorithms",
    default="",
    shell_complete=algorithms_of,
    help="Use this algorithm, too; several as flat,ecef (see gridcoll list); 'all'; or "
    "'candidates': those of the choice.",
)
@click.option("--grid", "grid_name", default="", help=f"{GRID}; limits are computed from it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all rows, at the end.")
@click.option("-o", "--output", default="", help="Write here: the rows, as JSON.")
@click.option(
    "--model",
    "model_file",
    default="",
    help="A measured model (.json): read if the file exists, else measured and written to it.",
)
@click.option(
    "--trace-plot",
    "trace_prefix",
    default="",
    help="Trace the largest bcast once; draw PREFIX-predicted.svg and PREFIX-traced.svg.",
)
def command(
    collectives: tuple[str, ...],
    sizes: str,
    repeats: int,
    longest: str,
    root: int,
    algorithms: str,
    grid_name: str,
    as_json: bool,
    output: str,
    model_file: str,
    trace_prefix: str,
) -> None:
    """Time each COLLECTIVE natively and through gridcoll. Run it under mpiexec.

    A COLLECTIVE may have sizes of its own: bcast alltoall:8,1K. All ranks start at an agreed time,
    results are verified, and a run ends when its last rank has finished.
    """
    from gridcoll.cli.voice import need_mpi

    need_mpi()
    from mpi4py import MPI

    from gridcoll.bench.runs import CANDIDATES, run_benchmark
    from gridcoll.cli.voice import one_voice
    from gridcoll.engine.agreement import together
    from gridcoll.model.wires import wires_from_model
    from gridcoll.plan import REGISTRIES

    world = MPI.COMM_WORLD
    is_rank_0 = world.Get_rank() == 0

    with one_voice(world):
        # Find mistakes before measuring, which takes minutes.
        calls = together(world, lambda: _parse_calls(collectives, sizes))
        longest_s = together(world, lambda: parse_duration_s(longest))
        names = [CANDIDATES if n == FORMER_CANDIDATES else n for n in algorithms.split(",") if n]
        together(world, lambda: _check_request(list(calls), names, root, world.Get_size()))
        together(world, lambda: _check_trace(list(calls), trace_prefix) if is_rank_0 else None)
        together(world, lambda: _check_outputs(output, model_file) if is_rank_0 else None)
        declared = _declared_wires(world, grid_name)
        comm = _make_comm(world, tuple(calls), model_file)
        wires = declared or wires_from_model(comm.model)
        row_printer = _RowPrinter(world, output, as_json)
        for collective, n_bytes in calls.items():
            if is_rank_0 and not as_json:
                _print_header(collective, comm, grid_name)
            run_benchmark(
                comm,
                collective,
                n_bytes,
                wires,
                root=root,
                repeats=repeats,
                longest_s=longest_s,
                algorithms=list(REGISTRIES[collective]) if ALL in names else names,
                on_rows=row_printer,
            )
        if as_json and is_rank_0:
            click.echo(row_printer.json())
        if trace_prefix:
            _trace(comm, max(calls["bcast"]), root, trace_prefix)


def _parse_calls(collectives: tuple[str, ...], sizes: str) -> dict[str, list[int]]:
    """Return the sizes in bytes of each collective, from ``bcast`` or ``bcast:8,64K``.

    Raises `UsageError`.
    """
    calls: dict[str, list[int]] = {}
    for text in collectives:
        name, _, own_sizes = text.partition(":")
        if name in calls:
            raise UsageError(f"{name}: is named twice; give it all its sizes at once")
        calls[name] = [parse_size_bytes(each) for each in (own_sizes or sizes).split(",")]
    return calls


def _check_request(collectives: list[str], names: list[str], root: int, n_ranks: int) -> None:
    """Raise `UsageError` if a collective or an algorithm cannot be timed, or root is no rank."""
    from gridcoll.bench.runs import CANDIDATES, check_timed
    from gridcoll.plan.registry import check_forced

    for collective in collectives:
        check_timed(collective)
        for name in names:
            if name not in (ALL, CANDIDATES):
                check_forced(collective, name)
    if not 0 <= root < n_ranks:
        raise UsageError(f"--root {root}: must be in [0, {n_ranks})")


def _check_trace(collectives: list[str], prefix: str) -> None:
    """Raise `UsageError` or `FileError` if a trace cannot be made or drawn."""
    if not prefix:
        return
    others = [collective for collective in collectives if collective != "bcast"]
    if others:
        raise UsageError(f"--trace-plot: bcast is traced, {others[0]} is not")
    new_figure(1, 1)
    check_writable(f"{prefix}-traced.svg")


def _check_outputs(*paths: str) -> None:
    for path in filter(None, paths):
        check_writable(path)


def _declared_wires(world: MPI.Intracomm, grid_name: str) -> Wires | None:
    """Return the wires of the named grid file or model, or None if none is named. Collective.

    Only rank 0 reads the file.
    """
    from mpi4py import MPI

    from gridcoll.engine.agreement import together
    from gridcoll.measure.find_model import check_fit
    from gridcoll.model import read_model
    from gridcoll.model.wires import wires_from_model, wires_from_spec
    from gridcoll.topology.gridfile import read_gridfile

    hosts = world.allgather(MPI.Get_processor_name())
    reads = bool(grid_name) and world.Get_rank() == 0

    def read() -> Wires | None:
        if not reads:
            return None
        path = find_gridfile(grid_name)
        if path.suffix == ".toml":
            return wires_from_spec(read_gridfile(path), hosts)
        model = read_model(path)
        check_fit(model, hosts, grid_name)
        return wires_from_model(model)

    wires: Wires | None = world.bcast(together(world, read), 0)
    return wires


class _RowPrinter:
    """Prints rows as they come, and writes all rows so far to the output file.

    So an interrupted run keeps the rows it has measured.
    """

    def __init__(self, world: MPI.Intracomm, output: str, as_json: bool) -> None:
        self._world = world
        self._output = output
        self._as_json = as_json
        self._rows: list[Row] = []

    def __call__(self, rows: list[Row]) -> None:
        """Collective."""
        from gridcoll.engine.agreement import together

        self._rows += rows
        is_rank_0 = self._world.Get_rank() == 0
        if is_rank_0 and not self._as_json:
            _print_rows(rows)
        together(self._world, lambda: self._write_output() if is_rank_0 else None)

    def _write_output(self) -> None:
        if self._output:
            write_atomically(self._output, self.json())

    def json(self) -> bytes:
        """Return all rows so far as JSON."""
        import msgspec

        encoded = msgspec.json.encode(self._rows)
        return msgspec.json.format(encoded, indent=1)


def _make_comm(world: MPI.Intracomm, collectives: tuple[str, ...], model_file: str) -> GridComm:
    """Return a `GridComm` of ``world``. Collective.

    Its model is read from ``model_file`` or the grid file in the settings, or else measured.
    """
    from gridcoll.cli.progress import Stages
    from gridcoll.comm.communicator import GridComm
    from gridcoll.comm.settings import read_settings
    from gridcoll.engine.agreement import together
    from gridcoll.measure.discover import discover
    from gridcoll.measure.find_model import load_model
    from gridcoll.measure.natives import CALLS
    from gridcoll.model import write_model

    settings = read_settings()
    is_rank_0 = world.Get_rank() == 0
    # Only rank 0 looks for the file: the hosts of a grid rarely share a file system.
    if world.bcast(is_rank_0 and bool(model_file) and Path(model_file).exists(), 0):
        return GridComm(world, model=load_model(world, model_file))
    if settings.grid_file:
        comm = GridComm(world)
    else:
        private = world.Dup()
        # A model that is not written needs native times of the benchmarked collectives only.
        timed = tuple(CALLS) if model_file else collectives
        with Stages(silent=not is_rank_0) as stages:
            model = discover(private, settings.tolerance, collectives=timed, progress=stages)
        private.Free()
        comm = GridComm(world, model=model)
    if model_file:
        together(world, lambda: write_model(comm.model, model_file) if is_rank_0 else None)
    return comm


def _trace(comm: GridComm, n_bytes: int, root: int, prefix: str) -> None:
    """Draw the chosen broadcast as predicted and as traced. Collective."""
    from gridcoll.bench.runs import trace_plan
    from gridcoll.draw.gantt import draw_gantt, gantt_text
    from gridcoll.engine.memory import ByteMemory
    from gridcoll.plan.cost import price_plan

    build = comm.explain("bcast", n_bytes, root).winner.build
    is_rank_0 = comm.Get_rank() == 0
    if build is None:
        if is_rank_0:
            click.echo(f"# {n_bytes} bytes: the native collective was chosen; nothing to trace")
        return
    plan = build(n_bytes)
    private = comm.Dup()
    scratch = memoryview(bytearray(plan.scratch_of(comm.Get_rank())))
    memory = ByteMemory(memoryview(bytearray(n_bytes)), scratch=scratch)
    traced = trace_plan(private, comm.grid, plan, memory)
    private.Free()
    if not is_rank_0:
        return
    from rich.console import Console

    for name, timeline in (("predicted", price_plan(plan, comm.model)), ("traced", traced)):
        write_picture(draw_gantt(plan, timeline, comm.grid), f"{prefix}-{name}.svg")
        click.echo(f"# {name}, {timeline.makespan_s * 1e3:.1f} ms: {prefix}-{name}.svg")
        Console().print(gantt_text(plan, timeline, comm.grid))


def _print_header(collective: str, comm: object, grid_name: str) -> None:
    from gridcoll.bench.runs import mpi_name

    click.echo(f"# gridcoll {collective} benchmark, {mpi_name()}, limits of {grid_name or 'model'}")
    click.echo(
        f"# {'bytes':>9} {'variant':26} {'median ms':>10} {'q1':>9} {'q3':>9} "
        f"{'predicted':>9} {'limit':>9} {'x limit':>8}"
    )


def _print_rows(rows: list[Row]) -> None:
    for row in rows:
        predicted = f"{row.predicted_s * 1e3:9.3f}" if row.predicted_s is not None else f"{'-':>9}"
        # The limit is 0 where nothing limits, as in shared memory.
        of_limit = f"{row.median_s / row.limit_s:8.2f}" if row.limit_s else f"{'-':>8}"
        click.echo(
            f"{row.bytes:11d} {row.variant:26} {row.median_s * 1e3:10.3f} {row.q1_s * 1e3:9.3f} "
            f"{row.q3_s * 1e3:9.3f} {predicted} {row.limit_s * 1e3:9.3f} "
            f"{of_limit}  {row.algorithm}"
        )
    sys.stdout.flush()
