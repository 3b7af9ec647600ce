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
FORMERLY = "tried"
"""What ``candidates`` was called; taken for one release."""


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
    help="Bytes, as 8,64K,1M, of collectives without sizes of their own.",
)
@click.option(
    "--repeats",
    default=10,
    show_default=True,
    type=click.IntRange(3),
    help="Runs of each variant; short ones get up to five times as many.",
)
@click.option(
    "--longest",
    default="8s",
    show_default=True,
    help="A variant that took so long at a size is run no more, or once more if its first run did.",
)
@ROOT
@click.option(
    "--algorithm",
    "algorithms",
    default="",
    shell_complete=algorithms_of,
    help="This algorithm, too; several as flat,ecef (see gridcoll list); 'all', or 'candidates' of "
    "the choice.",
)
@click.option("--grid", "grid_name", default="", help=f"{GRID}; it sets the limit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the rows, when all are done.")
@click.option("-o", "--output", default="", help="Write here: the rows, as JSON.")
@click.option(
    "--model",
    "model_file",
    default="",
    help="A measured model (.json): used if the file is there, else measured and kept in it.",
)
@click.option(
    "--trace-plot",
    "trace_prefix",
    default="",
    help="Trace the largest size once: PREFIX-predicted.svg and PREFIX-traced.svg (bcast).",
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
    """Time each COLLECTIVE (bcast, alltoall:8,1K, …) natively and through gridcoll; under mpiexec.

    Ranks start at an agreed time, results are verified, and every time is that of the last rank.
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
    leading = world.Get_rank() == 0

    with one_voice(world):
        # Mistakes are found before measuring, which takes minutes.
        calls = together(world, lambda: _parse_calls(collectives, sizes))
        longest_s = together(world, lambda: parse_duration_s(longest))
        names = [CANDIDATES if n == FORMERLY else n for n in algorithms.split(",") if n]
        together(world, lambda: _check_request(list(calls), names, root, world.Get_size()))
        together(world, lambda: _check_trace(list(calls), trace_prefix) if leading else None)
        together(world, lambda: _check_places(output, model_file) if leading else None)
        declared = _declared_wires(world, grid_name)
        comm = _measured(world, tuple(calls), model_file)
        wires = declared or wires_from_model(comm.model)
        teller = _Teller(world, output, as_json)
        for collective, n_bytes in calls.items():
            if leading and not as_json:
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
                on_rows=teller,
            )
        if as_json and leading:
            click.echo(teller.json())
        if trace_prefix:
            _trace(comm, max(calls["bcast"]), root, trace_prefix)


def _parse_calls(collectives: tuple[str, ...], sizes: str) -> dict[str, list[int]]:
    """Sizes in bytes by collective, of ``bcast`` or ``bcast:8,64K``. Raises `UsageError`."""
    calls: dict[str, list[int]] = {}
    for text in collectives:
        name, _, own = text.partition(":")
        if name in calls:
            raise UsageError(f"{name}: is named twice; give it all its sizes at once")
        calls[name] = [parse_size_bytes(each) for each in (own or sizes).split(",")]
    return calls


def _check_request(collectives: list[str], names: list[str], root: int, n_ranks: int) -> None:
    """Raise `UsageError` for what cannot be timed."""
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
    """Raise `UsageError` or `FileError` where a trace could not be had or drawn."""
    if not prefix:
        return
    others = [collective for collective in collectives if collective != "bcast"]
    if others:
        raise UsageError(f"--trace-plot: bcast is traced, {others[0]} is not")
    new_figure(1, 1)
    check_writable(f"{prefix}-traced.svg")


def _check_places(*paths: str) -> None:
    for path in filter(None, paths):
        check_writable(path)


def _declared_wires(world: MPI.Intracomm, grid_name: str) -> Wires | None:
    """Those of the named grid file or model, which rank 0 reads; None without one. Collective."""
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


class _Teller:
    """Prints rows as they come, and keeps all of them: who interrupts a long run has those."""

    def __init__(self, world: MPI.Intracomm, output: str, as_json: bool) -> None:
        self._world = world
        self._output = output
        self._as_json = as_json
        self._rows: list[Row] = []

    def __call__(self, rows: list[Row]) -> None:
        """Collective."""
        from gridcoll.engine.agreement import together

        self._rows += rows
        leading = self._world.Get_rank() == 0
        if leading and not self._as_json:
            _print_rows(rows)
        together(self._world, lambda: self._keep() if leading else None)

    def _keep(self) -> None:
        if self._output:
            write_atomically(self._output, self.json())

    def json(self) -> bytes:
        """All rows so far."""
        import msgspec

        encoded = msgspec.json.encode(self._rows)
        return msgspec.json.format(encoded, indent=1)


def _measured(world: MPI.Intracomm, collectives: tuple[str, ...], model_file: str) -> GridComm:
    """``world`` by the model that settings or ``model_file`` name, or by a new one. Collective."""
    from gridcoll.cli.progress import Stages
    from gridcoll.comm.communicator import GridComm
    from gridcoll.comm.settings import read_settings
    from gridcoll.engine.agreement import together
    from gridcoll.measure.discover import discover
    from gridcoll.measure.find_model import load_model
    from gridcoll.measure.natives import CALLS
    from gridcoll.model import write_model

    settings = read_settings()
    leading = world.Get_rank() == 0
    # Rank 0 looks: hosts of a grid seldom share their files.
    if world.bcast(leading and bool(model_file) and Path(model_file).exists(), 0):
        return GridComm(world, model=load_model(world, model_file))
    if settings.grid_file:
        comm = GridComm(world)
    else:
        own = world.Dup()
        # A model that serves nothing else need not know of anything else.
        timed = tuple(CALLS) if model_file else collectives
        with Stages(silent=not leading) as stages:
            model = discover(own, settings.tolerance, collectives=timed, progress=stages)
        own.Free()
        comm = GridComm(world, model=model)
    if model_file:
        together(world, lambda: write_model(comm.model, model_file) if leading else None)
    return comm


def _trace(comm: GridComm, n_bytes: int, root: int, prefix: str) -> None:
    """Draw the chosen broadcast as it was priced and as it went. Collective."""
    from gridcoll.bench.runs import trace_plan
    from gridcoll.draw.gantt import draw_gantt, gantt_text
    from gridcoll.engine.memory import ByteMemory
    from gridcoll.plan.cost import price_plan

    build = comm.explain("bcast", n_bytes, root).winner.build
    leading = comm.Get_rank() == 0
    if build is None:
        if leading:
            click.echo(f"# {n_bytes} bytes: the native collective was chosen; nothing to trace")
        return
    plan = build(n_bytes)
    private = comm.Dup()
    scratch = memoryview(bytearray(plan.scratch_of(comm.Get_rank())))
    memory = ByteMemory(memoryview(bytearray(n_bytes)), scratch=scratch)
    traced = trace_plan(private, comm.grid, plan, memory)
    private.Free()
    if not leading:
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
        # Memory that ranks share has no limit here.
        of_limit = f"{row.median_s / row.limit_s:8.2f}" if row.limit_s else f"{'-':>8}"
        click.echo(
            f"{row.bytes:11d} {row.variant:26} {row.median_s * 1e3:10.3f} {row.q1_s * 1e3:9.3f} "
            f"{row.q3_s * 1e3:9.3f} {predicted} {row.limit_s * 1e3:9.3f} "
            f"{of_limit}  {row.algorithm}"
        )
    sys.stdout.flush()
