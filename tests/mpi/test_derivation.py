"""Whatever is made from a `GridComm` is of MPI's kind, works, and knows its part of the grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.communicator import GridIntracomm
from tests.mpi.support import count_calls, grid_comm, grid_model, layouts, works

Make = Callable[[MPI.Intracomm], MPI.Intracomm]


def _odd_and_even(comm: MPI.Intracomm) -> MPI.Group:
    """Ranks of this one's parity, from the highest down."""
    mine = [r for r in range(comm.Get_size()) if r % 2 == comm.Get_rank() % 2]
    with_all = comm.Get_group()
    part = with_all.Incl(mine[::-1])
    with_all.Free()
    return part


def _by_group(comm: MPI.Intracomm, name: str) -> MPI.Intracomm:
    group = _odd_and_even(comm)
    try:
        made: MPI.Intracomm = getattr(comm, name)(group)
        return made
    finally:
        group.Free()


def _ring(comm: MPI.Intracomm) -> tuple[list[int], list[int]]:
    rank, size = comm.Get_rank(), comm.Get_size()
    return [(rank - 1) % size], [(rank + 1) % size]


def _graph(comm: MPI.Intracomm) -> MPI.Graphcomm:
    size = comm.Get_size()
    return comm.Create_graph([r + 1 for r in range(size)], [(r + 1) % size for r in range(size)])


def _dist_graph(comm: MPI.Intracomm) -> MPI.Distgraphcomm:
    return comm.Create_dist_graph([comm.Get_rank()], [1], _ring(comm)[1])


def _idup(comm: MPI.Intracomm) -> MPI.Intracomm:
    new, request = comm.Idup()
    request.Wait()
    return new


def _idup_with_info(comm: MPI.Intracomm) -> MPI.Intracomm:
    new, request = comm.Idup_with_info(MPI.INFO_NULL)
    request.Wait()
    return new


MAKERS: dict[str, tuple[Make, type[MPI.Intracomm]]] = {
    "Dup": (lambda comm: comm.Dup(), MPI.Intracomm),
    "Dup_with_info": (lambda comm: comm.Dup_with_info(MPI.INFO_NULL), MPI.Intracomm),
    "Clone": (lambda comm: comm.Clone(), MPI.Intracomm),
    "Idup": (_idup, MPI.Intracomm),
    "Idup_with_info": (_idup_with_info, MPI.Intracomm),
    "Split": (lambda comm: comm.Split(comm.Get_rank() % 2, -comm.Get_rank()), MPI.Intracomm),
    "Split_type": (lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED), MPI.Intracomm),
    "Create": (lambda comm: _by_group(comm, "Create"), MPI.Intracomm),
    "Create_group": (lambda comm: _by_group(comm, "Create_group"), MPI.Intracomm),
    "Create_cart": (lambda comm: comm.Create_cart([comm.Get_size()], [True]), MPI.Cartcomm),
    "Create_graph": (_graph, MPI.Graphcomm),
    "Create_dist_graph": (_dist_graph, MPI.Distgraphcomm),
    "Create_dist_graph_adjacent": (
        lambda comm: comm.Create_dist_graph_adjacent(*_ring(comm)),
        MPI.Distgraphcomm,
    ),
}


def old_ranks(new: MPI.Intracomm, old: MPI.Intracomm) -> list[int]:
    theirs, ours = new.Get_group(), old.Get_group()
    ranks = MPI.Group.Translate_ranks(theirs, list(range(new.Get_size())), ours)
    theirs.Free()
    ours.Free()
    return list(ranks)


def require_part(new: MPI.Intracomm, old: GridComm) -> None:
    """``new`` knows what ``old`` knew of its ranks."""
    assert isinstance(new, GridComm)
    ranks = old_ranks(new, old)
    assert new.grid == old.grid.restrict(ranks)[0]
    assert new.model.links == old.model.restrict(ranks).links


@pytest.mark.parametrize("layout", ["one cluster", "two", "three interleaved"])
@pytest.mark.parametrize("name", MAKERS)
def test_children(world: MPI.Intracomm, name: str, layout: str) -> None:
    make, kind = MAKERS[name]
    plain = make(world)
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        child = make(comm)
        assert isinstance(child, kind)
        assert child.Get_topology() == plain.Get_topology()
        assert MPI.Comm.Compare(child, plain) == MPI.CONGRUENT
        require_part(child, comm)
        works(child)
        again = child.Dup()
        assert type(again) is type(child)
        assert isinstance(child, GridComm)
        require_part(again, child)
        child.Free()
        works(again)
        again.Free()
        works(comm)
    plain.Free()


