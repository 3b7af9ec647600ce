"""Both engines do the same: the one in C, which all other tests run on, and the one in Python."""

from __future__ import annotations

import ctypes
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.engine import compiled, runner, transport
from gridcoll.engine.compiled import LIBRARY, CompiledRun, begin_compiled
from gridcoll.engine.counting import CountingTransport
from gridcoll.engine.elements import ElementMemory
from gridcoll.engine.executor import IDLE_POLLS
from gridcoll.engine.memory import ByteMemory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import N_BANDS, MPITransport
from gridcoll.errors import PlanError, UsageError
from gridcoll.plan import Chunk, Copy, Op, Recv, Reduce, Send, dataflow
from gridcoll.plan.collectives.allreduce import Piece
from gridcoll.plan.collectives.rank_order import plan_in_rank_order
from gridcoll.topology import Grid
from tests.mpi.support import TESTSOME_CRASHES, grid_comm, layouts, pattern

ENGINES = ("compiled", "python")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs what follows on one of the engines."""
    if request.param == "python":
        monkeypatch.setattr(runner, "begin_compiled", lambda *args: None)
    return str(request.param)


def test_the_compiled_engine_is_what_runs() -> None:
    """Everywhere but where there was no compiler; the tests' environments have one."""
    assert LIBRARY.exists() == any(map(shutil.which, ("cc", "gcc", "clang")))
    flow = dataflow((Copy(Chunk("output", 0, 1), Chunk("output", 1, 2)),))
    memory = ByteMemory(memoryview(bytearray(b"ab")))
    run = begin_compiled(flow, MPITransport(MPI.COMM_SELF), memory)
    assert isinstance(run, CompiledRun) == LIBRARY.exists()
    if run:
        run.check()
        assert bytes(memory.view(Chunk("output", 0, 2))) == b"aa"


# ---- real messages ------------------------------------------------------------------------------


