"""A map from the units of a buffer to values, kept as runs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class IntervalMap(Generic[V]):
    """Values over ``[0, infinity)``, stored as runs; starts as one run of ``initial``.

    ``cut(value, offset)`` says what a value becomes where its run is cut ``offset`` units in; by
    default it is shared.
    """

    def __init__(self, initial: V, cut: Callable[[V, int], V] = lambda value, _: value) -> None:
        self._starts = [0]
        self._values = [initial]
        self._cut = cut

    def _split(self, at: int) -> int:
        """The index of the run that starts at ``at``, cutting one if need be."""
        index = bisect_left(self._starts, at)
        if index < len(self._starts) and self._starts[index] == at:
            return index
        self._starts.insert(index, at)
        run = index - 1
        self._values.insert(index, self._cut(self._values[run], at - self._starts[run]))
        return index

    def get(self, start: int, stop: int) -> list[tuple[int, V]]:
        """``(length, value)`` of the runs that make up ``[start, stop)``, in order."""
        if start >= stop:
            return []
        runs = []
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            end = self._starts[index + 1] if index + 1 < len(self._starts) else stop
            end = min(end, stop)
            value = self._values[index]
            offset = start - self._starts[index]
            runs.append((end - start, self._cut(value, offset) if offset else value))
            start = end
            index += 1
        return runs

    def set(self, start: int, runs: list[tuple[int, V]]) -> None:
        """Overwrite from ``start`` on with ``(length, value)`` runs."""
        stop = start + sum(length for length, _ in runs)
        if start == stop:
            return
        first, last = self._split(start), self._split(stop)
        starts, at = [], start
        for length, _ in runs:
            starts.append(at)
            at += length
        self._starts[first:last] = starts
        self._values[first:last] = [value for _, value in runs]

    def update(self, start: int, stop: int, change: Callable[[V], V]) -> None:
        """Replace each value in ``[start, stop)`` by ``change(value)``."""
        if start >= stop:
            return
        first, last = self._split(start), self._split(stop)
        self._values[first:last] = [change(value) for value in self._values[first:last]]
