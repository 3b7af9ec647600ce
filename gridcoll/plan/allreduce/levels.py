"""Allreduce over all levels of a grid: hosts, clusters, sites, regions, then an exchange.

The message is cut into pieces. On every level somebody collects a piece: one rank for its host, one
host for its cluster, one cluster for its site. Those of the highest level exchange partial results,
and each combines all of them; then the result goes back the same way. Who collects takes turns, so
that all interfaces carry the same. Only the exchange crosses the longest ways, and only once.

Pieces are sent one after another, no faster than interfaces and thin links pass them: while the
first ones are under way between groups, the last ones are still collected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise

import numpy as np

from gridcoll.constants import ALL_BUT_AS_GOOD, PACE, SMALLEST_PIECE_BYTES, WINDOWS_LIMIT
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.allreduce.costs import unit_bytes_of
from gridcoll.plan.folding import Incoming, Slots, Term, fold, fold_and_meet
from gridcoll.plan.multi_tree import Node
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.pacing import paced_by_links
from gridcoll.plan.plan import ByRank, Plan, Program, Programs, scratch_of
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.plan.trees import SMALLEST_SEGMENT
from gridcoll.topology.grid import Grid
from gridcoll.topology.levels import Groups, join_nearest
from gridcoll.topology.units import format_size

LEVELS = "levels"

TURNS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Into how many pieces each host's part of the message may be cut."""

MOST_GROUPS = 16
"""That exchange partial results: each sends its own to all others."""

MOST_PIECES = 4096
MOST_AT_ONCE = 4096
"""Pieces of a message; and hosts of the largest cluster times clusters: with more, a host would
send to too many others, and several trees are as good."""

MOST_PRICED = 1 << 14
"""Pieces times clusters that are looked at to price all pieces."""


