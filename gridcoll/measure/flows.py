"""Aggregate bandwidth of flows between clusters: more than one flow's if windows limit it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_for_all, wait_politely
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.probe import Channel
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import lanes_between, rounds_of_pairs

MESSAGE_BYTES = 1 << 15
N_MESSAGES = 12
"""Messages per flow, after a third as many that open its window."""

MORE = 3
"""For flows limited by windows, so many times as many messages: the first ones are not limited."""

FIRST_LANES = 16
MOST_PER_RANK = 4
WORTH_MORE = 1.1
"""Flows per rank are doubled as long as bandwidth grows by this factor."""

_TAG = 2
_START_TAG = 5
_ANSWER_TAG = 6


def measure_aggregate_bandwidth(
    comm: MPI.Intracomm,
    grid: Grid,
    one_flow_bytes_per_s: np.ndarray,
    progress: Progress = silent,
    both_directions: bool = False,
) -> tuple[tuple[float, ...], ...]:
    """Bytes per second of several flows at once between every two clusters. Collective.

    Flows as of `lanes_between`, on as many nodes as there are: `FIRST_LANES`, and twice as many as
    long as that carries more and there are ranks left; then two and four in each lane, if those
    carry more. Directions count as alike unless ``both_directions`` are measured, one after the
    other.

    ``one_flow_bytes_per_s`` is what one carries in messages of `MESSAGE_BYTES`, (C, C): where the
    first lanes carry no more, the link between the clusters is full. Where they do, windows may
    limit every flow: then what counts is what they carry once those are under way.
    """
    n = len(grid.clusters)
    rates = np.ones((n, n))
    rounds = []
    for pairs in rounds_of_pairs(n):
        rounds.append(pairs)
        if both_directions:
            rounds.append([(b, a) for a, b in pairs])
    for done, pairs in enumerate(rounds):
        progress("flows together", done, len(rounds))
        n_lanes, n_flows, grows = FIRST_LANES, 1, True
        most_lanes = max(_lanes(grid, a, b) for a, b in pairs)
        while grows:
            # Twice, as the slower run was disturbed.
            runs = [_measure_round(comm, grid, pairs, n_lanes, n_flows) for _ in range(2)]
            found = np.maximum(*runs)
            known = np.maximum(rates, one_flow_bytes_per_s)
            grows = any(found[pair] > WORTH_MORE * known[pair] for pair in pairs)
            for a, b in pairs:
                rates[a, b] = max(rates[a, b], found[a, b])
                if not both_directions:
                    rates[b, a] = rates[a, b]
            tried = n_lanes, n_flows
            if n_lanes < most_lanes:
                n_lanes *= 2
            else:
                n_flows *= 2
                grows &= n_flows <= min(MOST_PER_RANK, most_lanes)
        if several := [p for p in pairs if rates[p] > WORTH_MORE * one_flow_bytes_per_s[p]]:
            steady = [_measure_steady(comm, grid, several, *tried) for _ in range(2)]
            for a, b in several:
                rates[a, b] = max(each[a, b] for each in steady)
                if not both_directions:
                    rates[b, a] = rates[a, b]
    progress("flows together", len(rounds), len(rounds))
    return tuple(tuple(float(x) for x in row) for row in rates)


QUICK_BUDGET_BYTES = 4 << 20
"""Of each pair of clusters, in a quick look; with a link's pLogP less than `pairs.BUDGET_BYTES`."""

LOOK_S, LOOK_TRIPS = 80e-3, 2
"""A run that tells lasts so long, or so many round trips, at what one flow carries."""


def quick_aggregate_bandwidth(
    comm: MPI.Intracomm, grid: Grid, one_flow_bytes_per_s: np.ndarray, trip_s: np.ndarray
) -> tuple[tuple[float, ...], ...]:
    """The same from a few runs between every two clusters, which count as alike both ways.

    Collective. See `look_together`. ``trip_s`` is an empty round trip, (C, C).
    """
    rounds = rounds_of_pairs(len(grid.clusters))
    found = look_together(comm, comm, grid, rounds, one_flow_bytes_per_s, trip_s)
    rates = np.ones_like(trip_s)
    for a, b in (pair for pairs in rounds for pair in pairs):
        rates[a, b] = rates[b, a] = found[a, b]
    return tuple(tuple(float(x) for x in row) for row in rates)


