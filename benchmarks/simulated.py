"""Compare plans simulated by SimGrid with our predictions and with SMPI's own collectives.

    python benchmarks/simulated.py [--ranks 88,256,…] [--calls …] [--json] [--plot FILE]

Each number of ranks has a declared grid: the papers' Table 3 grid for 88, then 4, 8 and 16 sites of
64, 128 and 256 hosts, interfaces of 1 Gbit/s, 1 to 50 ms and 10 Gbit/s between sites. On it,
SimGrid simulates the messages of the chosen plan. Each message starts when everything that it
depends on is complete; messages of one connection follow each other, and connections share
interfaces and links. SMPI also replays the plan as a trace. There each rank does one thing after
the other, and so waits for a late segment of one tree although the segment of another has arrived.
The same call is made with SMPI's own selectors (``ompi``, ``mpich``, ``mvapich2``, ``impi``) on the
same platform. Needs ``smpirun`` and ``smpicc``, on the PATH or at ``--smpirun``, ``g++``, and
SimGrid's headers.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from rich.console import Console
from rich.table import Table
from scale import Place, planar_latencies

from gridcoll.bench.simgrid import (
    HOSTS,
    OPERATIONS_PER_S,
    Folder,
    find_simgrid,
    platform_lines,
)
from gridcoll.errors import FileError, UsageError
from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import Wires, wires_from_spec
from gridcoll.plan import choose
from gridcoll.plan.cost import Timeline, price_plan
from gridcoll.plan.dataflow import Dataflow, dataflow
from gridcoll.plan.exports import smpi_lines
from gridcoll.plan.ops import Recv, Send
from gridcoll.plan.plan import Plan
from gridcoll.topology.gridfile import parse_gridfile
from gridcoll.topology.units import format_size, parse_size_bytes

PLACES = {
    88: lambda: Place((31, 29, 6, 1, 1, 20), 1, planar_latencies(6, 2)),
    256: lambda: Place((64,) * 4, 1, planar_latencies(4, 3)),
    1024: lambda: Place((128,) * 8, 1, planar_latencies(8, 3)),
    4096: lambda: Place((256,) * 16, 1, planar_latencies(16, 3)),
}
CALLS = "bcast:8,bcast:64K,bcast:4M,allreduce:8,allreduce:64K,allreduce:4M,alltoall:8,alltoall:1K"
SELECTORS = ("ompi", "mpich", "mvapich2", "impi")
MAX_MEDIAN_DEVIATION, MAX_DEVIATION = 0.15, 0.40
"""The largest relative deviations of simulations from predictions that pass the check."""

MAX_SIMULATED_MESSAGES = 600_000
"""Larger plans are not simulated: a million messages take minutes and gigabytes."""

LONGEST_CALL = re.compile(r"longest (\S+)")
LAST_MESSAGE = re.compile(r"last (\S+)")
SIMULATION_OPTIONS = (
    "--cfg=network/model:CM02",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/crosstraffic:0",
    "--log=root.thresh:warning",
)
"""Use the rates of the platform unchanged. The program itself adds the latencies."""


class Row(Struct, frozen=True):
    """One call on one grid. Times are in seconds, and None if left out or failed."""

    n_ranks: int
    collective: str
    bytes: int
    chosen: str
    limit_s: float
    predicted_s: float
    walked_s: float | None
    simulated_s: float | None
    replayed_s: float | None
    """The time of SMPI's replay of the plan as a trace."""
    n_messages: int
    selectors_s: dict[str, float | None]
    took_s: float

    @property
    def off(self) -> float | None:
        """The deviation of the simulation from the prediction, relative to the prediction."""
        return None if self.simulated_s is None else self.simulated_s / self.predicted_s - 1

    @property
    def best_selector_s(self) -> float | None:
        return min((s for s in self.selectors_s.values() if s is not None), default=None)


