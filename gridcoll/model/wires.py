"""A grid as its wires: bandwidths of interfaces, uplinks and links, and latencies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from gridcoll.constants import WINDOWS_LIMIT
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.model.plogp import FloatArray
from gridcoll.topology.grid import Grid
from gridcoll.topology.gridfile import GridSpec
from gridcoll.topology.rounds import lanes_between


class Cut(NamedTuple):
    """At most so many bytes per second can leave some clusters, after ``burst_bytes`` at once."""

    bytes_per_s: float
    burst_bytes: float

    def passed_s(self, n_bytes: float) -> float:
        """Return the least time in which ``n_bytes`` can leave, in seconds."""
        return float(max(n_bytes - self.burst_bytes, 0.0) / self.bytes_per_s)


class Wires(Struct, frozen=True, dict=True):
    """The wires of a grid. Arrays are indexed by cluster of ``grid``."""

    grid: Grid
    latency_s: FloatArray
    """(C, C) array. One-way latency; the diagonal is inside a cluster."""
    nic_bytes_per_s: FloatArray
    uplink_bytes_per_s: FloatArray
    rate_bytes_per_s: FloatArray
    """(C, C) array. Shared by all flows in one direction."""
    burst_bytes: int = 0
    """Bytes that a network interface passes before its rate limit applies."""

    @cached_property
    def cuts(self) -> dict[frozenset[int], Cut]:
        """A cache of `bounds`: what can leave a set of clusters."""
        return {}


def wires_from_spec(spec: GridSpec, hosts: Sequence[str]) -> Wires:
    """Return the wires that a grid file declares, with rank ``i`` on host ``hosts[i]``."""
    grid, origin = spec.assign(hosts)
    index = list(origin)
    return Wires(
        grid,
        spec.latency_s[np.ix_(index, index)],
        spec.nic_bytes_per_s[index],
        spec.uplink_bytes_per_s[index],
        spec.rate_bytes_per_s[np.ix_(index, index)],
        spec.burst_bytes,
    )


def links_of(model: GridModel) -> FloatArray:
    """Return the bandwidth of each link, (C, C), as far as known.

    It was measured with flows between some hosts. If these filled their interfaces, the link was
    not the limit; then the sum of all interfaces is used. A bandwidth declared in a grid file is
    used unchanged.
    """
    if model.origin == "declared":
        return model.link_bytes_per_s
    rates = model.flow_bytes_per_s.diagonal()
    n_hosts = np.array(model.grid.hosts_per_cluster)
    n_ranks = np.array(model.grid.ranks_per_cluster)
    lanes = lanes_between(n_ranks[:, None], n_ranks[None])
    filled = np.minimum(
        np.minimum(lanes, n_hosts[:, None]) * rates[:, None], np.minimum(lanes, n_hosts) * rates
    )
    together = np.minimum((n_hosts * rates)[:, None], (n_hosts * rates)[None])
    links = model.link_bytes_per_s
    return np.asarray(np.where(links * WINDOWS_LIMIT >= filled, np.maximum(links, together), links))


def wires_from_model(model: GridModel) -> Wires:
    """Estimate the wires from measured flows, for a grid that no file declares.

    The same model gets the same wires, whose cuts are then found once.
    """
    return _wires_of(ModelKey(model))


@lru_cache(maxsize=16)
def _wires_of(key: ModelKey) -> Wires:
    model = key.model
    rates = model.flow_bytes_per_s
    links = np.maximum(rates, links_of(model))
    return Wires(model.grid, model.latency_s, np.diag(rates).copy(), model.uplinks, links)
