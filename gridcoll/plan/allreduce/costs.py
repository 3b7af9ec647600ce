"""Predicted times of allreduces: closed forms in the steady state, and pieces by their load.

A piece adds load to every interface, flow and link on its path. The busiest one limits the rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.allreduce.pieces import EVERYWHERE, Piece, keeps_rank_order, plan_allreduce
from gridcoll.plan.bcast.segments import segment_sizes
from gridcoll.plan.pacing import paced_by_links
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Candidate
from gridcoll.plan.tree_cost import SegmentCosts, line_costs, place_costs
from gridcoll.schedule.trees import profile
from gridcoll.topology.grid import Grid
from gridcoll.topology.units import format_size


class Costs(SegmentCosts, frozen=True):
    """Costs of segments, and of partial results between clusters."""

    @cached_property
    def across_s(self) -> FloatArray:
        """Time of the last partial result that a rank sends to other clusters, (C, C, S)."""
        n = self.model.n_clusters
        across = self.one_way_s + (n - 2) * self.port_s[:, None]
        return np.asarray(across * (1 - np.eye(n))[:, :, None])

    @cached_property
    def gap_between_s(self) -> FloatArray:
        """`gap_s` with a zero diagonal, (C, C, S)."""
        return np.asarray(self.gap_s * (1 - np.eye(self.model.n_clusters))[:, :, None])

    def path_times(self, inside: FloatArray, home: int) -> FloatArray:
        """Return the time of the first segment from all ranks to all ranks, (S,).

        ``inside`` are its times inside clusters, (C, S).
        """
        n = len(inside)
        if n == 1:
            return np.asarray(2 * inside[0])
        across = self.across_s
        if home == EVERYWHERE:
            return np.asarray((inside[:, None] + across + inside[None]).max(axis=(0, 1)))
        to_home = (inside + across[:, home]).max(axis=0)
        return np.asarray(to_home + (across[home] + inside).max(axis=0))


def price_leaders(costs: Costs, shape: str, home: int) -> FloatArray:
    """Return the time with trees inside clusters, (S,).

    Leaders exchange partial results, or the leader of ``home`` combines them.
    """
    n = costs.model.n_clusters
    hosts = [cluster.node_sizes for cluster in costs.model.grid.clusters]
    lines = [line_costs(shape, each) for each in hosts]
    at_first = [place_costs(shape, each, 0)[-1] for each in hosts]
    inside = costs.first_inside(lines)
    n_out = [n - 1 if home in (EVERYWHERE, c) else 1 for c in range(n)]
    sends = [
        max(first + out, line.busiest + 1)
        for line, first, out in zip(lines, at_first, n_out, strict=True)
    ]
    period = (np.array(sends)[:, None] * costs.port_s).max(axis=0)
    apart = costs.gap_between_s
    used_links = (apart,) if home == EVERYWHERE else (apart[home][None], apart[:, home][None])
    period = np.max([period, *(gaps.max(axis=(0, 1)) for gaps in used_links)], axis=0)
    n_more = np.maximum(np.ceil(costs.n_bytes / costs.segment_bytes) - 1, 0.0)
    return np.asarray(costs.path_times(inside, home) + n_more * period)


def price_ring(costs: Costs, order: tuple[int, ...]) -> FloatArray:
    """Return the time of a ring over all ranks, with the clusters in ``order``, (S,)."""
    n = sum(costs.model.grid.hosts_per_cluster)
    one_cluster = len(order) == 1
    hops = list(pairwise([*order, order[0]])) if len(order) > 1 else []
    with_inner_hops = [c for c in order if costs.sizes[c] > 1]
    round_s = np.zeros(len(costs.segment_bytes))
    inside_host_s = costs.model.gap_and_one_way_s(np.zeros(1))[1]
    for hop in hops:
        round_s = round_s + costs.one_way_s[hop]
    for c in with_inner_hops:
        n_hosts = len(costs.model.grid.clusters[c].nodes)
        round_s = round_s + (n_hosts - (not one_cluster)) * costs.one_way_s[c, c]
        round_s = round_s + (costs.sizes[c] - n_hosts) * inside_host_s[c, c]
    used_links = [*hops, *((c, c) for c in with_inner_hops)]
    period = np.max([costs.gap_s[link] for link in used_links], axis=0)
    longest = np.max([costs.one_way_s[link] for link in used_links], axis=0)
    # In neither round does a block take the hop that ends at its start, at best the shortest hop.
    shortest = np.min([costs.one_way_s[link] for link in used_links], axis=0)
    n_sent = 2 * costs.n_bytes * (n - 1) / n / costs.segment_bytes
    n_more_in_block = np.maximum(costs.n_bytes / n / costs.segment_bytes - 1, 0.0)
    # The limit is either the rate of the ring, or the two rounds of one block.
    return np.asarray(
        np.maximum(n_sent * period + longest, 2 * (round_s - shortest) + n_more_in_block * period)
    )


SHAPES = ("flat", "chain")
"""Shapes inside clusters: all send to the owner, or each combines and passes on in a chain."""


COLLECT, COMBINE, RETURN, DISTRIBUTE = range(4)
"""Phases: to owners, to where pieces are combined, from there to owners or root, from owners."""


Flows = tuple[np.ndarray, np.ndarray, np.ndarray]


class PieceLoad:
    """Units through every host's interface and between ranks of different clusters, by phase.

    The ranks of a host share its interface. Messages between them do not use it.

    Attributes
    ----------
    out, into : (4, H) arrays
    at_once : (H,) array
        Units that can be sent at once, without waiting for other data.
    flows : list of list of arrays
        For each phase, messages between ranks of different clusters: senders, receivers, and units,
        (N,) each.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._cluster = np.array(grid.cluster_of)
        self._host = np.array(grid.host_of)
        n_hosts = int(self._host.max()) + 1
        self.out, self.into = np.zeros((2, 4, n_hosts))
        self.at_once = np.zeros(n_hosts)
        self.flows: list[list[Flows]] = [[] for _ in range(4)]

    def add(self, phase: int, messages: Sequence[tuple[int, int, int]]) -> None:
        """Add ``messages``, with sender, receiver and units of each."""
        if not messages:
            return
        senders, receivers, n_units = np.array(messages).T
        ends = self._host[senders], self._host[receivers]
        apart = ends[0] != ends[1]
        np.add.at(self.out[phase], ends[0][apart], n_units[apart])
        np.add.at(self.into[phase], ends[1][apart], n_units[apart])
        self._add_flows(phase, senders, receivers, n_units)

    def inside(self, ranks: list[int], place: int, n_units: float, shape: str, *, up: bool) -> None:
        """Add the load between all of ``ranks`` and the owner at ``place``, in ``shape``."""
        if len(ranks) == 1:
            return
        cluster_of, owner = self._grid.cluster_of, ranks[place]
        scattered = len({cluster_of[rank] for rank in ranks}) > 1
        if scattered:
            members = np.array(ranks)
            others = np.full(len(ranks), owner) if shape == "flat" else np.roll(members, -1)
            ends = (members, others) if up else (others, members)
            self._add_flows(
                COLLECT if up else DISTRIBUTE, *ends, np.full(len(ranks), float(n_units))
            )
        at_member, at_owner = self.out[COLLECT], self.into[COLLECT]
        if not up:
            at_member, at_owner = self.into[DISTRIBUTE], self.out[DISTRIBUTE]
        hosts = self._host[ranks[place:] + ranks[:place]]
        nearer = hosts[:1] if shape == "flat" else hosts[:-1]
        crosses = hosts[1:] != nearer
        farther, nearer = hosts[1:][crosses], np.broadcast_to(nearer, len(hosts) - 1)[crosses]
        np.add.at(at_member, farther, n_units)
        np.add.at(at_owner, nearer, n_units)
        if up:
            first = farther if shape == "flat" else hosts[-1:][crosses[-1:]]
            np.add.at(self.at_once, first, n_units)

    def exchange(self, owners: Sequence[int], n_units: Sequence[float]) -> None:
        """Add an exchange: each of ``owners`` sends its units to all others, which combine them."""
        units, hosts = np.array(n_units, dtype=float), self._host[list(owners)]
        np.add.at(self.out[COMBINE], hosts, (len(owners) - 1) * units)
        np.add.at(self.into[COMBINE], hosts, units.sum() - units)
        n, ranks = len(owners), np.array(owners)
        self._add_flows(COMBINE, np.repeat(ranks, n), np.tile(ranks, n), np.repeat(units, n))

    def _add_flows(
        self, phase: int, senders: np.ndarray, receivers: np.ndarray, n_units: np.ndarray
    ) -> None:
        """Add those messages that cross between clusters to the flows of ``phase``."""
        leave = self._cluster[senders] != self._cluster[receivers]
        self.flows[phase].append((senders[leave], receivers[leave], n_units[leave]))

    def inside_flat(self, ranks: list[int], units: np.ndarray, *, down: bool) -> None:
        """Add `inside` for each of ``ranks`` as the owner of its ``units``, up and perhaps down.

        All ranks must be of one cluster.
        """
        hosts, which = np.unique(self._host[ranks], return_inverse=True)
        n_on_host, owned = np.bincount(which), np.bincount(which, units)
        at_member, at_owner = n_on_host * (owned.sum() - owned), owned * (len(ranks) - n_on_host)
        self.out[COLLECT, hosts] += at_member
        self.into[COLLECT, hosts] += at_owner
        self.at_once[hosts] += at_member
        if down:
            self.into[DISTRIBUTE, hosts] += at_member
            self.out[DISTRIBUTE, hosts] += at_owner


