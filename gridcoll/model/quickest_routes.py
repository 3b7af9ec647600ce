"""Routes by which the last block of an exchange arrives soonest: a quickest multicommodity flow.

The routes of `model.routing` have the highest throughput, which is right for long blocks. For
shorter ones, a detour also costs latency, and a link is idle until the first data reaches it and
while the last data is still on its way. Here every use of a link, interface or uplink has a latency
before and after it. With completion time ``T``, the uses with at least ``x`` seconds after them
must have passed by ``T - x``, and those with at least ``y`` seconds before them begin at ``y``. So
a resource has one condition per use, and all of them are linear in the shares of the routes: it is
the game of `model.routing` with more rows (flows over time: Ford and Fulkerson 1958; Fleischer and
Skutella 2007).

A route that is too long delays the end even if it carries next to nothing. So only routes up to
some latency are allowed; the best limit is found by bisection.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter

import numpy as np
from msgspec import Struct

from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.model.plogp import FloatArray
from gridcoll.model.routing import (
    BoolArray,
    IntArray,
    direct_routes,
    rounded_shares,
    solve,
)

TOLERANCE = 0.02
"""The result is at most this fraction above the optimum, for a given limit of latencies."""

UNGAINED = 0.005
"""Blocks take the direct way again if all arrive at most this fraction later then."""

MOST_CLUSTERS = 10
"""Limit of clusters: with so many, routes take 0.1 s, with 5 0.02 s, with 12 0.35 s."""


class QuickestRoutes(Struct, frozen=True):
    """How blocks are spread over routes so that the last one arrives soonest."""

    shares: FloatArray
    """(C, C, C) array as in `Routes`."""
    takes_s: float
    """When the last block arrives, if no message waits for another one needlessly."""
    direct_s: float
    """The same if all blocks take the direct way."""

    @property
    def gain(self) -> float:
        """How many times longer the direct way takes."""
        return self.direct_s / self.takes_s if self.takes_s else 1.0


class _TimedNetwork:
    """Computes when all data has passed each resource and arrived, and the prices of routes.

    A use is a resource on a route. The M uses give 2M conditions: in the first half, those of uses
    with at least as much latency after them, in the second half, before them.
    """

    def __init__(
        self,
        demand: FloatArray,
        link_bytes_per_s: FloatArray,
        host_bytes_per_s: FloatArray,
        uplink_bytes_per_s: FloatArray,
        latency_s: FloatArray,
        allowed: BoolArray,
    ) -> None:
        n = len(demand)
        own = np.eye(n, dtype=bool)
        between = np.where(own, 0.0, demand)
        self.allowed = allowed & ~own[:, None, :] & (between > 0)[:, :, None]
        self.direct = direct_routes(n) & self.allowed
        uses: list[tuple[IntArray, IntArray, FloatArray, FloatArray, FloatArray]] = []
        a, b, c = np.nonzero(self.allowed)
        route = np.ravel_multi_index((a, b, c), (n, n, n))
        loads, relays = between[a, b], c != b
        first_s, second_s = latency_s[a, c], np.where(relays, latency_s[c, b], 0.0)
        whole_s, no_s = first_s + second_s, np.zeros(len(a))

        def use(
            resource: IntArray, rate: FloatArray, before_s: FloatArray, after_s: FloatArray,
            which: BoolArray,
        ) -> None:  # fmt: skip
            if np.isfinite(rate).any():
                takes_s = loads[which] / rate[which]
                ends_s = before_s[which], after_s[which]
                uses.append((resource[which], route[which], takes_s, *ends_s))

        everything = np.ones(len(a), bool)
        use(a * n + c, link_bytes_per_s[a, c], no_s, whole_s, everything)
        use(c * n + b, link_bytes_per_s[c, b], first_s, second_s, relays)
        # Interfaces out and in, then uplinks out and in, at the source, the relay, and the target.
        for kind, rates in enumerate((host_bytes_per_s, uplink_bytes_per_s)):
            out, into = (n + 2 * kind) * n, (n + 2 * kind + 1) * n
            use(out + a, rates[a], no_s, whole_s, everything)
            use(out + c, rates[c], first_s, second_s, relays)
            use(into + c, rates[c], first_s, second_s, relays)
            use(into + b, rates[b], whole_s, no_s, everything)
        # Data inside clusters has one route, whose number follows those of all others.
        busy = np.flatnonzero(demand.diagonal())
        inside_s = demand[busy, busy] / host_bytes_per_s[busy]
        lan_s, none_s, only = latency_s[busy, busy], np.zeros(len(busy)), np.full(len(busy), n**3)
        uses.append((n * n + busy, only, inside_s, none_s, lan_s))
        uses.append(((n + 1) * n + busy, only, inside_s, lan_s, none_s))
        resource, self._route, self._takes_s, before_s, after_s = map(
            np.concatenate, zip(*uses, strict=True)
        )
        self._orders: list[tuple[IntArray, IntArray, IntArray]] = []
        idle_s = []
        for nested_s, other_s in ((after_s, before_s), (before_s, after_s)):
            order = np.lexsort((-nested_s, resource))
            starts = np.flatnonzero(np.diff(resource[order], prepend=-1))
            ends = np.append(starts[1:], len(order))
            least_s = [
                np.minimum.accumulate(other_s[order[i:j]])
                for i, j in zip(starts, ends, strict=True)
            ]
            idle_s.append(nested_s[order] + np.concatenate(least_s))
            sizes = ends - starts
            self._orders.append((order, np.repeat(starts, sizes), np.repeat(ends, sizes)))
        self._n_routes = n**3
        nothing = np.zeros(n**3 + 1)
        nothing[-1] = 1.0
        self.fixed_s = np.concatenate(idle_s) + self._passed_s(nothing)
        self._idle_s = np.concatenate(idle_s)

    def _passed_s(self, shares: FloatArray) -> FloatArray:
        """Return how long each condition's uses take together, (2M,)."""
        takes_s, found = shares[self._route] * self._takes_s, []
        for order, starts, _ in self._orders:
            total = np.concatenate([[0.0], np.cumsum(takes_s[order])])
            found.append(total[1:] - total[starts])
        return np.concatenate(found)

    def busy_s(self, shares: FloatArray) -> FloatArray:
        """Return the end that each condition implies, (2M,)."""
        return np.asarray(self._passed_s(np.append(shares.ravel(), 1.0)) + self._idle_s)

    def route_prices(self, prices: FloatArray) -> FloatArray:
        """Return the cost of each route, (C, C, C), at ``prices`` per second of each condition."""
        n_uses = len(self._route)
        cost = np.zeros(n_uses)
        for (order, _, ends), part in zip(self._orders, prices.reshape(2, n_uses), strict=True):
            # A use counts in its own condition and in those of all later uses of the resource.
            total = np.concatenate([[0.0], np.cumsum(part)])
            cost[order] += total[ends] - total[:-1]
        by_route = np.bincount(self._route, cost * self._takes_s, self._n_routes + 1)
        return np.asarray(by_route[:-1].reshape(self.allowed.shape))

    def least_s(self, prices: FloatArray) -> float:
        """Return the dual bound: no allowed routes end earlier. ``prices`` add up to 1."""
        cheapest = np.where(self.allowed, self.route_prices(prices), np.inf).min(axis=2)
        return float(cheapest[self.allowed.any(axis=2)].sum() + prices @ self.fixed_s)


