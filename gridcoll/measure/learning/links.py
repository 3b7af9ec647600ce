"""Measures links again, briefly, while an application runs, and updates the model.

A look takes a second or so: a few empty round trips and a short train in each direction between
coordinators, in disjoint pairs of clusters at once; the same between neighbours in each cluster, as
every host's interface carries what others wait for. The result is compared with the model; a link
that did not change keeps its measured values. Where one flow is slower, several at once tell
whether the link is thinner or the flow waits for its own TCP window.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from gridcoll.constants import THIN_LINK, WINDOWS_SURELY_LIMIT
from gridcoll.engine.agreement import tell_all
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.flows import measure_flows_together
from gridcoll.measure.probe import MOST_SETUP_TRIPS, Channel, measure_plogp
from gridcoll.model import GridModel, PLogP
from gridcoll.model.plogp import LONG_BYTES
from gridcoll.topology.rounds import lanes_between, rounds_of_pairs

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
before, and more than it should. The window of an idle connection doubles in each round trip and is
open by then. One that lost packets on a thin link grows by a segment, and stays small for longer:
see `Found.together_bytes_per_s`."""

MUCH = 2.0

N_TRIPS = 3

FIRST_GLANCE_BYTES, LARGEST_GLANCE_BYTES = 4 << 10, 256 << 10


@dataclass(frozen=True)
class Found:
    """A measured link relative to the model: factors of latency and gap; between whom, if known."""

    latency: float
    gap: float
    ends: Ends | None = None
    together_bytes_per_s: float = 0.0
    """What several flows carry at once; infinite where that is no limit, 0 if not looked at."""
    open_gap: float = 0.0
    """The gap of one flow that carries as much as several; 0 if not looked at."""

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

    @property
    def waits(self) -> bool:
        """Whether one flow waits for its own TCP window: several carry much more."""
        return 0 < self.open_gap * WINDOWS_SURELY_LIMIT < self.gap

    def opened(self) -> Found:
        """The same, once flows that wait for their windows have opened them by being used."""
        return replace(self, gap=max(self.open_gap, 1.0)) if self.waits else self

    def risen(self) -> Found:
        """The same of a link that was worse at the look before: its slowest flow hides the rest.

        Until the next look, all flows together are taken to carry what they did at first.
        """
        return replace(self, together_bytes_per_s=math.inf)

    def is_like(self, other: Found) -> bool:
        """Whether both describe the same link, up to the differences between two looks."""
        mine, others = (
            (each.latency, each.gap, each.together_bytes_per_s) for each in (self, other)
        )
        return all(
            a == b or not _is_off(a / max(b, 1e-9)) for a, b in zip(mine, others, strict=True)
        )