def load_of_pieces(
    grid: Grid,
    groups: Grid,
    pieces: Sequence[Piece],
    n_partials: Sequence[int],
    shape: str,
    root: int = -1,
) -> PieceLoad:
    """Return the load if members send to owners, and owners combine and distribute.

    With a ``root``, the results go only there. A piece has an owner in each of ``groups``, which
    consist of one cluster of ``grid`` or several. ``n_partials[group]``: how many partial results
    each of its owners sends.
    """
    load = PieceLoad(grid)
    members = [list(cluster.line) for cluster in groups.clusters]
    owned: defaultdict[tuple[int, int], int] = defaultdict(int)  # one rank may own many pieces
    to_home: list[tuple[int, int, int]] = []
    from_home: list[tuple[int, int, int]] = []
    for piece in pieces:
        n_units = piece.stop - piece.start
        owners = [ranks[place] for ranks, place in zip(members, piece.owners, strict=True)]
        for c, place in enumerate(piece.owners):
            owned[c, place] += n_units
        if piece.home == EVERYWHERE:
            load.exchange(owners, [n_each * n_units for n_each in n_partials])
        else:
            home = owners[piece.home]
            to_home += [
                (owner, home, n_partials[c] * n_units)
                for c, owner in enumerate(owners)
                if c != piece.home
            ]
            receivers = [root] if root >= 0 else owners
            from_home += [(home, receiver, n_units) for receiver in receivers if receiver != home]
    load.add(COMBINE, to_home)
    load.add(RETURN, from_home)
    if shape == "flat" and groups is grid:
        for c, ranks in enumerate(members):
            units = np.array([owned.get((c, place), 0) for place in range(len(ranks))], float)
            load.inside_flat(ranks, units, down=root < 0)
        return load
    for (c, place), n_units in owned.items():
        load.inside(members[c], place, n_units, shape, up=True)
        if root < 0:
            load.inside(members[c], place, n_units, shape, up=False)
    return load


