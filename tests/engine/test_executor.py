from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct, field

from gridcoll.constants import ANNOUNCED_BYTES, RECEIVES_POSTED
from gridcoll.engine.executor import Executor, TransferError
from gridcoll.engine.memory import ByteMemory
from gridcoll.errors import PlanError
from gridcoll.plan import Chunk, Copy, Op, Recv, Reduce, Send, dataflow


class FakeRequest(Struct):
    done: bool = False
    n_tests: int = 0

    def Test(self) -> bool:
        self.n_tests += 1
        return self.done


class FakeTransport(Struct):
    """Notes what is started; the test says when it ends."""

    log: list[str] = field(default_factory=list)
    sent: dict[tuple[int, int], FakeRequest] = field(default_factory=dict)
    posted: dict[tuple[int, int], FakeRequest] = field(default_factory=dict)

    def isend(self, view: Any, peer: int, tag: int) -> FakeRequest:
        self.log.append(f"send {bytes(view).decode()} to {peer} tag {tag}")
        return self.sent.setdefault((peer, tag), FakeRequest())

    def irecv(self, view: Any, peer: int, tag: int) -> FakeRequest:
        self.log.append(f"recv {len(view)} from {peer} tag {tag}")
        return self.posted.setdefault((peer, tag), FakeRequest())

    def test_some(self, requests: list[Any]) -> list[int]:
        return [place for place, request in enumerate(requests) if request.Test()]


def out(start: int, stop: int) -> Chunk:
    return Chunk("output", start, stop)


def forward(n: int) -> tuple[Op, ...]:
    """``n`` segments of one byte from rank 0 on to rank 2."""
    return tuple(
        op for k in range(n) for op in (Recv(0, out(k, k + 1), k), Send(2, out(k, k + 1), k))
    )


def executor(
    program: tuple[Op, ...],
    window: int = RECEIVES_POSTED,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Executor, Any]:
    transport = FakeTransport()
    memory = ByteMemory(memoryview(bytearray(b"abcdefghijklmnopqrstuvwxyz")))
    return Executor(dataflow(program), transport, memory, window, clock=clock), transport


def test_nothing_starts_before_it_is_due() -> None:
    """Whether something ends meanwhile or not; nothing else waits for it."""
    now_s = 7.0
    program = (
        *(Send(1, out(0, 1), 0), Send(1, out(1, 2), 1, due_us=1000)),
        *(Copy(out(20, 21), out(2, 3)), Send(1, out(2, 3), 2), Recv(2, out(4, 5), 0)),
    )
    engine, transport = executor(program, clock=lambda: now_s)
    begun = ["recv 1 from 2 tag 0", "send a to 1 tag 0", "send u to 1 tag 2"]
    assert transport.log == begun
    now_s += 0.9e-3
    assert not engine.advance()
    transport.posted[2, 0].done = True
    assert engine.advance()
    assert transport.log == begun
    now_s += 0.2e-3
    assert not engine.advance()  # no transfer ended
    assert transport.log[3:] == ["send b to 1 tag 1"]
    for request in transport.sent.values():
        request.done = True
    while not engine.done:
        assert engine.advance()


def test_what_is_due_first_starts_first() -> None:
    now_s = 7.0
    dues_us = (3000, 1000, 2000, 1000, 0)
    program = tuple(Send(1, out(k, k + 1), k, due_us=due) for k, due in enumerate(dues_us))
    engine, transport = executor(program, clock=lambda: now_s)
    for passed_ms, begun in ((0.5, "4"), (1.5, "413"), (3.5, "41320")):
        now_s = 7.0 + 1e-3 * passed_ms
        engine.advance()
        assert [line[-1] for line in transport.log] == list(begun)


