from __future__ import annotations

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.errors import PlanError, UsageError
from gridcoll.model.gridmodel import GridModel, declared_model
from gridcoll.plan import REGISTRIES, Recv, Send, check_plan, choose
from gridcoll.plan.bcast.scheduled import MOST_SEARCHED, QUICK_HEURISTICS
from gridcoll.plan.bcast.segments import segment_sizes
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.trees import SMALLEST_SEGMENT, RankTree, cut_segments
from gridcoll.schedule.paths import shortest_path
from gridcoll.topology.gridfile import parse_gridfile
from tests.plan.grids import grids, model_of, unlike_model
from tests.plan.handmade import out


@settings(max_examples=60)
@given(grids, st.data())
def test_every_candidate_on_any_grid_is_right(labels: list[int], data: st.DataObject) -> None:
    """Its plan passes `check_plan`, at sizes other than the one it was chosen for, too."""
    model = model_of(labels, together=data.draw(st.sampled_from([0.0, 1e9])))
    root = data.draw(st.integers(0, len(labels) - 1))
    n_bytes = data.draw(st.sampled_from([0, 1, 1000, 4096, 50_000, 1_000_000]))
    # Segments of 1 KiB make checking a megabyte slow; the plan is written for less instead.
    exact = data.draw(st.integers(0, min(n_bytes, 60_000)))
    for candidate in choose("bcast", model, n_bytes, root).candidates:
        if candidate.build is not None:
            plan = candidate.build(exact)
            assert (plan.n_units, plan.root, plan.n_ranks) == (exact, root, len(labels))
            check_plan(plan)


def test_among_many_clusters_best_puts_the_transfers_of_quick_heuristics_in_order() -> None:
    """It does not search there, and yet is as good as any of them and better than their best."""
    model = in_a_plane(MOST_SEARCHED + 10)
    stored = {
        candidate.name: candidate.store_and_forward_s or np.inf
        for candidate in choose("bcast", model, 64 << 10, 0).candidates
    }
    assert stored["best"] < min(stored[name] for name in QUICK_HEURISTICS)


def in_a_plane(n: int) -> GridModel:
    """As many clusters of one host, 1 to 50 ms apart."""
    at = np.random.default_rng(7).random((n, 2))
    lines = ["version = 1", 'name = "plane"']
    for a in range(n):
        lines += ["[[clusters]]", f'name = "c{a}"', "hosts = 1", 'nic = "1 Gbit/s"']
    for a, b in combinations(range(n), 2):
        far_ms = max(50 * float(np.hypot(*(at[a] - at[b]))), 1.0)
        lines += ["[[links]]", f'between = ["c{a}", "c{b}"]', 'rate = "10 Gbit/s"']
        lines += [f'latency = "{far_ms:.2f} ms"']
    spec = parse_gridfile("\n".join(lines))
    return declared_model(spec, spec.rank_hosts())


@pytest.mark.parametrize("name", REGISTRIES["bcast"])
def test_every_algorithm_has_a_grid_it_is_for(name: str) -> None:
    """A registered algorithm that never gives a candidate is no algorithm."""
    three = model_of([0, 0, 0, 1, 1, 1, 2, 2, 2], together=1e9)
    for model in (model_of([0] * 4), three, unlike_model()):
        for candidate in REGISTRIES["bcast"][name].candidates(model, 100_000, 1):
            assert candidate.name == name
            assert candidate.build is not None
            check_plan(candidate.build(100_000))
            return
    pytest.fail(f"{name} gave no candidate")


def test_every_algorithm_says_what_it_is_for_and_where_it_is_from() -> None:
    for name, algorithm in REGISTRIES["bcast"].items():
        assert algorithm.name == name
        assert algorithm.good_for
        assert algorithm.source


@given(st.integers(0, 10_000), st.integers(1, 3000))
def test_segments_cover_the_message_in_order(n_units: int, segment_units: int) -> None:
    segments = cut_segments(n_units, segment_units)
    assert [unit for start, stop in segments for unit in range(start, stop)] == list(range(n_units))
    assert all(stop - start == segment_units for start, stop in segments[:-1])


