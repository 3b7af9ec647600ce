"""Estimates for natives that were not timed: the library's known algorithms, priced by the model.

Libraries work by rank numbers, whatever clusters ranks are in, and forward a message when all of it
has arrived. The algorithms are those of Thakur, Rabenseifner and Gropp (2005), which MPICH, Intel
MPI and, with other thresholds, Open MPI use. Other costs, for example of busy waiting, are not
included, so estimates tend to be too short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from gridcoll.measure.trials import affordable
from gridcoll.model import GridModel, TimesBySize
from gridcoll.model.plogp import FloatArray
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


MOST_AT_ONCE = 10_000
"""Steps of at most this many messages are priced for several sizes at once: for a dozen ranks,
calls of NumPy take most of the time, and for thousands, temporary arrays take memory."""

Sizes = tuple[float, ...]
"""Bytes of messages, in ascending order."""

Price = Callable[[Sizes], FloatArray]


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
        self._tables: dict[Sizes, tuple[np.ndarray, np.ndarray]] = {}
        self._trees_s: dict[tuple[float, bool], float] = {}
        self._shifts: dict[tuple[int, ...], _Steps] = {}

    def _times(self, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
        """Return the gap and the one-way time between clusters, (sizes, C, C) each."""
        if sizes not in self._tables:
            gap_s, one_way_s = self.model.gap_and_one_way_s(np.array(sizes, float))
            self._tables[sizes] = gap_s.transpose(2, 0, 1), one_way_s.transpose(2, 0, 1)
        return self._tables[sizes]

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
        """The steps of `doubling_s`: those between pairs, then the one before and after them."""
        whole = 1 << (self.n.bit_length() - 1)
        ranks, beyond = np.arange(whole), np.arange(self.n - whole)
        exchanges = [self._steps((ranks, ranks ^ (1 << k))) for k in range(whole.bit_length() - 1)]
        return [*exchanges, self._steps((whole + beyond, beyond))]

    def _lone_s(self, steps: _Steps, sizes: Sizes) -> FloatArray:
        """Return one-way times, (sizes, steps, messages); inside a host, of an empty message."""
        i, j = steps.sending, steps.receiving
        one_way_s, empty_s = self._times(sizes)[1], self._times((0.0,))[1]
        return np.asarray(np.where(steps.is_away, one_way_s[:, i, j], empty_s[:, i, j]))

    def steps_s(self, steps: _Steps, sizes: Sizes) -> FloatArray:
        """Return the time of all steps, by size. A step's messages share interfaces and links."""
        if len(sizes) > 1 and steps.is_away.size > MOST_AT_ONCE:
            return np.concatenate([self.steps_s(steps, (size,)) for size in sizes])
        lone_s, gap_s = self._lone_s(steps, sizes), self._times(sizes)[0]
        inside_s = gap_s.diagonal(axis1=1, axis2=2)
        i, j, model = steps.sending, steps.receiving, self.model
        crossing = steps.flows / model.link_bytes_per_s[i, j]
        shared_s = np.multiply.outer(sizes, crossing) + model.latency_s[i, j]
        queued_s = np.maximum(
            steps.sent_before * inside_s[:, i], steps.received_before * inside_s[:, j]
        )
        taken_s = np.maximum(lone_s + queued_s, np.where(steps.flows > 0, shared_s, 0.0))
        each_s = np.where(steps.is_away, taken_s, lone_s).max(axis=2, initial=0.0)
        return np.asarray(each_s.sum(axis=1))

    def tree_s(self, sizes: Sizes, *, parts: bool) -> FloatArray:
        """Return the time down a binomial tree from rank 0, by size.

        With ``parts``, a size is that of each rank's part, and a rank is sent the parts of its
        subtree; otherwise all ranks get the same message.
        """
        for size in sizes:
            if (size, parts) not in self._trees_s:
                self._trees_s[size, parts] = self._one_tree_s(size, parts)
        return np.array([self._trees_s[size, parts] for size in sizes])

    @cached_property
    def _subtrees(self) -> list[int]:
        """The numbers of ranks that subtrees of a binomial tree have."""
        n = self.n
        steps = [1 << k for k in range(n.bit_length())]
        return sorted({min(step, n - child) for step in steps for child in range(step, n, step)})

    def _one_tree_s(self, size: float, parts: bool) -> float:
        n, cluster, host = self.n, self._cluster.tolist(), self._host.tolist()
        counts = self._subtrees if parts else [1]
        gaps_s, times_s = self._times(tuple(size * count for count in counts))
        of_count = {count: at for at, count in enumerate(counts)}
        empty_s = self._times((0.0,))[1][0]
        there_s = [0.0] * n
        for rank in range(n):
            mask = rank & -rank if rank else 1 << (n - 1).bit_length()
            free_s = there_s[rank]
            while (mask := mask >> 1) > 0:
                if (child := rank + mask) < n:
                    at = of_count[min(mask, n - child) if parts else 1]
                    i, j = cluster[rank], cluster[child]
                    one_way_s = empty_s if host[rank] == host[child] else times_s[at]
                    there_s[child] = free_s + float(one_way_s[i, j])
                    free_s += float(gaps_s[at, i, j])
        return max(there_s)

    def doubling_s(self, sizes: Sizes, factor: float = 1.0) -> FloatArray:
        """Return the time of exchanges between pairs at distance 1, 2, 4, and so on, by size.

        ``sizes`` are those of the first exchange; each has ``factor`` times the bytes of the one
        before. Ranks beyond a power of two exchange with a partner before and after them.
        """
        *exchanges, beyond = self._exchanges
        total_s = np.zeros(len(sizes))
        for k, step in enumerate(exchanges):
            total_s += self.steps_s(step, tuple(size * factor**k for size in sizes))
        if beyond.is_away.size:
            total_s += 2 * self.steps_s(beyond, sizes)
        return total_s

    def ring_s(self, sizes: Sizes) -> FloatArray:
        """Return the time of every rank's block once around the ring, by size.

        It is limited by the path of one block, or by the slowest link.
        """
        step = self._shifted(1)
        around_s = self._lone_s(step, sizes)[:, 0]
        slowest_s = self.steps_s(step, sizes) - float(self.model.latency_s.max())
        block_s = around_s.sum(axis=1) - around_s.min(axis=1)
        return np.asarray(np.maximum(block_s, (self.n - 1) * slowest_s))

    def shifts_s(self, distances: Sequence[int], sizes: Sizes) -> FloatArray:
        """Return the time of one step per distance: each rank sends to the rank so far ahead."""
        if not distances:
            return np.zeros(len(sizes))
        some = distances
        if len(distances) > MOST_STEPS:
            places = np.linspace(0, len(distances) - 1, MOST_STEPS).astype(int)
            some = [distances[place] for place in places]
        return self.steps_s(self._shifted(*some), sizes) * len(distances) / len(some)

    @property
    def powers(self) -> list[int]:
        return [1 << k for k in range((self.n - 1).bit_length())]


