"""A discovery that is cut off goes on where it was. What stages measure is made up here."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.measure import discover as measuring
from gridcoll.measure.discover import Budget, OutOfTimeError, discover, stage_names
from gridcoll.measure.natives import CALLS, NativeTimes
from gridcoll.measure.trials import RUNS
from gridcoll.model import Correction, GridModel, TimesBySize, format_model, parse_model
from gridcoll.topology import Grid
from tests.mpi.support import grid_model, layouts

pytestmark = pytest.mark.mpi(min_size=2)

Ran = list[str]


@pytest.fixture
def ran(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """What was measured, in order; nothing of it really."""
    grid = Grid.from_labels(layouts(world.Get_size())["two"])
    made = grid_model(layouts(world.Get_size())["two"])
    ran: Ran = []

    def stands_for(name: str, what: str, result: object) -> None:
        def run(*_args: object) -> object:
            ran.append(what)
            return result

        monkeypatch.setattr(measuring, name, run)

    rates = tuple((1e7,) * len(grid.clusters) for _ in grid.clusters)
    stands_for("find_grid", "clusters", grid)
    monkeypatch.setattr(measuring, "unlike_hosts_apart", lambda _comm, found, _progress: found)
    stands_for("measure_links", "links", made.links)
    stands_for("quick_model", "quick", replace(made, grid=grid))
    stands_for("measure_aggregate_bandwidth", "flows", rates)
    stands_for("find_clock", "clock", None)
    stands_for("measure_relay_gap", "engine", TimesBySize((8, 64), (1e-5, 2e-5)))
    stands_for("measure_start", "start", 1e-4)
    stands_for("measure_contention", "contention", (1.0,) * len(grid.clusters))

    def time_native(_c: object, _m: object, name: str, *_args: object) -> NativeTimes:
        ran.append(f"native {name}")
        return NativeTimes(TimesBySize((8,), (1e-3,)), {}, {"native": {8: 3}})

    def tune(_comm: object, model: GridModel, _progress: object, name: str) -> GridModel:
        assert name in model.native
        ran.append(f"tuning of {name}")
        found = {name: {"chain": Correction((8,), (1.5,))}}
        return replace(model, corrections={**model.corrections, **found})

    for each in (time_native, tune):
        monkeypatch.setattr(measuring, each.__name__, each)
    return ran


class CutError(Exception):
    """What a killed rank, or Ctrl-C, does to the others."""


def test_every_stage_is_kept_and_none_runs_twice(world: MPI.Intracomm, ran: Ran) -> None:
    whole = discover(world, 0.3)
    assert list(whole.stages) == stage_names()
    all_ran = list(ran)
    for n_stages in range(1, len(stage_names())):
        ran.clear()
        kept: list[bytes] = []

        def keep(model: GridModel, kept: list[bytes] = kept, n: int = n_stages) -> None:
            kept.append(format_model(model))
            if len(kept) == n:
                raise CutError

        with pytest.raises(CutError):
            discover(world, 0.3, keep=keep)
        cut_off = parse_model(kept[-1])
        assert list(cut_off.stages) == stage_names()[:n_stages]
        resumed = discover(world, 0.3, known=cut_off)
        assert ran == all_ran
        assert resumed == whole
        assert format_model(resumed) == format_model(whole)


def test_one_cut_off_is_of_use(world: MPI.Intracomm, ran: Ran) -> None:
    """Natives that were not timed yet are estimated, and said to be."""
    first: list[GridModel] = []
    discover(world, 0.3, keep=first.append)
    assert set(first[0].native) == set(first[0].native_priors) == set(CALLS)
    timed = first[-1]
    assert timed.native_priors == ()
    assert set(timed.native) == set(CALLS)
    for name in RUNS:
        assert timed.native[name].seconds == (1e-3,)


def test_a_budget_that_is_spent_leaves_a_quick_look(world: MPI.Intracomm, ran: Ran) -> None:
    model = discover(world, 0.3, budget_s=0.0)
    assert model.stages in ((), ("links",))  # what is made up takes no time, and tells no progress
    assert ran[0] == "quick"
    assert not [what for what in ran if what.startswith(("tuning", "native"))]
    ran.clear()
    more = discover(world, 0.3, known=replace(model, stages=("links",)), budget_s=60.0)
    assert list(more.stages) == stage_names()
    assert "quick" not in ran
    assert "links" not in ran


def test_the_most_valuable_comes_first() -> None:
    names = stage_names()
    assert names[:3] == ["links", "flows", "engine"]
    assert len(names) == len(set(names)) == 3 + len(RUNS) + len(CALLS)
    for name in RUNS:
        assert names.index(f"native {name}") < names.index(f"tuning of {name}")
        assert names.index(f"tuning of {name}") < names.index("native gather")
    assert not [name for name in stage_names(native=False) if "native" in name]


def test_ranks_agree_when_time_is_up(world: MPI.Intracomm) -> None:
    """By rank 0's clock, whatever the others' says."""
    told: list[int] = []
    mine = 1e9 if world.Get_rank() == 0 else 0.0
    budget = Budget(world, mine, lambda _what, done, _of: told.append(done))
    budget("something", 0, 2)
    mine = 0.0 if world.Get_rank() == 0 else 1e9
    with pytest.raises(OutOfTimeError):
        Budget(world, mine, lambda *_args: None)("something", 0, 2)
    Budget(world, mine, lambda *_args: None)("something", 2, 2)  # it is done
    assert told == [0]
