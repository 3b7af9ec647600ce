"""Plans tried at discovery."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mpi4py import MPI

from gridcoll.comm import corrections
from gridcoll.comm.clock import CommonClock, find_clock
from gridcoll.plan import choose
from gridcoll.plan.choose import family_of
from tests.mpi.support import grid_model, layouts


def quiet(_what: str, _done: int, _of: int) -> None:
    """Nobody watches."""


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", corrections.RUNS)
def test_what_would_run_at_every_size_was_tried(
    world: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all ranks learn the same."""
    monkeypatch.setattr(corrections, "TRIAL_SIZES", {name: (8, 1 << 13)})
    model = grid_model(layouts(world.Get_size())["two"])
    learned = corrections.try_plans(world, model, find_clock(world), quiet, [name])
    found = learned.corrections[name]
    assert world.allgather(found) == [found] * world.Get_size()
    for size in (8, 1 << 13):
        winner = choose(name, learned, size, 0, grid_only=True).winner
        assert family_of(name, winner.name) in found


@pytest.mark.mpi(min_size=4)
def test_a_plan_that_is_slower_than_predicted_gives_way(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long one runs three times, the short one nine."""
    n_bytes, runs_s = 1 << 16, iter([30.0] * 3 + [1e-9] * 9)

    def run_together(_clock: CommonClock, step: corrections.Step) -> float:
        step()
        return next(runs_s)

    monkeypatch.setattr(corrections, "run_together", run_together)
    monkeypatch.setattr(corrections, "TRIAL_SIZES", {"bcast": (n_bytes,)})
    model = grid_model(layouts(world.Get_size())["two"])
    learned = corrections.measure_corrections(
        world, model, CommonClock(0.0, 0.0, float), "bcast", quiet
    )
    assert next(runs_s, None) is None
    assert len(learned) == 2
    slow, quick = learned
    assert learned[slow].factors[0] > 2 > 1 > learned[quick].factors[0]
    corrected = replace(model, corrections={"bcast": learned})
    winner = choose("bcast", corrected, n_bytes, 0, grid_only=True).winner
    assert family_of("bcast", winner.name) == quick
