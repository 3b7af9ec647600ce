"""`GridComm` is an `MPI.Intracomm` in every way, and its children know their part of the grid."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.communicator import GridIntracomm
from gridcoll.errors import UsageError
from tests.mpi.support import grid_comm, grid_model, layouts, works


def _children_of(comm: MPI.Intracomm) -> dict[str, MPI.Comm]:
    """One made by each method that makes one, by the method's name; their classes are to be seen,
    and they are freed.
    """
    group, info, size = comm.Get_group(), MPI.INFO_NULL, comm.Get_size()
    calls: dict[str, tuple[object, ...]] = {
        "Dup": (),
        "Dup_with_info": (info,),
        "Clone": (),
        "Idup": (),
        "Idup_with_info": (info,),
        "Split": (0,),
        "Split_type": (MPI.COMM_TYPE_SHARED,),
        "Create": (group,),
        "Create_group": (group,),
        "Create_cart": ([size],),
        "Create_graph": (range(1, size + 1), [0] * size),
        "Create_dist_graph": ([], [], []),
        "Create_dist_graph_adjacent": ([], []),
    }
    found: dict[str, MPI.Comm] = {}
    for name, arguments in calls.items():
        made = getattr(comm, name)(*arguments)
        if isinstance(made, tuple):
            made, request = made
            request.Wait()
        made.Free()
        found[name] = made
    group.Free()
    return found


class TestIdentity:
    def test_it_is_an_intracomm(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            assert isinstance(comm, MPI.Intracomm)
            assert isinstance(comm, MPI.Comm)
            assert comm.Get_size() == world.Get_size()
            assert comm.Get_rank() == world.Get_rank()
            assert not comm.Is_inter()
            assert comm.is_intra

    def test_it_keeps_its_handle(self, world: MPI.Intracomm) -> None:
        comm = GridComm(world, model=grid_model([0] * world.Get_size()))
        assert comm == world
        assert not comm != world  # noqa: SIM202
        assert comm.handle == world.handle
        assert MPI.Comm.Compare(comm, world) == MPI.IDENT
        assert MPI.Comm.f2py(comm.py2f()) == world
        assert MPI.Comm.fromhandle(comm.handle) == world
        assert MPI._handleof(comm) == MPI._handleof(world)
        assert bool(comm)
        with pytest.raises(TypeError):
            hash(comm)
        comm.Free()

    def test_null(self) -> None:
        for comm in (GridComm(), GridComm(MPI.COMM_NULL), GridComm(None)):
            assert comm == MPI.COMM_NULL
            assert not comm
            with pytest.raises(MPI.Exception):
                comm.Bcast(bytearray(1))
            with pytest.raises(UsageError, match="null, freed, or was not built"):
                _ = comm.grid

    def test_self(self) -> None:
        comm = GridComm(MPI.COMM_SELF)
        assert comm.grid.n_ranks == 1
        works(comm)
        comm.Free()

    @pytest.mark.mpi(min_size=3)
    def test_intercommunicators_are_refused(self, world: MPI.Intracomm) -> None:
        side = world.Get_rank() % 2
        half = world.Split(side)
        inter = half.Create_intercomm(0, world, 1 - side)
        with pytest.raises(TypeError, match="needs an intracommunicator, got Intercomm"):
            GridComm(inter)
        inter.Free()
        half.Free()

    def test_a_model_of_other_ranks(self, world: MPI.Intracomm) -> None:
        n = world.Get_size()
        with pytest.raises(UsageError, match=rf"model: it describes {n + 1} ranks, not {n}"):
            GridComm(world, model=grid_model([0] * (n + 1)))

    def test_a_model_that_is_the_name_of_one(self, world: MPI.Intracomm) -> None:
        with pytest.raises(UsageError, match=r"must be a GridModel, got 'grid\.json'; read_model"):
            GridComm(world, model="grid.json")  # type: ignore[arg-type]

    @pytest.mark.parametrize("root", [-1, 1000])
    def test_a_root_that_is_no_rank_is_not_explained(self, world: MPI.Intracomm, root: int) -> None:
        n = world.Get_size()
        comm = GridComm(world, model=grid_model([0] * n))
        try:
            with pytest.raises(UsageError, match=rf"root: must be in 0\.\.{n - 1}, got {root}"):
                comm.explain("bcast", nbytes=8, root=root)
        finally:
            comm.Free()

    def test_attributes_are_copied_once(self, world: MPI.Intracomm) -> None:
        copies: list[int] = []

        def copy(comm: MPI.Comm, key: int, value: object) -> object:
            copies.append(1)
            return value

        key = MPI.Comm.Create_keyval(copy)
        with grid_comm(world) as comm:
            comm.Set_attr(key, "mine")
            # mpi4py's own reductions of objects, which a rank alone is left to, duplicate it.
            comm.Bcast(np.zeros(500))
            assert comm.bcast(1) == 1
            assert copies == []
            other = comm.Dup()
            assert copies == [1]
            assert other.Get_attr(key) == "mine"
            other.Free()
        MPI.Comm.Free_keyval(key)


class TestChildren:
    def test_all_name_the_module_of_mpi4pys(self, world: MPI.Intracomm) -> None:
        """Petsc4py takes no others, nor does OpenMDAO know that they are communicators."""
        with grid_comm(world) as comm:
            n = comm.Get_size()
            mesh, star = comm.Create_cart([n]), comm.Create_graph(range(1, n + 1), [0] * n)
            ring = comm.Create_dist_graph_adjacent([0], [0])
            for each in (comm, comm.forced("bcast", "chain"), mesh, mesh.Dup(), star, ring):
                assert isinstance(each, GridComm)
                assert type(each).__module__ == type(world).__module__
            for each in (mesh, star, ring):
                each.Free()
        assert pickle.loads(pickle.dumps(GridComm)) is GridComm

    @pytest.mark.parametrize("method", ["Dup", "Clone"])
    def test_duplicates(self, world: MPI.Intracomm, method: str) -> None:
        with grid_comm(world) as comm:
            other = getattr(comm, method)()
            assert type(other) is GridIntracomm
            assert other != comm
            assert MPI.Comm.Compare(other, comm) == MPI.CONGRUENT
            assert other.grid == comm.grid
            works(other)
            other.Free()
            works(comm)

    def test_a_duplicate_outlives_its_parent(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            other = comm.Dup()
        works(other)
        other.Free()

    def test_info_is_taken(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            info = MPI.Info.Create()
            other = comm.Dup(info)
            works(other)
            other.Free()
            info.Free()

    @pytest.mark.parametrize("parts", [1, 2, 3])
    def test_parts_know_their_part(self, world: MPI.Intracomm, parts: int) -> None:
        for labels in layouts(world.Get_size()).values():
            with grid_comm(world, labels) as comm:
                rank = comm.Get_rank()
                part = comm.Split(rank % parts, -rank)
                assert type(part) is GridIntracomm
                old = [r for r in reversed(range(comm.Get_size())) if r % parts == rank % parts]
                assert part.grid == comm.grid.restrict(old)[0]
                assert part.model.links == comm.model.restrict(old).links
                works(part)
                again = part.Split(0)
                assert again.grid == part.grid
                works(again)
                again.Free()
                part.Free()
                works(comm)

    def test_whoever_is_left_out_has_nothing(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            last = comm.Get_rank() == comm.Get_size() - 1
            part = comm.Split(MPI.UNDEFINED if last else 0)
            if last:
                assert part == MPI.COMM_NULL
            else:
                works(part)
                part.Free()

    def test_the_splitting_of_the_grid(self, world: MPI.Intracomm) -> None:
        for labels in layouts(world.Get_size()).values():
            with grid_comm(world, labels) as comm:
                parts, grid, rank = comm.cluster_comms(), comm.grid, comm.Get_rank()
                mine = grid.clusters[grid.cluster_of[rank]]
                assert parts.intra.allgather(rank) == list(mine.ranks)
                assert (parts.inter != MPI.COMM_NULL) == (rank == mine.coordinator)
                if parts.inter != MPI.COMM_NULL:
                    wanted = [c.coordinator for c in grid.clusters]
                    assert parts.inter.allgather(rank) == wanted
                assert tuple(parts.lane.allgather(rank)) == grid.lanes()[grid.lane_of(rank)]
                assert comm.cluster_comms() is parts

    def test_subclasses(self, world: MPI.Intracomm) -> None:
        """mpi4py keeps a subclass in duplicates only, and never calls its `__init__` for them."""

        class Plain(MPI.Intracomm):
            pass

        class Mine(GridComm):
            def hello(self) -> int:
                return self.Get_rank()

        plain = Plain(world)
        mine = Mine(world, model=grid_model(layouts(world.Get_size())["one cluster"]))
        those, these = _children_of(plain), _children_of(mine)
        for name in those:
            theirs, ours = type(those[name]), type(these[name])
            assert (ours is Mine) == (theirs is Plain), name
            assert issubclass(ours, GridComm), name
            assert theirs is Plain or issubclass(ours, theirs), name
        for child in (mine.Dup(), mine.Clone(), mine.Split(0)):
            works(child)
            if isinstance(child, Mine):
                assert child.hello() == world.Get_rank()
            child.Free()
        mine.Free()


class TestCopies:
    """A communicator that arrived without its grid would wait for others that know it."""

    def test_pickles(self, world: MPI.Intracomm) -> None:
        for own in (MPI.COMM_WORLD, MPI.COMM_SELF, world):
            comm = GridComm(own, model=grid_model([0] * own.Get_size()))
            text = "cannot serialize 'mpi4py.MPI.GridIntracomm' instance"
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with pytest.raises(ValueError, match=text):
                    pickle.dumps([comm], protocol)
            comm.Free()
            assert pickle.loads(pickle.dumps(comm)) == MPI.COMM_NULL

    @pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
    def test_copies(self, world: MPI.Intracomm, make: Callable[[GridComm], GridComm]) -> None:
        """Of what has a name, itself; mpi4py copies nothing else."""
        comm = GridComm(MPI.COMM_WORLD, model=grid_model([0] * world.Get_size()))
        assert make(comm) is comm
        works(make(comm))
        comm.Free()

        class Plain(MPI.Intracomm):
            pass

        with pytest.raises(ValueError, match=r"cannot serialize .*\.Plain' instance"):
            make(Plain(world))  # type: ignore[arg-type]
        comm = GridComm(world, model=grid_model([0] * world.Get_size()))
        with pytest.raises(ValueError, match=r"cannot serialize .*\.GridIntracomm' instance"):
            make(comm)
        comm.Free()


class TestFree:
    def test_freed_is_null(self, world: MPI.Intracomm) -> None:
        comm = GridComm(world, model=grid_model([0] * world.Get_size()))
        comm.cluster_comms()
        comm.Free()
        assert comm == MPI.COMM_NULL
        with pytest.raises(UsageError, match="null, freed"):
            comm.explain("bcast", 1)
        with pytest.raises(MPI.Exception):
            comm.Bcast(bytearray(1))

    def test_what_was_built_on_is_the_users(self, world: MPI.Intracomm) -> None:
        """Whoever hands a communicator to GridComm gets it back as it was."""
        for end in ("Free", "free", "Disconnect"):
            comm = GridComm(world, model=grid_model([0] * world.Get_size()))
            getattr(comm, end)()
            assert comm == MPI.COMM_NULL
            assert world.allreduce(1) == world.Get_size()

    def test_the_world_survives(self) -> None:
        comm = GridComm(MPI.COMM_WORLD, model=grid_model([0] * MPI.COMM_WORLD.Get_size()))
        comm.Free()
        assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.Get_size()

    @pytest.mark.parametrize("end", ["Free", "free", "Disconnect"])
    def test_what_was_derived_is_freed(self, world: MPI.Intracomm, end: str) -> None:
        """Handle and attributes, and with the last one that uses it the private communicator: MPI
        says so by calling back.
        """
        gone: list[object] = []
        key = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: gone.append(value))
        with grid_comm(world) as comm:
            child = comm.Dup()
            child.Set_attr(key, "child")
            assert child._context is not None
            child._context.channel.private.Set_attr(key, "private")
            getattr(child, end)()
            assert child == MPI.COMM_NULL
            assert gone == ["child"]
            child.free()  # of a null one, nothing
            with pytest.raises(MPI.Exception):
                child.Free()
        assert gone == ["child", "private"]
        MPI.Comm.Free_keyval(key)

    def test_contexts_come_back(self, world: MPI.Intracomm) -> None:
        """MPICH has about 2000 contexts: what is not given back would soon be missed."""
        n = 2500 if world.Get_size() == 1 else 60
        with grid_comm(world) as comm:
            for k in range(n):
                other = comm.Dup() if k % 2 else comm.Split(0)
                if k % 50 == 0:
                    other.cluster_comms()
                    works(other)
                other.Free()

    def test_many_at_once(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            many = [comm.Dup() for _ in range(60)]
            for other in many[::7]:
                works(other)
            for other in many:
                other.Free()


class TestUse:
    """Wherever MPI wants a communicator."""

    def test_windows(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            memory = np.full(4, -1)
            window = MPI.Win.Create(memory, comm=comm)
            window.Fence()
            window.Put(np.full(4, comm.Get_rank()), (comm.Get_rank() + 1) % comm.Get_size())
            window.Fence()
            assert (memory == (comm.Get_rank() - 1) % comm.Get_size()).all()
            window.Free()

    def test_files(self, world: MPI.Intracomm, mpi_tmp_path: Path) -> None:
        with grid_comm(world) as comm:
            path = mpi_tmp_path / "shared"
            file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
            file.Write_at_all(comm.Get_rank(), bytearray([65 + comm.Get_rank()]))
            file.Close()
            comm.Barrier()
            wanted = bytes(65 + rank for rank in range(comm.Get_size()))
            assert path.read_bytes() == wanted

    def test_pkl5(self, world: MPI.Intracomm) -> None:
        from mpi4py.util import pkl5

        with grid_comm(world) as comm:
            assert pkl5.Intracomm(comm).bcast({"a": comm.Get_rank()}, 0) == {"a": 0}

    @pytest.mark.mpi(min_size=2)
    def test_futures(self, world: MPI.Intracomm) -> None:
        """All other ranks work for rank 0 until it is through."""
        from mpi4py.futures import MPICommExecutor

        with grid_comm(world) as comm:
            results = []
            for caller in (world, comm):
                with MPICommExecutor(caller, root=0) as executor:
                    got = executor and list(executor.map(pow, range(20), [3] * 20))
                results.append(got)
            assert results[1] == results[0]
            assert results[1] == ([n**3 for n in range(20)] if world.Get_rank() == 0 else None)
            works(comm)

    def test_other_collectives_are_mpis(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            n = comm.Get_size()
            assert comm.allgather(comm.Get_rank()) == list(range(n))
            assert comm.scan(1) == comm.Get_rank() + 1
            assert comm.alltoall([comm.Get_rank()] * n) == list(range(n))
            comm.Barrier()
            buffer = np.full(3, comm.Get_rank())
            comm.Ibcast(buffer, n - 1).Wait()
            assert (buffer == n - 1).all()

    @pytest.mark.mpi(min_size=3)
    def test_intercommunicators_from_parts(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            side = comm.Get_rank() % 2
            half = comm.Split(side)
            inter = half.Create_intercomm(0, comm, 1 - side)
            assert inter.Is_inter()
            merged = inter.Merge(bool(side))
            assert merged.Get_size() == comm.Get_size()
            works(merged)
            for made in (merged, inter, half):
                made.Free()
