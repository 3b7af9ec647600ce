"""A simulated link, without MPI: it takes the times that its parameters give, and counts use."""

from __future__ import annotations

from msgspec import Struct


class ReferenceLink(Struct):
    """The active end of a link, as `gridcoll.measure.pairs` uses it.

    It has a latency, a rate, and a window: the bytes that a flow may send before they are
    acknowledged. ``n_trips`` counts the operations that wait for the other end.
    """

    latency_s: float
    bytes_per_s: float
    window_bytes: float = float("inf")
    overhead_s: float = 20e-6
    active: bool = True
    n_trips: int = 0
    n_bytes: int = 0
    elapsed_s: float = 0.0

    def gap_s(self, n_bytes: int) -> float:
        rate = self.bytes_per_s
        if self.latency_s:
            rate = min(rate, self.window_bytes / (2 * self.latency_s))
        return self.overhead_s + n_bytes / rate

    def _took(self, seconds: float, n_bytes: int) -> float:
        self.n_trips += 1
        self.n_bytes += n_bytes
        self.elapsed_s += seconds
        return seconds

    def round_trip_s(self, n_bytes: int) -> float:
        return self._took(2 * (self.latency_s + self.overhead_s) + self._alone(n_bytes), n_bytes)

    def _alone(self, n_bytes: int) -> float:
        if n_bytes <= self.window_bytes:
            return n_bytes / self.bytes_per_s
        return self.gap_s(n_bytes) - self.overhead_s

    def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
        half_s, took_s = (
            n * self.gap_s(n_bytes) + 2 * self.latency_s + self.overhead_s
            for n in (n_messages // 2, n_messages)
        )
        return half_s, self._took(took_s, n_bytes * n_messages)

    def exchange(self, n_bytes: int) -> tuple[float, float, float]:
        return self.round_trip_s(n_bytes), self.overhead_s, self.overhead_s

    def agree(self, value: int) -> int:
        return value
