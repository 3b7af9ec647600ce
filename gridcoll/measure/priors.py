"""Estimates for natives that were not timed: the library's known algorithms, priced by the model.

Libraries work by rank numbers, whatever clusters ranks are in, and forward a message when all of it
has arrived. The algorithms are those of Thakur, Rabenseifner and Gropp (2005), which MPICH, Intel
MPI and, with other thresholds, Open MPI use. Other costs, for example of busy waiting, are not
included, so estimates tend to be too short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gridcoll.measure.trials import affordable
from gridcoll.model import GridModel, TimesBySize
from gridcoll.plan.alltoall.cost import retransmission_s

PRIOR_SIZES = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22)

SHORT_BCAST_BYTES = 12 << 10
SHORT_REDUCE_BYTES = 2 << 10
SHORT_BLOCK_BYTES = 256
LONG_BLOCK_BYTES = 32 << 10
SHORT_GATHERED_BYTES = 512 << 10
"""MPICH's defaults. Up to the first three sizes, algorithms with few steps are used, and beyond
them algorithms with few bytes."""

MOST_STEPS = 64
"""Most steps of an exchange that are priced, evenly spread: it may have thousands of them."""


class _Steps(NamedTuple):
    """Messages of one size, with what does not depend on the size. Each array is (steps, messages).

    The messages of a step all start at once, those of the next step when they have arrived.
    """

    sending: np.ndarray
    receiving: np.ndarray
    """The clusters of the messages' senders and receivers."""
    is_away: np.ndarray
    """Whether they leave their host."""
    flows: np.ndarray
    """How many of a step's messages go between these two clusters; 0 inside a cluster."""
    sent_before: np.ndarray
    received_before: np.ndarray
    """How many messages the interface of the sender and of the receiver has to carry before."""


