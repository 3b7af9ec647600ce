"""Measures links again, briefly, while an application runs, and updates the model.

A look takes a fraction of a second: a few empty round trips and a short train in each direction
between coordinators, in disjoint pairs of clusters at once; the same between neighbours in each
cluster, as every host's interface carries what others wait for. The result is compared with the
model; a link that did not change keeps its measured values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from mpi4py import MPI

from gridcoll.engine.agreement import tell_all
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.probe import Channel, measure_plogp
from gridcoll.model import GridModel, PLogP
from gridcoll.model.plogp import LONG_BYTES
from gridcoll.topology.rounds import rounds_of_pairs

Pair = tuple[int, int]
"""Two clusters by number: sender and receiver. Twice the same one: between its hosts."""

Ends = tuple[int, int]
"""Two ranks: sender and receiver."""

Way = tuple[Pair, Ends]

CHANGED = 1.25
"""A link has changed when its latency or its gap is so many times as large or as small as before:
measured again on the same network, both are within 10 %, beside other traffic within 20 %."""

TRAIN_S = 40e-3
"""Length of a train by the model, or one way over the link; over a link with a tenth of its rate it
takes 0.4 s."""

MESSAGE_BYTES = 32 << 10
FEWEST_MESSAGES, MOST_MESSAGES = 4, 64

N_SHORT = 4
"""Messages of a short train. If it takes twice its predicted time, no longer train is sent."""

MOST_TRAINS, FASTER = 8, 0.9
"""A train is repeated, at most so often, while it takes less than this share of the time of the one
before. The window of an idle connection doubles in each round trip and is open by then. One that
lost packets on a thin link grows by a segment, and stays small for longer (see `_together`)."""

MUCH = 2.0

N_TRIPS = 3

FIRST_GLANCE_BYTES, LARGEST_GLANCE_BYTES = 4 << 10, 256 << 10


@dataclass(frozen=True)
class Found:
    """A measured link relative to the model: factors of latency and gap; between whom, if known."""

    latency: float
    gap: float
    ends: Ends | None = None
    is_rising: bool = False
    """Whether its rate was worse at the look before."""

    @property
    def changed(self) -> bool:
        """Whether the link changed."""
        return any(map(_is_off, (self.latency, self.gap)))

    def nearer(self, other: Found) -> Found:
        """Of two looks, the values nearer to the model."""
        latency, gap = (
            min(pair, key=lambda factor: abs(math.log(max(factor, 1e-9))))
            for pair in ((self.latency, other.latency), (self.gap, other.gap))
        )
        return Found(latency, gap)

    def after(self, before: Found | None) -> Found:
        """The same, after a look that found ``before``."""
        return replace(self, is_rising=before is not None and before.gap > CHANGED * self.gap)

    def is_like(self, other: Found) -> bool:
        """Whether both describe the same link, up to the differences between two looks."""
        return self.is_rising == other.is_rising and not (
            _is_off(self.latency / other.latency) or _is_off(self.gap / other.gap)
        )


class _Wire:
    """A communicator as `Channel` needs it, over a transport with our ranks and tags."""

    def __init__(self, transport: MPITransport) -> None:
        self._transport = transport

    def Isend(self, spec: Sequence[Any], peer: int, tag: int) -> object:
        return self._transport.isend(spec[0], peer, 0)

    def Irecv(self, spec: Sequence[Any], peer: int, tag: int) -> object:
        return self._transport.irecv(spec[0], peer, 0)

    def Iprobe(self, peer: int, tag: int) -> bool:
        return self._transport.iprobe(peer, 0)


def channel_over(transport: MPITransport, peer: int, active: bool) -> Channel:
    """One end of a link under measurement, between calls."""
    return Channel(cast(MPI.Intracomm, _Wire(transport)), peer, active)


def look_at_links(
    comm: MPI.Intracomm,
    transport: MPITransport,
    model: GridModel,
    only: Collection[Pair] | None = None,
) -> dict[Pair, Found]:
    """Compare links with the model, all or ``only`` those of some pairs.

    Both directions of each. Collective; equal on all ranks. A link that seems to have changed is
    measured twice: beside other traffic it may look worse than it is. Of a cluster inside, the
    slowest host counts, as models have one interface for all; it has not changed as long as that
    host is no slower than the links to other clusters.
    """
    rounds = [
        [(pair, _coordinators(model, pair)) for pair in pairs] for pairs in rounds_of(model, only)
    ]
    inside = [c for c in range(model.n_clusters) if only is None or (c, c) in only]
    rounds += rounds_inside(model, inside)
    seen = _pass(comm, transport, model, rounds)
    changed = {way for way, each in seen.items() if each.changed}
    if changed:
        changed |= {(pair[::-1], ends[::-1]) for pair, ends in changed}
        fewer = [[way for way in ways if way in changed] for ways in rounds]
        again = _pass(comm, transport, model, [ways for ways in fewer if ways])
        seen |= {way: seen[way].nearer(each) for way, each in again.items()}
    found: dict[Pair, Found] = {}
    for (pair, ends), each in seen.items():
        if pair not in found or found[pair].gap < each.gap:
            found[pair] = replace(each, ends=ends)
    for c in inside:
        if (c, c) in found and not _holds_up(model, c, found[c, c]):
            found[c, c] = Found(1.0, 1.0)
    return found


def _coordinators(model: GridModel, pair: Pair) -> Ends:
    a, b = (model.grid.clusters[cluster].coordinator for cluster in pair)
    return a, b


def _holds_up(model: GridModel, cluster: int, found: Found) -> bool:
    """Whether hosts of ``cluster`` are slower, now or by the model, than links that leave it."""
    slowest_s = model.link(cluster, cluster).gap(MESSAGE_BYTES) * max(found.gap, 1.0)
    others = [c for c in range(model.n_clusters) if c != cluster]
    return slowest_s >= min((model.link(cluster, c).gap(MESSAGE_BYTES) for c in others), default=0)


def rounds_inside(model: GridModel, clusters: Collection[int]) -> list[list[Way]]:
    """Every host of ``clusters`` with a neighbour, in rounds of disjoint pairs; two at most."""
    rounds: list[list[Way]] = [[], []]
    for c in clusters:
        hosts = [node[0].rank for node in model.grid.clusters[c].nodes]
        for k in range(1, len(hosts), 2):
            rounds[0].append(((c, c), (hosts[k - 1], hosts[k])))
        if len(hosts) % 2 and len(hosts) > 1:
            rounds[1].append(((c, c), (hosts[0], hosts[-1])))
    return [ways for ways in rounds if ways]


def _pass(
    comm: MPI.Intracomm, transport: MPITransport, model: GridModel, rounds: Sequence[Sequence[Way]]
) -> dict[Way, Found]:
    rank, mine = comm.Get_rank(), []
    for ways in rounds:
        wait_for_all(comm)  # pairs must not find a link still busy
        for pair, ends in ways:
            if rank in ends:
                peer = ends[1 - ends.index(rank)]
                mine += _look(transport, rank == ends[0], peer, model, (pair, ends))
    return dict(entry for entries in tell_all(comm, mine) for entry in entries)


def rounds_of(model: GridModel, only: Collection[Pair] | None = None) -> list[list[Pair]]:
    """Pairs of clusters, all or those of ``only``, in rounds of disjoint pairs; lower number
    first.
    """
    wanted = None if only is None else {(min(pair), max(pair)) for pair in only}
    rounds = (
        [pair for pair in pairs if wanted is None or pair in wanted]
        for pairs in rounds_of_pairs(model.n_clusters)
    )
    return [pairs for pairs in rounds if pairs]


def _look(
    transport: MPITransport, first: bool, peer: int, model: GridModel, way: Way
) -> list[tuple[Way, Found]]:
    """Both directions, as this end measured them.

    Of a latency inside a cluster nothing is said: it is microseconds, and no part of a call between
    clusters.
    """
    found = []
    for active, (pair, ends) in ((first, way), (not first, (way[0][::-1], way[1][::-1]))):
        link = model.link(*pair)
        channel = channel_over(transport, peer, active)
        trip_s = min(channel.round_trip_s(0) for _ in range(N_TRIPS))
        expected_s = link.gap(MESSAGE_BYTES)
        both_s = link.one_way(0) + model.link(*pair[::-1]).one_way(0)
        latency = trip_s / max(both_s, 1e-9) if pair[0] != pair[1] else 1.0
        gap_s = _gap_s(channel, trip_s, expected_s, is_longer=latency > CHANGED)
        if active:
            found.append(((pair, ends), Found(latency, gap_s / max(expected_s, 1e-9))))
    return found


def _gap_s(channel: Channel, trip_s: float, expected_s: float, *, is_longer: bool) -> float:
    """Seconds per message of a train, fewer messages if these are much too slow. Of the active end.

    On a longer way than before a TCP window takes several trips to open: only the second half of a
    train that takes two of them counts.
    """
    n = int(max(TRAIN_S, trip_s * (2 if is_longer else 0.5)) / max(expected_s, 1e-9))
    n = channel.agree(min(max(n, FEWEST_MESSAGES), MOST_MESSAGES))
    n_short = min(n, N_SHORT)
    took_s = _open_train(channel, n_short)[1] - trip_s
    is_slow = took_s - trip_s * is_longer > MUCH * expected_s * n_short
    if channel.agree(int(is_slow)) or n == n_short:
        return max(took_s, 1e-9) / n_short
    half_s, took_s = _open_train(channel, n)
    if is_longer:
        return max(took_s - half_s, 1e-9) / (n - n // 2)
    return max(took_s - trip_s, 1e-9) / n


def _open_train(channel: Channel, n_messages: int) -> tuple[float, float]:
    """`Channel.train` over an open TCP window, which is small if the connection was idle, and after
    a link was thin: trains are repeated while they get faster.
    """
    _, before_s = channel.train(MESSAGE_BYTES, n_messages)
    for _ in range(MOST_TRAINS):
        half_s, took_s = channel.train(MESSAGE_BYTES, n_messages)
        if not channel.agree(int(took_s < FASTER * before_s)):
            break
        before_s = took_s
    return half_s, took_s


@dataclass(frozen=True)
class Glance:
    """One message each way over the link of a pair, and its answer; between coordinators, if no
    ``ends`` are given.

    Attributes
    ----------
    pair : Pair
    n_bytes : int
        As few as needed to recognise a better link.
    expected_s : float
        Predicted time over the link of the model.
    better_s : float
        A shorter time than this means a better link.
    """

    pair: Pair
    n_bytes: int
    expected_s: float
    better_s: float
    ends: Ends | None = None

    def is_better(self, transport: MPITransport, rank: int, model: GridModel) -> bool:
        """Do it; returns whether this rank saw a better link. All ranks call it; others do not
        wait.
        """
        ends = self.ends or _coordinators(model, self.pair)
        if rank not in ends:
            return False
        peer = ends[1 - ends.index(rank)]
        return channel_over(transport, peer, rank == ends[0]).swap_s(self.n_bytes) < self.better_s


def glance_of(
    model: GridModel, before: GridModel | None, pair: Pair, ends: Ends | None = None
) -> Glance:
    """The cheapest message that shows whether the link of ``pair`` is better than in ``model``.

    ``before``: a model of the link that may be back; None: any link that takes half the time. The
    message takes no less than the longest latency, as calls do: processes of busy hosts come
    milliseconds late to it, so that 4 KiB inside a cluster showed nothing.
    """
    least_s = float(model.latency_s.max())

    def trip_s(model: GridModel, n_bytes: int) -> float:
        ways = [model.link(*way) for way in (pair, pair[::-1])]
        there_s = max(way.one_way(n_bytes) for way in ways)
        return there_s + max(way.one_way(0) for way in ways)

    n_bytes = 0
    while True:
        expected_s = trip_s(model, n_bytes)
        hoped_s = expected_s / MUCH if before is None else trip_s(before, n_bytes)
        shows_rate = n_bytes and expected_s > MUCH * trip_s(model, 0)
        tells = expected_s >= max(MUCH * hoped_s, least_s) and (before is not None or shows_rate)
        if tells or n_bytes >= LARGEST_GLANCE_BYTES:
            return Glance(pair, n_bytes, expected_s, (expected_s + hoped_s) / 2, ends)
        n_bytes = 2 * n_bytes or FIRST_GLANCE_BYTES


def found_of(model: GridModel, before: GridModel) -> dict[Pair, Found]:
    """Links of ``model`` that differ from ``before``, relative to these."""
    n = range(model.n_clusters)
    return {
        (a, b): _found(link, old)
        for a in n
        for b in n
        if (link := model.link(a, b)) != (old := before.link(a, b))
    }


def _found(link: PLogP, old: PLogP) -> Found:
    """What ``link`` is relative to ``old``."""
    return Found(
        link.latency_s / max(old.latency_s, 1e-9),
        link.gap(MESSAGE_BYTES) / max(old.gap(MESSAGE_BYTES), 1e-9),
    )


def changed_model(model: GridModel, found: Mapping[Pair, Found]) -> GridModel | None:
    """``model`` with the changed links; None if none changed.

    Measured times of natives are dropped: they belong to another network.
    """
    changed = {pair: each for pair, each in found.items() if each.changed}
    if not changed:
        return None
    new = {pair: scaled(model.link(*pair), each) for pair, each in changed.items()}
    return with_links(model, new, changed)


def with_links(
    model: GridModel, new: Mapping[Pair, PLogP], found: Mapping[Pair, Found]
) -> GridModel:
    """``model`` with ``new`` links, which were ``found``."""
    links = tuple(
        tuple(new.get((i, j), link) for j, link in enumerate(row))
        for i, row in enumerate(model.links)
    )
    together = tuple(
        tuple(
            _together(rate, (i, j), new[i, j], found) if (i, j) in new else rate
            for j, rate in enumerate(row)
        )
        for i, row in enumerate(model.aggregate_bytes_per_s)
    )
    sources = tuple(
        tuple(
            "changed while the job ran" if (i, j) in new else model.source(i, j)
            for j in range(model.n_clusters)
        )
        for i in range(model.n_clusters)
    )
    return replace(
        model,
        links=links,
        aggregate_bytes_per_s=together,
        native={},
        native_variants={},
        sources=sources,
    )


def _together(
    before_bytes_per_s: float, pair: Pair, link: PLogP, found: Mapping[Pair, Found]
) -> float:
    """What all flows carry over ``link``, which was ``found`` between the clusters of ``pair``.

    A longer way or a slower interface slows every flow by itself. Else the link is thinner, or
    others use it, too: what is left for one flow is all there is. When one flow carries more again,
    but less than at first, it may wait for its own TCP window: then, until the next look, all flows
    together are taken to carry what they did at first.
    """
    each = found[pair]
    if each.is_rising:
        return before_bytes_per_s
    alone = max([each.latency, *(found[c, c].gap for c in pair if (c, c) in found)])
    if each.gap > CHANGED * max(alone, 1.0):
        return LONG_BYTES / link.gap(float(LONG_BYTES))
    return before_bytes_per_s / each.gap


def scaled(link: PLogP, found: Found) -> PLogP:
    """``link`` with another latency and rate; the cost of an empty message stays."""
    latency_s = link.latency_s * (found.latency if _is_off(found.latency) else 1.0)
    factor = found.gap if _is_off(found.gap) else 1.0
    gaps = tuple(link.gap_s[0] + (each - link.gap_s[0]) * factor for each in link.gap_s)
    more_s = latency_s - link.latency_s
    one_way = tuple(
        each + more_s + new - old
        for each, new, old in zip(link.one_way_s, gaps, link.gap_s, strict=False)
    )
    return replace(link, latency_s=latency_s, gap_s=gaps, one_way_s=one_way)


def _is_off(factor: float) -> bool:
    return not 1 / CHANGED < factor < CHANGED


def remeasure_links(
    comm: MPI.Intracomm, transport: MPITransport, model: GridModel, pairs: Collection[Pair]
) -> GridModel:
    """``model`` with the links of ``pairs`` measured anew, both ways alike. Collective.

    As thoroughly as discovery does; takes seconds.
    """
    rank = comm.Get_rank()
    mine: list[tuple[Pair, PLogP]] = []
    wanted = {(min(pair), max(pair)) for pair in pairs}
    for pairs_at_once in rounds_of_pairs(model.n_clusters):
        for a, b in sorted(wanted.intersection(pairs_at_once)):
            ends = [model.grid.clusters[cluster].coordinator for cluster in (a, b)]
            if rank in ends:
                peer = ends[1 - ends.index(rank)]
                link = measure_plogp(channel_over(transport, peer, rank == ends[0]))
                if link is not None:
                    mine += [((a, b), link), ((b, a), link)]
        wait_for_all(comm)
    new = dict(entry for entries in tell_all(comm, mine) for entry in entries)
    return with_links(
        model, new, {pair: _found(link, model.link(*pair)) for pair, link in new.items()}
    )