def price_pieces(
    costs: Costs,
    groups: Grid,
    pieces: Sequence[Piece],
    n_partials: Sequence[int],
    shape: str,
    root: int = -1,
) -> FloatArray:
    """Return the time of ``pieces`` of a message of ``costs.n_bytes`` units, (S,).

    For ``groups`` and ``n_partials`` see `load_of_pieces`. A rank first sends the data that needs
    no other data; until this has left, its partial results do not cross between clusters. The time
    between two groups is the busy time of the busier one, or of the links between them, plus the
    latency of the path. So groups that are near each other may be busy for longer.
    """
    load = load_of_pieces(costs.model.grid, groups, pieces, n_partials, shape, root)
    longest = max(piece.stop - piece.start for piece in pieces)
    n_segments = np.maximum(np.ceil(longest / costs.segment_bytes), 1)
    busy = _between_groups(groups, costs.model.grid, _busy_s(costs, load, shape, n_segments))
    inside, across = _path_times_s(costs, groups, n_segments, shape)
    homes = sorted({piece.home for piece in pieces})
    last = groups.cluster_of[root] if root >= 0 else -1

    def total_s(load_part: float, path_part: float) -> FloatArray:
        path_times = path_part * inside, path_part * across
        return np.asarray(
            np.max(
                [_through_home_s(load_part * busy, *path_times, home, last) for home in homes],
                axis=0,
            )
        )

    in_sequence_s = total_s(1.0, 1.0)
    if len(homes) == 1:
        return in_sequence_s
    # If pieces cross twice, half of the load crosses first, and the rest second.
    at_once = np.maximum(total_s(0.5, 1.0), total_s(1.0, 0.5))
    return np.asarray(at_once + (in_sequence_s - at_once) / n_segments**2)


