"""Unequal blocks on any grid: every way is right, and the choice knows when nothing is gained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.errors import PlanError, UsageError
from gridcoll.model import GridModel
from gridcoll.plan import Send, check_plan
from gridcoll.plan.alltoall.unequal import (
    Bundle,
    Counts,
    adapted_bundles,
    cut_by_shares,
    numbered_bundles,
)
from gridcoll.plan.alltoall.unequal_choice import (
    can_gain,
    choose_unequal,
    unequal_method,
)
from gridcoll.plan.plan import Plan, Programs
from tests.plan.grids import model_of

HOSTFILES = Path(__file__).parents[3] / "hostfiles"
GRIDS = st.lists(st.integers(0, 4), min_size=1, max_size=12)
WAYS = ("direct", "paced", "relayed", "lg")


def counts_for(n: int, seed: int, most: int = 40_000) -> Counts:
    """Some zero, some short, some long."""
    draw = np.random.default_rng(seed)
    kinds = draw.integers(0, 3, (n, n))
    long = draw.integers(0, most, (n, n))
    return np.where(kinds == 0, 0, np.where(kinds == 1, long % 9, long)).astype(np.int64)


def even_counts(n_ranks: int, n_bytes: int) -> Counts:
    """As many bytes for everybody."""
    return np.full((n_ranks, n_ranks), n_bytes, np.int64)


def thin(model: GridModel) -> GridModel:
    """``model``, the first link of which carries a hundredth of the others."""
    n = model.n_clusters
    rates = [[1e7] * n for _ in range(n)]
    if n > 1:
        rates[0][1] = rates[1][0] = 1e5
    return replace(model, aggregate_bytes_per_s=tuple(map(tuple, rates)))


def plan_of(model: GridModel, counts: Counts, way: str) -> Plan:
    candidate = choose_unequal(model, counts, way).winner
    assert candidate.build is not None
    return candidate.build(0)


@settings(max_examples=60, deadline=None)
@given(GRIDS, st.integers(0, 1000), st.booleans())
def test_every_way_is_right(labels: list[int], seed: int, has_thin: bool) -> None:
    model = model_of(labels)
    model = thin(model) if has_thin else model
    counts = counts_for(len(labels), seed)
    for way in WAYS:
        check_plan(plan_of(model, counts, way))
    for candidate in choose_unequal(model, counts).candidates:
        if model.grid.is_one_host:
            assert candidate.name == "native"
            continue
        assert candidate.build is not None
        check_plan(candidate.build(0))


@settings(max_examples=30, deadline=None)
@given(GRIDS, st.integers(0, 1000))
def test_lg_has_no_more_messages_than_the_paper_says(labels: list[int], seed: int) -> None:
    """Between two clusters at most ``2 max(n1, n2)``, and each block is in one message."""
    grid = model_of(labels).grid
    counts = counts_for(len(labels), seed, 1000)
    sizes = [len(cluster) for cluster in grid.clusters]
    pairs = [(a, b) for k, a in enumerate(sizes) for b in sizes[:k]]
    for bundles in (numbered_bundles(grid, counts), adapted_bundles(grid, counts, 1 << 40)):
        assert len(bundles) <= sum(2 * max(pair) for pair in pairs)
        assert len({bundle[:2] for bundle in bundles}) == len(bundles)
        carried = sorted((s, bundle.target) for bundle in bundles for s in bundle.sources)
        home = grid.cluster_of
        wanted = [(int(s), int(t)) for s, t in np.argwhere(counts) if home[s] != home[t]]
        assert carried == wanted


def test_adapted_collectors_are_those_with_most() -> None:
    """By the paper's numbering rank 0 collects for rank 4, and rank 2's long block moves twice."""
    grid = model_of([0] * 4 + [1] * 4).grid
    counts = even_counts(8, 10)
    counts[2, 4] = 1000

    def collected(bundles: tuple[Bundle, ...]) -> int:
        return sum(int(counts[s, b.target]) for b in bundles for s in b.sources if s != b.collector)

    assert collected(adapted_bundles(grid, counts, 1 << 40)) < 1000
    assert collected(numbered_bundles(grid, counts)) > 1000


def test_long_blocks_go_alone() -> None:
    grid = model_of([0] * 4 + [1] * 4).grid
    counts = even_counts(8, 10)
    counts[1, 5] = 5000
    assert (1, 5, (1,)) in adapted_bundles(grid, counts, 1000)


def test_a_wrong_plan_is_found() -> None:
    """One byte too few, and one message to the wrong place."""
    model = model_of([0, 0, 1, 1, 2])
    counts = even_counts(5, 9000)
    plan = plan_of(thin(model), counts, "relayed")
    other = counts.copy()
    other[0, 3] -= 1
    with pytest.raises(PlanError):
        check_plan(replace(plan, blocks=tuple(other.ravel().tolist())))
    sends = [k for k, op in enumerate(plan.programs[0]) if isinstance(op, Send)]
    without = tuple(op for k, op in enumerate(plan.programs[0]) if k != sends[0])
    programs = Programs(5, lambda r: without if r == 0 else plan.programs[r])
    with pytest.raises(PlanError):
        check_plan(replace(plan, programs=programs))


def test_relays_go_round_thin_links() -> None:
    model = load_model(str(HOSTFILES / "patchwork.toml"))
    assert can_gain(model)
    even = choose_unequal(model, even_counts(12, 1 << 16))
    assert even.winner.name == "relayed"
    direct = next(c for c in even.candidates if c.name == "direct")
    assert even.winner.predicted_s is not None
    assert direct.predicted_s is not None
    assert even.winner.predicted_s < 0.6 * direct.predicted_s
    # What has no thin link to cross is left alone, and so is what is short.
    inside = np.zeros((12, 12), np.int64)
    inside[:2, :2] = 1 << 16
    assert choose_unequal(model, inside).winner.name == "direct"
    assert choose_unequal(model, even_counts(12, 64)).winner.name == "direct"


def test_shares_are_met_by_bytes() -> None:
    """However skewed the counts, a quarter of the bytes is relayed."""
    grid = model_of([0] * 3 + [1] * 3 + [2] * 2).grid
    shares = np.zeros((3, 3, 3))
    shares[:, [0, 1, 2], [0, 1, 2]] = 1.0
    shares[0, 1] = (0.0, 0.75, 0.25)
    counts = np.zeros((8, 8), np.int64)
    counts[:3, 3:6] = [[1 << 20, 5, 0], [1 << 14, 1 << 15, 0], [0, 0, 3]]
    parts = cut_by_shares(grid, counts, shares)
    relayed = sum(part.stop - part.start for part in parts if part.relay >= 0)
    assert relayed == pytest.approx(0.25 * counts.sum(), rel=0.06)


@pytest.mark.parametrize("name", ["three-sites", "one-cluster"])
def test_where_nothing_is_gained_ranks_do_not_even_ask(name: str) -> None:
    assert not can_gain(load_model(str(HOSTFILES / f"{name}.toml")))


def test_nothing_at_all() -> None:
    model = thin(model_of([0, 0, 1, 1, 2]))
    for way in WAYS:
        plan = plan_of(model, even_counts(5, 0), way)
        check_plan(plan)
        assert not any(isinstance(op, Send) for program in plan.programs for op in program)


def test_settings_of_alltoall_hold() -> None:
    assert [unequal_method(n) for n in ("", "lg", "relayed", "rate-paced", "bruck")] == [
        *("", "lg", "relayed", "paced", "direct")
    ]


def test_counts_must_fit() -> None:
    with pytest.raises(UsageError, match="3 times 3"):
        choose_unequal(model_of([0, 0, 1]), even_counts(4, 1))