def look_together(
    comm: MPI.Intracomm,
    wire: MPI.Intracomm,
    grid: Grid,
    rounds: Iterable[Collection[tuple[int, int]]],
    one_flow_bytes_per_s: np.ndarray,
    trip_s: np.ndarray,
    full: float = WORTH_MORE,
) -> dict[tuple[int, int], float]:
    """What flows together carry from the first to the second cluster of each pair of ``rounds``.

    Bytes per second. Collective; equal on all ranks. Up to `FIRST_LANES` flows over ``wire``; see
    `Look`. One flow fills a link if several carry no more than ``full`` times as much. No more than
    the hosts' interfaces carry inside, nor, of a lone host, than its widest link in each flow.

    ``one_flow_bytes_per_s`` is what one carries, ``trip_s`` an empty round trip; both (C, C).
    """
    rounds = [list(pairs) for pairs in rounds]
    mine = np.zeros_like(trip_s)
    for pairs in rounds:
        wait_for_all(comm)  # a flow that starts when others end gets more bandwidth
        if flows := _flows_of(comm.Get_rank(), grid, pairs, FIRST_LANES, 1):
            pair, lanes = flows.pair, len(_ends(grid, *flows.pair, FIRST_LANES)[0])
            look = Look(lanes, float(one_flow_bytes_per_s[pair]), float(trip_s[pair]), full)
            mine[pair] = _settled_bytes_per_s(wire, flows, look)
    wait_for_all(comm)
    found = np.empty_like(mine)
    comm.Allreduce(mine, found, MPI.MAX)
    rates = {}
    for a, b in (pair for pairs in rounds for pair in pairs):
        ends = zip((a, b), _ends(grid, a, b, FIRST_LANES), strict=True)
        most = min(_carried(grid, c, end, one_flow_bytes_per_s) for c, end in ends)
        rates[a, b] = float(max(min(found[a, b], most), one_flow_bytes_per_s[a, b]))
    return rates


@dataclass
class Look:
    """Runs of all flows of a pair, each twice as long as the one before, until one tells.

    The first is half as long as one that may tell. One tells when the link is full by what one flow
    carries, or, as windows open, a longer run carries no more. Counted is what the last run's
    messages add: the first ones of windows that limit are free.
    """

    n_lanes: int
    one_flow_bytes_per_s: float
    trip_s: float
    full: float = WORTH_MORE
    n_messages: int = field(init=False)
    """Of each flow in this run."""
    bytes_per_s: float = 0.0
    """What all carried in the last one."""
    _before_s: float = 0.0
    _sent_bytes: int = 0

    def __post_init__(self) -> None:
        half = min(self._telling_bytes() / 2, QUICK_BUDGET_BYTES / 8)
        self.n_messages = max(int(half / (self.n_lanes * MESSAGE_BYTES)), 1)

    def _telling_bytes(self) -> float:
        """What one flow carries in so long a run that it may tell."""
        return self.one_flow_bytes_per_s * max(LOOK_S, LOOK_TRIPS * self.trip_s)

    def goes_on(self, slowest_s: float) -> bool:
        """Whether another run is needed after one whose slowest flow took so long."""
        n_bytes = self.n_messages * self.n_lanes * MESSAGE_BYTES
        added = 0.5 if self._before_s else 1.0
        before = self.bytes_per_s
        self.bytes_per_s = added * n_bytes / max(slowest_s - self._before_s, added * slowest_s)
        self._before_s, self._sent_bytes = slowest_s, self._sent_bytes + n_bytes
        one, trips_s = self.one_flow_bytes_per_s, LOOK_TRIPS * self.trip_s
        is_full = self.bytes_per_s <= self.full * one
        is_open = (
            self.n_messages * MESSAGE_BYTES >= one * trips_s
            and self.bytes_per_s <= WORTH_MORE * before
        )
        tells = n_bytes >= self._telling_bytes() and (is_full or is_open)
        return not tells and self._sent_bytes + 2 * n_bytes <= QUICK_BUDGET_BYTES


def _settled_bytes_per_s(comm: MPI.Intracomm, flows: _Flows, look: Look) -> float:
    """What all flows of a pair carry; on its first sender, 0 on others."""
    going = True
    while going:
        took_s = max(_stream(comm, flows, look.n_messages) - look.trip_s, 1e-9)
        going = _agree_together(comm, flows, took_s, look.goes_on)
        look.n_messages *= 2
    return look.bytes_per_s


