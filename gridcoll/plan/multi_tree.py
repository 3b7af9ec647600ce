"""Several trees over a grid, each carrying some of the segments: logarithmic depth, full bandwidth.

In one binary tree every inner rank sends the message twice. In two trees, where the leaves of one
are the inner ranks of the other, each sends half of it twice, and no rank sends more than it
receives (Sanders, Speck and Träff 2009). More trees, each rotated by an equal part of its cluster's
hosts, also share the sends to other clusters: the entry of one of ``K`` trees sends its part of the
message to the entries of ``D`` other clusters, ``D / K`` of a message in all.

The vertices of a tree are hosts. On each host, one rank sends for the others in one tree, and
another rank in the next. A broadcast goes down all trees, a reduction up, and an allreduce up and
down at the same time.

An allreduce may also use trees over groups of clusters, each starting in a cluster of its group:
ranks at the tops exchange partial results. Only this exchange crosses the longest links, and only
once.

Where clusters are many and small, sends to other clusters count as much as those inside. The trees
then take two trees over clusters in turn: clusters with many others below them in one have few in
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from gridcoll.constants import LINK_PACE, PACE
from gridcoll.errors import PlanError
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.folding import Incoming, Slots, Term, fold_and_meet
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs, scratch_of_each
from gridcoll.plan.trees import cut_segments
from gridcoll.schedule.trees import find_tree
from gridcoll.topology.grid import Grid

Transfers = tuple[tuple[int, int], ...]


class Node(NamedTuple):
    """The neighbours of a rank in one tree. ``parent`` is -1 if there is none.

    If the rank is one of several tops that exchange results, ``meeting`` has all of these tops.
    """

    parent: int
    children: tuple[int, ...]
    meeting: tuple[int, ...] = ()


class Trees(Protocol):
    """Several trees over all ranks, and the tree that each segment takes."""

    @property
    def grid(self) -> Grid: ...
    @property
    def root(self) -> int: ...
    def tree_of(self, segment: int) -> int: ...
    def node(self, rank: int, tree: int) -> Node: ...


def first_host(tree: int, n_trees: int, n_hosts: int) -> int:
    """Return the host at which ``tree`` enters a cluster.

    Trees enter at all hosts equally often, as far apart as possible. If there are two trees, the
    first half of the hosts are the inner vertices of one, and the second half those of the other.
    """
    return tree * n_hosts // n_trees


class MultiTree(Struct, frozen=True, dict=True):
    """``n_trees`` trees over all ranks."""

    grid: Grid
    top: int
    """The cluster in which the trees start; one of several if there are groups of clusters."""
    transfers: Transfers
    """Pairs of clusters (sender, receiver), from ``top`` on; those of a sender in the order in
    which it sends. Trees start in all clusters that are not receivers."""
    shape: str
    """Shape over the hosts of every cluster, a name in `SHAPES`."""
    n_trees: int
    root: int = -1
    """The rank at which all trees start; -1 if each starts at another host of ``top``."""
    in_turn: tuple[Transfers, ...] = ()
    """Further trees over clusters with the same starts, which trees take in turn with the first."""

    @cached_property
    def over_clusters(self) -> tuple[Transfers, ...]:
        """All trees over clusters; the ``k``-th tree takes the one at ``k`` modulo their number."""
        return (self.transfers, *self.in_turn)

    @cached_property
    def _hosts(self) -> list[tuple[tuple[int, ...], ...]]:
        """``_hosts[cluster][vertex]``: the ranks of a host, for all hosts but the root's."""
        return [
            tuple(
                ranks
                for node in cluster.nodes
                if self.root not in (ranks := tuple(process.rank for process in node))
            )
            for cluster in self.grid.clusters
        ]

    @cached_property
    def _host_of(self) -> dict[int, int]:
        """For each rank, the index of its host in `_hosts`; ranks of the root's host have none."""
        return {
            rank: at for hosts in self._hosts for at, ranks in enumerate(hosts) for rank in ranks
        }

    @cached_property
    def _outgoing(self) -> list[list[list[int]]]:
        """For each tree over clusters, those to which each cluster sends."""
        found: list[list[list[int]]] = [
            [[] for _ in self.grid.clusters] for _ in self.over_clusters
        ]
        for outgoing, transfers in zip(found, self.over_clusters, strict=True):
            for sender, receiver in transfers:
                outgoing[sender].append(receiver)
        return found

    @cached_property
    def _parent_cluster(self) -> list[dict[int, int]]:
        """For each tree over clusters, the one from which each cluster receives."""
        return [
            {receiver: sender for sender, receiver in transfers} for transfers in self.over_clusters
        ]

    @cached_property
    def tops(self) -> tuple[int, ...]:
        """All clusters in which trees start."""
        return tuple(c for c in range(len(self.grid.clusters)) if c not in self._parent_cluster[0])

    def _sender(self, cluster: int, at: int, tree: int) -> int:
        """Return the rank that sends for host ``at`` of ``cluster`` in ``tree``."""
        ranks = self._hosts[cluster][at]
        return ranks[tree // len(self.over_clusters) % len(ranks)]

    def _first_host(self, cluster: int, tree: int) -> int:
        """Return the host at which ``tree`` enters ``cluster``.

        It is the same for one tree after another, until all trees over clusters have been taken.
        """
        n = len(self.over_clusters)
        return first_host(tree // n, self.n_trees // n, len(self._hosts[cluster]))

    def tree_of(self, segment: int) -> int:
        return segment % self.n_trees

    def entry(self, cluster: int, tree: int) -> int:
        """Return the rank at which ``tree`` enters ``cluster``, and which sends to others."""
        if not self._hosts[cluster]:
            return self.root
        return self._sender(cluster, self._first_host(cluster, tree), tree)

    def _exits(self, cluster: int, tree: int) -> tuple[int, ...]:
        outgoing = self._outgoing[tree % len(self.over_clusters)]
        return tuple(self.entry(other, tree) for other in outgoing[cluster])

    def node(self, rank: int, tree: int) -> Node:
        """Return the node of ``rank`` in ``tree``.

        A rank sends to other clusters first, and to ranks of its own host last.
        """
        cluster = self.grid.cluster_of[rank]
        hosts = self._hosts[cluster]
        if rank not in self._host_of:
            return self._at_root(rank, cluster, tree)
        n, at = len(hosts), self._host_of[rank]
        sender = self._sender(cluster, at, tree)
        if rank != sender:
            return Node(sender, ())
        first = self._first_host(cluster, tree)
        parents, children = find_tree(self.shape, n)
        vertex = (at - first) % n
        meeting: tuple[int, ...] = ()
        if vertex:
            parent = self._sender(cluster, (parents[vertex] + first) % n, tree)
            sends: tuple[int, ...] = ()
        else:
            sends = self._exits(cluster, tree)
            parent = self.root
            parent_cluster = self._parent_cluster[tree % len(self.over_clusters)]
            if cluster in parent_cluster:
                parent = self.entry(parent_cluster[cluster], tree)
            elif self.root < 0 and len(self.tops) > 1:
                meeting = tuple(self.entry(top, tree) for top in self.tops)
        inside = tuple(self._sender(cluster, (c + first) % n, tree) for c in children[vertex])
        mates = tuple(other for other in hosts[at] if other != rank)
        return Node(parent, sends + inside + mates, meeting)

    def _at_root(self, rank: int, cluster: int, tree: int) -> Node:
        """Return the node of a rank on the root's host.

        The root sends to the entry of its cluster. If there are no other hosts in the cluster, it
        sends to other clusters itself.
        """
        if rank != self.root:
            return Node(self.root, ())
        if self._hosts[cluster]:
            sends: tuple[int, ...] = (self.entry(cluster, tree),)
        else:
            sends = self._exits(cluster, tree)
        host = next(node for node in self.grid.clusters[cluster].nodes if self.root in _ranks(node))
        return Node(-1, sends + tuple(other for other in _ranks(host) if other != rank))


def _ranks(node: Sequence[tuple[int, str]]) -> tuple[int, ...]:
    return tuple(rank for rank, _ in node)


def plan_bcast_down(
    trees: Trees,
    n_units: int,
    segment_units: int,
    label: str = "",
    unit_s: float = 0.0,
    ahead_s: float = 0.0,
) -> Plan:
    """Broadcast from ``trees.root``: every segment goes down its tree.

    If ``unit_s`` is given, the root sends no faster than a unit each ``unit_s`` seconds, since
    queues before thin links would overflow. It may be ahead of that by ``ahead_s`` seconds.
    """
    if trees.root < 0:
        raise PlanError("broadcast down several trees: they have no common root")
    segments = cut_segments(n_units, max(segment_units, 1))

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        nodes = _nodes_of(trees, rank, len(segments))
        for tag, (start, stop) in enumerate(segments):
            tree = trees.tree_of(tag)
            chunk = Chunk("output", start, stop)
            if nodes[tree].parent >= 0:
                ops.append(Recv(nodes[tree].parent, chunk, tag, tree))
            due_s = start * unit_s * LINK_PACE - ahead_s if rank == trees.root else 0.0
            due_us = max(int(due_s * 1e6), 0)
            ops += [Send(child, chunk, tag, due_us=due_us) for child in nodes[tree].children]
        return tuple(ops)

    return Plan("bcast", label, n_units, trees.root, Programs(trees.grid.n_ranks, program_of))


def plan_reduce_up(
    trees: Trees, n_units: int, segment_units: int, label: str = "", unit_s: float = 0.0
) -> Plan:
    """Reduce to ``trees.root``: each segment goes up its tree and is combined on the way.

    If ``unit_s`` is given, a rank sends its own data no faster than a unit each ``unit_s`` seconds,
    since forwarded segments would have to queue behind it.
    """
    if trees.root < 0:
        raise PlanError("reduction up several trees: they have no common root")
    return _plan_up("reduce", trees, n_units, segment_units, label, unit_s)


def plan_allreduce_up_down(
    trees: Trees, n_units: int, segment_units: int, label: str = "", unit_s: float = 0.0
) -> Plan:
    """Reduce each segment up its tree; once complete, it goes down the same tree.

    Everything is combined once, so all ranks get the same bits. For ``unit_s`` see
    `plan_reduce_up`.
    """
    return _plan_up("allreduce", trees, n_units, segment_units, label, unit_s)


def _plan_up(
    collective: str, trees: Trees, n_units: int, segment_units: int, label: str, unit_s: float
) -> Plan:
    segments = cut_segments(n_units, max(segment_units, 1))
    down = collective == "allreduce"

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        nodes = _nodes_of(trees, rank, len(segments))
        slots = Slots(0, aligned=any(node.meeting for node in nodes.values()))
        for tag, (start, stop) in enumerate(segments):
            tree = trees.tree_of(tag)
            parent, children, meeting = nodes[tree]
            ours, result = Chunk("input", start, stop), Chunk("output", start, stop)
            top = parent < 0
            due_us = int(start * unit_s * PACE * 1e6)
            if children or top:
                into = result if down or top else slots(stop - start)
                terms: list[tuple[int, Term]] = [(rank, ours)]
                terms += [(child, Incoming(child, tag, 2 * tree)) for child in children]
                fold_and_meet(ops, terms, meeting, rank, tag, 2 * tree, into, slots, due_us)
                ours = into
            if not top:
                ops.append(Send(parent, ours, tag, due_us=due_us))
            if down:
                back = tag + len(segments)
                if not top:
                    ops.append(Recv(parent, result, back, 2 * tree + 1))
                ops += [Send(child, result, back) for child in children]
        return tuple(ops)

    n_ranks = trees.grid.n_ranks
    programs = Programs(n_ranks, program_of)
    scratch = scratch_of_each(programs)
    return Plan(collective, label, n_units, trees.root, programs, scratch)


def _nodes_of(trees: Trees, rank: int, n_segments: int) -> dict[int, Node]:
    used = dict.fromkeys(map(trees.tree_of, range(n_segments)))
    return {tree: trees.node(rank, tree) for tree in used}


def grow_tree(latency_s: FloatArray, top: int, most: Sequence[int]) -> Transfers:
    """Return a tree of short paths from ``top`` over all clusters.

    ``most[cluster]`` limits the number of children; one more is allowed where no other cluster may
    have any. Clusters are added in the order in which a message could reach them. A cluster sends
    first to the child with the longest path below it.
    """
    n = len(latency_s)
    parent = np.full(n, top)
    arrival = np.full(n, np.inf)
    arrival[top] = 0.0
    # From the best sender that may have more below; infinite once a cluster has been reached.
    reach = np.array(latency_s[top], dtype=float)
    reach[top] = np.inf
    left = np.ones(n, dtype=bool)
    left[top] = False
    spare = list(most)
    n_places = spare[top] = max(spare[top], 1)  # of all that may have more below
    order = [top]
    free = np.zeros(n, dtype=bool)
    free[top] = True
    for _ in range(n - 1):
        new = int(reach.argmin())
        if n_places == 1 and spare[new] < 1:
            fertile = left & (np.array(spare) > 0)
            if fertile.any():  # the last place must not go to a cluster that has none below it
                new = int(np.where(fertile, reach, np.inf).argmin())
        above = int(parent[new])
        arrival[new], left[new] = reach[new], False
        reach[new] = np.inf
        order.append(new)
        spare[above] -= 1
        n_places += max(spare[new], 0) - 1
        if not n_places:
            n_places = spare[new] = 1
        free[new] = spare[new] > 0
        if not spare[above]:
            free[above] = False
            orphans = np.flatnonzero(left & (parent == above))
            if len(orphans):
                senders = np.flatnonzero(free)
                arrivals = arrival[senders, None] + latency_s[np.ix_(senders, orphans)]
                parent[orphans] = senders[arrivals.argmin(axis=0)]
                reach[orphans] = arrivals.min(axis=0)
        if free[new]:
            via_new = arrival[new] + latency_s[new]
            nearer = left & (via_new < reach)
            parent[nearer], reach[nearer] = new, via_new[nearer]
    below = np.zeros(n)
    children: list[list[int]] = [[] for _ in range(n)]
    for cluster in reversed(order[1:]):
        above = int(parent[cluster])
        below[above] = max(below[above], below[cluster] + latency_s[above, cluster])
        children[above].append(cluster)
    found: list[tuple[int, int]] = []
    for cluster in order:
        ordered = sorted(children[cluster], key=_longest_first(cluster, latency_s, below))
        found += [(cluster, child) for child in ordered]
    return tuple(found)


def _longest_first(
    cluster: int, latency_s: FloatArray, below: FloatArray
) -> Callable[[int], tuple[float, int]]:
    return lambda child: (-float(latency_s[cluster, child] + below[child]), child)
