"""User traffic and ours never meet: wildcards on the user's communicator see nothing of ours."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from tests.mpi.support import grid_comm


@pytest.mark.parametrize("algorithm", ["chain", "flat", "ecef-la-max-t", "split"])
def test_a_pending_wildcard_receive_gets_the_users_message(
    world: MPI.Intracomm, algorithm: str
) -> None:
    with grid_comm(world) as comm:
        forced = comm.forced("bcast", algorithm)
        size, rank = comm.Get_size(), comm.Get_rank()
        inbox = np.full(100_000, -1, "i4")
        pending = comm.Irecv(inbox, MPI.ANY_SOURCE, MPI.ANY_TAG)
        for root in range(size):
            buffer = np.full(20_000, root if rank == root else -1, "i4")
            forced.Bcast(buffer, root)
            assert (buffer == root).all()
            assert forced.bcast([root] * 3000 if rank == root else None, root) == [root] * 3000
            assert not pending.Test()
            assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        comm.Barrier()  # nobody may see the messages below while checking above
        send = comm.Isend(np.full(3, rank, "i4"), (rank + 1) % size, 5)
        status = MPI.Status()
        pending.Wait(status)
        send.Wait()
        assert status.Get_source() == (rank - 1) % size
        assert status.Get_tag() == 5
        assert status.Get_count(MPI.INT) == 3
        assert inbox[:4].tolist() == [(rank - 1) % size] * 3 + [-1]


def test_messages_of_the_user_cross_ours(world: MPI.Intracomm) -> None:
    """Sent before, received after, with the tags and sizes that plans use themselves."""
    with grid_comm(world) as comm:
        size, rank = comm.Get_size(), comm.Get_rank()
        sends = [
            comm.Isend(np.full(2048, tag + 1000 * rank, "i4"), (rank + 1) % size, tag)
            for tag in range(8)
        ]
        buffer = np.arange(50_000) if rank == 0 else np.zeros(50_000, int)
        comm.forced("bcast", "chain").Bcast(buffer, 0)
        assert (buffer == np.arange(50_000)).all()
        for tag in reversed(range(8)):
            inbox = np.zeros(2048, "i4")
            comm.Recv(inbox, (rank - 1) % size, tag)
            assert (inbox == tag + 1000 * ((rank - 1) % size)).all()
        MPI.Request.Waitall(sends)


def test_outstanding_collectives_of_the_user(world: MPI.Intracomm) -> None:
    """Non-blocking ones begun before ours and ended after."""
    with grid_comm(world) as comm:
        rank, root = comm.Get_rank(), comm.Get_size() - 1
        early = np.full(1000, rank)
        request = comm.Ibcast(early, root)
        mine, total = np.full(1, rank), np.zeros(1, int)  # mpi4py keeps neither alive
        summing = comm.Iallreduce(mine, total)
        for k in range(5):
            buffer = np.full(3000, k if rank == 0 else -1)
            comm.Bcast(buffer, 0)
            assert (buffer == k).all()
        summing.Wait()
        request.Wait()
        assert (early == root).all()
        assert total[0] == sum(range(comm.Get_size()))


def test_messages_of_a_child_and_its_parent(world: MPI.Intracomm) -> None:
    """Other communicators of the same ranks have channels of their own."""
    with grid_comm(world) as comm:
        other = comm.Dup()
        part = comm.Split(0)
        for k in range(10):
            for each in (comm, other, part):
                root = k % each.Get_size()
                buffer = np.full(700, k if each.Get_rank() == root else -1)
                each.Bcast(buffer, root)
                assert (buffer == k).all()
        part.Free()
        other.Free()