def _busy_s(costs: Costs, load: PieceLoad, shape: str, n_segments: FloatArray) -> FloatArray:
    """Return how long any two clusters, or the links between them, are busy, (C, C, S)."""
    grid = costs.model.grid
    per_unit = costs.port_s / costs.segment_bytes
    cluster_of = np.zeros(len(load.at_once), dtype=int)
    cluster_of[list(grid.host_of)] = grid.cluster_of

    def busiest(by_host: FloatArray) -> FloatArray:
        """Return the time of each cluster's busiest host, (…, C, S), for host loads (…, H)."""
        by_cluster = np.zeros((len(per_unit), *by_host.shape[:-1]))
        np.maximum.at(by_cluster, cluster_of, by_host.T)
        return np.asarray(by_cluster.T[..., None] * per_unit)

    def either(by_cluster: FloatArray) -> FloatArray:
        """Return the time of the busier one of every two clusters, (…, C, C, S)."""
        both = by_cluster[..., :, None, :], by_cluster[..., None, :, :]
        return np.asarray(np.maximum(*both))

    by_phase = busiest(np.maximum(load.out, load.into))
    apart = _flows_busy_s(costs, load.flows)
    one_by_one = np.maximum(either(by_phase), apart).sum(axis=0)
    together = busiest(np.maximum(load.out.sum(axis=0), load.into.sum(axis=0)))
    if shape != "flat":  # messages from one peer arrive one after another
        together = together + by_phase[COLLECT]
    # Thin links need a small part of an interface, and get it regardless of its other sends.
    on_links = apart.sum(axis=0)
    needed = by_phase[[COMBINE, RETURN]].sum(axis=0)[:, None] / np.maximum(on_links, 1e-12)
    at_once = busiest(load.at_once)[:, None] * np.minimum(needed, 1.0)
    busy = np.maximum(either(together), np.where(on_links > 0, at_once + on_links, 0.0))
    if shape != "flat":  # so all wait for the slowest
        busy, one_by_one = (each.max(axis=(0, 1), keepdims=True) for each in (busy, one_by_one))
    busy = busy + np.maximum(one_by_one - busy, 0) / n_segments
    return np.broadcast_to(busy, on_links.shape)


def _between_groups(groups: Grid, grid: Grid, busy: FloatArray) -> FloatArray:
    """Return ``busy`` for any two of ``groups``, each of one cluster or several, (G, G, S)."""
    n = len(groups.clusters)
    if n == len(busy):
        return busy
    group_of = [groups.cluster_of[cluster.coordinator] for cluster in grid.clusters]
    found = np.zeros((n, n, busy.shape[-1]))
    np.maximum.at(found, tuple(np.ix_(group_of, group_of)), busy)
    within = np.einsum("iis->is", found)
    return np.asarray(np.maximum(found, np.maximum(within[:, None], within[None])))


def _through_home_s(
    busy: FloatArray, inside: FloatArray, across: FloatArray, home: int, last: int
) -> FloatArray:
    """Return the time through ``home``, or from all groups to all if it is `EVERYWHERE`, (S,).

    Results go to all groups, or only to ``last`` if that is not negative.
    """
    if home == EVERYWHERE:
        return np.asarray((busy + inside[:, None] + across + inside[None]).max(axis=(0, 1)))
    to_home_s = inside + across[:, home]
    back_s = across[home] + inside if last < 0 else across[home, last : last + 1]
    busy_back = busy[home] if last < 0 else busy[home, last : last + 1]
    return np.asarray(
        np.maximum(
            (busy[:, home] + to_home_s).max(axis=0) + back_s.max(axis=0),
            to_home_s.max(axis=0) + (busy_back + back_s).max(axis=0),
        )
    )


