"""Short blocks over paths through several clusters: right, as long as predicted, near the limit."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model import GridModel, declared_model
from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import ModelKey
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan import REGISTRIES, Candidate, check_plan, choose
from gridcoll.plan.alltoall.lanes import shortest_paths
from gridcoll.plan.alltoall.messages import tally
from gridcoll.plan.alltoall.shortest_paths import (
    MOST_BLOCK_BYTES,
    MOST_BYTES,
    Ways,
    most_parts,
    parcel_messages,
    plan_shortest_paths,
)
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import GridSpec, parse_gridfile
from tests.plan.grids import model_of


def chain_of(sizes: tuple[int, ...], slots: int = 1) -> GridSpec:
    """Clusters in a row: 3 ms between neighbours, 40 ms between all others."""
    lines = ["version = 1", 'name = "chain"']
    for c, n_hosts in enumerate(sizes):
        lines += ["[[clusters]]", f'name = "c{c}"', f"hosts = {n_hosts}", f"slots = {slots}"]
        lines.append('nic = "1 Gbit/s"')
    for a in range(len(sizes)):
        for b in range(a):
            latency = 3 if a - b == 1 else 40
            lines += ["[[links]]", f'between = ["c{b}", "c{a}"]', f'latency = "{latency} ms"']
    return parse_gridfile("\n".join(lines))


def model_and_limit_s(spec: GridSpec, n_bytes: int) -> tuple[GridModel, float]:
    hosts = spec.rank_hosts()
    limit = limit_s("alltoall", wires_from_spec(spec, hosts), n_bytes)
    return declared_model(spec, hosts), limit


def offered(model: GridModel, n_bytes: int) -> list[Candidate]:
    return REGISTRIES["alltoall"]["shortest-paths"].candidates(model, n_bytes, 0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_it_is_right_on_any_grid(labels: list[int], n_parts: int, n_units: int) -> None:
    model = model_of(labels, latencies_s=(9e-3, 9e-3, 1e-3))
    ways = Ways(model.grid, shortest_paths(ModelKey(model)), n_parts)
    check_plan(plan_shortest_paths(ways, n_units))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("sizes", [(3, 4, 2, 5, 3), (1, 1, 1, 1), (2, 1, 6)])
def test_it_takes_the_latency_of_the_path(sizes: tuple[int, ...], slots: int) -> None:
    """By a walk through the plan, too. With few ranks, no other algorithm does."""
    model, limit = model_and_limit_s(chain_of(sizes, slots), 8)
    (candidate,) = offered(model, 8)
    assert candidate.build is not None
    walked_s = price_plan(candidate.build(8), model).makespan_s
    assert candidate.predicted_s == pytest.approx(walked_s, rel=0.03)
    assert walked_s < 1.1 * limit
    if len(sizes) > 3 and slots == 1:
        assert choose("alltoall", model, 8, 0).winner.name == "shortest-paths"


def test_members_take_turns() -> None:
    """Each sends off, forwards and receives as many parcels as the others of its cluster."""
    model, _ = model_and_limit_s(chain_of((4, 4, 4, 4, 4)), 8)
    ways = Ways(model.grid, shortest_paths(ModelKey(model)), 3)
    for cluster in model.grid.clusters:
        for role in range(3):
            n = [len(ways.by_rank[rank][role]) for rank in cluster.ranks]
            assert max(n) - min(n) <= 1
            assert role == 1 or sum(n) == 3 * 4
    carried = Counter(rank for parcel in ways.parcels for rank in parcel.way)
    assert sum(carried.values()) == sum(len(parcel.way) for parcel in ways.parcels)


def test_messages_are_those_of_the_plan() -> None:
    """Those between clusters."""
    model, _ = model_and_limit_s(chain_of((3, 1, 2, 4)), 8)
    ways = Ways(model.grid, shortest_paths(ModelKey(model)), 2)
    of_plan, given_ = tally(plan_shortest_paths(ways, 1)), parcel_messages(ways)
    cluster = np.array(model.grid.cluster_of)
    crosses = cluster[of_plan.source] != cluster[of_plan.target]
    ends = Counter(
        zip(of_plan.source[crosses].tolist(), of_plan.target[crosses].tolist(), strict=True)
    )
    assert ends == Counter(zip(given_.source.tolist(), given_.target.tolist(), strict=True))
    assert ends == Counter(hop for parcel in ways.parcels for hop in pairwise(parcel.way))
    assert of_plan.n_blocks[crosses].sum() == given_.n_blocks.sum()


def test_it_is_for_short_blocks_where_paths_are_shorter() -> None:
    model, _ = model_and_limit_s(chain_of((3, 4, 2, 5)), 8)
    assert offered(model, MOST_BLOCK_BYTES)
    assert not offered(model, MOST_BLOCK_BYTES + 1)
    assert not offered(model, MOST_BYTES // model.grid.n_ranks + 1)
    assert not offered(model_of([0, 0, 1, 1, 2, 2], latencies_s=(5e-3,)), 8)
    assert not offered(model_of([0, 0, 1, 1]), 8), "no other clusters"


def test_large_clusters_share_what_goes_to_another() -> None:
    """A parcel of 200 x 200 blocks would take 2.6 ms on each link."""
    model, _ = model_and_limit_s(chain_of((200, 200, 200)), 8)
    assert most_parts(model.grid, 8) > 50
    small, _ = model_and_limit_s(chain_of((20, 20, 20)), 8)
    assert most_parts(small.grid, 8) == 1, "shorter parcels would cost as much"


def test_hundreds_of_ranks_are_near_the_limit() -> None:
    """Latencies are drawn one by one: direct ways are five times as long as others."""
    n = 30
    draw = np.random.default_rng(5).uniform(1, 50, (n, n))
    lines = ["version = 1", 'name = "drawn"']
    for c in range(n):
        lines += ["[[clusters]]", f'name = "c{c}"', "hosts = 20", 'nic = "1 Gbit/s"']
    for a in range(n):
        for b in range(a):
            lines += ["[[links]]", f'between = ["c{b}", "c{a}"]']
            lines += [f'latency = "{draw[a, b]:.3f} ms"', 'rate = "10 Gbit/s"']
    model, limit = model_and_limit_s(parse_gridfile("\n".join(lines)), 8)
    winner = choose("alltoall", model, 8, 0).winner
    assert winner.name == "shortest-paths"
    assert limit < (winner.predicted_s or 0.0) < 1.3 * limit
