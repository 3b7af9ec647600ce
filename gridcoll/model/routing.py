"""Routes for data between clusters: direct, or relayed by a third cluster.

An exchange is limited by the link or interface that is busy longest. If a link is thin, part of its
data can be relayed by a third cluster, which loads the interfaces there. To spread the demand such
that the busiest resource is busy for the least time is a concurrent-flow problem with paths of one
or two links: a matrix game between routes and resources. It is solved by mirror prox (Nemirovski
2004) with entropies, which also gives a lower bound, so it can stop within a given fraction of the
optimum. A general LP solver takes as long and would be one more dependency.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.model.plogp import FloatArray
from gridcoll.topology.grid import Grid

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

TOLERANCE = 0.01
"""The result is at most this fraction above the optimum."""

MOST_STEPS = 4000

SHARE_STEPS = 1024
"""Shares are rounded to multiples of one over this, so that all ranks compute the same shares even
if their processors round differently."""


def blocks_between(grid: Grid) -> FloatArray:
    """Return the numbers of all-to-all blocks between clusters, (C, C).

    The diagonal counts the blocks between hosts of one cluster.
    """
    sizes = np.array(grid.ranks_per_cluster, float)
    on_host = [sum(len(node) ** 2 for node in cluster.nodes) for cluster in grid.clusters]
    blocks = np.outer(sizes, sizes)
    np.fill_diagonal(blocks, sizes * sizes - np.array(on_host, float))
    return blocks


def direct_routes(n_clusters: int) -> BoolArray:
    """Return which routes between different clusters have no relay, (C, C, C), as in `Routes`."""
    found = np.zeros((n_clusters,) * 3, bool)
    every = np.arange(n_clusters)
    found[:, every, every] = ~np.eye(n_clusters, dtype=bool)
    return found


class Routes(Struct, frozen=True):
    """How a demand is spread over routes."""

    shares: FloatArray
    """(C, C, C) array. ``shares[a, b, c]`` is the share of the data from ``a`` to ``b`` that ``c``
    relays; ``c == b`` is the direct route. Multiples of 1 / `SHARE_STEPS`, which add up to 1 if
    there is a demand."""
    busy_s: float
    """How long the busiest resource is busy with these routes."""
    direct_s: float
    """The same if all data takes the direct route."""
    least_s: float
    """Lower bound of ``busy_s`` for all routes with at most one relay cluster."""
    prices: FloatArray
    """(R,) array. Prices of a second of each resource, which add up to 1 and prove ``least_s``: the
    links, then the interfaces of each cluster out and in, then uplinks out and in."""

    @property
    def gain(self) -> float:
        """How many times longer the busiest resource is busy with direct routes only."""
        return self.direct_s / self.busy_s if self.busy_s else 1.0


class _Network:
    """Computes the loads that routes put on resources, and the prices of routes from theirs.

    Resources are the (C, C) links, then the interfaces of each cluster, out and in, then the
    uplinks, out and in.
    """

    def __init__(
        self,
        demand: FloatArray,
        link_bytes_per_s: FloatArray,
        host_bytes_per_s: FloatArray,
        uplink_bytes_per_s: FloatArray,
    ) -> None:
        n = len(demand)
        own = np.eye(n, dtype=bool)
        self.demand = np.where(own, 0.0, demand)
        self.allowed = ~own[:, None, :] & (self.demand > 0)[:, :, None]
        self.direct = direct_routes(n) & self.allowed
        self._relayed = self.allowed & ~self.direct
        self._link_s = np.where(own, 0.0, 1.0 / np.where(own, 1.0, link_bytes_per_s))
        self._host_s = 1.0 / host_bytes_per_s
        self._up_s = 1.0 / uplink_bytes_per_s
        out, into, inside = self.demand.sum(axis=1), self.demand.sum(axis=0), demand.diagonal()
        ends = (out + inside) * self._host_s, (into + inside) * self._host_s
        self.fixed_s = np.concatenate([np.zeros(n * n), *ends, out * self._up_s, into * self._up_s])

    def busy_s(self, shares: FloatArray) -> FloatArray:
        """Return how long each resource is busy, (R,)."""
        carried = shares * self.demand[:, :, None]
        relayed = np.where(self._relayed, carried, 0.0)
        on_links = np.where(self.direct, carried, 0.0).sum(axis=2)
        on_links = on_links + relayed.sum(axis=1) + relayed.sum(axis=0).T
        host_s = relayed.sum(axis=(0, 1)) * self._host_s
        up_s = relayed.sum(axis=(0, 1)) * self._up_s
        loads_s = ((on_links * self._link_s).ravel(), host_s, host_s, up_s, up_s)
        return np.asarray(np.concatenate(loads_s) + self.fixed_s)

    def route_prices(self, prices: FloatArray) -> FloatArray:
        """Return the cost of each route, (C, C, C), at ``prices`` per second of each resource."""
        link, relay = self._byte_prices(prices)
        via = link[:, None, :] + link.T[None, :, :] + relay
        return np.asarray(np.where(self.direct, link[:, None, :], via) * self.demand[:, :, None])

    def _byte_prices(self, prices: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the cost of a byte on each link, (C, C), and at each relay cluster, (C,)."""
        n = len(self.demand)
        link = prices[: n * n].reshape(n, n) * self._link_s
        out, into, up, down = prices[n * n :].reshape(4, n)
        return link, (out + into) * self._host_s + (up + down) * self._up_s

    def least_by_any_s(self, prices: FloatArray) -> float:
        """Return the same bound as `least_s` for routes over any number of relay clusters."""
        link, relay = self._byte_prices(prices)
        cost = link.copy()
        for c in range(len(cost)):
            cost = np.minimum(cost, cost[:, c, None] + relay[c] + cost[None, c, :])
        return float((cost * self.demand).sum() + prices @ self.fixed_s)

    def least_s(self, prices: FloatArray) -> float:
        """Return the dual bound: no routes keep the busiest resource busy for less time.

        ``prices`` add up to 1.
        """
        cheapest = np.where(self.allowed, self.route_prices(prices), np.inf).min(axis=2)
        return float(cheapest[self.allowed.any(axis=2)].sum() + prices @ self.fixed_s)


