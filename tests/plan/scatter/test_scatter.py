from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.engine.memory import ByteMemory
from gridcoll.model import GridModel, PLogP
from gridcoll.model.closed_forms import SCATTER_COSTS
from gridcoll.plan import REGISTRIES, Chunk, Plan, Send, check_plan, choose
from gridcoll.plan.cost import price_plan
from gridcoll.plan.pacing import Pace, one_by_one, pace_of
from gridcoll.plan.scatter.trees import (
    plan_scatter,
    serve_blocks,
    serving_ranks,
    take_block,
)
from gridcoll.plan.trees import RankTree
from gridcoll.topology import Grid
from tests.plan.grids import grids, model_of, near_over_the_second
from tests.plan.traffic import count_traffic
from tests.reference import run_reference

HOSTFILES = Path(__file__).parents[3] / "hostfiles"
LAN = PLogP(60e-6, (0, 1000, 10_000), (12e-6, 90e-6, 880e-6), (5e-6,) * 3, (5e-6,) * 3)


@settings(max_examples=60, deadline=None)
@given(grids, st.integers(0, 10), st.sampled_from([0, 1, 3, 1000]))
def test_every_candidate_on_any_grid_is_right(labels: list[int], root: int, n_bytes: int) -> None:
    """At sizes it was not chosen for, too."""
    root %= len(labels)
    for candidate in choose("scatter", model_of(labels), n_bytes, root).candidates:
        if candidate.build is not None:
            for exact in {n_bytes, n_bytes // 2 + 1}:
                plan = candidate.build(exact)
                assert (plan.collective, plan.n_units, plan.root) == ("scatter", exact, root)
                check_plan(plan)


@given(st.lists(st.integers(0, 100), max_size=11), st.booleans(), st.integers(0, 4))
def test_down_any_tree(above: list[int], pipelined: bool, n_units: int) -> None:
    children: list[list[int]] = [[] for _ in range(len(above) + 1)]
    for k, parent in enumerate(above):
        children[parent % (k + 1)].append(k + 1)
    turned = [(rank * 5 + 2) % len(children) if len(children) % 5 else rank for rank in range(12)]
    mine: list[tuple[int, ...]] = [()] * len(children)
    for rank, below in enumerate(children):
        mine[turned[rank]] = tuple(turned[child] for child in below)
    check_plan(plan_scatter(RankTree(turned[0], tuple(mine)), n_units, pipelined=pipelined))


@settings(max_examples=40, deadline=None)
@given(grids, st.integers(0, 10))
def test_a_byte_crosses_to_the_cluster_that_needs_it_and_to_no_other(
    labels: list[int], root: int
) -> None:
    root %= len(labels)
    model = model_of(labels)
    home = model.grid.cluster_of[root]
    for candidate in choose("scatter", model, 100, root).candidates:
        if candidate.build is None or "over nearer clusters" in candidate.label:
            continue
        units = count_traffic(candidate.build(7), model.grid).units
        for c, cluster in enumerate(model.grid.clusters):
            if c != home:
                assert units[home, c] == 7 * len(cluster)
        assert all(i in (home, j) for i, j in units)


@pytest.mark.parametrize("name", SCATTER_COSTS)
@pytest.mark.parametrize("n_ranks", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("n_bytes", [0, 700, 3000])
def test_closed_forms_of_table_2(name: str, n_ranks: int, n_bytes: int) -> None:
    """Prediction and simulation of the plan are the formula's time, or less where it is a bound."""
    model = GridModel(Grid.from_labels([0] * n_ranks), ((LAN,),))
    (candidate,) = REGISTRIES["scatter"][name].candidates(model, n_bytes, 0)
    assert candidate.build is not None
    assert candidate.predicted_s is not None
    cost = SCATTER_COSTS[name]
    formula_s = cost.seconds(LAN, n_ranks, n_bytes)
    assert candidate.closed_form_s == formula_s
    if n_bytes:  # a plan of empty blocks sends nothing
        simulated_s = price_plan(candidate.build(n_bytes), model).makespan_s
        assert simulated_s == pytest.approx(candidate.predicted_s)
    if cost.exact_for(n_ranks):
        assert candidate.predicted_s == pytest.approx(formula_s)
    else:
        assert candidate.predicted_s < formula_s


@pytest.mark.parametrize(
    "grid", ["three-sites", "grid5000", "long-fat", "thin-wan", "one-cluster", "two-sites-uneven"]
)
@pytest.mark.parametrize("collective", ["scatter", "gather"])
@pytest.mark.parametrize("n_bytes", [8, 8192, 100_000])
def test_every_plan_takes_what_was_predicted(grid: str, collective: str, n_bytes: int) -> None:
    """Flat plans may end sooner: all of a gather send at once, and flows wait for their windows
    side by side."""
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    candidates = choose(collective, model, n_bytes, 1, grid_only=True).candidates
    plans = [(c, c.build(n_bytes)) for c in candidates if c.build]
    assert len(plans) >= 3
    off = [
        price_plan(plan, model).makespan_s / (c.predicted_s or 1.0) - 1
        for c, plan in plans
        if c.name != "flat" or (c is plans[0][0] and grid != "long-fat")
    ]
    assert max(off) < 0.06
    assert min(off) > -0.15


@pytest.mark.parametrize("algorithm", ["leaders", "binomial", "pipelined-chain"])
def test_long_messages_to_those_who_hand_them_out_leave_one_by_one(algorithm: str) -> None:
    """At once, they would share the root's interface and all arrive at its end."""
    model = load_model(str(HOSTFILES / "grid5000.toml"))
    for n_bytes, waits in ((100_000, True), (100, False)):
        for candidate in REGISTRIES["scatter"][algorithm].candidates(model, n_bytes, 0):
            assert candidate.build
            program = candidate.build(n_bytes).programs[0]
            due_s = [op.due_us * 1e-6 for op in program if isinstance(op, Send)]
            assert due_s == sorted(due_s)
            assert (due_s[-1] > 0.6 * candidate.expected_s) == waits


def test_thin_links_work_at_the_same_time() -> None:
    model = load_model(str(HOSTFILES / "thin-wan.toml"))
    long, short = (choose("scatter", model, n, 0).winner for n in (100_000, 1024))
    assert (long.name, short.name) == ("rate-paced", "flat")
    assert "in turn" in long.label
    assert "longest way first" in short.label


def test_a_scatter_of_uneven_blocks_says_that_the_root_may_keep_them_apart() -> None:
    """It alone knows their sizes; what is chosen for all says what it will do."""
    model = load_model(str(HOSTFILES / "three-sites.toml"))
    uneven, back = (choose(name, model, 0, 1).winner for name in ("scatterv", "gatherv"))
    assert "long ones one after another" in uneven.label
    assert "one after another" not in back.label


@pytest.mark.parametrize("labels", [[0, 1, 1, 2, 2], [0, 1, 2]])
def test_short_blocks_go_over_a_nearer_cluster(labels: list[int]) -> None:
    """A gather comes back the same way."""
    model = near_over_the_second(labels)
    for collective in ("scatter", "gather"):
        winner = choose(collective, model, 8, 0, grid_only=True).winner
        assert "over nearer clusters" in winner.label
        assert winner.build is not None
        plan = winner.build(8)
        check_plan(plan)
        assert price_plan(plan, model).makespan_s == pytest.approx(winner.predicted_s, rel=0.02)
        assert 8e-3 < (winner.predicted_s or 0.0) < 9e-3
    long = choose("scatter", model, 4 << 20, 0, grid_only=True).winner
    assert "over nearer clusters" not in long.label


def test_serving_order_is_farthest_first_and_home_last() -> None:
    model = model_of([0, 1, 2, 0, 1, 2, 2])
    assert serving_ranks(model, 3, 8) == [1, 4, 2, 5, 6, 0]
    assert serving_ranks(model, 3, 8, in_turn=True) == [1, 2, 4, 5, 6, 0]


def dues_us(plan: Plan) -> list[list[int]]:
    sends = ([op for op in program if isinstance(op, Send)] for program in plan.programs)
    return [[op.due_us for op in each] for each in sends]


def test_a_root_far_from_others_sends_no_faster_than_its_interface() -> None:
    """So that what it sends first is there first: flows under way together would share the wire."""
    model = load_model(str(HOSTFILES / "three-sites.toml"))
    gap_s = model.gap_s(50_000)[0, 0] * 0.8
    for candidate in REGISTRIES["scatter"]["rate-paced"].candidates(model, 50_000, 1):
        assert candidate.build is not None
        mine, *others = sorted(dues_us(candidate.build(40_000)), key=len, reverse=True)
        assert mine[0] == 0
        for k, due_us in enumerate(mine):
            assert 0.85 * gap_s * k <= due_us * 1e-6 <= 0.95 * gap_s * k
        assert not any(map(any, others))


def test_who_is_on_the_roots_host_takes_none_of_its_interfaces_time() -> None:
    hosts = ("a", "b", "b", "a", "a", "b")
    model = replace(model_of([0, 1, 1, 0, 0, 0]), grid=Grid.from_labels([0, 1, 1, 0, 0, 0], hosts))
    pace = pace_of(model, 3, 10_000)
    assert pace is not None
    assert pace.unit_s == pytest.approx(0.9 * model.gap_s(10_000)[0, 0] / 10_000)
    assert pace.beside == {0, 3, 4}
    program = tuple(Send(peer, Chunk("input", 0, 1000), 0) for peer in (1, 0, 2, 4, 5))
    paced = one_by_one(program, Pace(1e-6, pace.beside))
    assert [op.due_us for op in paced if isinstance(op, Send)] == [0, 1000, 1000, 2000, 2000]


def test_it_is_what_is_chosen_where_order_is_worth_something() -> None:
    """Predicted to take as long as the flat one, which does not take what is predicted."""
    model = load_model(str(HOSTFILES / "three-sites.toml"))
    assert choose("scatter", model, 1 << 16, 0).winner.name == "rate-paced"
    assert choose("scatter", model, 1 << 16, 0, forced="flat").winner.name == "flat"


@pytest.mark.parametrize(
    ("collective", "grid", "n_bytes"),
    [("scatter", "three-sites", 1000), ("scatter", "one-cluster", 50_000),
     ("gather", "three-sites", 50_000)],
)  # fmt: skip
def test_where_order_is_worth_nothing_all_leaves_at_once(
    collective: str, grid: str, n_bytes: int
) -> None:
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    plans = [c.build(n_bytes) for c in choose(collective, model, n_bytes, 1).candidates if c.build]
    assert plans
    assert not any(any(map(any, dues_us(plan))) for plan in plans)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=7), st.integers(0, 6))
