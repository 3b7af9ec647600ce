"""Measure links again, briefly, while an application runs, and update the model.

A look takes about a second: a few empty round trips and a short train in each direction between
coordinators, for disjoint pairs of clusters at once. The same is done between neighbours in each
cluster, because every host's interface carries data that others wait for. The result is compared
with the model. A link that did not change keeps its measured values. If one flow is slower, several
flows at once show whether the link is thinner or the flow waits for its own TCP window. If a pair
inside a cluster is slower, pairs with other hosts show which of the two is slow.
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
from gridcoll.model import GridModel, PLogP, SlowHosts
from gridcoll.model.plogp import LONG_BYTES
from gridcoll.topology.rounds import lanes_between, rounds_of_pairs

Pair = tuple[int, int]
"""Numbers of two clusters: sender and receiver. Equal numbers mean the links between its hosts."""

Ends = tuple[int, int]
"""Two ranks: sender and receiver."""

Route = tuple[Pair, Ends]
"""Two clusters, and the ranks that measure between them."""

CHANGED = 1.25
"""A link has changed if its latency or its gap is at least this many times as large or as small as
before. Measured again on the same network, both are within 10 %, beside other traffic within
20 %."""

TRAIN_S = 40e-3
"""Time of a train by the model; at least half a round trip. Over a link with a tenth of its rate it
takes 0.4 s."""

MESSAGE_BYTES = 32 << 10
FEWEST_MESSAGES, MOST_MESSAGES = 4, 64

SHORT_TRAIN = 4
"""Messages of a short train. If it takes twice its predicted time, no longer train is sent."""

MOST_TRAINS, REPEAT_BELOW = 8, 0.9
"""A train is repeated up to this many times while it takes less than this fraction of the time of
the one before, and more than predicted. The window of an idle connection doubles in each round trip
and is open by then. A window that lost packets on a thin link grows by one segment and stays small
for longer: see `LinkFactors.together_bytes_per_s`."""

CLEAR_FACTOR = 2.0
"""Times that differ by this factor differ clearly."""

N_ROUND_TRIPS = 3

FIRST_GLANCE_BYTES, LARGEST_GLANCE_BYTES = 4 << 10, 256 << 10


@dataclass(frozen=True)
class LinkFactors:
    """A measured link relative to the model: factors of latency and gap, and its ends if known."""

    latency: float
    gap: float
    ends: Ends | None = None
    together_bytes_per_s: float = 0.0
    """Rate of several flows at once; infinite if they do not slow each other, 0 if not measured."""
    open_gap: float = 0.0
    """Factor of the gap of one flow that carries as much as several; 0 if not measured."""
    slow_hosts: tuple[str, ...] = ()
    """Inside a cluster, the hosts that the gap belongs to; empty if it belongs to all of them."""

    @property
    def changed(self) -> bool:
        """Whether the link changed."""
        return any(map(_differs, (self.latency, self.gap)))

    def nearer(self, other: LinkFactors) -> LinkFactors:
        """Return the values nearer to the model, of this look and an ``other`` one."""
        latency, gap = (
            min(pair, key=lambda factor: abs(math.log(max(factor, 1e-9))))
            for pair in ((self.latency, other.latency), (self.gap, other.gap))
        )
        return LinkFactors(latency, gap)

    @property
    def waits(self) -> bool:
        """Whether one flow waits for its own TCP window, because several carry much more."""
        return 0 < self.open_gap * WINDOWS_SURELY_LIMIT < self.gap

    def opened(self) -> LinkFactors:
        """Return the link as it will be when use has opened the windows that flows wait for."""
        return replace(self, gap=max(self.open_gap, 1.0)) if self.waits else self

    def risen(self) -> LinkFactors:
        """Return the same for a link that was worse at the previous look.

        Its slowest flow hides the others. Until the next look, all flows together are taken to
        carry what they did in the first model.
        """
        return replace(self, together_bytes_per_s=math.inf)

    def is_like(self, other: LinkFactors) -> bool:
        """Whether both describe the same link, up to the differences between two looks."""
        mine, others = (
            (each.latency, each.gap, each.together_bytes_per_s) for each in (self, other)
        )
        return self.slow_hosts == other.slow_hosts and all(
            a == b or not _differs(a / max(b, 1e-9)) for a, b in zip(mine, others, strict=True)
        )


class _TransportComm:
    """What measurements need of a communicator, over a transport with our ranks and tags."""

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
    """Return one end of a link under measurement, for use between calls."""
    return Channel(cast(MPI.Intracomm, _TransportComm(transport)), peer, active)


def look_at_links(
    comm: MPI.Intracomm,
    transport: MPITransport,
    model: GridModel,
    only: Collection[Pair] | None = None,
) -> dict[Pair, LinkFactors]:
    """Compare links with the model, either all or ``only`` those of some pairs, both ways.

    Collective; equal on all ranks. A link that seems to have changed is measured twice, because
    beside other traffic it may look worse than it is. If one flow is slower, several flows at once
    are measured; if they carry no more, the second measurement is not needed. A cluster counts as
    unchanged as long as its slowest host is not slower than the links to other clusters. If only
    some of its hosts are slow, these are named.
    """
    rounds = [
        [(pair, _coordinators(model, pair)) for pair in pairs] for pairs in rounds_of(model, only)
    ]
    inside = [c for c in range(model.n_clusters) if only is None or (c, c) in only]
    rounds += rounds_inside(model, inside)
    by_route = _compare_rounds(comm, transport, model, rounds)
    found = _slowest(by_route)
    thinner = [pair for pair in found if _is_thinner(model, pair, found)]
    together = _measure_together(comm, transport, model, thinner, found)
    filled_by_one = {
        pair
        for pair in together
        if together[pair] <= CHANGED * _flow_bytes_per_s(model, pair, found)
    }
    changed = {
        route for route, each in by_route.items() if each.changed and route[0] not in filled_by_one
    }
    if changed:
        changed |= {(pair[::-1], ends[::-1]) for pair, ends in changed}
        fewer = [[route for route in routes if route in changed] for routes in rounds]
        again = _compare_rounds(comm, transport, model, [routes for routes in fewer if routes])
        by_route |= {route: by_route[route].nearer(each) for route, each in again.items()}
        found = _slowest(by_route)
    for pair, slowest in together.items():
        bytes_per_s = max(slowest, _flow_bytes_per_s(model, pair, found))
        # This is the rate of flows that do not slow each other.
        independent_bytes_per_s = (
            THIN_LINK * _lanes(model, pair) * _flow_bytes_per_s(model, pair, found)
        )
        found[pair] = replace(
            found[pair],
            together_bytes_per_s=bytes_per_s if bytes_per_s < independent_bytes_per_s else math.inf,
            open_gap=_flow_bytes_per_s(model, pair, {}) / bytes_per_s,
        )
    for c in inside:
        if (c, c) in found and not _limits_calls(model, c, found[c, c]):
            found[c, c] = LinkFactors(1.0, 1.0)
    slower = [c for c in inside if (c, c) in found and found[c, c].gap > CHANGED]
    for c, each in _find_slow_hosts(comm, transport, model, by_route, slower).items():
        found[c, c] = each
        found |= _explained(model, c, found)
    return found


def _find_slow_hosts(
    comm: MPI.Intracomm,
    transport: MPITransport,
    model: GridModel,
    by_route: Mapping[Route, LinkFactors],
    clusters: Collection[int],
) -> dict[int, LinkFactors]:
    """Return what slows each of ``clusters`` in which some hosts are slow and some are not.

    ``by_route`` has pairs of their hosts. A host is not slow if it is in a pair that is not. Each
    host without such a pair is measured with one that is not slow.
    """
    gaps: dict[int, dict[Ends, float]] = {c: {} for c in clusters}

    def enter(measured: Mapping[Route, LinkFactors]) -> None:
        for ((a, b), ends), each in measured.items():
            if a == b and a in gaps:
                pair = min(ends), max(ends)
                gaps[a][pair] = max(each.gap, gaps[a].get(pair, 0.0))

    def fine_in(c: int) -> list[int]:
        return sorted({rank for pair, gap in gaps[c].items() if gap <= CHANGED for rank in pair})

    enter(by_route)
    ranks = {c: sorted({rank for pair in gaps[c] for rank in pair}) for c in clusters}
    unknown = [c for c in clusters if len(ranks[c]) > 2 and not fine_in(c)]
    others: list[Route] = [((c, c), (ranks[c][1], ranks[c][-1])) for c in unknown]
    if others:
        enter(_compare_rounds(comm, transport, model, [others]))
    rounds: dict[int, list[Route]] = {}
    for c in clusters:
        fine = fine_in(c)
        known = {rank for pair in gaps[c] if set(pair) & set(fine) for rank in pair}
        for k, suspect in enumerate([r for r in ranks[c] if r not in known] if fine else ()):
            turn, at = divmod(k, len(fine))
            rounds.setdefault(turn, []).append(((c, c), (suspect, fine[at])))
    if rounds:
        enter(_compare_rounds(comm, transport, model, list(rounds.values())))
    found = {}
    for c in clusters:
        fine = fine_in(c)
        slow = [rank for rank in ranks[c] if rank not in fine]
        mixed = [pair for pair in gaps[c] if len(set(pair) & set(fine)) == 1]
        if mixed:
            worst = max(mixed, key=gaps[c].__getitem__)
            hosts = tuple(model.grid.hosts[rank] for rank in slow)
            found[c] = LinkFactors(1.0, gaps[c][worst], worst, slow_hosts=hosts)
        elif fine:
            found[c] = LinkFactors(1.0, 1.0)
    return found


def _explained(
    model: GridModel, c: int, found: Mapping[Pair, LinkFactors]
) -> dict[Pair, LinkFactors]:
    """Return links of cluster ``c`` that only a slow host of its coordinator made look slower.

    They are as they were, for flows between other hosts.
    """
    if not (found[c, c].slow_hosts and _slows_coordinator(model, c, found[c, c])):
        return {}
    slow_s = found[c, c].gap * model.link(c, c).gap(MESSAGE_BYTES)
    return {
        pair: LinkFactors(each.latency, 1.0)
        for pair, each in found.items()
        if (pair[0] == c) != (pair[1] == c)
        and 1.0 < each.gap <= CHANGED * slow_s / model.link(*pair).gap(MESSAGE_BYTES)
    }


def _slowest(by_route: Mapping[Route, LinkFactors]) -> dict[Pair, LinkFactors]:
    """Return, for each pair of clusters, the `LinkFactors` of the ends with the longest gap."""
    found: dict[Pair, LinkFactors] = {}
    for (pair, ends), each in by_route.items():
        if pair not in found or found[pair].gap < each.gap:
            found[pair] = replace(each, ends=ends)
    return found


def _measure_together(
    comm: MPI.Intracomm,
    transport: MPITransport,
    model: GridModel,
    pairs: Iterable[Pair],
    found: Mapping[Pair, LinkFactors],
) -> dict[Pair, float]:
    """Return the bytes per second of several flows at once, for ``pairs`` with enough ranks.

    ``found`` has the rate of one flow.
    """
    several = {pair for pair in pairs if pair[0] != pair[1] and _lanes(model, pair) > 1}
    if not several:
        return {}
    n = range(model.n_clusters)
    one_bytes_per_s = np.array([[_flow_bytes_per_s(model, (a, b), found) for b in n] for a in n])
    trips_s = model.round_trip_s
    for pair in several:
        trips_s[pair] *= found[pair].latency
    rounds = [
        chosen
        for at_once in rounds_of_pairs(model.n_clusters)
        for turned in (at_once, [pair[::-1] for pair in at_once])
        if (chosen := [pair for pair in turned if pair in several])
    ]
    wire = cast(MPI.Intracomm, _TransportComm(transport, comm.Get_rank()))
    return measure_flows_together(comm, wire, model.grid, rounds, one_bytes_per_s, trips_s, CHANGED)


def _lanes(model: GridModel, pair: Pair) -> int:
    a, b = (len(model.grid.clusters[c]) for c in pair)
    return lanes_between(a, b)


def _flow_bytes_per_s(model: GridModel, pair: Pair, found: Mapping[Pair, LinkFactors]) -> float:
    """Return the bytes per second of one flow as ``found``, or as in the model."""
    factor = found[pair].gap if pair in found else 1.0
    return MESSAGE_BYTES / max(factor * model.link(*pair).gap(MESSAGE_BYTES), 1e-12)


def _coordinators(model: GridModel, pair: Pair) -> Ends:
    a, b = (model.grid.clusters[cluster].coordinator for cluster in pair)
    return a, b


def _limits_calls(model: GridModel, cluster: int, found: LinkFactors) -> bool:
    """Whether hosts of ``cluster`` are slower than a link that leaves it, now or by the model."""
    slowest_s = model.link(cluster, cluster).gap(MESSAGE_BYTES) * max(found.gap, 1.0)
    others = [c for c in range(model.n_clusters) if c != cluster]
    return slowest_s >= min((model.link(cluster, c).gap(MESSAGE_BYTES) for c in others), default=0)


def rounds_inside(model: GridModel, clusters: Collection[int]) -> list[list[Route]]:
    """Return at most two rounds of disjoint pairs: every host of ``clusters`` with a neighbour."""
    rounds: list[list[Route]] = [[], []]
    for c in clusters:
        hosts = [node[0].rank for node in model.grid.clusters[c].nodes]
        for k in range(1, len(hosts), 2):
            rounds[0].append(((c, c), (hosts[k - 1], hosts[k])))
        if len(hosts) % 2 and len(hosts) > 1:
            rounds[1].append(((c, c), (hosts[0], hosts[-1])))
    return [routes for routes in rounds if routes]


def _compare_rounds(
    comm: MPI.Intracomm,
    transport: MPITransport,
    model: GridModel,
    rounds: Sequence[Sequence[Route]],
) -> dict[Route, LinkFactors]:
    rank, mine = comm.Get_rank(), []
    for routes in rounds:
        wait_for_all(comm)  # the pairs of the round before must no longer use the links
        for pair, ends in routes:
            if rank in ends:
                peer = ends[1 - ends.index(rank)]
                mine += _compare_both_ways(transport, rank == ends[0], peer, model, (pair, ends))
    return dict(entry for entries in tell_all(comm, mine) for entry in entries)


def rounds_of(model: GridModel, only: Collection[Pair] | None = None) -> list[list[Pair]]:
    """Return pairs of clusters, all or those of ``only``, in rounds of disjoint pairs.

    Each pair has the lower number first.
    """
    wanted = None if only is None else {(min(pair), max(pair)) for pair in only}
    rounds = (
        [pair for pair in pairs if wanted is None or pair in wanted]
        for pairs in rounds_of_pairs(model.n_clusters)
    )
    return [pairs for pairs in rounds if pairs]


def _compare_both_ways(
    transport: MPITransport, is_first: bool, peer: int, model: GridModel, route: Route
) -> list[tuple[Route, LinkFactors]]:
    """Compare both directions of a link with the model, and return what this end measured.

    A round trip is the same from both ends, so it is timed from one. Latencies inside a cluster are
    not compared: they are microseconds, and negligible in a call between clusters.
    """
    found = []
    pair, ends = route
    both_s = model.link(*pair).one_way(0) + model.link(*pair[::-1]).one_way(0)
    first = channel_over(transport, peer, is_first)
    trip_s = min(first.round_trip_s(0) for _ in range(N_ROUND_TRIPS))
    trip_s = first.agree(int(trip_s * 1e9)) * 1e-9
    latency = trip_s / max(both_s, 1e-9) if pair[0] != pair[1] else 1.0
    for channel, way in (
        (first, route),
        (channel_over(transport, peer, not is_first), (pair[::-1], ends[::-1])),
    ):
        expected_s = model.link(*way[0]).gap(MESSAGE_BYTES)
        gap_s = _gap_s(channel, trip_s, expected_s, is_longer=latency > CHANGED)
        if channel.active:
            found.append((way, LinkFactors(latency, gap_s / max(expected_s, 1e-9))))
    return found


def _gap_s(channel: Channel, trip_s: float, expected_s: float, *, is_longer: bool) -> float:
    """Return the seconds per message of a train, on the active end.

    If a short train is much too slow, there is no longer one. If the latency is longer than before
    (``is_longer``), a TCP window takes several round trips to open; then only the second half
    counts, of a train that takes two of them.
    """
    n = int(max(TRAIN_S, trip_s * (2 if is_longer else 0.5)) / max(expected_s, 1e-9))
    n = channel.agree(min(max(n, FEWEST_MESSAGES), MOST_MESSAGES))
    n_short = min(n, SHORT_TRAIN)
    expected_total_s, slow_factor = expected_s * n_short, CHANGED if n == n_short else CLEAR_FACTOR
    took_s = _open_train(channel, n_short, trip_s, expected_total_s, slow_factor)[1] - trip_s
    is_slow = took_s - trip_s * is_longer > CLEAR_FACTOR * expected_total_s
    if channel.agree(int(is_slow)) or n == n_short:
        return max(took_s, 1e-9) / n_short
    half_s, took_s = _open_train(channel, n, trip_s, expected_s * n, 0.0 if is_longer else CHANGED)
    if is_longer:
        return max(took_s - half_s, 1e-9) / (n - n // 2)
    return max(took_s - trip_s, 1e-9) / n


def _open_train(
    channel: Channel, n_messages: int, trip_s: float, expected_total_s: float, slow_factor: float
) -> tuple[float, float]:
    """Return `Channel.train` over an open TCP window.

    A window is small if the connection was idle, and after a link was thin. So trains are repeated
    while they get faster. A train is not repeated if it took less than ``slow_factor`` times
    ``expected_total_s`` and its second half does not show a better link; nor if it was so long that
    windows were open in its second half, and that half was as slow.
    """
    before_s = math.inf
    for _ in range(MOST_TRAINS + 1):
        half_s, took_s = channel.train(MESSAGE_BYTES, n_messages)
        from_second_half_s = (took_s - half_s) * n_messages / (n_messages - n_messages // 2)
        is_usual = (
            took_s - trip_s < slow_factor * expected_total_s
            and from_second_half_s > expected_total_s / CHANGED
        )
        is_open = half_s > max(
            MOST_SETUP_TRIPS * trip_s, TRAIN_S
        ) and from_second_half_s > REPEAT_BELOW * (took_s - trip_s)
        if not channel.agree(int(not (is_usual or is_open) and took_s < REPEAT_BELOW * before_s)):
            break
        before_s = took_s
    return half_s, took_s


@dataclass(frozen=True)
class Glance:
    """One message each way over the link of a pair, and an answer to each.

    Attributes
    ----------
    pair : Pair
    n_bytes : int
        Bytes of a message, as few as needed to recognise a better link.
    expected_s : float
        Predicted time over the link of the model.
    better_s : float
        A shorter time than this means a better link.
    ends : Ends or None
        The ranks that send; the coordinators if None.
    """

    pair: Pair
    n_bytes: int
    expected_s: float
    better_s: float
    ends: Ends | None = None

    def is_better(self, transport: MPITransport, rank: int, model: GridModel) -> bool:
        """Send the messages, and return whether this rank saw a better link.

        All ranks call it; those that are no end of the link return at once.
        """
        ends = self.ends or _coordinators(model, self.pair)
        if rank not in ends:
            return False
        peer = ends[1 - ends.index(rank)]
        return channel_over(transport, peer, rank == ends[0]).swap_s(self.n_bytes) < self.better_s


def glance_of(
    model: GridModel, before: GridModel | None, pair: Pair, ends: Ends | None = None
) -> Glance:
    """Return the cheapest message that shows whether a link is better than in ``model``.

    ``before`` is a model with the link as it may be again; if None, a better link is one that takes
    half the time. The message takes no less than the longest latency, as calls do: processes of
    busy hosts come milliseconds late, so that 4 KiB inside a cluster showed nothing.
    """
    least_s = float(model.latency_s.max())

    def trip_s(model: GridModel, n_bytes: int) -> float:
        a, b = pair
        links = [model.link(a, b), model.link(b, a)] if a != b else [model.slow_link(a)]
        there_s = max(link.one_way(n_bytes) for link in links)
        return there_s + max(link.one_way(0) for link in links)

    n_bytes = 0
    while True:
        expected_s = trip_s(model, n_bytes)
        better_link_s = expected_s / CLEAR_FACTOR if before is None else trip_s(before, n_bytes)
        shows_rate = n_bytes and expected_s > CLEAR_FACTOR * trip_s(model, 0)
        is_conclusive = expected_s >= max(CLEAR_FACTOR * better_link_s, least_s) and (
            before is not None or shows_rate
        )
        if is_conclusive or n_bytes >= LARGEST_GLANCE_BYTES:
            return Glance(pair, n_bytes, expected_s, (expected_s + better_link_s) / 2, ends)
        n_bytes = 2 * n_bytes or FIRST_GLANCE_BYTES


def found_of(model: GridModel, before: GridModel) -> dict[Pair, LinkFactors]:
    """Return the links of ``model`` that differ from those of ``before``, relative to these."""
    n = range(model.n_clusters)
    found = {
        (a, b): _found(link, old)
        for a in n
        for b in n
        if (link := model.link(a, b)) != (old := before.link(a, b))
    }
    for each in model.slow_hosts:
        found[each.cluster, each.cluster] = LinkFactors(
            1.0, each.factor, _ends_of(model, each), slow_hosts=each.hosts
        )
    return found


def _ends_of(model: GridModel, slow: SlowHosts) -> Ends | None:
    """Return a rank on a slow host and a rank on another one of its cluster; None if all are."""
    ranks = [node[0] for node in model.grid.clusters[slow.cluster].nodes]
    first = next(each.rank for each in ranks if each.host in slow.hosts)
    others = [each.rank for each in ranks if each.host not in slow.hosts]
    return (first, others[0]) if others else None


def _found(link: PLogP, old: PLogP) -> LinkFactors:
    """Return ``link`` relative to ``old``."""
    return LinkFactors(
        link.latency_s / max(old.latency_s, 1e-9),
        link.gap(MESSAGE_BYTES) / max(old.gap(MESSAGE_BYTES), 1e-9),
    )


def changed_model(model: GridModel, found: Mapping[Pair, LinkFactors]) -> GridModel | None:
    """Return ``model`` with the changed links; None if no link changed.

    Measured times of natives are dropped, because they belong to another network.
    """
    changed = {pair: each for pair, each in found.items() if each.changed}
    if not changed:
        return None
    slow = [SlowHosts(c, each.slow_hosts, each.gap) for (c, _), each in changed.items()]
    slow = [each for each in slow if each.hosts]
    links = [pair for pair, each in changed.items() if not each.slow_hosts]
    new = {pair: scaled(model.link(*pair), changed[pair]) for pair in links}
    together = {pair: _together(model, pair, changed) for pair in links}
    return with_links(model, new, together, slow)


def with_links(
    model: GridModel,
    new: Mapping[Pair, PLogP],
    together_bytes_per_s: Mapping[Pair, float],
    slow_hosts: Iterable[SlowHosts] = (),
) -> GridModel:
    """Return ``model`` with ``new`` links, rates of flows together over them, and slow hosts."""
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
        slow_hosts=tuple(slow_hosts),
    )


def _together(model: GridModel, pair: Pair, found: Mapping[Pair, LinkFactors]) -> float:
    """Return what all flows carry between the clusters of ``pair``, at most the rate in ``model``.

    A longer latency or a slower interface slows each flow by itself. If one flow is slower for
    another reason, and several were not measured, the link is taken to carry only what one flow
    carries.
    """
    before_bytes_per_s = float(model.link_bytes_per_s[pair])
    each = found[pair]
    if each.together_bytes_per_s and each.gap > CHANGED:
        return min(before_bytes_per_s, each.together_bytes_per_s)
    if _is_thinner(model, pair, found):
        return LONG_BYTES / scaled(model.link(*pair), each).gap(float(LONG_BYTES))
    return before_bytes_per_s / each.gap


def _is_thinner(model: GridModel, pair: Pair, found: Mapping[Pair, LinkFactors]) -> bool:
    """Whether one flow is slower by more than a longer latency or a slower interface explains.

    The flow is between coordinators, so another host's interface explains nothing.
    """
    each = found[pair]
    alone = max(each.latency, 1.0)
    for c in pair:
        inside = found.get((c, c))
        if inside and _slows_coordinator(model, c, inside):
            alone = max(alone, inside.gap)
    return each.gap > CHANGED * alone


def _slows_coordinator(model: GridModel, c: int, inside: LinkFactors) -> bool:
    """Whether what was found ``inside`` cluster ``c`` may be its coordinator's interface."""
    coordinator = model.grid.clusters[c].coordinator
    if inside.slow_hosts:
        return model.grid.hosts[coordinator] in inside.slow_hosts
    return not inside.ends or coordinator in inside.ends


