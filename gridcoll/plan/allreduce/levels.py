"""Allreduce over all levels of a grid: hosts, clusters, sites, regions, then an exchange.

The message is cut into pieces. On every level, one member collects a piece: a rank for its host, a
host for its cluster, a cluster for its site. The collectors of the highest level exchange partial
results, and each combines all of them. The result goes back along the same path. Members take turns
in collecting, so that all interfaces carry the same load. Only the exchange crosses the longest
paths, and only once.

Pieces are sent one after another, no faster than interfaces and thin links pass them. While the
first pieces travel between groups, the last ones are still collected.
"""

from __future__ import annotations

from functools import cache, cached_property, lru_cache
from itertools import pairwise

import numpy as np
from msgspec import Struct

from gridcoll.constants import PACE, SMALLEST_PIECE_BYTES, TIE_FACTOR, WINDOWS_LIMIT
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.allreduce.costs import unit_bytes_of
from gridcoll.plan.folding import Incoming, Slots, Term, fold, fold_and_meet
from gridcoll.plan.multi_tree import Node
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.pacing import paced_by_links
from gridcoll.plan.plan import Plan, Program, Programs, scratch_of_each
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.plan.trees import SMALLEST_SEGMENT
from gridcoll.topology.grid import Grid
from gridcoll.topology.levels import Groups, join_nearest
from gridcoll.topology.units import format_size

LEVELS = "levels"

TURNS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of pieces into which each host's part of the message may be cut."""

MOST_GROUPS = 16
"""Limit of groups that exchange partial results, since each sends its own to all others."""

MOST_PIECES = 4096
MOST_HOSTS_TIMES_CLUSTERS = 4096
"""Limits of the pieces of a message, and of the hosts of the largest cluster times the number of
clusters. With more, a host would send to too many others, and several trees are as good."""

MOST_PRICED = 1 << 14
"""Limit of pieces times clusters that are computed to price all pieces."""


