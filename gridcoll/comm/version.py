"""Which gridcoll this is: only ranks that run the same one choose alike."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from gridcoll import release

_ROOMS = ("topology", "model", "schedule", "plan", "engine", "comm")
"""Whose code decides what a call does, and in which messages."""


def digest_sources(package: str) -> str:
    """Of all Python sources in `_ROOMS` of the directory ``package``: 163 files in 3 ms."""
    digest = 0
    for room in _ROOMS:
        for place, rooms, names in os.walk(Path(package) / room):
            rooms.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    with open(f"{place}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - faster
                        digest = zlib.crc32(file.read(), zlib.crc32(name.encode(), digest))
    return f"{digest:08x}"


VERSION = f"{release.__version__}, sources {digest_sources(str(Path(__file__).parents[1]))}"
"""On one line. Read when gridcoll is imported, while its sources are those that are imported."""