def compile_call(smpirun: Path, folder: Path) -> Path:
    """Compile the C program of one call with the ``smpicc`` beside ``smpirun``; return its path."""
    program = folder / "simulated_call"
    source = Path(__file__).with_name("simulated_call.c")
    compile_with(str(smpirun.with_name("smpicc")), "-O1", "-o", str(program), str(source))
    return program


def compile_with(*command: str) -> None:
    """Run a compiler. Raises `FileError` if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FileError(f"{command[0]}: {done.stderr.strip()[-300:]}")


class Simulation:
    """A simulation of a plan's messages on SimGrid's network."""

    def __init__(self, smpirun: Path, include: str, folder: Path) -> None:
        """Compile the program. Raises `FileError`."""
        self._program = folder / "simulated_plan"
        source = Path(__file__).with_name("simulated_plan.cpp")
        root = smpirun.parent.parent
        libraries = next(
            (path.parent for path in sorted(root.glob("lib*/**/libsimgrid.so"))), root / "lib"
        )
        compile_with(
            *("g++", "-O2", "-std=c++17", "-o", str(self._program), str(source)),
            *(f"-I{include or root / 'include'}", f"-L{libraries}", "-lsimgrid"),
            f"-Wl,-rpath,{libraries}",
        )

    def run_s(
        self, plan: Plan, timeline: Timeline, wires: Wires, folder: Folder, timeout_s: float
    ) -> float:
        """Return the seconds that ``plan`` takes. Raises `FileError` and `UsageError`."""
        clock = (
            '<zone id="time" routing="None">'
            f'<host id="clock" speed="{OPERATIONS_PER_S:.0f}f" core="1000000"/></zone>\n'
        )
        flat = replace(wires, latency_s=np.zeros_like(wires.latency_s))
        head, *rest = platform_lines(flat)
        (folder.path / "messages.xml").write_text("".join((head, clock, *rest)))
        messages = "".join(message_lines(plan, timeline, wires))
        (folder.path / "messages.txt").write_text(messages)
        command = [str(self._program), "messages.xml", HOSTS, "messages.txt", *SIMULATION_OPTIONS]
        output = folder.run_command(command, timeout_s)
        return float(LAST_MESSAGE.search(output)[1])  # type: ignore[index]


def message_lines(plan: Plan, timeline: Timeline, wires: Wires) -> Iterator[str]:
    """Yield the plan's messages in the format that `simulated_plan.cpp` reads.

    A message depends on everything that its send and its receive depend on. Messages from one rank
    to another use one connection: each also waits until the one before it, in the order of the
    timeline, has been sent.
    """
    flows = [dataflow(program) for program in plan.programs]
    sends = [
        (rank, index)
        for rank, flow in enumerate(flows)
        for index, op in enumerate(flow.program)
        if isinstance(op, Send)
    ]
    number = {
        (rank, flows[rank].program[index].peer, flows[rank].tags[index]): at
        for at, (rank, index) in enumerate(sends)
    }
    needs: list[set[int]] = [set() for _ in sends]
    for rank, flow in enumerate(flows):
        before: dict[int, int] = {}
        start_s = timeline.start_s[rank]
        for index in sorted(range(len(flow.program)), key=start_s.__getitem__):
            op = flow.program[index]
            if isinstance(op, Send):
                message = number[rank, op.peer, flow.tags[index]]
                if op.peer in before:
                    needs[message].add(-1 - before[op.peer])
                before[op.peer] = message
            elif isinstance(op, Recv):
                message = number[op.peer, rank, flow.tags[index]]
            else:
                continue
            for at in _messages_before(flow, index):
                needed = flow.program[at]
                if isinstance(needed, Send):
                    needs[message].add(-1 - number[rank, needed.peer, flow.tags[at]])
                else:
                    needs[message].add(number[needed.peer, rank, flow.tags[at]])
    grid = wires.grid
    yield f"{len(sends)}\n"
    for (rank, index), needed in zip(sends, needs, strict=True):
        op = flows[rank].program[index]
        own, other = grid.cluster_of[rank], grid.cluster_of[op.peer]
        alone = grid.host_of[rank] == grid.host_of[op.peer]
        latency_s = 0.0 if alone else wires.latency_s[own, other]
        line = (rank, op.peer, max(op.chunk.size, 1), latency_s, op.due_us / 1e6, len(needed))
        yield " ".join(map(str, (*line, *sorted(needed)))) + "\n"


def _messages_before(flow: Dataflow, index: int) -> set[int]:
    """Return the sends and receives that op ``index`` waits for.

    Reductions and copies take no time; their own dependencies count instead.
    """
    found, seen, look = set(), {index}, [*flow.needs[index]]
    while look:
        at = look.pop()
        if at not in seen:
            seen.add(at)
            if isinstance(flow.program[at], Send | Recv):
                found.add(at)
            else:
                look += flow.needs[at]
    return found


def measure(
    n_ranks: int,
    call: str,
    smpirun: Path,
    simulation: Simulation,
    program: Path,
    path: Path,
    selectors: Sequence[str],
    timeout_s: float,
) -> Row:
    """Predict, simulate and replay one call, and time it with SMPI's selectors."""
    started = time.monotonic()
    spec = parse_gridfile(PLACES[n_ranks]().text(f"ranks-{n_ranks}"))
    hosts = spec.rank_hosts()
    model, wires = declared_model(spec, hosts), wires_from_spec(spec, hosts)
    collective, _, size = call.partition(":")
    n_bytes = parse_size_bytes(size)
    winner = choose(collective, model, n_bytes, 0, grid_only=True).winner
    if winner.build is None or winner.predicted_s is None:
        raise UsageError(f"{call}: no plan")
    plan = winner.build(n_bytes)
    folder = Folder.write(path, wires, spec.window_bytes)
    n_messages = n_ranks * max(
        sum(isinstance(op, Send) for op in plan.programs[rank]) for rank in (0, 1, n_ranks - 1)
    )
    walked_s = simulated_s = replayed_s = None
    if n_messages <= MAX_SIMULATED_MESSAGES:
        timeline = price_plan(plan, model)
        walked_s = timeline.makespan_s
        n_messages = sum(isinstance(op, Send) for program in plan.programs for op in program)
        simulated_s = value_or_none(
            lambda: simulation.run_s(plan, timeline, wires, folder, timeout_s)
        )
        folder.write_trace(smpi_lines(plan, model, timeline=timeline))
        replayed_s = value_or_none(lambda: folder.replay_s(smpirun, timeout_s))

    def selector_s(name: str) -> float:
        command = [str(program), collective, str(n_bytes)]
        output = folder.run(smpirun, command, [f"--cfg=smpi/coll-selector:{name}"], timeout_s)
        return float(LONGEST_CALL.search(output)[1])  # type: ignore[index]

    asked = {name: value_or_none(lambda name=name: selector_s(name)) for name in selectors}
    return Row(
        *(n_ranks, collective, n_bytes, winner.name, limit_s(collective, wires, n_bytes)),
        *(winner.predicted_s, walked_s, simulated_s, replayed_s, n_messages, asked),
        time.monotonic() - started,
    )


