"""Find clusters of nodes from a few latencies of each: the messages of `topology.landmarks`."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from gridcoll.engine.agreement import tell_all
from gridcoll.engine.waiting import PoliteWait, wait_for_all, wait_politely
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.pairs import AGREEMENT, End, are_enough_trips
from gridcoll.measure.probe import Channel
from gridcoll.topology.clustering import far_nodes_apart
from gridcoll.topology.landmarks import Pair, Rounds, group_nodes

CONCURRENT_TRIPS = 4
"""Round trips with each peer while others are under way. The first one opens a connection and does
not count."""

LONG_LATENCY_S = 2.5e-3
"""A latency from this value on, measured while others were under way, is certain to be long if its
round trips agree: no host on which ranks share cores adds more to three trips in a row."""

STAGGER_S = 1e-3
"""Pause between a rank's first messages, so that not all peers answer at once."""

_TAG = 3


def find_groups_by_landmarks(
    comm: MPI.Intracomm, nodes: Sequence[int], tolerance: float, progress: Progress = silent
) -> list[list[int]]:
    """Find clusters as `measure.clusters.find_groups` does, from some latencies. Collective."""
    place = {leader: k for k, leader in enumerate(nodes)}
    me = place.get(comm.Get_rank(), -1)

    def measure(rounds: Rounds) -> dict[Pair, tuple[float, float]]:
        mine: list[tuple[int, int, float, float]] = []
        ours = [pair for pairs in rounds for pair in pairs if me in pair]
        asked = [nodes[b] for a, b in ours if me == a]
        asking = [nodes[a] for a, b in ours if me == b]
        trips = concurrent_latencies(comm, asked, asking)
        for a, b in ours:
            peer = nodes[b if me == a else a]
            found = trips[peer]
            shortest_s, typical_s = found
            if shortest_s < LONG_LATENCY_S or typical_s > AGREEMENT * shortest_s:
                found = quick_latency(Channel(comm, peer, me == a))
            if me == a:
                mine.append((a, b, *found))
        wait_for_all(comm)
        return {
            (a, b): (shortest_s, typical_s)
            for each in tell_all(comm, mine)
            for a, b, shortest_s, typical_s in each
        }

    def report_progress(done: int, of: int) -> None:
        progress("latency between nodes", done, of)

    found = group_nodes(len(nodes), measure, tolerance, report_progress)
    return far_nodes_apart(found.groups, found.latencies_s)


def concurrent_latencies(
    comm: MPI.Intracomm, asked: Sequence[int], asking: Sequence[int]
) -> dict[int, tuple[float, float]]:
    """Return the latencies to all peers as `quick_latency` does, measured at the same time.

    ``asked`` peers answer this rank, ``asking`` ones send to it. One after another they would take
    most of the time of a start, as each one opens a connection. Busy hosts answer late: the result
    shows which peers are far, but not how near the others are.
    """
    peers = [*asked, *asking]
    words = [bytearray(16) for _ in peers]  # for empty messages, and for the result at the end
    inbox = [
        comm.Irecv([word, MPI.BYTE], peer, _TAG) for word, peer in zip(words, peers, strict=True)
    ]
    outbox: list[MPI.Request] = []
    trips_s: list[list[float]] = [[] for _ in peers]
    sent_s = [0.0] * len(peers)
    n_answered = [0] * len(peers)
    found: dict[int, tuple[float, float]] = {}
    wait, began_s, n_begun = PoliteWait(), time.perf_counter(), 0

    def send(k: int, data: bytes = b"") -> None:
        sent_s[k] = time.perf_counter()
        outbox.append(comm.Isend([data, MPI.BYTE], peers[k], _TAG))

    def receive(k: int) -> None:
        if k < len(asked):
            trips_s[k].append(time.perf_counter() - sent_s[k])
            if len(trips_s[k]) == CONCURRENT_TRIPS:
                counted = trips_s[k][1:]
                found[peers[k]] = min(counted) / 2, float(np.median(counted)) / 2
                send(k, struct.pack("dd", *found[peers[k]]))
                return
        elif n_answered[k] == CONCURRENT_TRIPS:
            shortest_s, typical_s = struct.unpack("dd", words[k])
            found[peers[k]] = shortest_s, typical_s
            return
        n_answered[k] += 1
        send(k)
        inbox[k] = comm.Irecv([words[k], MPI.BYTE], peers[k], _TAG)

    def poll() -> bool:
        nonlocal n_begun
        if n_begun < len(asked) and time.perf_counter() - began_s >= n_begun * STAGGER_S:
            send(n_begun)
            n_begun += 1
        for k in MPI.Request.Testsome(inbox) or ():
            receive(k)
            wait.reset()
        return len(found) == len(peers)

    wait_politely(poll, wait)
    wait_politely(lambda: MPI.Request.Testall(outbox))
    return found


def quick_latency(channel: End) -> tuple[float, float]:
    """Return half the shortest round trip, and half the median, in seconds.

    Zeros on the passive end. There is one round trip across a WAN, and up to `MOST_TRIPS` inside a
    cluster, after one that does not count because the other end may come late. On a busy host, a
    few short trips may take as long as many, so the two shortest have to agree.
    """
    channel.round_trip_s(0)
    trips_s: list[float] = []
    going = 1
    while going:
        trips_s.append(channel.round_trip_s(0))
        going = channel.agree(int(not are_enough_trips(trips_s)))
    return min(trips_s) / 2, float(np.median(trips_s)) / 2
