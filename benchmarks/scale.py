"""Compare chosen plans with the limit on grids of dozens to thousands of ranks, without MPI.

    python benchmarks/scale.py [--grids …] [--calls …] [--json] [--plot FILE] [--check]

The grids are declared, with interfaces of 1 Gbit/s, 1 to 50 ms between sites and 10 Gbit/s between
clusters. The table shows the predicted time of the chosen plan over the limit set by latency and
bandwidth, how long choosing took (the first call in a process, then other sizes), the largest
number of ops and messages of the ranks inspected, and the memory of the model, the choice and one
rank's program.

``--check`` also walks the chosen plan through the simulated network, if it has few enough messages.
``--plot`` draws the ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import GridModel, declared_model
from gridcoll.model.wires import Wires, wires_from_spec
from gridcoll.plan import choose
from gridcoll.plan.cost import price_plan
from gridcoll.plan.ops import Send
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import load_all
from gridcoll.topology.gridfile import parse_gridfile
from gridcoll.topology.units import format_size, parse_size_bytes

CALLS = (
    "bcast:8 bcast:64K bcast:4M bcast:64M reduce:4M allreduce:8 allreduce:64K allreduce:4M "
    "allreduce:64M alltoall:8 alltoall:1K alltoall:16K"
)

BARS = {
    ("bcast", 8): 1.3,
    ("allreduce", 8): 1.3,
    ("alltoall", 8): 1.3,
    ("bcast", 4 << 20): 1.5,
    ("allreduce", 4 << 20): 1.5,
    ("bcast", 64 << 20): 1.2,
    ("allreduce", 64 << 20): 1.2,
}
"""The largest accepted ratio of the chosen time to the limit, by collective and bytes."""

INSPECTED_RANKS = 24
MAX_WALKED_MESSAGES = 150_000
"""About how many ranks' programs are counted, and the largest plan that is walked, in messages."""


class Place(Struct, frozen=True):
    """One declared grid: hosts by cluster, ranks per host, latencies between clusters in s."""

    hosts: tuple[int, ...]
    slots: int
    latency_s: np.ndarray

    def text(self, name: str) -> str:
        """Return the text of the grid file, with ``name``."""
        lines = ["version = 1", f'name = "{name}"']
        for c, n_hosts in enumerate(self.hosts):
            lines += ["[[clusters]]", f'name = "c{c}"', f"hosts = {n_hosts}"]
            lines += [f"slots = {self.slots}", 'nic = "1 Gbit/s"']
        for i in range(len(self.hosts)):
            for j in range(i):
                lines += ["[[links]]", f'between = ["c{i}", "c{j}"]', 'rate = "10 Gbit/s"']
                lines.append(f'latency = "{1e6 * self.latency_s[i, j]:.0f} us"')
        return "\n".join(lines) + "\n"


def planar_latencies(n: int, seed: int, longest_s: float = 50e-3) -> np.ndarray:
    """Return latencies between ``n`` random sites in a plane, (n, n): 1 ms to ``longest_s``."""
    at = np.random.default_rng(seed).random((n, 2))
    far = np.hypot(*(at[:, None] - at[None]).T)
    return np.asarray(np.maximum(far * longest_s / max(far.max(), 1e-9), 1e-3))


def random_latencies(n: int, seed: int) -> np.ndarray:
    """Return independent random latencies of 1 to 50 ms, shape (n, n).

    Many paths over a relay are shorter than the direct link.
    """
    some = np.triu(np.random.default_rng(seed).uniform(1e-3, 50e-3, (n, n)), 1)
    return np.asarray(some + some.T)


def three_levels(regions: int, sites: int, clusters: int, seed: int) -> np.ndarray:
    """Return latencies of a grid of three levels, of shape (n, n) with n the number of clusters.

    They are 0.5 ms between clusters of a site, 1 to 5 ms between sites of a region, and 10 to 50 ms
    between regions.
    """
    n = regions * sites * clusters
    region, site = np.arange(n) // (sites * clusters), np.arange(n) // clusters
    far = np.maximum(planar_latencies(regions, seed), 10e-3)[np.ix_(region, region)]
    near = planar_latencies(regions * sites, seed + 1, 5e-3)[np.ix_(site, site)]
    same_region, same_site = (of[:, None] == of[None] for of in (region, site))
    return np.asarray(np.where(same_site, 0.5e-3, np.where(same_region, near, far)))