def _by_size(sizes: Sizes, most_bytes: float, short: Price, long: Price) -> FloatArray:
    """Return the times of ``sizes`` (ascending): ``short`` up to ``most_bytes``, ``long`` beyond.

    Both are asked for all of their sizes at once.
    """
    n_short = sum(size <= most_bytes for size in sizes)
    parts = (short, sizes[:n_short]), (long, sizes[n_short:])
    return np.concatenate([price(some) for price, some in parts if some])


def _parts(sizes: Sizes, n_parts: float) -> Sizes:
    return tuple(size / n_parts for size in sizes)


def _bcast(prices: _Prices, sizes: Sizes) -> FloatArray:
    def long(sizes: Sizes) -> FloatArray:
        blocks = _parts(sizes, prices.n)
        return prices.tree_s(blocks, parts=True) + _allgather(prices, blocks)

    most_bytes = math.inf if prices.n < 8 else SHORT_BCAST_BYTES - 1
    return _by_size(sizes, most_bytes, lambda some: prices.tree_s(some, parts=False), long)


def _allgather(prices: _Prices, sizes: Sizes) -> FloatArray:
    most_bytes = (SHORT_GATHERED_BYTES - 1) / prices.n
    return _by_size(sizes, most_bytes, lambda some: prices.doubling_s(some, 2.0), prices.ring_s)


def _allreduce(prices: _Prices, sizes: Sizes) -> FloatArray:
    def long(sizes: Sizes) -> FloatArray:
        return 2 * prices.doubling_s(_parts(sizes, 2), 0.5)

    return _by_size(sizes, SHORT_REDUCE_BYTES, prices.doubling_s, long)


