"""Calls that C makes and stamps, handed to what their communicator learns.

C makes calls of kinds whose decision stands; the first call of a kind, and trials, go through
Python. Both are counted: C counts down to the agreed point, the same call on all ranks, and Python
says anew after each of its own calls how many are left.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np

from gridcoll.comm.context import Context
from gridcoll.comm.learning import Learning
from gridcoll.measure.learning.agreed import MOST_STAMPED, Stamp

_INT = ctypes.c_int64


class _Calls(ctypes.Structure):
    """See stamped_calls in gridcoll.h."""

    _fields_ = [
        *((name, _INT) for name in ("left", "stale", "n_calls", "total_ns")),
        ("last", _INT * (3 * MOST_STAMPED)),
    ]


class StampedCalls:
    """Of one communicator that learns."""

    def __init__(self, context: Context, learning: Learning) -> None:
        self._learning = learning
        self._calls = _Calls()
        self._last = np.frombuffer(self._calls.last, np.int64).reshape(MOST_STAMPED, 3)
        self._kinds: list[object] = []
        context.changed = self._mark_stale
        self.count_down()

    @property
    def address(self) -> int:
        return ctypes.addressof(self._calls)

    def _mark_stale(self) -> None:
        self._calls.stale = 1

    def tag(self, call: object) -> int:
        """A number for calls like ``call``, of `Learning.standing`, as long as decisions stand."""
        self._kinds.append(call)
        return len(self._kinds) - 1

    def forget_tags(self) -> None:
        """C has forgotten what it knew."""
        self.take()
        self._kinds.clear()

    def count_down(self) -> None:
        """Tell C how many calls are left until the next agreed point."""
        self._calls.left = self._learning.agreed.n_left

    def take(self) -> None:
        """Enter the calls that ended; none of them is an agreed point."""
        self._enter(self._stamps())

    def learn(self) -> None:
        """Enter them, and learn: the last one is an agreed point. Collective."""
        began_s = time.monotonic()
        calls, stamps = self._calls, self._stamps()
        last = stamps.pop()
        calls.n_calls -= 1
        _, entry_ns, exit_ns = self._last[calls.n_calls % MOST_STAMPED].tolist()
        calls.total_ns -= exit_ns - entry_ns
        self._enter(stamps)
        self._learning.agreed.spend(time.monotonic() - began_s)
        try:
            self._learning.end(*last)
        finally:
            self.count_down()

    def _stamps(self) -> list[Stamp]:
        """Of the last calls, the oldest first."""
        n_calls = self._calls.n_calls
        order = np.arange(max(n_calls - MOST_STAMPED, 0), n_calls) % MOST_STAMPED
        rows = self._last[order].tolist()
        return [Stamp(self._kinds[tag], 1e-9 * entry, 1e-9 * end) for tag, entry, end in rows]

    def _enter(self, stamps: list[Stamp]) -> None:
        calls = self._calls
        self._learning.agreed.take(stamps, calls.n_calls, 1e-9 * calls.total_ns)
        calls.n_calls = calls.total_ns = 0
