from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.constants import (
    EXTRAPOLATED_FACTOR,
    MARGIN,
    MOST_ORDER_SLOWDOWN,
    SHORT_IN_ORDER_BYTES,
    START_MARGIN,
)
from gridcoll.errors import UsageError
from gridcoll.model import Correction, GridModel, TimesBySize, declared_model
from gridcoll.model.plogp import FloatArray
from gridcoll.plan import REGISTRIES, Candidate, Plan, choose, rerooted, tree_cost
from gridcoll.plan.bcast import segments as bcast_pricing
from gridcoll.plan.bcast.segments import MANY_CLUSTERS, inside_shapes
from gridcoll.plan.bcast.several_trees import MOST_SPLIT
from gridcoll.plan.check import check_plan
from gridcoll.plan.choice import Choice
from gridcoll.plan.natives import NATIVE
from gridcoll.plan.registry import Algorithm, check_forced, register
from gridcoll.plan.tree_cost import SegmentCosts, TreePrice, price_tree
from gridcoll.plan.trees import GridTree
from gridcoll.schedule.trees import Profile
from gridcoll.topology import Grid, parse_gridfile
from tests.plan.grids import grids, model_of

NOTHING = "nothing, for tests"


@pytest.fixture
def offers() -> Iterator[dict[str, list[float]]]:
    """A collective whose algorithms predict what the test says."""
    times: dict[str, list[float]] = {}

    def empty(n_units: int) -> Plan:
        return Plan(NOTHING, "", n_units, 0, [()])

    def candidates(name: str) -> list[Candidate]:
        return [Candidate(name, f"{name} {t}", t, empty) for t in times.get(name, [])]

    for name in ("first", "second", "none"):
        register(NOTHING, Algorithm(name, "", "", lambda *_, name=name: candidates(name)))
    yield times
    del REGISTRIES[NOTHING]


def model(native_s: float | None, n_clusters: int = 2) -> GridModel:

    made = model_of([k % n_clusters for k in range(4)], native_s=native_s)
    return replace(made, native={NOTHING: made.native["bcast"]} if native_s is not None else {})


def test_the_fastest_wins(offers: dict[str, list[float]]) -> None:
    offers.update(first=[3.0, 2.0], second=[1.0])
    choice = choose(NOTHING, model(5.0), 1, 0)
    assert choice.winner.name == "second"
    assert [c.predicted_s for c in choice.candidates] == [1.0, 2.0, 3.0, 5.0]
    assert choice.reason == "predicted fastest"
    assert (choice.collective, choice.n_bytes, choice.root) == (NOTHING, 1, 0)


def test_ties_go_to_the_one_registered_first(offers: dict[str, list[float]]) -> None:
    offers.update(first=[1.0], second=[1.0])
    assert choose(NOTHING, model(5.0), 1, 0).winner.name == "first"


@pytest.mark.parametrize(
    ("native_s", "winner"),
    [(1.0, NATIVE), (1.0 / (1 - MARGIN) - 1e-9, NATIVE), (1.0 / (1 - MARGIN) + 1e-6, "first")],
)
def test_a_plan_must_beat_native_by_a_margin(
    offers: dict[str, list[float]], native_s: float, winner: str
) -> None:
    offers.update(first=[1.0])
    choice = choose(NOTHING, model(native_s), 1, 0)
    assert choice.winner.name == winner
    if winner == NATIVE:
        assert choice.reason == "no plan is predicted more than 5% faster"
        assert choice.winner.build is None


@pytest.mark.parametrize(("start_s", "winner"), [(0.9, "first"), (1.1, NATIVE)])
def test_a_plan_must_gain_more_than_its_start_may_cost(
    offers: dict[str, list[float]], start_s: float, winner: str
) -> None:
    offers.update(first=[1.0])
    slow = replace(model(1.0 + start_s + START_MARGIN), start_s=start_s)
    choice = choose(NOTHING, slow, 1, 0)
    assert choice.winner.name == winner
    if winner == NATIVE:
        assert choice.reason.startswith("no plan is predicted to gain more than 200.00 ms, less")
    assert choose(NOTHING, slow, 1, 0, grid_only=True).winner.name == "first"


