"""Draws a timeline: one lane per rank, grouped by cluster, with sends coloured by target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from gridcoll.draw.figures import new_figure
from gridcoll.plan.cost import Timeline
from gridcoll.plan.ops import Copy, Recv, Reduce, Send
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid
from gridcoll.topology.units import format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

Kind = Literal["send far", "send near", "receive", "compute"]
MAX_LANES = 12
"""Of larger clusters, only this many lanes are drawn."""

COLOURS: dict[Kind, str] = {
    "send far": "#d1495b",
    "send near": "#3b6fb6",
    "receive": "#b9c8dd",
    "compute": "#e0a030",
}
LABELS: dict[Kind, str] = {
    "send far": "sends to another cluster",
    "send near": "sends inside its cluster",
    "receive": "receives",
    "compute": "reduces or copies",
}
GLYPHS: dict[Kind, str] = {"send far": "█", "send near": "▓", "receive": "░", "compute": "▞"}


class Bar(Struct, frozen=True):
    """The time that an op takes on its rank."""

    kind: Kind
    start_s: float
    end_s: float


def bars_of(plan: Plan, timeline: Timeline, grid: Grid, rank: int) -> Iterator[Bar]:
    """Yield the bars of ``rank``, in program order."""
    times = zip(timeline.start_s[rank], timeline.end_s[rank], strict=True)
    for op, (start, end) in zip(plan.programs[rank], times, strict=True):
        kind: Kind
        match op:
            case Send(peer=peer):
                far = grid.cluster_of[peer] != grid.cluster_of[rank]
                kind = "send far" if far else "send near"
            case Recv():
                kind = "receive"
            case Reduce() | Copy():
                kind = "compute"
        yield Bar(kind, start, end)


def _lanes(grid: Grid) -> list[tuple[str, int | None]]:
    """Return cluster names and ranks from top to bottom; None stands for omitted ranks."""
    lanes: list[tuple[str, int | None]] = []
    for cluster in grid.clusters:
        lanes += [(cluster.name, rank) for rank in cluster.ranks[:MAX_LANES]]
        if len(cluster) > MAX_LANES:
            lanes.append((cluster.name, None))
    return lanes


def gantt_text(plan: Plan, timeline: Timeline, grid: Grid, width: int = 72) -> Text:
    """Return the chart for a terminal; ``width`` cells are the makespan. Colour is not needed.

    A send or local op hides receives in the same cell, unless it fills only a little of it.
    """
    from rich.text import Text

    cell_s = max(timeline.makespan_s, 1e-12) / width
    name_width = max(len(cluster.name) for cluster in grid.clusters)
    rank_width = len(str(grid.n_ranks - 1))
    text, last = Text(), ""
    for name, rank in _lanes(grid):
        text.append(f"{name if name != last else '':<{name_width}} ", "bold")
        last = name
        if rank is None:
            left_out = len(next(c for c in grid.clusters if c.name == name)) - MAX_LANES
            text.append(f"{'':>{rank_width}} … {left_out} more\n", "dim")
            continue
        text.append(f"{rank:>{rank_width}} ", "dim")
        for kind in _cells(list(bars_of(plan, timeline, grid, rank)), cell_s, width):
            text.append(GLYPHS[kind] if kind else "·", COLOURS[kind] if kind else "dim")
        text.append("\n")
    end = format_duration(timeline.makespan_s)
    text.append(" " * (name_width + rank_width + 2) + f"0{end:>{width - 1}}\n", "dim")
    present = {bar.kind for r in range(grid.n_ranks) for bar in bars_of(plan, timeline, grid, r)}
    legend = [f"{GLYPHS[kind]} {LABELS[kind]}" for kind in LABELS if kind in present]
    return text.append("   ".join(legend))


def _cells(bars: list[Bar], cell_s: float, width: int) -> list[Kind | None]:
    """Return what each cell of a lane shows."""
    filled: dict[Kind, list[float]] = {kind: [0.0] * width for kind in LABELS}
    for bar in bars:
        first, last = int(bar.start_s / cell_s), int(bar.end_s / cell_s)
        for cell in range(first, min(last + 1, width)):
            overlap = min(bar.end_s, (cell + 1) * cell_s) - max(bar.start_s, cell * cell_s)
            filled[bar.kind][cell] += max(overlap, 0.0)
    cells: list[Kind | None] = []
    for cell in range(width):
        far = filled["send far"][cell] >= filled["send near"][cell]
        order: tuple[Kind, ...] = ("send far" if far else "send near", "compute", "receive")
        busy = [kind for kind in order if filled[kind][cell] > 0.25 * cell_s]
        touched = [kind for kind in order if filled[kind][cell] > 0]
        cells.append(next(iter(busy or touched), None))
    return cells


def draw_gantt(plan: Plan, timeline: Timeline, grid: Grid) -> Figure:
    """Draw the chart as a picture: sends in the upper half of a lane, receives in the lower half.

    Raises `UsageError` without matplotlib.
    """
    lanes = _lanes(grid)
    figure = new_figure(10.0, 1.3 + 0.24 * len(lanes))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    halves: dict[Kind, tuple[float, float]] = {
        "send far": (-0.42, 0.44), "send near": (-0.42, 0.44),
        "receive": (0.04, 0.38), "compute": (-0.42, 0.84),
    }  # fmt: skip
    seen: set[Kind] = set()
    for lane, (_, rank) in enumerate(lanes):
        if rank is None:
            axes.text(0.0, lane, "  …", va="center", color="#6b7280")
            continue
        spans: dict[Kind, list[tuple[float, float]]] = {}
        for bar in bars_of(plan, timeline, grid, rank):
            spans.setdefault(bar.kind, []).append(
                (1e3 * bar.start_s, 1e3 * (bar.end_s - bar.start_s))
            )
        for kind, xs in spans.items():
            below, height = halves[kind]
            seen.add(kind)
            axes.broken_barh(
                xs, (lane + below, height), facecolors=COLOURS[kind],
                edgecolor="white", linewidth=0.3 if len(xs) < 40 else 0.0,
            )  # fmt: skip
        done_ms = 1e3 * timeline.done_s(rank)
        axes.plot([done_ms] * 2, [lane - 0.42, lane + 0.42], color="#1d2433", linewidth=1.2)
    _label_lanes(axes, lanes)
    axes.set_xlabel("ms")
    axes.set_xlim(0, 1e3 * timeline.makespan_s * 1.01)
    axes.set_title(
        f"{plan.collective}, {plan.n_units:,} bytes: {format_duration(timeline.makespan_s)}",
        loc="left", weight="bold",
    )  # fmt: skip
    _draw_legend(figure, seen)
    return figure


def _draw_legend(figure: Figure, kinds: set[Kind]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in LABELS if kind in kinds]
    figure.legend(
        handles=handles, loc="outside lower right", ncols=max(len(handles), 1), frameon=False,
        fontsize=8,
    )  # fmt: skip


def _label_lanes(axes: Any, lanes: list[tuple[str, int | None]]) -> None:
    """Label ranks at the left and clusters left of them, and draw a line between clusters."""
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(range(len(lanes)), ["" if rank is None else str(rank) for _, rank in lanes])
    axes.tick_params(axis="y", length=0, labelsize=8)
    first = 0
    for lane in range(1, len(lanes) + 1):
        if lane == len(lanes) or lanes[lane][0] != lanes[first][0]:
            axes.text(
                -0.035, (first + lane - 1) / 2, lanes[first][0], rotation=90, weight="bold",
                transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=9,
            )  # fmt: skip
            if lane < len(lanes):
                axes.axhline(lane - 0.5, color="#93a3bb", linewidth=0.8)
            first = lane
    axes.spines[["top", "right"]].set_visible(False)
