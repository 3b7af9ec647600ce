"""``bcast`` of objects: what arrives, what the root gets back, and who pickles."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.comm.methods.broadcast import BCAST_HEADER_BYTES
from gridcoll.comm.pickles import HEADER_BYTES as HEADS_BYTES
from gridcoll.model import TimesBySize
from gridcoll.plan import choose
from gridcoll.plan.natives import NONBLOCKING
from tests.mpi.support import grid_comm, grid_model, layouts

OBJECTS: dict[str, Any] = {
    "None": None,
    "a number": 7,
    "a big number": 3**5000,
    "a float": float("-inf"),
    "a complex": 1 - 2j,
    "text": "grün",
    "bytes": b"\0" * 17,
    "a tuple": (1, (2, [3, {4: 5}])),
    "a set": {1, 2, 3},
    "a dict in order": OrderedDict([("b", 1), ("a", 2)]),
    "a class": Fraction,
    "an instance": Fraction(2, 3),
    "an exception": ValueError("no"),
    "a range": range(5, 900, 7),
    "nothing": [],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(world: MPI.Intracomm, name: str) -> None:
    wanted = OBJECTS[name]
    with grid_comm(world) as comm:
        for root in range(comm.Get_size()):
            got = comm.bcast(wanted if comm.Get_rank() == root else "another", root)
            assert type(got) is type(wanted)
            assert repr(got) == repr(wanted)


@pytest.mark.parametrize("offset", [-40, -9, -8, -1, 0, 1, 200, 300_000])
def test_pickles_around_the_headers_end(world: MPI.Intracomm, offset: int) -> None:
    """All in the first message, just in it, just beyond, and far beyond."""
    with grid_comm(world) as comm:
        root = comm.Get_size() - 1
        data = bytes(k % 251 for k in range(BCAST_HEADER_BYTES + offset))
        assert comm.bcast(data if comm.Get_rank() == root else None, root) == data


def test_every_pickle_length_about_the_header(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        for n in range(BCAST_HEADER_BYTES - 80, BCAST_HEADER_BYTES + 3):
            assert comm.bcast(b"x" * n if comm.Get_rank() == 0 else None) == b"x" * n


def test_arrays(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        for n in (0, 3, 5000, 500_000):
            array = np.arange(n, dtype="i2").reshape(-1, 1)
            got = comm.bcast(array if comm.Get_rank() == 0 else None)
            assert got.dtype == array.dtype
            assert (got == array).all()
            got[...] = 0  # what is received can be written


def test_the_root_gets_what_plain_mpi_gives_it(world: MPI.Intracomm) -> None:
    """A copy or its own object: an application may rely on either."""
    with grid_comm(world) as comm:
        plain = world.Dup()
        mine = [1, [2]]
        theirs = plain.bcast(mine, 0)
        ours = comm.bcast(mine, 0)
        plain.Free()
        assert ours == [1, [2]]
        assert (ours is mine) == (theirs is mine)


def test_the_callers_object_is_left_alone(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        mine = {"rank": comm.Get_rank(), "data": list(range(2000))}
        comm.bcast(mine, 0)["data"].clear()
        assert mine == {"rank": comm.Get_rank(), "data": list(range(2000))}


@pytest.fixture
def pickling() -> Iterator[list[str]]:
    """MPI.pickle set to JSON; the list notes who was asked."""
    calls: list[str] = []

    def dumps(obj: Any, protocol: int | None = None) -> bytes:
        calls.append("dumps")
        return json.dumps(obj).encode()

    def loads(data: Any) -> Any:
        calls.append("loads")
        return json.loads(bytes(data))

    MPI.pickle.__init__(dumps, loads)  # type: ignore[misc]
    yield calls
    MPI.pickle.__init__()  # type: ignore[misc]


def test_the_users_pickle_is_used(world: MPI.Intracomm, pickling: list[str]) -> None:
    with grid_comm(world) as comm:
        plain = world.Dup()
        seen = []
        for each in (plain, comm):
            pickling.clear()
            mine = {"a": [1, 2.5, None]} if each.Get_rank() == 0 else None
            assert each.bcast(mine, 0) == {"a": [1, 2.5, None]}
            seen.append(sorted(pickling))
        plain.Free()
        assert seen[1] == seen[0]


class Versioned:
    """Remembers the protocol that it was pickled with."""

    def __init__(self, protocol: int = -1) -> None:
        self.protocol = protocol

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Versioned, (int(protocol),)


def test_the_protocol_is_honoured(world: MPI.Intracomm) -> None:
    before = MPI.pickle.PROTOCOL
    with grid_comm(world) as comm:
        for protocol in (2, 4):
            MPI.pickle.PROTOCOL = protocol
            try:
                assert comm.bcast(Versioned(), 0).protocol == protocol
            finally:
                MPI.pickle.PROTOCOL = before


class Unloadable:
    """Can be sent and not be taken apart again."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ZeroDivisionError


def test_what_cannot_be_loaded_raises_everywhere_and_nobody_waits(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                comm.bcast(Unloadable(), 0)
        assert comm.bcast(5) == 5


def test_many_in_a_row(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        for k in range(60):
            wanted = list(range(k * 37))
            root = k % comm.Get_size()
            assert comm.bcast(wanted if comm.Get_rank() == root else k, root) == wanted


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("collective", ["gather", "scatter", "allgather"])
@pytest.mark.parametrize(("times", "by_plan"), [(0.6, True), (0.4, False)])
@pytest.mark.parametrize("variants", [{}, {NONBLOCKING: TimesBySize((HEADS_BYTES,), (1e-9,))}])
def test_native_takes_two_calls_for_objects(
    world: MPI.Intracomm,
    collective: str,
    times: float,
    by_plan: bool,
    variants: dict[str, TimesBySize],
) -> None:
    """Lengths first: for them it must be twice as fast as the fastest plan, not just faster.

    How fast a variant of it is plays no part: objects have none.
    """
    model = grid_model(layouts(world.Get_size())["two"])
    plan = choose(collective, model, HEADS_BYTES, 0, grid_only=True).winner
    assert plan.predicted_s
    native = TimesBySize((HEADS_BYTES,), (times * plan.predicted_s,))
    own = world.Dup()
    timed = replace(model, native={collective: native}, native_variants={collective: variants})
    comm = GridComm(own, model=timed)
    everybodys = [{"rank": rank} for rank in range(comm.Get_size())]
    given = everybodys if collective == "scatter" else everybodys[comm.Get_rank()]
    assert comm.explain(collective, HEADS_BYTES).winner.build is None
    got = getattr(comm, collective)(given)
    assert got in (everybodys, everybodys[comm.Get_rank()], None)
    assert (got is None) == (collective == "gather" and comm.Get_rank() > 0)
    assert (comm.traffic().n_inter_messages > 0) == by_plan
    comm.Free()
    own.Free()