def test_native_that_nobody_measured(offers: dict[str, list[float]]) -> None:
    offers.update(first=[1.0])
    choice = choose(NOTHING, model(None), 1, 0)
    assert choice.winner.name == "first"
    assert choice.reason == "the fastest plan; native was not measured"
    assert choice.candidates[-1].name == NATIVE
    assert choice.candidates[-1].predicted_s is None
    one = choose(NOTHING, model(None, n_clusters=1), 1, 0)
    assert one.winner.name == NATIVE
    assert one.reason == "one cluster, and native was not measured"


@pytest.mark.parametrize(
    ("factor", "native_s", "winner"),
    [
        (EXTRAPOLATED_FACTOR, 1 - MARGIN + 1e-6, NATIVE),
        (EXTRAPOLATED_FACTOR + 1, 1 - MARGIN + 1e-6, "first"),
        (EXTRAPOLATED_FACTOR + 1, 1 - MARGIN - 1e-6, NATIVE),
    ],
)
def test_a_native_timed_with_short_messages_only_must_win_by_a_margin(
    offers: dict[str, list[float]], factor: int, native_s: float, winner: str
) -> None:
    offers.update(first=[1.0])
    timed = TimesBySize((1000,), (native_s / factor,))
    choice = choose(NOTHING, replace(model(None), native={NOTHING: timed}), 1000 * factor, 0)
    assert choice.winner.name == winner
    if factor > EXTRAPOLATED_FACTOR:
        assert choice.reason.endswith(
            "from shorter messages" if winner == NATIVE else "measured with shorter messages only"
        )
    one = replace(model(None, n_clusters=1), native={NOTHING: timed})
    assert choose(NOTHING, one, 1000 * factor, 0).winner.name == NATIVE


def test_grid_only_leaves_native_out(offers: dict[str, list[float]]) -> None:
    offers.update(first=[9.0])
    choice = choose(NOTHING, model(1.0), 1, 0, grid_only=True)
    assert choice.winner.name == "first"
    assert "left out as asked" in choice.reason


def test_forced(offers: dict[str, list[float]]) -> None:
    offers.update(first=[9.0, 8.0], second=[1.0])
    choice = choose(NOTHING, model(1.0), 1, 0, forced="first")
    assert (choice.winner.predicted_s, choice.reason) == (8.0, "asked for")
    assert {c.name for c in choice.candidates} == {"first", NATIVE}
    assert choose(NOTHING, model(1.0), 1, 0, forced=NATIVE).winner.name == NATIVE


def test_forced_where_it_makes_no_sense_is_native(offers: dict[str, list[float]]) -> None:
    offers.update(first=[1.0])
    choice = choose(NOTHING, model(1.0), 1, 0, forced="none")
    assert (choice.winner.name, choice.reason) == (NATIVE, "no plan fits this call")


def test_an_unknown_name_lists_the_known(offers: dict[str, list[float]]) -> None:
    message = r"algorithm 'fastest': known are native, first, second, none$"
    with pytest.raises(UsageError, match=message):
        choose(NOTHING, model(1.0), 1, 0, forced="fastest")
    with pytest.raises(UsageError, match=message):
        check_forced(NOTHING, "fastest")
    for name in ("native", "first"):
        check_forced(NOTHING, name)


@pytest.mark.parametrize("root", [-1, 4])
def test_a_root_out_of_range(root: int) -> None:
    with pytest.raises(UsageError, match=rf"root: must be in 0..3, got {root}"):
        choose("bcast", model_of([0, 0, 1, 1]), 1, root)


