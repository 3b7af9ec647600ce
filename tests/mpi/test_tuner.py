"""Candidates compete at discovery, in runs of the tuner's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.constants import MARGIN
from gridcoll.measure import trials, tuner
from gridcoll.measure.clock import CommonClock, Series
from gridcoll.measure.learning.arms import competitors
from gridcoll.measure.learning.beliefs import Arm
from gridcoll.measure.learning.elimination import Race
from gridcoll.measure.learning.learner import Kind
from gridcoll.measure.trials import RUNS, worth_trying
from gridcoll.model import Correction, GridModel, TimesBySize
from gridcoll.plan import choose
from gridcoll.plan.registry import Candidate, family_of
from tests.mpi.support import count_calls, grid_model, layouts

SIZE = 1 << 16


Step = Callable[[], object]
Seconds = Callable[[str], float]


def quiet(_what: str, _done: int, _of: int) -> None:
    """Nobody watches."""


@pytest.fixture
def one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "TRIAL_SIZES", dict.fromkeys(RUNS, (SIZE,)))


def two_clusters(world: MPI.Intracomm) -> GridModel:
    return grid_model(layouts(world.Get_size())["two"])


def with_natives(model: GridModel, name: str, plain: float, nonblocking: float) -> GridModel:
    """Natives that take so many times as long as the best plan is predicted to take."""
    best_s = choose(name, model, SIZE, 0, grid_only=True).winner.predicted_s
    assert best_s is not None
    native, other = (TimesBySize((SIZE,), (factor * best_s,)) for factor in (plain, nonblocking))
    variants = {name: {"native-nonblocking": other}}
    return replace(model, native={name: native}, native_variants=variants)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the candidates that ran, in order; runs are real and take ``seconds``."""
    names: list[str] = []
    made = tuner._step

    def step(comm: MPI.Intracomm, collective: str, candidate: Candidate, n_bytes: int) -> Step:
        run = made(comm, collective, candidate, n_bytes)

        def named() -> None:
            run()
            names.append(candidate.name)

        return named

    monkeypatch.setattr(tuner, "_step", step)
    return names


def runs_take(monkeypatch: pytest.MonkeyPatch, ran: list[str], seconds: Seconds) -> None:
    """Runs take ``seconds`` of the candidate's name, by all clocks."""

    def run(series: Series, step: Step) -> float:
        step()
        took_s = seconds(ran[-1])
        began = not series.began_s <= series.ended_s
        series.began_s = 0.0 if began else series.began_s
        series.ended_s = took_s + (0.0 if began else series.ended_s)
        return took_s

    monkeypatch.setattr(Series, "run", run)


@pytest.mark.mpi(min_size=4)
@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize("name", RUNS)
def test_all_ranks_learn_the_same_by_real_runs(world: MPI.Intracomm, name: str) -> None:
    model = with_natives(two_clusters(world), name, 1.05, 30.0)
    learned = tuner.tune(world, model, quiet, name)
    text = repr((learned.corrections, learned.native, learned.native_variants))
    assert world.allgather(text) == [text] * world.Get_size()
    assert learned.native[name] != model.native[name]
    assert learned.native_variants[name] == model.native_variants[name], "it is far behind"


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", RUNS)
def test_what_is_chosen_at_every_size_ran(
    world: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "TRIAL_SIZES", {name: (8, 1 << 13)})
    compared = count_calls(monkeypatch, tuner, "find_clock")
    learned = tuner.tune(world, two_clusters(world), quiet, name)
    assert compared == [(world, learned.grid)], "clocks drift, and other collectives took minutes"
    assert not learned.native, "natives without times do not compete"
    for size in (8, 1 << 13):
        winner = choose(name, learned, size, 0, grid_only=True).winner
        assert family_of(name, winner.name) in learned.corrections[name]


@pytest.mark.mpi(min_size=4)
@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize("native_is", [1 - 2 * MARGIN, 1.0, 1 + 2 * MARGIN])
def test_the_choice_is_what_the_runs_say(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, ran: list[str], native_is: float
) -> None:
    model = with_natives(two_clusters(world), "bcast", 1.05, 30.0)
    plan = choose("bcast", model, SIZE, 0, grid_only=True).winner
    best_s = plan.predicted_s or 0.0
    factors = {"native": native_is, plan.name: 1.0}
    runs_take(monkeypatch, ran, lambda name: best_s * factors.get(name, 1.5))
    learned = tuner.tune(world, model, quiet, "bcast")
    choice = choose("bcast", learned, SIZE, 0)
    assert choice.winner.name == (plan.name if native_is > 1 + MARGIN else "native")
    family = family_of("bcast", plan.name)
    mine = [c for c in choice.candidates if c.build and family_of("bcast", c.name) == family]
    assert mine[0].predicted_s == pytest.approx(best_s)
    assert learned.native["bcast"].predict(SIZE) == pytest.approx(best_s * native_is)
    assert "native-nonblocking" not in ran


