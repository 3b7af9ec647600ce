"""Line plots in one style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridcoll.errors import FileError, UsageError

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
    "Lower bound": "#d62728",
}
"""One colour per heuristic in every figure; others get matplotlib's own."""


@dataclass(frozen=True)
class Figure:
    """What to draw: a line per label. ``log`` is for both axes."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    log: bool = False
    y_from_zero: bool = True


def draw_figure(figure: Figure, path: Path) -> None:
    """Write ``figure`` as PNG or SVG, by the ending of ``path``.

    Raises `UsageError` without matplotlib (extra ``plot``), `FileError` when it cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise UsageError(
            "plots: matplotlib is not installed; pip install 'gridcoll[plot]'"
        ) from None
    with mpl.rc_context({"svg.hashsalt": "gridcoll", "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(7, 4.5), layout="constrained")
        axes = canvas.subplots()
        for k, (label, (x, y)) in enumerate(figure.lines.items()):
            style = "--" if label in ("Best", "Lower bound") else "-"
            axes.plot(
                x, y, style, label=label, color=COLOURS.get(label), linewidth=1.3,
                marker=MARKERS[k % len(MARKERS)], markersize=4,
            )  # fmt: skip
        axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
        axes.grid(alpha=0.3)
        if figure.log:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
        elif figure.y_from_zero:
            axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
        try:
            # without a date, the same numbers give the same file
            canvas.savefig(
                path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None
            )
        except OSError as error:
            raise FileError(f"plot {path}: {error}") from None