def find_routes(
    demand: FloatArray,
    link_bytes_per_s: FloatArray,
    host_bytes_per_s: FloatArray,
    tolerance: float = TOLERANCE,
    uplink_bytes_per_s: FloatArray | None = None,
) -> Routes:
    """Return routes with the least time of the busiest resource, within ``tolerance``.

    ``demand`` is in bytes between clusters, (C, C); the diagonal is the data that interfaces pass
    inside clusters. ``host_bytes_per_s``, (C,), is the rate of all interfaces of a cluster
    together, in each direction. All data that leaves a cluster shares its uplink, and so does all
    data that enters it.

    Raises `UsageError` for rates that are not positive.
    """
    n = len(demand)
    away = ~np.eye(n, dtype=bool)
    if (link_bytes_per_s[away] <= 0).any() or (host_bytes_per_s <= 0).any():
        raise UsageError("routes: rates of links and interfaces must be positive")
    if uplink_bytes_per_s is None:
        uplink_bytes_per_s = np.full(n, np.inf)
    network = _Network(demand, link_bytes_per_s, host_bytes_per_s, uplink_bytes_per_s)
    direct = network.direct.astype(float)
    loads_s = network.busy_s(direct)
    direct_s = float(loads_s.max())
    if n < 3 or not direct_s:
        busiest = np.zeros_like(loads_s)
        busiest[int(np.argmax(loads_s))] = 1.0
        return Routes(direct, direct_s, direct_s, direct_s, busiest)
    shares, least_s, prices = solve(network, direct_s, tolerance)
    shares = rounded_shares(shares, network.allowed)
    busy_s = float(network.busy_s(shares).max())
    if busy_s >= direct_s:
        shares, busy_s = direct, direct_s
    return Routes(shares, busy_s, direct_s, min(least_s, busy_s), prices)


