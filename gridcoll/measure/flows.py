"""Measure the aggregate bandwidth of flows between clusters.

It exceeds the bandwidth of one flow if TCP windows limit each flow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from gridcoll.engine.waiting import wait_for_all, wait_politely
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.probe import Channel
from gridcoll.model import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import lanes_between, rounds_of_pairs

MESSAGE_BYTES = 1 << 15
N_MESSAGES = 12
"""Messages per flow. A third as many are sent before them to open the window."""

LONG_RUN_FACTOR = 3
"""A long run has this many times the messages of a short one. The difference of both runs leaves
out the first messages, which windows do not limit."""

FIRST_LANES = 16
MOST_PER_RANK = 4
WORTHWHILE_GAIN = 1.1
"""Lanes, then flows per rank, are doubled as long as the bandwidth grows by this factor."""

_TAG = 2
_START_TAG = 5
_ANSWER_TAG = 6


def rates_of_one_flow(model: GridModel) -> FloatArray:
    """Return the bytes per second of one flow in messages of `MESSAGE_BYTES`, (C, C)."""
    return np.asarray(MESSAGE_BYTES / np.maximum(model.gap_s(MESSAGE_BYTES), 1e-12))


def measure_aggregate_bandwidth(
    comm: MPI.Intracomm,
    grid: Grid,
    one_flow_bytes_per_s: np.ndarray,
    progress: Progress = silent,
    both_directions: bool = False,
) -> tuple[tuple[float, ...], ...]:
    """Return the bytes per second of several flows at once between every two clusters. Collective.

    There is one flow per lane (see `lanes_between`), on as many nodes as possible. The number of
    lanes starts at `FIRST_LANES` and doubles as long as that carries more and there are ranks left.
    Then two and four flows are tried in each lane, if those carry more. Directions are taken to be
    equal unless ``both_directions`` is true; then they are measured one after the other.

    ``one_flow_bytes_per_s`` (C, C) is the rate of one flow in messages of `MESSAGE_BYTES`. If the
    first lanes carry no more than that, one flow fills the link. If they carry more, windows may
    limit every flow, and the rate is measured again without the first messages.
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
            # Two runs: the slower one may have been disturbed.
            runs = [_measure_round(comm, grid, pairs, n_lanes, n_flows) for _ in range(2)]
            found = np.maximum(*runs)
            known = np.maximum(rates, one_flow_bytes_per_s)
            grows = any(found[pair] > WORTHWHILE_GAIN * known[pair] for pair in pairs)
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
        if several := [p for p in pairs if rates[p] > WORTHWHILE_GAIN * one_flow_bytes_per_s[p]]:
            steady = [_measure_steady(comm, grid, several, *tried) for _ in range(2)]
            for a, b in several:
                rates[a, b] = max(each[a, b] for each in steady)
                if not both_directions:
                    rates[b, a] = rates[a, b]
    progress("flows together", len(rounds), len(rounds))
    return tuple(tuple(float(x) for x in row) for row in rates)


QUICK_BUDGET_BYTES = 4 << 20
"""Most bytes for each pair of clusters in a quick measurement; together with those for the pLogP of
the link less than `pairs.BUDGET_BYTES`."""

CONCLUSIVE_S, CONCLUSIVE_TRIPS = 80e-3, 2
"""A conclusive run takes at least this long, and this many round trips, at the rate of one flow."""


def quick_aggregate_bandwidth(
    comm: MPI.Intracomm, grid: Grid, one_flow_bytes_per_s: np.ndarray, trip_s: np.ndarray
) -> tuple[tuple[float, ...], ...]:
    """Return the same from a few runs between every two clusters. Collective.

    Both directions are taken to be equal. ``trip_s`` (C, C) is the time of an empty round trip. See
    `measure_flows_together`.
    """
    rounds = rounds_of_pairs(len(grid.clusters))
    found = measure_flows_together(comm, comm, grid, rounds, one_flow_bytes_per_s, trip_s)
    rates = np.ones_like(trip_s)
    for a, b in (pair for pairs in rounds for pair in pairs):
        rates[a, b] = rates[b, a] = found[a, b]
    return tuple(tuple(float(x) for x in row) for row in rates)


