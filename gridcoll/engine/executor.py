"""Runs one rank's program: starts ready ops, tests transfers for completion, never blocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from gridcoll.constants import ANNOUNCED_BYTES, RECEIVES_POSTED
from gridcoll.engine.memory import Placement
from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import Dataflow, without_data
from gridcoll.plan.ops import Chunk, Copy, Recv, Reduce, Send

IDLE_POLLS = 100
"""More receives are posted after this many polls in which no transfer ended."""


class Request(Protocol):
    """A transfer in progress."""

    def Test(self) -> bool: ...


class Transport(Protocol):
    """Carries messages: over MPI, or through a queue in the reference runner."""

    def isend(self, view: Any, peer: int, tag: int) -> Request: ...
    def irecv(self, view: Any, peer: int, tag: int) -> Request: ...

    def test_some(self, requests: list[Request]) -> Sequence[int]:
        """Return the positions of requests that ended, in any order; each is reported once.

        Raises `TransferError` with these positions if some of them failed.
        """


class Run(Protocol):
    """One rank's share of a call, in progress."""

    @property
    def done(self) -> bool: ...
    def check(self) -> None: ...
    def advance(self) -> bool: ...


class TransferError(Exception):
    """Some transfers failed.

    ``ended`` are the positions of all that ended, ``failed`` of those that failed, by default the
    same; ``cause`` is the error to raise.
    """

    def __init__(
        self, ended: Sequence[int], cause: Exception, failed: Sequence[int] | None = None
    ) -> None:
        super().__init__(ended, cause)
        self.ended, self.cause = ended, cause
        self.failed = ended if failed is None else failed


class Memory(Protocol):
    """The buffers of one call."""

    def view(self, chunk: Chunk) -> Any:
        """Return ``chunk`` as a buffer for the transport."""

    def place(self, flow: Dataflow) -> Placement | None:
        """Return the addresses of the buffers of ``flow``; None if a chunk is not contiguous."""

    def copy(self, source: Chunk, into: Chunk) -> None: ...
    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None: ...


Trace = Callable[[int, str], None]
"""Called with an op's index and ``"start"`` or ``"end"``."""