def whole_parts(
    shares: FloatArray,
    n_parts: IntArray,
    demand: FloatArray,
    link_bytes_per_s: FloatArray,
    host_bytes_per_s: FloatArray,
    uplink_bytes_per_s: FloatArray,
) -> IntArray:
    """Return how many of the ``n_parts`` between clusters take each route, close to ``shares``.

    The result is (C, C, C). All counts are rounded down; then each remaining part takes the route
    that is least busy with it. Rounding to the nearest would put two parts on a thin link that
    should carry one and a half.
    """
    n = len(demand)
    wanted = shares * n_parts[:, :, None]
    counts = np.floor(wanted + 1e-6).astype(int)
    part = np.where(n_parts > 0, demand / np.maximum(n_parts, 1), 0.0)
    network = _Network(demand, link_bytes_per_s, host_bytes_per_s, uplink_bytes_per_s)
    loads_s = network.busy_s(counts / np.maximum(n_parts, 1)[:, :, None])
    link_s, ends_s = loads_s[: n * n].reshape(n, n), loads_s[n * n :].reshape(4, n)
    # Time per byte at a relay's interfaces, out and in, and at its uplink, out and in.
    per_byte_s = 1.0 / np.stack([host_bytes_per_s, host_bytes_per_s, *[uplink_bytes_per_s] * 2])
    scale_s = max(float(network.busy_s(shares).max()), 1e-300)
    left = n_parts - counts.sum(axis=2)

    def cost_of_one_more(a: int, b: int, c: int) -> tuple[int, float, int]:
        """Return the busiest time on the route with one part more, then tie-breakers."""
        new = part[a, b]
        hops = [(a, b)] if c == b else [(a, c), (c, b)]
        most_s = max(link_s[hop] + new / link_bytes_per_s[hop] for hop in hops)
        if c != b:
            most_s = max(most_s, float((ends_s[:, c] + new * per_byte_s[:, c]).max()))
        surplus = round(float(counts[a, b, c] - wanted[a, b, c]), 4)
        return round(most_s / scale_s * 1e6), surplus, c

    pairs = sorted(zip(*np.nonzero(left > 0), strict=True), key=lambda ab: (-part[ab], ab))
    for a, b in pairs:
        relays = [c for c in range(n) if shares[a, b, c] > 0]
        for _ in range(left[a, b]):
            c = min(relays, key=partial(cost_of_one_more, a, b))
            counts[a, b, c] += 1
            for hop in [(a, b)] if c == b else [(a, c), (c, b)]:
                link_s[hop] += part[a, b] / link_bytes_per_s[hop]
            if c != b:
                ends_s[:, c] += part[a, b] * per_byte_s[:, c]
    return counts


def busy_s(
    counts: IntArray,
    demand: FloatArray,
    link_bytes_per_s: FloatArray,
    host_bytes_per_s: FloatArray,
    uplink_bytes_per_s: FloatArray,
) -> FloatArray:
    """Return how long each resource is busy, (R,), with the ``counts`` of `whole_parts`."""
    network = _Network(demand, link_bytes_per_s, host_bytes_per_s, uplink_bytes_per_s)
    return network.busy_s(counts / np.maximum(counts.sum(axis=2, keepdims=True), 1))


def least_exchange_s(
    demand: FloatArray,
    link_bytes_per_s: FloatArray,
    host_bytes_per_s: FloatArray,
    uplink_bytes_per_s: FloatArray,
    idle_s: FloatArray,
) -> float:
    """No routes, over any number of clusters, complete ``demand`` earlier.

    ``idle_s`` is how long each resource is idle until then, in the order of `Routes.prices`.
    """
    rates = link_bytes_per_s, host_bytes_per_s, TOLERANCE, uplink_bytes_per_s
    prices = find_routes(demand, *rates).prices
    network = _Network(demand, link_bytes_per_s, host_bytes_per_s, uplink_bytes_per_s)
    return network.least_by_any_s(prices) + float(prices @ idle_s)


class Game(Protocol):
    """Shares of routes against conditions: how long resources are busy is linear in the shares."""

    allowed: BoolArray
    direct: BoolArray
    """(C, C, C) arrays. The routes that may be used, and the direct ones among them."""
    fixed_s: FloatArray
    """(R,) array. What each condition takes without the data on these routes."""

    def busy_s(self, shares: FloatArray) -> FloatArray:
        """Return what each condition takes, (R,)."""

    def route_prices(self, prices: FloatArray) -> FloatArray:
        """Return the cost of each route, (C, C, C), at ``prices`` per second of each condition."""

    def least_s(self, prices: FloatArray) -> float:
        """Return a lower bound of the largest condition, given ``prices`` that add up to 1."""


