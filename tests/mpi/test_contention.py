"""γ of clusters as discovery measures it."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from gridcoll.comm.contention import MOST_CONTENTION, measure_contention
from tests.mpi.support import grid_model, layouts


@pytest.mark.parametrize("layout", ["one cluster", "three interleaved", "lonely root"])
def test_the_same_on_all_ranks(world: MPI.Intracomm, layout: str) -> None:
    labels = layouts(world.Get_size()).get(layout, [0] * world.Get_size())
    model = grid_model(labels)
    contention = measure_contention(world, model)
    assert len(contention) == model.n_clusters
    assert all(0 <= each <= MOST_CONTENTION for each in contention)
    assert world.allgather(contention) == [contention] * world.Get_size()
