"""Objects whose sizes not everybody knows: a first message of fixed length, then what is left.

The first tells the pickle's length and brings as much of it as fits; the rest follows at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mpi4py import MPI

HEADER_BYTES = 256

_LENGTH = struct.Struct("<q")
_ROOM = HEADER_BYTES - _LENGTH.size


def head_of(pickled: bytes) -> bytes:
    """The first message."""
    return (_LENGTH.pack(len(pickled)) + pickled[:_ROOM]).ljust(HEADER_BYTES, b"\0")


def rest_of(pickled: bytes) -> memoryview:
    """What the first message has no room for."""
    return memoryview(pickled)[_ROOM:]


class Heads:
    """First messages, one after another."""

    def __init__(self, n_objects: int) -> None:
        self.view = memoryview(bytearray(n_objects * HEADER_BYTES))

    @classmethod
    def of(cls, pickles: Sequence[bytes]) -> Heads:
        """Those of ``pickles``."""
        heads = cls(len(pickles))
        heads.view[:] = b"".join(map(head_of, pickles))
        return heads

    def lengths(self) -> list[int]:
        """Bytes of each pickle."""
        every = range(0, len(self.view), HEADER_BYTES)
        return [_LENGTH.unpack_from(self.view, start)[0] for start in every]

    def rests(self) -> tuple[int, ...]:
        """Bytes of each that are yet to come."""
        return tuple(max(length - _ROOM, 0) for length in self.lengths())

    def rest_starts(self) -> tuple[int, ...]:
        """Where each rest begins, one standing after another."""
        return tuple(accumulate(self.rests(), initial=0))[:-1]

    def loads(self, rest: memoryview) -> list[Any]:
        """The objects, given what came after, one after another; None for an empty pickle."""
        objects = []
        for place, (length, start) in enumerate(
            zip(self.lengths(), self.rest_starts(), strict=True)
        ):
            at = place * HEADER_BYTES + _LENGTH.size
            head = self.view[at : at + min(length, _ROOM)]
            left = rest[start : start + length - len(head)]
            # A writable copy of its own: what arrays are made of must not be shared.
            objects.append(MPI.pickle.loads(bytearray(b"".join((head, left)))) if length else None)
        return objects


def dump_each(items: Any, n_objects: int) -> list[bytes]:
    """A pickle of each of ``items``, or of None for none at all; the `ValueError` is mpi4py's."""
    found: Sequence[Any] = [None] * n_objects if items is None else list(items)
    if len(found) != n_objects:
        raise ValueError(f"expecting {n_objects} items, got {len(found)}")
    return [MPI.pickle.dumps(item) for item in found]