def _path_times_s(
    costs: Costs, groups: Grid, n_segments: FloatArray, shape: str
) -> tuple[FloatArray, FloatArray]:
    """Return the one-way time of a segment inside groups, (G, S), and between them, (G, G, S).

    Gaps that are counted as busy time are left out.
    """
    hop = costs.one_way_s - (costs.gap_s / n_segments if shape == "flat" else 0.0)
    n = len(groups.clusters)
    group_of = [groups.cluster_of[cluster.coordinator] for cluster in costs.model.grid.clusters]
    single_ranks = np.flatnonzero(costs.sizes == 1)
    hop[single_ranks, single_ranks] = 0.0
    if n == len(group_of):
        farthest = np.maximum(hop, 0.0)
    else:
        farthest = np.zeros((n, n, len(n_segments)))
        np.maximum.at(farthest, tuple(np.ix_(group_of, group_of)), hop)
    hops = [int(profile(shape, len(group)).latencies.max()) for group in groups.clusters]
    inside = np.array([hops[c] * farthest[c, c] for c in range(n)])
    return inside, farthest * (1 - np.eye(n))[:, :, None]


def _flows_busy_s(costs: Costs, flows: Sequence[Sequence[Flows]]) -> FloatArray:
    """Return the busy time of the busiest flow, or of the link, between two clusters.

    ``flows`` are those of each of P phases, and the result is a (P, C, C, S) array. If the
    aggregate bandwidth was not measured, each flow counts as independent.
    """
    grid, shape = costs.model.grid, (len(flows), costs.model.n_clusters, costs.model.n_clusters)
    every = [(np.full(len(s), p), s, r, n) for p, each in enumerate(flows) for s, r, n in each]
    if not every:
        return np.zeros((*shape, len(costs.segment_bytes)))
    *ends, n_units = (np.concatenate(each) for each in zip(*every, strict=True))
    pairs = (len(flows), grid.n_ranks, grid.n_ranks)
    found, which = np.unique(np.ravel_multi_index(ends, pairs), return_inverse=True)
    of_flow = np.bincount(which, n_units, len(found))
    phases, senders, receivers = np.unravel_index(found, pairs)
    cluster_of = np.array(grid.cluster_of)
    links = phases, cluster_of[senders], cluster_of[receivers]
    longest = np.zeros(shape)
    np.maximum.at(longest, links, of_flow)
    busiest = longest[..., None] * costs.gap_s / costs.segment_bytes
    if not costs.model.aggregate_bytes_per_s:
        return np.asarray(busiest)
    together = np.zeros(shape)
    np.add.at(together, links, of_flow)
    shared_s = together / costs.model.link_bytes_per_s
    uplinks = costs.model.uplinks
    passed_s = np.maximum(
        (together.sum(axis=2) / uplinks)[:, :, None], (together.sum(axis=1) / uplinks)[:, None]
    )
    shared_s = np.maximum(shared_s, np.where(together > 0, passed_s, 0.0))
    return np.asarray(np.maximum(busiest, shared_s[..., None]))


SHAPES_INSIDE = ("binomial", "flat", "chain", "binary")


Pieces = Callable[[int], list[Piece]]
"""Cuts a message of so many units into pieces."""


def costs_of(model: GridModel, n_bytes: int, longest_bytes: int) -> Costs:
    """Return the costs for segments of up to ``longest_bytes``."""
    return Costs(model, n_bytes, segment_sizes(max(longest_bytes, 1)))


def segment_units(n_units: int, segment_bytes: int, n_bytes: int) -> int:
    """Return the units per segment of a message whose size class has ``n_bytes``."""
    return max(-(-n_units * segment_bytes // max(n_bytes, 1)), 1)


def unit_bytes_of(n_units: int, n_bytes: int) -> float:
    """Return a lower bound of the size of an element: the size class may be a quarter larger."""
    return 2.0 ** math.floor(math.log2(max(n_bytes, 1) / max(n_units, 1)))


def piece_candidate(
    name: str,
    how: str,
    costs: Costs,
    grid: Grid,
    totals: FloatArray,
    pieces: Pieces,
    shape: str,
    *,
    all_send: bool,
) -> Candidate:
    """Return ``pieces`` at the segment size with the least of ``totals``.

    ``all_send``: whether all members of a cluster send to other clusters, or only one of them.
    """
    n_bytes = costs.n_bytes
    best = int(np.argmin(totals))
    segment = int(costs.segment_bytes[best])
    label = f"{how}; {format_size(segment)} segments"

    def build(n_units: int) -> Plan:
        size = segment_units(n_units, segment, n_bytes)
        plan = plan_allreduce(grid, n_units, pieces(n_units), size, shape, f"{name}: {label}")
        return paced_by_links(plan, costs.model, unit_bytes_of(n_units, n_bytes), all_send=all_send)

    ordered = keeps_rank_order(grid, pieces(n_bytes), shape)
    return Candidate(name, label, float(totals[best]), build, None, segment, ordered)
