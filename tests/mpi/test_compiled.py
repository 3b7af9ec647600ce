"""The engine in C over an MPI whose messages end when the test says so."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from mpi4py import MPI
from msgspec import Struct, field

from gridcoll.constants import ANNOUNCED_BYTES
from gridcoll.engine import compiled
from gridcoll.engine.compiled import LIBRARY, CompiledRun, begin_compiled, prepare
from gridcoll.engine.executor import IDLE_POLLS
from gridcoll.engine.memory import ByteMemory
from gridcoll.engine.transport import MPITransport
from gridcoll.plan import Chunk, Copy, Op, Recv, Send, dataflow

_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_TRANSFER = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER)
_INTS = ctypes.POINTER(_INT)
_TEST_SOME = ctypes.CFUNCTYPE(_INT, _INT, _INTS, _INTS, _INTS, _POINTER)
_GET_COUNT = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, _INTS)


class FakeMPI(Struct):
    """An MPI whose handles are ints: notes what is started."""

    log: list[str] = field(default_factory=list)
    tested: list[list[str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    is_over: Callable[[int], bool] = lambda n_polls: False

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
            if self.is_over(len(self.tested)):
                self.ended.update(self.log)
            over = [k for k, each in enumerate(mine) if each in self.ended]
            n_ended[0] = len(over)
            for k, place in enumerate(reversed(over)):
                places[k] = place
            return 0

        yield start("send")
        yield start("recv")

        def get_count(status: int, _: int, n_bytes) -> int:  # type: ignore[no-untyped-def]
            n_bytes[0] = 1
            return 0

        yield _TEST_SOME(test_some)
        yield _GET_COUNT(get_count)


def begin(
    monkeypatch: pytest.MonkeyPatch,
    window: int,
    *ops: Op,
    tags: range | None = None,
    ranks: Sequence[int] | None = None,
    data: bytes = b"abcdefghijklmnopqrstuvwxyz",
) -> tuple[CompiledRun, FakeMPI]:
    """A run over a fake MPI, on a buffer that holds ``data``."""
    fake, library = FakeMPI(), compiled._Library(LIBRARY)
    kept = list(fake.functions())
    pointers = [ctypes.cast(each, _POINTER) for each in kept]
    library.mpi = compiled._MPI(*pointers, None, None, 1, -1, 4, 4, -32766, 14)
    monkeypatch.setattr(compiled, "_library", lambda: library)
    memory = ByteMemory(memoryview(bytearray(data)))
    run = begin_compiled(dataflow(ops), MPITransport(MPI.COMM_SELF, tags, ranks), memory, window)
    assert run is not None
    run._keep_alive = (*run._keep_alive, *kept)
    return run, fake


def out(start: int, stop: int) -> Chunk:
    return Chunk("output", start, stop)


def forward(n: int) -> tuple[Op, ...]:
    """``n`` segments of one byte from rank 0 on to rank 2."""
    return tuple(
        op for k in range(n) for op in (Recv(0, out(k, k + 1), k), Send(2, out(k, k + 1), k))
    )


def test_nothing_starts_before_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else waits for it."""

    def program(due_us: int) -> tuple[Op, ...]:
        return (
            *(Send(1, out(0, 1), 0), Send(1, out(1, 2), 1, due_us=due_us)),
            *(Send(1, out(2, 3), 2), Recv(2, out(4, 5), 0)),
        )

    run, fake = begin(monkeypatch, 64, *program(10**12))
    for _ in range(1000):
        assert not run.advance()
    begun = ["recv 1 peer 2 tag 0", "send a peer 1 tag 0", "send c peer 1 tag 2"]
    assert fake.log == begun
    run, fake = begin(monkeypatch, 64, *program(1000))
    while len(fake.log) < 4:
        assert not run.advance()
    assert fake.log == [*begun, "send b peer 1 tag 1"]


def test_what_is_due_first_starts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    dues_us = (3000, 1000, 2000, 1000, 0)
    program = tuple(Send(1, out(k, k + 1), k, due_us=due) for k, due in enumerate(dues_us))
    run, fake = begin(monkeypatch, 64, *program)
    while len(fake.log) < len(program):
        assert not run.advance()
    assert [line[-1] for line in fake.log] == list("41320")


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