class Executor:
    """The run of one program over one set of buffers.

    Ready ops start when they are due by ``clock`` (seconds); ops due at the same time start in
    program order. Receives are posted ahead, in the order in which their messages are matched: at
    most ``window`` per lane (a source and a stream), and more once nothing ended for `IDLE_POLLS`
    polls. If a send that is ready at the start is long, ready sends start before any receive is
    posted: see `ANNOUNCED_BYTES`. Only the oldest transfer of each lane is tested, for all lanes in
    one call. This bounds the cost of a poll by the number of lanes, and MPI checks its network once
    per poll.

    After an op fails (a message is longer than its receive buffer), the run continues: otherwise
    pending transfers could write into freed buffers or be matched by later calls. The ops that need
    the result are marked as spoilt. Instead of spoilt data an empty message is sent, which fails at
    its receiver: so all ranks that need the data raise the same error.
    """

    def __init__(
        self,
        flow: Dataflow,
        transport: Transport,
        memory: Memory,
        window: int = RECEIVES_POSTED,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program = flow.program
        self._releases = flow.releases
        self._lane_of = flow.lane_of
        self._tags = flow.tags
        self._n_waits = list(flow.n_waits)
        self._transport = transport
        self._memory = memory
        self._window = self._window_step = window
        self._n_idle = 0
        self._clock, self._began_s = clock, clock()
        self._trace = trace
        self._n_left = len(flow.program)
        self._failure: Exception | None = None
        self._spoilt: set[int] = set()  # ops that failed or depend on failed ops
        self._ready: list[tuple[int, int]] = []  # heap of local ops and sends, by due time
        for index in flow.ready:
            self._push(index)
        self._to_post = [deque(lane) for lane in flow.receives]
        self._behind: list[deque[tuple[int, Request]]] = [deque() for _ in flow.receives]
        self._has_head = [False] * len(flow.receives)
        # The oldest transfer of each lane that has any: its request and its op.
        self._heads: list[Request] = []
        self._head_ops: list[int] = []
        if any(map(self._is_announced, flow.ready)):
            self._start_ready()
        for lane, receives in enumerate(flow.receives):
            if receives:
                self._post(lane)
        self._start_ready()

    @property
    def done(self) -> bool:
        """Whether every op is complete."""
        return not self._n_left

    def check(self) -> None:
        """Raise the error of the first failed transfer, if any. Call this when `done`."""
        if self._failure is not None:
            raise self._failure

    def advance(self) -> bool:
        """Test pending transfers and start ready ops; return whether any transfer ended."""
        heads = self._heads
        try:
            ended = self._transport.test_some(heads) if heads else ()
        except TransferError as error:
            ended, self._failure = error.ended, self._failure or error.cause
            self._spoilt.update(self._head_ops[place] for place in error.failed)
        if not ended:
            self._start_ready()  # ops may have become due
            self._n_idle += 1
            if self._n_idle >= IDLE_POLLS:
                self._widen()
            return False
        self._n_idle = 0
        # From the last position down: the request that fills a freed place was handled already.
        for place in sorted(ended, reverse=True):
            index = self._head_ops[place]
            lane = self._lane_of[index]
            if self._behind[lane]:
                self._head_ops[place], heads[place] = self._behind[lane].popleft()
            else:
                self._has_head[lane] = False
                last_op, last = self._head_ops.pop(), heads.pop()
                if place < len(heads):
                    self._head_ops[place], heads[place] = last_op, last
            self._complete(index)
            self._post(lane)
        self._start_ready()
        return True

    def _widen(self) -> None:
        """Post more receives.

        A peer may have sent more early messages than its MPI library buffers (Intel MPI: 64 over
        TCP). The message that this rank waits for would then be stuck behind them for ever.
        """
        self._n_idle = 0
        self._window += self._window_step
        for lane, receives in enumerate(self._to_post):
            if receives:
                self._post(lane)
        self._start_ready()

    def _enter(self, lane: int, index: int, request: Request) -> None:
        """Add a started transfer to its lane."""
        if self._has_head[lane]:
            self._behind[lane].append((index, request))
        else:
            self._has_head[lane] = True
            self._heads.append(request)
            self._head_ops.append(index)

    def _post(self, lane: int) -> None:
        """Post as many receives of ``lane`` as the window and free buffers allow."""
        to_post, behind = self._to_post[lane], self._behind[lane]
        while (
            to_post
            and not self._n_waits[to_post[0]]
            and len(behind) + self._has_head[lane] < self._window
        ):
            index = to_post.popleft()
            op = self._program[index]
            if not isinstance(op, Recv):
                raise PlanError(f"op {index} ({op}) is queued as a receive")
            if self._trace:
                self._trace(index, "start")
            view, tag = self._memory.view(op.chunk), self._tags[index]
            try:
                request = self._transport.irecv(view, op.peer, tag)
            except Exception as error:
                self._fail(index, error)
            else:
                self._enter(lane, index, request)

    def _is_announced(self, index: int) -> bool:
        op = self._program[index]
        return isinstance(op, Send) and self._memory.view(op.chunk).nbytes >= ANNOUNCED_BYTES

    def _push(self, index: int) -> None:
        op = self._program[index]
        heappush(self._ready, (op.due_us if isinstance(op, Send) else 0, index))

    def _too_early(self) -> bool:
        """Whether the first ready op is not due yet."""
        due_us, _ = self._ready[0]
        return bool(due_us) and self._clock() < self._began_s + due_us * 1e-6

    def _start_ready(self) -> None:
        while self._ready and not self._too_early():
            _, index = heappop(self._ready)
            if self._trace:
                self._trace(index, "start")
            op = self._program[index]
            try:
                if isinstance(op, Send):
                    op = without_data(op) if index in self._spoilt else op
                    view, tag = self._memory.view(op.chunk), self._tags[index]
                    request = self._transport.isend(view, op.peer, tag)
                elif isinstance(op, Reduce):
                    self._memory.reduce(op.source, op.into, op.source_first)
                elif isinstance(op, Copy):
                    self._memory.copy(op.source, op.into)
            except Exception as error:
                self._fail(index, error)
            else:
                if isinstance(op, Send):
                    self._enter(self._lane_of[index], index, request)
                else:
                    self._complete(index)

    def _fail(self, index: int, error: Exception) -> None:
        """Record that an op failed; the other ops continue."""
        self._failure = self._failure or error
        self._spoilt.add(index)
        self._complete(index)

    def _complete(self, index: int) -> None:
        self._n_left -= 1
        if self._trace:
            self._trace(index, "end")
        if index in self._spoilt:
            self._spoilt.update(self._releases[index])
        for later in self._releases[index]:
            self._n_waits[later] -= 1
            if not self._n_waits[later]:
                if isinstance(self._program[later], Recv):
                    self._post(self._lane_of[later])
                else:
                    self._push(later)
