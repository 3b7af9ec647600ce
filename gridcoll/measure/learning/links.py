"""Measure links again, briefly, while an application runs, and compare them with the model.

A look takes about a second: an empty round trip and a short train in each direction between
coordinators, for disjoint pairs of clusters at once. The directions come one after the other:
together, links of unlike grids seemed 1.4 times slower, as answers wait behind the other
direction's data. The same is done between neighbours in each cluster, because every host's
interface carries data that others wait for. The result is compared with the model. A link that did
not change keeps its measured values. If one flow is slower, several flows at once show whether the
link is thinner or the flow waits for its own TCP window. If a pair inside a cluster is slower,
pairs with other hosts show which of the two is slow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.constants import THIN_LINK, WINDOWS_SURELY_LIMIT
from gridcoll.engine.agreement import tell_all
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.flows import measure_flows_together
from gridcoll.measure.learning.changes import (
    CHANGED,
    MESSAGE_BYTES,
    Ends,
    LinkFactors,
    Pair,
    Route,
    carried_together,
    differs,
    found_link,
    is_thinner,
    with_links,
)
from gridcoll.measure.learning.slow_hosts import explained_links, find_slow_hosts, hosts_limit_calls
from gridcoll.measure.probe import Channel, measure_plogp
from gridcoll.model import GridModel, PLogP
from gridcoll.topology.rounds import in_rounds, lanes_between, rounds_of_pairs

TRAIN_S = 40e-3
"""Time of a train by the model; at least half a round trip. Over a link with a tenth of its rate it
takes 0.4 s."""

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

MOST_ROUND_TRIPS = 3
"""Round trips, unless one agrees with an earlier one or with the model."""

FIRST_WINDOW_BYTES = 10 * 1460
"""Bytes that TCP sends before the first answer (RFC 6928). Their number doubles with every round
trip."""

FIRST_GLANCE_BYTES, LARGEST_GLANCE_BYTES = 4 << 10, 256 << 10


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
    between = [pair for pairs in rounds_of(model, only) for pair in pairs]
    inside = [c for c in range(model.n_clusters) if only is None or (c, c) in only]
    routes = [(pair, _coordinators(model, pair)) for pair in between]
    routes += _routes_inside(model, inside)
    hosts = model.grid.host_of
    rounds = in_rounds(routes, lambda route: {hosts[rank] for rank in route[1]})
    by_route = _compare_rounds(comm, transport, model, rounds)
    found = _slowest(model, by_route)
    thinner = [pair for pair in found if is_thinner(model, pair, found)]
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
        fewer = [routes for routes in fewer if routes]
        again = _compare_rounds(comm, transport, model, fewer, by_route)
        by_route |= {route: by_route[route].nearer(each) for route, each in again.items()}
        found = _slowest(model, by_route)
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
        if (c, c) in found and not hosts_limit_calls(model, c, found[c, c]):
            found[c, c] = LinkFactors(1.0, 1.0)

    def compare(rounds: Sequence[Sequence[Route]]) -> dict[Route, LinkFactors]:
        return _compare_rounds(comm, transport, model, rounds)

    slower = [c for c in inside if (c, c) in found and found[c, c].gap > CHANGED]
    for c, each in find_slow_hosts(model, by_route, slower, compare).items():
        found[c, c] = each
        found |= explained_links(model, c, found)
    return found


def _slowest(model: GridModel, by_route: Mapping[Route, LinkFactors]) -> dict[Pair, LinkFactors]:
    """Return, for each pair of clusters, the `LinkFactors` of the ends with the longest gap.

    Inside a cluster, the coordinator and its neighbour count if their gap is about as long: then
    the coordinator's interface may explain what was found of its links.
    """
    longest: dict[Pair, float] = {}
    for (pair, _), each in by_route.items():
        longest[pair] = max(each.gap, longest.get(pair, 0.0))
    found: dict[Pair, tuple[tuple[bool, float], LinkFactors]] = {}
    for (pair, ends), each in by_route.items():
        is_about_as_long = each.gap * CHANGED >= longest[pair]
        has_coordinator = bool(set(ends) & set(_coordinators(model, pair)))
        key = is_about_as_long and has_coordinator, each.gap
        if pair not in found or found[pair][0] < key:
            found[pair] = key, replace(each, ends=ends)
    return {pair: each for pair, (_, each) in found.items()}


def _measure_together(
    comm: MPI.Intracomm,
    transport: MPITransport,
    model: GridModel,
    pairs: Iterable[Pair],
    found: Mapping[Pair, LinkFactors],
) -> dict[Pair, float]:
    """Return the bytes per second of several flows at once, for ``pairs`` with enough ranks.

    ``found`` has the rate of one flow. If it is about the same in both directions, several flows
    are measured in one of them.
    """
    several = {pair for pair in pairs if pair[0] != pair[1] and _lanes(model, pair) > 1}
    if not several:
        return {}
    alike = {
        pair
        for pair in several
        if pair[0] > pair[1]
        and pair[::-1] in several
        and not differs(found[pair].gap / found[pair[::-1]].gap)
    }
    n = range(model.n_clusters)
    one_bytes_per_s = np.array([[_flow_bytes_per_s(model, (a, b), found) for b in n] for a in n])
    trips_s = model.round_trip_s
    for pair in several:
        trips_s[pair] *= found[pair].latency
    rounds = [
        chosen
        for at_once in rounds_of_pairs(model.n_clusters)
        for turned in (at_once, [pair[::-1] for pair in at_once])
        if (chosen := [pair for pair in turned if pair in several - alike])
    ]
    wire = cast(MPI.Intracomm, _TransportComm(transport, comm.Get_rank()))
    measured = measure_flows_together(
        comm, wire, model.grid, rounds, one_bytes_per_s, trips_s, CHANGED
    )
    return measured | {pair: measured[pair[::-1]] for pair in alike}


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


def _routes_inside(model: GridModel, clusters: Collection[int]) -> list[Route]:
    """Return pairs of neighbours, so that every host of ``clusters`` is in one."""
    routes: list[Route] = []
    for c in clusters:
        ranks = [node[0].rank for node in model.grid.clusters[c].nodes]
        pairs = list(zip(ranks[::2], ranks[1::2], strict=False))
        if len(ranks) % 2 and len(ranks) > 1:
            pairs.append((ranks[0], ranks[-1]))
        routes += [((c, c), pair) for pair in pairs]
    return routes


def _compare_rounds(
    comm: MPI.Intracomm,
    transport: MPITransport,
    model: GridModel,
    rounds: Sequence[Sequence[Route]],
    before: Mapping[Route, LinkFactors] | None = None,
) -> dict[Route, LinkFactors]:
    """Compare each route both ways, those of a round at once.

    A route begins as soon as both ends are free; only one rank of each host is an end. ``before``
    is an earlier result: only gaps that had changed are measured again.
    """
    rank, mine = comm.Get_rank(), []
    for pair, ends in (route for routes in rounds for route in routes):
        if rank in ends:
            peer = ends[1 - ends.index(rank)]
            route, is_first = (pair, ends), rank == ends[0]
            mine += _compare_both_ways(transport, is_first, peer, model, route, before or {})
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
    transport: MPITransport,
    is_first: bool,
    peer: int,
    model: GridModel,
    route: Route,
    before: Mapping[Route, LinkFactors],
) -> list[tuple[Route, LinkFactors]]:
    """Compare both directions of a link with the model, and return what this end measured.

    A round trip is the same from both ends, so it is timed from one. Latencies inside a cluster are
    not compared: they are microseconds, and negligible in a call between clusters.
    """
    found = []
    pair, ends = route
    both_s = model.link(*pair).one_way(0) + model.link(*pair[::-1]).one_way(0)
    first = channel_over(transport, peer, is_first)
    latency_before = before[route].latency if route in before else 1.0
    trip_s = _confirmed_trip_s(first, [both_s, both_s * latency_before])
    latency = trip_s / max(both_s, 1e-9) if pair[0] != pair[1] else 1.0
    for channel, way in (
        (first, route),
        (channel_over(transport, peer, not is_first), (pair[::-1], ends[::-1])),
    ):
        expected_s = max(model.link(*way[0]).gap(MESSAGE_BYTES), 1e-9)
        earlier = before.get(way)
        if earlier and (earlier.waits or not differs(earlier.gap)):
            each = replace(earlier, latency=latency)
        else:
            gap_s, opens = _gap_s(channel, trip_s, expected_s, latency)
            # A window that makes little difference while it opens makes none later.
            is_clear = gap_s > WINDOWS_SURELY_LIMIT * expected_s or not opens
            gap = gap_s / expected_s if is_clear else 1.0
            each = LinkFactors(latency, gap, open_gap=float(opens))
        if channel.active:
            found.append((way, each))
    return found


def _confirmed_trip_s(channel: Channel, expected_s: Sequence[float]) -> float:
    """Return the shortest of a few round trips, on both ends.

    The last one is the first that is about as long as one before or one of ``expected_s``.
    """
    seen_s = list(expected_s)
    for _ in range(MOST_ROUND_TRIPS):
        took_s = channel.round_trip_s(0)
        is_new = all(differs(took_s / max(each, 1e-9)) for each in seen_s)
        seen_s.append(took_s)
        if not channel.agree(int(is_new)):
            break
    return channel.agree(int(min(seen_s[len(expected_s) :]) * 1e9)) * 1e-9


def _gap_s(
    channel: Channel, trip_s: float, expected_s: float, longer: float = 1.0
) -> tuple[float, bool]:
    """Return the seconds per message of a train, and whether a TCP window is still opening.

    To be used on the active end. If a short train is much too slow, there is no longer one.
    ``longer`` is the latency over that of the model.
    """
    is_longer = longer > CHANGED
    n = int(max(TRAIN_S, trip_s * (2 if is_longer else 0.5)) / expected_s)
    n = channel.agree(min(max(n, FEWEST_MESSAGES), MOST_MESSAGES))
    n_short = min(n, SHORT_TRAIN)
    expected_total_s, slow_factor = expected_s * n_short, CHANGED if n == n_short else CLEAR_FACTOR
    took_s = _open_train(channel, n_short, trip_s, expected_total_s, slow_factor) - trip_s
    is_slow = took_s - trip_s * is_longer > CLEAR_FACTOR * expected_total_s
    if channel.agree(int(is_slow)) or n == n_short:
        return max(took_s, 1e-9) / n_short, False
    if is_longer:
        return _gap_of_longer_s(channel, n, expected_s, longer)
    took_s = _open_train(channel, n, trip_s, expected_s * n, CHANGED)
    return max(took_s - trip_s, 1e-9) / n, False


def _gap_of_longer_s(
    channel: Channel, n_messages: int, expected_s: float, longer: float
) -> tuple[float, bool]:
    """Return `_gap_s` of a link that is ``longer`` than by the model, by trains of two round trips.

    The window opens during the first half of a train, so only the second half counts. It may take
    seconds until a window is as large as a longer link needs. Until then a flow is slower by as
    much as the link is longer. So a train is the last one if it is not slower than that, and faster
    than the one before.
    """
    before_s = math.inf
    for _ in range(MOST_TRAINS + 1):
        half_s, took_s = channel.train(MESSAGE_BYTES, n_messages)
        gap_s = max(took_s - half_s, 1e-9) / (n_messages - n_messages // 2)
        is_faster, is_changed = took_s < REPEAT_BELOW * before_s, differs(gap_s / expected_s)
        is_explained = is_changed and gap_s < longer * CHANGED * expected_s
        opens = is_explained and is_faster and before_s < math.inf
        if channel.agree(int(opens or not (is_faster and is_changed))):
            break
        before_s = took_s
    return gap_s, opens


def _open_train(
    channel: Channel, n_messages: int, trip_s: float, expected_total_s: float, slow_factor: float
) -> float:
    """Return `Channel.train_s` over an open TCP window.

    A window is small if the connection was idle, and after a link was thin. So trains are repeated
    while they get faster. A train is not repeated if it took less than ``slow_factor`` times
    ``expected_total_s`` and its second half does not show a better link; nor if it was so long that
    windows were open in its second half, and that half was as slow.
    """
    # A handshake, and until the first half is under way.
    windows = MESSAGE_BYTES * (n_messages // 2) / FIRST_WINDOW_BYTES
    setup_trips = 1 + math.ceil(math.log2(1 + windows))
    before_s = math.inf
    for _ in range(MOST_TRAINS + 1):
        half_s, took_s = channel.train(MESSAGE_BYTES, n_messages)
        from_second_half_s = (took_s - half_s) * n_messages / (n_messages - n_messages // 2)
        is_usual = (
            took_s - trip_s < slow_factor * expected_total_s
            and from_second_half_s > expected_total_s / CHANGED
        )
        is_open = half_s > max(
            setup_trips * trip_s, TRAIN_S
        ) and from_second_half_s > REPEAT_BELOW * (took_s - trip_s)
        if not channel.agree(int(not (is_usual or is_open) and took_s < REPEAT_BELOW * before_s)):
            break
        before_s = took_s
    return took_s


class Glance(Struct, frozen=True):
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
    found = {pair: found_link(link, model.link(*pair)) for pair, link in new.items()}
    changed = [pair for pair, each in found.items() if differs(each.gap)]
    looked = _measure_together(comm, transport, model, changed, found)
    together = {pair: looked.get(pair) or carried_together(model, pair, found) for pair in new}
    return with_links(model, new, together)