def value_or_none(step) -> float | None:  # type: ignore[no-untyped-def]
    """Return the result of ``step``, or None if SimGrid fails or takes too long.

    A failure is printed to standard error.
    """
    try:
        return float(step())
    except (FileError, UsageError) as error:
        print(f"  {error}"[:300], file=sys.stderr, flush=True)
        return None


def verdict(rows: Iterable[Row]) -> str:
    """Summarize how far simulations deviate from predictions, and whether that passes."""
    deviations = sorted(abs(row.off) for row in rows if row.off is not None)
    if not deviations:
        return "nothing was simulated"
    median = statistics.median(deviations)
    held = (
        "held" if median <= MAX_MEDIAN_DEVIATION and deviations[-1] <= MAX_DEVIATION else "NOT held"
    )
    return (
        f"simulated against predicted, {len(deviations)} calls: median {median:.0%} off (bar "
        f"{MAX_MEDIAN_DEVIATION:.0%}), worst {deviations[-1]:.0%} (bar {MAX_DEVIATION:.0%}): {held}"
    )


def print_table(rows: Iterable[Row]) -> None:
    """Print the rows as a table for people."""
    table = Table("ranks", "call", "bytes", "chosen")
    for column in (
        "limit ms",
        "predicted",
        "simulated",
        "off",
        "as a trace",
        *SELECTORS,
        "best / ours",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        best = row.best_selector_s
        table.add_row(
            *(str(row.n_ranks), row.collective, format_size(row.bytes), row.chosen),
            *map(_ms, (row.limit_s, row.predicted_s, row.simulated_s)),
            "" if row.off is None else f"{row.off:+.0%}",
            _ms(row.replayed_s),
            *(_ms(row.selectors_s.get(name)) for name in SELECTORS),
            f"{best / row.simulated_s:.1f}" if best and row.simulated_s else "",
        )
    Console(width=150).print(table)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.1f}"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Plot times over the limit against the number of ranks, with a panel per call.

    Shown are predictions, simulations and the best selector.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    calls = list(dict.fromkeys((row.collective, row.bytes) for row in rows))
    figure, all_axes = plt.subplots(
        2, -(-len(calls) // 2), figsize=(14, 6), sharex=True, squeeze=False, layout="constrained"
    )
    for axes, call in zip(all_axes.flat, calls, strict=False):
        some = [row for row in rows if (row.collective, row.bytes) == call]
        for label, style, of in (
            ("predicted", "k--", lambda row: row.predicted_s),
            ("simulated", "o-", lambda row: row.simulated_s),
            ("best selector", "s-", lambda row: row.best_selector_s),
        ):
            points = [(row.n_ranks, of(row) / row.limit_s) for row in some if of(row)]
            if points:
                axes.loglog(*zip(*points, strict=True), style, label=label)
        axes.set(title=f"{call[0]}, {format_size(call[1])}")
        axes.grid(alpha=0.3)
    all_axes.flat[0].legend()
    figure.supxlabel("ranks")
    figure.supylabel("time over the limit")
    figure.savefig(path)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default=",".join(map(str, PLACES)))
    parser.add_argument("--calls", default=CALLS)
    parser.add_argument("--selectors", default=",".join(SELECTORS), help="empty: none")
    parser.add_argument("--smpirun", default="", help="path of smpirun, if not on the PATH")
    parser.add_argument(
        "--include", default="", help="folder of SimGrid's headers, if not ../include of smpirun"
    )
    parser.add_argument("--timeout", type=float, default=300, help="seconds per simulation")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    parser.add_argument("--rows", type=Path, help="show the rows of this file; run nothing")
    parser.add_argument("--plot", type=Path, help="draw times over the limit into this file")
    options = parser.parse_args(arguments)
    if options.rows:
        lines = options.rows.read_text().splitlines()
        rows = [Row(**json.loads(line)) for line in lines]
    else:
        rows = run(options)
    if not options.json:
        print_table(rows)
        print(verdict(rows))
    if options.plot:
        plot(rows, options.plot)


def run(options: argparse.Namespace) -> list[Row]:
    """Measure and return all rows. Each row is printed as soon as it is complete."""
    smpirun = find_simgrid(options.smpirun)
    selectors = [name for name in options.selectors.split(",") if name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = compile_call(smpirun, Path(folder))
        simulation = Simulation(smpirun, options.include, Path(folder))
        for n_ranks in map(int, options.ranks.split(",")):
            for call in options.calls.split(","):
                at = Path(folder) / "platform"
                row = measure(
                    *(n_ranks, call, smpirun, simulation, program, at, selectors),
                    options.timeout,
                )
                rows.append(row)
                if options.json:
                    print(json.dumps(asdict(row), ensure_ascii=False), flush=True)
                else:
                    print(f"{n_ranks} {call}: {row.off} {row.took_s:.0f} s", file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