def find_quickest_routes(
    demand: FloatArray,
    link_bytes_per_s: FloatArray,
    host_bytes_per_s: FloatArray,
    uplink_bytes_per_s: FloatArray,
    latency_s: FloatArray,
) -> QuickestRoutes:
    """Return routes by which ``demand``, in bytes between clusters, (C, C), arrives soonest.

    Rates are those of `find_routes`; ``latency_s``, (C, C), has the latencies inside clusters on
    its diagonal.
    """
    n = len(demand)
    away = ~np.eye(n, dtype=bool)
    path_s = latency_s[:, None, :] + latency_s.T[None, :, :]
    every = np.arange(n)
    path_s[:, every, every] = latency_s
    path_s[every, :, every] = np.inf  # no detour begins in its own cluster
    rates = link_bytes_per_s, host_bytes_per_s, uplink_bytes_per_s, latency_s
    # Of the direct routes only: a condition counts even if nothing takes its routes.
    plain = _TimedNetwork(demand, *rates, direct_routes(n))
    all_direct = plain.direct.astype(float)
    direct_s = float(plain.busy_s(all_direct).max())
    needed_s = path_s.min(axis=2)[away].max()
    limits_s = np.unique(np.round(path_s[away[:, :, None] & np.isfinite(path_s)], 6))
    limits_s = limits_s[(limits_s >= needed_s - 1e-6) & (limits_s < direct_s)]
    found: list[tuple[float, FloatArray, _TimedNetwork]] = []

    def end_s(limit_s: float, asked_s: float = 0.0) -> float:
        network = _TimedNetwork(demand, *rates, path_s <= limit_s + 1e-6)
        even = network.allowed / np.maximum(network.allowed.sum(axis=2, keepdims=True), 1)
        scale_s = float(network.busy_s(even).max())
        exact = solve(network, scale_s, TOLERANCE, asked_s)[0]
        shares = rounded_shares(exact, network.allowed)
        found.append((float(network.busy_s(shares).max()), shares, network))
        return float(network.busy_s(exact).max())

    low, high = 0, len(limits_s) - 1
    while low < high:
        middle = (low + high) // 2
        # If the longest route takes nearly all of the time, even longer ones do not help.
        asked_s = (1 + TOLERANCE) * limits_s[middle]
        if end_s(limits_s[middle], asked_s) <= asked_s:
            high = middle
        else:
            low = middle + 1
    if high >= 0:
        end_s(limits_s[low])
    takes_s, shares, network = min(found, key=itemgetter(0), default=(direct_s, all_direct, plain))
    if takes_s >= direct_s:
        return QuickestRoutes(all_direct, direct_s, direct_s)
    return QuickestRoutes(_straightened(network, shares, takes_s), takes_s, direct_s)