@pytest.mark.parametrize("name", MAKERS)
def test_children_run_plans(
    world: MPI.Intracomm, name: str, n_planned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a part spans clusters, native is not what it falls back to."""
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    with grid_comm(world) as comm:
        child = MAKERS[name][0](comm)
        assert isinstance(child, GridComm)
        buffer = np.zeros(1000)
        child.Bcast(buffer, 0)
        assert n_planned[0] == int(len(child.grid.clusters) > 1)
        child.Free()


def test_nothing_is_measured_again(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    import gridcoll.comm.communicator as module

    with grid_comm(world) as comm:
        monkeypatch.setattr(module, "find_model", None)
        for make, _ in MAKERS.values():
            make(comm).Free()


def test_a_duplicate_knows_what_was_chosen(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        chosen = comm.explain("bcast", 4096)
        child = comm.Dup()
        assert child.explain("bcast", 4096) is chosen
        assert child.explain("allreduce", 64) is comm.explain("allreduce", 64)
        child.Free()


@pytest.mark.mpi(min_size=2)
def test_children_of_the_same_ranks_choose_once(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And compile once."""
    from gridcoll.comm import decisions as module

    chosen = count_calls(monkeypatch, module, "choose")
    compiled = count_calls(monkeypatch, module, "dataflow")
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    with grid_comm(world) as comm:
        first = comm.Split(0, -comm.Get_rank())
        works(first)
        n_chosen, n_compiled = len(chosen), len(compiled)
        assert n_chosen
        assert n_compiled
        second = comm.Split(7, -comm.Get_rank())
        works(second)
        assert (len(chosen), len(compiled)) == (n_chosen, n_compiled)
        first.Free()
        second.Free()


@pytest.mark.mpi(min_size=2)
def test_communicators_wrapped_anew_choose_once(world: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    n_ranks, path = world.Get_size(), mpi_tmp_path / "duo.toml"
    if world.Get_rank() == 0:
        path.write_text(
            f"version = 1\nname = 'duo'\nclusters = [{{ name = 'a', ranks = {n_ranks - 1} }}, "
            "{ name = 'b', ranks = 1 }]\nlinks = [{ between = ['a', 'b'], latency = '7 ms' }]\n"
        )
    duplicates = [world.Dup() for _ in range(2)]
    first, second = (GridComm(duplicate, grid=str(path)) for duplicate in duplicates)
    assert second.explain("bcast", 4096) is first.explain("bcast", 4096)
    for comm in (first, second, *duplicates):
        comm.Free()


@pytest.mark.mpi(min_size=4)
def test_children_that_are_alike_choose_once(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 with one rank of the other cluster, whichever; not with one of its own."""
    from gridcoll.comm import decisions as module

    chosen = count_calls(monkeypatch, module, "choose")
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    with grid_comm(world, [int(rank > 1) for rank in range(world.Get_size())]) as comm:
        rank, n_chosen = comm.Get_rank(), []
        for other in (2, 3, 1):
            pair = comm.Split(int(rank not in (0, other)))
            if rank in (0, other):
                assert isinstance(pair, GridComm)
                assert pair.grid.hosts == (comm.grid.hosts[0], comm.grid.hosts[other])
                works(pair)
            n_chosen.append(len(chosen))
            pair.Free()
        if rank == 0:
            assert 0 < n_chosen[0] == n_chosen[1] < n_chosen[2]


def test_a_child_costs_no_message_and_no_communicator(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPI's own call is the only one that is made."""
    import gridcoll.comm.channel as module

    def never(*_: object) -> None:
        raise RuntimeError("a communicator of our own, or a question to the others")

    with grid_comm(world) as comm:
        with monkeypatch.context() as patch:
            patch.setattr(module, "PrivateComm", never)
            patch.setattr(module.Channel, "open", never)
            children = [make(comm) for make, _ in MAKERS.values()]
        for child in children:
            works(child)
            child.Free()


class TestNull:
    def test_left_out_of_a_split(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            last = comm.Get_rank() == comm.Get_size() - 1
            part = comm.Split(MPI.UNDEFINED if last else 0)
            require_null(part) if last else works_and_frees(part)

    def test_left_out_of_a_type(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            last = comm.Get_rank() == comm.Get_size() - 1
            part = comm.Split_type(MPI.UNDEFINED if last else MPI.COMM_TYPE_SHARED)
            require_null(part) if last else works_and_frees(part)

    @pytest.mark.parametrize("name", ["Create", "Create_group"])
    def test_left_out_of_a_group(self, world: MPI.Intracomm, name: str) -> None:
        with grid_comm(world) as comm:
            first = comm.Get_rank() == 0
            with_all = comm.Get_group()
            group = with_all.Incl([0])
            if name == "Create" or first:
                part = getattr(comm, name)(group)
                works_and_frees(part) if first else require_null(part)
            with_all.Free()
            group.Free()

    @pytest.mark.mpi(min_size=3)
    def test_left_out_of_a_mesh(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            part = comm.Create_cart([2])
            assert isinstance(part, MPI.Cartcomm)
            works_and_frees(part) if comm.Get_rank() < 2 else require_null(part)

    def test_children_of_a_null_one(self) -> None:
        for name in ("Dup", "Clone", "Split", "Idup"):
            with pytest.raises(MPI.Exception):
                getattr(GridComm(), name)()
        with pytest.raises(MPI.Exception):
            GridComm().Free()


def require_null(comm: MPI.Intracomm) -> None:
    assert comm == MPI.COMM_NULL
    assert isinstance(comm, MPI.Intracomm)
    with pytest.raises(MPI.Exception):
        comm.Bcast(bytearray(1))


def works_and_frees(comm: MPI.Intracomm) -> None:
    works(comm)
    comm.Free()


class TestTopologies:
    def test_meshes_keep_theirs(self, world: MPI.Intracomm) -> None:
        size = world.Get_size()
        dims = MPI.Compute_dims(size, 2)
        with grid_comm(world) as comm:
            mesh = comm.Create_cart(dims, [True, False])
            plain = world.Create_cart(dims, [True, False])
            assert (mesh.topo, mesh.Shift(0, 1)) == (plain.topo, plain.Shift(0, 1))
            for keep in ([True, False], [False, True], [False, False]):
                line, plain_line = mesh.Sub(keep), plain.Sub(keep)
                assert isinstance(line, MPI.Cartcomm)
                if plain_line == MPI.COMM_NULL:  # Intel MPI's of no dimensions
                    require_null(line)
                    continue
                assert line.topo == plain_line.topo
                assert isinstance(mesh, GridComm)
                require_part(line, mesh)
                works(line)
                line.Free()
                plain_line.Free()
            part = mesh.Split(0)
            assert type(part) is GridIntracomm
            mesh.Free()
            works_and_frees(part)
            plain.Free()

    def test_neighbours_exchange(self, world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            ring = comm.Create_dist_graph_adjacent(*_ring(comm))
            assert ring.neighbor_allgather(comm.Get_rank()) == _ring(comm)[0]
            ring.Free()

    def test_built_on_one(self, world: MPI.Intracomm) -> None:
        mesh = world.Create_cart([world.Get_size()])
        comm = GridComm(mesh, model=grid_model([0] * world.Get_size()))
        assert isinstance(comm, MPI.Cartcomm)
        assert comm.Get_coords(comm.Get_rank()) == [comm.Get_rank()]
        comm.Free()
        mesh.Free()


class TestAsMPIDoes:
    def test_attributes(self, world: MPI.Intracomm) -> None:
        """Dup, Idup copy them, once; Clone as mpi4py has it; parts have none."""
        assert copies_of(world) == copies_through_grid(world)

    def test_error_handlers_and_names(self, world: MPI.Intracomm) -> None:
        world.Set_errhandler(MPI.ERRORS_ARE_FATAL)
        try:
            plain = world.Dup()
            with grid_comm(world) as comm:
                comm.Set_name("ours")
                comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)
                child = comm.Dup()
                assert child.Get_errhandler() == plain.Get_errhandler()
                assert comm.Get_name() == "ours"
                assert child.Get_name() == plain.Get_name()
                child.Free()
            plain.Free()
        finally:
            world.Set_errhandler(MPI.ERRORS_RETURN)


def copies_of(comm: MPI.Intracomm, names: Sequence[str] = tuple(MAKERS)) -> dict[str, object]:
    """How often the user's copy function ran for each way to make a child, and what it had."""
    copied: list[int] = []

    def copy(comm: MPI.Comm, key: int, value: object) -> object:
        copied.append(1)
        return value

    key = MPI.Comm.Create_keyval(copy)
    comm.Set_attr(key, "mine")
    seen: dict[str, object] = {}
    for name in names:
        copied.clear()
        child = MAKERS[name][0](comm)
        seen[name] = (len(copied), child.Get_attr(key))
        works(child)
        child.Free()
    comm.Delete_attr(key)
    MPI.Comm.Free_keyval(key)
    return seen


def copies_through_grid(world: MPI.Intracomm) -> dict[str, object]:
    with grid_comm(world) as comm:
        return copies_of(comm)
