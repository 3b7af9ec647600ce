"""How long messages take, between every two clusters and inside each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, TypeVar, overload

import msgspec
import numpy as np

from gridcoll.constants import UNLIKE_INTERFACES, WINDOWS_LIMIT
from gridcoll.errors import UsageError
from gridcoll.model.correction import Correction
from gridcoll.model.plogp import LONG_BYTES, FloatArray, PLogP, linear_plogp
from gridcoll.model.routing import Routes, find_routes
from gridcoll.topology.grid import Cluster, Grid
from gridcoll.topology.gridfile import GridSpec

T = TypeVar("T")

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class TimesBySize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured seconds at some sizes: interpolated in between, in proportion to size beyond."""

    sizes_bytes: tuple[int, ...]
    """Ascending."""
    seconds: tuple[Seconds, ...]
    """Medians at those sizes."""

    def __post_init__(self) -> None:
        ascending = list(self.sizes_bytes) == sorted(set(self.sizes_bytes))
        if not self.sizes_bytes or not ascending or len(self.sizes_bytes) != len(self.seconds):
            raise UsageError(
                f"times by size: need as many times as ascending sizes, got {self.sizes_bytes} "
                f"and {self.seconds}"
            )

    @overload
    def predict(self, n_bytes: float) -> float: ...
    @overload
    def predict(self, n_bytes: FloatArray) -> FloatArray: ...
    def predict(self, n_bytes: float | FloatArray) -> float | FloatArray:
        """Seconds for ``n_bytes``, a number or an array."""
        inside = np.interp(n_bytes, self.sizes_bytes, self.seconds)
        result = inside * np.maximum(1.0, np.asarray(n_bytes) / max(self.sizes_bytes[-1], 1))
        return result if isinstance(n_bytes, np.ndarray) else float(result)

    def updated(self, n_bytes: int, seconds: float) -> TimesBySize:
        """With ``seconds`` at ``n_bytes``, whatever was there."""
        by_size = {**dict(zip(self.sizes_bytes, self.seconds, strict=True)), n_bytes: seconds}
        sizes = sorted(by_size)
        return TimesBySize(tuple(sizes), tuple(by_size[size] for size in sizes))


MOST_ASKED, LARGEST_ASKED = 64, 8192
"""Results of `GridModel.gap_and_one_way_s` that are kept, and numbers in each: 8 MiB in all."""