class _Prices:
    """Prices steps and trees over ranks in rank order, in seconds."""

    def __init__(self, model: GridModel) -> None:
        self.n = model.grid.n_ranks
        self.model = model
        self._cluster = np.array(model.grid.cluster_of)
        self._host = np.array(model.grid.host_of)
        self._tables: dict[float, tuple[np.ndarray, np.ndarray]] = {}
        self._shifts: dict[tuple[int, ...], _Steps] = {}

    def _times(self, n_bytes: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the gap and the one-way time between clusters, (C, C) each."""
        if n_bytes not in self._tables:
            gap_s, one_way_s = self.model.gap_and_one_way_s(np.array([float(n_bytes)]))
            self._tables[n_bytes] = gap_s[..., 0], one_way_s[..., 0]
        return self._tables[n_bytes]

    def _steps(self, *steps: tuple[np.ndarray, np.ndarray]) -> _Steps:
        """Return steps of messages, each from an array of ranks to another."""
        rows = [self._step(*ends) for ends in steps]
        return _Steps(*(np.array(column) for column in zip(*rows, strict=True)))

    def _step(self, senders: np.ndarray, receivers: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return a row of each array of `_Steps`."""
        i, j = self._cluster[senders], self._cluster[receivers]
        away = self._host[senders] != self._host[receivers]
        n = self.model.n_clusters
        flows = np.bincount(i[away] * n + j[away], minlength=n * n)[i * n + j]

        def before(ranks: np.ndarray) -> np.ndarray:
            hosts = self._host[ranks]
            load = np.bincount(hosts[away], minlength=hosts.max(initial=0) + 1)
            return np.asarray(load[hosts] - 1)

        return i, j, away, np.where(i != j, flows, 0), before(senders), before(receivers)

    def _shifted(self, *distances: int) -> _Steps:
        """Return one step per distance: each rank sends to the rank so far ahead."""
        if distances not in self._shifts:
            ranks = np.arange(self.n)
            steps = self._steps(*((ranks, (ranks + k) % self.n) for k in distances))
            self._shifts[distances] = steps
        return self._shifts[distances]

    @cached_property
    def _exchanges(self) -> list[_Steps]:
        """The steps of `doubling_s`."""
        whole = 1 << (self.n.bit_length() - 1)
        ranks = np.arange(whole)
        return [self._steps((ranks, ranks ^ (1 << k))) for k in range(whole.bit_length() - 1)]

    def _lone_s(self, steps: _Steps, n_bytes: float) -> np.ndarray:
        """Return one-way times; inside a host, that of an empty message."""
        i, j = steps.sending, steps.receiving
        one_way_s, empty_s = self._times(n_bytes)[1], self._times(0)[1]
        return np.asarray(np.where(steps.is_away, one_way_s[i, j], empty_s[i, j]))

    def steps_s(self, steps: _Steps, n_bytes: float) -> float:
        """Return the time of all steps. A step's messages share interfaces and links."""
        lone_s, inside_s = self._lone_s(steps, n_bytes), self._times(n_bytes)[0].diagonal()
        i, j, model = steps.sending, steps.receiving, self.model
        shared_s = steps.flows * n_bytes / model.link_bytes_per_s[i, j] + model.latency_s[i, j]
        queued_s = np.maximum(steps.sent_before * inside_s[i], steps.received_before * inside_s[j])
        taken_s = np.maximum(lone_s + queued_s, np.where(steps.flows > 0, shared_s, 0.0))
        return float(np.where(steps.is_away, taken_s, lone_s).max(axis=1, initial=0.0).sum())

    def tree_s(self, size_of: Callable[[int], float]) -> float:
        """Return the time down a binomial tree from rank 0.

        ``size_of`` gives the bytes for a subtree of some number of ranks.
        """
        there_s, cluster, host = [0.0] * self.n, self._cluster.tolist(), self._host.tolist()
        empty_s = self._times(0)[1]
        for rank in range(self.n):
            mask = rank & -rank if rank else 1 << (self.n - 1).bit_length()
            free_s = there_s[rank]
            while (mask := mask >> 1) > 0:
                if (child := rank + mask) < self.n:
                    gap_s, one_way_s = self._times(size_of(min(mask, self.n - child)))
                    link = cluster[rank], cluster[child]
                    times_s = empty_s if host[rank] == host[child] else one_way_s
                    there_s[child] = free_s + float(times_s[link])
                    free_s += float(gap_s[link])
        return max(there_s)

    def doubling_s(self, size_at: Callable[[int], float]) -> float:
        """Return the time of exchanges between pairs at distance 1, 2, 4, and so on.

        Ranks beyond a power of two exchange with a partner before and after them.
        """
        exchanges = self._exchanges
        total_s = sum(self.steps_s(step, size_at(k)) for k, step in enumerate(exchanges))
        whole = 1 << len(exchanges)
        if rest := self.n - whole:
            beyond = np.arange(rest)
            total_s += 2 * self.steps_s(self._steps((whole + beyond, beyond)), size_at(0))
        return total_s

    def ring_s(self, n_bytes: float) -> float:
        """Return the time of every rank's block once around the ring.

        It is limited by the path of one block, or by the slowest link.
        """
        step = self._shifted(1)
        around_s = self._lone_s(step, n_bytes)
        slowest_s = self.steps_s(step, n_bytes) - float(self.model.latency_s.max())
        return float(max(around_s.sum() - around_s.min(), (self.n - 1) * slowest_s))

    def shifts_s(self, distances: Sequence[int], n_bytes: float) -> float:
        """Return the time of one step per distance: each rank sends to the rank so far ahead."""
        if not distances:
            return 0.0
        some = distances
        if len(distances) > MOST_STEPS:
            places = np.linspace(0, len(distances) - 1, MOST_STEPS).astype(int)
            some = [distances[place] for place in places]
        took_s = self.steps_s(self._shifted(*some), n_bytes)
        return took_s * len(distances) / len(some)

    @property
    def powers(self) -> list[int]:
        return [1 << k for k in range((self.n - 1).bit_length())]


def _bcast(prices: _Prices, n_bytes: int) -> float:
    if n_bytes < SHORT_BCAST_BYTES or prices.n < 8:
        return prices.tree_s(lambda _n: n_bytes)
    block = n_bytes / prices.n
    return prices.tree_s(lambda n: n * block) + _allgather(prices, block)


def _allgather(prices: _Prices, block: float) -> float:
    if block * prices.n < SHORT_GATHERED_BYTES:
        return prices.doubling_s(lambda k: block * (1 << k))
    return prices.ring_s(block)


def _allreduce(prices: _Prices, n_bytes: int) -> float:
    if n_bytes <= SHORT_REDUCE_BYTES:
        return prices.doubling_s(lambda _k: n_bytes)
    return 2 * prices.doubling_s(lambda k: n_bytes / (2 << k))


def _reduce(prices: _Prices, n_bytes: int) -> float:
    if n_bytes <= SHORT_REDUCE_BYTES:
        return prices.tree_s(lambda _n: n_bytes)
    block = n_bytes / prices.n
    return prices.doubling_s(lambda k: n_bytes / (2 << k)) + prices.tree_s(lambda n: n * block)


def _alltoall(prices: _Prices, n_bytes: int) -> float:
    if n_bytes <= SHORT_BLOCK_BYTES:
        return prices.shifts_s(prices.powers, n_bytes * prices.n / 2)
    distances = range(1, prices.n)
    lost_s = retransmission_s(prices.model, n_bytes)
    if n_bytes > LONG_BLOCK_BYTES:
        return prices.shifts_s(distances, n_bytes) + lost_s
    # All messages are in flight at once: latencies overlap, busy times of interfaces and links add.
    together_s = prices.shifts_s(distances, n_bytes) - prices.shifts_s(distances, 0)
    return prices.shifts_s([max(distances, default=1)], 0) + max(together_s, 0.0) + lost_s


def _scatter(prices: _Prices, n_bytes: int) -> float:
    return prices.tree_s(lambda n: n * n_bytes)


def _reduce_scatter(prices: _Prices, n_bytes: int) -> float:
    total = n_bytes * prices.n
    if total < SHORT_GATHERED_BYTES:
        return prices.doubling_s(lambda k: total / (2 << k))
    return prices.shifts_s(range(1, prices.n), n_bytes)


def _barrier(prices: _Prices, _n_bytes: int) -> float:
    return prices.shifts_s(prices.powers, 0)


_PRIORS: Mapping[str, Callable[[_Prices, int], float]] = {
    "bcast": _bcast,
    "allreduce": _allreduce,
    "reduce": _reduce,
    "alltoall": _alltoall,
    "gather": _scatter,
    "scatter": _scatter,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
    "barrier": _barrier,
}


def native_priors(model: GridModel) -> dict[str, TimesBySize]:
    """Return estimated times of the library's algorithms for collectives that discovery times."""
    prices = _Prices(model)
    found = {}
    for name, price in _PRIORS.items():
        sizes = affordable(name, prices.n, PRIOR_SIZES)
        found[name] = TimesBySize(sizes, tuple(float(price(prices, size)) for size in sizes))
    return found


def native_prior_s(collective: str, model: GridModel, n_bytes: int) -> float:
    """Return the same for one call in seconds, rounded so that all ranks have the same value."""
    return float(f"{_PRIORS[collective](_Prices(model), n_bytes):.3g}")


def add_priors(model: GridModel) -> GridModel:
    """Return ``model`` with `native_priors` for natives that were not timed.

    On one host, nothing competes with natives, and ``model`` stays as it is.
    """
    if len(set(model.grid.host_of)) == 1:
        return model
    found = {
        name: times
        for name, times in native_priors(model).items()
        if name not in model.native or name in model.native_priors
    }
    return replace(model, native={**model.native, **found}, native_priors=tuple(sorted(found)))