def _straightened(network: _TimedNetwork, shares: FloatArray, takes_s: float) -> FloatArray:
    """Return ``shares`` without the detours that gain nothing, one pair of clusters at a time."""
    for a, b in np.argwhere(network.direct.any(axis=2) & (shares * ~network.direct).any(axis=2)):
        changed = shares.copy()
        changed[a, b] = network.direct[a, b]
        if network.busy_s(changed).max() <= (1 + UNGAINED) * takes_s:
            shares = changed
    return shares


def quickest_routes(model: GridModel, n_bytes: int) -> QuickestRoutes:
    """Return the quickest routes of an all-to-all with blocks of ``n_bytes``, over ``model``."""
    return _of_model(ModelKey(model), n_bytes)


@lru_cache(maxsize=32)
def _of_model(key: ModelKey, n_bytes: int) -> QuickestRoutes:
    model = key.model
    blocks, host_bytes_per_s = model.exchange_demand
    # A short message keeps its rank busy for longer than its bytes take.
    n_ranks = np.array(model.grid.ranks_per_cluster, float)
    of_ranks = n_ranks * n_bytes / np.diagonal(model.gap_s(n_bytes))
    host_bytes_per_s = np.minimum(host_bytes_per_s, of_ranks)
    return find_quickest_routes(
        blocks * n_bytes, model.link_bytes_per_s, host_bytes_per_s, model.uplinks, model.latency_s
    )
