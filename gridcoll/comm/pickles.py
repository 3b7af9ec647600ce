"""Objects as messages: a head of fixed length, the rest of the data, and large buffers.

A rank does not know how long another rank's object is. Therefore a first message of fixed length,
the head, tells the length and holds as much of the pickle as fits; the rest follows at once.
Buffers that pickle protocol 5 keeps outside the stream (for example a NumPy array's elements)
follow after it, from the user's buffer into separate memory: they are never copied into a pickle,
and one array of many can be kept without the others. Only buffers of at least
``MPI.pickle.THRESHOLD`` bytes, 256 KiB unless set, are sent so: copying smaller ones takes some
tens of microseconds, as a message does.
"""

from __future__ import annotations

import gc
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any

from mpi4py import MPI
from msgspec import Struct

HEADER_BYTES = 256
"""Length of the head, if many ranks send at once."""

_WORD = struct.Struct("<q")
_HEAD = struct.Struct(f"<q{HEADER_BYTES - 8}s")
_KIND_BITS = 2
_KIND_MASK = (1 << _KIND_BITS) - 1


class Kind(IntEnum):
    """What the data of an object contain."""

    PICKLE = 0
    INDEX = 1
    """The number of parts, their sizes, and the stream, unless the stream is the first part."""
    ERROR = 2
    """The text of an error; there is no object."""
    PREDEFINED_OP = 3
    """A pickle to be combined by one of MPI's predefined operations."""


class Pickled(Struct, frozen=True):
    """An object about to be sent."""

    data: bytes
    """The data, of which the head holds the first bytes."""
    kind: Kind = Kind.PICKLE
    parts: tuple[memoryview, ...] = ()
    """Large buffers in the user's memory, preceded by the stream if that is large, too."""

    @property
    def word(self) -> int:
        """The number of bytes of data, and their kind, in one integer."""
        return len(self.data) << _KIND_BITS | self.kind

    def head(self, n_bytes: int = HEADER_BYTES) -> bytes:
        """Return the first message, of ``n_bytes``."""
        start = self.data[: n_bytes - _WORD.size]
        return (_WORD.pack(self.word) + start).ljust(n_bytes, b"\0")

    def rest(self, n_bytes: int = HEADER_BYTES) -> memoryview:
        """Return the data that do not fit in a head of ``n_bytes``."""
        return memoryview(self.data)[n_bytes - _WORD.size :]


class Arrived:
    """An object whose data were received, and memory for its parts."""

    def __init__(self, kind: int, data: bytes | bytearray | memoryview) -> None:
        self.kind, self.data = kind, data
        sizes, self._end = _read_index(data) if kind == Kind.INDEX else ((), 0)
        self._writable = [size >= 0 for size in sizes]
        self._blocks = [bytearray(size if size >= 0 else ~size) for size in sizes]
        self.parts = [memoryview(block) for block in self._blocks]
        """Memory of the parts, to be filled before `load`."""

    @property
    def n_bytes(self) -> int:
        """The size of all parts."""
        return sum(map(len, self.parts))

    def copy_parts(self, parts: Sequence[memoryview]) -> None:
        """Copy ``parts``, which are on this rank, into our parts."""
        for mine, part in zip(self.parts, parts, strict=True):
            mine[:] = part

    def load(self) -> Any:
        """Return the object, which uses the memory of the parts. Raises what loading raises."""
        if self.kind != Kind.INDEX:
            return MPI.pickle.loads(self.data)
        self.parts.clear()  # a bytearray with views cannot be resized, and it is the user's now
        # Some classes check the type: as from an ordinary pickle, read-only buffers are bytes.
        blocks = [
            block if writable else bytes(block)
            for block, writable in zip(self._blocks, self._writable, strict=True)
        ]
        stream = memoryview(self.data)[self._end :] or memoryview(blocks.pop(0))
        if _uses_standard_pickle():
            return MPI.pickle.loads_oob(stream, blocks)
        # The sender's ``MPI.pickle`` supports buffers, but this rank's does not.
        return MPI.pickle.loads(pickle.dumps(pickle.loads(stream, buffers=blocks), 5))