def test_blocks_whose_sizes_only_the_root_knows_all_of(sizes: list[int], root: int) -> None:
    """With room between them, in any order."""
    n_ranks = len(sizes)
    root %= n_ranks
    starts = [sum(sizes[rank + 1 :]) + rank for rank in range(n_ranks)]
    data = bytes(range(sum(sizes) + n_ranks))
    others = [rank for rank in reversed(range(n_ranks)) if rank != root]
    programs = [
        serve_blocks(root, others, starts, sizes) if rank == root else take_block(root, size)
        for rank, size in enumerate(sizes)
    ]
    got = [bytearray(size) for size in sizes]
    run_reference(
        Plan("scatter", "", 0, root, programs),
        [ByteMemory(memoryview(each), memoryview(data)) for each in got],
    )
    for start, each in zip(starts, got, strict=True):
        assert each == data[start : start + len(each)]


def model_with_rendezvous(labels: list[int]) -> GridModel:
    """Links 50 ms long, on which a message of more than 40 KB waits for an answer first."""
    sizes = (0, 1 << 13, 1 << 15, 1 << 16, 1 << 18)
    gap_s = tuple(100e-6 + size / 12.5e6 for size in sizes)
    far = tuple(
        50e-3 + gap + 100e-3 * (size > 40_000) for size, gap in zip(sizes, gap_s, strict=True)
    )
    grid, none = Grid.from_labels(labels), (5e-6,) * len(sizes)
    n = len(grid.clusters)
    links = [
        PLogP(latency, sizes, gap_s, none, none, way)
        for latency, way in ((60e-6, ()), (50e-3, far))
    ]
    return GridModel(grid, tuple(tuple(links[a != b] for b in range(n)) for a in range(n)))


