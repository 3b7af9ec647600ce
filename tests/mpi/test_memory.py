"""Memory that buffers do not show, or that the CPU may not reach; and types that are given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.arguments import buffers
from gridcoll.comm.arguments.blocks import read_typed_vector, read_vectors
from gridcoll.comm.arguments.elements import read_elements
from gridcoll.comm.methods import alltoallv
from tests.mpi.support import grid_comm, works

ROOM = 40
"""Items of which buffers show a part."""


def memory_of(rank: int) -> np.ndarray:
    return np.arange(ROOM, dtype="i4") + 100 * rank


class TestBeyondTheBuffer:
    """mpi4py takes the application's word for where blocks are."""

    @pytest.mark.mpi(min_size=2)
    @pytest.mark.parametrize("outside", ["before", "behind", "both"])
    @pytest.mark.parametrize("method", ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv"])
    def test_blocks(
        self, world: MPI.Intracomm, n_planned: list[int], method: str, outside: str
    ) -> None:
        """On one rank only, where that may be, so that the others would wait."""
        rank, size, root = world.Get_rank(), world.Get_size(), world.Get_size() - 1
        shown = {"before": slice(4, None), "behind": slice(0, 3), "both": slice(4, 6)}[outside]
        first = 0 if outside == "behind" else -4
        counts, places = [2] * size, [first + 3 * k for k in range(size)]

        def run(comm: MPI.Intracomm) -> bytes:
            mine, many = memory_of(rank), np.full(ROOM, -1, "i4")
            several = (many if method != "Scatterv" else mine)[shown]
            spec = [several, counts, places, MPI.INT]
            if method == "Gatherv":
                comm.Gatherv([mine, 2, MPI.INT], spec if rank == root else None, root)
            elif method == "Scatterv":
                comm.Scatterv(spec if rank == root else None, [many, 2, MPI.INT], root)
            elif method == "Allgatherv":
                inside = [many[4:], counts, [3 * k for k in range(size)], MPI.INT]
                comm.Allgatherv([mine, 2, MPI.INT], spec if rank == root else inside)
            else:
                sent = [mine[shown], counts, places, MPI.INT] if rank == root else [mine, counts]
                comm.Alltoallv(sent, spec if rank == root else [many, counts])
            return many.tobytes()

        wanted = run(world)
        assert n_planned[0] == 0
        with grid_comm(world) as grid:
            assert run(grid) == wanted
            assert n_planned[0] > 0
            works(grid)

    @pytest.mark.mpi(min_size=2)
    @pytest.mark.parametrize("method", ["Reduce", "Allreduce", "Reduce_scatter_block", "Bcast"])
    def test_counts(self, world: MPI.Intracomm, n_planned: list[int], method: str) -> None:
        rank, size, root = world.Get_rank(), world.Get_size(), world.Get_size() - 1

        def run(comm: MPI.Intracomm) -> bytes:
            mine, many = memory_of(rank), np.full(ROOM, -1, "i4")
            sent, got = [mine[3:5], 2 * size, MPI.INT], [many[3:5], 2 * size, MPI.INT]
            if rank != root:
                sent, got = [mine[3:], 2 * size], [many[3:], 2 * size]
            if method == "Reduce":
                comm.Reduce(sent, got if rank == root else None, root=root)
            elif method == "Allreduce":
                comm.Allreduce(sent, got)
            elif method == "Bcast":
                comm.Bcast(sent if rank == root else got, root)
            else:
                comm.Reduce_scatter_block([sent[0], 2, MPI.INT], [many[3:4], 2, MPI.INT])
            return many.tobytes()

        wanted = run(world)
        with grid_comm(world) as grid:
            assert run(grid) == wanted
            assert n_planned[0] > 0
            works(grid)

    def test_nothing_is_copied(self) -> None:
        buffers.open_self_comm()
        memory = memory_of(0)
        vectors = read_vectors([memory[5:7], [2, 3], [-5, 10], MPI.INT], 2, writable=True)
        assert vectors.message.store is None
        assert MPI.Get_address(vectors.block(0)) == MPI.Get_address(memory)
        assert MPI.Get_address(vectors.block(1)) == MPI.Get_address(memory[15:])
        assert vectors.sizes == (8, 12)
        elements = read_elements([memory[5:7], 9, MPI.INT], writable=True)
        assert elements is not None
        assert bytes(elements.view) == memory[5:14].tobytes()
        assert MPI.Get_address(elements.view) == MPI.Get_address(memory[5:])


class _Device:
    """Host memory that DLPack calls a graphics card's, and that nobody but MPI may touch."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data

    def __dlpack__(self, **keywords: Any) -> Any:
        keywords.pop("stream", None)
        return self._data.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0  # kDLCUDA


CALLS: dict[str, Callable[[MPI.Intracomm, Any, Any, int], Any]] = {
    "Bcast": lambda comm, mine, many, size: comm.Bcast(many),
    "Allreduce": lambda comm, mine, many, size: comm.Allreduce(mine, many),
    "Allreduce in place": lambda comm, mine, many, size: comm.Allreduce(MPI.IN_PLACE, many),
    "Reduce": lambda comm, mine, many, size: comm.Reduce(
        mine, many if comm.Get_rank() == 0 else None
    ),
    "Reduce_scatter_block": lambda comm, mine, many, size: comm.Reduce_scatter_block(
        mine, [many, 3, MPI.INT]
    ),
    "Reduce_scatter": lambda comm, mine, many, size: comm.Reduce_scatter(
        mine, [many, 3, MPI.INT], [3] * size
    ),
    "Gatherv": lambda comm, mine, many, size: comm.Gatherv([mine, 3, MPI.INT], [many, 3]),
    "Scatterv": lambda comm, mine, many, size: comm.Scatterv([mine, 3], [many, 3, MPI.INT]),
    "Allgatherv": lambda comm, mine, many, size: comm.Allgatherv(
        [mine, 3, MPI.INT], [many, 3, MPI.INT]
    ),
    "Alltoallv": lambda comm, mine, many, size: comm.Alltoallv([mine, 3], [many, 3]),
    "Alltoallw": lambda comm, mine, many, size: comm.Alltoallw(
        *([each, [3] * size, range(0, 12 * size, 12), [MPI.INT] * size] for each in (mine, many))
    ),
    "Iallreduce": lambda comm, mine, many, size: comm.Iallreduce(mine, many).Wait(),
    "Alltoall": lambda comm, mine, many, size: comm.Alltoall(mine, many),
}


class TestDevices:
    """One rank's memory is a device's: MPI reads and writes it, in the plan that the others run."""

    @pytest.mark.parametrize("name", CALLS)
    @pytest.mark.parametrize("on", ["first", "all"])
    def test_calls(
        self,
        world: MPI.Intracomm,
        n_planned: list[int],
        n_beside: list[int],
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        on: str,
    ) -> None:
        rank, size = world.Get_rank(), world.Get_size()
        device = on == "all" or rank == 0
        staged: list[Any] = []
        through_mpi = buffers._through_mpi

        def counted(spec: Any, writable: bool) -> Any:
            staged.append(spec)
            return through_mpi(spec, writable)

        monkeypatch.setattr(buffers, "_through_mpi", counted)

        def run(comm: MPI.Intracomm) -> bytes:
            mine = np.arange(3 * size, dtype="i4") + 100 * rank
            many = np.full(3 * size, 7 + rank, "i4")
            make = _Device if device else np.asarray
            CALLS[name](comm, make(mine), make(many), size)
            return many.tobytes()

        wanted = run(world)
        with grid_comm(world) as grid:
            assert run(grid) == wanted
            if size > 1:
                assert n_planned[0] + n_beside[0] > 0
                by_type = name == "Alltoallw" and not alltoallv.PACKS  # which needs no bytes
                assert bool(staged) == (device and not by_type)
            works(grid)

    def test_started_again(self, world: MPI.Intracomm) -> None:
        """What the application puts there between two starts is what is sent."""
        size = world.Get_size()
        mine, many = np.zeros(5, "i4"), np.zeros(5, "i4")
        with grid_comm(world) as grid:
            request = grid.Allreduce_init(_Device(mine), _Device(many))
            for turn in range(3):
                mine[:] = turn
                request.Start()
                request.Wait()
                assert (many == turn * size).all()
            request.Free()

    def test_buffers_of_mpi4pys_own(self) -> None:
        buffers.open_self_comm()
        data = np.arange(6, dtype="i4")
        message = buffers.read_message([MPI.buffer(_Device(data)), MPI.INT], writable=True)
        assert message.store is not None
        assert bytes(message.view) == data.tobytes()


class TestTypesAreFreed:
    """Nobody stores what the native collective receives."""

    @pytest.fixture
    def committed(self, monkeypatch: pytest.MonkeyPatch) -> list[MPI.Datatype]:
        """Types that were made to read a message."""
        made: list[MPI.Datatype] = []
        pack = buffers._pack

        def packing(spec: Any) -> memoryview:
            made.append(spec[2])
            return pack(spec)

        monkeypatch.setattr(buffers, "_pack", packing)
        return made

    @pytest.mark.parametrize("store", [False, True])
    def test_read(self, committed: list[MPI.Datatype], store: bool) -> None:
        buffers.open_self_comm()
        pair = MPI.INT.Create_vector(2, 1, 2).Commit()
        memory = memory_of(0)
        vectors = read_vectors([memory, [2, 1], [0, 5], pair], 2, writable=True)
        spec = [memory, [1, 2], [0, 60], [pair] * 2]
        blocks = [
            block
            for block in read_typed_vector(spec, 2, writable=True, packed=True)
            if isinstance(block, buffers.Message)
        ]
        assert len(committed) == 3
        assert all(made == MPI.DATATYPE_NULL for made in committed)
        assert bytes(vectors.block(0)) == memory[[0, 2, 3, 5]].tobytes()
        for message in (vectors.message, *blocks) if store else ():
            assert message.store is not None
            message.view[:] = bytes(len(message.view))
            message.store()
        assert int((memory == 0).sum()) == (8 if store else 1)
        assert pair != MPI.DATATYPE_NULL
        pair.Free()

    def test_when_reading_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[MPI.Datatype] = []

        def fail(spec: Any) -> memoryview:
            made.append(spec[2])
            raise MemoryError

        monkeypatch.setattr(buffers, "_pack", fail)
        buffers.open_self_comm()
        pair = MPI.INT.Create_vector(2, 1, 2).Commit()
        with pytest.raises(MemoryError):
            read_vectors([memory_of(0), [2, 1], [0, 5], pair], 2, writable=True)
        assert made == [MPI.DATATYPE_NULL]
        pair.Free()

    @pytest.mark.mpi(min_size=2)
    def test_left_to_mpi(self, world: MPI.Intracomm, committed: list[MPI.Datatype]) -> None:
        size, pair = world.Get_size(), MPI.INT.Create_vector(2, 1, 2).Commit()
        with grid_comm(world, [0] * size, native_s=1e-9) as comm:
            mine, many = memory_of(comm.Get_rank()), np.zeros(6 * size, "i4")
            comm.forced("allgather", "native").Allgatherv([mine, 1, pair], [many, [1] * size, pair])
            assert committed
            assert all(made == MPI.DATATYPE_NULL for made in committed if made is not pair)
        pair.Free()
