"""Random grids for plans to be written on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from gridcoll.model import GridModel, TimesBySize, declared_model, linear_plogp
from gridcoll.topology import Grid
from gridcoll.topology.gridfile import read_gridfile


def model_of(
    labels: Sequence[int],
    latencies_s: Sequence[float] = (5e-3, 12e-3, 2e-3),
    native_s: float | None = None,
    together: float = 0.0,
) -> GridModel:
    """A declared model: 100 Mbit/s and 50 us inside clusters.

    Between them ``latencies_s`` in turn, and as much, a third or four times as much as inside.
    """
    grid = Grid.from_labels(labels)
    n = len(grid.clusters)
    links = tuple(
        tuple(
            linear_plogp(
                50e-6 if i == j else latencies_s[(i + j) % len(latencies_s)],
                12.5e6 * (1.0 if i == j else (1.0, 0.3, 4.0)[(i * j) % 3]),
            )
            if i != j or len(grid.clusters[i]) > 1
            else None
            for j in range(n)
        )
        for i in range(n)
    )
    native = {} if native_s is None else {"bcast": TimesBySize((1,), (native_s,))}
    return GridModel(
        grid, links, native=native, aggregate_bytes_per_s=((together,) * n,) * n if together else ()
    )


def unlike_model() -> GridModel:
    """The declared model of ``hostfiles/patchwork.toml``: interfaces and links are unlike."""
    spec = read_gridfile(Path(__file__).parents[2] / "hostfiles" / "patchwork.toml")
    return declared_model(spec, spec.rank_hosts())


def near_over_the_second(labels: Sequence[int]) -> GridModel:
    """Three clusters: 30 ms from the first to the third one, 6 and 2 ms over the second."""
    way_s = {(0, 1): 6e-3, (1, 2): 2e-3, (0, 2): 30e-3}
    links = tuple(
        tuple(
            linear_plogp(50e-6 if i == j else way_s[min(i, j), max(i, j)], 12.5e6)
            if i != j or labels.count(i) > 1
            else None
            for j in range(3)
        )
        for i in range(3)
    )
    return GridModel(Grid.from_labels(labels), links)


grids = st.lists(st.integers(0, 4), min_size=1, max_size=11)
"""Labels by rank: one to eleven ranks in one to five clusters, interleaved."""


def draw_transfers(grid: Grid, root: int, data: st.DataObject) -> tuple[tuple[int, int], ...]:
    """From the root's cluster to all others, each by one that was reached before."""
    source, n = grid.cluster_of[root], len(grid.clusters)
    transfers: list[tuple[int, int]] = []
    reached = [source]
    for cluster in data.draw(st.permutations([c for c in range(n) if c != source])):
        transfers.append((data.draw(st.sampled_from(reached)), cluster))
        reached.append(cluster)
    return tuple(transfers)


def thin_grid(labels: list[int], bytes_per_s: float = 1e6) -> GridModel:
    """Links of so much, where interfaces have 12.5 MB/s."""
    grid = Grid.from_labels(labels)
    n = len(grid.clusters)
    near, far = linear_plogp(50e-6, 12.5e6), linear_plogp(5e-3, bytes_per_s)
    links = tuple(tuple(near if a == b else far for b in range(n)) for a in range(n))
    return GridModel(grid, links, aggregate_bytes_per_s=((bytes_per_s,) * n,) * n)
