"""What ``gridcoll select`` takes from a grid: resources, where ranks run, allreduce prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gridcoll.model import GridModel, declared_model, read_model
from gridcoll.placement import Resources
from gridcoll.placement.allreduce import AllreducePrice
from gridcoll.topology.gridfile import read_gridfile

N_BYTES = 56  # an ALLREDUCE is seven doubles at most (paper 004, §2)


@dataclass(frozen=True)
class PlacementGrid:
    """``rank_hosts`` are (host, cluster) of every rank; ``model`` has the grid's pLogP."""

    resources: Resources
    rank_hosts: tuple[tuple[str, int], ...]
    model: Callable[[], GridModel]

    def hosts(self, clusters: tuple[int, ...]) -> list[str]:
        """The hosts of the ranks in ``clusters``, in rank order."""
        return [host for host, cluster in self.rank_hosts if cluster in clusters]


def load_placement_grid(path: Path) -> PlacementGrid:
    """A declared grid (``.toml``) or a measured model. Raises `FileError`, `UsageError`."""
    if path.suffix != ".toml":
        model = read_model(path)
        places = tuple(zip(model.grid.hosts, model.grid.cluster_of, strict=True))
        return PlacementGrid(Resources.from_model(model), places, lambda: model)
    spec = read_gridfile(path)
    resources = Resources.from_spec(spec)
    places = tuple((host, spec.cluster_of_host[host]) for host in spec.rank_hosts())
    return PlacementGrid(resources, places, lambda: declared_model(spec, spec.host_order()))


def plan_allreduce_price(grid: PlacementGrid) -> AllreducePrice:
    """The predicted time of the best allreduce plan over all ranks of some clusters.

    A rank alone sends nothing; it is given its cluster's latency, as in the paper's form.
    """
    from gridcoll.plan import choose

    model = grid.model()
    # The model may list its clusters in another order than the resources do.
    names = [cluster.name for cluster in model.grid.clusters]
    ranks_of = [
        model.grid.clusters[names.index(name)].ranks for name in grid.resources.names
    ]  # fmt: skip

    def price_s(clusters: tuple[int, ...]) -> float:
        ranks = sorted(rank for cluster in clusters for rank in ranks_of[cluster])
        if len(ranks) == 1:
            return float(grid.resources.latency_s[clusters[0], clusters[0]])
        part = model.restrict(ranks)
        predicted_s = choose("allreduce", part, N_BYTES, 0, grid_only=True).winner.predicted_s
        return float("inf") if predicted_s is None else predicted_s

    return price_s
