"""Alltoallv by the ways that need all counts: real data, uneven counts and none at all."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from tests.mpi.support import grid_comm, layouts

WAYS = ("lg", "relayed", "rate-paced")
NO_WAYS = (("two", "relayed"), ("all alone", "lg"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ["two", "three interleaved", "all alone"])
def test_every_block_arrives(
    world: MPI.Intracomm, layout: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    monkeypatch.setenv("GRIDCOLL_ALLTOALL", way)
    with grid_comm(world, layouts(size)[layout]) as comm:
        for seed, most in ((1, 3), (2, 9), (3, 20_000), (3, 20_000), (4, 1)):
            counts = np.random.default_rng(seed).integers(0, most, (size, size))
            sent = np.concatenate(
                [np.full(n, rank * 100 + j, "i4") for j, n in enumerate(counts[rank])]
            )
            got = np.full(int(counts[:, rank].sum()), -1, "i4")
            comm.Alltoallv([sent, counts[rank]], [got, counts[:, rank].tolist()])
            wanted = [np.full(n, i * 100 + rank, "i4") for i, n in enumerate(counts[:, rank])]
            assert (got == np.concatenate(wanted)).all()
        assert comm._vectors is not None
        n_ways = sum(flow is not None for flow in comm._vectors._kept.values())
        # The direct one is none of them, and remains where there is no third cluster, or no mate.
        assert (n_ways > 0) == ((layout, way) not in NO_WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_types_and_one_buffer(
    world: MPI.Intracomm, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Derived types in `Alltoallw`, and ``MPI.IN_PLACE``, as MPI's own do them."""
    rank, size = world.Get_rank(), world.Get_size()
    monkeypatch.setenv("GRIDCOLL_ALLTOALL", way)
    gaps = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 24).Commit()
    try:
        with grid_comm(world) as comm:
            found = []
            for caller in (world, comm):
                source = np.arange(6 * size, dtype="i4") + 1000 * rank
                into, both = np.full(6 * size, -1, "i4"), source.copy()
                places = [24 * k for k in range(size)]
                spec = [[1] * size, places, [gaps] * size]
                caller.Alltoallw([source, *spec], [into, *spec])
                caller.Alltoallv(MPI.IN_PLACE, [both, [6] * size])
                found.append((into, both))
            for native, ours in zip(*found, strict=True):
                assert (native == ours).all()
    finally:
        gaps.Free()
