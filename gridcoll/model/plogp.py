"""pLogP: the cost of a message by its size."""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.errors import UsageError

FloatArray = npt.NDArray[np.float64]

LONG_BYTES = 1 << 20
"""The rate of a link is computed from the gap of a message of this length."""


class PLogP(Struct, frozen=True):
    """Parameterised LogP of one link (Kielmann et al. 2000).

    A message of ``m`` bytes sent at time 0 arrives at ``L + g(m)``; the next may be sent at
    ``g(m)``. Values are interpolated linearly between the measured sizes. Below the smallest size,
    its value is used; beyond the largest, the last slope continues if it is positive.
    """

    latency_s: float
    """``L``: end-to-end latency without the gap."""
    sizes_bytes: tuple[int, ...]
    """Two or more, ascending. The first is 0 if empty messages were measured."""
    gap_s: tuple[float, ...]
    send_s: tuple[float, ...]
    recv_s: tuple[float, ...]
    """``g(m)``, ``os(m)`` and ``or(m)`` at those sizes."""
    one_way_s: tuple[float, ...] = ()
    """Time from send to arrival of a single message. In the model it is ``L + g(m)``. It is more if
    a rendezvous costs an extra round trip, which messages of a pipeline do not pay. Empty: the
    model's value is used."""

    def __post_init__(self) -> None:
        n = len(self.sizes_bytes)
        if n < 2 or list(self.sizes_bytes) != sorted(set(self.sizes_bytes)):
            raise UsageError(f"sizes_bytes: need two or more, ascending; got {self.sizes_bytes}")
        for name in ("gap_s", "send_s", "recv_s", "one_way_s"):
            values = getattr(self, name)
            if len(values) != n and not (name == "one_way_s" and not values):
                raise UsageError(f"{name}: {len(values)} values for {n} sizes")
            if not all(np.isfinite(values)) or any(value < 0 for value in values):
                raise UsageError(f"{name}: must be finite and not negative, got {values}")
        if not (np.isfinite(self.latency_s) and self.latency_s >= 0):
            raise UsageError(f"latency_s: must be finite and not negative, got {self.latency_s}")

    @overload
    def gap(self, n_bytes: float) -> float: ...
    @overload
    def gap(self, n_bytes: FloatArray) -> FloatArray: ...
    def gap(self, n_bytes: float | FloatArray) -> float | FloatArray:
        """Return ``g(m)`` in seconds for ``m = n_bytes``, a number or an array."""
        return _interpolate(n_bytes, self.sizes_bytes, self.gap_s)

    def send_overhead(self, n_bytes: float) -> float:
        """Return ``os(m)`` in seconds."""
        return float(_interpolate(n_bytes, self.sizes_bytes, self.send_s))

    def recv_overhead(self, n_bytes: float) -> float:
        """Return ``or(m)`` in seconds."""
        return float(_interpolate(n_bytes, self.sizes_bytes, self.recv_s))

    @overload
    def one_way(self, n_bytes: float) -> float: ...
    @overload
    def one_way(self, n_bytes: FloatArray) -> FloatArray: ...
    def one_way(self, n_bytes: float | FloatArray) -> float | FloatArray:
        """Return the time in seconds until a single message of ``n_bytes`` has arrived."""
        if self.one_way_s:
            return _interpolate(n_bytes, self.sizes_bytes, self.one_way_s)
        return self.latency_s + self.gap(n_bytes)

    def at_rate(self, bytes_per_s: float) -> PLogP:
        """Return the same link with another rate of long messages.

        The gap of the smallest message does not change.
        """
        start_s = self.gap_s[0]
        wire_s = max(LONG_BYTES / bytes_per_s - start_s, 1e-9)
        factor = wire_s / max(self.gap(float(LONG_BYTES)) - start_s, 1e-12)
        gaps = tuple(start_s + (each - start_s) * factor for each in self.gap_s)
        one_way = tuple(
            max(each + new - old, 0.0)
            for each, new, old in zip(self.one_way_s, gaps, self.gap_s, strict=False)
        )
        return replace(self, gap_s=gaps, one_way_s=one_way)


def _interpolate(
    n_bytes: float | FloatArray, sizes: tuple[int, ...], values: tuple[float, ...]
) -> float | FloatArray:
    inside = np.interp(n_bytes, sizes, values)
    slope = max(0.0, (values[-1] - values[-2]) / (sizes[-1] - sizes[-2]))
    beyond = np.maximum(np.asarray(n_bytes, dtype=float) - sizes[-1], 0.0) * slope
    result = inside + beyond
    return result if isinstance(n_bytes, np.ndarray) else float(result)


def linear_plogp(
    latency_s: float, bytes_per_s: float, overhead_s: float = 10e-6, announced_bytes: int = 0
) -> PLogP:
    """Return the pLogP of a link with known latency and rate: ``g(m) = overhead + m / rate``.

    A single message of ``announced_bytes`` or more takes a round trip longer, for its announcement
    and the answer. ``announced_bytes`` is 0 if no message is announced.

    Raises `UsageError` if ``announced_bytes`` is negative, 1, or not below `LONG_BYTES`.
    """
    sizes: tuple[int, ...] = (0, LONG_BYTES)
    if announced_bytes:
        sizes = (0, announced_bytes - 1, announced_bytes, LONG_BYTES)
    gap_s = tuple(overhead_s + size / bytes_per_s for size in sizes)
    trips_s = [latency_s if size < announced_bytes else 3 * latency_s for size in sizes]
    alone_s = tuple(trip_s + each_s for trip_s, each_s in zip(trips_s, gap_s, strict=True))
    return PLogP(latency_s, sizes, gap_s, gap_s, gap_s, alone_s if announced_bytes else ())
