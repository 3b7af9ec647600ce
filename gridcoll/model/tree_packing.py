"""Finds trees over hosts, and a share of the message for each, with no resource busy for long.

In the steady state a broadcast, a reduction or an allreduce is a fractional packing of trees
(Edmonds 1973; Beaumont, Legrand, Marchal and Robert 2005 for unlike platforms). Hosts of a cluster
are alike and take turns, so only a tree's total load on all interfaces of a cluster counts, and its
load on each link. An allreduce goes up a tree and down again: an edge costs both ends the same, in
both directions, and the cheapest tree is a minimum spanning tree. A broadcast has a root, an edge
costs its sender, and the cheapest tree is an arborescence.

The linear program has a column per tree. Columns are generated when needed (Gilmore and Gomory
1961): the simplex method gives a price to each interface and link, and the cheapest tree at those
prices becomes a column, until no tree is cheaper than those already there. Trees with short paths
come first; the search with longer paths starts from their result. As hosts of a kind are alike,
trees are grown over kinds: first one host of each kind, then the other hosts of each kind with a
common parent. Sums and products of whole arrays are written out, because a library may round them
differently on another processor: all ranks must find the same trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from gridcoll.model.arborescence import cheapest_arborescence, shortest_paths
from gridcoll.model.plogp import FloatArray

TOLERANCE = 0.003
"""The result is at most this fraction above the optimum if paths are not limited."""

MOST_PIVOTS = 3000

MOST_TOPS = 4
"""Trees with limited path lengths are grown from this many kinds of hosts, the most central."""


class Platform(Struct, frozen=True):
    """Kinds of hosts; hosts of a kind are alike. All fields are hashable, for use as a key."""

    counts: tuple[int, ...]
    clusters: tuple[int, ...]
    """By kind: the number of hosts, and their cluster."""
    rates: tuple[float, ...]
    """By kind: bytes per second of each host's interface."""
    links: tuple[tuple[float, ...], ...]
    """Bytes per second between clusters, of all flows in one direction together."""
    uplinks: tuple[float, ...]
    """By cluster: bytes per second of all outgoing flows, and also of all incoming flows."""
    hops_s: tuple[tuple[float, ...], ...]
    """The time of a short message between clusters."""
    root: int = -1
    """The kind, of one host, that is the root of all trees; -1 for trees used up and down."""

    @property
    def kind_of(self) -> tuple[int, ...]:
        """The kind of each host. Hosts of a kind are consecutive."""
        return tuple(kind for kind, count in enumerate(self.counts) for _ in range(count))


class HostTree(Struct, frozen=True):
    """The parent of each host, -1 at the top."""

    parents: tuple[int, ...]


class Packing(Struct, frozen=True):
    """Trees, the share of the message for each, and the time of the busiest resource per byte.

    ``least_s`` is a lower bound of ``busy_s`` for any trees, 0 if not known. The receiving
    interfaces of a broadcast count in both.
    """

    trees: tuple[HostTree, ...]
    shares: tuple[float, ...]
    busy_s: float
    least_s: float


class _KindTree(Struct, frozen=True):
    """A tree over kinds: for each, the parent of its first host, -1 at the top, and of its others.

    ``others`` is -1 for a kind of one host.
    """

    above: tuple[int, ...]
    others: tuple[int, ...]


class IdleTimes(Struct, frozen=True):
    """How long resources are idle, whatever trees are chosen; indexed as in `Platform`."""

    kinds_s: tuple[float, ...]
    """Interfaces, by kind."""
    links_s: tuple[tuple[float, ...], ...]
    leaves_s: tuple[float, ...]
    enters_s: tuple[float, ...]
    """Uplinks, outgoing and incoming."""


