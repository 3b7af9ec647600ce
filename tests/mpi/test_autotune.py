"""What is about as fast as the fastest is decided by turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
from mpi4py import MPI

from gridcoll.constants import MARGIN
from gridcoll.measure import tuner
from gridcoll.measure.clock import CommonClock, Series
from gridcoll.model import GridModel, TimesBySize
from gridcoll.plan import choose
from gridcoll.plan.registry import family_of
from tests.mpi.support import count_calls, grid_model, layouts

pytestmark = pytest.mark.long

SIZE = 1 << 16


def quiet(_what: str, _done: int, _of: int) -> None:
    """Nobody watches."""


@pytest.fixture
def one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "TRIAL_SIZES", dict.fromkeys(tuner.RUNS, (SIZE,)))


def close_model(world: MPI.Intracomm, name: str) -> GridModel:
    """Natives 5 % slower than the best plan; the non-blocking one is hopeless."""
    model = grid_model(layouts(world.Get_size())["two"])
    best_s = choose(name, model, SIZE, 0, grid_only=True).winner.predicted_s
    assert best_s is not None
    native, slow = (TimesBySize((SIZE,), (factor * best_s,)) for factor in (1.05, 3.0))
    variants = {name: {"native-nonblocking": slow}}
    return replace(model, native={name: native}, native_variants=variants)


def turns(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[Callable[[], object]]:
    """Contenders take ``seconds``, plans before natives, whatever they really take.

    The first run of a turn takes a second more: it pays for what others left behind.
    """
    per_turn = 1 + tuner.RUNS_PER_TURN
    ran: list[Callable[[], object]] = []
    known: dict[int, float] = {}
    left: Iterator[float] = iter(seconds[::-1])  # the first turn goes backwards

    def run(_series: Series, step: Callable[[], object]) -> float:
        step()
        comes_after_another = not ran or ran[-1] is not step or len(ran) % per_turn == 0
        ran.append(step)
        if id(step) not in known:
            known[id(step)] = next(left)
        return known[id(step)] + comes_after_another

    monkeypatch.setattr(Series, "run", run)
    return ran


@pytest.mark.mpi(min_size=4)
@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize("name", tuner.RUNS)
def test_all_ranks_learn_the_same_by_real_runs(world: MPI.Intracomm, name: str) -> None:
    model = close_model(world, name)
    learned = tuner.autotune(world, model, quiet, [name])
    text = repr((learned.corrections, learned.native, learned.native_variants))
    assert world.allgather(text) == [text] * world.Get_size()
    assert learned.native[name] != model.native[name]
    assert learned.native_variants[name] == model.native_variants[name]


@pytest.mark.mpi(min_size=4)
@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize("native_is", [1 - 2 * MARGIN, 1.0, 1 + 2 * MARGIN])
def test_the_choice_is_what_the_turns_say(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, native_is: float
) -> None:
    model = close_model(world, "bcast")
    monkeypatch.setattr(tuner, "MOST_PLANS", 2)
    plans, natives = tuner._contenders(model, "bcast", SIZE, {})
    assert natives == ["native"]
    best_s = plans[0].predicted_s or 0.0
    seconds = [best_s * factor for factor in (*(1.0, 1.2)[: len(plans)], native_is)]
    ran = turns(monkeypatch, *seconds)
    learned = tuner.autotune(world, model, quiet, ["bcast"])
    n = (len(plans) + 1) * (1 + tuner.RUNS_PER_TURN)
    assert ran[:n] == ran[n : 2 * n][::-1], "to and fro"
    choice = choose("bcast", learned, SIZE, 0)
    assert choice.winner.name == (plans[0].name if native_is > 1 + MARGIN else "native")
    family = family_of("bcast", plans[0].name)
    mine = [c for c in choice.candidates if c.build and family_of("bcast", c.name) == family]
    assert mine[0].predicted_s == pytest.approx(best_s)
    assert learned.native["bcast"].predict(SIZE) == pytest.approx(best_s * native_is)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [
        ((1.0, 1.2, 1.3), (2, 2, 2)),  # all behind at once
        ((1.0, 1.0, 1.3), (4, 4, 2)),  # who is not goes on
        ((1.2, 1.0, 1.0), (2, 4, 4)),
    ],
)
def test_who_is_clearly_behind_plays_no_more(
    world: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    seconds: Sequence[float],
    rounds: Sequence[int],
) -> None:
    """The others do until they differ."""
    monkeypatch.setattr(tuner, "MOST_ROUNDS", 4)
    monkeypatch.setattr(tuner, "LONG_TURN_S", 1e9)
    n_runs = [0] * len(seconds)

    def run(k: int) -> float:
        n_runs[k] += 1
        return seconds[k]

    steps = [partial(run, k) for k in range(len(seconds))]
    monkeypatch.setattr(Series, "run", lambda _series, step: step())
    medians = tuner._take_turns(CommonClock(0.0, 0.0, float), steps)
    assert medians == list(seconds)
    assert n_runs == [(1 + tuner.RUNS_PER_TURN) * each for each in rounds]


@pytest.mark.mpi(min_size=4)
@pytest.mark.usefixtures("one_size")
def test_nobody_plays_alone(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "CLOSE", 0.5)
    monkeypatch.setattr(tuner, "CLOSE_S", -1.0)
    monkeypatch.setattr(Series, "run", None)
    model = close_model(world, "bcast")
    assert tuner.autotune(world, model, quiet, ["bcast"]) == model


@pytest.mark.mpi(min_size=4)
@pytest.mark.usefixtures("one_size")
def test_a_millisecond_behind_is_close(world: MPI.Intracomm) -> None:
    """Whatever part of the time that is: the non-blocking native takes three times as long."""
    model = close_model(world, "bcast")
    native, slow = model.native["bcast"], model.native_variants["bcast"]["native-nonblocking"]
    for factor, plays in ((1.0, False), (0.9 * tuner.CLOSE_S / slow.predict(SIZE), True)):
        quick, slower = (TimesBySize((SIZE,), (factor * t.predict(SIZE),)) for t in (native, slow))
        variants = {"bcast": {"native-nonblocking": slower}}
        other = replace(model, native={"bcast": quick}, native_variants=variants)
        assert ("native-nonblocking" in tuner._contenders(other, "bcast", SIZE, {})[1]) == plays


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    ("n_runs", "plays"),
    [
        ({}, False),  # nobody says
        ({SIZE: 3}, False),
        ({SIZE: 2}, True),
        ({8: 9, 2 * SIZE: 2}, True),
        ({8: 1, SIZE // 2: 9, 2 * SIZE: 9, 4 * SIZE: 1}, False),
        ({8: 9, SIZE // 2: 1}, True),
        ({2 * SIZE: 1, 4 * SIZE: 9}, True),
    ],
)
def test_what_ran_seldom_may_be_faster_than_it_seems(
    world: MPI.Intracomm, n_runs: dict[int, int], plays: bool
) -> None:
    """Of the sizes around this one, since times between them are theirs."""
    model = close_model(world, "bcast")
    best_s = choose("bcast", model, SIZE, 0, grid_only=True).winner.predicted_s or 0.0
    for factor, close in ((1.1, True), (1.5, plays), (1.7, False)):
        times = TimesBySize((SIZE,), (factor * best_s,))
        other = replace(model, native={"bcast": times}, native_variants={})
        found = tuner._contenders(other, "bcast", SIZE, {"native": n_runs})[1]
        assert found == ["native"] * close


Steps = list[Callable[[], object]]


def fake_runs(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> tuple[Steps, list[int]]:
    """Contenders that take so long by rank 0's clock, whatever that of others says; who ran."""
    order: list[int] = []

    def run(series: Series, step: Callable[[], object]) -> float:
        step()
        began = not series.began_s <= series.ended_s
        series.began_s = 0.0 if began else series.began_s
        series.ended_s = seconds[order[-1]] + (0.0 if began else series.ended_s)
        return seconds[order[-1]]

    monkeypatch.setattr(Series, "run", run)
    return [partial(order.append, k) for k in range(len(seconds))], order


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ((0.125, 0.125, 0.125), [2, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0]),
        # Time is up amid the first round: all have run, and a first run paid for others'.
        ((0.5, 0.6, 0.7), [2, 2, 1, 1, 0, 0]),
        # Who is alike runs once more.
        ((0.5, 0.5, 0.6), [2, 2, 2, 1, 1, 0, 0, 0, 0, 1, 1]),
        ((2.9, 2.9), [1, 1, 0, 0, 0, 0, 1, 1]),
        # What takes longer pays little for others.
        ((9.0, 3.1, 10.0), [2, 1, 0]),
        ((9.0, 8.5, 10.0), [2, 1, 0, 0, 1]),
    ],
)
def test_time_is_up_within_a_round(
    monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float], wanted: list[int]
) -> None:
    steps, order = fake_runs(monkeypatch, seconds)
    medians = tuner._take_turns(CommonClock(0.0, 0.0, float), steps)
    assert order == wanted
    assert medians == list(seconds)


@pytest.mark.mpi(min_size=4)
def test_clocks_are_compared_for_every_collective(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, however many sizes."""
    monkeypatch.setattr(tuner, "TRIAL_SIZES", dict.fromkeys(tuner.RUNS, (SIZE, 2 * SIZE)))
    monkeypatch.setattr(tuner, "CLOSE", 1e9)
    compared = count_calls(monkeypatch, tuner, "find_clock")
    both = close_model(world, "bcast"), close_model(world, "allreduce")
    native = {name: times for model in both for name, times in model.native.items()}
    model = replace(both[0], native=native, native_variants={})
    tuner.autotune(world, model, quiet, ["bcast", "allreduce"])
    assert [grid for _, grid in compared] == [model.grid] * 2