class Levels(Struct, frozen=True, dict=True):
    """Which ranks collect each piece on which level.

    Attributes
    ----------
    grid : Grid
    tiers : tuple of Groups
        Partitions of the clusters. The groups of the first tier are single clusters; those of each
        later tier consist of groups of the one before. The groups of the last tier exchange.
    n_turns : int
        Pieces per host of the largest cluster.
    """

    grid: Grid
    tiers: tuple[Groups, ...]
    n_turns: int

    @cached_property
    def n_hosts(self) -> np.ndarray:
        """Number of hosts of each cluster, (C,)."""
        return np.array(self.grid.hosts_per_cluster)

    @cached_property
    def n_columns(self) -> int:
        return int(self.n_hosts.max())

    @property
    def n_pieces(self) -> int:
        return self.n_columns * self.n_turns

    @cached_property
    def _by_column(self) -> np.ndarray:
        """Number of each piece in order of columns, (Q,). Pieces are sent turn by turn."""
        turn, column = np.divmod(np.arange(self.n_pieces), self.n_columns)
        return np.asarray(column * self.n_turns + turn)

    @cached_property
    def host_at(self) -> np.ndarray:
        """The place in its cluster of the host that collects each piece, (C, Q)."""
        return np.asarray(self.n_hosts[:, None] * self._by_column // self.n_pieces)

    @cached_property
    def collectors(self) -> tuple[np.ndarray, ...]:
        """For each tier, the cluster that collects each piece for each cluster's group, (C, Q).

        Inside a group, the groups below it collect in proportion to their numbers of hosts.
        """
        pieces, n = np.arange(self.n_pieces), len(self.n_hosts)
        found = [np.repeat(np.arange(n)[:, None], self.n_pieces, axis=1)]
        most = [max(map(len, parts)) for parts in self.parts]
        period, stride = int(np.prod(most)), 1
        for tier, parts, n_most in zip(self.tiers[1:], self.parts, most, strict=True):
            part = (self._by_column * stride % period + 0.5) / period
            above = np.array(found[-1])
            for group, inside in zip(tier, parts, strict=True):
                if len(inside) > 1:
                    hosts = np.cumsum([self.n_hosts[list(each)].sum() for each in inside])
                    chosen = np.searchsorted(hosts, part * hosts[-1], side="right")
                    first = np.array([each[0] for each in inside])
                    above[list(group)] = found[-1][first[chosen], pieces]
            found.append(above)
            stride *= n_most
        return tuple(found)

    @cached_property
    def parts(self) -> list[list[Groups]]:
        """For each tier but the first and each of its groups, the groups below that form it."""
        return [
            [tuple(each for each in below if each[0] in group) for group in map(set, tier)]
            for below, tier in pairwise(self.tiers)
        ]

    def sender(self, cluster: int, piece: int, at: int = -1) -> int:
        """Return the rank that collects ``piece`` on host ``at`` of ``cluster``.

        Without ``at``, it is the rank that collects it for the whole cluster.
        """
        nodes = self.grid.clusters[cluster].nodes
        node = nodes[at if at >= 0 else int(self.host_at[cluster, piece])]
        return node[piece % len(node)].rank

    def node(self, rank: int, piece: int) -> Node:
        """Return the parent of ``rank`` for ``piece``, -1 if it exchanges, and its children.

        Children are in reverse of the order in which they get the result: ranks of the own host
        first, then other hosts, then other clusters.
        """
        cluster = self.grid.cluster_of[rank]
        nodes = self.grid.clusters[cluster].nodes
        at = self._host_of[rank]
        sender = self.sender(cluster, piece, at)
        if rank != sender:
            return Node(sender, ())
        children = [process.rank for process in nodes[at] if process.rank != rank]
        owner = int(self.host_at[cluster, piece])
        if at != owner:
            return Node(self.sender(cluster, piece), tuple(children))
        n = len(nodes)
        children += [self.sender(cluster, piece, (owner + k) % n) for k in range(n - 1, 0, -1)]
        for tier, parts in enumerate(self.parts, start=1):
            above = int(self.collectors[tier][cluster, piece])
            if above != cluster:
                return Node(self.sender(above, piece), tuple(children))
            group = self._group_of[tier][cluster]
            below = [int(self.collectors[tier - 1][each[0], piece]) for each in parts[group]]
            own = below.index(cluster)
            children += [self.sender(c, piece) for c in reversed(below[own + 1 :] + below[:own])]
        return Node(-1, tuple(children))

    def meeting(self, piece: int) -> list[int]:
        """Return the rank of each group that exchanges partial results of ``piece``."""
        last = self.collectors[-1]
        return [self.sender(int(last[group[0], piece]), piece) for group in self.tiers[-1]]

    @cached_property
    def _host_of(self) -> dict[int, int]:
        """For each rank, the place of its host in its cluster."""
        return {
            process.rank: at
            for cluster in self.grid.clusters
            for at, node in enumerate(cluster.nodes)
            for process in node
        }

    @cached_property
    def _group_of(self) -> list[dict[int, int]]:
        return [
            {cluster: at for at, group in enumerate(tier) for cluster in group}
            for tier in self.tiers
        ]

    def order(self, rank: int) -> list[int]:
        """Return the pieces turn by turn, each turn beginning at about those of our own host.

        So hosts do not all send to the same one at once.
        """
        cluster = self.grid.cluster_of[rank]
        n, first = self.n_columns, self.n_columns * self._host_of[rank] // self.n_hosts[cluster]
        turned = [(int(first) + k) % n for k in range(n)]
        return [turn * n + column for turn in range(self.n_turns) for column in turned]


def plan_levels(levels: Levels, n_units: int, label: str = "", unit_s: float = 0.0) -> Plan:
    """Return an allreduce of ``n_units`` elements.

    Ranks send partial results up at most one unit per ``unit_s`` seconds.
    """
    bounds = [piece * n_units // levels.n_pieces for piece in range(levels.n_pieces + 1)]
    back = levels.n_pieces  # added to the tags of results

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        slots = Slots(0, aligned=True)
        n_sent = 0
        for piece in levels.order(rank):
            start, stop = bounds[piece], bounds[piece + 1]
            if start == stop:
                continue
            node, stream = levels.node(rank, piece), 2 * (piece % levels.n_columns)
            ours, result = Chunk("input", start, stop), Chunk("output", start, stop)
            terms: list[tuple[int, Term]] = [(rank, ours)]
            terms += [(child, Incoming(child, piece, stream)) for child in node.children]
            if node.parent >= 0:
                if node.children:
                    fold(ops, terms, result, slots)
                    ours = result
                ops.append(Send(node.parent, ours, piece, due_us=int(n_sent * unit_s * 1e6)))
                ops.append(Recv(node.parent, result, piece + back, stream + 1))
            else:
                meeting = levels.meeting(piece)
                fold_and_meet(ops, terms, meeting, rank, piece, stream, result, slots)
            ops += [Send(child, result, piece + back) for child in reversed(node.children)]
            n_sent += stop - start
        return tuple(ops)

    n_ranks = levels.grid.n_ranks
    programs = Programs(n_ranks, program_of)
    scratch = scratch_of_each(programs)
    return Plan("allreduce", label, n_units, -1, programs, scratch)


class Load(Struct, frozen=True):
    """Load of hosts' interfaces and of flows between clusters, as multiples of the message.

    Attributes
    ----------
    out, into : (H,) arrays
        Load while pieces are collected. While results are distributed, the two are interchanged.
    exchanged : (H,) array
        Load of the exchange, which is the same in both directions.
    flow, between : (C, C) arrays
        Load of the busiest flow between two clusters, and of all flows together.
    """

    out: np.ndarray
    into: np.ndarray
    exchanged: np.ndarray
    flow: np.ndarray
    between: np.ndarray


@lru_cache(maxsize=256)
def load_of(key: ModelKey, tiers: tuple[Groups, ...], n_turns: int) -> Load:
    """Return the load of levels over the grid of ``key.model``."""
    levels = Levels(key.model.grid, tiers, n_turns)
    n, n_pieces = len(levels.n_hosts), levels.n_pieces
    first = np.cumsum(levels.n_hosts) - levels.n_hosts
    n_all = int(levels.n_hosts.sum())
    at = first[:, None] + levels.host_at
    pieces = np.arange(n_pieces)
    owned = np.bincount(at.reshape(-1), minlength=n_all).astype(float)
    out = n_pieces - owned
    into = owned * (np.repeat(levels.n_hosts, levels.n_hosts) - 1)
    exchanged, pairs = np.zeros(n_all), []
    for tier, parts in enumerate(levels.parts, start=1):
        heads = np.array([each[0] for inside in parts if len(inside) > 1 for each in inside])
        if not len(heads):
            continue
        below, above = levels.collectors[tier - 1][heads], levels.collectors[tier][heads]
        moved = below != above
        ends = [
            at[cluster[moved], np.broadcast_to(pieces, moved.shape)[moved]]
            for cluster in (below, above)
        ]
        out += np.bincount(ends[0], minlength=n_all)
        into += np.bincount(ends[1], minlength=n_all)
        pairs.append(ends[0] * n_all + ends[1])
    heads = np.array([group[0] for group in levels.tiers[-1]])
    owners = at[levels.collectors[-1][heads], pieces[None]]
    if len(heads) > 1:
        exchanged += np.bincount(owners.reshape(-1), minlength=n_all) * (len(heads) - 1)
        both = owners[:, None] * n_all + owners[None]
        pairs.append(both[~np.eye(len(heads), dtype=bool)].reshape(-1))
    flow, between = np.zeros((n, n)), np.zeros((n, n))
    if pairs:
        which, counts = np.unique(np.concatenate(pairs), return_counts=True)
        cluster_of = np.repeat(np.arange(n), levels.n_hosts)
        links = cluster_of[which // n_all], cluster_of[which % n_all]
        np.maximum.at(flow, links, counts)
        np.add.at(between, links, counts)
    return Load(*(each / n_pieces for each in (out, into, exchanged, flow, between)))


PIECES_AHEAD = 3
"""Pieces for which the last one waits, as collecting, exchanging and distributing overlap."""

MOST_SAMPLED_PIECES = 64
"""Limit of pieces whose paths are computed. The others take as long."""


def price_levels(model: GridModel, levels: Levels, n_bytes: int) -> tuple[float, float]:
    """Return the seconds, and the seconds until all that is collected and exchanged is sent."""
    n_pieces, key = levels.n_pieces, ModelKey(model)
    size = max(-(-n_bytes // n_pieces), 1)
    gaps_s, times_s = model.gap_and_one_way_s(np.array([0.0, float(size)]))
    gap_s, one_way_s, host_s = gaps_s[:, :, 1], times_s[:, :, 1], np.diagonal(times_s[:, :, 0])
    port_s = np.diagonal(gap_s)
    n_sampled = max(MOST_PRICED // (levels.n_columns * model.n_clusters), 1)
    n_turns = min(levels.n_turns, n_sampled)
    load = load_of(key, levels.tiers, n_turns)
    by_host = n_pieces * np.repeat(port_s, levels.n_hosts)
    up_s = float(((np.maximum(load.out, load.into) + load.exchanged) * by_host).max())
    busy_s = float(((load.out + load.into + load.exchanged) * by_host).max())
    flows_s = float((load.flow * gap_s).max()) * n_pieces
    uplink_bytes = np.maximum(load.between.sum(axis=0), load.between.sum(axis=1)) * n_bytes
    links_s = float((uplink_bytes / model.uplinks).max())
    if model.aggregate_bytes_per_s:
        links_s = max(links_s, float((load.between * n_bytes / model.link_bytes_per_s).max()))
    slots = np.array([max(cluster.node_sizes) for cluster in levels.grid.clusters])
    same_host_s = np.where(slots > 1, host_s + (slots - 2) * np.diagonal(gaps_s[:, :, 0]), 0.0)
    n_hosts = levels.n_hosts
    # In a turn, a host collects ``n_columns / n_hosts`` pieces on average.
    turn_s = levels.n_columns / n_hosts * port_s
    inside_s = (n_hosts - 1) * turn_s - port_s + np.diagonal(one_way_s)
    inside_s = np.where(n_hosts > 1, inside_s, 0.0) + same_host_s
    path_s = _path_s(Levels(model.grid, levels.tiers, n_turns), turn_s, one_way_s, inside_s)
    later_part = 1 - 1 / levels.n_turns
    path_s += min(levels.n_turns, PIECES_AHEAD) * float(turn_s.max())
    up_s = max(up_s, flows_s, links_s)
    # Messages that cross a link at once share it, also all pieces of a turn.
    up_later_s = max(later_part * up_s, (1 - 1 / n_pieces) * links_s)
    return max(path_s + up_later_s, max(busy_s, flows_s) + float(2 * inside_s.max())), up_s


def _path_s(
    levels: Levels, turn_s: FloatArray, one_way_s: FloatArray, inside_s: FloatArray
) -> float:
    """Return the time of a single piece from all ranks to all ranks."""
    n = len(turn_s)
    sampled = np.arange(0, levels.n_pieces, -(-levels.n_pieces // MOST_SAMPLED_PIECES))
    collectors = [each[:, sampled] for each in levels.collectors]
    every = np.arange(n)
    up_s = np.repeat(inside_s[:, None], len(sampled), axis=1)
    down_s: list[FloatArray] = [up_s]
    for tier, parts in enumerate(levels.parts, start=1):
        below, above = collectors[tier - 1], collectors[tier]
        others = np.zeros(n)
        for group, inside in zip(levels.tiers[tier], parts, strict=True):
            others[list(group)] = len(inside) - 1
        wait_s = np.maximum(others - 1, 0)[:, None] * turn_s[above]
        moved = below != above
        came_s = up_s + np.where(moved, one_way_s[below, above] + wait_s, 0.0)
        back_s = np.where(moved, one_way_s[above, below] + wait_s, 0.0)
        down_s.append(back_s)
        order, starts = _by_group(levels.tiers[tier])
        most = np.maximum.reduceat(came_s[order], starts, axis=0)
        up_s = np.empty_like(came_s)
        up_s[order] = np.repeat(most, np.diff([*starts, n]), axis=0)
    after_s = np.sum(down_s, axis=0)
    order, starts = _by_group(levels.tiers[-1])
    if len(starts) == 1:
        return float((up_s + after_s).max())
    after_s = np.maximum.reduceat(after_s[order], starts, axis=0)
    heads = every[order][starts]
    at, before_s = collectors[-1][heads], up_s[heads]
    across_s = one_way_s[at[:, None], at[None]] + (len(heads) - 2) * turn_s[at][:, None]
    return float((before_s[:, None] + across_s + after_s[None]).max())


def _by_group(groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    """Return the clusters group by group, and where each group begins."""
    sizes = [len(group) for group in groups]
    return np.concatenate([np.array(group) for group in groups]), np.cumsum([0, *sizes[:-1]])


TIER_RATIO = 4.0
"""Each tier is at least this times as wide as the one before, in latency."""


@lru_cache(maxsize=64)
def tiers_of(key: ModelKey) -> tuple[tuple[Groups, ...], ...]:
    """Return the tiers worth pricing.

    They have different numbers of groups that exchange. The groups of each tier below are nearer
    by a factor of `TIER_RATIO`.
    """
    joined = join_nearest(key.model.latency_s)
    found = []
    last = 2 * MOST_GROUPS
    for widest, groups in joined:
        if len(groups) > min(MOST_GROUPS, last // 2):
            continue
        last = len(groups)
        tiers, below = [groups], widest
        for width, inner in reversed(joined):
            if width <= below / TIER_RATIO and len(inner) > len(tiers[0]):
                tiers.insert(0, inner)
                below = width
        if joined[0][1] not in tiers:
            tiers.insert(0, joined[0][1])
        found.append(tuple(tiers))
    return tuple(found)


def _fastest(model: GridModel, n_bytes: int) -> tuple[float, float, Levels] | None:
    """Return the seconds, the seconds until all is sent up, and the levels; None if none fits.

    Tiers and numbers of turns are searched in turn, downhill. Among numbers of turns that are
    nearly as fast, the one with the fewest pieces is taken.
    """
    columns = max(model.grid.hosts_per_cluster)
    most = min(MOST_PIECES, n_bytes // SMALLEST_PIECE_BYTES)
    if columns * model.n_clusters > MOST_HOSTS_TIMES_CLUSTERS:
        return None
    turns = [n for n in TURNS if n * columns <= most]
    turns = [n for n in turns if n == 1 or n_bytes >= SMALLEST_SEGMENT * n * columns]

    @cache
    def price(tiers: tuple[Groups, ...], n_turns: int) -> tuple[float, float, Levels]:
        levels = Levels(model.grid, tiers, n_turns)
        return (*price_levels(model, levels, n_bytes), levels)

    if not turns:
        return None
    all_tiers, at = tiers_of(ModelKey(model)), len(turns) // 2
    if windows_hold_up_flows(model):
        all_tiers = tuple(tiers for tiers in all_tiers if len(tiers[-1]) > 1) or all_tiers
    tiers = min(all_tiers, key=lambda each: price(each, turns[at])[0])
    while True:  # go downhill
        nearby = range(max(at - 2, 0), min(at + 3, len(turns)))
        best = min(nearby, key=lambda k: price(tiers, turns[k])[0])
        best_tiers = min(all_tiers, key=lambda each: price(each, turns[best])[0])
        if best == at and best_tiers == tiers:
            break
        if price(best_tiers, turns[best])[0] >= price(tiers, turns[at])[0]:
            break
        at, tiers = best, best_tiers
    enough_s = TIE_FACTOR * price(tiers, turns[at])[0]
    while at and price(tiers, turns[at - 1])[0] <= enough_s:
        at -= 1
    return price(tiers, turns[at])


def windows_hold_up_flows(model: GridModel) -> bool:
    """Whether TCP windows hold up flows between clusters.

    Data that goes to one collector and back then stops for round trips: for 1 MiB over 80 ms, the
    prediction was 77 % of the simulated time. The prediction of an exchange was not too low.
    """
    flows, alone = model.flow_bytes_per_s, model.flow_bytes_per_s.diagonal()
    return bool((np.minimum.outer(alone, alone) > WINDOWS_LIMIT * flows).any())


@algorithm(
    "allreduce",
    LEVELS,
    "middle sizes: hosts, clusters, sites and regions collect, and one exchange over long ways",
    "gridcoll; hierarchical reduce-scatter and allgather, of any depth",
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    # One cluster has no levels, and what its hosts send at once queues longer than is priced.
    if model.n_clusters == 1:
        return []
    fastest = _fastest(model, n_bytes)
    if fastest is None:
        return []
    total_s, up_s, levels = fastest
    above = [len(tier) for tier in levels.tiers[1:]]
    label = " of ".join([f"{model.n_clusters} clusters", *(f"{n} groups" for n in above)])
    label += f", {levels.n_pieces} pieces of {format_size(max(n_bytes // levels.n_pieces, 1))}"

    def build(n_units: int) -> Plan:
        unit_s = PACE * up_s / max(n_units, 1) if levels.n_turns > 1 else 0.0
        plan = plan_levels(levels, n_units, f"{LEVELS}: {label}", unit_s)
        return paced_by_links(plan, model, unit_bytes_of(n_units, n_bytes), all_send=True)

    segment = max(n_bytes // levels.n_pieces, 1)
    return [Candidate(LEVELS, label, total_s, build, segment_bytes=segment)]
