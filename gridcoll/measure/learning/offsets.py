"""One clock for all ranks, from a few messages in all clusters at once, compared again at times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from gridcoll.engine.executor import Transport
from gridcoll.engine.waiting import PoliteWait, wait_politely
from gridcoll.topology.grid import Grid

N_SAMPLES = 3
"""Round trips. The shortest one counts."""

SPIN_S = 300e-6
"""Time to spin before pausing: a pause would be an error of the clock."""


Times = TypeVar("Times", float, np.ndarray)


class Offset(NamedTuple):
    """The common clock minus this rank's own, in seconds.

    Uncorrected quartz clocks differ by some 50 us per second, which within minutes adds up to the
    time of a broadcast. So the offset grows by ``rate`` per second after ``at_s`` of the own clock.
    """

    seconds: float = 0.0
    at_s: float = 0.0
    rate: float = 0.0

    def common(self, own_s: Times) -> Times:
        """Return the time of the common clock at ``own_s`` of this rank's clock."""
        return own_s + self.seconds + self.rate * (own_s - self.at_s)


def compare_clocks(
    messages: Transport,
    rank: int,
    grid: Grid,
    before: Offset | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Offset:
    """Return the common clock minus ``now``. Collective over the ranks of ``grid``.

    The common clock is that of the first coordinator, with its offset ``before`` if there is one.
    Coordinators compare with the first one, other ranks with their own coordinator.
    """
    mine = grid.clusters[grid.cluster_of[rank]].ranks
    found = before or Offset()
    # A coordinator has its own offset from the first round before it is asked in the second.
    for ranks in (sorted(cluster.coordinator for cluster in grid.clusters), mine):
        if rank == ranks[0]:
            _tell_all(messages, ranks[1:], lambda: found.common(now()))  # noqa: B023
        elif rank in ranks:
            offset_s, at_s = _ask(messages, ranks[0], now)
            rate = (offset_s - before.seconds) / (at_s - before.at_s) if before else 0.0
            found = Offset(offset_s, at_s, rate)
    return found


def _tell_all(messages: Transport, peers: Sequence[int], now: Callable[[], float]) -> None:
    """Send our time to each of ``peers`` whenever it asks."""
    nothing = {peer: memoryview(bytearray(1)) for peer in peers}
    asked = {peer: messages.irecv(nothing[peer], peer, 0) for peer in peers}
    n_left = dict.fromkeys(peers, N_SAMPLES)
    wait = PoliteWait(SPIN_S)
    while asked:
        answered = False
        for peer in list(asked):
            if not asked[peer].Test():
                continue
            answered = True
            answer = memoryview(bytearray(8))
            answer.cast("d")[0] = now()
            request = messages.isend(answer, peer, 0)
            n_left[peer] -= 1
            if n_left[peer]:
                asked[peer] = messages.irecv(nothing[peer], peer, 0)
            else:
                del asked[peer]
            wait_politely(request.Test, PoliteWait(SPIN_S))
        if answered:
            wait.reset()
        else:
            wait()


def _ask(messages: Transport, peer: int, now: Callable[[], float]) -> tuple[float, float]:
    """Return the time that ``peer`` sends minus our clock, and when that was by our clock."""
    samples = []
    for _ in range(N_SAMPLES):
        began_s, answer = now(), memoryview(bytearray(8))
        request = messages.irecv(answer, peer, 0)
        asked = messages.isend(memoryview(bytearray(1)), peer, 0)
        wait_politely(request.Test, PoliteWait(SPIN_S))
        ended_s = now()
        wait_politely(asked.Test)
        at_s = (began_s + ended_s) / 2
        samples.append((ended_s - began_s, answer.cast("d")[0] - at_s, at_s))
    return min(samples)[1:]