def test_an_allreduce_left_to_native_says_what_floats_take() -> None:
    """Ranks might get different bits from it; where that cannot be, nothing is said."""
    quick = {"allreduce": TimesBySize((8,), (1e-9,))}
    apart = replace(model_of([0, 1, 0, 1]), native=quick)
    choice = choose("allreduce", apart, 8, 0)
    floats = choose("allreduce", apart, 8, 0, bitwise_equal=True).winner
    assert choice.winner.name == NATIVE != floats.name
    assert f"where rounding depends on order, as for sums of floats: {floats.name}" in str(choice)
    together = replace(model_of([0, 0, 0, 0]), native=quick)
    assert "rounding" not in choose("allreduce", together, 8, 0).reason
    assert "rounding" not in choose("allreduce", apart, 8, 0, forced=NATIVE).reason


@settings(max_examples=25)
@given(grids, st.sampled_from([0, 8, 5000, 300_000]), st.data())
def test_the_same_choice_twice(labels: list[int], n_bytes: int, data: st.DataObject) -> None:
    """From models made apart: what is cached by one must not matter to the other."""
    root = data.draw(st.integers(0, len(labels) - 1))
    one = choose("bcast", model_of(labels, together=1e9), n_bytes, root)
    other = choose("bcast", model_of(labels, together=1e9), n_bytes, root)
    assert one.to_dict() == other.to_dict()  # labels, predictions, order
    if one.winner.build is not None and other.winner.build is not None:
        assert one.winner.build(n_bytes) == other.winner.build(n_bytes)


@settings(max_examples=50)
@given(
    grids,
    st.sampled_from(["bcast", "reduce", "scatter", "gather"]),
    st.sampled_from([8, 5000, 300_000]),
    st.integers(1, 3),
    st.data(),
)
def test_roots_that_are_alike_choose_alike(
    labels: list[int],
    collective: str,
    n_bytes: int,
    per_host: int,
    data: st.DataObject,
) -> None:
    """As fast as what the root would have chosen by itself, by a plan that is right."""
    base = model_of(labels, together=1e9)
    grid = Grid.from_labels(labels, [f"h{rank // per_host}" for rank in range(len(labels))])
    model = replace(base, grid=grid)
    root = data.draw(st.integers(0, len(labels) - 1))
    alike = grid.first_alike[root]
    assert grid.cluster_of[alike] == grid.cluster_of[root]

    def chosen(root: int) -> Choice:
        return choose(collective, model, n_bytes, root, grid_only=True)

    own, moved = chosen(root), rerooted(chosen(alike), model, root)
    assert moved.root == root
    assert any(each is moved.winner for each in moved.candidates)
    assert moved.winner.expected_s == pytest.approx(own.winner.expected_s)
    assert (moved.winner.build is None) == (own.winner.build is None)
    if moved.winner.build is not None:
        plan = moved.winner.build(n_bytes)
        check_plan(plan)
        assert plan.root == root


def test_what_no_other_root_can_do_is_done_in_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No grid is known where this happens; a plan must come of it all the same."""
    model, chain = model_of([0, 0, 1, 1]), REGISTRIES["bcast"]["chain"]
    choice = choose("bcast", model, 1 << 20, 0, forced="chain")
    monkeypatch.setitem(REGISTRIES["bcast"], "chain", replace(chain, candidates=lambda *_: []))
    build = rerooted(choice, model, 1).winner.build
    assert build is not None
    check_plan(build(1 << 20))


_CHOICES = """
from gridcoll.plan import choose
from gridcoll.plan.bcast import segments as bcast_pricing
from gridcoll.plan.bcast.segments import MANY_CLUSTERS, inside_shapes
from gridcoll.plan.bcast.several_trees import MOST_SPLIT
from gridcoll.plan.trees import GridTree
from gridcoll.plan.tree_cost import SegmentCosts, TreePrice, price_tree
from gridcoll.schedule.trees import Profile
from gridcoll.topology import parse_gridfile
from tests.plan.grids import model_of
for labels in ([0, 1, 2, 0, 1, 2, 0], [0, 0, 1, 1, 1, 2, 3, 4], [0] * 5):
    for n_bytes in (8, 5000, 300_000):
        choice = choose("bcast", model_of(labels, native_s=0.02, together=1e9), n_bytes, 1)
        print([(c.name, c.label, c.predicted_s, c.store_and_forward_s) for c in choice.candidates])
        print(choice.winner.name, choice.reason)
        print([c.build(5000).programs[0] for c in choice.candidates if c.build])
