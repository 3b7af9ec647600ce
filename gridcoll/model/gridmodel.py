"""How long messages take between every two clusters and inside each cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Literal, TypeVar, overload

import msgspec
import numpy as np
from msgspec import Struct, field

from gridcoll.constants import ANNOUNCED_BYTES, UNLIKE_INTERFACES, WINDOWS_LIMIT
from gridcoll.errors import UsageError
from gridcoll.model.correction import Correction
from gridcoll.model.plogp import LONG_BYTES, FloatArray, PLogP, linear_plogp
from gridcoll.model.routing import Routes, blocks_between, find_routes
from gridcoll.topology.grid import Cluster, Grid
from gridcoll.topology.gridfile import GridSpec

T = TypeVar("T")

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class TimesBySize(Struct, frozen=True, forbid_unknown_fields=True):
    """Measured times at some sizes.

    Interpolated linearly between sizes; beyond the largest size, proportional to size.
    """

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
        """Return the time in seconds for ``n_bytes``, a number or an array."""
        inside = np.interp(n_bytes, self.sizes_bytes, self.seconds)
        result = inside * np.maximum(1.0, np.asarray(n_bytes) / max(self.sizes_bytes[-1], 1))
        return result if isinstance(n_bytes, np.ndarray) else float(result)

    def updated(self, n_bytes: int, seconds: float) -> TimesBySize:
        """Return a copy with ``seconds`` at ``n_bytes``; an old value there is replaced."""
        by_size = {**dict(zip(self.sizes_bytes, self.seconds, strict=True)), n_bytes: seconds}
        sizes = sorted(by_size)
        return TimesBySize(tuple(sizes), tuple(by_size[size] for size in sizes))


class SlowHosts(Struct, frozen=True):
    """Hosts of one cluster whose interfaces are slower than those of its other hosts, if any."""

    cluster: int
    """The number of the cluster."""
    hosts: tuple[str, ...]
    """Their names, at least one."""
    factor: float
    """Gap of a message to or from them, over the gap of the cluster's link; at least 1."""


CHANGED_SOURCE = "changed while the job ran"
"""What `GridModel.source` returns for a link that was measured again meanwhile."""

MOST_CACHED, LARGEST_CACHED = 64, 8192
"""`GridModel.gap_and_one_way_s` caches at most this many results, with at most this many elements
in each array: 8 MiB in all."""


