"""Line and bar plots in one style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gridcoll.draw.figures import new_figure, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MODEL_SUFFIX = "(model)"
"""Lines whose label ends in this are dashed."""

MARKERS = "osv^D<>pXh*P"
COLOURS = {
    "Flat Tree": "#7f7f7f",
    "FEF": "#8c564b",
    "ECEF": "#1f77b4",
    "ECEF-LA": "#2ca02c",
    "ECEF-LAt": "#17becf",
    "ECEF-LAT": "#ff7f0e",
    "BottomUp": "#9467bd",
    "Best": "#000000",
}
"""One colour per heuristic in every figure; others get matplotlib's own."""


class Figure(Struct, frozen=True):
    """What to draw: a line per label."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    y_from_zero: bool = True
    log: bool = False


def draw_figure(figure: Figure, path: Path) -> None:
    """Write ``figure`` as PNG or SVG, by the ending of ``path``.

    Raises `UsageError` without matplotlib (extra ``plot``), `FileError` if it cannot be written.
    """
    canvas = new_figure(7, 4.5)
    canvas.set_layout_engine("constrained")
    _draw_lines(canvas.subplots(), figure)
    write_picture(canvas, path)


def draw_bars(
    title: str,
    y_label: str,
    bars: Mapping[str, Mapping[str, float | None]],
    path: Path,
    *,
    log: bool = False,
    level: float | None = None,
) -> None:
    """Draw groups of bars: ``bars`` maps groups to heights by label. ``level`` is a line across.

    Raises `UsageError` and `FileError` like `draw_figure`.
    """
    labels = list(dict.fromkeys(label for each in bars.values() for label in each))
    canvas = new_figure(max(7.0, 0.35 * len(bars) * len(labels)), 4.5)
    canvas.set_layout_engine("constrained")
    axes = canvas.subplots()
    width = 0.8 / len(labels)
    for k, label in enumerate(labels):
        heights = [each.get(label) or 0.0 for each in bars.values()]
        places = [at + width * (k + 0.5) - 0.4 for at in range(len(bars))]
        axes.bar(places, heights, width, label=label)
    axes.set(title=title, ylabel=y_label)
    if log:
        axes.set_yscale("log")
    if level is not None:
        axes.axhline(level, color="#000000", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(bars)), list(bars), rotation=45, ha="right", fontsize=8)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8)
    write_picture(canvas, path)


def draw_panels(
    title: str, panels: Sequence[Figure], path: Path, level: float | None = None
) -> None:
    """Draw several figures beside each other, two in a row. ``level`` is a line across each.

    Raises `UsageError` and `FileError` like `draw_figure`.
    """
    n_rows = -(-len(panels) // 2)
    canvas = new_figure(12, 4 * n_rows)
    canvas.set_layout_engine("constrained")
    canvas.suptitle(title)
    cells = canvas.subplots(n_rows, 2, squeeze=False).ravel()
    for axes, panel in zip(cells, panels, strict=False):
        _draw_lines(axes, panel)
        if level is not None:
            axes.axhline(level, color="#000000", linewidth=0.8, linestyle=":")
    for axes in cells[len(panels) :]:
        axes.set_axis_off()
    write_picture(canvas, path)


def _draw_lines(axes: Axes, figure: Figure) -> None:
    for k, (label, (x, y)) in enumerate(figure.lines.items()):
        dashed = label == "Best" or label.endswith(MODEL_SUFFIX)
        axes.plot(
            x, y, "--" if dashed else "-", label=label, color=COLOURS.get(label),
            linewidth=1.3, marker=MARKERS[k % len(MARKERS)], markersize=4,
        )  # fmt: skip
    axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
    axes.grid(alpha=0.3)
    if figure.log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    elif figure.y_from_zero:
        axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
