"""Both engines do the same: the one in C, which all other tests run on, and the one in Python."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.engine import compiled, runner
from gridcoll.engine.compiled import LIBRARY, CompiledRun, begin_compiled
from gridcoll.engine.counting import CountingTransport, Sent
from gridcoll.engine.executor import Executor
from gridcoll.engine.memory import ByteMemory, ElementMemory
from gridcoll.engine.runner import begin_program, run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import Hold
from gridcoll.errors import PlanError, UsageError
from gridcoll.plan import Chunk, Copy, Op, Recv, Reduce, Send, dataflow
from gridcoll.plan.allreduce.pieces import Piece
from gridcoll.plan.allreduce.rank_order import plan_in_rank_order
from gridcoll.plan.dataflow import without_data
from gridcoll.topology import Grid
from tests.mpi.support import TESTSOME_CRASHES, grid_comm, layouts, pattern

ENGINES = ("compiled", "python")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs what follows on one of the engines."""
    if request.param == "python":
        monkeypatch.setattr(runner, "begin_compiled", lambda *args: None)
    return str(request.param)


def out(start: int, stop: int) -> Chunk:
    return Chunk("output", start, stop)


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


def matrix_product(left: MPI.buffer, right: MPI.buffer, datatype: MPI.Datatype) -> None:
    """Products of 2 x 2 matrices: order matters, and Python is called back."""
    a, b = (np.frombuffer(each, np.int64).reshape(-1, 2, 2) for each in (left, right))
    b[:] = a @ b


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("n_tags", range(300, 600, 60))
def test_plans_with_more_tags_than_mpi_has(world: MPI.Intracomm, engine: str, n_tags: int) -> None:
    """What goes up early must not be received in the place of what comes down."""
    n_units, rank, n = 1 << 14, world.Get_rank(), world.Get_size()
    bounds = [n_units * k // n for k in range(n + 1)]
    pieces = [Piece(bounds[k], bounds[k + 1], (k,)) for k in range(n)]
    plan = plan_in_rank_order(Grid.from_labels([0] * n), n_units, pieces, 32)
    flow = dataflow(plan.programs[rank])
    assert max(op.tag for op in flow.program if isinstance(op, Send)) > n_tags > max(flow.tags)
    mine = pattern(n_units, "i8", rank)
    result = np.empty_like(mine)
    memory = ElementMemory(result.data.cast("B"), mine.data.cast("B"), flow, MPI.INT64_T, MPI.SUM)
    run_program(flow, MPITransport(world, range(n_tags)), memory)
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
    memory = ByteMemory(memoryview(data))
    run_program(dataflow(program), MPITransport(MPI.COMM_SELF), memory)
    assert data == bytes(range(n)) * 2


def test_what_is_due_in_days_is_not_sent(engine: str) -> None:
    comm, data = MPI.COMM_SELF.Dup(), bytearray(b"abc")
    program = (
        *(Send(0, out(0, 1), 0), Recv(0, out(2, 3), 0)),
        Send(0, out(1, 2), 1, due_us=10**12),
    )
    run = begin_program(dataflow(program), MPITransport(comm), ByteMemory(memoryview(data)))
    while data != b"aba":
        run.advance()
    for _ in range(1000):
        run.advance()
        assert not comm.Iprobe()
    assert not run.done
    comm.Free()


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


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("size", [2, 40_000])
def test_who_needs_what_a_rank_has_not_fails_as_well(
    world: MPI.Intracomm, engine: str, size: int
) -> None:
    """Through a rank that hands it on; what comes another way arrives."""
    comm, rank = MPI.Intracomm(world.Dup()), world.Get_rank()
    first, second = out(0, size), out(size, 2 * size)
    programs: dict[int, tuple[Op, ...]] = {
        0: (without_data(Send(1, first, 0)), Send(2, second, 0)),
        1: (Recv(0, first, 0), Copy(first, second), Send(2, second, 0)),
        2: (Recv(1, first, 0), Recv(0, second, 0)),
    }
    flow = dataflow(programs.get(rank, ()))
    data = bytearray(b"x" * 2 * size if rank == 0 else 2 * size)
    memory = ByteMemory(memoryview(data))
    if rank in (1, 2):
        with pytest.raises(MPI.Exception) as caught:
            run_program(flow, MPITransport(comm), memory)
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        assert rank == 1 or data[size:] == b"x" * size
    else:
        run_program(flow, MPITransport(comm), memory)
    comm.Barrier()
    assert not comm.Iprobe()
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


def test_a_library_of_another_machine_or_version_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One rank must not raise where others run."""
    found = compiled._library.__wrapped__
    foreign = tmp_path / "_compiled.so"
    foreign.write_bytes(b"\x7fELF of another machine")
    for change, said in (
        ((compiled, "LIBRARY", foreign), "install gridcoll again"),
        ((compiled, "_INTERFACE", -5), "built from another version"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            caplog.clear()
            assert found() is None
            assert said in caplog.text
            patch.setenv("GRIDCOLL_ENGINE", "compiled")
            with pytest.raises(UsageError, match=said):
                found()


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Calls something from a signal's handler, every 20 ms, while transfers are under way.

    It never hits the test itself, which would end pytest, however late a rank gets its core.
    """
    back = Hold.back

    def under_way(step: Callable[..., object], *args: object) -> object:
        return step(*args)

    def ring(step: Callable[[], object]) -> None:
        def heard(_: int, frame: FrameType | None) -> None:
            if frame and frame.f_code is under_way.__code__:
                step()

        signal.signal(signal.SIGALRM, heard)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

    monkeypatch.setattr(Hold, "back", lambda hold, *step: back(hold, under_way, *step))
    before = signal.getsignal(signal.SIGALRM)
    yield ring
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_call_ends_first(alarm: Callable[..., None]) -> None:
    """Signals are heard while nothing comes; a receive must not outlive its buffer."""
    comm = MPI.Intracomm(MPI.COMM_SELF.Dup())
    transport, got, n_rings = MPITransport(comm), bytearray(1), count(1)

    def interrupt() -> None:
        ring = next(n_rings)
        if ring == 1:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0)
        if ring == 2:  # a third may be pending, and a second message would stay behind
            comm.Send(b"x", 0, transport.first_tag)

    alarm(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_program(dataflow((Recv(0, out(0, 1), 0),)), transport, ByteMemory(memoryview(got)))
    assert got == b"x"
    comm.Free()


def test_who_interrupts_twice_gets_through(
    alarm: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way then stays where it is for ever."""
    abandoned: list[object] = []
    monkeypatch.setattr(Hold, "abandoned", abandoned)
    comm = MPI.Intracomm(MPI.COMM_SELF.Dup())
    transport, got, n_rings = MPITransport(comm), bytearray(1), count(1)

    def interrupt() -> None:
        ring = next(n_rings)
        if ring == 2:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if ring <= 2:  # a third may be pending
            raise KeyboardInterrupt

    alarm(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_program(dataflow((Recv(0, out(0, 1), 0),)), transport, ByteMemory(memoryview(got)))
    [run] = abandoned
    assert next(n_rings) >= 3
    assert isinstance(run, CompiledRun)
    comm.Send(b"x", 0, transport.first_tag)
    while not run.done:
        run.advance()
    assert got == b"x"
    comm.Free()


@pytest.mark.parametrize("n_interrupts", [1, 2])
def test_the_engine_in_python_is_interrupted_while_it_waits(
    monkeypatch: pytest.MonkeyPatch, n_interrupts: int
) -> None:
    """Once, and the call ends first; twice, and what is under way stays for ever."""
    comm = MPI.Intracomm(MPI.COMM_SELF.Dup())
    transport, got, n_waits = MPITransport(comm), bytearray(1), count()
    abandoned: list[object] = []

    class Wait:
        def reset(self) -> None:
            pass

        def __call__(self) -> None:
            n_before = next(n_waits)
            if n_before < n_interrupts:
                raise KeyboardInterrupt
            if n_before == n_interrupts:  # a second one would reach the next test's communicator
                comm.Send(b"x", 0, transport.first_tag)

    monkeypatch.setattr(Hold, "abandoned", abandoned)
    monkeypatch.setattr(runner, "PoliteWait", Wait)
    monkeypatch.setattr(runner, "begin_compiled", lambda *args: None)
    flow, memory = dataflow((Recv(0, out(0, 1), 0),)), ByteMemory(memoryview(got))
    with pytest.raises(KeyboardInterrupt):
        run_program(flow, transport, memory)
    assert (got == b"x") == (n_interrupts == 1)
    for run in abandoned:
        assert isinstance(run, Executor)
        comm.Send(b"x", 0, transport.first_tag)
        while not run.done:
            run.advance()
    assert (got, len(abandoned)) == (b"x", n_interrupts - 1)
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
    transport = CountingTransport(MPITransport(comm), Sent(comm.Get_size()))
    n_ranks, rank = world.Get_size(), world.Get_rank()
    right, left = (rank + 1) % n_ranks, (rank - 1) % n_ranks
    ops = (Send(right, out(0, 5), 0), Send(right, out(0, 2), 1))
    into = (Recv(left, out(8, 13), 0), Recv(left, out(13, 15), 1))
    run_program(dataflow((*ops, *into)), transport, ByteMemory(memoryview(bytearray(16))))
    # What a rank sends to itself crosses nothing.
    assert transport.sent.rows(rank) == ([] if right == rank else [(rank, right, 2, 7)])
    comm.Free()