@pytest.mark.parametrize(
    ("n_bytes", "order"),
    [(ANNOUNCED_BYTES, ["send", "recv"]), (ANNOUNCED_BYTES - 1, ["recv", "send"])],
)
def test_long_messages_are_announced_before_receives_are_posted(
    monkeypatch: pytest.MonkeyPatch, n_bytes: int, order: list[str]
) -> None:
    ops = (Recv(1, out(n_bytes, 2 * n_bytes), 0), Send(1, out(0, n_bytes), 0))
    _, fake = begin(monkeypatch, 64, *ops, data=b"a" * 2 * n_bytes)
    assert [line.split()[0] for line in fake.log] == order


def test_what_becomes_ready_at_once_starts_in_program_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receives = [Recv(peer, out(peer, peer + 1), 0) for peer in range(4)]
    run, fake = begin(monkeypatch, 64, *receives, *(Send(9, out(k, k + 1), k) for k in range(4)))
    fake.ended.update(fake.log)
    assert run.advance()
    assert [line[-1] for line in fake.log[4:]] == ["0", "1", "2", "3"]


def test_tags_and_ranks_are_those_of_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a communicator's part of another one's tags and ranks."""
    sends = [Send(1, out(k, k + 1), k) for k in range(3)]
    _, fake = begin(monkeypatch, 64, *sends, tags=range(6, 8), ranks=[4, 9])
    assert fake.log == [
        f"send {what} peer 9 tag {tag}" for what, tag in (("a", 6), ("b", 7), ("c", 6))
    ]


class Looks(Struct):
    """In place of the process's watch of sockets."""

    descriptor: int
    n: int = 0

    def look(self) -> None:
        self.n += 1


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def waiting_run(
    monkeypatch: pytest.MonkeyPatch, is_over: Callable[[int], bool], watch: int, trust: int = 0
) -> tuple[CompiledRun, FakeMPI, Looks]:
    """A run whose one message is there as soon as ``is_over`` says so of the number of polls."""
    run, fake = begin(monkeypatch, 64, Recv(0, out(0, 1), 0))
    fake.is_over = is_over
    wait, looks = run._library.wait, Looks(watch)
    wait.watch, wait.trust, wait.spin_ns, wait.n_polls = watch, trust, 0, 1
    monkeypatch.setattr(compiled, "watch", lambda: looks)
    return run, fake, looks


def n_sleeps() -> int:
    """How often this thread has given its core away of its own will."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@pytest.mark.parametrize("trust", [0, 6])
def test_what_stays_readable_does_not_keep_a_rank_from_sleeping(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int], trust: int
) -> None:
    """A socket that is not MPI's, which somebody closed at its other end."""
    os.write(pipe[1], b"x")
    run, _, _ = waiting_run(monkeypatch, lambda n_polls: n_polls == 500, pipe[0], trust)
    before = n_sleeps()
    run.run()
    assert n_sleeps() - before > 100  # some are over before they began where many ranks compete


def test_long_waits_take_few_polls_whoever_looks_at_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every pause is a hundredth of the wait so far: 100 for each e-fold, one for every look."""
    monkeypatch.setattr(compiled, "PATIENCE_S", 1e-3)
    ends_s = time.monotonic() + 0.3
    run, fake, _ = waiting_run(monkeypatch, lambda _: time.monotonic() > ends_s, -1)
    run.run()
    assert len(fake.tested) < 100 + 100 * math.log(0.3 / 1e-3) + 0.3 / 1e-3 + 10


def test_a_watch_that_tells_is_trusted_and_one_that_misses_looks_again(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    run, _, looks = waiting_run(monkeypatch, lambda n_polls: n_polls == 3, pipe[0], 2)
    run.run()
    assert (run._library.wait.trust, looks.n) == (0, 1)
    os.write(pipe[1], b"x")
    run, _, looks = waiting_run(monkeypatch, lambda n_polls: n_polls == 3, pipe[0], 2)
    run.run()
    assert (run._library.wait.trust, looks.n) == (3, 0)


def test_a_run_keeps_the_program_that_it_reads() -> None:
    """Two threads may each write one; the flow keeps the last."""
    flow = dataflow((Recv(0, out(0, 1), 0),))
    memory = ByteMemory(memoryview(bytearray(1)))
    prepared = prepare(flow, MPITransport(MPI.COMM_SELF), memory)
    assert prepared is not None
    assert any(each is flow.flat for each in prepared._keep_alive)
