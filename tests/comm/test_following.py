"""When a communicator glances at changed links, and at which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from mpi4py import MPI

from gridcoll.comm.following import Following, News
from gridcoll.measure.learning.agreed import OVERHEAD_PART, Point
from gridcoll.measure.learning.changes import LinkFactors, Pair, changed_model
from gridcoll.measure.learning.links import Glance
from gridcoll.model import GridModel
from tests.plan.grids import model_of


def following_of(model: GridModel) -> Following:
    """The following of one process, which sends nothing."""
    return Following(MPI.COMM_SELF, lambda: None, model, News(), lambda _: None)  # type: ignore[arg-type, return-value]


def test_no_glance_waits_for_a_more_expensive_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All together cost no more than their part of the time in collectives."""
    costs_s: defaultdict[Pair, list[float]] = defaultdict(list)

    def is_better(glance: Glance, *_: Any) -> bool:
        costs_s[glance.pair].append(glance.expected_s)
        return False

    monkeypatch.setattr(Glance, "is_better", is_better)
    model = model_of([0, 0, 1, 1, 2, 2], together=1e8)
    following = following_of(model)
    found = {(0, 2): LinkFactors(1.0, 1.3), (1, 1): LinkFactors(1.0, 3.0, (2, 3))}
    changed = changed_model(model, found)
    assert changed is not None
    following.model, following.changed = changed, found
    for second in range(300):
        now_s = float(second)
        following.step(Point([], 1.0, 0.0, True, True), 0, now_s, total_s=now_s)
    assert costs_s.keys() == found.keys()
    assert min(costs_s[0, 2]) > 1.5 * max(costs_s[1, 1])
    assert len(costs_s[1, 1]) > 1.3 * len(costs_s[0, 2]) > 4
    assert sum(map(sum, costs_s.values())) <= OVERHEAD_PART * 300


def test_cheap_glances_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the budget allows any of them at any time, none is left out."""
    n_glances: Counter[Pair] = Counter()

    def is_better(glance: Glance, *_: Any) -> bool:
        n_glances[glance.pair] += 1
        return False

    monkeypatch.setattr(Glance, "is_better", is_better)
    model = model_of([0, 0, 1, 1, 2, 2], together=1e8)
    following = following_of(model)
    found = {
        (0, 1): LinkFactors(1.0, 1.5),
        (0, 2): LinkFactors(1.0, 1.5),
        (1, 2): LinkFactors(1.0, 1.5),
    }
    changed = changed_model(model, found)
    assert changed is not None
    following.model, following.changed = changed, found
    for second in range(30):
        point = Point([], 1.0, 0.0, True, True)
        following.step(point, 0, float(second), total_s=1e4 * (second + 1))
    assert n_glances.keys() == found.keys()
    assert max(n_glances.values()) <= min(n_glances.values()) + 1


class Unchanged:
    """A communicator whose links are as they were; its glances are wrong or see nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sees_better: bool) -> None:
        self.glances_s: list[float] = []
        self._now_s = 0.0

        def is_better(*_: Any) -> bool:
            self.glances_s.append(self._now_s)
            return sees_better

        unchanged = {(0, 1): LinkFactors(1.0, 1.0)}
        monkeypatch.setattr("gridcoll.comm.following.look_at_links", lambda *_: unchanged)
        monkeypatch.setattr(Glance, "is_better", is_better)
        self._following = following_of(model_of([0, 0, 1, 1], together=1e8))

    def step(self, now_s: float, suspicion: int = 0) -> None:
        self._now_s = now_s
        better = self._following.take_message().better
        point = Point([], 1.0, 0.0, True, True, better=better)
        self._following.step(point, suspicion, now_s, total_s=1e6 * now_s)


