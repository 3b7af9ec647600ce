"""Test bodies: calls on any communicator, plain or ours, whose results ranks alone determine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from tests.mpi.blocks import block, blocks, thing, uneven
from tests.mpi.support import pattern

Body = Callable[[MPI.Intracomm, int, int], None]
"""Of a communicator, elements per block, and the root where there is one."""


def check_bcast(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    wanted = pattern(n, seed=root)
    buffer = wanted.copy() if comm.Get_rank() == root else np.full(n, -1, "i4")
    assert comm.Bcast(buffer, root) is None
    assert (buffer == wanted).all()


def check_gather(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    """With the root's own block already in place, too."""
    rank, size = comm.Get_rank(), comm.Get_size()
    wanted = blocks([n] * size)
    sent = block(rank, n)
    got = np.full(size * n, -1, "i4") if rank == root else None
    assert comm.Gather(sent, got, root) is None
    assert (sent == block(rank, n)).all()
    if got is not None:
        assert (got == wanted).all()
        got[:] = -1
        got[rank * n : (rank + 1) * n] = sent
    comm.Gather(sent if rank != root else MPI.IN_PLACE, got, root)
    assert got is None or (got == wanted).all()


def check_scatter(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    """With what is not for others left where it is, too."""
    rank, size = comm.Get_rank(), comm.Get_size()
    sent = blocks([n] * size) if rank == root else None
    got = np.full(n, -1, "i4")
    assert comm.Scatter(sent, got, root) is None
    assert (got == block(rank, n)).all()
    got[:] = -1
    comm.Scatter(sent, got if rank != root else MPI.IN_PLACE, root)
    assert (got == (block(rank, n) if rank != root else -1)).all()
    assert sent is None or (sent == blocks([n] * size)).all()


def check_allgather(comm: MPI.Intracomm, n: int, _root: int = 0) -> None:
    rank, size = comm.Get_rank(), comm.Get_size()
    sent, wanted = block(rank, n), blocks([n] * size)
    got = np.full(size * n, -1, "i4")
    assert comm.Allgather(sent, got) is None
    assert (got == wanted).all()
    assert (sent == block(rank, n)).all()
    for in_place in (MPI.IN_PLACE, None):
        got[:] = -1
        got[rank * n : (rank + 1) * n] = sent
        comm.Allgather(in_place, got)
        assert (got == wanted).all()


def share(rank: int, sizes: Sequence[int]) -> np.ndarray:
    """What ``rank`` brings to a sum: another multiple of the same integers."""
    return (blocks(sizes) * (rank + 1)).astype("i4")


def total(sizes: Sequence[int], rank: int) -> np.ndarray:
    """The part of the sum that ``rank`` is to get."""
    start, n_ranks = sum(sizes[:rank]), len(sizes)
    return blocks(sizes)[start : start + sizes[rank]] * (n_ranks * (n_ranks + 1) // 2)


def check_reduce_scatter_block(comm: MPI.Intracomm, n: int, _root: int = 0) -> None:
    rank, sizes = comm.Get_rank(), [n] * comm.Get_size()
    sent, wanted = share(rank, sizes), total(sizes, rank)
    got = np.full(n, -1, "i4")
    assert comm.Reduce_scatter_block(sent, got) is None
    assert (got == wanted).all()
    assert (sent == share(rank, sizes)).all()
    for in_place in (MPI.IN_PLACE, None):
        both = sent.copy()
        comm.Reduce_scatter_block(in_place, both)
        assert (both[:n] == wanted).all()


def check_reduce_scatter(comm: MPI.Intracomm, sizes: Sequence[int]) -> None:
    """With all forms of counts."""
    rank = comm.Get_rank()
    sent, wanted = share(rank, sizes), total(sizes, rank)
    for counts in (sizes, tuple(sizes), np.array(sizes), None):
        got = np.full(sizes[rank], -1, "i4")
        assert comm.Reduce_scatter(sent, got, counts) is None
        assert (got == wanted).all()
    both = sent.copy()
    comm.Reduce_scatter(MPI.IN_PLACE, both, sizes)
    assert (both[: sizes[rank]] == wanted).all()


def values(code: str, n: int, rank: int) -> np.ndarray:
    """Small whole numbers: exact in every type, in any order of combination."""
    return ((np.arange(n) * 7 + rank * 3) % 3).astype(code)


def sums(n: int, size: int) -> np.ndarray:
    """What `mine` adds up to."""
    return np.arange(n) * (size * (size + 1) // 2) + size * (size - 1) // 2


def mine(n: int, rank: int) -> np.ndarray:
    """A summand of ``rank``: no two ranks' are alike."""
    return np.arange(n, dtype="i8") * (rank + 1) + rank


def check_allreduce(comm: MPI.Intracomm, n: int, _root: int = 0) -> None:
    rank, size = comm.Get_rank(), comm.Get_size()
    given, wanted, result = mine(n, rank), sums(n, size), np.full(n, -1, "i8")
    assert comm.Allreduce(given, result) is None
    assert (result == wanted).all()
    assert (given == mine(n, rank)).all()
    comm.Allreduce(MPI.IN_PLACE if rank else None, given)  # mpi4py takes both
    assert (given == wanted).all()


def check_reduce(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    rank, size = comm.Get_rank(), comm.Get_size()
    given, wanted = mine(n, rank), sums(n, size)
    result = np.full(n, -1, "i8") if rank == root else None
    assert comm.Reduce(given, result, MPI.SUM, root) is None
    assert result is None or (result == wanted).all()
    comm.Reduce(MPI.IN_PLACE if rank == root else given, given, root=root)
    assert (given == (wanted if rank == root else mine(n, rank))).all()


def _pairs(n: int, size: int, sender: int | None, receiver: int | None) -> np.ndarray:
    """A block from one rank to another; all of a sender's or a receiver's."""
    return np.concatenate(
        [
            np.arange(n, dtype="i4") % 89
            + 97
            * (size * (k if sender is None else sender) + (k if receiver is None else receiver))
            for k in range(size)
        ]
    )


def check_routing(comm: MPI.Intracomm, n: int, _root: int = 0) -> None:
    """Of an Alltoall: every block tells sender, receiver and place."""
    rank, size = comm.Get_rank(), comm.Get_size()
    sent, wanted = _pairs(n, size, rank, None), _pairs(n, size, None, rank)
    got = np.full(size * n, -1, "i4")
    assert comm.Alltoall(sent, got) is None
    assert (got == wanted).all()
    comm.Alltoall(MPI.IN_PLACE, sent)
    assert (sent == wanted).all()


def check_alltoallv(comm: MPI.Intracomm, n: int, _root: int = 0) -> None:
    """Blocks of many sizes, some of them none."""
    rank, size = comm.Get_rank(), comm.Get_size()
    counts = np.random.default_rng(n).integers(0, n + 1, (size, size))
    sent = np.concatenate([np.full(m, 100 * rank + k, "i4") for k, m in enumerate(counts[rank])])
    coming = counts[:, rank]
    got = np.full(coming.sum(), -1, "i4")
    assert comm.Alltoallv([sent, counts[rank]], [got, coming]) is None
    wanted = [np.full(m, 100 * k + rank, "i4") for k, m in enumerate(coming)]
    assert (got == np.concatenate(wanted)).all()


def check_gatherv(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    rank, sizes = comm.Get_rank(), uneven(comm.Get_size())
    got = np.full(sum(sizes), -1, "i4")
    into = [got, sizes] if rank == root else None
    assert comm.Gatherv(block(rank, sizes[rank]), into, root) is None
    assert (got == (blocks(sizes) if rank == root else -1)).all()
    comm.Allgatherv(block(rank, sizes[rank]), [got, sizes])
    assert (got == blocks(sizes)).all()


def check_scatterv(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    rank, sizes = comm.Get_rank(), uneven(comm.Get_size())
    got = np.full(sizes[rank], -1, "i4")
    given = [blocks(sizes), sizes] if rank == root else None
    assert comm.Scatterv(given, got, root) is None
    assert (got == block(rank, sizes[rank])).all()


def check_objects(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    """Moved from, to, and between all ranks."""
    rank, size = comm.Get_rank(), comm.Get_size()
    everything = [thing(other, n) for other in range(size)]
    at_root = everything if rank == root else None
    assert comm.bcast(everything[rank], root) == everything[root]
    assert comm.gather(everything[rank], root) == at_root
    assert comm.scatter(at_root, root) == everything[rank]
    assert comm.allgather(everything[rank]) == everything
    assert comm.alltoall([(rank, other, "x" * n) for other in range(size)]) == [
        (other, rank, "x" * n) for other in range(size)
    ]


def check_object_reductions(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    """By addition of lists, which tells in which order."""
    rank, size = comm.Get_rank(), comm.Get_size()
    in_order = [(other, n) for other in range(size)]
    assert comm.allreduce([(rank, n)]) == in_order
    assert comm.reduce([(rank, n)], root=root) == (in_order if rank == root else None)


def check_objects_with_buffers(comm: MPI.Intracomm, n: int, root: int = 0) -> None:
    """Large enough, of 1009, to travel beside their pickles; results can be written."""
    rank, size = comm.Get_rank(), comm.Get_size()

    def holder(by: int) -> dict[str, np.ndarray]:
        return {"data": block(by, 70 * n).reshape(7, -1, order="F"), "more": block(by, 80 * n)}

    def check(got: dict[str, np.ndarray], by: int) -> None:
        assert all((got[name] == array).all() for name, array in holder(by).items())
        for array in got.values():
            array[:] = -1

    mine, at_root = holder(rank), rank == root
    check(comm.bcast(mine if at_root else None, root), root)
    check(comm.scatter(list(map(holder, range(size))) if at_root else None, root), rank)
    for everything in (comm.gather(mine, root) or [], comm.allgather(mine)):
        for by, got in enumerate(everything):
            check(got, by)
    for by, got in enumerate(comm.alltoall([holder(other + rank) for other in range(size)])):
        check(got, by + rank)
    for everything in (comm.reduce([mine], root=root) or [], comm.allreduce([mine])):
        for by, got in enumerate(everything):
            check(got, by)
    check(mine, rank)


def check_barrier(comm: MPI.Intracomm, _n: int, _root: int = 0) -> None:
    assert comm.Barrier() is None
    assert comm.barrier() is None


def _check_reduce_scatter(comm: MPI.Intracomm, n: int, _root: int) -> None:
    check_reduce_scatter(comm, [(n + rank) % 5 * n for rank in range(comm.Get_size())])


BODIES: dict[str, Body] = {
    "Bcast": check_bcast,
    "Reduce": check_reduce,
    "Allreduce": check_allreduce,
    "Gather": check_gather,
    "Gatherv and Allgatherv": check_gatherv,
    "Scatter": check_scatter,
    "Scatterv": check_scatterv,
    "Allgather": check_allgather,
    "Alltoall": check_routing,
    "Alltoallv": check_alltoallv,
    "Reduce_scatter_block": check_reduce_scatter_block,
    "Reduce_scatter": _check_reduce_scatter,
    "Barrier": check_barrier,
    "objects": check_objects,
    "reductions of objects": check_object_reductions,
    "objects with buffers": check_objects_with_buffers,
}
"""By what they call; every one of them runs plans where there are any."""