@pytest.mark.parametrize("window", [1, 3, 64])
def test_receives_are_posted_ahead_but_never_more_than_the_window(window: int) -> None:
    engine, transport = executor(forward(10), window)
    n_received = 0
    while not engine.done:
        pending = [tag for (_, tag), r in transport.posted.items() if not r.done]
        assert pending == list(range(n_received, min(n_received + window, 10)))
        if pending:
            transport.posted[0, pending[0]].done = True
            n_received += 1
        for request in transport.sent.values():
            request.done = True
        assert engine.advance()
    assert len(transport.sent) == len(transport.posted) == 10


def test_the_window_is_per_source() -> None:
    program = (
        *(Recv(0, out(k, k + 1), k) for k in range(3)),
        *(Recv(1, out(k + 9, k + 10), k) for k in range(3)),
    )
    _, transport = executor(program, window=2)
    assert transport.log == [
        "recv 1 from 0 tag 0",
        "recv 1 from 0 tag 1",
        "recv 1 from 1 tag 0",
        "recv 1 from 1 tag 1",
    ]


@pytest.mark.parametrize(
    ("n_bytes", "order"),
    [(ANNOUNCED_BYTES, ["send", "recv"]), (ANNOUNCED_BYTES - 1, ["recv", "send"])],
)
def test_long_messages_are_announced_before_receives_are_posted(n_bytes, order) -> None:
    program = (Recv(1, out(n_bytes, 2 * n_bytes), 0), Send(1, out(0, n_bytes), 0))
    transport = FakeTransport()
    Executor(dataflow(program), transport, ByteMemory(memoryview(bytearray(2 * n_bytes))))
    assert [line.split()[0] for line in transport.log] == order


def test_a_segment_goes_on_as_soon_as_it_is_there_and_not_before() -> None:
    engine, transport = executor(forward(2))
    assert not transport.sent
    assert not engine.advance()
    transport.posted[0, 0].done = True
    assert engine.advance()
    assert set(transport.sent) == {(2, 0)}
    assert transport.log[-1] == "send a to 2 tag 0"


def test_ready_sends_start_in_program_order() -> None:
    program = (Send(3, out(2, 3), 0), Send(1, out(0, 1), 0), Send(2, out(1, 2), 0))
    _, transport = executor(program)
    assert [line.split()[3] for line in transport.log] == ["3", "1", "2"]


def test_only_the_oldest_transfer_of_a_peer_is_tested() -> None:
    """The cost of a poll is bounded by the number of peers, not of segments."""
    engine, transport = executor(tuple(Send(p, out(k, k + 1), k) for p in (1, 2) for k in range(5)))
    engine.advance()
    assert {key: r.n_tests for key, r in transport.sent.items()} == {
        (peer, k): int(k == 0) for peer in (1, 2) for k in range(5)
    }


def test_a_receive_waits_until_its_buffer_is_free() -> None:
    engine, transport = executor((Send(1, out(0, 4), 0), Recv(2, out(2, 6), 0)))
    assert not transport.posted
    transport.sent[1, 0].done = True
    engine.advance()
    assert set(transport.posted) == {(2, 0)}


def test_local_ops_run_between_their_neighbours() -> None:
    transport = FakeTransport()
    memory = ByteMemory(memoryview(bytearray(4)), memoryview(b"abcd"), memoryview(bytearray(4)))
    program = (
        Copy(Chunk("input", 0, 4), Chunk("scratch", 0, 4)),
        Copy(Chunk("scratch", 0, 4), out(0, 4)),
        Send(1, out(0, 4), 0),
    )
    Executor(dataflow(program), transport, memory)
    assert transport.log == ["send abcd to 1 tag 0"]


def test_trace_tells_starts_and_ends() -> None:
    seen: list[tuple[int, str]] = []
    transport = FakeTransport()
    memory = ByteMemory(memoryview(bytearray(4)))
    program = (Recv(0, out(0, 2), 0), Copy(out(0, 2), out(2, 4)), Send(1, out(2, 4), 0))
    engine = Executor(
        dataflow(program), transport, memory, trace=lambda index, what: seen.append((index, what))
    )
    transport.posted[0, 0].done = True
    engine.advance()
    transport.sent[1, 0].done = True
    engine.advance()
    assert seen == [(i, what) for i in range(3) for what in ("start", "end")]
    assert engine.done


