"""Allreduces over all levels: right on any grid, as long as predicted, far ways taken once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.model import GridModel, declared_model
from gridcoll.model.gridmodel import ModelKey
from gridcoll.plan import REGISTRIES, Plan, Send, check_plan
from gridcoll.plan.allreduce.levels import (
    Levels,
    load_of,
    plan_levels,
    price_levels,
    tiers_of,
)
from gridcoll.plan.cost import price_plan
from gridcoll.topology import Grid
from gridcoll.topology.gridfile import parse_gridfile
from gridcoll.topology.levels import join_nearest


def regions(n_regions: int, n_clusters: int, n_hosts: int, slots: int = 1) -> GridModel:
    """Clusters 1 ms from those of their region, 40 ms from the rest; 1 Gbit/s everywhere."""
    lines = ["version = 1", 'name = "regions"']
    names = [f"r{r}c{c}" for r in range(n_regions) for c in range(n_clusters)]
    for name in names:
        lines += ["[[clusters]]", f'name = "{name}"', f"hosts = {n_hosts}", f"slots = {slots}"]
        lines.append('nic = "1 Gbit/s"')
    for k, one in enumerate(names):
        for other in names[:k]:
            latency = "1 ms" if one[:2] == other[:2] else "40 ms"
            lines += ["[[links]]", f'between = ["{one}", "{other}"]', 'rate = "1 Gbit/s"']
            lines.append(f'latency = "{latency}"')
    spec = parse_gridfile("\n".join(lines))
    return declared_model(spec, spec.rank_hosts())


@st.composite
def levels(draw: st.DrawFn, most_ranks: int) -> Levels:
    """Any tiers over any grid: ranks dealt out anyhow over clusters and hosts."""
    n = draw(st.integers(1, most_ranks))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    labels = rng.integers(0, draw(st.integers(1, 8)), n).tolist()
    hosts = [f"h{host}" for host in rng.integers(0, draw(st.integers(1, n)), n)]
    grid = Grid.from_labels(labels, hosts)
    joined = [groups for _, groups in join_nearest(rng.random((len(grid.clusters),) * 2))]
    some = sorted({0, *(draw(st.integers(0, len(joined) - 1)) for _ in range(3))})
    return Levels(grid, tuple(joined[k] for k in some), draw(st.integers(1, 5)))


@settings(max_examples=60, deadline=None)
@given(levels(24), st.integers(0, 60))
def test_any_levels_over_any_grid_are_right(some: Levels, n_units: int) -> None:
    """Matched, free of deadlocks, and everybody ends up with what he should."""
    check_plan(plan_levels(some, n_units, unit_s=1e-6))


@settings(max_examples=5, deadline=None)
@given(levels(300), st.integers(1, 40))
def test_hundreds_of_ranks(some: Levels, n_units: int) -> None:
    check_plan(plan_levels(replace(some, n_turns=1), n_units))


def chosen(model: GridModel, n_bytes: int) -> tuple[Plan, float]:
    (candidate,) = REGISTRIES["allreduce"]["levels"].candidates(model, n_bytes, 0)
    assert candidate.build is not None
    return candidate.build(n_bytes), candidate.expected_s


@pytest.mark.parametrize("shape", [(2, 3, 4, 1), (3, 1, 4, 1), (3, 1, 2, 4), (2, 2, 8, 1)])
@pytest.mark.parametrize("n_bytes", [64 << 10, 4 << 20])
def test_it_takes_what_is_predicted(shape: tuple[int, int, int, int], n_bytes: int) -> None:
    model = regions(*shape)
    plan, predicted_s = chosen(model, n_bytes)
    assert price_plan(plan, model).makespan_s == pytest.approx(predicted_s, rel=0.08)


def test_far_ways_are_taken_once_and_by_all_hosts() -> None:
    """Two regions: each byte crosses once either way; all hosts send about as many of them."""
    model, n_bytes = regions(2, 3, 4), 4 << 20
    plan, predicted_s = chosen(model, n_bytes)
    grid, sent = model.grid, Counter[int]()
    for rank, program in enumerate(plan.programs):
        for op in program:
            ends = grid.cluster_of[rank], grid.cluster_of[op.peer] if isinstance(op, Send) else 0
            if isinstance(op, Send) and model.latency_s[ends] > 10e-3:
                sent[rank] += op.chunk.size
    assert sum(sent.values()) == 2 * n_bytes
    assert len(sent) == grid.n_ranks
    assert max(sent.values()) < 1.5 * min(sent.values())
    assert predicted_s < 2 * 40e-3 + 2 * n_bytes / 125e6  # latency once, or wires and latency meet


def test_load_is_what_ranks_send() -> None:
    model = regions(2, 3, 4)
    tiers = tiers_of(ModelKey(model))[0]
    some = Levels(model.grid, tiers, 6)
    load, n_units = load_of(ModelKey(model), tiers, 6), some.n_pieces * 5
    plan = plan_levels(some, n_units)
    sent = np.zeros(model.grid.n_ranks)
    for rank, program in enumerate(plan.programs):
        sent[rank] = sum(op.chunk.size for op in program if isinstance(op, Send))
    np.testing.assert_allclose(sent / n_units, load.out + load.into + load.exchanged)


def test_more_turns_are_faster_until_messages_are_short() -> None:
    """While the first pieces are under way, the last are still collected."""
    model, n_bytes = regions(3, 1, 4), 4 << 20
    tiers = tiers_of(ModelKey(model))[0]
    once, often = (price_levels(model, Levels(model.grid, tiers, n), n_bytes)[0] for n in (1, 16))
    assert often < 0.85 * once


def test_one_cluster_has_no_levels() -> None:
    """What its hosts send one another at once takes twice what levels would be priced at."""
    assert REGISTRIES["allreduce"]["levels"].candidates(regions(1, 1, 6), 8 << 10, 0) == []
    assert REGISTRIES["allreduce"]["levels"].candidates(regions(1, 2, 3), 8 << 10, 0)


@pytest.mark.parametrize("turns", [1, 8])
def test_pieces_of_a_turn_share_a_thin_link(turns: int) -> None:
    """All cross it at once. They are paced by it: interfaces would fill its queue."""
    spec = parse_gridfile(
        """version = 1
name = "thin"
clusters = [
  {name = "a", hosts = 4, nic = "100 Mbit/s"}, {name = "b", hosts = 4, nic = "100 Mbit/s"}]
links = [{between = ["a", "b"], latency = "5 ms", rate = "20 Mbit/s"}]
"""
    )
    model, n_bytes = declared_model(spec, spec.rank_hosts()), 64 << 10
    every = tiers_of(ModelKey(model))[-1][0]
    levels = Levels(model.grid, (every,), turns)
    predicted_s, _ = price_levels(model, levels, n_bytes)
    walked_s = price_plan(plan_levels(levels, n_bytes), model).makespan_s
    assert predicted_s == pytest.approx(walked_s, rel=0.12)
    (offered,) = REGISTRIES["allreduce"]["levels"].candidates(model, n_bytes, 0)
    assert offered.build
    program = offered.build(n_bytes).programs[0]
    away = [op.due_us for op in program if isinstance(op, Send) and op.peer >= 4]
    assert max(away) > 1e6 * (0.85 * n_bytes / 2.5e6 - 5e-3)
