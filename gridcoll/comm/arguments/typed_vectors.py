"""Buffer arguments of `Alltoallw`: for every rank a block of its own size and type."""

from __future__ import annotations

import operator
from typing import Any

from mpi4py import MPI

from gridcoll.comm.arguments.buffers import Message, bytes_of, read_scattered, typed_block
from gridcoll.engine.memory import Typed
from gridcoll.plan.alltoall.vector import LARGEST_MESSAGE


def read_typed_vector(
    spec: Any, n_blocks: int, *, writable: bool, packed: bool = False
) -> list[Message | Typed]:
    """The blocks of an `Alltoallw` argument: every block has a type, displacements are in bytes.

    Blocks with gaps stay where they are, for MPI to gather while others are under way, unless they
    are to be ``packed`` or are longer than a message.

    Raises for what mpi4py does not take.
    """
    if not isinstance(spec, list | tuple):
        raise TypeError("message: expecting list or tuple")
    counts: Any = None
    displs: Any = None
    if len(spec) == 2:
        buffer, types = spec
    elif len(spec) == 3:
        buffer, (counts, displs), types = spec
    else:
        buffer, counts, displs, types = spec
    if counts is None and displs is None:
        counts, displs = [1] * n_blocks, [0] * n_blocks
    if len(types) != n_blocks or not all(isinstance(each, MPI.Datatype) for each in types):
        raise TypeError(f"message: expecting {n_blocks} datatypes")
    if not len(counts) == len(displs) == n_blocks:
        raise ValueError(f"message: expecting {n_blocks} counts and displacements")
    view, address = _memory(buffer, writable)
    return [
        _read_block(
            *(view, address, operator.index(displ), operator.index(count), datatype),
            writable=writable,
            packed=packed,
        )
        for count, displ, datatype in zip(counts, displs, types, strict=True)
    ]


def _memory(buffer: Any, writable: bool) -> tuple[memoryview | None, int]:
    """The bytes of ``buffer``, and where they begin.

    None where the CPU does not reach them, addresses are absolute, or there is nothing.
    """
    if buffer is None or buffer is MPI.BOTTOM:
        return None, 0
    memory = MPI.buffer.frombuffer(buffer, readonly=not writable)
    try:
        return bytes_of(memory), memory.address
    except BufferError:
        return None, memory.address


def _read_block(
    view: memoryview | None,
    address: int,
    offset: int,
    count: int,
    datatype: MPI.Datatype,
    *,
    writable: bool,
    packed: bool,
) -> Message | Typed:
    """``count`` items from byte ``offset`` on."""
    if count < 0:
        raise ValueError(f"message: negative count {count}")
    size, extent = datatype.Get_size(), datatype.Get_extent()
    if not count * size:
        return Message(memoryview(bytearray()))
    stop = offset + count * size
    plain = datatype.is_predefined and extent == (0, size)
    if plain and view is not None and offset >= 0 and stop <= len(view):
        return Message(view[offset:stop])
    if not packed and count * size <= LARGEST_MESSAGE:
        return typed_block(address + offset, count, datatype, writable=writable)
    return read_scattered(MPI.BOTTOM, [count], [address + offset], datatype, writable=writable)
