"""The ops of a rank's program, as frozen data: send, receive, reduce and copy, each of a chunk."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from msgspec import Struct

from gridcoll.errors import PlanError

BUFFERS = ("input", "output", "scratch")
"""``input`` is read-only, ``output`` is the caller's result, ``scratch`` is temporary memory.

A broadcast has its message in ``output`` on every rank, including the root.
"""


class Chunk(NamedTuple):
    """Units ``start`` to ``stop`` of one buffer. The plan defines a unit: a byte or an element."""

    buffer: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.buffer}[{self.start}:{self.stop}]"


def _check_chunk(op: object, chunk: Chunk) -> None:
    if chunk.buffer not in BUFFERS or not 0 <= chunk.start <= chunk.stop:
        raise PlanError(f"{op}: {chunk} is not a chunk of one of the buffers {BUFFERS}")


class Send(Struct, frozen=True):
    """Send ``chunk`` to rank ``peer``. ``tag`` numbers the messages from this rank to that peer.

    The send waits for the data of ``chunk``, and for that of ``after`` if given: in a rendezvous,
    the receiver's permission. It starts no sooner than ``due_us`` microseconds after the start of
    the program. Due times pace sends: messages sent at the same time would share the bandwidth, and
    the one over the longest link would not be ahead of the others. Other ops do not wait for that
    time.
    """

    peer: int
    chunk: Chunk
    tag: int
    after: Chunk | None = None
    due_us: int = 0

    def __post_init__(self) -> None:
        _check_chunk(self, self.chunk)
        if self.after is not None:
            _check_chunk(self, self.after)
        if self.due_us < 0:
            raise PlanError(f"{self}: is due before its program begins")

    def __str__(self) -> str:
        after = "" if self.after is None else f" after {self.after}"
        due = f" due {self.due_us} us" if self.due_us else ""
        return f"send {self.chunk} to {self.peer} tag {self.tag}{after}{due}"


class Recv(Struct, frozen=True):
    """Receive into ``chunk`` from rank ``peer``.

    Receives of one ``stream`` from one peer complete in program order. Messages of another stream,
    such as segments of another tree, may overtake them.
    """

    peer: int
    chunk: Chunk
    tag: int
    stream: int = 0

    def __post_init__(self) -> None:
        _check_chunk(self, self.chunk)
        if self.chunk.buffer == "input":
            raise PlanError(f"{self}: the input buffer is only read")

    def __str__(self) -> str:
        stream = f" stream {self.stream}" if self.stream else ""
        return f"recv {self.chunk} from {self.peer} tag {self.tag}{stream}"


class Reduce(Struct, frozen=True):
    """``into = source (op) into`` if ``source_first``, else ``into = into (op) source``."""

    source: Chunk
    into: Chunk
    source_first: bool = True

    def __post_init__(self) -> None:
        _check_local(self, self.source, self.into)

    def __str__(self) -> str:
        return f"reduce {self.source} {'before' if self.source_first else 'after'} {self.into}"


class Copy(Struct, frozen=True):
    """``into = source``."""

    source: Chunk
    into: Chunk

    def __post_init__(self) -> None:
        _check_local(self, self.source, self.into)

    def __str__(self) -> str:
        return f"copy {self.source} to {self.into}"


def _check_local(op: Reduce | Copy, source: Chunk, into: Chunk) -> None:
    _check_chunk(op, source)
    _check_chunk(op, into)
    if source.size != into.size:
        raise PlanError(f"{op}: sizes {source.size} and {into.size} differ")
    if into.buffer == "input":
        raise PlanError(f"{op}: the input buffer is only read")
    if source.buffer == into.buffer and max(source.start, into.start) < min(source.stop, into.stop):
        raise PlanError(f"{op}: source and destination overlap")


Op: TypeAlias = Send | Recv | Reduce | Copy


def reads(op: Op) -> tuple[Chunk, ...]:
    """Return the chunks whose content ``op`` needs."""
    match op:
        case Send(chunk=chunk, after=after):
            return (chunk,) if after is None else (chunk, after)
        case Recv():
            return ()
        case Reduce(source=source, into=into):
            return (source, into)
        case Copy(source=source):
            return (source,)


def writes(op: Op) -> tuple[Chunk, ...]:
    """Return the chunks that ``op`` overwrites."""
    match op:
        case Send():
            return ()
        case Recv(chunk=chunk):
            return (chunk,)
        case Reduce(into=into) | Copy(into=into):
            return (into,)
