"""Rank 0's clock minus this rank's clock, by a few messages of all clusters at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gridcoll.engine.executor import Transport
from gridcoll.engine.waiting import PoliteWait, wait_politely
from gridcoll.topology.grid import Grid

N_SAMPLES = 3
"""Round trips; the shortest counts."""

SPIN_S = 300e-6
"""Spin this long: a pause would be an error of the clock."""


def compare_clocks(
    messages: Transport,
    rank: int,
    grid: Grid,
    now: Callable[[], float] = time.monotonic,
) -> float:
    """Rank 0's clock minus ``now``, seconds. Collective over the ranks of ``grid``.

    Coordinators compare with the first coordinator, other ranks with their own one.
    """
    mine = grid.clusters[grid.cluster_of[rank]].ranks
    offset_s = 0.0
    # A coordinator has its own offset from the first round before it is asked in the second.
    for ranks in (sorted(cluster.coordinator for cluster in grid.clusters), mine):
        if rank == ranks[0]:
            _tell_all(messages, ranks[1:], lambda: now() + offset_s)  # noqa: B023
        elif rank in ranks:
            offset_s = _ask(messages, ranks[0], now)
    return offset_s


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


def _ask(messages: Transport, peer: int, now: Callable[[], float]) -> float:
    """The clock of ``peer`` minus ours."""
    samples = []
    for _ in range(N_SAMPLES):
        began_s, answer = now(), memoryview(bytearray(8))
        request = messages.irecv(answer, peer, 0)
        asked = messages.isend(memoryview(bytearray(1)), peer, 0)
        wait_politely(request.Test, PoliteWait(SPIN_S))
        ended_s = now()
        wait_politely(asked.Test)
        samples.append((ended_s - began_s, answer.cast("d")[0] - (began_s + ended_s) / 2))
    return min(samples)[1]
