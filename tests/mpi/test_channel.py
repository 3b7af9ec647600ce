"""Children send over their parent's private communicator, and nobody's messages mix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm import channel as module
from gridcoll.comm.channel import Channel, PrivateComm
from tests.mpi.support import count_calls, grid_comm, together

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(autouse=True)
def _plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")


def few_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MPI with tags for a few children only."""
    monkeypatch.setattr(module, "n_tags", lambda: 10 * 64 * module.FEWEST_TAGS)


def check_sum(comm: MPI.Intracomm, seed: int) -> None:
    """Of long enough arrays that something would be found that does not belong there."""
    n, rank = comm.Get_size(), comm.Get_rank()
    total = np.zeros(500, int)
    comm.Allreduce(np.full(500, seed * 1000 + rank), total)
    assert (total == n * seed * 1000 + n * (n - 1) // 2).all()


def channel_of(comm: MPI.Intracomm) -> Channel:
    assert isinstance(comm, GridComm)
    return comm._require_context().channel


def test_hundreds_at_once(world: MPI.Intracomm, n_planned: list[int]) -> None:
    """More than one private communicator has parts for."""
    with grid_comm(world) as comm:
        children = [comm.Dup() if k % 2 else comm.Split(0, -comm.Get_rank()) for k in range(400)]
        for k, child in enumerate(children):
            check_sum(child, k)
        assert n_planned[0] == len(children)
        privates = {channel_of(child)._private for child in children}
        assert 1 < len(privates) < 5
        for child in reversed(children):
            child.Free()
        assert [each._n_users for each in privates if each is not channel_of(comm)._private] == [
            0 if each is not channel_of(comm)._reserve.private else 1  # type: ignore[union-attr]
            for each in privates
            if each is not channel_of(comm)._private
        ]


def test_parts_do_not_overlap(world: MPI.Intracomm) -> None:
    """Of a communicator, its children and theirs: no two that share ranks share tags."""
    with grid_comm(world) as comm:
        family: list[MPI.Intracomm] = [comm]
        for _ in range(3):
            child = comm.Dup()
            family += [child, child.Dup(), child.Split(0), child.Idup()[0]]
        taken: dict[PrivateComm, set[int]] = {}
        for each in family:
            channel = channel_of(each)
            channel._divide()
            tags = channel._tags
            assert tags is not None
            ends = {tags.start, tags.stop - 1}
            known = taken.setdefault(channel._private, set())
            assert not any(first in tags for first in known)
            known |= ends
        for each in family[1:]:
            check_sum(each, 1)
            each.Free()


@pytest.mark.parametrize("depth", [12])
def test_children_of_children(
    world: MPI.Intracomm, depth: int, n_planned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond where parts can be divided."""
    few_tags(monkeypatch)
    with grid_comm(world) as comm:
        line: list[MPI.Intracomm] = [comm]
        for k in range(depth):
            line.append(line[-1].Dup() if k % 2 else line[-1].Split(0, -line[-1].Get_rank()))
        for k, each in enumerate(line):
            check_sum(each, k)
        assert n_planned[0] == len(line)
        for each in line[1:]:
            each.Free()


def test_few_tags_serve_many_children(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many as Intel MPI has, a communicator is not made for every second child."""
    monkeypatch.setattr(module, "n_tags", lambda: 1 << 19)
    with grid_comm(world) as comm:
        children = [comm.Dup() for _ in range(40)]
        assert len({channel_of(child)._private for child in children}) <= 3
        assert len(channel_of(comm).bands._at_once) > 10
        data, requests = np.full((40, 6, 100), comm.Get_rank()), []
        for k, child in enumerate(children):
            check_sum(child, k)
            requests += [child.Ibcast(data[k, call], 0) for call in range(6)]
            bands = channel_of(child).bands
            assert len(bands._at_once) == 2
            assert len(bands._own) == 1
            assert bands._own[0].carrier.n_tags >= module.FEWEST_TAGS  # type: ignore[attr-defined]
        MPI.Request.Waitall(requests)
        assert not data.any()
        for child in children:
            child.Free()


def test_parts_of_parts(world: MPI.Intracomm) -> None:
    """Their ranks are others in the private communicator, and not only in another order."""
    with grid_comm(world) as comm:
        line: list[MPI.Intracomm] = [comm]
        while line[-1].Get_size() > 1:
            last = line[-1]
            child = last.Split(0 if last.Get_rank() else MPI.UNDEFINED)
            if child == MPI.COMM_NULL:
                break
            line.append(child)
        for each in reversed(line[1:]):
            check_sum(each, each.Get_size())
            each.Free()


def test_ranks_that_are_left_out_count_alike(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        first, size = comm.Get_rank() == 0, comm.Get_size()
        out = comm.Split(0 if first else MPI.UNDEFINED)
        mesh = comm.Create_cart([size - 1])
        child = comm.Dup()
        check_sum(child, 1)
        for each in (out, mesh, child):
            if each != MPI.COMM_NULL:
                each.Free()


def test_a_wrong_call_counts_alike(world: MPI.Intracomm) -> None:
    """Even if MPI says so on one rank only."""
    with grid_comm(world) as comm:
        place = channel_of(comm).place_for_child
        place(may_wait=True)
        if comm.Get_rank() == 0:
            with pytest.raises(Exception, match=r"."):
                comm._derive(lambda: comm.Create_cart([-1, "x"]))  # type: ignore[list-item]
        else:
            comm._derive(lambda: MPI.COMM_NULL)
            place(may_wait=True)  # as Create_cart has done on rank 0
        child = comm.Dup()
        check_sum(child, 1)
        child.Free()


class _OtherThread:
    """A lock; when a second offer has failed, another thread has taken twelve slots."""

    def __init__(self, private: PrivateComm) -> None:
        self._private, self._n_times = private, 0

    def __enter__(self) -> None:
        self._n_times += 1
        if self._n_times == 4:
            self._private._offered, self._private._free = 0, self._private._free & ~0xFFF

    def __exit__(self, *_: object) -> None:
        pass


class TestGroups:
    def test_agree_once_when_they_plan(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, n_planned: list[int]
    ) -> None:
        agreed = count_calls(monkeypatch, PrivateComm, "agree_on_slot")
        with grid_comm(world) as comm:
            group = comm.Get_group()
            child = comm.Create_group(group)
            child.Ibarrier().Wait()
            assert not agreed
            for k in range(3):
                check_sum(child, k)
            assert len(agreed) == 1
            assert n_planned[0] == 3
            child.Free()
            group.Free()

    def test_what_others_may_take_is_not_given_twice(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another thread of rank 0 has all on offer; it takes some of them in the end."""
        with grid_comm(world) as comm:
            private = channel_of(comm)._private
            group = comm.Get_group()
            child = comm.Create_group(group)
            if comm.Get_rank() == 0:
                private._offered = private._free
                monkeypatch.setattr(private, "_lock", _OtherThread(private))
            check_sum(child, 1)
            slot = channel_of(child)._slot
            assert slot is not None
            assert slot >= 12
            child.Free()
            group.Free()

    def test_hundreds_of_groups_share_a_private_communicator(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With as many tags as MPICH has; programs in C derive all communicators like that."""
        monkeypatch.setattr(module, "n_tags", lambda: 1 << 29)
        private = PrivateComm(world, module.N_BANDS)
        assert private._n_slots >= 250
        tags = [private.slot_tags(slot) for slot in range(private._n_slots)]
        assert all(len(each) >= module.N_BANDS * module.FEWEST_TAGS for each in tags)
        ends = [(each.start, each.stop) for each in [*tags, private.tags]]
        assert [start for start, _ in ends[1:]] == [stop for _, stop in ends[:-1]]
        assert ends[-1][1] == 1 << 29

    def test_slots_come_back(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, n_planned: list[int]
    ) -> None:
        few_tags(monkeypatch)
        with grid_comm(world) as comm:
            private = channel_of(comm)._private
            n_slots = private._n_slots
            assert 0 < n_slots < 10
            group = comm.Get_group()
            for k in range(5):
                child = comm.Create_group(group)
                check_sum(child, k)
                assert channel_of(child)._private is private
                assert private._free.bit_count() == n_slots - 1
                child.Free()
            # More at once than there are slots: the next have private communicators of their own.
            children = [comm.Create_group(group) for _ in range(n_slots + 2)]
            for k, child in enumerate(children):
                check_sum(child, k)
            assert n_planned[0] == 5 + len(children)
            assert len({channel_of(child)._private for child in children}) == 3
            for child in children:
                child.Free()
            assert private._free.bit_count() == n_slots
            group.Free()

    @pytest.mark.mpi(min_size=3)
    def test_that_overlap(self, world: MPI.Intracomm) -> None:
        """Each of three groups has one rank that is in one of them only."""
        with grid_comm(world) as comm:
            rank, whole = comm.Get_rank(), comm.Get_group()
            groups = [whole.Incl(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
            made = [comm.Create_group(g, 5) for g in groups if g.Get_rank() != MPI.UNDEFINED]
            assert len(made) == (2 if rank < 3 else 0)
            for k in range(4):
                for each in made:
                    check_sum(each, k)
            for each in made:
                half = each.Dup()
                check_sum(half, 9)
                half.Free()
                each.Free()
            for group in (*groups, whole):
                group.Free()


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs THREAD_MULTIPLE")
@pytest.mark.parametrize("kind", ["duplicates", "groups", "grandchildren"])
def test_threads_on_children_of_one(world: MPI.Intracomm, kind: str) -> None:
    """Groups agree on their slots at the same time, in the order of each rank's own threads."""
    with grid_comm(world) as comm:
        group = comm.Get_group()
        make: dict[str, Callable[[], MPI.Intracomm]] = {
            "duplicates": comm.Dup,
            "groups": lambda: comm.Create_group(group),
            "grandchildren": lambda: comm.Split(0).Dup(),
        }
        children = [make[kind]() for _ in range(3)]

        def use(k: int) -> None:
            for turn in range(30):
                check_sum(children[k], 7 * turn + k)

        together(*(lambda k=k: use(k) for k in range(3)))  # type: ignore[misc]
        for child in children:
            child.Free()
        group.Free()
