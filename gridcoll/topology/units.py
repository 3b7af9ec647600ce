"""Quantities as people write them: ``"5.2 ms"``, ``"100 Mbit/s"``, ``"64 KiB"``.

Values in grid files include their units: with plain numbers, it would be easy to confuse
milliseconds and seconds.
"""

from __future__ import annotations

import math
import re

from gridcoll.errors import UsageError

_QUANTITY = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ/]*)\s*")

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {
    "": 1, "B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3,
    "K": 1024, "M": 1024**2, "G": 1024**3, "KB": 1024,
    "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3,
}  # fmt: skip
_BYTES_PER_S = {
    "bit/s": 0.125, "kbit/s": 125.0, "Mbit/s": 125e3, "Gbit/s": 125e6, "Tbit/s": 125e9,
    "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9,
}  # fmt: skip


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str) -> float:
    match = _QUANTITY.fullmatch(text)
    known = ", ".join(unit for unit in units if unit)
    if match is None or match[2] not in units:
        raise UsageError(f"{what} {text!r}: expected a number and one of the units {known}")
    try:
        value = float(match[1]) * units[match[2]]
    except ValueError:
        raise UsageError(f"{what} {text!r}: {match[1]!r} is not a number") from None
    if not math.isfinite(value):
        raise UsageError(f"{what} {text!r}: too large")
    return value


def parse_duration_s(text: str) -> float:
    """Return the seconds in ``text``, as ``"5.2 ms"`` or ``"60 us"``. Raises `UsageError`."""
    return _parse(text, _SECONDS, "duration")


def parse_rate_bytes_per_s(text: str) -> float:
    """Return the bytes per second in ``text``, as ``"100 Mbit/s"`` or ``"12.5 MB/s"``.

    Raises `UsageError`.
    """
    return _parse(text, _BYTES_PER_S, "rate")


def parse_size_bytes(text: str) -> int:
    """Return the bytes in ``text``, as ``"64K"``, ``"64 KiB"``, ``"1 MB"`` or ``"8"``.

    Single letters and ``KB`` are powers of 1024, as in the OSU benchmarks; ``kB``, ``MB`` and
    ``GB`` are powers of 1000. Raises `UsageError`.
    """
    return round(_parse(text, _BYTES, "size"))


def format_duration(seconds: float) -> str:
    """Return ``seconds`` with three significant digits and a suitable unit, as ``"5.2 ms"``."""
    if not math.isfinite(seconds):
        return str(seconds)
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def format_rate(bytes_per_s: float) -> str:
    """Return ``bytes_per_s`` in bits per second with a suitable unit, as ``"100 Mbit/s"``."""
    for unit in ("Tbit/s", "Gbit/s", "Mbit/s", "kbit/s"):
        if bytes_per_s >= _BYTES_PER_S[unit]:
            return f"{bytes_per_s / _BYTES_PER_S[unit]:.4g} {unit}"
    return f"{bytes_per_s * 8:.4g} bit/s"


def format_size(n_bytes: int) -> str:
    """Return ``n_bytes`` in binary units, as ``"64 KiB"``; exact sizes stay exact."""
    for unit in ("GiB", "MiB", "KiB"):
        scale = _BYTES[unit]
        if n_bytes >= scale and n_bytes % (scale // 1024) == 0:
            return f"{n_bytes / scale:.4g} {unit}"
    return f"{n_bytes} B"
