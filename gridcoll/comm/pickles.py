"""Objects as they travel: a head of fixed length, what that has no room for, and large buffers.

A rank does not know how long another rank's object is. So a first message of fixed length says how
long, and brings as much of the pickle as fits; the rest follows at once. What protocol 5 takes out
of the stream (a NumPy array's elements, say) follows after it from the user's buffer into memory of
its own: it is never copied into a pickle, and one array of many can be kept without the others.
``MPI.pickle.THRESHOLD``, 256 KiB unless set, is the least size for that: copying less takes some
tens of microseconds, as a message does.
"""

from __future__ import annotations

import gc
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import Any

from mpi4py import MPI

HEADER_BYTES = 256
"""First message of what many ranks send at once."""

_WORD = struct.Struct("<q")
_HEAD = struct.Struct(f"<q{HEADER_BYTES - 8}s")
_KIND_BITS = 2
_KIND_MASK = (1 << _KIND_BITS) - 1


class Kind(IntEnum):
    """What the data of an object are."""

    PICKLE = 0
    INDEX = 1
    """How many parts there are, the size of each, and the stream, unless that is the first."""
    ERROR = 2
    """Text: there is no object."""
    PREDEFINED_OP = 3
    """A pickle that is to be combined by one of MPI's own operations."""


@dataclass(frozen=True, slots=True)
class Pickled:
    """An object about to be sent."""

    data: bytes
    """What the head begins with."""
    kind: Kind = Kind.PICKLE
    parts: tuple[memoryview, ...] = ()
    """Large buffers where the user has them, and the stream if it is large, too."""

    @property
    def word(self) -> int:
        """Bytes of data, and of which kind."""
        return len(self.data) << _KIND_BITS | self.kind

    def head(self, n_bytes: int = HEADER_BYTES) -> bytes:
        """The first message."""
        start = self.data[: n_bytes - _WORD.size]
        return (_WORD.pack(self.word) + start).ljust(n_bytes, b"\0")

    def rest(self, n_bytes: int = HEADER_BYTES) -> memoryview:
        """The data that a head of ``n_bytes`` has no room for."""
        return memoryview(self.data)[n_bytes - _WORD.size :]


class Arrived:
    """An object whose data have come, and memory for its parts."""

    def __init__(self, kind: int, data: bytes | bytearray | memoryview) -> None:
        self.kind, self.data = kind, data
        sizes, self._end = _read_index(data) if kind == Kind.INDEX else ((), 0)
        self._writable = [size >= 0 for size in sizes]
        self._blocks = [bytearray(size if size >= 0 else ~size) for size in sizes]
        self.parts = [memoryview(block) for block in self._blocks]
        """To be written before `load`."""

    @property
    def n_bytes(self) -> int:
        """Of all parts."""
        return sum(map(len, self.parts))

    def take(self, parts: Sequence[memoryview]) -> None:
        """Copy ``parts`` from where they are on this rank."""
        for mine, part in zip(self.parts, parts, strict=True):
            mine[:] = part

    def load(self) -> Any:
        """The object, over the parts. Raises what loading it raises."""
        if self.kind != Kind.INDEX:
            return MPI.pickle.loads(self.data)
        self.parts.clear()  # a bytearray that is looked at cannot grow, and it is the user's now
        # Classes that look get what a pickle in one would give them: bytes are what is read-only.
        blocks = [
            block if writable else bytes(block)
            for block, writable in zip(self._blocks, self._writable, strict=True)
        ]
        stream = memoryview(self.data)[self._end :] or memoryview(blocks.pop(0))
        if _pickles_itself():
            return MPI.pickle.loads_oob(stream, blocks)
        # The sender's pickle knows of buffers, ours does not.
        return MPI.pickle.loads(pickle.dumps(pickle.loads(stream, buffers=blocks), 5))


