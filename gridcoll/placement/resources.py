"""What placement knows about a grid: hosts, bandwidths and latencies of each cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.model import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.topology import GridSpec
from gridcoll.topology.levels import find_levels

IntArray = npt.NDArray[np.int64]

LARGE_BYTES = 1 << 20  # large enough that only bandwidth counts


class Resources(Struct, frozen=True, eq=False):
    """Clusters to choose among (C of them). Hosts of one cluster are alike (paper 004, §2).

    Raises `UsageError` if a number is missing or impossible; it names the field and the cluster.
    """

    names: tuple[str, ...]
    sites: tuple[str, ...]
    regions: tuple[str, ...]
    """Per cluster; sites and regions may be empty strings."""
    n_hosts: IntArray
    nic_bytes_per_s: FloatArray
    uplink_bytes_per_s: FloatArray
    """(C,) arrays. The paper's B_H and B_C; an uplink may be ``inf``."""
    latency_s: FloatArray
    """(C, C) array. One way, symmetric; the diagonal is inside the cluster."""
    grid_name: str = ""
    processes_per_host: IntArray | None = None
    """(C,) int array. Each on a core of its own; 1 by default, as in the paper."""

    def __post_init__(self) -> None:
        n = self.n_clusters
        if n == 0:
            raise UsageError("resources: names: needs at least one cluster")
        for field in ("sites", "regions", "n_hosts", "nic_bytes_per_s", "uplink_bytes_per_s"):
            if len(getattr(self, field)) != n:
                raise UsageError(
                    f"resources: {field}: needs one value per cluster ({n}), "
                    f"got {len(getattr(self, field))}"
                )
        for field in ("n_hosts", "nic_bytes_per_s", "uplink_bytes_per_s"):
            for name, value in zip(self.names, getattr(self, field), strict=True):
                if not value > 0:  # also true of NaN, which is how a model says "not measured"
                    raise UsageError(
                        f"resources: {field} of cluster {name!r}: must be positive, got {value}"
                    )
        if self.processes.shape != (n,) or (self.processes < 1).any():
            raise UsageError(
                f"resources: processes_per_host: needs a number from 1 on per cluster ({n}), got "
                f"{self.processes.tolist()}"
            )
        self._check_latencies()

    @property
    def processes(self) -> IntArray:
        """(C,) processes of a host."""
        if self.processes_per_host is None:
            return np.ones(self.n_clusters, dtype=np.int64)
        return self.processes_per_host

    def _check_latencies(self) -> None:
        n = self.n_clusters
        if self.latency_s.shape != (n, n):
            raise UsageError(
                f"resources: latency_s: must be {n} by {n}, got {self.latency_s.shape}"
            )
        wrong = ~(np.isfinite(self.latency_s) & (self.latency_s >= 0))
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise UsageError(
                f"resources: latency_s between {self.names[i]!r} and {self.names[j]!r}: "
                f"must be finite and not negative, got {self.latency_s[i, j]}"
            )
        if not np.array_equal(self.latency_s, self.latency_s.T):
            i, j = np.argwhere(self.latency_s != self.latency_s.T)[0]
            raise UsageError(
                f"resources: latency_s between {self.names[i]!r} and {self.names[j]!r}: must be "
                f"the same both ways, got {self.latency_s[i, j]} and {self.latency_s[j, i]}"
            )

    @classmethod
    def from_spec(cls, spec: GridSpec) -> Resources:
        """Return the clusters of a declared grid.

        A cluster's uplink is what the file gives, but at most its fastest link to another cluster:
        the paper has one number per cluster where the file has one per pair. Raises `UsageError` if
        the file gives ranks and no hosts.
        """
        for cluster, hosts in zip(spec.clusters, spec.hosts, strict=True):
            if not hosts:
                raise UsageError(
                    f"grid {spec.name!r}: cluster {cluster.name!r}: hosts: placement chooses "
                    "hosts, this file gives only ranks"
                )
        return cls(
            names=tuple(cluster.name for cluster in spec.clusters),
            sites=tuple(cluster.site for cluster in spec.clusters),
            regions=tuple(cluster.region for cluster in spec.clusters),
            n_hosts=np.array([len(hosts) for hosts in spec.hosts], dtype=np.int64),
            nic_bytes_per_s=spec.nic_bytes_per_s,
            uplink_bytes_per_s=_fold_links(spec.uplink_bytes_per_s, spec.rate_bytes_per_s),
            latency_s=spec.latency_s,
            grid_name=spec.name,
            processes_per_host=np.array([c.slots for c in spec.clusters], dtype=np.int64),
        )

    @classmethod
    def from_model(
        cls, model: GridModel, uplink_bytes_per_s: FloatArray | None = None
    ) -> Resources:
        """Return the clusters of a measured grid, with latencies averaged over both directions.

        B_H is the rate of large messages inside a cluster. Messages between one pair of hosts do
        not show a bottleneck that many hosts share. So, unless (C,) uplinks are given, each host is
        assumed to reach the rate that one host reached to the cluster's best partner.
        """
        clusters = model.grid.clusters
        n_hosts = np.array(model.grid.hosts_per_cluster, dtype=np.int64)
        rates = LARGE_BYTES / model.gap_s(LARGE_BYTES)
        if uplink_bytes_per_s is None:
            uplink_bytes_per_s = n_hosts * _fold_links(np.full(len(clusters), np.inf), rates)
        return cls(
            names=tuple(cluster.name for cluster in clusters),
            sites=tuple(cluster.site for cluster in clusters),
            regions=tuple(cluster.region for cluster in clusters),
            n_hosts=n_hosts,
            nic_bytes_per_s=rates.diagonal().copy(),
            uplink_bytes_per_s=uplink_bytes_per_s,
            latency_s=(model.latency_s + model.latency_s.T) / 2,
            grid_name=model.grid.name,
            processes_per_host=np.array([len(c) // len(c.nodes) for c in clusters], dtype=np.int64),
        )

    @property
    def n_clusters(self) -> int:
        return len(self.names)

    def indices(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the indices of clusters ``names``, ascending. Raises `UsageError` if unknown."""
        found = set()
        for name in names:
            if name not in self.names:
                raise UsageError(f"cluster {name!r}: unknown; the grid has {', '.join(self.names)}")
            found.add(self.names.index(name))
        return tuple(sorted(found))

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return groups of clusters that may be added together: of one site, or of one region.

        Each group has two clusters or more and appears once, in order of first appearance (paper
        004, §3.1.4). If no cluster has a site or a region, as in a measured grid, the groups are
        clusters near to one another by latency, at every level.
        """
        if not any((*self.sites, *self.regions)):
            levels = find_levels(self.latency_s)
            near = dict.fromkeys(group for groups in levels for group in groups)
            return tuple(group for group in near if len(group) > 1)
        found: dict[tuple[int, ...], None] = {}
        for labels in (self.sites, self.regions):
            for label in dict.fromkeys(labels):
                if label:
                    found[tuple(i for i, other in enumerate(labels) if other == label)] = None
        return tuple(group for group in found if len(group) > 1)


def _fold_links(uplink_bytes_per_s: FloatArray, rate_bytes_per_s: FloatArray) -> FloatArray:
    if len(uplink_bytes_per_s) == 1:
        return uplink_bytes_per_s
    others = np.where(np.eye(len(rate_bytes_per_s), dtype=bool), 0.0, rate_bytes_per_s)
    fastest: FloatArray = others.max(axis=1)
    return np.minimum(uplink_bytes_per_s, fastest)


def as_mask(clusters: Sequence[int], n_clusters: int) -> npt.NDArray[np.bool_]:
    """Return (C,) booleans, true at ``clusters``."""
    mask = np.zeros(n_clusters, dtype=bool)
    mask[list(clusters)] = True
    return mask
