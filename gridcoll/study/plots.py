"""Line plots in one style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridcoll.draw.figures import new_figure, write_picture

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


@dataclass(frozen=True)
class Figure:
    """What to draw: a line per label."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    y_from_zero: bool = True


def draw_figure(figure: Figure, path: Path) -> None:
    """Write ``figure`` as PNG or SVG, by the ending of ``path``.

    Raises `UsageError` without matplotlib (extra ``plot``), `FileError` when it cannot be written.
    """
    canvas = new_figure(7, 4.5)
    canvas.set_layout_engine("constrained")
    axes = canvas.subplots()
    for k, (label, (x, y)) in enumerate(figure.lines.items()):
        axes.plot(
            x, y, "--" if label == "Best" else "-", label=label, color=COLOURS.get(label),
            linewidth=1.3, marker=MARKERS[k % len(MARKERS)], markersize=4,
        )  # fmt: skip
    axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
    axes.grid(alpha=0.3)
    if figure.y_from_zero:
        axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    write_picture(canvas, path)
