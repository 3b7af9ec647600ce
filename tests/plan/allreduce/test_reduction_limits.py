"""Reductions on the named grids: what plans take by simulation, beside limits and predictions."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from gridcoll.model import GridModel, declared_model
from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import Wires, wires_from_spec
from gridcoll.plan import Candidate, choose
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import read_gridfile
from tests.plan.traffic import count_traffic

pytestmark = pytest.mark.long

HOSTFILES = Path(__file__).parents[3] / "hostfiles"
GRIDS = (
    *("three-sites", "two-sites-uneven", "grid5000", "scrambled", "thin-wan", "long-fat"),
    "one-cluster",
)
FAR_APART = GRIDS[:-1]
UNIT_BYTES = 8


@lru_cache
def grid(name: str) -> tuple[GridModel, Wires]:
    spec = read_gridfile(str(HOSTFILES / f"{name}.toml"))
    return declared_model(spec, spec.rank_hosts()), wires_from_spec(spec, spec.rank_hosts())


def best_of_each(collective: str, name: str, n_bytes: int, root: int = 0) -> dict[str, Candidate]:
    """The fastest candidate of every algorithm, fastest first."""
    found: dict[str, Candidate] = {}
    for candidate in choose(collective, grid(name)[0], n_bytes, root, grid_only=True).candidates:
        if candidate.build:
            found.setdefault(candidate.name, candidate)
    return found


@lru_cache
def simulated_s(collective: str, name: str, n_bytes: int, algorithm: str, root: int = 0) -> float:
    candidate = best_of_each(collective, name, n_bytes, root)[algorithm]
    assert candidate.build is not None
    plan = candidate.build(n_bytes // UNIT_BYTES)
    return price_plan(plan, grid(name)[0], unit_bytes=UNIT_BYTES).makespan_s


def winner(collective: str, name: str, n_bytes: int, root: int = 0) -> str:
    return next(iter(best_of_each(collective, name, n_bytes, root)))


@pytest.mark.parametrize("name", FAR_APART)
@pytest.mark.parametrize(("n_bytes", "times"), [(8, 1.3), (65536, 1.5), (1 << 20, 1.1)])
def test_allreduce_is_near_its_limit(name: str, n_bytes: int, times: float) -> None:
    """Of the longest latency and what interfaces and links take, one after the other."""
    wires = grid(name)[1]
    here = replace(wires, latency_s=0 * wires.latency_s)
    limit = limit_s("barrier", wires, 0) + limit_s("allreduce", here, n_bytes)
    chosen = winner("allreduce", name, n_bytes)
    assert simulated_s("allreduce", name, n_bytes, chosen) <= 1.005 * times * limit, chosen


@pytest.mark.parametrize("n_bytes", [65536, 1 << 20])
def test_allreduce_in_one_cluster_is_near_its_limit(n_bytes: int) -> None:
    """Short messages take more hops than the limit knows of; there, native is hard to beat."""
    limit = limit_s("allreduce", grid("one-cluster")[1], n_bytes)
    chosen = winner("allreduce", "one-cluster", n_bytes)
    assert simulated_s("allreduce", "one-cluster", n_bytes, chosen) <= 1.25 * limit, chosen


@pytest.mark.parametrize("name", FAR_APART)
def test_a_barrier_is_near_its_limit(name: str) -> None:
    limit = limit_s("barrier", grid(name)[1], 8)
    chosen = winner("barrier", name, 8)
    assert simulated_s("barrier", name, 8, chosen) <= 1.3 * limit


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("n_bytes", [8, 8192, 65536, 1 << 18])
def test_allreduce_takes_what_was_predicted(name: str, n_bytes: int) -> None:
    """The best of every algorithm that could be chosen; what is far off need not be known well."""
    found = best_of_each("allreduce", name, n_bytes)
    least = min(simulated_s("allreduce", name, n_bytes, algorithm) for algorithm in found)
    for algorithm, candidate in found.items():
        took = simulated_s("allreduce", name, n_bytes, algorithm)
        if took < 1.5 * least:
            assert candidate.predicted_s == pytest.approx(took, rel=0.35), candidate.label
    chosen = next(iter(found))
    took = simulated_s("allreduce", name, n_bytes, chosen)
    assert took <= 1.2 * least, chosen
    assert found[chosen].predicted_s == pytest.approx(took, rel=0.17), found[chosen].label


@pytest.mark.parametrize("name", ["three-sites", "thin-wan", "scrambled", "two-sites-uneven"])
@pytest.mark.parametrize("n_bytes", [8, 65536, 1 << 20])
def test_reduce_takes_what_was_predicted(name: str, n_bytes: int) -> None:
    """Of several trees, too, where leaves hold back what others wait for."""
    chosen = winner("reduce", name, n_bytes, 1)
    took = simulated_s("reduce", name, n_bytes, chosen, 1)
    candidate = best_of_each("reduce", name, n_bytes, 1)[chosen]
    rel = 0.3 if n_bytes <= 65536 else 0.17
    assert candidate.predicted_s == pytest.approx(took, rel=rel), candidate.label


@pytest.mark.parametrize("name", ["three-sites", "thin-wan", "scrambled", "grid5000"])
@pytest.mark.parametrize("algorithm", ["shares", "ring"])
def test_uplinks_carry_least(name: str, algorithm: str) -> None:
    """Shares keep 2 m (C-1)/C each way; a ring crosses each uplink with 2 m (P-1)/P."""
    model, n_bytes = grid(name)[0], 1 << 20
    candidate = best_of_each("allreduce", name, n_bytes)[algorithm]
    assert candidate.build is not None
    n_units = n_bytes // UNIT_BYTES
    units = count_traffic(candidate.build(n_units), model.grid).units
    n = model.n_clusters if algorithm == "shares" else model.grid.n_ranks
    for cluster in range(model.n_clusters):
        for end in (0, 1):
            crossing = sum(
                count for link, count in units.items() if link[end] == cluster != link[1 - end]
            )
            assert crossing <= 2 * n_units * (n - 1) / n + model.grid.n_ranks * n


@pytest.mark.parametrize("name", ["patchwork", "unlike-hosts"])
@pytest.mark.parametrize("algorithm", ["lanes", "shares", "ring"])
@pytest.mark.parametrize("n_bytes", [8192, 65536])
def test_a_slow_site_counts_with_its_own_way(name: str, algorithm: str, n_bytes: int) -> None:
    """And not with that between others, which may be longer."""
    found = best_of_each("allreduce", name, n_bytes)
    took = simulated_s("allreduce", name, n_bytes, algorithm)
    assert found[algorithm].predicted_s == pytest.approx(took, rel=0.1)