def measure_flows_together(
    comm: MPI.Intracomm,
    wire: MPI.Intracomm,
    grid: Grid,
    rounds: Iterable[Collection[tuple[int, int]]],
    one_flow_bytes_per_s: np.ndarray,
    trip_s: np.ndarray,
    full_factor: float = WORTHWHILE_GAIN,
) -> dict[tuple[int, int], float]:
    """Return the bytes per second of flows together, from the first to the second cluster of pairs.

    Collective; equal on all ranks. Pairs of the same round are measured at once. Up to
    `FIRST_LANES` flows go over ``wire``; see `GrowingRuns`. One flow fills a link if several carry
    no more than ``full_factor`` times as much. The result is at most what the hosts' interfaces
    carry inside their clusters; for a lone host, the rate of its widest link in each flow.

    ``one_flow_bytes_per_s`` is the rate of one flow, ``trip_s`` the time of an empty round trip;
    both (C, C).
    """
    rounds = [list(pairs) for pairs in rounds]
    mine = np.zeros_like(trip_s)
    for pairs in rounds:
        wait_for_all(comm)  # start together: a flow that starts when others end gets more
        if flows := _flows_of(comm.Get_rank(), grid, pairs, FIRST_LANES, 1):
            pair, lanes = flows.pair, len(_lane_ends(grid, *flows.pair, FIRST_LANES)[0])
            growing = GrowingRuns(
                lanes, float(one_flow_bytes_per_s[pair]), float(trip_s[pair]), full_factor
            )
            mine[pair] = _run_until_conclusive(wire, flows, growing)
    wait_for_all(comm)
    found = np.empty_like(mine)
    comm.Allreduce(mine, found, MPI.MAX)
    rates = {}
    for a, b in (pair for pairs in rounds for pair in pairs):
        ends = zip((a, b), _lane_ends(grid, a, b, FIRST_LANES), strict=True)
        most = min(_interface_limit(grid, c, end, one_flow_bytes_per_s) for c, end in ends)
        rates[a, b] = float(max(min(found[a, b], most), one_flow_bytes_per_s[a, b]))
    return rates


class GrowingRuns(Struct):
    """Runs of all flows of a pair, each twice as long as the one before, until one is conclusive.

    The first run has half the length of the shortest one that may be conclusive. A run is
    conclusive if one flow fills the link, or if windows have opened and a longer run carries no
    more. The rate counts only the messages that the last run has in addition to the one before,
    because windows do not limit the first messages.
    """

    n_lanes: int
    one_flow_bytes_per_s: float
    trip_s: float
    full_factor: float = WORTHWHILE_GAIN
    n_messages: int = 0
    """Messages of each flow in this run. Computed; what is given does not count."""
    bytes_per_s: float = 0.0
    """Rate of all flows together in the last run."""
    _before_s: float = 0.0
    _sent_bytes: int = 0

    def __post_init__(self) -> None:
        half = min(self._conclusive_bytes() / 2, QUICK_BUDGET_BYTES / 8)
        # Rounded up, as otherwise the second run would often be a bit too short.
        self.n_messages = math.ceil(half / (self.n_lanes * MESSAGE_BYTES))

    def _conclusive_bytes(self) -> float:
        """Return what one flow carries in the shortest run that may be conclusive."""
        return self.one_flow_bytes_per_s * max(CONCLUSIVE_S, CONCLUSIVE_TRIPS * self.trip_s)

    def needs_another_run(self, slowest_s: float) -> bool:
        """Whether another run is needed after one whose slowest flow took ``slowest_s``."""
        n_bytes = self.n_messages * self.n_lanes * MESSAGE_BYTES
        added = 0.5 if self._before_s else 1.0
        before = self.bytes_per_s
        self.bytes_per_s = added * n_bytes / max(slowest_s - self._before_s, added * slowest_s)
        self._before_s, self._sent_bytes = slowest_s, self._sent_bytes + n_bytes
        one, trips_s = self.one_flow_bytes_per_s, CONCLUSIVE_TRIPS * self.trip_s
        is_full = self.bytes_per_s <= self.full_factor * one
        is_open = (
            self.n_messages * MESSAGE_BYTES >= one * trips_s
            and self.bytes_per_s <= WORTHWHILE_GAIN * before
        )
        is_conclusive = n_bytes >= self._conclusive_bytes() and (is_full or is_open)
        return not is_conclusive and self._sent_bytes + 2 * n_bytes <= QUICK_BUDGET_BYTES


