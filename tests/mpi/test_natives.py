"""The MPI library's own collectives, timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mpi4py import MPI

from gridcoll.constants import ANNOUNCED_BYTES
from gridcoll.measure import natives
from gridcoll.measure.clock import Series, find_clock
from gridcoll.measure.natives import CALLS, time_native
from gridcoll.measure.trials import LARGEST_BYTES, series_of
from gridcoll.plan import choose
from gridcoll.plan.natives import NATIVE, NONBLOCKING, TIMED, VECTOR, variants_of
from tests.mpi.support import count_calls, grid_model, layouts


def test_all_that_have_variants_are_timed() -> None:
    assert set(CALLS) == set(TIMED)


@pytest.mark.parametrize(
    ("collective", "n_bytes", "n_barriers"),
    [("alltoall", ANNOUNCED_BYTES, 1), ("alltoall", 1 << 10, 0), ("bcast", ANNOUNCED_BYTES, 0)],
)
def test_a_long_exchange_follows_a_barrier(
    world: MPI.Intracomm, collective: str, n_bytes: int, n_barriers: int
) -> None:
    calls = []

    class Counting(MPI.Intracomm):
        def Barrier(self) -> None:
            calls.append(self)
            super().Barrier()

    series_of(Counting(world), find_clock(world), collective, n_bytes).run(lambda: None)
    assert len(calls) == n_barriers


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", CALLS)
def test_every_native_is_timed_up_to_its_largest_size(
    world: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on all ranks; of blocks for every rank only sizes that add up to little."""
    compared = count_calls(monkeypatch, natives, "find_clock")
    model = grid_model(layouts(world.Get_size())["two"])
    sizes = (8, 1 << 10, (1 << 16) + 8)
    found = time_native(world, model, name, sizes, lambda *_: None)
    wanted = tuple(n for n in sizes if n <= LARGEST_BYTES.get(name, n))
    for times in (found.plain, *found.variants.values()):
        assert times.sizes_bytes == wanted[: len(times.sizes_bytes)]
        assert times.sizes_bytes[0] == 8
        assert all(seconds > 0 for seconds in times.seconds)
    assert tuple(found.variants) == variants_of(name)
    assert world.allgather(found) == [found] * world.Get_size()
    assert compared == [(world, model.grid)], "clocks drift, and other collectives took minutes"