def solve(
    game: Game, scale_s: float, tolerance: float, asked_s: float = 0.0
) -> tuple[FloatArray, float, FloatArray]:
    """Return near-optimal shares, a lower bound in seconds, and the prices that prove it.

    The largest condition is at most the fraction ``tolerance`` above the bound, unless that takes
    more than `MOST_STEPS`. ``scale_s`` is about the largest condition at the start. With
    ``asked_s``, the result is only good enough to tell whether ``asked_s`` can be reached.
    """
    allowed = game.allowed
    even = allowed / np.maximum(allowed.sum(axis=2, keepdims=True), 1)
    shares = 0.5 * even + 0.5 * game.direct
    prices = np.full(len(game.fixed_s), 1.0 / len(game.fixed_s))
    sum_shares, sum_prices, weight = np.zeros_like(shares), np.zeros_like(prices), 0.0
    best, best_s, least_s, step = shares, np.inf, 0.0, 1.0
    best_prices = prices
    for k in range(MOST_STEPS):
        costs, loads = game.route_prices(prices) / scale_s, game.busy_s(shares) / scale_s
        while True:
            ahead = _moved_shares(shares, -step * costs, allowed), _moved(prices, step * loads)
            new_costs = game.route_prices(ahead[1]) / scale_s
            new_loads = game.busy_s(ahead[0]) / scale_s
            then = (
                _moved_shares(shares, -step * new_costs, allowed),
                _moved(prices, step * new_loads),
            )
            error = ((new_costs - costs) * (ahead[0] - then[0])).sum()
            error -= ((new_loads - loads) * (ahead[1] - then[1])).sum()
            room = _divergence(then[0], ahead[0]) + _divergence(ahead[0], shares)
            room += _divergence(then[1], ahead[1]) + _divergence(ahead[1], prices)
            if step * error <= room + 1e-12 or step < 1e-3:
                break
            step *= 0.7
        shares, prices = then
        sum_shares, sum_prices = sum_shares + step * ahead[0], sum_prices + step * ahead[1]
        weight += step
        step *= 1.15
        if k % 10 < 9:
            continue
        for found in (sum_shares / weight, shares):
            busy_s = float(game.busy_s(found).max())
            if busy_s < best_s:
                best, best_s = found, busy_s
        for each in (sum_prices / weight, prices):
            bound_s = game.least_s(each)
            if bound_s > least_s:
                least_s, best_prices = bound_s, each
        is_told = best_s <= asked_s or least_s > asked_s > 0
        if is_told or best_s <= (1 + tolerance) * least_s:
            break
    return best, least_s, best_prices


def _moved_shares(shares: FloatArray, by: FloatArray, allowed: np.ndarray) -> FloatArray:
    """Return ``shares`` times ``exp(by)``, scaled so that those of each pair add up to 1."""
    logs = np.where(allowed, np.log(np.maximum(shares, 1e-300)) + by, -np.inf)
    highest = np.where(allowed.any(axis=2, keepdims=True), logs.max(axis=2, keepdims=True), 0.0)
    moved = np.where(allowed, np.exp(logs - highest), 0.0)
    total = moved.sum(axis=2, keepdims=True)
    return np.asarray(moved / np.where(total > 0, total, 1.0))


def _moved(prices: FloatArray, by: FloatArray) -> FloatArray:
    """Return ``prices`` times ``exp(by)``, scaled so that they add up to 1."""
    logs = np.log(np.maximum(prices, 1e-300)) + by
    moved = np.exp(logs - logs.max())
    return np.asarray(moved / moved.sum())


def _divergence(p: FloatArray, q: FloatArray) -> float:
    """Return the Kullback-Leibler divergence of ``p`` from ``q``."""
    return float((p * (np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(q, 1e-300)))).sum())


def rounded_shares(shares: FloatArray, allowed: BoolArray) -> FloatArray:
    """Round to multiples of 1 / `SHARE_STEPS` that add up to 1; the largest remainders go up."""
    wanted = np.where(allowed, shares * SHARE_STEPS, 0.0)
    steps = np.floor(wanted + 1e-6)
    left = np.where(allowed.any(axis=2), SHARE_STEPS, 0) - steps.sum(axis=2)
    order = np.argsort(-np.round(wanted - steps, 4), axis=2, kind="stable")
    place = np.argsort(order, axis=2, kind="stable")
    return np.asarray((steps + (place < left[:, :, None])) / SHARE_STEPS)