@pytest.mark.mpi(min_size=4)
@pytest.mark.usefixtures("one_size")
def test_a_plan_that_is_slower_than_predicted_gives_way(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, ran: list[str]
) -> None:
    """Also to one that was not among the first competitors."""
    model = two_clusters(world)
    choice = choose("bcast", model, SIZE, 0, grid_only=True)
    first = choice.winner.name
    best_s = choice.winner.predicted_s or 0.0
    monkeypatch.setattr(tuner, "competitors", lambda *args: competitors(*args)[:1])
    runs_take(monkeypatch, ran, lambda name: best_s * (8.0 if name == first else 0.5))
    learned = tuner.tune(world, model, quiet, "bcast")
    found = learned.corrections["bcast"]
    assert found[family_of("bcast", first)].factors == pytest.approx((8.0,))
    winner = choose("bcast", learned, SIZE, 0, grid_only=True).winner
    assert winner.name != first
    assert winner.name in ran


@pytest.mark.mpi(min_size=4)
@pytest.mark.usefixtures("one_size")
def test_a_native_that_is_slower_than_its_time_gives_way(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, ran: list[str]
) -> None:
    model = with_natives(two_clusters(world), "bcast", 0.5, 30.0)
    best_s = 2 * model.native["bcast"].predict(SIZE)
    runs_take(monkeypatch, ran, lambda name: best_s * (3.0 if name == "native" else 1.0))
    learned = tuner.tune(world, model, quiet, "bcast")
    assert choose("bcast", learned, SIZE, 0).winner.build
    assert set(ran) > {"native"}


def race(
    monkeypatch: pytest.MonkeyPatch,
    predicted_s: float,
    seconds: Sequence[float],
    known: Mapping[str, list[float]] | None = None,
) -> list[int]:
    """Who runs when arms predicted to take ``predicted_s`` take ``seconds`` in a race."""
    order: list[str] = []
    runs_take(monkeypatch, order, lambda name: seconds[int(name)])
    arms = [Arm(str(k), f"family {k}", predicted_s, 0.25) for k in range(len(seconds))]
    steps = [partial(order.append, str(k)) for k in range(len(seconds))]
    took_s = {(name, ""): list(each) for name, each in (known or {}).items()}
    series = Series(CommonClock(0.0, 0.0, float))
    tuner._run_race(series, Race(arms), Kind("bcast", SIZE), steps, took_s)
    for name, each in took_s.items():
        assert set(each) == {seconds[int(name[0])]}
    return [int(name) for name in order]


def test_the_leader_and_others_run_in_turns_until_one_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = race(monkeypatch, 0.02, (0.02, 0.018, 0.06))
    per_turn = 1 + tuner.RUNS_PER_TURN
    turns = order[::per_turn]
    assert order == [arm for arm in turns for _ in range(per_turn)]
    assert all(a != b for a, b in pairwise(turns))
    assert turns.count(2) == 1, "it is far behind"
    assert turns.count(0) > 1
    assert turns.count(1) > 1


def test_what_one_plan_shows_counts_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes 60 % of what was predicted; so may the second, which would be out else."""
    assert 1 in race(monkeypatch, 0.1, (0.06, 0.05))
    assert 1 not in race(monkeypatch, 0.1, (0.02, 0.05)), "too far"


def test_a_race_with_one_leader_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(race(monkeypatch, 0.02, (0.02,))) == {0}
    assert race(monkeypatch, 0.02, (0.02,), {"0": [0.02, 0.02]}) == []
    assert race(monkeypatch, 0.02, (0.02, 0.06), {"0": [0.02] * 4, "1": [0.06] * 4}) == []


def test_equals_run_until_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    order = race(monkeypatch, 0.05, (0.05, 0.05))
    took_s = len(order) * 0.05
    assert tuner.LONG_S < took_s <= tuner.LONG_S + 2 * 0.05 * (1 + tuner.RUNS_PER_TURN)


def test_long_calls_run_often_enough_to_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long pays little for others: its first run counts, and time is up at once."""
    assert sorted(race(monkeypatch, 9.0, (9.0, 9.0))) == [0, 0, 1, 1]
    order = race(monkeypatch, 9.0, (9.0, 19.0))
    assert order.count(1) == 1, "it is out"


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("longest_s", "n_tried"), [(60.0, 4), (0.2, 3), (1e-9, 1)])
def test_what_takes_long_is_not_tried(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, longest_s: float, n_tried: int
) -> None:
    """By what is predicted of plans; the first size always is. 4 MiB take 0.3 s at 100 Mbit/s."""
    monkeypatch.setattr(trials, "LONGEST_TRIAL_S", longest_s)
    model, sizes = two_clusters(world), (8, 1 << 16, 1 << 20, 1 << 22)
    learned = Correction((8,), (1e-6,))  # what was learned is no reason to try more
    for known in (model, replace(model, corrections={"bcast": {"chain": learned}})):
        assert worth_trying(world, known, "bcast", sizes) == sizes[:n_tried]
