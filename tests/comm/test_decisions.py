"""What is decided once for many calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gridcoll import plan
from gridcoll.comm.decisions import Decisions, Semantics
from gridcoll.comm.methods import vectors
from gridcoll.comm.settings import Settings
from gridcoll.model import GridModel, SlowHosts, planning_model
from tests.plan.grids import model_of


@pytest.mark.parametrize("collective", ["bcast", "reduce", "scatter", "gather"])
def test_each_rank_as_root_in_turn(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One choice for each cluster, and the plan of each root."""
    chosen: list[int] = []

    def choose(*args: object, **rest: object) -> object:
        chosen.append(args[3])  # type: ignore[arg-type]
        return plan.choose(*args, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr("gridcoll.comm.decisions.choose", choose)
    labels = [0, 1, 0, 1, 2, 2, 2]
    ours = Decisions(2, model_of(labels), Settings(force="grid"))
    for root in range(len(labels)):
        assert ours.choice(collective, 1 << 16, root).root == root
        assert ours.decide(collective, 1 << 16, root).flow is not None
    assert chosen == [0, 1, 4]


def test_communicators_with_the_same_model_choose_once() -> None:
    """Of equal settings; a copy of the model is another one."""
    model = model_of([0, 1, 0, 1])
    ours, theirs = (Decisions(0, model, Settings(force="grid")) for _ in range(2))
    chosen = ours.choice("bcast", 1 << 16, 0)
    assert theirs.choice("bcast", 1 << 16, 0) is chosen
    for other in (
        Decisions(0, model, Settings(force="grid", algorithms={"bcast": "flat"})),
        Decisions(0, model, Settings()),
        Decisions(0, replace(model), Settings(force="grid")),
    ):
        assert other.choice("bcast", 1 << 16, 0) is not chosen


def test_plans_of_another_root_price_their_algorithm_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sizes of one class there are."""
    ours = Decisions(0, model_of([0, 0, 1, 1]), Settings(force="grid"))
    winner = plan.REGISTRIES["bcast"][ours.choice("bcast", 1 << 16, 1).winner.name]
    asked: list[int] = []

    def candidates(*args: Any) -> list[plan.Candidate]:
        asked.append(args[2])
        return winner.candidates(*args)

    counted = replace(winner, candidates=candidates)
    monkeypatch.setitem(plan.REGISTRIES["bcast"], winner.name, counted)
    for less in range(5):
        assert ours.decide("bcast", (1 << 16) - less, 1).flow is not None
    assert asked == [1]


def test_where_rank_order_counts_each_root_has_its_own_choice() -> None:
    ours = Decisions(0, model_of([0, 0, 0]), Settings(force="grid"))
    times_s = {
        ours.choice("reduce", 5000, root, Semantics(rank_order=True)).winner.predicted_s
        for root in range(3)
    }
    assert len(times_s) > 1


def test_a_plan_is_written_before_its_first_call() -> None:
    """Calls are compared by their times, and writing a plan takes milliseconds."""
    decisions = Decisions(1, model_of([0, 0, 1, 1]), Settings(force="grid"))
    flow = decisions.decide("allreduce", 1 << 16, 0, unit_bytes=8).flow
    assert flow is not None
    assert "flat" in vars(flow)


def test_choices_spare_slow_hosts() -> None:
    """A slow host is no equivalent root, and children differ by which of their hosts is slow."""
    model = model_of([0, 0, 0, 0, 1, 1, 1, 1], together=1e8)
    slow = replace(model, slow_hosts=(SlowHosts(1, ("host5",), 3.0),))
    decisions = Decisions(0, slow, Settings())
    choice = decisions.choice("bcast", 1 << 20, 0)
    expected = plan.choose("bcast", planning_model(slow), 1 << 20, 0)
    assert choice.winner.predicted_s == expected.winner.predicted_s
    from_slow, from_others = (decisions.choice("bcast", 1 << 20, root) for root in (5, 6))
    assert from_slow.winner.predicted_s != from_others.winner.predicted_s
    children = [decisions.restrict(ranks) for ranks in ([0, 1, 4, 5], [0, 1, 4, 6])]
    assert children[0].choice("bcast", 1 << 20, 0) is not children[1].choice("bcast", 1 << 20, 0)


def test_so_do_exchanges_of_unequal_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    choose_unequal = vectors.choose_unequal

    def choose(model: GridModel, *args: Any) -> plan.Choice:
        asked.append(model)
        return choose_unequal(model, *args)

    monkeypatch.setattr(vectors, "choose_unequal", choose)
    model = model_of([0, 0, 0, 1, 1, 1], together=1e8)
    slow = replace(model, slow_hosts=(SlowHosts(1, ("host4",), 3.0),))
    decisions = Decisions(0, slow, Settings())
    context: Any = SimpleNamespace(decisions=decisions, model=slow, rank=0)
    vectors.Vectors(decisions)._planned(context, np.full((6, 6), 1 << 10))
    assert asked == [planning_model(slow)]