@dataclass(frozen=True)
class GridModel:
    """A grid and the pLogP of its links."""

    grid: Grid
    links: tuple[tuple[PLogP | None, ...], ...]
    """``links[i][j]`` from cluster i to cluster j; ``links[i][i]`` inside i, None for a cluster of
    one process."""
    origin: Literal["measured", "declared"] = "declared"
    tolerance: float = 0.3
    """ρ the clusters were found with."""
    native: Mapping[str, TimesBySize] = field(default_factory=dict)
    """By collective name; what is missing was not measured."""
    relay_gap: TimesBySize | None = None
    """Time per segment, by segment size, when all ranks pass segments on at once: what our own
    engine and ranks that share cores make of the links. No plan goes faster."""
    aggregate_bytes_per_s: tuple[tuple[float, ...], ...] = ()
    """What several flows carry together between clusters, (C, C); empty: not measured. Above the
    rate of one flow where a TCP window limits that."""
    start_s: float = 0.0
    """What the shortest plan takes longer than its links say: the cost of waiting politely and of
    ranks that share cores. Counted once for every plan."""
    contention: tuple[float, ...] = ()
    """γ inside each cluster (paper 003, section 5.1): where between its bounds an all-to-all lies,
    0 where overheads alone limit, 1 where every message keeps its interface for a gap; above that
    where flows hinder one another. Empty: not measured, counted as 1."""
    corrections: Mapping[str, Mapping[str, Correction]] = field(default_factory=dict)
    """By collective and family of algorithms: how much longer plans took than the model said when
    they were tried at discovery."""
    native_variants: Mapping[str, Mapping[str, TimesBySize]] = field(default_factory=dict)
    """By collective and name: other calls of the library that do the same, up to the size at which
    timing one was given up because it could not win."""
    mpi: str = ""
    """The MPI library it was measured under; empty where that is not known, or does not matter."""
    native_priors: tuple[str, ...] = ()
    """Collectives whose ``native`` times nobody measured: they are reckoned from the library's
    known algorithms."""
    native_runs: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)
    """How many runs of natives were counted: by collective, by native, by size. Empty where nobody
    said."""
    stages: tuple[str, ...] = ()
    """What a discovery has finished of its stages; the rest was estimated, or left out."""
    sources: tuple[tuple[str, ...], ...] = ()
    """Where each of ``links`` comes from, for people, as "measured 2026-11-20"; empty where nothing
    is known but ``origin``."""
    uplink_bytes_per_s: tuple[float, ...] = ()
    """By cluster, what all that leaves it carries together, and all that enters it; 0 where nothing
    is known that limits. Empty: of no cluster. Of a lone host: its interface."""

    def __post_init__(self) -> None:
        n = len(self.grid.clusters)
        rows = self.aggregate_bytes_per_s
        if rows and (len(rows) != n or any(len(row) != n or min(row) <= 0 for row in rows)):
            raise UsageError(f"aggregate_bytes_per_s: must be {n} x {n} and positive, got {rows}")
        uplinks = self.uplink_bytes_per_s
        if uplinks and (len(uplinks) != n or min(uplinks) < 0):
            raise UsageError(f"uplink_bytes_per_s: must be {n} numbers from 0 on, got {uplinks}")
        if self.contention and (len(self.contention) != n or min(self.contention) < 0):
            raise UsageError(f"contention: must be {n} numbers from 0 on, got {self.contention}")
        if self.sources and [len(row) for row in self.sources] != [n] * n:
            raise UsageError(f"sources: must be {n} x {n} for {n} clusters")
        if len(self.links) != n or any(len(row) != n for row in self.links):
            raise UsageError(f"links: must be {n} x {n} for {n} clusters")
        for i, row in enumerate(self.links):
            for j, link in enumerate(row):
                if link is None and (i != j or len(self.grid.clusters[i]) > 1):
                    raise UsageError(f"links[{i}][{j}]: missing")

    @property
    def n_clusters(self) -> int:
        return len(self.links)

    def source(self, i: int, j: int) -> str:
        """Where the link from cluster ``i`` to ``j`` comes from, for people."""
        return (self.sources[i][j] if self.sources else "") or self.origin

    def link(self, i: int, j: int) -> PLogP:
        """The pLogP from cluster ``i`` to cluster ``j``; inside for ``i == j``.

        For a cluster of one process its fastest link outward stands in, with the rate of its
        uplink, or of what several flows carry over its widest link: its interface can do that.
        """
        return self.links[i][j] or self._fastest_outward[i]

    @cached_property
    def _fastest_outward(self) -> tuple[PLogP, ...]:
        """By cluster; where there is but one, of one process, nothing is ever sent."""
        found = []
        for i, row in enumerate(self.links):
            outward = [other for other in row if other is not None]
            largest = max(outward[0].sizes_bytes[-1], 1) if outward else 1
            fastest = min(outward, key=lambda other: other.gap(largest), default=None)
            if fastest is not None and row[i] is None:
                rate = self.uplink_bytes_per_s[i] if self.uplink_bytes_per_s else 0.0
                if not rate and self.aggregate_bytes_per_s:
                    together = self.aggregate_bytes_per_s[i]
                    rate = max(each for j, each in enumerate(together) if j != i)
                if rate * fastest.gap(float(LONG_BYTES)) > LONG_BYTES:
                    fastest = fastest.at_rate(rate)
            found.append(fastest or linear_plogp(1e-6, 10e9))
        return tuple(found)

    @cached_property
    def sample(self) -> Sample:
        """Some ranks that stand for all, where every rank talks to every other."""
        return draw_sample(self)

    @cached_property
    def latency_s(self) -> FloatArray:
        """``L`` between clusters, (C, C); the diagonal is inside a cluster."""
        n = self.n_clusters
        return np.array([[self.link(i, j).latency_s for j in range(n)] for i in range(n)])

    def gap_s(self, n_bytes: float) -> FloatArray:
        """``g(n_bytes)`` between clusters, (C, C); the diagonal is inside a cluster."""
        sizes, gaps, _ = self._tables
        return _table_at(sizes, gaps, np.array([float(n_bytes)]))[..., 0]

    @cached_property
    def _tables(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The union of all links' sizes (K,), and gaps and lone times there, (C, C, K) each."""
        n = self.n_clusters
        links = [self.link(i, j) for i in range(n) for j in range(n)]
        # Links that carry alike differ in their latency only: thousands of them are a few curves.
        number: dict[tuple[tuple[int, ...], tuple[float, ...]], int] = {}
        curve = [number.setdefault((link.sizes_bytes, link.gap_s), len(number)) for link in links]
        sizes = np.array(sorted({size for of_curve, _ in number for size in of_curve}), dtype=float)
        one_of = dict(zip(curve, links, strict=True))
        gaps = np.array([one_of[k].gap(sizes) for k in range(len(number))])[curve]
        one_way = np.array([link.latency_s for link in links])[:, None] + gaps
        for k, link in enumerate(links):
            if link.one_way_s:
                one_way[k] = link.one_way(sizes)
        gaps, one_way = (each.reshape(n, n, len(sizes)) for each in (gaps, one_way))
        return sizes, gaps, one_way

    def gap_and_one_way_s(
        self, n_bytes: FloatArray, links: tuple[Sequence[int], Sequence[int]] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """``g`` and the lone-message time of links at each of S sizes.

        Two (C, C, S) arrays; two (n, S) arrays for the ``links`` named by senders and receivers.
        The gap is at least `relay_gap`: a plan cannot send faster than its ranks run.

        Not to be written to: candidates of a choice ask for the same sizes again and again.
        """
        key = n_bytes.tobytes(), links and (tuple(links[0]), tuple(links[1]))
        found = self._asked.get(key)
        if found is None:
            found = self._gap_and_one_way_s(n_bytes, links)
            for each in found:
                each.flags.writeable = False
            if len(self._asked) >= MOST_ASKED:
                self._asked.clear()
            if found[0].size <= LARGEST_ASKED:
                self._asked[key] = found
        return found

    @cached_property
    def _asked(self) -> dict[object, tuple[FloatArray, FloatArray]]:
        """The last results of `gap_and_one_way_s`."""
        return {}

    def _gap_and_one_way_s(
        self, n_bytes: FloatArray, links: tuple[Sequence[int], Sequence[int]] | None
    ) -> tuple[FloatArray, FloatArray]:
        sizes, gaps, one_way = self._tables
        if links is not None:
            gaps, one_way = gaps[links], one_way[links]
        gap_s, one_way_s = (_table_at(sizes, each, n_bytes) for each in (gaps, one_way))
        if self.relay_gap:
            rates = self.flow_bytes_per_s if links is None else self.flow_bytes_per_s[links]
            # A few messages pass in a burst; those of a stream take as long as the rate says.
            stream_s = np.maximum(gap_s, n_bytes / rates[..., None])
            gap_s = np.maximum(gap_s, self._floor_s(n_bytes, stream_s))
        return gap_s, one_way_s

    def _floor_s(self, n_bytes: FloatArray, stream_s: FloatArray) -> FloatArray:
        """What ranks that all pass segments on make of links with gaps ``stream_s``, (…, S).

        They waited for the slowest interface. Where interfaces are unlike and that alone explains
        `relay_gap`, it says nothing of what faster ones are kept from: they are slowed down in
        proportion.
        """
        floor = self.relay_gap.predict(n_bytes) if self.relay_gap else np.zeros_like(n_bytes)
        sizes, gaps, _ = self._tables
        inside = _table_at(sizes, np.einsum("iik->ik", gaps), n_bytes)
        rates = self.flow_bytes_per_s.diagonal()
        slowest = np.maximum(inside.max(axis=0), n_bytes / rates.min())
        is_unlike = rates.max() > UNLIKE_INTERFACES * rates.min()
        explains = is_unlike & (floor <= UNLIKE_INTERFACES * slowest)
        slower = np.minimum(floor, stream_s * (floor / np.maximum(slowest, 1e-12)))
        return np.asarray(np.where(explains, slower, floor))

    @cached_property
    def flow_bytes_per_s(self) -> FloatArray:
        """What one flow of long messages carries, (C, C); the diagonal is an interface's rate."""
        large = float(LONG_BYTES)
        return np.asarray(large / np.maximum(self.gap_s(large), 1e-12))

    @cached_property
    def link_bytes_per_s(self) -> FloatArray:
        """Between clusters, what all flows of a direction carry together, (C, C)."""
        if not self.aggregate_bytes_per_s:
            return self.flow_bytes_per_s
        return np.asarray(np.maximum(self.flow_bytes_per_s, np.array(self.aggregate_bytes_per_s)))

    @cached_property
    def uplinks(self) -> FloatArray:
        """What leaves or enters each cluster, (C,); infinite where nothing is known that limits."""
        rates = np.array(self.uplink_bytes_per_s or (0.0,) * self.n_clusters)
        return np.asarray(np.where(rates > 0, rates, np.inf))

    @cached_property
    def windows_limit(self) -> np.ndarray:
        """Where several flows carry more than `WINDOWS_LIMIT` times what one does, (C, C) bool."""
        return np.asarray(self.link_bytes_per_s > WINDOWS_LIMIT * self.flow_bytes_per_s)

    @cached_property
    def exchange_demand(self) -> tuple[FloatArray, FloatArray]:
        """Blocks of an all-to-all between clusters, (C, C), and what their interfaces carry, (C,).

        The diagonal is what passes interfaces inside clusters.
        """
        sizes = np.array([len(cluster) for cluster in self.grid.clusters], float)
        n_hosts = np.array([len(cluster.nodes) for cluster in self.grid.clusters], float)
        demand = np.outer(sizes, sizes)
        beside = [sum(len(node) ** 2 for node in cluster.nodes) for cluster in self.grid.clusters]
        np.fill_diagonal(demand, sizes * sizes - np.array(beside, float))
        return demand, n_hosts * self.flow_bytes_per_s.diagonal()

    @cached_property
    def exchange_routes(self) -> Routes:
        """Which way the blocks of an all-to-all go; found once, as it does not depend on sizes."""
        demand, rates = self.exchange_demand
        uplinks = self.uplinks
        return find_routes(demand, self.link_bytes_per_s, rates, uplink_bytes_per_s=uplinks)

    def restrict(self, ranks: Sequence[int]) -> GridModel:
        """The model of a sub-communicator whose rank ``i`` is ``ranks[i]`` here.

        Native times do not carry over: another number of ranks has other times.
        """
        grid, origin = self.grid.restrict(ranks)

        def link(a: int, b: int, cluster: Cluster) -> PLogP | None:
            if a != b or len(cluster) > 1:
                return self.link(a, b)
            # Between processes of one host it says nothing of the interface of what is left.
            before = self.grid.clusters[a]
            return self.links[a][a] if len(before.nodes) > 1 or len(before) == 1 else None

        links = tuple(
            tuple(link(a, b, cluster) for b in origin)
            for a, cluster in zip(origin, grid.clusters, strict=True)
        )

        def by_cluster(row: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(row[c] for c in origin) if row else ()

        def by_link(rows: tuple[tuple[T, ...], ...]) -> tuple[tuple[T, ...], ...]:
            return tuple(map(by_cluster, by_cluster(rows)))

        return GridModel(
            grid,
            links,
            self.origin,
            self.tolerance,
            relay_gap=self.relay_gap,
            aggregate_bytes_per_s=by_link(self.aggregate_bytes_per_s),
            start_s=self.start_s,
            contention=by_cluster(self.contention),
            corrections=self.corrections,
            mpi=self.mpi,
            sources=by_link(self.sources),
            uplink_bytes_per_s=by_cluster(self.uplink_bytes_per_s),
        )


def _table_at(sizes: FloatArray, table: FloatArray, n_bytes: FloatArray) -> FloatArray:
    """``table`` (..., K) over ``sizes`` (K,), interpolated at ``n_bytes`` (S,): (..., S).

    Beyond the largest size measured, the last interval's slope goes on, but never down. Below the
    smallest, its value holds, as in `PLogP`: times must not fall below zero.
    """
    upper = np.clip(np.searchsorted(sizes, n_bytes), 1, len(sizes) - 1)
    part = np.maximum((n_bytes - sizes[upper - 1]) / (sizes[upper] - sizes[upper - 1]), 0.0)
    low, high = table[..., upper - 1], table[..., upper]
    rise = high - low
    beyond = high + (part - 1) * np.maximum(rise, 0.0)
    return np.asarray(np.where(part > 1, beyond, low + part * rise))


def declared_model(spec: GridSpec, hosts: Sequence[str]) -> GridModel:
    """The model that a grid file implies for a job whose rank ``i`` runs on ``hosts[i]``.

    ``g(m)`` is ``m`` over the slowest of both NICs, the link, and one TCP window per round trip.
    """
    grid, origin = spec.assign(hosts)

    def link(i: int, j: int) -> PLogP:
        rates = [spec.nic_bytes_per_s[i], spec.nic_bytes_per_s[j]]
        if i != j:
            rates += [spec.rate_bytes_per_s[i, j]]
            rates += [spec.uplink_bytes_per_s[i], spec.uplink_bytes_per_s[j]]
        latency_s = float(spec.latency_s[i, j])
        if spec.window_bytes and latency_s:
            rates.append(spec.window_bytes / (2 * latency_s))
        return linear_plogp(latency_s, float(min(rates)))

    # Of a lone host, too: what its interface carries over several links at once.
    links = tuple(tuple(link(a, b) for b in origin) for a in origin)
    uplinks = [float(spec.uplink_bytes_per_s[c]) for c in origin]
    known = tuple(rate if np.isfinite(rate) else 0.0 for rate in uplinks)
    return GridModel(
        grid,
        links,
        "declared",
        aggregate_bytes_per_s=_together(spec, grid, origin),
        uplink_bytes_per_s=known if any(known) and len(origin) > 1 else (),
    )


def _together(spec: GridSpec, grid: Grid, origin: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """What the declared wires carry between clusters when all their hosts send."""

    def rate(i: int, j: int) -> float:
        hosts = [len(cluster.nodes) for cluster in grid.clusters]
        nics = [hosts[k] * spec.nic_bytes_per_s[origin[k]] for k in (i, j)]
        if i == j:
            return float(min(nics))
        shared = spec.rate_bytes_per_s[origin[i], origin[j]]
        uplinks = [spec.uplink_bytes_per_s[origin[k]] for k in (i, j)]
        return float(min(*nics, *uplinks, shared))

    n = len(origin)
    return tuple(tuple(rate(i, j) for j in range(n)) for i in range(n))


class ModelKey:
    """A model as a key, by identity: hashing its numbers would cost more than pricing."""

    def __init__(self, model: GridModel) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelKey) and other.model is self.model


MOST_SAMPLED = 64
"""About so many ranks in all, since pairs grow with the square; but `FEWEST_PER_CLUSTER`."""

FEWEST_PER_CLUSTER = 2
"""Two at least: one alone has no message inside its cluster."""


@dataclass(frozen=True)
class Sample:
    """Some ranks of every cluster, all of them where there are few."""

    model: GridModel
    """Of these ranks."""
    weights: tuple[float, ...]
    """By cluster, for how many each sampled rank stands."""
    host_weights: tuple[float, ...]
    """By sampled rank, the same among the ranks of its host."""


def draw_sample(model: GridModel) -> Sample:
    """A sample of `MOST_SAMPLED` ranks or few more, from each cluster in proportion."""
    grid = model.grid
    sizes = tuple(map(len, grid.clusters))
    if grid.n_ranks <= MOST_SAMPLED:
        return Sample(model, (1.0,) * len(sizes), (1.0,) * grid.n_ranks)
    counts = [
        min(size, max(FEWEST_PER_CLUSTER, -(-size * MOST_SAMPLED // grid.n_ranks)))
        for size in sizes
    ]
    kept = sorted(
        cluster.ranks[k * len(cluster) // n]
        for cluster, n in zip(grid.clusters, counts, strict=True)
        for k in range(n)
    )
    host_of = grid.host_of
    on_host, sampled = Counter(host_of), Counter(host_of[rank] for rank in kept)
    _, origin = grid.restrict(kept)
    return Sample(
        model.restrict(kept),
        tuple(sizes[c] / counts[c] for c in origin),
        tuple(on_host[host_of[rank]] / sampled[host_of[rank]] for rank in kept),
    )