class Heads:
    """The heads of several objects, in contiguous memory."""

    def __init__(self, n_objects: int) -> None:
        self.view = memoryview(bytearray(n_objects * HEADER_BYTES))

    @classmethod
    def of(cls, pickles: Sequence[Pickled]) -> Heads:
        """Return the heads of ``pickles``."""
        heads = cls(len(pickles))
        heads.view[:] = b"".join(pickled.head() for pickled in pickles)
        return heads

    def _each(self) -> list[memoryview]:
        every = range(0, len(self.view), HEADER_BYTES)
        return [self.view[start : start + HEADER_BYTES] for start in every]

    def rests(self) -> tuple[int, ...]:
        """Return the number of bytes of each object that follow its head."""
        return tuple(map(n_missing, self._each()))

    def short(self) -> list[tuple[int, bytes]] | None:
        """Return the kind and data of each object if all fit in their heads, else None."""
        found = []
        for word, start in _HEAD.iter_unpack(self.view):
            if has_parts(word) or (length := length_of(word)) > len(start):
                return None
            found.append((word & _KIND_MASK, start[:length]))
        return found

    def rest_starts(self) -> tuple[int, ...]:
        """Return where each rest begins, if the rests are contiguous."""
        return tuple(accumulate(self.rests(), initial=0))[:-1]

    def parted(self, rests: memoryview) -> dict[int, Arrived]:
        """Return the objects whose parts are still to be received, by index.

        ``rests`` is what was received after the heads.
        """
        return {
            index: assemble(head, rest)
            for index, (head, rest) in enumerate(self._with_rests(rests))
            if kind_of(head) == Kind.INDEX
        }

    def loads(self, rests: memoryview, parted: Mapping[int, Arrived]) -> list[Any]:
        """Return the objects, None for an empty pickle; those with parts are in ``parted``."""
        objects = []
        for index, (head, rest) in enumerate(self._with_rests(rests)):
            arrived = parted.get(index) or assemble(head, rest)
            objects.append(arrived.load() if len(arrived.data) else None)
        return objects

    def _with_rests(self, rests: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
        for head, start, size in zip(self._each(), self.rest_starts(), self.rests(), strict=True):
            yield head, rests[start : start + size]


def length_of(word: int) -> int:
    """Return the number of bytes of data, given a `Pickled.word`."""
    return word >> _KIND_BITS


def has_parts(word: int) -> bool:
    """Whether the object has parts besides the data."""
    return word & _KIND_MASK == Kind.INDEX


def n_missing(head: memoryview) -> int:
    """Return the number of bytes of data that follow ``head``."""
    return max(length_of(_word_of(head)) - (len(head) - _WORD.size), 0)


def kind_of(head: memoryview) -> Kind:
    """Return the kind of the data that begin in ``head``."""
    return Kind(_word_of(head) & _KIND_MASK)


def begin(head: memoryview) -> tuple[bytearray, memoryview]:
    """Return the data that begin in ``head``, and a view of their missing end, to be filled."""
    length, n_missed = length_of(_word_of(head)), n_missing(head)
    n_head = length - n_missed
    data = bytearray(length)
    data[:n_head] = head[_WORD.size : _WORD.size + n_head]
    return data, memoryview(data)[n_head:]


def assemble(head: memoryview, rest: memoryview) -> Arrived:
    """Return the object made of ``head`` and ``rest``.

    It owns its data, because arrays may be views of them.
    """
    data, missing = begin(head)
    missing[:] = rest
    return Arrived(kind_of(head), data)


def _word_of(head: memoryview) -> int:
    return int.from_bytes(head[: _WORD.size], "little")


def pickle_of(item: Any) -> Pickled:
    """Return ``item`` pickled by ``MPI.pickle``. Its large buffers are referenced, not copied."""
    if not _supports_buffers():
        return Pickled(MPI.pickle.dumps(item))
    pickler: Any = MPI.pickle  # mpi4py's annotations of its buffers do not fit ours
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
    """Return ``item`` as another rank would receive it."""
    pickled = pickle_of(item)
    arrived = Arrived(pickled.kind, pickled.data)
    arrived.copy_parts(pickled.parts)
    return arrived.load()


def pickle_each(items: Any, n_objects: int) -> list[Pickled]:
    """Return a pickle of each of ``items``, which stands for as many None if it is None.

    Raises the same `ValueError` as mpi4py for another number of items.
    """
    found: Sequence[Any] = [None] * n_objects if items is None else list(items)
    if len(found) != n_objects:
        raise ValueError(f"expecting {n_objects} items, got {len(found)}")
    return list(map(pickle_of, found))


def _read_index(data: bytes | bytearray | memoryview) -> tuple[tuple[int, ...], int]:
    """Return the sizes of parts, bitwise inverted if read-only, and where the index ends."""
    (n_parts,) = _WORD.unpack_from(data)
    form = struct.Struct(f"<{n_parts}q")
    return form.unpack_from(data, _WORD.size), _WORD.size + form.size


def _supports_buffers() -> bool:
    """Whether ``MPI.pickle`` can keep buffers outside the stream."""
    if not _uses_standard_pickle():
        return False
    protocol = MPI.pickle.PROTOCOL
    return protocol is not None and not 0 <= protocol < 5


def _uses_standard_pickle() -> bool:
    """Whether ``MPI.pickle`` uses Python's own functions: a user's may not support buffers.

    mpi4py has no attribute for them, so they are found through the garbage collector.
    """
    if type(MPI.pickle) is not MPI.Pickle:
        return False
    referents = gc.get_referents(MPI.pickle)
    return pickle.dumps in referents and pickle.loads in referents