class GridModel(Struct, frozen=True, dict=True):
    """A grid and the pLogP of its links."""

    grid: Grid
    links: tuple[tuple[PLogP | None, ...], ...]
    """``links[i][j]`` is the link from cluster i to cluster j; ``links[i][i]`` is inside i, and
    None for a cluster of one process."""
    origin: Literal["measured", "declared"] = "declared"
    tolerance: float = 0.3
    """The tolerance ρ with which the clusters were found."""
    native: Mapping[str, TimesBySize] = field(default_factory=dict)
    """Times of the native collectives, by collective name. A missing one was not measured."""
    relay_gap: TimesBySize | None = None
    """Time per segment, by segment size, when all ranks relay segments at once. It includes the
    cost of our engine and of ranks that share cores. No plan is faster."""
    aggregate_bytes_per_s: tuple[tuple[float, ...], ...] = ()
    """Rate of several flows together between clusters, (C, C); empty if not measured. It is higher
    than the rate of one flow if a TCP window limits each flow."""
    start_s: float = 0.0
    """Time that the shortest plan takes beyond what its links explain: the cost of polite waiting
    and of ranks that share cores. Counted once for every plan."""
    contention: tuple[float, ...] = ()
    """γ inside each cluster (paper 003, section 5.1): the position of an all-to-all between its
    bounds. 0: only overheads limit it. 1: every message occupies its interface for a gap. Above 1:
    flows slow each other down. Empty: not measured, counted as 1."""
    corrections: Mapping[str, Mapping[str, Correction]] = field(default_factory=dict)
    """By collective and family of algorithms: measured time over predicted time of the plans that
    discovery tried."""
    native_variants: Mapping[str, Mapping[str, TimesBySize]] = field(default_factory=dict)
    """By collective and name: times of other library calls with the same result. The largest size
    is the one at which timing stopped because the variant could not win."""
    mpi: str = ""
    """The MPI library under which it was measured; empty if unknown or irrelevant."""
    native_priors: tuple[str, ...] = ()
    """Collectives whose ``native`` times were not measured but estimated from the library's known
    algorithms."""
    native_runs: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)
    """Number of measured runs of natives: by collective, by native, by size. Empty if not
    recorded."""
    stages: tuple[str, ...] = ()
    """The stages that discovery has finished; the others were estimated or left out."""
    sources: tuple[tuple[str, ...], ...] = ()
    """Where each of ``links`` comes from, as text for people: "measured 2026-11-20". Empty if only
    ``origin`` is known."""
    uplink_bytes_per_s: tuple[float, ...] = ()
    """By cluster, the rate of all its outgoing flows together, which is also that of all its
    incoming flows; 0 if no limit is known. Empty: no limit is known for any cluster. For a cluster
    of one host, the rate of its interface."""
    slow_hosts: tuple[SlowHosts, ...] = ()
    """At most one entry for each cluster. ``links`` are those of the other hosts. Plans are made
    with `planning_model`."""

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
        if len({each.cluster for each in self.slow_hosts}) < len(self.slow_hosts):
            raise UsageError(f"slow_hosts: more than one entry of a cluster: {self.slow_hosts}")
        for each in self.slow_hosts:
            nodes = self.grid.clusters[each.cluster].nodes if 0 <= each.cluster < n else ()
            if not each.hosts or not {node[0].host for node in nodes}.issuperset(each.hosts):
                raise UsageError(f"slow_hosts: must be hosts of a cluster, got {each}")
            if each.factor < 1:
                raise UsageError(f"slow_hosts: the factor must be at least 1, got {each}")
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
        """Return where the link from cluster ``i`` to ``j`` comes from, as text for people."""
        return (self.sources[i][j] if self.sources else "") or self.origin

    def link(self, i: int, j: int) -> PLogP:
        """Return the pLogP from cluster ``i`` to cluster ``j``; inside for ``i == j``.

        A cluster of one process has no link inside. Its fastest outgoing link is used instead, with
        the rate of its uplink or else the highest rate of several flows over one of its links: its
        interface can carry that much.
        """
        return self.links[i][j] or self._fastest_outward[i]

    def slow_link(self, c: int) -> PLogP:
        """Return the pLogP between a slow host of cluster ``c`` and its other hosts.

        It is that of all hosts if none is slow.
        """
        link = self.link(c, c)
        for each in self.slow_hosts:
            if each.cluster == c:
                return link.at_rate(LONG_BYTES / (each.factor * link.gap(float(LONG_BYTES))))
        return link

    @cached_property
    def _all_links(self) -> list[PLogP]:
        """Every `link`, row by row. (A call for each of 100 x 100 takes some milliseconds.)"""
        rows = enumerate(self.links)
        return [link or self._fastest_outward[i] for i, row in rows for link in row]

    @cached_property
    def _fastest_outward(self) -> tuple[PLogP, ...]:
        """What stands in for each cluster's link inside.

        A grid of one process has no links; its entry is never used.
        """
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
        """Some ranks that represent all, to price collectives in which all ranks exchange data."""
        return draw_sample(self)

    @cached_property
    def latency_s(self) -> FloatArray:
        """``L`` between clusters, (C, C). The diagonal is inside a cluster."""
        n = self.n_clusters
        return np.array([link.latency_s for link in self._all_links]).reshape(n, n)

    @property
    def round_trip_s(self) -> FloatArray:
        """Round trip of an empty message between clusters, (C, C), as a new array."""
        return 2 * self.gap_and_one_way_s(np.zeros(1))[1][..., 0]

    def gap_s(self, n_bytes: float) -> FloatArray:
        """Return ``g(n_bytes)`` between clusters, (C, C). The diagonal is inside a cluster."""
        sizes, (gaps, _) = self._tables
        return _table_at(sizes, gaps, np.array([float(n_bytes)]))[..., 0]

    @cached_property
    def overhead_s(self) -> FloatArray:
        """``os + or`` of a short message between clusters, (C, C). The diagonal is inside one."""
        n = self.n_clusters
        both_s = [link.send_overhead(1) + link.recv_overhead(1) for link in self._all_links]
        return np.array(both_s).reshape(n, n)

    @cached_property
    def _tables(self) -> tuple[FloatArray, FloatArray]:
        """The union of all links' sizes, (K,); gaps and one-way times there, (2, C, C, K)."""
        n, links = self.n_clusters, self._all_links
        # Many links share one gap curve and differ only in latency. Each curve is evaluated once.
        curves: dict[tuple[tuple[int, ...], tuple[float, ...]], int] = {}
        curve_of = [
            curves.setdefault((link.sizes_bytes, link.gap_s), len(curves)) for link in links
        ]
        union = tuple(sorted({size for sizes, _ in curves for size in sizes}))
        sizes = np.array(union, dtype=float)
        example = dict(zip(curve_of, links, strict=True))
        gaps = np.array([example[k].gap(sizes) for k in range(len(curves))])[curve_of]
        one_way = np.array([link.latency_s for link in links])[:, None] + gaps
        for k, link in enumerate(links):
            if link.one_way_s:
                # Interpolating would take most of the time if there are 100 clusters.
                is_listed = link.sizes_bytes == union
                one_way[k] = link.one_way_s if is_listed else link.one_way(sizes)
        return sizes, np.stack([gaps, one_way]).reshape(2, n, n, len(sizes))

    def gap_and_one_way_s(
        self, n_bytes: FloatArray, links: tuple[Sequence[int], Sequence[int]] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return the gap and the one-way time of links at each of S sizes.

        Two (C, C, S) arrays; with ``links``, given as senders and receivers, two (n, S) arrays. The
        gap is at least `relay_gap`: a plan cannot send faster than its ranks run.

        The arrays are cached and read-only: the candidates of a choice ask for the same sizes.
        """
        key = n_bytes.tobytes(), links and (tuple(links[0]), tuple(links[1]))
        found = self._cached_times.get(key)
        if found is None:
            found = self._gap_and_one_way_s(n_bytes, links)
            for each in found:
                each.flags.writeable = False
            if len(self._cached_times) >= MOST_CACHED:
                self._cached_times.clear()
            if found[0].size <= LARGEST_CACHED:
                self._cached_times[key] = found
        return found

    @cached_property
    def _cached_times(self) -> dict[object, tuple[FloatArray, FloatArray]]:
        """The last results of `gap_and_one_way_s`."""
        return {}

    def _gap_and_one_way_s(
        self, n_bytes: FloatArray, links: tuple[Sequence[int], Sequence[int]] | None
    ) -> tuple[FloatArray, FloatArray]:
        sizes, tables = self._tables
        if links is not None:
            tables = tables[:, links[0], links[1]]
        gap_s, one_way_s = _table_at(sizes, tables, n_bytes)
        if self.relay_gap:
            rates = self.flow_bytes_per_s if links is None else self.flow_bytes_per_s[links]
            # A few messages may pass in a burst; a long stream is limited by the link's rate.
            stream_s = np.maximum(gap_s, n_bytes / rates[..., None])
            gap_s = np.maximum(gap_s, self._relay_floor_s(n_bytes, stream_s))
        return gap_s, one_way_s

    def _relay_floor_s(self, n_bytes: FloatArray, stream_s: FloatArray) -> FloatArray:
        """Return the least gap while all ranks relay, over links with gaps ``stream_s``, (…, S).

        When `relay_gap` was measured, all ranks waited for the slowest interface. If interfaces
        differ in speed and the slowest one explains `relay_gap`, the value does not limit faster
        interfaces; then every link is slowed down by the same factor as the slowest.
        """
        floor = self.relay_gap.predict(n_bytes) if self.relay_gap else np.zeros_like(n_bytes)
        sizes, (gaps, _) = self._tables
        inside = _table_at(sizes, np.einsum("iik->ik", gaps), n_bytes)
        rates = self.flow_bytes_per_s.diagonal()
        slowest = np.maximum(inside.max(axis=0), n_bytes / rates.min())
        explains = self.has_unlike_interfaces & (floor <= UNLIKE_INTERFACES * slowest)
        slower = np.minimum(floor, stream_s * (floor / np.maximum(slowest, 1e-12)))
        return np.asarray(np.where(explains, slower, floor))

    @cached_property
    def flow_bytes_per_s(self) -> FloatArray:
        """Rate of one flow of long messages, (C, C). The diagonal is the rate of an interface."""
        large = float(LONG_BYTES)
        return np.asarray(large / np.maximum(self.gap_s(large), 1e-12))

    @cached_property
    def has_unlike_interfaces(self) -> bool:
        """Whether the fastest interfaces are more than `UNLIKE_INTERFACES` times the slowest."""
        rates = self.flow_bytes_per_s.diagonal()
        return bool(rates.max() > UNLIKE_INTERFACES * rates.min())

    @cached_property
    def link_bytes_per_s(self) -> FloatArray:
        """Rate of all flows in one direction between clusters together, (C, C)."""
        if not self.aggregate_bytes_per_s:
            return self.flow_bytes_per_s
        return np.asarray(np.maximum(self.flow_bytes_per_s, np.array(self.aggregate_bytes_per_s)))

    @cached_property
    def uplinks(self) -> FloatArray:
        """Rate at which data can leave or enter each cluster, (C,); infinite if not known."""
        rates = np.array(self.uplink_bytes_per_s or (0.0,) * self.n_clusters)
        return np.asarray(np.where(rates > 0, rates, np.inf))

    @cached_property
    def windows_limit(self) -> np.ndarray:
        """Whether several flows carry more than `WINDOWS_LIMIT` times the rate of one, (C, C)."""
        return np.asarray(self.link_bytes_per_s > WINDOWS_LIMIT * self.flow_bytes_per_s)

    @cached_property
    def exchange_demand(self) -> tuple[FloatArray, FloatArray]:
        """Numbers of all-to-all blocks between clusters, (C, C), and rates of interfaces, (C,).

        The diagonal counts the blocks between hosts of one cluster. A rate is that of all the
        cluster's interfaces together.
        """
        n_hosts = np.array(self.grid.hosts_per_cluster, float)
        return blocks_between(self.grid), n_hosts * self.flow_bytes_per_s.diagonal()

    @cached_property
    def exchange_routes(self) -> Routes:
        """Routes for the blocks of an all-to-all. They do not depend on the block size."""
        demand, rates = self.exchange_demand
        uplinks = self.uplinks
        return find_routes(demand, self.link_bytes_per_s, rates, uplink_bytes_per_s=uplinks)

    def restrict(self, ranks: Sequence[int]) -> GridModel:
        """Return the model of a sub-communicator whose rank ``i`` is ``ranks[i]`` here.

        Native times are dropped: they depend on the number of ranks.
        """
        grid, origin = self.grid.restrict(ranks)

        def link(a: int, b: int, cluster: Cluster) -> PLogP | None:
            if a != b or len(cluster) > 1:
                return self.link(a, b)
            # A link measured inside one host says nothing about its network interface.
            whole = self.grid.clusters[a]
            return self.links[a][a] if len(whole.nodes) > 1 or len(whole) == 1 else None

        links = tuple(
            tuple(link(a, b, cluster) for b in origin)
            for a, cluster in zip(origin, grid.clusters, strict=True)
        )

        def by_cluster(row: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(row[c] for c in origin) if row else ()

        def by_link(rows: tuple[tuple[T, ...], ...]) -> tuple[tuple[T, ...], ...]:
            return tuple(map(by_cluster, by_cluster(rows)))

        slow = (
            SlowHosts(c, hosts, each.factor)
            for c, cluster in enumerate(grid.clusters)
            for each in self.slow_hosts
            if each.cluster == origin[c]
            and (hosts := tuple(p[0].host for p in cluster.nodes if p[0].host in each.hosts))
        )
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
            slow_hosts=tuple(slow),
        )


def _table_at(sizes: FloatArray, table: FloatArray, n_bytes: FloatArray) -> FloatArray:
    """Interpolate ``table`` (..., K) over ``sizes`` (K,) at ``n_bytes`` (S,): (..., S).

    Beyond the largest size, the slope of the last interval continues if it is positive. Below the
    smallest size, its value is used, as in `PLogP`: times must not fall below zero.
    """
    upper = np.searchsorted(sizes[1:-1], n_bytes) + 1
    part = np.maximum((n_bytes - sizes[upper - 1]) / (sizes[upper] - sizes[upper - 1]), 0.0)
    low, high = table[..., upper - 1], table[..., upper]
    rise = high - low
    beyond = high + (part - 1) * np.maximum(rise, 0.0)
    return np.asarray(np.where(part > 1, beyond, low + part * rise))


def declared_model(spec: GridSpec, hosts: Sequence[str]) -> GridModel:
    """Return the model that a grid file implies for a job whose rank ``i`` runs on ``hosts[i]``.

    The rate in ``g(m)`` is the least of both NICs, both uplinks, the link, and one TCP window per
    round trip. Messages from `ANNOUNCED_BYTES` on are taken to be announced.
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
        return linear_plogp(latency_s, float(min(rates)), announced_bytes=ANNOUNCED_BYTES)

    # The diagonal is kept for a lone host, too: the rate of its interface over several links.
    links = tuple(tuple(link(a, b) for b in origin) for a in origin)
    uplinks = [float(spec.uplink_bytes_per_s[c]) for c in origin]
    known = tuple(rate if np.isfinite(rate) else 0.0 for rate in uplinks)
    return GridModel(
        grid,
        links,
        "declared",
        aggregate_bytes_per_s=_declared_aggregates(spec, grid, origin),
        uplink_bytes_per_s=known if any(known) and len(origin) > 1 else (),
    )


def _declared_aggregates(
    spec: GridSpec, grid: Grid, origin: tuple[int, ...]
) -> tuple[tuple[float, ...], ...]:
    """Return the declared rate between clusters when all their hosts send."""

    def rate(i: int, j: int) -> float:
        nics = [grid.hosts_per_cluster[k] * spec.nic_bytes_per_s[origin[k]] for k in (i, j)]
        if i == j:
            return float(min(nics))
        shared = spec.rate_bytes_per_s[origin[i], origin[j]]
        uplinks = [spec.uplink_bytes_per_s[origin[k]] for k in (i, j)]
        return float(min(*nics, *uplinks, shared))

    n = len(origin)
    return tuple(tuple(rate(i, j) for j in range(n)) for i in range(n))


class ModelKey:
    """A dictionary key that compares models by identity: hashing their numbers takes too long."""

    def __init__(self, model: GridModel) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelKey) and other.model is self.model


