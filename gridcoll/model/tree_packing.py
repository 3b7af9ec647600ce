"""Which trees over hosts, and how much over each, so that no interface or link is busy for long.

In the steady state a broadcast, a reduction or an allreduce is a fractional packing of trees
(Edmonds 1973; Beaumont, Legrand, Marchal and Robert 2005 for unlike platforms). Hosts of a cluster
are alike and take turns, so that only what a tree asks of a cluster's interfaces together counts,
and of each link. An allreduce goes up a tree and down again: each of its edges costs both ends the
same, either way, and the cheapest tree is a minimum spanning tree. A broadcast has its root, an
edge costs who sends, and the cheapest tree is an arborescence.

The linear program has a column per tree. They are made when they are needed (Gilmore and Gomory
1961): the simplex method gives a price to each interface and link, and the cheapest tree at those
prices comes in, until it is no cheaper than what is there. Trees of short ways come first, and what
was found with them is where longer ways begin. As hosts of a kind are alike, trees are grown over
kinds: one host of each, then the others of a kind beside one another. No sums or products of whole
arrays are left to a library that may round otherwise on another processor: all ranks find the same
trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gridcoll.model.arborescence import cheapest_arborescence, shortest_ways
from gridcoll.model.plogp import FloatArray

TOLERANCE = 0.003
"""Above the optimum, at most, where any tree may be taken."""

MOST_PIVOTS = 3000

MOST_TOPS = 4
"""Trees with a limited way are grown from so many hosts, the most central ones."""


@dataclass(frozen=True)
class Platform:
    """Kinds of hosts; hosts of a kind are alike. All are tuples, so that it may be a key."""

    counts: tuple[int, ...]
    clusters: tuple[int, ...]
    """By kind: how many hosts, and of which cluster."""
    rates: tuple[float, ...]
    """By kind: bytes per second of each host's interface."""
    links: tuple[tuple[float, ...], ...]
    """Bytes per second between clusters, of all flows of a direction together."""
    uplinks: tuple[float, ...]
    """By cluster: bytes per second of all that leaves, and of all that enters."""
    hops_s: tuple[tuple[float, ...], ...]
    """By cluster: a short message's way."""
    root: int = -1
    """The kind, of one host, that all trees begin at; -1 for trees that go up and down."""

    @property
    def kind_of(self) -> tuple[int, ...]:
        """The kind of each host, hosts of a kind in a row."""
        return tuple(kind for kind, count in enumerate(self.counts) for _ in range(count))


@dataclass(frozen=True)
class HostTree:
    """Parents by host, -1 at the top."""

    parents: tuple[int, ...]


@dataclass(frozen=True)
class Packing:
    """Trees, which part of the message goes over each, and how long a byte keeps the busiest.

    ``least_s`` is a bound for all trees, and 0 where it is not known. The receiving interfaces of a
    broadcast count in both.
    """

    trees: tuple[HostTree, ...]
    shares: tuple[float, ...]
    busy_s: float
    least_s: float


@dataclass(frozen=True)
class _KindTree:
    """Over kinds: the parent of the first host of each, -1 at the top, and that of all others."""

    above: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True)
class Spare:
    """How long resources are idle, whatever trees are taken: arrays as of a `Platform`."""

    kinds_s: tuple[float, ...]
    """Interfaces, by kind."""
    links_s: tuple[tuple[float, ...], ...]
    leaves_s: tuple[float, ...]
    enters_s: tuple[float, ...]
    """Uplinks, either way."""