def _run_until_conclusive(comm: MPI.Intracomm, flows: _Flows, growing: GrowingRuns) -> float:
    """Return the bytes per second of all flows of a pair on its first sender, 0 on other ranks."""
    going = True
    while going:
        took_s = max(_stream(comm, flows, growing.n_messages) - growing.trip_s, 1e-9)
        going = _agree_on_next_run(comm, flows, took_s, growing.needs_another_run)
        growing.n_messages *= 2
    return growing.bytes_per_s


def _agree_on_next_run(
    comm: MPI.Intracomm, flows: _Flows, took_s: float, needs_another_run: Callable[[float], bool]
) -> bool:
    """Return whether another run is needed, as the first sender decides by the slowest flow's time.

    Each sender times its own flows. All ranks of the pair return at about the same time, because a
    flow that starts when others end gets more than its share.
    """
    decision = np.zeros(1)
    if flows.active:
        first, *others = flows.same_side
        if comm.Get_rank() == first:
            times_s = np.zeros((len(others), 1))
            _finish(
                [
                    comm.Irecv([at, MPI.BYTE], each, _START_TAG)
                    for at, each in zip(times_s, others, strict=True)
                ]
            )
            decision[0] = needs_another_run(max([took_s, *times_s[:, 0]]))
            _finish([comm.Isend([decision, MPI.BYTE], each, _START_TAG) for each in others])
        else:
            _finish([comm.Isend([np.array([took_s]), MPI.BYTE], first, _START_TAG)])
            _finish([comm.Irecv([decision, MPI.BYTE], first, _START_TAG)])
        _finish([comm.Isend([decision, MPI.BYTE], each, _START_TAG) for each in flows.peers])
    else:
        rows = np.zeros((len(flows.peers), 1))
        _finish(
            [
                comm.Irecv([row, MPI.BYTE], each, _START_TAG)
                for row, each in zip(rows, flows.peers, strict=True)
            ]
        )
        decision[0] = rows[0, 0]
    return bool(decision[0])


def _lanes(grid: Grid, a: int, b: int) -> int:
    return lanes_between(len(grid.clusters[a]), len(grid.clusters[b]))


def _lane_ends(grid: Grid, a: int, b: int, most_lanes: int) -> tuple[list[int], list[int]]:
    """Return the sending ranks in ``a`` and the receiving ranks in ``b``, by lane."""
    lanes = min(most_lanes, _lanes(grid, a, b))
    ends = [grid.clusters[c].spread(lanes) for c in (a, b)]
    senders, receivers = ([each[k % len(each)] for k in range(lanes)] for each in ends)
    return senders, receivers


def _interface_limit(
    grid: Grid, cluster: int, end: Sequence[int], one_flow_bytes_per_s: np.ndarray
) -> float:
    """Return what the interfaces of the hosts at the ``end`` of flows carry.

    For a lone host, which shows its interface only by its flows, that is the rate of its widest
    link times the number of flows.
    """
    is_alone = len(grid.clusters[cluster].nodes) == 1
    n_hosts = len(end) if is_alone else len({grid.host_of[rank] for rank in end})
    return float(n_hosts * one_flow_bytes_per_s[cluster, cluster])


def _measure_round(
    comm: MPI.Intracomm, grid: Grid, pairs: Iterable[tuple[int, int]], most_lanes: int, n_flows: int
) -> np.ndarray:
    """Return the bytes per second between the clusters of ``pairs``, all at the same time, (C, C).

    At most ``most_lanes`` ranks have ``n_flows`` flows each, or as many as they have partners.
    """
    (slowest_s,) = _slowest_s(comm, grid, pairs, most_lanes, n_flows, [N_MESSAGES])
    return _rates(grid, pairs, most_lanes, n_flows, N_MESSAGES, slowest_s)


def _measure_steady(
    comm: MPI.Intracomm, grid: Grid, pairs: Iterable[tuple[int, int]], most_lanes: int, n_flows: int
) -> np.ndarray:
    """Return the same from the time that a run with `LONG_RUN_FACTOR` times the messages adds."""
    message_counts = [N_MESSAGES, LONG_RUN_FACTOR * N_MESSAGES]
    short_run_s, long_run_s = _slowest_s(comm, grid, pairs, most_lanes, n_flows, message_counts)
    took_s = later_messages_s(short_run_s, long_run_s)
    return _rates(grid, pairs, most_lanes, n_flows, (LONG_RUN_FACTOR - 1) * N_MESSAGES, took_s)