def test_slow_calls_without_a_cause_do_not_make_glances_rare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a long job, a link that becomes better is noticed as soon as at first."""
    comm = Unchanged(monkeypatch, sees_better=False)
    for hour in range(12):
        comm.step(3600.0 * hour, suspicion=1)
    assert not comm.glances_s
    for second in range(120):
        comm.step(3600.0 * 12 + second)
    assert len(comm.glances_s) > 3


def test_glances_that_were_wrong_become_rare_but_do_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comm = Unchanged(monkeypatch, sees_better=True)
    for second in range(7200):
        comm.step(float(second))
    assert 60 < len(comm.glances_s) < 130
    assert comm.glances_s[-1] > 7100


def models_after(
    monkeypatch: pytest.MonkeyPatch, model: GridModel, looks: Sequence[LinkFactors], n_asked: int
) -> list[GridModel]:
    """The model after each of ``looks`` at one link, a minute apart; slow calls ask for some."""
    left = iter(looks)
    monkeypatch.setattr("gridcoll.comm.following.look_at_links", lambda *_: {(0, 1): next(left)})
    following = following_of(model)
    models = []
    for minute in range(len(looks)):
        point, suspicion = Point([], 1.0, 0.0, True, True), int(minute < n_asked)
        found = following.step(point, suspicion, now_s=61.0 * minute, total_s=0.0).model
        assert found is not None
        models.append(found)
    return models


def test_a_link_whose_flows_wait_for_their_windows_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They open by being used. Not if they do so at the next look, too: packets get lost there."""
    thin, waits = (
        LinkFactors(1.0, 10.0),
        LinkFactors(1.0, 2.1, together_bytes_per_s=6e6, open_gap=1.0),
    )
    model = model_of([0, 0, 1, 1], together=1e8)
    models = models_after(monkeypatch, model, [thin, waits, waits], n_asked=2)
    gaps = [each.link(0, 1).gap(1e9) / model.link(0, 1).gap(1e9) for each in models]
    assert gaps == pytest.approx([10.0, 1.0, 2.1], rel=0.01)
    assert models[-1].aggregate_bytes_per_s[0][1] == 6e6


def test_flows_over_a_link_on_its_way_back_carry_what_they_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the next look finds that the link stays as it is."""
    looks = [
        LinkFactors(1.0, gap, together_bytes_per_s=1e8 / gap, open_gap=gap)
        for gap in (10.0, 2.1, 2.1)
    ]
    model = model_of([0, 0, 1, 1], together=1e8)
    models = models_after(monkeypatch, model, looks, n_asked=3)
    carried = [each.aggregate_bytes_per_s[0][1] for each in models]
    assert carried == pytest.approx([1e7, 1e8, 1e8 / 2.1])


def test_a_longer_link_is_no_thinner_one_while_nothing_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its window stays as small as it is, and the next looks find it opening."""
    opening = LinkFactors(5.0, 2.3, open_gap=1.0)
    longer = LinkFactors(6.5, 2.3, open_gap=1.0)
    model = model_of([0, 0, 1, 1], together=1e8)
    models = models_after(monkeypatch, model, [opening, longer], n_asked=2)
    for each in models:
        assert each.link(0, 1).gap(1e9) == pytest.approx(model.link(0, 1).gap(1e9), rel=0.01)


@pytest.mark.parametrize(
    ("cost_s", "finds", "expected_s"),
    [
        (0.0, False, [0, 5, 65, 125, 185]),
        (0.0, True, [0, 5, 65, 125, 185]),
        (2.0, False, [0, 5]),
        (2.0, True, [0, 5, 65, 125, 185]),
    ],
)
def test_two_looks_may_follow_each_other(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, finds: bool, expected_s: list[float]
) -> None:
    """The network may change during the first. Fewer looks follow if they find nothing."""
    looks_s: list[float] = []
    clock_s = 0.0

    def look(*_: object) -> dict[Pair, LinkFactors]:
        nonlocal clock_s
        clock_s += cost_s
        looks_s.append(now_s)
        gap = 3.0 * 2 ** len(looks_s) if finds else 1.0
        return {(0, 1): LinkFactors(1.0, gap)}

    monkeypatch.setattr("gridcoll.comm.following.look_at_links", look)
    monkeypatch.setattr("gridcoll.comm.following.time.monotonic", lambda: clock_s)
    model = model_of([0, 0, 1, 1], together=1e8)
    following = following_of(model)
    for now_s in map(float, range(0, 200, 5)):
        following.step(Point([], 1.0, 0.0, True, True), 1, now_s, total_s=0.0)
    assert looks_s == expected_s