"""


def test_another_process_with_other_hashes_chooses_alike() -> None:
    """Law 4: ranks never disagree, whatever the order of their sets and dicts."""

    def run(seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", _CHOICES],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout

    first = run("1")
    assert first.count("\n") == 27
    assert first == run("4321")


def test_the_cost_of_starting_counts_for_every_plan_and_not_for_native() -> None:
    spec = parse_gridfile(
        "version = 1\nname = 'two'\nclusters = [{name = 'a', ranks = 2}, {name = 'b', ranks = 2}]\n"
        "default_link = {latency = '5 ms'}"
    )
    model = declared_model(spec, ["h0", "h1", "h2", "h3"])
    quick = choose("bcast", model, 8, 0).winner.predicted_s
    assert quick is not None
    native = {"bcast": TimesBySize((8,), (quick * 1.2,))}
    assert choose("bcast", replace(model, native=native), 8, 0).winner.build is not None
    slow = replace(model, native=native, start_s=quick * 0.3)
    assert choose("bcast", slow, 8, 0).winner.name == "native"
    forced = choose("bcast", slow, 8, 0, grid_only=True).winner.predicted_s
    assert forced == pytest.approx(quick * 1.3)


def many(n_clusters: int, n_ranks: int) -> GridModel:
    """Clusters of unequal sizes; several flows carry more than one, so that lanes are tried."""
    labels = [k if k < n_clusters else k * k % n_clusters for k in range(n_ranks)]
    return model_of(labels, native_s=10.0, together=1e9)


@pytest.mark.parametrize("n_clusters", [3, MOST_SPLIT, MANY_CLUSTERS, 100])
@pytest.mark.parametrize("n_bytes", [8, 65536, 4 << 20, 16 << 20])
def test_choosing_prices_little_whatever_the_size(
    n_clusters: int, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: 50 ms are some thousands of array operations of a few microseconds.

    A price takes four per transfer and one walk inside for all clusters together; no tree over
    5,000 ranks is written to choose.
    """
    model = many(n_clusters, 5000)
    n_prices = n_transfers = n_walks = 0
    walk = SegmentCosts.first_inside

    def priced(costs: SegmentCosts, transfers: Sequence[tuple[int, int]], *rest: Any) -> TreePrice:
        nonlocal n_prices, n_transfers
        n_prices += 1
        n_transfers += len(transfers)
        assert len(costs.segment_bytes) <= 16
        return price_tree(costs, transfers, *rest)

    def walked(costs: SegmentCosts, profiles: Sequence[Profile]) -> FloatArray:
        nonlocal n_walks
        n_walks += 1
        return walk(costs, profiles)

    def written(*_: object) -> None:
        pytest.fail("a tree over all ranks was written to choose")

    for module in (bcast_pricing, tree_cost):
        monkeypatch.setattr(module, "price_tree", priced)
    monkeypatch.setattr(SegmentCosts, "first_inside", walked)
    monkeypatch.setattr(GridTree, "expand", written)
    choice = choose("bcast", model, n_bytes, 7)
    assert len(choice.candidates) >= 5
    assert n_transfers <= 2000, n_transfers
    assert n_walks <= n_prices + len(inside_shapes(model))


