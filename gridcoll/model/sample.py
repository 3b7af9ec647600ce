"""Some ranks that stand for all: what is priced where every rank talks to every other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridcoll.model.gridmodel import GridModel

MOST_SAMPLED = 64
"""About so many ranks in all, since pairs grow with the square; but `FEWEST_PER_CLUSTER`."""

FEWEST_PER_CLUSTER = 2
"""One alone would have nobody to talk to inside."""


@dataclass(frozen=True)
class Sample:
    """Some ranks of every cluster, all of them where there are few.

    Attributes
    ----------
    model : GridModel
        Of these ranks.
    weights : tuple of float
        By cluster, for how many each sampled rank stands.
    host_weights : tuple of float
        By sampled rank, the same among the ranks of its host.
    """

    model: GridModel
    weights: tuple[float, ...]
    host_weights: tuple[float, ...]


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
