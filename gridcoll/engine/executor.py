"""Runs one rank's program: starts what is ready, notices what is done, never blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import Dataflow
from gridcoll.plan.ops import Chunk, Copy, Recv, Reduce, Send

DEFAULT_WINDOW = 64
"""Receives kept posted per channel: megabytes in flight over a WAN at 16 KiB segments and more."""


class Request(Protocol):
    """A transfer under way."""

    def Test(self) -> bool: ...


class Transport(Protocol):
    """Where messages go: MPI, or a queue in the reference runner."""

    def isend(self, view: Any, peer: int, tag: int) -> Request: ...
    def irecv(self, view: Any, peer: int, tag: int) -> Request: ...


class Memory(Protocol):
    """The buffers of one call."""

    def view(self, chunk: Chunk) -> Any:
        """``chunk`` as something the transport takes."""

    def copy(self, source: Chunk, into: Chunk) -> None: ...
    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None: ...


Channel = tuple[int, int]
"""Source and stream."""

Trace = Callable[[int, str], None]
"""Called with an op's index and ``"start"`` or ``"end"``."""


class Executor:
    """The run of one program over one set of buffers.

    Ready ops start in program order. Receives are posted ahead, at most ``window`` per channel (a
    source and a stream) and always in the order in which their messages are matched; of the
    transfers of one channel only the oldest is tested, which bounds the cost of a poll by the
    number of channels.
    """

    def __init__(
        self,
        flow: Dataflow,
        transport: Transport,
        memory: Memory,
        window: int = DEFAULT_WINDOW,
        trace: Trace | None = None,
    ) -> None:
        self._program = flow.program
        self._releases = flow.releases
        self._n_waits = list(flow.n_waits)
        self._transport = transport
        self._memory = memory
        self._window = window
        self._trace = trace
        self._n_left = len(flow.program)
        self._ready: list[int] = []  # heap of local ops and sends
        self._to_post: dict[Channel, deque[int]] = {}  # receives in program order
        self._postable = [False] * len(flow.program)
        self._receiving: dict[Channel, deque[tuple[int, Request]]] = {}
        self._sending: dict[int, deque[tuple[int, Request]]] = {}
        for index, op in enumerate(flow.program):
            if isinstance(op, Recv):
                self._to_post.setdefault((op.peer, op.stream), deque()).append(index)
                self._receiving.setdefault((op.peer, op.stream), deque())
                self._postable[index] = not self._n_waits[index]
            elif not self._n_waits[index]:
                self._ready.append(index)
        heapify(self._ready)
        for channel in self._to_post:
            self._post(channel)
        self._start_ready()

    @property
    def done(self) -> bool:
        """Whether every op is complete."""
        return not self._n_left

    def advance(self) -> bool:
        """Test what is under way and start what became ready; returns whether anything ended."""
        progressed = False
        for channel, requests in self._receiving.items():
            while requests and requests[0][1].Test():
                self._complete(requests.popleft()[0])
                progressed = True
                self._post(channel)
        for requests in self._sending.values():
            while requests and requests[0][1].Test():
                self._complete(requests.popleft()[0])
                progressed = True
        self._start_ready()
        return progressed

    def _post(self, channel: Channel) -> None:
        """Post receives of ``channel`` as far as the window and their buffers allow."""
        to_post, receiving = self._to_post[channel], self._receiving[channel]
        while to_post and len(receiving) < self._window and self._postable[to_post[0]]:
            index = to_post.popleft()
            op = self._program[index]
            if not isinstance(op, Recv):
                raise PlanError(f"op {index} ({op}) is queued as a receive")
            request = self._transport.irecv(self._memory.view(op.chunk), op.peer, op.tag)
            receiving.append((index, request))
            if self._trace:
                self._trace(index, "start")

    def _start_ready(self) -> None:
        while self._ready:
            index = heappop(self._ready)
            if self._trace:
                self._trace(index, "start")
            match self._program[index]:
                case Send(peer=peer, chunk=chunk, tag=tag):
                    request = self._transport.isend(self._memory.view(chunk), peer, tag)
                    self._sending.setdefault(peer, deque()).append((index, request))
                case Reduce(source=source, into=into, source_first=source_first):
                    self._memory.reduce(source, into, source_first)
                    self._complete(index)
                case Copy(source=source, into=into):
                    self._memory.copy(source, into)
                    self._complete(index)

    def _complete(self, index: int) -> None:
        self._n_left -= 1
        if self._trace:
            self._trace(index, "end")
        for later in self._releases[index]:
            self._n_waits[later] -= 1
            if not self._n_waits[later]:
                op = self._program[later]
                if isinstance(op, Recv):
                    self._postable[later] = True
                    self._post((op.peer, op.stream))
                else:
                    heappush(self._ready, later)
