"""Plans tried at discovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from mpi4py import MPI

from gridcoll.measure import trials
from gridcoll.measure import tuner as corrections
from gridcoll.measure.clock import Series
from gridcoll.model import Correction, GridModel
from gridcoll.plan import choose
from gridcoll.plan.registry import family_of
from tests.mpi.support import count_calls, grid_model, layouts

SIZE = 1 << 16


def quiet(_what: str, _done: int, _of: int) -> None:
    """Nobody watches."""


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", corrections.RUNS)
def test_what_would_run_at_every_size_was_tried(
    world: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all ranks learn the same."""
    monkeypatch.setattr(corrections, "TRIAL_SIZES", {name: (8, 1 << 13)})
    compared = count_calls(monkeypatch, corrections, "find_clock")
    model = grid_model(layouts(world.Get_size())["two"])
    learned = corrections.try_plans(world, model, quiet, [name])
    found = learned.corrections[name]
    assert world.allgather(found) == [found] * world.Get_size()
    assert compared == [(world, model.grid)], "clocks drift, and other collectives took minutes"
    for size in (8, 1 << 13):
        winner = choose(name, learned, size, 0, grid_only=True).winner
        assert family_of(name, winner.name) in found


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("longest_s", "n_tried"), [(60.0, 4), (0.2, 3), (1e-9, 1)])
def test_what_takes_long_is_not_tried(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, longest_s: float, n_tried: int
) -> None:
    """By what is predicted of plans; the first size always is. 4 MiB take 0.3 s at 100 Mbit/s."""
    monkeypatch.setattr(trials, "LONGEST_TRIAL_S", longest_s)
    model, sizes = grid_model(layouts(world.Get_size())["two"]), (8, 1 << 16, 1 << 20, 1 << 22)
    learned = Correction((8,), (1e-6,))  # what was learned is no reason to try more
    for known in (model, replace(model, corrections={"bcast": {"chain": learned}})):
        assert corrections.worth_trying(world, known, "bcast", sizes) == sizes[:n_tried]


def learn_from(
    world: MPI.Intracomm,
    model: GridModel,
    monkeypatch: pytest.MonkeyPatch,
    runs_s: Sequence[float],
) -> dict[str, Correction]:
    """What two families teach whose runs take ``runs_s``, of which none is left over."""
    left = iter(runs_s)

    def run(_series: Series, step: corrections.Step) -> float:
        step()
        return next(left)

    monkeypatch.setattr(Series, "run", run)
    monkeypatch.setattr(corrections, "TRIAL_SIZES", {"bcast": (SIZE,)})
    learned = corrections.measure_corrections(world, model, "bcast", quiet)
    assert next(left, None) is None
    assert len(learned) == 2
    return learned


@pytest.mark.mpi(min_size=4)
def test_what_is_far_behind_runs_twice(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once: the first run opens connections. And the median counts as ever."""
    model = grid_model(layouts(world.Get_size())["two"])
    plans = choose("bcast", model, SIZE, 0, grid_only=True).candidates
    assert plans[0].predicted_s is not None
    # The first seems slow enough for the second to be tried, which is slower yet.
    first_s = 8 * plans[0].predicted_s
    runs_s = [first_s] * 3 + [2 * first_s] * 2
    monkeypatch.setattr(corrections, "ENOUGH_S", 0.0)
    monkeypatch.setattr(corrections, "MOST_TRIALS", 2)
    first, second = learn_from(world, model, monkeypatch, runs_s).values()
    assert second.factors[0] > first.factors[0] == pytest.approx(8.0)


@pytest.mark.mpi(min_size=4)
def test_a_plan_that_is_slower_than_predicted_gives_way(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long one runs three times, the short one nine."""
    model = grid_model(layouts(world.Get_size())["two"])
    learned = learn_from(world, model, monkeypatch, [30.0] * 3 + [1e-9] * 9)
    slow, quick = learned
    n_bytes = SIZE
    assert learned[slow].factors[0] > 2 > 1 > learned[quick].factors[0]
    corrected = replace(model, corrections={"bcast": learned})
    winner = choose("bcast", corrected, n_bytes, 0, grid_only=True).winner
    assert family_of("bcast", winner.name) == quick