class _Network:
    """The load that trees put on resources: interfaces by kind, and limiting links and uplinks.

    Loads are in seconds for ``n_bytes``. Idle time counts as load.
    """

    def __init__(
        self, platform: Platform, n_bytes: float = 1.0, idle: IdleTimes | None = None
    ) -> None:
        self.platform = platform
        self.both_ways = platform.root < 0
        self.counts = platform.counts
        self.n_kinds = len(platform.counts)
        clusters = np.array(platform.clusters)
        n = len(platform.links)
        links, uplinks = np.array(platform.links), np.array(platform.uplinks)
        if self.both_ways:
            links = np.minimum(links, links.T)
        capacity = np.array(platform.counts) * np.array(platform.rates)
        together = np.zeros(n)
        np.add.at(together, clusters, capacity)
        self.hops = np.array(platform.hops_s)[np.ix_(clusters, clusters)].tolist()
        # Links and uplinks that carry as much as the interfaces behind them can never limit.
        senders = np.broadcast_to(together[:, None], (n, n))
        ends = np.minimum(senders, senders.T) if self.both_ways else senders
        use_s = (n_bytes / capacity).tolist()
        idle_s = list(idle.kinds_s) if idle else [0.0] * self.n_kinds

        def row(rate: float, enough: float, row_idle_s: float) -> int:
            """Add a resource; return its row, or -1 if ``enough`` shows that it never limits."""
            if rate >= enough * (1 - 1e-9):
                return -1
            use_s.append(n_bytes / rate)
            idle_s.append(row_idle_s)
            return len(use_s) - 1

        zeros = np.zeros((n, n))
        links_s = np.array(idle.links_s) if idle else zeros
        leaves_s = np.array(idle.leaves_s) if idle else zeros[0]
        enters_s = np.array(idle.enters_s) if idle else zeros[0]
        of_link = np.full((n, n), -1)
        for a in range(n):
            for b in range(n):
                if self.both_ways and b < a:
                    of_link[a, b] = of_link[b, a]
                elif a != b:
                    of_link[a, b] = row(links[a, b], ends[a, b], links_s[a, b])
        leaves = np.array([row(uplinks[c], together[c], leaves_s[c]) for c in range(n)])
        # With trees used up and down, as much data enters a cluster as leaves it.
        enters = leaves
        if not self.both_ways:
            enters = np.array([row(uplinks[c], together[c], enters_s[c]) for c in range(n)])
        self.n_rows = len(use_s)
        self.idle_s = np.array(idle_s)
        self.use_s = np.array([*use_s, 0.0])
        # The resources that each edge loads, -1 for none: one (K, K) array each for the sender,
        # the link, the uplinks, and the receiver of trees used up and down.
        out, into = clusters[:, None], clusters[None, :]
        apart = np.not_equal(out, into)
        sender = np.broadcast_to(np.arange(self.n_kinds)[:, None], apart.shape)
        used = [
            sender,
            np.where(apart, of_link[out, into], -1),
            np.where(apart, leaves[out], -1),
            np.where(apart, enters[into], -1),
        ]
        if self.both_ways:
            used.append(sender.T)
        self.used = np.array([np.broadcast_to(each, apart.shape) for each in used])
        self._used = [
            [[int(r) for r in self.used[:, p, c] if r >= 0] for c in range(self.n_kinds)]
            for p in range(self.n_kinds)
        ]

    @property
    def floor_s(self) -> float:
        """Time per byte of the slowest receiving interface of a broadcast: a lower bound."""
        if self.both_ways:
            return 0.0
        return max(
            1 / rate for k, rate in enumerate(self.platform.rates) if k != self.platform.root
        )

    def edge_costs(self, prices: FloatArray) -> list[list[float]]:
        """Return the cost of each edge, (K, K), at ``prices`` per second of each resource."""
        per_use = np.append(prices, 0.0) * self.use_s
        total = np.zeros((self.n_kinds, self.n_kinds))
        for resource in self.used:
            total = total + per_use[resource]
        found: list[list[float]] = total.tolist()
        return found

    def loads(self, tree: _KindTree) -> FloatArray:
        """Return the load of each resource in seconds, idle time included."""
        counts = [0.0] * self.n_rows
        for kind, (above, others) in enumerate(zip(tree.above, tree.others, strict=True)):
            if above >= 0:
                for resource in self._used[above][kind]:
                    counts[resource] += 1
            if others >= 0:
                for resource in self._used[others][kind]:
                    counts[resource] += self.counts[kind] - 1
        return np.asarray(np.array(counts) * self.use_s[:-1] + self.idle_s)

    def cheapest(self, costs: list[list[float]], most_s: float) -> _KindTree | None:
        """Return a tree of least cost whose hosts are at most ``most_s`` from its top.

        With a finite limit this is a heuristic; None if it finds no tree.
        """
        root = self.platform.root
        if most_s == np.inf and not self.both_ways:
            above = cheapest_arborescence(costs, root)
            return self._with_others(costs, above, [0.0] * self.n_kinds, most_s)
        best: tuple[float, _KindTree] | None = None
        for top in self._tops(most_s):
            tree = self._grow(costs, top, most_s)
            if tree:
                cost = self.cost(costs, tree)
                if best is None or cost < best[0]:
                    best = cost, tree
        return best[1] if best else None

    def cost(self, costs: list[list[float]], tree: _KindTree) -> float:
        """Return the sum of ``costs`` over the edges of ``tree``."""
        total = 0.0
        for kind, (above, others) in enumerate(zip(tree.above, tree.others, strict=True)):
            if above >= 0:
                total += costs[above][kind]
            if others >= 0:
                total += costs[others][kind] * (self.counts[kind] - 1)
        return total

    def _tops(self, most_s: float) -> list[int]:
        """Return the kinds from which trees are grown."""
        if not self.both_ways:
            return [self.platform.root]
        if most_s == np.inf:
            return [0]
        farthest = shortest_paths(np.array(self.hops)).max(axis=1).tolist()
        near = sorted(range(self.n_kinds), key=lambda k: (farthest[k], k))
        return [k for k in near if farthest[k] <= most_s][:MOST_TOPS]

    def _grow(self, costs: list[list[float]], top: int, most_s: float) -> _KindTree | None:
        """Grow a tree from ``top`` by Prim's algorithm; ties go to the edge with the shorter path.

        None if some kind is farther than ``most_s`` on all paths that are tried.
        """
        n, hops = self.n_kinds, self.hops
        above, depth = [-1] * n, [0.0] * n
        left = [k for k in range(n) if k != top]
        open_cost = [costs[top][k] if hops[top][k] <= most_s else np.inf for k in range(n)]
        open_depth, open_parent = list(hops[top]), [top] * n
        while left:
            least = min(open_cost[k] for k in left)
            if least == np.inf:
                return None
            tied = least * (1 + 1e-9) + 1e-18
            new = min((k for k in left if open_cost[k] <= tied), key=lambda k: open_depth[k])
            left.remove(new)
            above[new], depth[new] = open_parent[new], open_depth[new]
            for k in left:
                new_depth = depth[new] + hops[new][k]
                if new_depth > most_s:
                    continue
                cost, before = costs[new][k], open_cost[k]
                is_tie = abs(cost - before) <= 1e-9 * before + 1e-18 if before < np.inf else False
                if new_depth < open_depth[k] if is_tie else cost < before:
                    open_cost[k], open_depth[k], open_parent[k] = cost, new_depth, new
        return self._with_others(costs, above, depth, most_s)

    def _with_others(
        self, costs: list[list[float]], above: Sequence[int], depth: Sequence[float], most_s: float
    ) -> _KindTree:
        """Add the other hosts of each kind below their cheapest parent, of these the nearest."""
        others = [-1] * self.n_kinds
        for kind, count in enumerate(self.counts):
            if count > 1:
                depths = [depth[k] + self.hops[k][kind] for k in range(self.n_kinds)]
                near = [k for k in range(self.n_kinds) if depths[k] <= most_s]
                tied = min(costs[k][kind] for k in near) * (1 + 1e-9) + 1e-18
                cheap = [k for k in near if costs[k][kind] <= tied]
                others[kind] = min(cheap, key=lambda k: depths[k])
        return _KindTree(tuple(above), tuple(others))

    def hosts_of(self, tree: _KindTree) -> HostTree:
        """Return ``tree`` over hosts; a tree used up and down gets its top in the middle."""
        firsts = np.concatenate([[0], np.cumsum(self.counts)[:-1]]).tolist()
        parents: list[int] = []
        for kind, count in enumerate(self.counts):
            above, others = tree.above[kind], tree.others[kind]
            parents.append(firsts[above] if above >= 0 else -1)
            parents += [firsts[others]] * (count - 1)
        return self._centred(parents) if self.both_ways else HostTree(tuple(parents))

    def _centred(self, parents: Sequence[int]) -> HostTree:
        """Return the same tree with its top in the middle of its longest path."""
        kinds = self.platform.kind_of
        neighbours: list[list[int]] = [[] for _ in parents]
        for child, parent in enumerate(parents):
            if parent >= 0:
                neighbours[parent].append(child)
                neighbours[child].append(parent)

        def rooted_at(top: int) -> tuple[list[int], list[float], list[int]]:
            """Return parents, depths and breadth-first order of the tree with this top."""
            above, depth, order = [-1] * len(neighbours), [0.0] * len(neighbours), [top]
            for host in order:
                for other in neighbours[host]:
                    if other != above[host]:
                        above[other] = host
                        depth[other] = depth[host] + self.hops[kinds[host]][kinds[other]]
                        order.append(other)
            return above, depth, order

        # The host farthest from any host is one end of the longest path.
        _, depth, order = rooted_at(0)
        above, depth, _ = rooted_at(max(order, key=lambda host: (depth[host], -host)))
        end = max(range(len(depth)), key=lambda host: (depth[host], -host))
        top = end
        while above[top] >= 0 and 2 * depth[top] > depth[end]:
            if depth[top] <= depth[end] - depth[above[top]]:
                break
            top = above[top]
        return HostTree(tuple(rooted_at(top)[0]))