def scaled(link: PLogP, found: LinkFactors) -> PLogP:
    """Return ``link`` with the latency and rate that were ``found``.

    The gap of an empty message stays the same.
    """
    latency_s = link.latency_s * (found.latency if _differs(found.latency) else 1.0)
    factor = found.gap if _differs(found.gap) else 1.0
    gaps = tuple(link.gap_s[0] + (each - link.gap_s[0]) * factor for each in link.gap_s)
    more_s = latency_s - link.latency_s
    one_way = tuple(
        each + more_s + new - old
        for each, new, old in zip(link.one_way_s, gaps, link.gap_s, strict=False)
    )
    return replace(link, latency_s=latency_s, gap_s=gaps, one_way_s=one_way)


def _differs(factor: float) -> bool:
    return not 1 / CHANGED < factor < CHANGED


def remeasure_links(
    comm: MPI.Intracomm, transport: MPITransport, model: GridModel, pairs: Collection[Pair]
) -> GridModel:
    """Return ``model`` with the links of ``pairs`` measured again. Collective.

    This is as thorough as in discovery, and takes seconds. Both directions are taken to be equal.
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
    changed = [pair for pair, each in found.items() if _differs(each.gap)]
    looked = _measure_together(comm, transport, model, changed, found)
    together = {pair: looked.get(pair) or _together(model, pair, found) for pair in new}
    return with_links(model, new, together)