def _agree_together(
    comm: MPI.Intracomm, flows: _Flows, took_s: float, goes_on: Callable[[float], bool]
) -> bool:
    """What ``goes_on`` says on the first sender of what the slowest took; at about the same time.

    Each flow is timed by itself: one that starts when others end gets more than its part.
    """
    told = np.zeros(1)
    if flows.active:
        first, *others = flows.beside
        if comm.Get_rank() == first:
            times_s = np.zeros((len(others), 1))
            _finish(
                [
                    comm.Irecv([at, MPI.BYTE], each, _START_TAG)
                    for at, each in zip(times_s, others, strict=True)
                ]
            )
            told[0] = goes_on(max([took_s, *times_s[:, 0]]))
            _finish([comm.Isend([told, MPI.BYTE], each, _START_TAG) for each in others])
        else:
            _finish([comm.Isend([np.array([took_s]), MPI.BYTE], first, _START_TAG)])
            _finish([comm.Irecv([told, MPI.BYTE], first, _START_TAG)])
        _finish([comm.Isend([told, MPI.BYTE], each, _START_TAG) for each in flows.peers])
    else:
        rows = np.zeros((len(flows.peers), 1))
        _finish(
            [
                comm.Irecv([row, MPI.BYTE], each, _START_TAG)
                for row, each in zip(rows, flows.peers, strict=True)
            ]
        )
        told[0] = rows[0, 0]
    return bool(told[0])


def _lanes(grid: Grid, a: int, b: int) -> int:
    return lanes_between(len(grid.clusters[a]), len(grid.clusters[b]))


def _ends(grid: Grid, a: int, b: int, most_lanes: int) -> tuple[list[int], list[int]]:
    """Who sends from ``a`` and who receives in ``b``, by lane."""
    lanes = min(most_lanes, _lanes(grid, a, b))
    ends = [grid.clusters[c].spread(lanes) for c in (a, b)]
    senders, receivers = ([each[k % len(each)] for k in range(lanes)] for each in ends)
    return senders, receivers


def _carried(
    grid: Grid, cluster: int, end: Sequence[int], one_flow_bytes_per_s: np.ndarray
) -> float:
    """What the hosts at the ``end`` of flows let pass: one that is alone shows it by its flows."""
    is_alone = len(grid.clusters[cluster].nodes) == 1
    n_hosts = len(end) if is_alone else len({grid.host_of[rank] for rank in end})
    return float(n_hosts * one_flow_bytes_per_s[cluster, cluster])


def _measure_round(
    comm: MPI.Intracomm, grid: Grid, pairs: Iterable[tuple[int, int]], most_lanes: int, n_flows: int
) -> np.ndarray:
    """Bytes per second between the clusters of each of ``pairs``, all at the same time.

    ``n_flows`` of each of at most ``most_lanes`` ranks, or as many as it has partners.
    """
    (slowest_s,) = _slowest_s(comm, grid, pairs, most_lanes, n_flows, [N_MESSAGES])
    return _rates(grid, pairs, most_lanes, n_flows, N_MESSAGES, slowest_s)


def _measure_steady(
    comm: MPI.Intracomm, grid: Grid, pairs: Iterable[tuple[int, int]], most_lanes: int, n_flows: int
) -> np.ndarray:
    """The same, by the extra time of `MORE` times as many messages."""
    numbers = [N_MESSAGES, MORE * N_MESSAGES]
    few_s, many_s = _slowest_s(comm, grid, pairs, most_lanes, n_flows, numbers)
    took_s = longer_s(few_s, many_s)
    return _rates(grid, pairs, most_lanes, n_flows, (MORE - 1) * N_MESSAGES, took_s)


def longer_s(few_s: np.ndarray, many_s: np.ndarray) -> np.ndarray:
    """What all but the first ones of `MORE` times as many messages took.

    Of windows that limit, the first messages are free, and the rest takes more than its part. It
    takes less where windows were still opening in the first run: then its part counts.
    """
    return np.asarray(np.maximum(many_s - few_s, many_s * (MORE - 1) / MORE))