def _reduce(prices: _Prices, sizes: Sizes) -> FloatArray:
    def long(sizes: Sizes) -> FloatArray:
        tree_s = prices.tree_s(_parts(sizes, prices.n), parts=True)
        return prices.doubling_s(_parts(sizes, 2), 0.5) + tree_s

    return _by_size(sizes, SHORT_REDUCE_BYTES, lambda some: prices.tree_s(some, parts=False), long)


def _alltoall(prices: _Prices, sizes: Sizes) -> FloatArray:
    distances = range(1, prices.n)

    def lost_s(sizes: Sizes) -> FloatArray:
        return np.array([retransmission_s(prices.model, int(size)) for size in sizes])

    def short(sizes: Sizes) -> FloatArray:
        return prices.shifts_s(prices.powers, _parts(sizes, 2 / prices.n))

    def at_once(sizes: Sizes) -> FloatArray:
        # All messages are in flight at once: latencies overlap, busy times add.
        together_s = prices.shifts_s(distances, sizes) - prices.shifts_s(distances, (0.0,))
        alone_s = prices.shifts_s([max(distances, default=1)], (0.0,))
        return alone_s + np.maximum(together_s, 0.0) + lost_s(sizes)

    def in_turns(sizes: Sizes) -> FloatArray:
        return prices.shifts_s(distances, sizes) + lost_s(sizes)

    def long(sizes: Sizes) -> FloatArray:
        return _by_size(sizes, LONG_BLOCK_BYTES, at_once, in_turns)

    return _by_size(sizes, SHORT_BLOCK_BYTES, short, long)


def _scatter(prices: _Prices, sizes: Sizes) -> FloatArray:
    return prices.tree_s(sizes, parts=True)


def _reduce_scatter(prices: _Prices, sizes: Sizes) -> FloatArray:
    most_bytes = (SHORT_GATHERED_BYTES - 1) / prices.n

    def short(sizes: Sizes) -> FloatArray:
        return prices.doubling_s(_parts(sizes, 2 / prices.n), 0.5)

    def long(sizes: Sizes) -> FloatArray:
        return prices.shifts_s(range(1, prices.n), sizes)

    return _by_size(sizes, most_bytes, short, long)


def _barrier(prices: _Prices, sizes: Sizes) -> FloatArray:
    return prices.shifts_s(prices.powers, (0.0,) * len(sizes))


_PRIORS: Mapping[str, Callable[[_Prices, Sizes], FloatArray]] = {
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


def native_prior(collective: str, model: GridModel) -> TimesBySize:
    """Return estimated times of the library's algorithms for a collective."""
    prices = _Prices(model)
    sizes = affordable(collective, prices.n, PRIOR_SIZES)
    return TimesBySize(sizes, tuple(_PRIORS[collective](prices, sizes).tolist()))


class _WithEstimates(Mapping[str, TimesBySize]):
    """Times of natives by collective; those of ``estimated`` are computed when first needed.

    A start must not wait for estimates of collectives that the application never calls.
    """

    def __init__(
        self, measured: Mapping[str, TimesBySize], estimated: Iterable[str], model: GridModel
    ) -> None:
        self._times = dict(measured)
        self._names = dict.fromkeys((*measured, *estimated))
        self._model = model

    def __getitem__(self, collective: str) -> TimesBySize:
        if collective in self._names and collective not in self._times:
            self._times[collective] = native_prior(collective, self._model)
        return self._times[collective]

    def __contains__(self, collective: object) -> bool:
        return collective in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def native_prior_s(collective: str, model: GridModel, n_bytes: int) -> float:
    """Return the same for one call, in seconds, rounded so that all ranks have the same value."""
    return float(f"{_PRIORS[collective](_Prices(model), (n_bytes,))[0]:.3g}")


def add_priors(model: GridModel) -> GridModel:
    """Return ``model`` with `native_priors` for natives that were not timed.

    On one host, nothing competes with natives, and ``model`` stays as it is.
    """
    if len(set(model.grid.host_of)) == 1:
        return model
    measured = {
        name: times for name, times in model.native.items() if name not in model.native_priors
    }
    estimated = sorted(_PRIORS.keys() - measured.keys())
    native = _WithEstimates(measured, estimated, model)
    return replace(model, native=native, native_priors=tuple(estimated))