def test_nothing_to_do_is_done() -> None:
    engine, _ = executor(())
    assert engine.done
    assert not engine.advance()


class TestByteMemory:
    def test_views_are_the_users_memory(self) -> None:
        data = bytearray(b"abcdef")
        memory = ByteMemory(memoryview(data))
        memory.view(out(1, 3))[:] = b"XY"
        memory.copy(out(1, 3), out(4, 6))
        assert data == b"aXYdXY"

    def test_a_chunk_beyond_the_buffer(self) -> None:
        memory = ByteMemory(memoryview(bytearray(4)))
        with pytest.raises(PlanError, match=r"output\[2:5\]: the call's output buffer is 4 bytes"):
            memory.view(out(2, 5))
        with pytest.raises(PlanError, match=r"scratch\[0:1\]: the call's scratch buffer is none"):
            memory.view(Chunk("scratch", 0, 1))

    def test_bytes_have_no_operation(self) -> None:
        memory = ByteMemory(memoryview(bytearray(4)))
        executor = Executor(dataflow((Reduce(out(0, 1), out(1, 2)),)), FakeTransport(), memory)
        assert executor.done
        with pytest.raises(PlanError, match=r"reduce output\[0:1\] into output\[1:2\]"):
            executor.check()


@pytest.mark.parametrize("method", ["isend", "irecv"])
def test_what_cannot_even_be_started_stops_nothing(method: str) -> None:
    class Refusing(FakeTransport):
        pass

    def refuse(self: FakeTransport, view: Any, peer: int, tag: int) -> FakeRequest:
        if tag == 1:
            raise OSError(f"no {method}")
        return getattr(FakeTransport, method)(self, view, peer, tag)  # type: ignore[no-any-return]

    setattr(Refusing, method, refuse)
    transport = Refusing()
    engine = Executor(dataflow(forward(3)), transport, ByteMemory(memoryview(bytearray(9))))
    while not engine.done:
        for request in (*transport.sent.values(), *transport.posted.values()):
            request.done = True
        engine.advance()
    assert len(transport.log) == 5
    with pytest.raises(OSError, match=f"no {method}"):
        engine.check()


def test_streams_of_one_source_do_not_wait_for_each_other() -> None:
    """Each stream has its own window, and its oldest receive is tested for itself."""
    program = tuple(Recv(0, out(k, k + 1), k, stream=k % 2) for k in range(6))
    engine, transport = executor(program, window=2)
    assert [tag for _, tag in transport.posted] == [0, 2, 1, 3]
    transport.posted[0, 1].done = True  # stream 1 goes on while stream 0 has nothing
    assert engine.advance()
    assert [tag for _, tag in transport.posted] == [0, 2, 1, 3, 5]


def test_a_transfer_that_fails_stops_nothing() -> None:
    """The rest goes on; the first failure is raised at the end, when nothing is under way."""

    class Failing(FakeTransport):
        def test_some(self, requests: list[Any]) -> list[int]:
            ended = super().test_some(requests)
            if self.posted[0, 0] in requests and self.posted[0, 0].done:
                raise TransferError(ended, ValueError("too long"))
            return ended

    transport = Failing()
    program = (*forward(2), Recv(1, out(5, 6), 0))
    memory = ByteMemory(memoryview(bytearray(b"abcdefghijklmnopqrstuvwxyz")))
    engine = Executor(dataflow(program), transport, memory)
    transport.posted[0, 0].done = True
    assert engine.advance()
    assert set(transport.sent) == {(2, 0)}
    assert transport.log[-1] == "send  to 2 tag 0"  # with nothing in it
    for request in (*transport.posted.values(), *transport.sent.values()):
        request.done = True
    while not engine.done:
        assert engine.advance()
        for request in transport.sent.values():
            request.done = True
    with pytest.raises(ValueError, match="too long"):
        engine.check()