class _Program:
    """Find the least ``t`` such that shares, which add up to 1, load no resource longer than ``t``.

    This is the revised simplex method with an explicit inverse. The right-hand sides are perturbed
    slightly, so that every pivot makes progress.
    """

    def __init__(self, first: FloatArray) -> None:
        m = len(first)
        self.columns = [first]
        # Rows: one per resource, then the sum of shares. Variables: slacks, t (m), shares (m + 1…).
        busiest = int(np.argmax(first))
        self.basis = [*range(m), m + 1]
        self.basis[busiest] = m
        self.inverse = np.eye(m + 1)
        self.inverse[:, m] = np.append(first[busiest] - first, 1.0)
        self.inverse[busiest, m] = first[busiest]
        self.inverse[:m, busiest] = -1.0
        self.inverse[m, busiest] = 0.0
        scale = float(first[busiest])
        # With t in the row of the busiest: L x + s - t = d, so that s_i = t - L_i + d_i.
        right_side = scale * 1e-9 * (1 + np.arange(m + 1) % 97 / 97)
        right_side[busiest], right_side[m] = 0.0, 1.0
        self.values = _product(self.inverse, right_side)

    @property
    def least(self) -> float:
        """``t`` with the present columns."""
        return float(self.values[self.basis.index(len(self.inverse) - 1)])

    @property
    def prices(self) -> FloatArray:
        """The price of a second of each resource; prices add up to 1."""
        at = self.basis.index(len(self.inverse) - 1)
        return np.asarray(-self.inverse[at, :-1])

    def enter(self, variable: int, column: FloatArray) -> bool:
        """Take ``variable`` into the basis; return False if nothing limits it."""
        change = _product(self.inverse, column)
        limits = np.where(change > 1e-12, self.values / np.where(change > 1e-12, change, 1), np.inf)
        # ``t`` must stay in the basis: it is positive, but may round to 0 for a few bytes.
        limits[self.basis.index(len(self.inverse) - 1)] = np.inf
        row = int(np.argmin(limits))
        if limits[row] == np.inf:
            return False
        pivot = self.inverse[row] / change[row]
        value = self.values[row] / change[row]
        self.inverse = self.inverse - change[:, None] * pivot[None]
        self.values = self.values - change * value
        self.inverse[row], self.values[row] = pivot, value
        self.basis[row] = variable
        return True

    def settle(self) -> None:
        """Pivot slacks into the basis until no price is below 0."""
        m = len(self.inverse) - 1
        for _ in range(MOST_PIVOTS):
            prices = self.prices
            slack = int(np.argmin(prices))
            if prices[slack] >= -1e-9:
                return
            unit = np.zeros(m + 1)
            unit[slack] = 1.0
            if not self.enter(slack, unit):
                return

    def shares(self) -> list[float]:
        """Return the share of each column."""
        m = len(self.inverse) - 1
        found = [0.0] * len(self.columns)
        for row, variable in enumerate(self.basis):
            if variable > m:
                found[variable - m - 1] = max(float(self.values[row]), 0.0)
        return found