def test_what_trying_plans_showed_corrects_predictions(offers: dict[str, list[float]]) -> None:
    """By family and size; of what nobody tried, the model is believed no more than of the best."""
    offers.update(first=[1.0], second=[1.5], none=[1.8])
    tried = {"first": Correction((8,), (3.0,)), "second": Correction((8,), (2.0,))}
    corrected = replace(model(None), corrections={NOTHING: tried})
    choice = choose(NOTHING, corrected, 8, 0)
    times = {c.name: c.predicted_s for c in choice.candidates if c.build}
    assert times == {"first": 3.0, "second": 3.0, "none": 3.6}
    optimistic = replace(corrected, corrections={NOTHING: {"first": Correction((8,), (0.5,))}})
    assert choose(NOTHING, optimistic, 8, 0).winner.predicted_s == 0.5
    times = {c.name: c.predicted_s for c in choose(NOTHING, optimistic, 8, 0).candidates if c.build}
    assert times["second"] == 1.5


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_short_operations_of_users_keep_rank_order(collective: str) -> None:
    """Whatever it costs, on ranks dealt out in turn; and what keeps it is a plan that does."""
    scattered = model_of([0, 1, 2] * 4)
    for n_bytes in (8, 1024, SHORT_IN_ORDER_BYTES):
        for root in (0, 7):
            choice = choose(collective, scattered, n_bytes, root, prefer_order=True, grid_only=True)
            assert choice.winner.rank_order or "no plan keeps it" in choice.reason
            if choice.winner.rank_order and choice.winner.build is not None:
                check_plan(choice.winner.build(n_bytes), rank_order=True)


def test_plans_in_rank_order_are_priced_where_somebody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pricing them takes as long as all others."""
    ordered, asked = REGISTRIES["allreduce"]["rank-order"], []

    def price(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
        asked.append(n_bytes)
        return ordered.candidates(model, n_bytes, root)

    counted = replace(ordered, candidates=price)
    monkeypatch.setitem(REGISTRIES["allreduce"], "rank-order", counted)
    choice = choose("allreduce", model_of([0, 1, 2] * 4), 8, 0, grid_only=True)
    assert not asked
    assert "rank-order" in choice.own_operations
    assert asked == [8]


@pytest.mark.parametrize(
    ("more", "kept"), [(MOST_ORDER_SLOWDOWN - 1e-6, True), (MOST_ORDER_SLOWDOWN + 1e-3, False)]
)
def test_long_ones_keep_it_where_it_costs_little(
    offers: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch, more: float, kept: bool
) -> None:
    monkeypatch.setattr(sys.modules[choose.__module__], "REDUCTIONS", (NOTHING,))
    offers.update(first=[1.0])
    register(
        NOTHING,
        Algorithm(
            "ordered",
            "",
            "",
            lambda *_: [
                Candidate(
                    "ordered",
                    "",
                    1 + more,
                    lambda n: Plan(NOTHING, "", n, 0, [()]),
                    rank_order=True,
                )
            ],
        ),
    )
    grid = replace(model(None), start_s=0.0)
    choice = choose(NOTHING, grid, 1 << 20, 0, prefer_order=True)
    assert choice.winner.name == ("ordered" if kept else "first")
    assert ("not in rank order" in choice.reason) is not kept
    plain = choose(NOTHING, grid, 1 << 20, 0)
    assert plain.winner.name == "first"
    assert ("not in rank order" in plain.own_operations) is not kept
    assert "operations of your own" in str(plain)
    assert choose(NOTHING, grid, 8, 0, prefer_order=True).winner.name == "ordered"


@pytest.mark.parametrize("native_s", [None, 1.0])
def test_on_one_host_links_tell_nothing(
    offers: dict[str, list[float]], native_s: float | None
) -> None:
    """Ranks share memory there: what a plan takes is not predicted, unless it is asked for."""
    offers.update(first=[1e-6])
    several = model(native_s, 1)
    alone = replace(several, grid=Grid.from_labels([0] * 4, ["here"] * 4))
    choice = choose(NOTHING, alone, 1, 0)
    assert [each.name for each in choice.candidates] == [NATIVE]
    assert choice.winner.predicted_s == native_s
    assert choice.reason == "one host: nothing goes over a network"
    assert len(choose(NOTHING, several, 8, 0).candidates) == 2
    assert choose(NOTHING, alone, 8, 0, forced="first").winner.predicted_s == 1e-6
    assert choose(NOTHING, alone, 8, 0, grid_only=True).winner.name == "first"
