"""Random calls, each on plain mpi4py and on a `GridComm` of the same ranks: no difference.

``GRIDCOLL_FUZZ_CALLS`` and ``GRIDCOLL_FUZZ_SEED`` say how many and which.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from msgspec import Struct

from gridcoll import GridComm
from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import natives_of
from tests.mpi.support import grid_comm, layouts

N_CALLS = int(os.environ.get("GRIDCOLL_FUZZ_CALLS", "300"))
SEED = int(os.environ.get("GRIDCOLL_FUZZ_SEED", "1"))

SIZES = (0, 1, 1, 2, 3, 7, 64, 64, 1009, 8191)
CODES = "bhilqBHILQfdFD?"
OPS = (MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN, MPI.LOR, MPI.BAND, MPI.BXOR)
N_OPS = {"f": 4, "d": 4, "F": 2, "D": 2}
"""Of them, how many a type knows: what it does not know, `test_allreduce` is about."""
FORMS = ("array", "typed", "coded", "counted", "displaced", "strided")
MIX_BREAKS = ("Allgather",) if MPI.get_vendor()[0] == "Intel MPI" else ()
"""Intel MPI 2021.18 delivers wrong elements where ranks receive in layouts of their own."""
LEAD = 3
"""Elements before the buffer in memory that nobody may touch."""


class Call(Struct, frozen=True):
    """One call, the same on all ranks."""

    kind: str
    n: int
    code: str
    form: int
    mixed: bool
    in_place: bool
    op: MPI.Op
    root: int
    seed: int

    def text(self) -> str:
        return (
            f"{self.kind} n={self.n} {self.code} {FORMS[self.form]} mixed={self.mixed} "
            f"in_place={self.in_place} op={OPS.index(self.op)} root={self.root}"
        )

    def form_on(self, rank: int) -> str:
        """Ranks may lay the same signature out each in its own way."""
        return FORMS[(self.form + (rank if self.mixed else 0)) % len(FORMS)]

    def memory(self, n: int, what: int, rank: int) -> np.ndarray:
        """``n`` elements, and as many to be left out; reproducible values, exact in any order."""
        random = np.random.default_rng([self.seed, what, rank])
        return random.integers(0, 2, 2 * n + 2 * LEAD).astype(self.code)


def draw(random: np.random.Generator, size: int) -> Call:
    kind = str(random.choice(list(KINDS)))
    code = CODES[int(random.integers(len(CODES)))]
    return Call(
        kind=kind,
        n=int(random.choice(SIZES)),
        code=code,
        form=int(random.integers(len(FORMS))),
        mixed=bool(random.random() < 0.3) and kind not in MIX_BREAKS,
        in_place=bool(random.random() < 0.2),
        op=MPI.LOR if code == "?" else OPS[int(random.integers(N_OPS.get(code, len(OPS))))],
        root=int(random.choice([*range(size), *range(size), *range(size), -1, size])),
        seed=int(random.integers(1 << 30)),
    )


@contextmanager
def spec(memory: np.ndarray, n: int, n_blocks: int, form: str) -> Iterator[Any]:
    """``n_blocks`` blocks of ``n`` elements of ``memory``, as ``form`` says."""
    kind = MPI.Datatype.fromcode(memory.dtype.char)
    total = n * n_blocks
    if form == "strided" and n:
        vector = kind.Create_vector(n, 1, 2)
        column = vector.Create_resized(0, 2 * n * memory.itemsize).Commit()
        vector.Free()
        try:
            yield [memory[LEAD:], 1, column]
        finally:
            column.Free()
    elif form == "typed":
        yield [memory[:total], kind]
    elif form == "coded":
        yield (memory[:total], memory.dtype.char)
    elif form == "counted":
        yield [memory, n, kind]
    elif form == "displaced":
        yield [memory, (n, LEAD), kind]
    else:
        yield memory[LEAD : LEAD + total]


def moving(name: str, sends: str, receives: str) -> Callable[[Call, MPI.Intracomm], Any]:
    """A collective that moves blocks: one or all sent and received, everywhere or at the root."""

    def call_it(call: Call, comm: MPI.Intracomm) -> Any:
        size, rank = comm.Get_size(), comm.Get_rank()
        n_sent, n_received = (size if "all" in what else 1 for what in (sends, receives))
        mine = call.memory(call.n * n_sent, 1, rank)
        answer = call.memory(call.n * n_received, 2, rank)
        with ExitStack() as stack:
            give: Any = stack.enter_context(spec(mine, call.n, n_sent, call.form_on(rank)))
            take: Any = stack.enter_context(
                spec(answer, call.n, n_received, call.form_on(rank + 1))
            )
            if "root" in sends and rank != call.root:
                give = None
            if "root" in receives and rank != call.root:
                take = None
            roots = (call.root,) if "root" in sends + receives else ()
            if call.in_place and name in ("Alltoall", "Allgather", "Ialltoall"):
                give = MPI.IN_PLACE
            finish(getattr(comm, name)(give, take, *roots))
        return mine.tobytes(), answer.tobytes()

    return call_it


def combining(name: str, *, blocks: bool = False) -> Callable[[Call, MPI.Intracomm], Any]:
    """A collective that combines elements."""

    def call_it(call: Call, comm: MPI.Intracomm) -> Any:
        size, rank = comm.Get_size(), comm.Get_rank()
        n = call.n * (size if blocks else 1)
        mine, answer = call.memory(n, 1, rank), call.memory(n, 2, rank)
        form = call.form_on(0)
        if form == "strided":
            form = "array"
        rooted = name == "Reduce"
        with ExitStack() as stack:
            give: Any = stack.enter_context(spec(mine, n, 1, form))
            take: Any = stack.enter_context(spec(answer, call.n, 1, "counted" if blocks else form))
            if call.in_place and not blocks and (not rooted or rank == call.root):
                give = MPI.IN_PLACE
            roots = (call.root,) if rooted else ()
            finish(getattr(comm, name)(give, take, call.op, *roots))
        return mine.tobytes(), answer.tobytes()

    return call_it


def finish(request: Any) -> None:
    if request is not None:
        request.Wait()


def _bcast(name: str) -> Callable[[Call, MPI.Intracomm], Any]:
    def call_it(call: Call, comm: MPI.Intracomm) -> Any:
        rank = comm.Get_rank()
        memory = call.memory(call.n, int(rank == call.root), rank)
        with spec(memory, call.n, 1, call.form_on(rank)) as given:
            finish(getattr(comm, name)(given, call.root))
        return memory.tobytes()

    return call_it


def _alltoallv(call: Call, comm: MPI.Intracomm) -> Any:
    size, rank = comm.Get_size(), comm.Get_rank()
    random = np.random.default_rng(call.seed)
    counts = random.integers(0, min(call.n, 50) + 1, (size, size))

    def layout(row: np.ndarray) -> tuple[list[int], list[int]]:
        places = np.cumsum(row + call.form) - row
        return row.tolist(), places.tolist()

    room = 60 * size + LEAD
    mine, answer = call.memory(room, 1, rank), call.memory(room, 2, rank)
    kind = MPI.Datatype.fromcode(call.code)
    comm.Alltoallv([mine, *layout(counts[rank]), kind], [answer, *layout(counts[:, rank]), kind])
    return mine.tobytes(), answer.tobytes()


def _thing(call: Call, rank: int) -> Any:
    """An object of a kind and size that differ between ranks."""
    kinds: tuple[Any, ...] = (
        *(None, rank, "x" * (call.n * rank), {"rank": rank, "n": [call.n] * (call.n % 100)}),
        *(np.full(call.n, rank, call.code), 1 << (call.n % 300), (rank, b"y" * call.n), 2.5j),
    )
    return kinds[(call.seed + rank) % len(kinds)]


def _seen(value: Any) -> str:
    if isinstance(value, list):
        return repr([_seen(item) for item in value])
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.flags.writeable} {value.tobytes()!r}"
    return repr(value)


def _objects(name: str) -> Callable[[Call, MPI.Intracomm], Any]:
    def call_it(call: Call, comm: MPI.Intracomm) -> Any:
        size, rank = comm.Get_size(), comm.Get_rank()
        if name in ("alltoall", "scatter"):
            given: Any = [_thing(call, rank + other) for other in range(size)]
            if name == "scatter" and rank != call.root:
                given = None
        elif "reduce" in name:
            given = call.seed + rank if call.in_place else [rank] * (call.n % 50)
        else:
            given = _thing(call, rank)
        roots = (call.root,) if name in ("bcast", "scatter", "gather", "reduce") else ()
        ops = (MPI.SUM,) if "reduce" in name else ()
        return _seen(getattr(comm, name)(given, *ops, *roots))

    return call_it


KINDS: dict[str, Callable[[Call, MPI.Intracomm], Any]] = {
    **{name: _bcast(name) for name in ("Bcast", "Ibcast")},
    "Alltoall": moving("Alltoall", "all", "all"),
    "Ialltoall": moving("Ialltoall", "all", "all"),
    "Allgather": moving("Allgather", "one", "all"),
    "Gather": moving("Gather", "one", "all at root"),
    "Scatter": moving("Scatter", "all at root", "one"),
    **{name: combining(name) for name in ("Allreduce", "Reduce", "Iallreduce")},
    "Reduce_scatter_block": combining("Reduce_scatter_block", blocks=True),
    "Alltoallv": _alltoallv,
    **{
        name: _objects(name)
        for name in ("bcast", "alltoall", "allreduce", "reduce", "gather", "scatter", "allgather")
    },
    "Barrier": lambda call, comm: comm.Barrier(),
}
"""Each performs a call on a communicator and returns everything it could have changed."""


def outcome(call: Call, comm: MPI.Intracomm) -> Any:
    try:
        return KINDS[call.kind](call, comm)
    except MPI.Exception as error:
        return type(error), error.Get_error_class()
    except Exception as error:
        return type(error)


Pair = tuple[MPI.Intracomm, MPI.Intracomm]


@contextmanager
def pairs(world: MPI.Intracomm) -> Iterator[list[Pair]]:
    """Communicators of mpi4py's, each with one of ours of the same ranks."""
    size, rank = world.Get_size(), world.Get_rank()
    made: list[Pair] = []
    with ExitStack() as stack:
        grids = ("two", "three interleaved", "all alone", "one cluster")
        for labels in [layouts(size)[name] for name in grids if name in layouts(size)]:
            made.append((world, stack.enter_context(grid_comm(world, labels))))  # noqa: PERF401
        first = made[0][1]
        derive: tuple[Callable[[MPI.Intracomm], MPI.Intracomm], ...] = (
            lambda comm: comm.Dup(),
            lambda comm: comm.Split(0, -rank),
            lambda comm: comm.Split(rank % 2, rank),
            lambda comm: comm.Create_cart([size], [True]),
        )
        children = [(make(world), make(first)) for make in derive]
        yield made + children
        for pair in children:
            for comm in pair:
                comm.Free()


