"""Draws and writes pictures: without a screen, atomically, and with reproducible bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from gridcoll.errors import UsageError
from gridcoll.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure. Raises `UsageError` without matplotlib (extra ``plot``)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("pictures: matplotlib is not installed; pip install matplotlib") from None
    return Figure(figsize=(width_in, height_in))


def write_picture(figure: Figure, path: str | Path) -> None:
    """Write ``figure`` to ``path``, whose suffix gives the format, one of `FORMATS`.

    Raises `UsageError` for another suffix, `FileError` if the file cannot be written.
    """
    kind = Path(path).suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"picture {path}: must be {' or '.join(FORMATS)}, got {kind!r}")
    buffer = io.BytesIO()
    write_picture_to(figure, buffer, kind)
    write_atomically(path, buffer.getvalue())


def write_picture_to(figure: Figure, buffer: io.BytesIO, kind: str) -> None:
    """Write ``figure`` as ``kind``, one of `FORMATS`, into ``buffer``."""
    import matplotlib as mpl

    # Without a date and with fixed names, the same numbers give the same file.
    with mpl.rc_context({"svg.hashsalt": "gridcoll", "svg.fonttype": "none"}):
        figure.savefig(
            buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
        )