@dataclass(frozen=True)
class Levels:
    """Who collects each piece on which level.

    Attributes
    ----------
    grid : Grid
    tiers : tuple of Groups
        Partitions of the clusters, the first of single ones, each of groups of the one before.
        Groups of the last exchange.
    n_turns : int
        Pieces per host of the largest cluster.
    """

    grid: Grid
    tiers: tuple[Groups, ...]
    n_turns: int

    @cached_property
    def n_hosts(self) -> np.ndarray:
        """By cluster, (C,)."""
        return np.array([len(cluster.nodes) for cluster in self.grid.clusters])

    @cached_property
    def n_columns(self) -> int:
        return int(self.n_hosts.max())

    @property
    def n_pieces(self) -> int:
        return self.n_columns * self.n_turns

    @cached_property
    def _turned(self) -> np.ndarray:
        """The pieces numbered column by column, (Q,): they are sent turn by turn."""
        turn, column = np.divmod(np.arange(self.n_pieces), self.n_columns)
        return np.asarray(column * self.n_turns + turn)

    @cached_property
    def host_at(self) -> np.ndarray:
        """The place in its cluster of the host that collects each piece, (C, Q)."""
        return np.asarray(self.n_hosts[:, None] * self._turned // self.n_pieces)

    @cached_property
    def collectors(self) -> tuple[np.ndarray, ...]:
        """By tier, the cluster that collects for each cluster's group, (C, Q) each.

        Of a group, each group below collects as often as it has hosts.
        """
        pieces, n = np.arange(self.n_pieces), len(self.n_hosts)
        found = [np.repeat(np.arange(n)[:, None], self.n_pieces, axis=1)]
        most = [max(map(len, parts)) for parts in self.parts]
        period, stride = int(np.prod(most)), 1
        for tier, parts, n_most in zip(self.tiers[1:], self.parts, most, strict=True):
            part = (self._turned * stride % period + 0.5) / period
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
        """By tier but the first, by group: the groups of the tier before that it is made of."""
        return [
            [tuple(each for each in below if each[0] in group) for group in map(set, tier)]
            for below, tier in pairwise(self.tiers)
        ]

    def sender(self, cluster: int, piece: int, at: int = -1) -> int:
        """The rank that collects ``piece`` on host ``at`` of ``cluster``, or for all of it."""
        nodes = self.grid.clusters[cluster].nodes
        node = nodes[at if at >= 0 else int(self.host_at[cluster, piece])]
        return node[piece % len(node)].rank

    def node(self, rank: int, piece: int) -> Node:
        """Whom ``rank`` sends ``piece`` to, -1 for those who exchange; and from whom it has it.

        From the last to the first that gets it back: who is far, then hosts, ours after us.
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
        """The ranks that exchange partial results of ``piece``, by group."""
        last = self.collectors[-1]
        return [self.sender(int(last[group[0], piece]), piece) for group in self.tiers[-1]]

    @cached_property
    def _host_of(self) -> dict[int, int]:
        """By rank, the place of its host in its cluster."""
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
        """Pieces turn by turn; of a turn, first those that the host after ours collects.

        So not all hosts send to the same one at once.
        """
        cluster = self.grid.cluster_of[rank]
        n, first = self.n_columns, self.n_columns * self._host_of[rank] // self.n_hosts[cluster]
        turned = [(int(first) + k) % n for k in range(n)]
        return [turn * n + column for turn in range(self.n_turns) for column in turned]


def plan_levels(levels: Levels, n_units: int, label: str = "", unit_s: float = 0.0) -> Plan:
    """Allreduce of ``n_units`` elements; ranks send their own ones no faster than ``unit_s``."""
    bounds = [piece * n_units // levels.n_pieces for piece in range(levels.n_pieces + 1)]
    back = levels.n_pieces  # tags on the way down

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
    scratch = ByRank(n_ranks, lambda rank: scratch_of(programs[rank]))
    return Plan("allreduce", label, n_units, -1, programs, scratch)


@dataclass(frozen=True)
class Load:
    """Parts of the message through each host's interface and each flow between clusters.

    Attributes
    ----------
    out, into : (H,) arrays
        While pieces are collected and exchanged; on the way back it is the other way round, but
        for what is exchanged.
    met : (H,) array
        What is exchanged, which goes either way.
    flow, between : (C, C) arrays
        The busiest flow, and all together.
    """

    out: np.ndarray
    into: np.ndarray
    met: np.ndarray
    flow: np.ndarray
    between: np.ndarray


@lru_cache(maxsize=256)
def load_of(key: ModelKey, tiers: tuple[Groups, ...], n_turns: int) -> Load:
    """Of levels over the grid of ``key.model``."""
    levels = Levels(key.model.grid, tiers, n_turns)
    n, n_pieces = len(levels.n_hosts), levels.n_pieces
    first = np.cumsum(levels.n_hosts) - levels.n_hosts
    n_all = int(levels.n_hosts.sum())
    at = first[:, None] + levels.host_at
    pieces = np.arange(n_pieces)
    owned = np.bincount(at.reshape(-1), minlength=n_all).astype(float)
    out = n_pieces - owned
    into = owned * (np.repeat(levels.n_hosts, levels.n_hosts) - 1)
    met, pairs = np.zeros(n_all), []
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
        met += np.bincount(owners.reshape(-1), minlength=n_all) * (len(heads) - 1)
        both = owners[:, None] * n_all + owners[None]
        pairs.append(both[~np.eye(len(heads), dtype=bool)].reshape(-1))
    flow, between = np.zeros((n, n)), np.zeros((n, n))
    if pairs:
        which, counts = np.unique(np.concatenate(pairs), return_counts=True)
        cluster_of = np.repeat(np.arange(n), levels.n_hosts)
        links = cluster_of[which // n_all], cluster_of[which % n_all]
        np.maximum.at(flow, links, counts)
        np.add.at(between, links, counts)
    return Load(*(each / n_pieces for each in (out, into, met, flow, between)))


MIXED = 3
"""Pieces that the last one waits for, where what is collected, exchanged and handed out meets."""

MOST_LOOKED_AT = 64
"""Pieces whose ways are looked at; the others take as long."""


def price_levels(model: GridModel, levels: Levels, n_bytes: int) -> tuple[float, float]:
    """Seconds, and of these how long it takes to send all that is collected and exchanged."""
    n_pieces, key = levels.n_pieces, ModelKey(model)
    size = max(-(-n_bytes // n_pieces), 1)
    gaps_s, ways_s = model.gap_and_one_way_s(np.array([0.0, float(size)]))
    gap_s, way_s, home_s = gaps_s[:, :, 1], ways_s[:, :, 1], np.diagonal(ways_s[:, :, 0])
    port_s = np.diagonal(gap_s)
    looked_at = max(MOST_PRICED // (levels.n_columns * model.n_clusters), 1)
    n_turns = min(levels.n_turns, looked_at)
    load = load_of(key, levels.tiers, n_turns)
    by_host = n_pieces * np.repeat(port_s, levels.n_hosts)
    up_s = float(((np.maximum(load.out, load.into) + load.met) * by_host).max())
    busy_s = float(((load.out + load.into + load.met) * by_host).max())
    flows_s = float((load.flow * gap_s).max()) * n_pieces
    passed = np.maximum(load.between.sum(axis=0), load.between.sum(axis=1)) * n_bytes
    links_s = float((passed / model.uplinks).max())
    if model.aggregate_bytes_per_s:
        links_s = max(links_s, float((load.between * n_bytes / model.link_bytes_per_s).max()))
    slots = np.array([max(cluster.node_sizes) for cluster in levels.grid.clusters])
    mates_s = np.where(slots > 1, home_s + (slots - 2) * np.diagonal(gaps_s[:, :, 0]), 0.0)
    n_hosts = levels.n_hosts
    # Of a turn, a host collects as many pieces as its cluster has fewer hosts than the largest.
    turn_s = levels.n_columns / n_hosts * port_s
    inside_s = (n_hosts - 1) * turn_s - port_s + np.diagonal(way_s)
    inside_s = np.where(n_hosts > 1, inside_s, 0.0) + mates_s
    there_s = _way_s(Levels(model.grid, levels.tiers, n_turns), turn_s, way_s, inside_s)
    later = 1 - 1 / levels.n_turns
    there_s += min(levels.n_turns, MIXED) * float(turn_s.max())
    up_s = max(up_s, flows_s, links_s)
    # What crosses a link at once shares it: all pieces of a turn, too.
    up_later_s = max(later * up_s, (1 - 1 / n_pieces) * links_s)
    return max(there_s + up_later_s, max(busy_s, flows_s) + float(2 * inside_s.max())), up_s


def _way_s(levels: Levels, turn_s: FloatArray, way_s: FloatArray, inside_s: FloatArray) -> float:
    """From all ranks to all ranks, of a piece alone."""
    n = len(turn_s)
    some = np.arange(0, levels.n_pieces, -(-levels.n_pieces // MOST_LOOKED_AT))
    collectors = [each[:, some] for each in levels.collectors]
    every = np.arange(n)
    up_s = np.repeat(inside_s[:, None], len(some), axis=1)
    down_s: list[FloatArray] = [up_s]
    for tier, parts in enumerate(levels.parts, start=1):
        below, above = collectors[tier - 1], collectors[tier]
        others = np.zeros(n)
        for group, inside in zip(levels.tiers[tier], parts, strict=True):
            others[list(group)] = len(inside) - 1
        wait_s = np.maximum(others - 1, 0)[:, None] * turn_s[above]
        moved = below != above
        came_s = up_s + np.where(moved, way_s[below, above] + wait_s, 0.0)
        back_s = np.where(moved, way_s[above, below] + wait_s, 0.0)
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
    across_s = way_s[at[:, None], at[None]] + (len(heads) - 2) * turn_s[at][:, None]
    return float((before_s[:, None] + across_s + after_s[None]).max())


def _by_group(groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    """Clusters group by group, and where each group begins."""
    sizes = [len(group) for group in groups]
    return np.concatenate([np.array(group) for group in groups]), np.cumsum([0, *sizes[:-1]])


STEP = 4.0
"""A tier is so many times as wide as the one before."""


@lru_cache(maxsize=64)
def tiers_of(key: ModelKey) -> tuple[tuple[Groups, ...], ...]:
    """Tiers worth pricing: some numbers of groups that exchange, and below them groups that are
    nearer by `STEP`.
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
            if width <= below / STEP and len(inner) > len(tiers[0]):
                tiers.insert(0, inner)
                below = width
        if joined[0][1] not in tiers:
            tiers.insert(0, joined[0][1])
        found.append(tuple(tiers))
    return tuple(found)


def _fastest(model: GridModel, n_bytes: int) -> tuple[float, float, Levels] | None:
    """Seconds, seconds until all is sent up, and the levels; first by few numbers of turns.

    Of tiers that may turn out the best, the others are tried; the fewest pieces win.
    """
    columns = max(len(cluster.nodes) for cluster in model.grid.clusters)
    most = min(MOST_PIECES, n_bytes // SMALLEST_PIECE_BYTES)
    if columns * model.n_clusters > MOST_AT_ONCE:
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
    if flows_stop(model):
        all_tiers = tuple(tiers for tiers in all_tiers if len(tiers[-1]) > 1) or all_tiers
    tiers = min(all_tiers, key=lambda each: price(each, turns[at])[0])
    while True:  # downhill
        near = range(max(at - 2, 0), min(at + 3, len(turns)))
        best = min(near, key=lambda k: price(tiers, turns[k])[0])
        again = min(all_tiers, key=lambda each: price(each, turns[best])[0])
        if best == at and again == tiers:
            break
        if price(again, turns[best])[0] >= price(tiers, turns[at])[0]:
            break
        at, tiers = best, again
    enough_s = ALL_BUT_AS_GOOD * price(tiers, turns[at])[0]
    while at and price(tiers, turns[at - 1])[0] <= enough_s:
        at -= 1
    return price(tiers, turns[at])


def flows_stop(model: GridModel) -> bool:
    """Whether windows hold up flows between clusters.

    What goes to one collector and back then stops for round trips: 1 MiB over 80 ms was predicted
    at 77 % of what the walk through the network says. An exchange was not.
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
    # In one cluster there are no levels, and what hosts send at once queues longer than is priced.
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