MOST_SAMPLED = 64
"""A sample has about this many ranks in all, but at least `FEWEST_PER_CLUSTER` of each cluster. The
number of pairs, and so the cost of pricing, grows with the square."""

FEWEST_PER_CLUSTER = 2
"""One rank alone would have no messages inside its cluster."""


class Sample(Struct, frozen=True):
    """Some ranks of every cluster; all ranks of a small grid."""

    model: GridModel
    """The model of these ranks."""
    weights: tuple[float, ...]
    """By cluster, how many ranks each sampled rank represents."""
    host_weights: tuple[float, ...]
    """By sampled rank, how many ranks of its host it represents."""


def draw_sample(model: GridModel) -> Sample:
    """Return a sample of about `MOST_SAMPLED` ranks, from clusters in proportion to their size."""
    grid = model.grid
    sizes = grid.ranks_per_cluster
    if grid.n_ranks <= MOST_SAMPLED:
        return Sample(model, (1.0,) * len(sizes), (1.0,) * grid.n_ranks)
    counts = [
        min(size, max(FEWEST_PER_CLUSTER, -(-size * MOST_SAMPLED // grid.n_ranks)))
        for size in sizes
    ]
    sampled_ranks = sorted(
        cluster.ranks[k * len(cluster) // n]
        for cluster, n in zip(grid.clusters, counts, strict=True)
        for k in range(n)
    )
    host_of = grid.host_of
    on_host, sampled = Counter(host_of), Counter(host_of[rank] for rank in sampled_ranks)
    _, origin = grid.restrict(sampled_ranks)
    return Sample(
        model.restrict(sampled_ranks),
        tuple(sizes[c] / counts[c] for c in origin),
        tuple(on_host[host_of[rank]] / sampled[host_of[rank]] for rank in sampled_ranks),
    )
