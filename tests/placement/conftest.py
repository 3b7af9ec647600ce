"""Random problems on random grids, unlike anything the searches were made for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gridcoll.placement import IterationCost, Phase, Problem, Resources
from gridcoll.placement.problem import Allreduce, Memory, Update

Draw = Callable[..., IterationCost]


def make_resources(latency_s: np.ndarray, **fields: object) -> Resources:
    n = len(latency_s)
    given = {
        "names": tuple(f"c{i}" for i in range(n)),
        "sites": ("",) * n,
        "regions": ("",) * n,
        "n_hosts": np.full(n, 4),
        "nic_bytes_per_s": np.full(n, 125e6),
        "uplink_bytes_per_s": np.full(n, 1250e6),
        "latency_s": np.asarray(latency_s, dtype=float),
    }
    return Resources(**{**given, **fields})  # type: ignore[arg-type]


def draw_cost(
    rng: np.random.Generator, n_clusters: int, *, memory: bool | None = None
) -> IterationCost:
    """Any mode, form and number of phases; half of the grids are trees, half no metric at all."""
    n = n_clusters
    names = tuple(f"c{i}" for i in range(n))
    if rng.random() < 0.5:
        site, region = rng.integers(4, size=n), rng.integers(2, size=n)
        region = site % 2
        inner, middle, outer = np.sort(rng.uniform(1e-4, 5e-2, 3))
        latency_s = np.where(region[:, None] == region, middle, outer)
        latency_s = np.where(site[:, None] == site, inner, latency_s)
    else:
        site = region = rng.integers(3, size=n)
        latency_s = rng.choice([1e-3, 5e-3, 1e-2, 4e-2], (n, n)) * rng.choice(
            [1.0, rng.uniform(0.5, 1.0)], (n, n)
        )
        latency_s = np.maximum(latency_s, latency_s.T)
    np.fill_diagonal(latency_s, rng.uniform(1e-5, 2e-3, n))
    # Not of ``rng``: what it draws stays the same.
    cores = np.random.default_rng(int(latency_s.sum() * 1e9)).integers(1, 3, n)
    resources = make_resources(
        latency_s,
        processes_per_host=cores,
        sites=tuple(f"s{i}" for i in site),
        regions=tuple(f"r{i}" for i in region),
        n_hosts=rng.integers(1, 100, n),
        nic_bytes_per_s=rng.choice([12.5e6, 125e6], n),
        uplink_bytes_per_s=rng.choice([12.5e6, 1250e6, np.inf], n),
    )
    n_updates = int(rng.integers(0, 4))
    phases = [
        Phase(
            name=f"p{j}",
            alpha_s=dict(zip(names, rng.uniform(1e-6, 1e-5, n).tolist(), strict=True)),
            overlaps_update=int(rng.integers(1, n_updates + 1))
            if n_updates and rng.random() < 0.5
            else None,
        )
        for j in range(rng.integers(1, 4))
    ]
    n_elements = int(10 ** rng.uniform(3, 8))
    with_memory = rng.random() < 0.3 if memory is None else memory
    per_host = n_elements * 600 / resources.n_hosts.sum()
    problem = Problem(
        n_elements=n_elements,
        phases=phases,
        update=Update(
            count=n_updates,
            mode="overlapped" if rng.random() < 0.5 else "blocking",
            bandwidth_factor=float(rng.uniform(0.2, 1.0)),
        ),
        allreduce=Allreduce(count=int(rng.integers(0, 6)), form=str(rng.choice(FORM_NAMES))),
        memory=Memory(
            element_bytes=600,
            host={name: str(int(per_host * rng.uniform(1.5, 8)) + 1) for name in names},
        )
        if with_memory
        else None,
    )
    return IterationCost(problem, resources)


FORM_NAMES = ("latency", "two-level")


def all_masks(n_clusters: int) -> np.ndarray:
    """All subsets but the empty one; row s - 1 holds cluster i iff bit i of s is set."""
    return (np.arange(1, 1 << n_clusters)[:, None] >> np.arange(n_clusters) & 1).astype(bool)


@pytest.fixture
def draw() -> Draw:
    return draw_cost


@pytest.fixture
def resources_of() -> Callable[..., Resources]:
    return make_resources


@pytest.fixture
def subsets() -> Callable[[int], np.ndarray]:
    return all_masks