class _Network:
    """Loads of resources by trees: kinds' interfaces, and links and uplinks that may limit.

    In seconds for ``n_bytes``, with what is to spare counted as load.
    """

    def __init__(
        self, platform: Platform, n_bytes: float = 1.0, spare: Spare | None = None
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
        # What interfaces alone keep from being busy longer than they are is left out.
        senders = np.broadcast_to(together[:, None], (n, n))
        ends = np.minimum(senders, senders.T) if self.both_ways else senders
        second = (n_bytes / capacity).tolist()
        spare_s = list(spare.kinds_s) if spare else [0.0] * self.n_kinds

        def row(rate: float, enough: float, idle_s: float) -> int:
            if rate >= enough * (1 - 1e-9):
                return -1
            second.append(n_bytes / rate)
            spare_s.append(idle_s)
            return len(second) - 1

        nothing = np.zeros((n, n))
        links_s = np.array(spare.links_s) if spare else nothing
        leaves_s = np.array(spare.leaves_s) if spare else nothing[0]
        enters_s = np.array(spare.enters_s) if spare else nothing[0]
        of_link = np.full((n, n), -1)
        for a in range(n):
            for b in range(n):
                if self.both_ways and b < a:
                    of_link[a, b] = of_link[b, a]
                elif a != b:
                    of_link[a, b] = row(links[a, b], ends[a, b], links_s[a, b])
        leaves = np.array([row(uplinks[c], together[c], leaves_s[c]) for c in range(n)])
        # Going both ways, as much enters as leaves.
        enters = leaves
        if not self.both_ways:
            enters = np.array([row(uplinks[c], together[c], enters_s[c]) for c in range(n)])
        self.n_rows = len(second)
        self.spare_s = np.array(spare_s)
        self.second = np.array([*second, 0.0])
        # Resources that each edge loads, (R of it, K, K): sender, receiver, link, uplinks.
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
        """How long a byte keeps the slowest interface that takes it in; nothing is faster."""
        if self.both_ways:
            return 0.0
        return max(
            1 / rate for k, rate in enumerate(self.platform.rates) if k != self.platform.root
        )

    def edge_costs(self, prices: FloatArray) -> list[list[float]]:
        """What each edge costs, (K, K), where a second of each resource costs ``prices``."""
        per_use = np.append(prices, 0.0) * self.second
        total = np.zeros((self.n_kinds, self.n_kinds))
        for resource in self.used:
            total = total + per_use[resource]
        found: list[list[float]] = total.tolist()
        return found

    def loads(self, tree: _KindTree) -> FloatArray:
        """Seconds, by resource."""
        counts = [0.0] * self.n_rows
        for kind, (above, others) in enumerate(zip(tree.above, tree.others, strict=True)):
            if above >= 0:
                for resource in self._used[above][kind]:
                    counts[resource] += 1
            if others >= 0:
                for resource in self._used[others][kind]:
                    counts[resource] += self.counts[kind] - 1
        return np.asarray(np.array(counts) * self.second[:-1] + self.spare_s)

    def cheapest(self, costs: list[list[float]], most_s: float) -> _KindTree | None:
        """A tree of least cost whose hosts are no farther from its top than ``most_s``.

        With a limit this is a heuristic.
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
        total = 0.0
        for kind, (above, others) in enumerate(zip(tree.above, tree.others, strict=True)):
            if above >= 0:
                total += costs[above][kind]
            if others >= 0:
                total += costs[others][kind] * (self.counts[kind] - 1)
        return total

    def _tops(self, most_s: float) -> list[int]:
        """The kinds that trees are grown from."""
        if not self.both_ways:
            return [self.platform.root]
        if most_s == np.inf:
            return [0]
        farthest = shortest_ways(np.array(self.hops)).max(axis=1).tolist()
        near = sorted(range(self.n_kinds), key=lambda k: (farthest[k], k))
        return [k for k in near if farthest[k] <= most_s][:MOST_TOPS]

    def _grow(self, costs: list[list[float]], top: int, most_s: float) -> _KindTree | None:
        """Prim's tree from ``top``; of edges that cost the same, those of short ways."""
        n, hops = self.n_kinds, self.hops
        above, away = [-1] * n, [0.0] * n
        left = [k for k in range(n) if k != top]
        open_cost = [costs[top][k] if hops[top][k] <= most_s else np.inf for k in range(n)]
        way, beside = list(hops[top]), [top] * n
        while left:
            least = min(open_cost[k] for k in left)
            if least == np.inf:
                return None
            alike = least * (1 + 1e-9) + 1e-18
            new = min((k for k in left if open_cost[k] <= alike), key=lambda k: way[k])
            left.remove(new)
            above[new], away[new] = beside[new], way[new]
            for k in left:
                ahead = away[new] + hops[new][k]
                if ahead > most_s:
                    continue
                cost, before = costs[new][k], open_cost[k]
                close = abs(cost - before) <= 1e-9 * before + 1e-18 if before < np.inf else False
                if ahead < way[k] if close else cost < before:
                    open_cost[k], way[k], beside[k] = cost, ahead, new
        return self._with_others(costs, above, away, most_s)

    def _with_others(
        self, costs: list[list[float]], above: Sequence[int], away: Sequence[float], most_s: float
    ) -> _KindTree:
        """The others of a kind where they cost least, and come soonest."""
        others = [-1] * self.n_kinds
        for kind, count in enumerate(self.counts):
            if count > 1:
                ways = [away[k] + self.hops[k][kind] for k in range(self.n_kinds)]
                near = [k for k in range(self.n_kinds) if ways[k] <= most_s]
                alike = min(costs[k][kind] for k in near) * (1 + 1e-9) + 1e-18
                cheap = [k for k in near if costs[k][kind] <= alike]
                others[kind] = min(cheap, key=lambda k: ways[k])
        return _KindTree(tuple(above), tuple(others))

    def hosts_of(self, tree: _KindTree) -> HostTree:
        """``tree`` over hosts; if it goes both ways, with its top in the middle."""
        firsts = np.concatenate([[0], np.cumsum(self.counts)[:-1]]).tolist()
        parents: list[int] = []
        for kind, count in enumerate(self.counts):
            above, others = tree.above[kind], tree.others[kind]
            parents.append(firsts[above] if above >= 0 else -1)
            parents += [firsts[others]] * (count - 1)
        return self._turned(parents) if self.both_ways else HostTree(tuple(parents))

    def _turned(self, parents: Sequence[int]) -> HostTree:
        kinds = self.platform.kind_of
        beside: list[list[int]] = [[] for _ in parents]
        for child, parent in enumerate(parents):
            if parent >= 0:
                beside[parent].append(child)
                beside[child].append(parent)

        def hung(top: int) -> tuple[list[int], list[float], list[int]]:
            above, away, order = [-1] * len(beside), [0.0] * len(beside), [top]
            for host in order:
                for other in beside[host]:
                    if other != above[host]:
                        above[other] = host
                        away[other] = away[host] + self.hops[kinds[host]][kinds[other]]
                        order.append(other)
            return above, away, order

        # The middle of the longest way.
        _, away, order = hung(0)
        above, away, _ = hung(max(order, key=lambda host: (away[host], -host)))
        end = max(range(len(away)), key=lambda host: (away[host], -host))
        top = end
        while above[top] >= 0 and 2 * away[top] > away[end]:
            if away[top] <= away[end] - away[above[top]]:
                break
            top = above[top]
        return HostTree(tuple(hung(top)[0]))


class _Program:
    """Least ``t`` such that shares, adding up to 1, load no resource for longer than ``t``.

    The revised simplex method with an explicit inverse. Right sides are moved apart by a trifle, so
    that no pivot is without progress.
    """

    def __init__(self, first: FloatArray) -> None:
        m = len(first)
        self.columns = [first]
        # Rows: a resource each, then the sum of shares. Variables: slacks, t (m), shares (m + 1 …).
        busiest = int(np.argmax(first))
        self.basis = [*range(m), m + 1]
        self.basis[busiest] = m
        self.inverse = np.eye(m + 1)
        self.inverse[:, m] = np.append(first[busiest] - first, 1.0)
        self.inverse[busiest, m] = first[busiest]
        self.inverse[:m, busiest] = -1.0
        self.inverse[m, busiest] = 0.0
        scale = float(first[busiest])
        # With t in the busiest's row: L x + s - t = d, so that s_i = t - L_i + d_i.
        apart = scale * 1e-9 * (1 + np.arange(m + 1) % 97 / 97)
        apart[busiest], apart[m] = 0.0, 1.0
        self.values = _product(self.inverse, apart)

    @property
    def least(self) -> float:
        """``t``, of the columns there are."""
        return float(self.values[self.basis.index(len(self.inverse) - 1)])

    @property
    def prices(self) -> FloatArray:
        """Of a second of each resource; they add up to 1."""
        at = self.basis.index(len(self.inverse) - 1)
        return np.asarray(-self.inverse[at, :-1])

    def enter(self, variable: int, column: FloatArray) -> bool:
        """Take ``variable`` into the basis; False where nothing limits it."""
        change = _product(self.inverse, column)
        limits = np.where(change > 1e-12, self.values / np.where(change > 1e-12, change, 1), np.inf)
        # ``t`` stays: nothing takes no time at all, but of a few bytes it rounds to that.
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
        """Pivot slacks in until no price is below 0."""
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
        """By column."""
        m = len(self.inverse) - 1
        found = [0.0] * len(self.columns)
        for row, variable in enumerate(self.basis):
            if variable > m:
                found[variable - m - 1] = max(float(self.values[row]), 0.0)
        return found


def _product(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    """Column by column: the same sums on every processor."""
    total = np.zeros(len(matrix))
    for k in np.flatnonzero(vector).tolist():
        total = total + matrix[:, k] * vector[k]
    return total


@lru_cache(maxsize=256)
def pack_by_way(platform: Platform, limits_s: tuple[float, ...]) -> tuple[Packing, ...]:
    """Different packings, by how far hosts may be from a tree's top: the shortest ways first.

    None for limits that no tree can do with, nor for those beyond which nothing is gained.
    """
    network = _Network(platform)
    search: _Search | None = None
    found: list[Packing] = []
    for most_s in sorted(limits_s):
        if search is None:
            even = network.edge_costs(np.ones(network.n_rows))
            start = network.cheapest(even, most_s)
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


def least_s(platform: Platform, n_bytes: float, spare: Spare) -> float:
    """Trees of any shape take no less for ``n_bytes``, where resources are idle for some time."""
    network = _Network(platform, n_bytes, spare)
    start = network.cheapest(network.edge_costs(np.ones(network.n_rows)), np.inf)
    if start is None:
        return 0.0
    search = _Search(network, start)
    search.least_s = 0.0  # how long the slowest is idle that takes the message in is not known here
    search.improve(np.inf)
    return search.least_s


def least_from_all_s(
    platform: Platform, blocks: Sequence[float], n_bytes: float, spare: Spare, known_s: float
) -> float:
    """The same where hosts of each kind begin so many ``blocks``, of ``n_bytes``: an allgather.

    A column of its program is a tree for each kind, the cheapest one the cheapest of each. 0 if
    there are trees that take no more than ``known_s``.
    """
    network = _Network(platform, n_bytes, spare)
    nowhere = [0.0] * network.n_kinds

    def cheapest(costs: list[list[float]]) -> tuple[float, FloatArray]:
        cost, loads = 0.0, np.array(network.spare_s)
        for kind, n_blocks in enumerate(blocks):
            above = cheapest_arborescence(costs, kind)
            tree = network._with_others(costs, above, nowhere, np.inf)
            cost += n_blocks * network.cost(costs, tree)
            loads = loads + n_blocks * (network.loads(tree) - network.spare_s)
        return cost, loads

    program = _Program(cheapest(network.edge_costs(np.ones(network.n_rows)))[1])
    found_s = 0.0
    for _ in range(MOST_PIVOTS):
        program.settle()
        if program.least <= known_s:
            return 0.0
        prices = np.maximum(program.prices, 0.0)
        cost, loads = cheapest(network.edge_costs(prices))
        found_s = max(found_s, cost + _total(prices * network.spare_s))
        if program.least <= found_s * (1 + TOLERANCE):
            break
        program.columns.append(loads)
        variable = len(loads) + len(program.columns)
        if not program.enter(variable, np.append(loads, 1.0)):
            break
    return found_s


class _Search:
    """Columns that come in until none is cheaper; it goes on from where it was with longer ways."""

    def __init__(self, network: _Network, start: _KindTree) -> None:
        self.network = network
        self.trees = [start]
        self.program = _Program(network.loads(start))
        self.least_s = network.floor_s
        self._known = {start: 0}

    def improve(self, most_s: float) -> None:
        """Take in trees whose ways are no longer than ``most_s``."""
        network, program = self.network, self.program
        for _ in range(MOST_PIVOTS):
            program.settle()
            costs = network.edge_costs(np.maximum(program.prices, 0.0))
            tree = network.cheapest(costs, most_s)
            if tree is None:
                return
            spare_s = _total(np.maximum(program.prices, 0.0) * network.spare_s)
            cost = network.cost(costs, tree) + spare_s
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
        shortest = network.cheapest(costs, np.inf)
        if shortest:
            self.least_s = max(self.least_s, network.cost(costs, shortest) + spare_s)

    def packing(self) -> Packing:
        """Of what is there now."""
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
    """The sum, from the first on."""
    return float(sum(values.tolist()))