def _slowest_s(
    comm: MPI.Intracomm,
    grid: Grid,
    pairs: Iterable[tuple[int, int]],
    most_lanes: int,
    n_flows: int,
    numbers: Sequence[int],
) -> list[np.ndarray]:
    """What the slowest flow between each of ``pairs`` takes, (C, C), for so many messages each."""
    n = len(grid.clusters)
    wait_for_all(comm)
    flows = _flows_of(comm.Get_rank(), grid, pairs, most_lanes, n_flows)
    trip_s = 0.0
    if flows:
        channels = [Channel(comm, peer, flows.active) for peer in flows.opposite]
        trip_s = min(channel.round_trip_s(0) for channel in channels for _ in range(2))
        _stream(comm, flows, N_MESSAGES // 3)
    found = []
    for n_messages in numbers:
        # Start together: a flow that starts when others end gets more bandwidth.
        wait_for_all(comm)
        mine = np.zeros((n, n))
        if flows:
            took_s = _stream(comm, flows, n_messages) - trip_s
            if flows.active:
                mine[flows.pair] = took_s
        slowest_s = np.empty_like(mine)
        wait_for_all(comm)
        comm.Allreduce(mine, slowest_s, MPI.MAX)
        found.append(slowest_s)
    return found


def _rates(
    grid: Grid,
    pairs: Iterable[tuple[int, int]],
    most_lanes: int,
    n_flows: int,
    n_messages: int,
    took_s: np.ndarray,
) -> np.ndarray:
    """Bytes per second of ``n_messages`` of each flow in ``took_s``, (C, C)."""
    rates = np.ones_like(took_s)
    for a, b in pairs:
        lanes = min(most_lanes, _lanes(grid, a, b))
        moved = n_messages * MESSAGE_BYTES * min(n_flows, lanes) * lanes
        rates[a, b] = moved / max(float(took_s[a, b]), 1e-9)
    return rates


@dataclass(frozen=True)
class _Flows:
    """A rank's part in a round: it sends to its peers, or it receives from them, as the ranks
    ``beside`` it do. ``opposite`` are the other ends of its own lanes.
    """

    pair: tuple[int, int]
    peers: tuple[int, ...]
    opposite: tuple[int, ...]
    beside: tuple[int, ...]
    active: bool


def _flows_of(
    rank: int, grid: Grid, pairs: Iterable[tuple[int, int]], most_lanes: int, n_flows: int
) -> _Flows | None:
    for a, b in pairs:
        senders, receivers = _ends(grid, a, b, most_lanes)
        lanes = len(senders)
        for ours, theirs, step in ((senders, receivers, 1), (receivers, senders, -1)):
            at = [k for k, each in enumerate(ours) if each == rank]
            if at:
                turns = range(0, step * min(n_flows, lanes), step)
                peers = tuple(theirs[(lane + turn) % lanes] for lane in at for turn in turns)
                beside = tuple(dict.fromkeys(ours))
                return _Flows((a, b), peers, tuple(theirs[lane] for lane in at), beside, step > 0)
    return None


def _finish(requests: list[MPI.Request]) -> None:
    wait_politely(lambda: MPI.Request.Testall(requests))


def _stream(comm: MPI.Intracomm, flows: _Flows, n_messages: int) -> float:
    """Send ``n_messages`` to every peer, or receive them, and get or give an answer; in seconds."""
    streams = [Stream(peer, MESSAGE_BYTES, flows.active) for peer in flows.peers]
    return max(stream_s(comm, streams, n_messages))


class Stream(NamedTuple):
    """Messages of ``n_bytes`` to ``peer``, or, where this rank does not send, from it."""

    peer: int
    n_bytes: int
    sends: bool


def stream_s(comm: MPI.Intracomm, streams: Sequence[Stream], n_messages: int) -> list[float]:
    """``n_messages`` of each of ``streams`` at once; a rank answers when it has received all.

    Both ends call it. Returns seconds until the answer was there, or given, by stream.
    """
    start = time.perf_counter()
    sent, received = [], []
    for _ in range(n_messages):
        for peer, n_bytes, sends in streams:
            if sends:
                sent.append(comm.Isend([memoryview(bytearray(n_bytes)), MPI.BYTE], peer, _TAG))
            else:
                received.append(comm.Irecv([memoryview(bytearray(n_bytes)), MPI.BYTE], peer, _TAG))
    nothing = memoryview(bytearray(0))
    answers = {
        at: comm.Irecv([nothing, MPI.BYTE], stream.peer, _ANSWER_TAG)
        for at, stream in enumerate(streams)
        if stream.sends
    }
    took_s = [0.0] * len(streams)

    def all_done() -> bool:
        if len(answers) < len(streams) and MPI.Request.Testall(received):
            for at, (peer, _, sends) in enumerate(streams):
                if not sends:
                    answers[at] = comm.Isend([nothing, MPI.BYTE], peer, _ANSWER_TAG)
        for at, request in answers.items():
            if not took_s[at] and request.Test():
                took_s[at] = time.perf_counter() - start
        return all(took_s) and MPI.Request.Testall(sent)

    wait_politely(all_done)
    return took_s