def matrix_product(left: MPI.buffer, right: MPI.buffer, datatype: MPI.Datatype) -> None:
    """Products of 2 x 2 matrices: order matters, and Python is called back."""
    a, b = (np.frombuffer(each, np.int64).reshape(-1, 2, 2) for each in (left, right))
    b[:] = a @ b


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("n_tags", range(300, 600, 60))
def test_plans_with_more_tags_than_mpi_has(
    world: MPI.Intracomm, engine: str, n_tags: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes up early must not be received in the place of what comes down."""
    monkeypatch.setattr(transport, "n_tags", lambda: n_tags * N_BANDS)
    n_units, rank, n = 1 << 14, world.Get_rank(), world.Get_size()
    bounds = [n_units * k // n for k in range(n + 1)]
    pieces = [Piece(bounds[k], bounds[k + 1], (k,)) for k in range(n)]
    plan = plan_in_rank_order(Grid.from_labels([0] * n), n_units, pieces, 32)
    flow = dataflow(plan.programs[rank])
    assert max(op.tag for op in flow.program if isinstance(op, Send)) > n_tags > max(flow.tags)
    mine = pattern(n_units, "i8", rank)
    result = np.empty_like(mine)
    memory = ElementMemory(result.data.cast("B"), mine.data.cast("B"), flow, MPI.INT64_T, MPI.SUM)
    run_program(flow, MPITransport(world), memory)
    assert (result == sum(pattern(n_units, "i8", r) for r in range(world.Get_size()))).all()


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("layout", ["two", "three interleaved", "all alone"])
def test_results_and_traffic_are_the_same(world: MPI.Intracomm, engine: str, layout: str) -> None:
    n_ranks, rank = world.Get_size(), world.Get_rank()
    op, matrix = MPI.Op.Create(matrix_product, commute=False), MPI.INT64_T.Create_contiguous(4)
    matrix.Commit()
    with grid_comm(world, layouts(n_ranks)[layout]) as comm:
        message = pattern(50_000) if rank == n_ranks - 1 else np.zeros(50_000, "i4")
        comm.Bcast(message, n_ranks - 1)
        assert (message == pattern(50_000)).all()
        mine = np.random.default_rng(rank).integers(0, 3, (500, 2, 2))
        ours, theirs = np.zeros_like(mine), np.zeros_like(mine)
        comm.Allreduce([mine, 500, matrix], [ours, 500, matrix], op)
        world.Allreduce([mine, 500, matrix], [theirs, 500, matrix], op)
        assert (ours == theirs).all()
        lengths = [3 * other + rank + 1 for other in range(n_ranks)]
        coming = [3 * rank + other + 1 for other in range(n_ranks)]
        out, into = pattern(sum(lengths), seed=rank), np.zeros(sum(coming), "i4")
        wanted = np.zeros_like(into)
        comm.Alltoallv([out, lengths], [into, coming])
        world.Alltoallv([out, lengths], [wanted, coming])
        assert (into == wanted).all()
        traffic = comm.traffic()
        sent = (dict(traffic.messages), dict(traffic.units))
    assert world.allgather(sent) == [sent] * n_ranks
    counts = _TRAFFIC.setdefault(layout, sent)
    assert counts == sent, f"{engine} counts otherwise than {ENGINES[0]}"
    matrix.Free()
    op.Free()


_TRAFFIC: dict[str, object] = {}
"""What the first engine sent, by layout."""


def test_a_run_waits_for_what_is_due_later(engine: str) -> None:
    n = 20
    program = tuple(
        op
        for k in range(n)
        for op in (Send(0, out(k, k + 1), k, due_us=500 * k), Recv(0, out(n + k, n + k + 1), k))
    )
    data = bytearray(range(2 * n))
    began_s = time.monotonic()
    memory = ByteMemory(memoryview(data))
    run_program(dataflow(program), MPITransport(MPI.COMM_SELF), memory)
    assert data == bytes(range(n)) * 2
    assert time.monotonic() > began_s + 500e-6 * (n - 1)


@pytest.mark.skipif(TESTSOME_CRASHES, reason="Open MPI's Testsome crashes: see tests/README.md")
@pytest.mark.mpi(min_size=2)
def test_a_message_too_long_is_raised_when_nothing_is_under_way(
    world: MPI.Intracomm, engine: str
) -> None:
    """The receive that fails stops nothing: what came after it arrives."""
    comm = MPI.Intracomm(world.Dup())
    data = bytearray(b"abcdefgh" if world.Get_rank() == 0 else 8)
    programs: dict[int, tuple[Op, ...]] = {
        0: (Send(1, Chunk("output", 0, 4), 0), Send(1, Chunk("output", 4, 8), 1)),
        1: (Recv(0, Chunk("output", 0, 2), 0), Recv(0, Chunk("output", 4, 8), 1)),
    }
    flow = dataflow(programs.get(world.Get_rank(), ()))
    memory = ByteMemory(memoryview(data))
    if world.Get_rank() == 1:
        with pytest.raises(MPI.Exception) as caught:
            run_program(flow, MPITransport(comm), memory)
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        assert data[4:] == b"efgh"
    else:
        run_program(flow, MPITransport(comm), memory)
    comm.Free()


def test_what_reaches_beyond_a_buffer_is_told_before_anything_starts(engine: str) -> None:
    flow = dataflow((Copy(Chunk("output", 0, 1), Chunk("scratch", 7, 8)),))
    memory = ByteMemory(memoryview(bytearray(4)), scratch=memoryview(bytearray(4)))
    with pytest.raises(PlanError, match="scratch buffer is 4 bytes"):
        run_program(flow, MPITransport(MPI.COMM_SELF), memory)


def test_bytes_have_no_operation(engine: str) -> None:
    flow = dataflow((Reduce(Chunk("output", 0, 1), Chunk("output", 1, 2)),))
    with pytest.raises(PlanError, match="bytes have no operation"):
        run_program(flow, MPITransport(MPI.COMM_SELF), ByteMemory(memoryview(bytearray(4))))


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled._library.__wrapped__
    monkeypatch.setenv("GRIDCOLL_ENGINE", "python")
    assert found() is None
    monkeypatch.setenv("GRIDCOLL_ENGINE", "fast")
    with pytest.raises(UsageError, match="GRIDCOLL_ENGINE: must be python or compiled, got 'fast'"):
        found()
    monkeypatch.setattr(compiled, "LIBRARY", LIBRARY.with_name("none.so"))
    monkeypatch.setenv("GRIDCOLL_ENGINE", "compiled")
    with pytest.raises(UsageError, match="without a C compiler"):
        found()
    monkeypatch.delenv("GRIDCOLL_ENGINE")
    assert found() is None


# ---- messages that end when the test says so ----------------------------------------------------

_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_TRANSFER = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER)
_INTS = ctypes.POINTER(_INT)
_TEST_SOME = ctypes.CFUNCTYPE(_INT, _INT, _INTS, _INTS, _INTS, _POINTER)


@dataclass
class FakeMPI:
    """An MPI whose handles are ints: notes what is started."""

    log: list[str] = field(default_factory=list)
    tested: list[list[str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    def functions(self) -> Iterator[Callable[..., int]]:
        def start(kind: str) -> Callable[..., int]:
            def transfer(data: int, n: int, _: int, peer: int, tag: int, comm: int, at: int) -> int:
                what = ctypes.string_at(data, n).decode() if kind == "send" else n
                self.log.append(f"{kind} {what} peer {peer} tag {tag}")
                ctypes.cast(at, _INTS)[0] = len(self.log) - 1
                return 0

            return _TRANSFER(transfer)

        def test_some(n: int, requests, n_ended, places, statuses) -> int:  # type: ignore[no-untyped-def]
            mine = [self.log[requests[k]] for k in range(n)]
            self.tested.append(mine)
            over = [k for k, each in enumerate(mine) if each in self.ended]
            n_ended[0] = len(over)
            for k, place in enumerate(reversed(over)):
                places[k] = place
            return 0

        yield start("send")
        yield start("recv")
        yield _TEST_SOME(test_some)


def begin(
    monkeypatch: pytest.MonkeyPatch, window: int, *ops: Op, band: int = 0
) -> tuple[CompiledRun, FakeMPI]:
    """A run over a fake MPI, on a buffer that holds the alphabet."""
    fake, library = FakeMPI(), compiled._Library(LIBRARY)
    kept = list(fake.functions())
    pointers = [ctypes.cast(each, _POINTER) for each in kept]
    library.mpi = compiled._MPI(*pointers, None, None, 1, -1, 4, 4, -32766)
    monkeypatch.setattr(compiled, "_library", lambda: library)
    memory = ByteMemory(memoryview(bytearray(b"abcdefghijklmnopqrstuvwxyz")))
    run = begin_compiled(dataflow(ops), MPITransport(MPI.COMM_SELF, band), memory, window)
    assert run is not None
    run._kept = (*run._kept, *kept)
    return run, fake


def out(start: int, stop: int) -> Chunk:
    return Chunk("output", start, stop)


def forward(n: int) -> tuple[Op, ...]:
    """``n`` segments of one byte from rank 0 on to rank 2."""
    return tuple(
        op for k in range(n) for op in (Recv(0, out(k, k + 1), k), Send(2, out(k, k + 1), k))
    )


def test_nothing_starts_before_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor anything behind it."""
    program = (
        *(Send(1, out(0, 1), 0), Send(1, out(1, 2), 1, due_us=20_000)),
        *(Send(1, out(2, 3), 2), Recv(2, out(4, 5), 0)),
    )
    began_s = time.monotonic()
    run, fake = begin(monkeypatch, 64, *program)
    while len(fake.log) < 3:
        assert not run.advance()
    assert time.monotonic() > began_s + 0.02
    sends = [f"send {what} peer 1 tag {tag}" for tag, what in enumerate("abc")]
    assert fake.log == ["recv 1 peer 2 tag 0", *sends]


@pytest.mark.parametrize("window", [1, 3, 64])
def test_receives_are_posted_ahead_but_never_more_than_the_window(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    run, fake = begin(monkeypatch, window, *forward(10))
    for n_received in range(10):
        posted = [line for line in fake.log if line.startswith("recv")]
        assert len(posted) == min(n_received + window, 10)
        fake.ended.add(f"recv 1 peer 0 tag {n_received}")
        assert run.advance()
        assert fake.log.count(f"send {chr(97 + n_received)} peer 2 tag {n_received}") == 1
        assert not run.done
    fake.ended.update(fake.log)
    while run.advance():
        pass
    assert run.done
    run.check()


def test_more_are_posted_where_nothing_ends_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what an MPI library does not keep for us cannot hold up what we wait for."""
    run, fake = begin(monkeypatch, 3, *forward(10))

    def n_posted() -> int:
        return sum(line.startswith("recv") for line in fake.log)

    def poll(n_times: int) -> None:
        for _ in range(n_times):
            assert not run.advance()

    poll(IDLE_POLLS - 1)
    assert n_posted() == 3
    fake.ended.add("recv 1 peer 0 tag 0")
    assert run.advance()  # patience begins anew
    poll(IDLE_POLLS - 1)
    assert n_posted() == 4
    poll(1)
    assert n_posted() == 7
    poll(2 * IDLE_POLLS)
    assert n_posted() == 10
    fake.ended.update(fake.log)
    while run.advance():
        fake.ended.update(fake.log)
    assert run.done
    run.check()


def test_of_a_lane_only_the_oldest_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [Send(peer, out(k, k + 1), k) for peer in (1, 2) for k in range(3)]
    run, fake = begin(monkeypatch, 64, *ops)
    assert [line.split()[1] for line in fake.log] == list("abcabc")
    assert not run.advance()
    assert fake.tested == [["send a peer 1 tag 0", "send a peer 2 tag 0"]]
    fake.ended.update(fake.log)
    assert run.advance()
    run.advance()
    assert fake.tested[-1] == ["send b peer 1 tag 1", "send b peer 2 tag 1"]


def test_streams_of_one_source_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [Recv(0, out(k, k + 1), k, stream=k % 2) for k in range(6)]
    run, fake = begin(monkeypatch, 2, *ops)
    assert [line[-1] for line in fake.log] == ["0", "2", "1", "3"]
    fake.ended.add("recv 1 peer 0 tag 1")
    assert run.advance()
    assert fake.log[-1] == "recv 1 peer 0 tag 5"


def test_a_receive_waits_until_its_buffer_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    run, fake = begin(monkeypatch, 64, Send(1, out(0, 4), 0), Recv(2, out(2, 6), 0))
    assert fake.log == ["send abcd peer 1 tag 0"]
    fake.ended.add(fake.log[0])
    run.advance()
    assert fake.log[1:] == ["recv 4 peer 2 tag 0"]


def test_local_ops_run_between_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = (Copy(out(0, 4), out(8, 12)), Copy(out(8, 12), out(4, 8)), Send(1, out(4, 8), 0))
    _, fake = begin(monkeypatch, 64, *ops)
    assert fake.log == ["send abcd peer 1 tag 0"]


def test_what_becomes_ready_at_once_starts_in_program_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receives = [Recv(peer, out(peer, peer + 1), 0) for peer in range(4)]
    run, fake = begin(monkeypatch, 64, *receives, *(Send(9, out(k, k + 1), k) for k in range(4)))
    fake.ended.update(fake.log)
    assert run.advance()
    assert [line[-1] for line in fake.log[4:]] == ["0", "1", "2", "3"]


def test_every_band_has_tags_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "n_tags", lambda: 2 * N_BANDS)
    _, fake = begin(monkeypatch, 64, *(Send(1, out(k, k + 1), k) for k in range(3)), band=3)
    assert fake.log == [
        f"send {what} peer 1 tag {tag}" for what, tag in (("a", 6), ("b", 7), ("c", 6))
    ]


def test_signals_are_heard_while_nothing_comes() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    comm = MPI.Intracomm(MPI.COMM_SELF.Dup())
    transport = MPITransport(comm)
    program = dataflow((Recv(0, out(0, 1), 0),))
    run = begin_compiled(program, transport, ByteMemory(memoryview(bytearray(1))))
    assert run is not None
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            run.run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    comm.Send(bytearray(1), 0, transport.first_tag)
    run.run()
    run.check()
    comm.Free()


@pytest.mark.parametrize("source_first", [True, False])
def test_operands_keep_their_order(engine: str, source_first: bool) -> None:
    op, matrix = MPI.Op.Create(matrix_product, commute=False), MPI.INT64_T.Create_contiguous(4)
    matrix.Commit()
    a, b = np.random.default_rng(5).integers(0, 9, (2, 3, 2, 2))
    ours = b.copy()
    flow = dataflow((Reduce(Chunk("input", 0, 3), Chunk("output", 0, 3), source_first),))
    memory = ElementMemory(memoryview(ours).cast("B"), memoryview(a).cast("B"), flow, matrix, op)
    run_program(flow, MPITransport(MPI.COMM_SELF), memory)
    assert (ours == (a @ b if source_first else b @ a)).all()
    matrix.Free()
    op.Free()


def test_what_is_sent_is_counted_at_the_end(world: MPI.Intracomm, engine: str) -> None:
    comm = MPI.Intracomm(world.Dup())
    transport = CountingTransport(MPITransport(comm))
    n_ranks, rank = world.Get_size(), world.Get_rank()
    right, left = (rank + 1) % n_ranks, (rank - 1) % n_ranks
    ops = (Send(right, out(0, 5), 0), Send(right, out(0, 2), 1))
    into = (Recv(left, out(8, 13), 0), Recv(left, out(13, 15), 1))
    run_program(dataflow((*ops, *into)), transport, ByteMemory(memoryview(bytearray(16))))
    assert transport.sent.rows(rank) == [(rank, right, 2, 7)]
    comm.Free()