class Heads:
    """First messages, one after another."""

    def __init__(self, n_objects: int) -> None:
        self.view = memoryview(bytearray(n_objects * HEADER_BYTES))

    @classmethod
    def of(cls, pickles: Sequence[Pickled]) -> Heads:
        """Those of ``pickles``."""
        heads = cls(len(pickles))
        heads.view[:] = b"".join(pickled.head() for pickled in pickles)
        return heads

    def _each(self) -> list[memoryview]:
        every = range(0, len(self.view), HEADER_BYTES)
        return [self.view[start : start + HEADER_BYTES] for start in every]

    def rests(self) -> tuple[int, ...]:
        """Bytes of each that are yet to come."""
        return tuple(map(n_missing, self._each()))

    def short(self) -> list[tuple[int, bytes]] | None:
        """Kind and data of each object, if all fit in their heads."""
        found = []
        for word, start in _HEAD.iter_unpack(self.view):
            if has_parts(word) or (length := length_of(word)) > len(start):
                return None
            found.append((word & _KIND_MASK, start[:length]))
        return found

    def rest_starts(self) -> tuple[int, ...]:
        """Where each rest begins, one standing after another."""
        return tuple(accumulate(self.rests(), initial=0))[:-1]

    def parted(self, rests: memoryview) -> dict[int, Arrived]:
        """By place, the objects with parts yet to come, given what came after the heads."""
        return {
            place: put_together(head, rest)
            for place, (head, rest) in enumerate(self._with_rests(rests))
            if kind_of(head) == Kind.INDEX
        }

    def loads(self, rests: memoryview, parted: Mapping[int, Arrived]) -> list[Any]:
        """The objects, those in parts from ``parted``; None for an empty pickle."""
        objects = []
        for place, (head, rest) in enumerate(self._with_rests(rests)):
            arrived = parted.get(place) or put_together(head, rest)
            objects.append(arrived.load() if len(arrived.data) else None)
        return objects

    def _with_rests(self, rests: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
        for head, start, size in zip(self._each(), self.rest_starts(), self.rests(), strict=True):
            yield head, rests[start : start + size]


def length_of(word: int) -> int:
    """Bytes of data that a `Pickled.word` tells."""
    return word >> _KIND_BITS


def has_parts(word: int) -> bool:
    """Whether there is more than the data."""
    return word & _KIND_MASK == Kind.INDEX


def n_missing(head: memoryview) -> int:
    """Bytes of data that come after ``head``."""
    return max(length_of(_word_of(head)) - (len(head) - _WORD.size), 0)


def kind_of(head: memoryview) -> Kind:
    """Of the data that begin with ``head``."""
    return Kind(_word_of(head) & _KIND_MASK)


def begin(head: memoryview) -> tuple[bytearray, memoryview]:
    """The data that begin with ``head``, and where in them to put what is missing."""
    length, n_missed = length_of(_word_of(head)), n_missing(head)
    n_head = length - n_missed
    data = bytearray(length)
    data[:n_head] = head[_WORD.size : _WORD.size + n_head]
    return data, memoryview(data)[n_head:]


def put_together(head: memoryview, rest: memoryview) -> Arrived:
    """The object that begins with ``head``. Its data are its own: arrays are made of them."""
    data, missing = begin(head)
    missing[:] = rest
    return Arrived(kind_of(head), data)


def _word_of(head: memoryview) -> int:
    return int.from_bytes(head[: _WORD.size], "little")


def pickle_of(item: Any) -> Pickled:
    """``item`` as ``MPI.pickle`` has it. Its large buffers are only looked at, not copied."""
    if not _takes_buffers():
        return Pickled(MPI.pickle.dumps(item))
    pickler: Any = MPI.pickle  # its buffers are none for the type checker
    stream, buffers = pickler.dumps_oob(item)
    if not buffers:
        return Pickled(stream)
    parts = [memoryview(buffer) for buffer in buffers]
    sizes = [~len(part) if part.readonly else len(part) for part in parts]
    if len(stream) >= MPI.pickle.THRESHOLD:
        parts.insert(0, memoryview(stream))
        sizes.insert(0, len(stream))
        stream = b""
    index = struct.pack(f"<{1 + len(sizes)}q", len(sizes), *sizes)
    return Pickled(index + stream, Kind.INDEX, tuple(parts))


def copy_object(item: Any) -> Any:
    """What ``item`` would be on another rank."""
    pickled = pickle_of(item)
    arrived = Arrived(pickled.kind, pickled.data)
    arrived.take(pickled.parts)
    return arrived.load()


def pickle_each(items: Any, n_objects: int) -> list[Pickled]:
    """A pickle of each of ``items``, or of None for none at all; the `ValueError` is mpi4py's."""
    found: Sequence[Any] = [None] * n_objects if items is None else list(items)
    if len(found) != n_objects:
        raise ValueError(f"expecting {n_objects} items, got {len(found)}")
    return list(map(pickle_of, found))


def _read_index(data: bytes | bytearray | memoryview) -> tuple[tuple[int, ...], int]:
    """Sizes of parts, inverted where read-only, and where the index ends."""
    (n_parts,) = _WORD.unpack_from(data)
    form = struct.Struct(f"<{n_parts}q")
    return form.unpack_from(data, _WORD.size), _WORD.size + form.size


def _takes_buffers() -> bool:
    """Whether what ``MPI.pickle`` writes may leave buffers out."""
    if not _pickles_itself():
        return False
    protocol = MPI.pickle.PROTOCOL
    return protocol is not None and not 0 <= protocol < 5


def _pickles_itself() -> bool:
    """Whether ``MPI.pickle`` has Python's own functions: a user's may know nothing of buffers.

    mpi4py does not show them; the garbage collector does.
    """
    if type(MPI.pickle) is not MPI.Pickle:
        return False
    held = gc.get_referents(MPI.pickle)
    return pickle.dumps in held and pickle.loads in held