def _product(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    """Return ``matrix @ vector``, summed column by column: the same on every processor."""
    total = np.zeros(len(matrix))
    for k in np.flatnonzero(vector).tolist():
        total = total + matrix[:, k] * vector[k]
    return total


@lru_cache(maxsize=256)
def pack_by_depth(platform: Platform, limits_s: tuple[float, ...]) -> tuple[Packing, ...]:
    """Return different packings for limits on the distance from a tree's top, shortest first.

    Limits that no tree can meet give no packing, nor do those after the optimum is reached.
    """
    network = _Network(platform)
    search: _Search | None = None
    found: list[Packing] = []
    for most_s in sorted(limits_s):
        if search is None:
            equal_costs = network.edge_costs(np.ones(network.n_rows))
            start = network.cheapest(equal_costs, most_s)
            if start is None:
                continue
            search = _Search(network, start)
        search.improve(most_s)
        packing = search.packing()
        if packing not in found:
            found.append(packing)
        if packing.busy_s <= packing.least_s * (1 + TOLERANCE):
            break
    return tuple(found)


def least_s(platform: Platform, n_bytes: float, idle: IdleTimes) -> float:
    """Return a lower bound of the time of any trees for ``n_bytes``, with idle times added."""
    network = _Network(platform, n_bytes, idle)
    start = network.cheapest(network.edge_costs(np.ones(network.n_rows)), np.inf)
    if start is None:
        return 0.0
    search = _Search(network, start)
    search.least_s = 0.0  # floor_s does not apply: the idle time of that receiver is not known here
    search.improve(np.inf)
    return search.least_s


def least_from_all_s(
    platform: Platform, blocks: Sequence[float], n_bytes: float, idle: IdleTimes, known_s: float
) -> float:
    """Return the same bound for an allgather: hosts of each kind have ``blocks`` of ``n_bytes``.

    A column of the linear program holds a tree for each kind; the cheapest column holds the
    cheapest tree of each. Return 0 if there are trees that take no longer than ``known_s``.
    """
    network = _Network(platform, n_bytes, idle)
    no_depths = [0.0] * network.n_kinds

    def cheapest(costs: list[list[float]]) -> tuple[float, FloatArray]:
        cost, loads = 0.0, np.array(network.idle_s)
        for kind, n_blocks in enumerate(blocks):
            above = cheapest_arborescence(costs, kind)
            tree = network._with_others(costs, above, no_depths, np.inf)
            cost += n_blocks * network.cost(costs, tree)
            loads = loads + n_blocks * (network.loads(tree) - network.idle_s)
        return cost, loads

    program = _Program(cheapest(network.edge_costs(np.ones(network.n_rows)))[1])
    found_s = 0.0
    for _ in range(MOST_PIVOTS):
        program.settle()
        if program.least <= known_s:
            return 0.0
        prices = np.maximum(program.prices, 0.0)
        cost, loads = cheapest(network.edge_costs(prices))
        found_s = max(found_s, cost + _total(prices * network.idle_s))
        if program.least <= found_s * (1 + TOLERANCE):
            break
        program.columns.append(loads)
        variable = len(loads) + len(program.columns)
        if not program.enter(variable, np.append(loads, 1.0)):
            break
    return found_s


class _Search:
    """Column generation. It continues from its present columns when longer paths are allowed."""

    def __init__(self, network: _Network, start: _KindTree) -> None:
        self.network = network
        self.trees = [start]
        self.program = _Program(network.loads(start))
        self.least_s = network.floor_s
        self._known = {start: 0}

    def improve(self, most_s: float) -> None:
        """Add trees in which hosts are at most ``most_s`` from the top, until none is cheaper."""
        network, program = self.network, self.program
        for _ in range(MOST_PIVOTS):
            program.settle()
            costs = network.edge_costs(np.maximum(program.prices, 0.0))
            tree = network.cheapest(costs, most_s)
            if tree is None:
                return
            idle_s = _total(np.maximum(program.prices, 0.0) * network.idle_s)
            cost = network.cost(costs, tree) + idle_s
            if program.least <= max(cost, network.floor_s) * (1 + TOLERANCE):
                break
            if tree not in self._known:
                self._known[tree] = len(self.trees)
                self.trees.append(tree)
                program.columns.append(network.loads(tree))
            loads = program.columns[self._known[tree]]
            variable = len(loads) + 1 + self._known[tree]
            if variable in program.basis or not program.enter(variable, np.append(loads, 1.0)):
                break
        cheapest = network.cheapest(costs, np.inf)
        if cheapest:
            self.least_s = max(self.least_s, network.cost(costs, cheapest) + idle_s)

    def packing(self) -> Packing:
        """Return the packing of the present columns."""
        shares = np.array(self.program.shares())
        shares = shares / _total(shares)
        used = [k for k in range(len(self.trees)) if shares[k] > 0]
        loads = np.zeros(self.network.n_rows)
        for k in used:
            loads = loads + shares[k] * self.program.columns[k]
        busy_s = max(float(loads.max()), self.network.floor_s)
        return Packing(
            tuple(self.network.hosts_of(self.trees[k]) for k in used),
            tuple(float(shares[k]) for k in used),
            busy_s,
            min(self.least_s, busy_s),
        )


def _total(values: FloatArray) -> float:
    """Return the sum, added in order: the same on every processor."""
    return float(sum(values.tolist()))