def test_a_segment_has_a_size() -> None:
    with pytest.raises(UsageError, match="segment size: must be at least 1, got 0"):
        cut_segments(10, 0)


@pytest.mark.parametrize("n_bytes", [0, 1, 1023, 1024, 2048, 5000, 1 << 20])
def test_the_first_pass_halves_down_to_the_smallest(n_bytes: int) -> None:
    sizes = segment_sizes(n_bytes).tolist()
    assert sizes[0] == max(n_bytes, 1)
    assert all(small == -(-large // 2) for large, small in pairwise(sizes))
    assert min(sizes) >= min(SMALLEST_SEGMENT, max(n_bytes, 1))
    assert sizes[-1] // 2 < SMALLEST_SEGMENT


@pytest.mark.parametrize("collective", ["bcast", "reduce", "allreduce"])
@pytest.mark.long
def test_no_segment_is_longer_than_mpi_can_count(collective: str) -> None:
    """Between two hosts one segment would be the fastest, whatever its length."""
    model = model_of([1, 1])
    n_bytes = 3 << 30
    for candidate in choose(collective, model, n_bytes, 0, grid_only=True).candidates:
        if candidate.build is not None and candidate.predicted_s is not None:
            longest = max(
                op.chunk.size
                for program in candidate.build(n_bytes // 8).programs
                for op in program
                if isinstance(op, Send)
            )
            assert longest * 8 < 1 << 31, candidate.name


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_the_shortest_path_is_the_shortest(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    cost = random.uniform(1, 9, (n, n))
    start = int(random.integers(n))

    def length(path: tuple[int, ...]) -> float:
        return sum(float(cost[a, b]) for a, b in pairwise(path))

    found = shortest_path(cost, start)
    assert found[0] == start
    assert sorted(found) == list(range(n))
    paths = [p for p in permutations(range(n)) if p[0] == start]
    assert length(found) == pytest.approx(min(map(length, paths)))


def test_a_path_over_many_clusters_is_greedy_and_visits_all() -> None:
    at = np.array([3, 0, 9, 1, 7, 2, 8, 5, 6, 4, 10, 11])  # where each stands on a line
    cost = np.abs(at[:, None] - at[None, :]).astype(float)
    assert [int(at[v]) for v in shortest_path(cost, 1)] == list(range(12))


class TestRankTree:
    def test_reaches_everybody_once(self) -> None:
        assert RankTree(1, ((), (2, 0), (3,), ())).parent == (1, -1, 1, 2)
        with pytest.raises(PlanError, match="rank 2 is reached twice"):
            _ = RankTree(0, ((1, 2), (2,), ())).parent
        with pytest.raises(PlanError, match="rank 0 is reached twice"):
            _ = RankTree(0, ((1,), (0,))).parent
        with pytest.raises(PlanError, match="rank 2 is not reached from root 0"):
            _ = RankTree(0, ((1,), (), ())).parent

    def test_trees_of_one_plan_share_a_root(self) -> None:
        trees = [RankTree(0, ((1,), ())), RankTree(1, ((), (0,)))]
        with pytest.raises(PlanError, match=r"must share one root, got \[0, 1\]"):
            plan_bcast(trees, 8, 4)

    def test_segments_take_turns(self) -> None:
        trees = [RankTree(0, ((1,), (2,), ())), RankTree(0, ((2,), (), (1,)))]
        made = plan_bcast(trees, 10, 4)
        assert made.programs[0] == (
            Send(1, out(0, 4), 0),
            Send(2, out(4, 8), 1),
            Send(1, out(8, 10), 2),
        )
        check_plan(made)


def test_a_tree_that_is_there_twice_takes_two_turns_of_three() -> None:
    """In one stream: its segments come one after another."""
    trees = [RankTree(0, ((1,), (2,), ())), RankTree(0, ((2,), (), (1,)))]
    plan = plan_bcast([trees[0], trees[1], trees[0]], 7, 1)
    check_plan(plan)
    found = [(op.peer, op.tag, op.stream) for op in plan.programs[2] if isinstance(op, Recv)]
    assert found == [(1, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 0), (0, 4, 1), (1, 5, 0), (1, 6, 0)]