class _Wire:
    """A communicator as measurements need it, over a transport with our ranks and tags."""

    def __init__(self, transport: MPITransport, rank: int = -1) -> None:
        self._transport, self._rank = transport, rank

    def Get_rank(self) -> int:
        return self._rank

    def Isend(self, spec: Sequence[Any], peer: int, tag: int) -> object:
        return self._transport.isend(spec[0], peer, tag)

    def Irecv(self, spec: Sequence[Any], peer: int, tag: int) -> object:
        return self._transport.irecv(spec[0], peer, tag)

    def Iprobe(self, peer: int, tag: int) -> bool:
        return self._transport.iprobe(peer, tag)


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
    measured twice: beside other traffic it may look worse than it is. Where one flow is slower,
    several flows at once are the second look if they carry no more. Of a cluster inside, the
    slowest host counts, as models have one interface for all; it has not changed as long as that
    host is no slower than the links to other clusters.
    """
    rounds = [
        [(pair, _coordinators(model, pair)) for pair in pairs] for pairs in rounds_of(model, only)
    ]
    inside = [c for c in range(model.n_clusters) if only is None or (c, c) in only]
    rounds += rounds_inside(model, inside)
    seen = _pass(comm, transport, model, rounds)
    found = _slowest(seen)
    thinner = [pair for pair in found if _is_thinner(pair, found)]
    together = _look_together(comm, transport, model, thinner, found)
    full = {pair for pair in together if together[pair] <= CHANGED * _flow(model, pair, found)}
    changed = {way for way, each in seen.items() if each.changed and way[0] not in full}
    if changed:
        changed |= {(pair[::-1], ends[::-1]) for pair, ends in changed}
        fewer = [[way for way in ways if way in changed] for ways in rounds]
        again = _pass(comm, transport, model, [ways for ways in fewer if ways])
        found = _slowest(seen | {way: seen[way].nearer(each) for way, each in again.items()})
    for pair, slowest in together.items():
        bytes_per_s = max(slowest, _flow(model, pair, found))
        # What they carry unless they slow one another.
        apart = THIN_LINK * _lanes(model, pair) * _flow(model, pair, found)
        found[pair] = replace(
            found[pair],
            together_bytes_per_s=bytes_per_s if bytes_per_s < apart else math.inf,
            open_gap=_flow(model, pair, {}) / bytes_per_s,
        )
    for c in inside:
        if (c, c) in found and not _holds_up(model, c, found[c, c]):
            found[c, c] = Found(1.0, 1.0)
    return found


def _slowest(seen: Mapping[Way, Found]) -> dict[Pair, Found]:
    """Of each pair of clusters, what was seen between the ends with the longest gap."""
    found: dict[Pair, Found] = {}
    for (pair, ends), each in seen.items():
        if pair not in found or found[pair].gap < each.gap:
            found[pair] = replace(each, ends=ends)
    return found


def _look_together(
    comm: MPI.Intracomm,
    transport: MPITransport,
    model: GridModel,
    pairs: Iterable[Pair],
    found: Mapping[Pair, Found],
) -> dict[Pair, float]:
    """Bytes per second of several flows at once, where ``pairs`` have hosts for them.

    One flow carries what was ``found``.
    """
    several = {pair for pair in pairs if pair[0] != pair[1] and _lanes(model, pair) > 1}
    if not several:
        return {}
    n = range(model.n_clusters)
    one_bytes_per_s = np.array([[_flow(model, (a, b), found) for b in n] for a in n])
    trips_s = 2 * model.gap_and_one_way_s(np.zeros(1))[1][..., 0]
    for pair in several:
        trips_s[pair] *= found[pair].latency
    rounds = [
        ways
        for at_once in rounds_of_pairs(model.n_clusters)
        for turned in (at_once, [pair[::-1] for pair in at_once])
        if (ways := [pair for pair in turned if pair in several])
    ]
    wire = cast(MPI.Intracomm, _Wire(transport, comm.Get_rank()))
    return measure_flows_together(comm, wire, model.grid, rounds, one_bytes_per_s, trips_s, CHANGED)


def _lanes(model: GridModel, pair: Pair) -> int:
    a, b = (len(model.grid.clusters[c]) for c in pair)
    return lanes_between(a, b)


def _flow(model: GridModel, pair: Pair, found: Mapping[Pair, Found]) -> float:
    """Bytes per second of one flow, as it was ``found``, or as the model has it."""
    factor = found[pair].gap if pair in found else 1.0
    return MESSAGE_BYTES / max(factor * model.link(*pair).gap(MESSAGE_BYTES), 1e-12)


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
    usual_s, slow = expected_s * n_short, CHANGED if n == n_short else MUCH
    took_s = _open_train(channel, n_short, trip_s, usual_s, slow)[1] - trip_s
    is_slow = took_s - trip_s * is_longer > MUCH * usual_s
    if channel.agree(int(is_slow)) or n == n_short:
        return max(took_s, 1e-9) / n_short
    half_s, took_s = _open_train(channel, n, trip_s, expected_s * n, 0.0 if is_longer else CHANGED)
    if is_longer:
        return max(took_s - half_s, 1e-9) / (n - n // 2)
    return max(took_s - trip_s, 1e-9) / n


def _open_train(
    channel: Channel, n_messages: int, trip_s: float, usual_s: float, slow: float
) -> tuple[float, float]:
    """`Channel.train` over an open TCP window, which is small if the connection was idle, and after
    a link was thin: trains are repeated while they get faster.

    Not where one took less than ``slow`` times ``usual_s``, and its second half shows no better
    link; nor a long one in whose second half windows were open, and which was as slow there.
    """
    before_s = math.inf
    for _ in range(MOST_TRAINS + 1):
        half_s, took_s = channel.train(MESSAGE_BYTES, n_messages)
        later_s = (took_s - half_s) * n_messages / (n_messages - n_messages // 2)
        is_usual = took_s - trip_s < slow * usual_s and later_s > usual_s / CHANGED
        is_open = half_s > max(MOST_SETUP_TRIPS * trip_s, TRAIN_S) and later_s > FASTER * (
            took_s - trip_s
        )
        if not channel.agree(int(not (is_usual or is_open) and took_s < FASTER * before_s)):
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
    together = {pair: _together(model, pair, changed) for pair in changed}
    return with_links(model, new, together)


def with_links(
    model: GridModel, new: Mapping[Pair, PLogP], together_bytes_per_s: Mapping[Pair, float]
) -> GridModel:
    """``model`` with ``new`` links, and what flows together carry over them."""
    links = tuple(
        tuple(new.get((i, j), link) for j, link in enumerate(row))
        for i, row in enumerate(model.links)
    )
    together = tuple(
        tuple(together_bytes_per_s.get((i, j), rate) for j, rate in enumerate(row))
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


def _together(model: GridModel, pair: Pair, found: Mapping[Pair, Found]) -> float:
    """What all flows carry between the clusters of ``pair``, no more than ``model`` says.

    A longer way or a slower interface slows every flow by itself. Where one flow is slower for no
    such reason and nobody looked at several, what is left for one is all there is.
    """
    before_bytes_per_s = float(model.link_bytes_per_s[pair])
    each = found[pair]
    if each.together_bytes_per_s and each.gap > CHANGED:
        return min(before_bytes_per_s, each.together_bytes_per_s)
    if _is_thinner(pair, found):
        return LONG_BYTES / scaled(model.link(*pair), each).gap(float(LONG_BYTES))
    return before_bytes_per_s / each.gap


def _is_thinner(pair: Pair, found: Mapping[Pair, Found]) -> bool:
    """Whether one flow is slower, by more than a longer way or a slower interface explains."""
    each = found[pair]
    alone = max([each.latency, *(found[c, c].gap for c in pair if (c, c) in found)])
    return each.gap > CHANGED * max(alone, 1.0)


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
    found = {pair: _found(link, model.link(*pair)) for pair, link in new.items()}
    changed = [pair for pair, each in found.items() if _is_off(each.gap)]
    looked = _look_together(comm, transport, model, changed, found)
    together = {pair: looked.get(pair) or _together(model, pair, found) for pair in new}
    return with_links(model, new, together)