def view(comm: MPI.Intracomm, call: Call, random: np.random.Generator) -> MPI.Intracomm:
    """``comm``, sometimes told which algorithm to take."""
    collective = call.kind.lower().removeprefix("i")
    names = [*natives_of(collective), *REGISTRIES.get(collective, ())]
    name = names[int(random.integers(len(names)))]
    forced = random.random() < 0.5 and collective in REGISTRIES
    return comm.forced(collective, name) if forced and isinstance(comm, GridComm) else comm


def check(call: Call, plain: MPI.Intracomm, ours: MPI.Intracomm, told: str) -> None:
    wanted = outcome(call, plain)
    found = outcome(call, ours)
    assert found == wanted, f"{told}: {call.text()}"


def test_no_call_tells_them_apart(
    world: MPI.Intracomm, n_planned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    monkeypatch.setattr(MPI.pickle, "THRESHOLD", 1000)  # arrays beside their pickles
    random = np.random.default_rng(SEED)
    with pairs(world) as all_pairs:
        for k in range(N_CALLS):
            plain, ours = all_pairs[int(random.integers(len(all_pairs)))]
            # Halves differ in size: what is drawn must not.
            call = draw(random, world.Get_size())
            check(call, plain, view(ours, call, random), f"call {k} of seed {SEED}")
    if world.Get_size() > 1:
        assert n_planned[0] > N_CALLS // 8


@pytest.mark.long
@pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI was started without THREAD_MULTIPLE"
)
@pytest.mark.skipif(
    MPI.get_vendor()[0] == "Intel MPI" and os.environ.get("I_MPI_COLL_INTRANODE") != "pt2pt",
    reason="Intel's own collectives wait for ever in two threads: make test-mpi-threads",
)
def test_nor_from_two_threads(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has communicators of its own, plain ones too."""
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    failures: list[BaseException] = []

    def run(seed: int, own: list[Pair]) -> None:
        random = np.random.default_rng([SEED, seed])
        try:
            for k in range(N_CALLS // 4):
                plain, ours = own[int(random.integers(len(own)))]
                call = draw(random, world.Get_size())
                check(call, plain, view(ours, call, random), f"call {k} of thread {seed}")
        except BaseException as error:
            failures.append(error)

    other = world.Dup()
    with pairs(world) as one, pairs(other) as two:
        for pair in one + two:
            for comm in pair:
                # mpi4py's first reduction of objects on a communicator duplicates it and keeps the
                # interpreter's lock meanwhile: two threads doing that at once wait for each other
                # across ranks, on plain communicators too.
                MPI.Intracomm.allreduce(comm, 0)
        threads = [threading.Thread(target=run, args=each) for each in ((1, one), (2, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    other.Free()
    if failures:
        raise failures[0]
