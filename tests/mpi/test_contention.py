"""γ of clusters as discovery measures it."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.measure import contention as module
from gridcoll.measure.contention import (
    BLOCK_BYTES,
    MOST_CONTENTION,
    fit_contention,
    measure_contention,
)
from gridcoll.model import GridModel, PLogP, linear_plogp
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.direct import direct_messages
from gridcoll.topology import Grid
from tests.mpi.support import grid_model, layouts


@pytest.mark.parametrize("layout", ["one cluster", "three interleaved", "lonely root"])
def test_the_same_on_all_ranks(world: MPI.Intracomm, layout: str) -> None:
    model = grid_model(layouts(world.Get_size())[layout])
    contention = measure_contention(world, model)
    assert len(contention) == model.n_clusters
    assert all(0 <= each <= MOST_CONTENTION for each in contention)
    assert world.allgather(contention) == [contention] * world.Get_size()


@pytest.mark.mpi(min_size=3)
def test_some_ranks_show_it_for_many(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def time_exchange(comm: MPI.Intracomm, n_runs: int, n_blocks: int) -> float:
        sizes.append(comm.Get_size())
        return real(comm, n_runs, n_blocks)

    real = module._time_exchange
    monkeypatch.setattr(module, "_time_exchange", time_exchange)
    monkeypatch.setattr(module, "MOST_EXCHANGING", 2)
    labels = layouts(world.Get_size())["lonely root"]
    model = grid_model(labels)
    assert len(measure_contention(world, model)) == 2
    everyone = [exchanging for mine in world.allgather(sizes) for exchanging in mine]
    assert everyone == [1, 2, 2]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("bytes_per_s", "n_blocks"), [(1e9, module.MOST_BLOCKS), (1e5, 1)])
def test_a_short_exchange_has_several_blocks(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, bytes_per_s: float, n_blocks: int
) -> None:
    """Ranks that begin late are then a small part of its time, which all blocks share."""
    gaps_s = 1e-5, 1e-5 + BLOCK_BYTES / bytes_per_s
    lan = PLogP(1e-5, (0, BLOCK_BYTES), gaps_s, (1e-6, 2e-6), (1e-6, 2e-6))
    model = GridModel(Grid.from_labels([0] * world.Get_size()), ((lan,),))
    half = replace(model, contention=(0.5,))
    block_s = price_messages_s(half, direct_messages(model.grid), BLOCK_BYTES)
    asked: list[int] = []

    def time_exchange(comm: MPI.Intracomm, n_runs: int, n_blocks: int) -> float:
        asked.append(n_blocks)
        return n_blocks * block_s

    monkeypatch.setattr(module, "_time_exchange", time_exchange)
    assert measure_contention(world, model) == (pytest.approx(0.5),)
    assert asked == [n_blocks]


def test_the_contention_that_explains_a_time() -> None:
    """Measured times made from γ give γ again, within its bounds."""
    lan = PLogP(1e-4, (0, BLOCK_BYTES), (2e-4, 2e-3), (3e-5, 1e-4), (5e-5, 1e-4))
    model = GridModel(Grid.from_labels([0] * 6), ((lan,),))
    messages = direct_messages(model.grid)
    for gamma in (0.0, 0.3, 2 / 3, 1.0):
        took_s = price_messages_s(replace(model, contention=(gamma,)), messages, BLOCK_BYTES)
        assert fit_contention(model, took_s) == pytest.approx(gamma)
    assert fit_contention(model, 1.0) == MOST_CONTENTION
    assert fit_contention(model, 0.0) == 0.0
    declared = GridModel(model.grid, ((linear_plogp(1e-4, 12.5e6),),))
    assert fit_contention(declared, 1.0) == 1.0
    alone = GridModel(Grid.from_labels([0]), ((None,),))
    assert fit_contention(alone, 1.0) == 1.0