def uneven(n: int, seed: int, largest: int) -> tuple[int, ...]:
    """Return the sizes of ``n`` clusters, 1 to ``largest`` hosts: many small ones, few large."""
    parts = np.random.default_rng(seed).random(n)
    return tuple(int(size) for size in np.exp(parts * np.log(largest)).round())


GRIDS: dict[str, Callable[[], Place]] = {
    "3x4": lambda: Place((4,) * 3, 1, planar_latencies(3, 1)),
    "table-3": lambda: Place((31, 29, 6, 1, 1, 20), 1, planar_latencies(6, 2)),
    "12x8-shared": lambda: Place((4,) * 3, 8, planar_latencies(3, 1)),
    "8x64": lambda: Place((64,) * 8, 1, planar_latencies(8, 3)),
    "8x16x8-shared": lambda: Place((16,) * 8, 8, planar_latencies(8, 3)),
    "uneven-40": lambda: Place(uneven(40, 4, 300), 1, planar_latencies(40, 4)),
    "5x5x4x20": lambda: Place((20,) * 100, 1, three_levels(5, 5, 4, 5)),
    "24x200": lambda: Place((200,) * 24, 1, planar_latencies(24, 6)),
    "24x200-drawn": lambda: Place((200,) * 24, 1, random_latencies(24, 6)),
    "100x50": lambda: Place((50,) * 100, 1, planar_latencies(100, 7)),
    "100x50-drawn": lambda: Place((50,) * 100, 1, random_latencies(100, 7)),
}


class Row(Struct, frozen=True):
    """One call on one grid."""

    grid: str
    n_ranks: int
    n_clusters: int
    collective: str
    bytes: int
    chosen: str
    label: str
    predicted_s: float
    limit_s: float
    ratio: float
    bar: float | None
    choose_s: float
    n_ops: int
    n_messages: int
    memory_bytes: int | None
    walked_s: float | None


def build(name: str) -> tuple[GridModel, Wires]:
    """Return the model and the wires of the grid ``name``."""
    spec = parse_gridfile(GRIDS[name]().text(name))
    hosts = spec.rank_hosts()
    return declared_model(spec, hosts), wires_from_spec(spec, hosts)