def later_messages_s(short_run_s: np.ndarray, long_run_s: np.ndarray) -> np.ndarray:
    """Return the time of a long run without as many messages as the short run has.

    If windows limit, the first messages are sent at once, and the later ones take more than their
    share of the long run. If windows were still opening in the short run, the difference of both
    runs is too small; then the later messages get their share of the long run.
    """
    return np.asarray(
        np.maximum(long_run_s - short_run_s, long_run_s * (LONG_RUN_FACTOR - 1) / LONG_RUN_FACTOR)
    )


def _slowest_s(
    comm: MPI.Intracomm,
    grid: Grid,
    pairs: Iterable[tuple[int, int]],
    most_lanes: int,
    n_flows: int,
    message_counts: Sequence[int],
) -> list[np.ndarray]:
    """Return the time of the slowest flow between each of ``pairs``, (C, C).

    There is one array for each of ``message_counts``, the messages of each flow.
    """
    n = len(grid.clusters)
    wait_for_all(comm)
    flows = _flows_of(comm.Get_rank(), grid, pairs, most_lanes, n_flows)
    trip_s = 0.0
    if flows:
        channels = [Channel(comm, peer, flows.active) for peer in flows.opposite]
        trip_s = min(channel.round_trip_s(0) for channel in channels for _ in range(2))
        _stream(comm, flows, N_MESSAGES // 3)
    found = []
    for n_messages in message_counts:
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
    """Return the bytes per second if ``n_messages`` of each flow take ``took_s``; both (C, C)."""
    rates = np.ones_like(took_s)
    for a, b in pairs:
        lanes = min(most_lanes, _lanes(grid, a, b))
        moved = n_messages * MESSAGE_BYTES * min(n_flows, lanes) * lanes
        rates[a, b] = moved / max(float(took_s[a, b]), 1e-9)
    return rates


class _Flows(Struct, frozen=True):
    """A rank's part in a round: it sends to its ``peers``, or receives from them if not ``active``.

    ``same_side`` are the ranks that do the same as this one, itself included. ``opposite`` are the
    other ends of its own lanes.
    """

    pair: tuple[int, int]
    peers: tuple[int, ...]
    opposite: tuple[int, ...]
    same_side: tuple[int, ...]
    active: bool


def _flows_of(
    rank: int, grid: Grid, pairs: Iterable[tuple[int, int]], most_lanes: int, n_flows: int
) -> _Flows | None:
    for a, b in pairs:
        senders, receivers = _lane_ends(grid, a, b, most_lanes)
        lanes = len(senders)
        for ours, theirs, step in ((senders, receivers, 1), (receivers, senders, -1)):
            at = [k for k, each in enumerate(ours) if each == rank]
            if at:
                turns = range(0, step * min(n_flows, lanes), step)
                peers = tuple(theirs[(lane + turn) % lanes] for lane in at for turn in turns)
                same_side = tuple(dict.fromkeys(ours))
                return _Flows(
                    (a, b), peers, tuple(theirs[lane] for lane in at), same_side, step > 0
                )
    return None


def _finish(requests: list[MPI.Request]) -> None:
    wait_politely(lambda: MPI.Request.Testall(requests))


def _stream(comm: MPI.Intracomm, flows: _Flows, n_messages: int) -> float:
    """Send ``n_messages`` to every peer, or receive them; return the seconds until the answers."""
    streams = [Stream(peer, MESSAGE_BYTES, flows.active) for peer in flows.peers]
    return max(stream_s(comm, streams, n_messages))


class Stream(NamedTuple):
    """Messages of ``n_bytes`` to ``peer``, or from it if this rank does not send."""

    peer: int
    n_bytes: int
    sends: bool


def stream_s(comm: MPI.Intracomm, streams: Sequence[Stream], n_messages: int) -> list[float]:
    """Transfer ``n_messages`` of each of ``streams`` at once, and time each stream.

    Both ends call it. A rank answers its senders when it has received all messages of all streams.
    Returns, for each stream, the seconds until the answer arrived or was sent.
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