Times = dict[str, Callable[[int], float]]
"""Seconds by native, of the so-manieth run of it."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> tuple[Times, list[str]]:
    """Runs take what the test says; which there were, in order."""
    takes: Times = {}
    order: list[str] = []

    def run(_series: Series, step: Callable[[], object]) -> float:
        step()
        return takes[order[-1]](order.count(order[-1]) - 1)

    def native_call(native: str, _method: str) -> Callable[..., None]:
        return lambda *_args: order.append(native)

    monkeypatch.setattr(Series, "run", run)
    monkeypatch.setattr(natives, "native_call", native_call)
    return takes, order


def time_one(world: MPI.Intracomm, name: str, *sizes: int) -> natives.NativeTimes:
    model = grid_model([k % 2 for k in range(world.Get_size())])
    return time_native(world, model, name, sizes, lambda *_: None)


def plan_s(world: MPI.Intracomm, name: str, n_bytes: int) -> float:
    model = grid_model([k % 2 for k in range(world.Get_size())])
    return choose(name, model, n_bytes, 0, grid_only=True).winner.predicted_s or 0.0


Runs = tuple[Times, list[str]]

FIRST = [NATIVE, NATIVE, NONBLOCKING, NONBLOCKING]
"""The first turn: of each a run that does not count, and one that does."""


@pytest.mark.mpi(min_size=2)
class TestTurns:
    def test_to_and_fro_twice_where_runs_are_alike(self, world: MPI.Intracomm, runs: Runs) -> None:
        takes, order = runs
        takes.update({NATIVE: lambda k: 1e-3, NONBLOCKING: lambda k: 9e-4, VECTOR: lambda k: 8e-4})
        found = time_one(world, "alltoall", 8)
        assert order == [*FIRST, VECTOR, VECTOR, VECTOR, NONBLOCKING, NATIVE]
        assert found.plain.seconds == (1e-3,)
        assert {name: times.seconds for name, times in found.variants.items()} == {
            NONBLOCKING: (9e-4,), VECTOR: (8e-4,)
        }  # fmt: skip
        assert found.n_runs == {native: {8: 2} for native in takes}

    def test_what_opens_connections_does_not_count(self, world: MPI.Intracomm, runs: Runs) -> None:
        """Nor at the next size, where what ran before left windows small."""
        takes, order = runs
        cold = {0: 0.1, 3: 0.01}
        takes.update({native: lambda k: cold.get(k, 1e-3) for native in (NATIVE, NONBLOCKING)})
        found = time_one(world, "bcast", 8, 16)
        assert order == [*FIRST, NONBLOCKING, NATIVE] * 2
        assert found.plain.seconds == found.variants[NONBLOCKING].seconds == (1e-3, 1e-3)

    @pytest.mark.parametrize(
        ("seconds", "n_bytes", "n_times"),
        [
            (3.5, 8, 1),
            (2.5, 8, 2),
            (2.5, 1 << 13, 1),  # far behind any plan
            (0.9, 1 << 13, 2),
        ],
    )
    def test_unless_it_takes_long(
        self, world: MPI.Intracomm, runs: Runs, seconds: float, n_bytes: int, n_times: int
    ) -> None:
        takes, order = runs
        takes.update({NATIVE: lambda k: seconds, NONBLOCKING: lambda k: seconds})
        found = time_one(world, "bcast", n_bytes)
        assert order.count(NATIVE) == n_times
        assert found.plain.seconds == (seconds,)
        assert found.n_runs[NATIVE] == {n_bytes: 1}

    def test_no_variants_where_the_plain_one_takes_very_long(
        self, world: MPI.Intracomm, runs: Runs
    ) -> None:
        """Nor at later sizes, so that there are no gaps; not even where sizes are short."""
        takes, order = runs
        by_size = iter([1e-3] * 3 + [10.5] + [1e-3] * 3)
        takes.update({NATIVE: lambda k: next(by_size), NONBLOCKING: lambda k: 1e-3})
        found = time_one(world, "bcast", 8, 16, 24)
        assert order == [*FIRST, NONBLOCKING, NATIVE] + [NATIVE] * 4
        assert found.plain.seconds == (1e-3, 10.5, 1e-3)
        assert found.variants[NONBLOCKING].sizes_bytes == (8,)

    def test_more_often_where_they_are_not(self, world: MPI.Intracomm, runs: Runs) -> None:
        takes, order = runs
        takes.update({NATIVE: lambda k: 1e-3, NONBLOCKING: lambda k: (10 - k) * 1e-4})
        found = time_one(world, "bcast", 8)
        both = [NATIVE, NONBLOCKING]
        assert order == FIRST + (both[::-1] + both) * 4
        assert found.variants[NONBLOCKING].seconds == pytest.approx((5e-4,))

    def test_three_times_where_that_takes_a_while(self, world: MPI.Intracomm, runs: Runs) -> None:
        takes, order = runs
        takes.update({NATIVE: lambda k: 0.11, NONBLOCKING: lambda k: (0.2, 0.09, 0.12, 0.11)[k]})
        n_bytes = 1 << 22
        assert plan_s(world, "bcast", n_bytes) > 0.3
        found = time_one(world, "bcast", n_bytes)
        assert len(order) == 2 + 6
        assert found.variants[NONBLOCKING].seconds == (0.11,)

    def test_what_is_slower_at_first_is_not_run_again(
        self, world: MPI.Intracomm, runs: Runs
    ) -> None:
        """At that size: libraries that relay short blocks may not do so with longer ones."""
        takes, order = runs
        takes.update({NATIVE: lambda k: 1e-3, NONBLOCKING: lambda k: 1.3e-3})
        found = time_one(world, "bcast", 8, 16)
        assert order == [*FIRST, NATIVE] * 2
        assert found.variants[NONBLOCKING].seconds == (1.3e-3, 1.3e-3)

    def test_once_where_it_takes_long(self, world: MPI.Intracomm, runs: Runs) -> None:
        takes, order = runs
        takes.update({NATIVE: lambda k: 0.6, NONBLOCKING: lambda k: 0.5})
        n_bytes = 1 << 22  # for which the model predicts a plan to take as long
        assert plan_s(world, "bcast", n_bytes) > 0.3
        time_one(world, "bcast", n_bytes)
        assert order == FIRST

    def test_a_plan_far_ahead_of_a_long_native_ends_variants(
        self, world: MPI.Intracomm, runs: Runs
    ) -> None:
        """For good, so that there are no gaps between sizes; short ones cost too little."""
        takes, order = runs
        plan = plan_s(world, "bcast", 1 << 19)
        assert plan > natives.COSTLY_S / 2
        by_size = iter([1e-3] * 3 + [2.5 * plan] * 3 + [plan] * 3)
        takes.update({NATIVE: lambda k: next(by_size), NONBLOCKING: lambda k: 1e-3})
        found = time_one(world, "bcast", 8, 1 << 19, (1 << 19) + 8)
        assert order == [*FIRST, NONBLOCKING] + [NATIVE] * 7
        assert found.variants[NONBLOCKING].sizes_bytes == (8,)
        assert found.plain.sizes_bytes == (8, 1 << 19, (1 << 19) + 8)

    def test_a_long_variant_far_behind_is_given_up(self, world: MPI.Intracomm, runs: Runs) -> None:
        takes, order = runs
        takes.update({NATIVE: lambda k: 0.06, NONBLOCKING: lambda k: 0.13})
        found = time_one(world, "bcast", 1 << 18, 1 << 19)
        assert order == FIRST + [NATIVE] * 4
        assert found.variants[NONBLOCKING].sizes_bytes == (1 << 18,)

    def test_a_native_far_behind_a_plan_ends_all(self, world: MPI.Intracomm, runs: Runs) -> None:
        takes, order = runs
        takes.update({NATIVE: lambda k: 9.0, NONBLOCKING: lambda k: 1.0})
        found = time_one(world, "bcast", 1 << 13, 1 << 14)
        assert order == [NATIVE]
        assert found.plain.sizes_bytes == (1 << 13,)
        assert found.variants == {}

    def test_what_it_does_with_a_few_bytes_ends_nothing(
        self, world: MPI.Intracomm, runs: Runs
    ) -> None:
        """Where latencies are long, all it relays is: later sizes may go straight."""
        takes, order = runs
        by_size = iter([9.0, 0.3, 0.3])
        takes.update(
            {NATIVE: lambda k: next(by_size), NONBLOCKING: lambda k: 3.0, VECTOR: lambda k: 2.0}
        )
        found = time_one(world, "alltoall", 8, 1 << 10)
        assert order == [NATIVE, NONBLOCKING, VECTOR, VECTOR, NATIVE, NATIVE, NONBLOCKING, VECTOR]
        assert found.plain.seconds == (9.0, 0.3)
        assert found.variants[VECTOR].sizes_bytes == (8, 1 << 10)