@pytest.mark.parametrize("collective", ["scatter", "gather"])
def test_blocks_go_in_pieces_where_a_whole_one_waits_for_its_receiver(collective: str) -> None:
    model = model_with_rendezvous([0] * 4 + [1] * 4 + [2] * 2)
    choice = choose(collective, model, 1 << 16, 0)
    winner, whole = (
        choice.winner,
        min(c.expected_s for c in choice.candidates if "pieces" not in c.label and c.build),
    )
    assert "in pieces of 32 KiB" in winner.label
    assert winner.expected_s < whole - 90e-3
    assert winner.build
    plan = winner.build(1 << 16)
    check_plan(plan)
    assert price_plan(plan, model).makespan_s == pytest.approx(winner.expected_s, rel=0.05)
    longest = max(
        op.chunk.size for program in plan.programs for op in program if isinstance(op, Send)
    )
    assert longest == 1 << 15
    check_plan(winner.build(3))


def test_nothing_is_cut_where_no_message_waits() -> None:
    for model, n_bytes in (
        (model_with_rendezvous([0, 0, 1, 1]), 1 << 14),
        (model_of([0, 0, 1]), 1 << 16),
    ):
        for candidate in choose("scatter", model, n_bytes, 0).candidates:
            assert "pieces" not in candidate.label


def test_sizes_that_only_the_root_knows_are_not_cut() -> None:
    model = model_with_rendezvous([0, 0, 1, 1])
    for candidate in choose("scatterv", model, 1 << 16, 0).candidates:
        assert "pieces" not in candidate.label