def inspected_ranks(model: GridModel) -> list[int]:
    """Return the ranks to inspect: coordinators of some clusters, and evenly spaced ranks.

    The rank with the most work should be among them.
    """
    clusters = model.grid.clusters
    some = [cluster.coordinator for cluster in clusters[:: -(-len(clusters) // 8)]]
    step = max(model.grid.n_ranks // INSPECTED_RANKS, 1)
    return sorted({*some, *range(0, model.grid.n_ranks, step), model.grid.n_ranks - 1})


def measure(
    name: str, model: GridModel, wires: Wires, call: str, *, memory: bool, walk: bool
) -> Row:
    """Choose a plan for one call, and return a row about it."""
    collective, _, size = call.partition(":")
    n_bytes = parse_size_bytes(size)
    started = time.process_time()  # other processes may use this machine, too
    winner = choose(collective, model, n_bytes, 0).winner
    choose_s = time.process_time() - started
    n_ops = n_messages = 0
    walked_s = None
    if winner.build is not None:
        plan = winner.build(n_bytes)
        for rank in inspected_ranks(model):
            program = plan.programs[rank]
            n_ops = max(n_ops, len(program))
            n_messages = max(n_messages, sum(isinstance(op, Send) for op in program))
        if walk and n_messages * model.grid.n_ranks <= MAX_WALKED_MESSAGES:
            walked_s = price_plan(winner.build(n_bytes), model).makespan_s
    limit = limit_s(collective, wires, n_bytes)
    return Row(
        name,
        model.grid.n_ranks,
        model.n_clusters,
        collective,
        n_bytes,
        winner.name,
        winner.label if len(winner.label) < 200 else f"… {winner.label[-60:]}",
        winner.predicted_s or 0.0,
        limit,
        (winner.predicted_s or 0.0) / limit,
        BARS.get((collective, n_bytes)),
        choose_s,
        n_ops,
        n_messages,
        memory_of(name, collective, n_bytes) if memory else None,
        walked_s,
    )


def memory_of(name: str, collective: str, n_bytes: int) -> int:
    """Return the bytes that a rank retains: the model, the choice, and its own program."""
    spec = parse_gridfile(GRIDS[name]().text(name))
    hosts = spec.rank_hosts()
    tracemalloc.start()
    model = declared_model(spec, hosts)
    winner = choose(collective, model, n_bytes, 0).winner
    plan: Plan | None = winner.build(n_bytes) if winner.build else None
    program = plan.programs[model.grid.n_ranks - 1] if plan else ()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept if program is not None else 0


def print_table(rows: Iterable[Row]) -> None:
    console = Console(width=max(Console().width, 150))
    table = Table()
    for column in (
        "grid", "call", "bytes", "chosen", "ms", "limit", "ratio", "bar", "choose ms", "ops",
        "sends", "MiB", "walked/predicted",
    ):  # fmt: skip
        table.add_column(
            column, justify="left" if column in ("grid", "call", "chosen") else "right"
        )
    last = ""
    for row in rows:
        if row.grid != last:
            table.add_section()
        over = row.bar is not None and row.ratio > row.bar
        table.add_row(
            f"{row.grid} ({row.n_ranks})" if row.grid != last else "",
            row.collective,
            format_size(row.bytes),
            row.chosen,
            f"{1e3 * row.predicted_s:.2f}",
            f"{1e3 * row.limit_s:.2f}",
            f"{'[bold red]' if over else ''}{row.ratio:.2f}",
            "" if row.bar is None else f"{row.bar:.1f}",
            f"{1e3 * row.choose_s:.0f}",
            str(row.n_ops),
            str(row.n_messages),
            "" if row.memory_bytes is None else f"{row.memory_bytes / (1 << 20):.0f}",
            "" if row.walked_s is None else f"{row.walked_s / row.predicted_s:.2f}",
        )
        last = row.grid
    console.print(table)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Plot ratios against the number of ranks into ``path``, with a panel for each of `BARS`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, all_axes = plt.subplots(2, 4, figsize=(15, 7), sharex=True, layout="constrained")
    for axes, ((collective, n_bytes), bar) in zip(all_axes.flat, BARS.items(), strict=False):
        some = [row for row in rows if (row.collective, row.bytes) == (collective, n_bytes)]
        for row in some:
            axes.plot(row.n_ranks, row.ratio, "o", label=row.grid)
        axes.axhline(bar, color="black", ls="--")
        axes.set(title=f"{collective}, {format_size(n_bytes)}", xscale="log", ylim=(0.9, None))
        axes.grid(alpha=0.3)
    all_axes.flat[-1].set_axis_off()
    figure.legend(*all_axes.flat[0].get_legend_handles_labels(), loc="lower right")
    figure.supxlabel("ranks")
    figure.supylabel("predicted time of what is chosen, over the limit")
    figure.savefig(path)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--grids", default=",".join(GRIDS))
    parser.add_argument("--calls", default=CALLS.replace(" ", ","))
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    parser.add_argument("--plot", type=Path, help="draw the ratios into this file")
    parser.add_argument("--memory", action="store_true", help="measure memory, too (slow)")
    parser.add_argument("--check", action="store_true", help="simulate the chosen plans, too")
    options = parser.parse_args(arguments)
    load_all()
    rows = []
    for name in options.grids.split(","):
        model, wires = build(name)
        for call in options.calls.split(","):
            row = measure(name, model, wires, call, memory=options.memory, walk=options.check)
            rows.append(row)
            if options.json:
                print(json.dumps(asdict(row), ensure_ascii=False))
            else:
                print(f"{name} {call}: {row.chosen} {row.ratio:.2f}", file=sys.stderr, flush=True)
    if not options.json:
        print_table(rows)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
