"""Buffer arguments that hold a block for every rank."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from gridcoll.comm.arguments.buffers import Message, read_message


@dataclass(frozen=True, slots=True)
class Blocks:
    """A buffer argument as ``n_blocks`` blocks of ``block_bytes`` each, one after another."""

    message: Message
    block_bytes: int


def read_blocks(spec: Any, n_blocks: int, *, writable: bool) -> Blocks | None:
    """The blocks of ``spec``, any form mpi4py takes; None for what does not come in such blocks.

    A count given in ``spec`` is that of one block, as mpi4py has it. Raises what mpi4py raises for
    a ``spec`` that is no message at all.
    """
    message = read_message(all_blocks(spec, n_blocks), writable=writable)
    n_bytes = len(message.view)
    if n_bytes % (n_blocks * _item_bytes(spec)):
        return None
    return Blocks(message, n_bytes // n_blocks)


def all_blocks(spec: Any, n_blocks: int) -> Any:
    """``spec`` with a count of all blocks in place of one block's."""
    if not isinstance(spec, list | tuple) or not 2 <= len(spec) <= 4:
        return spec
    buffer, count, *rest = spec
    if isinstance(count, list | tuple) and len(count) == 2:
        if count[0] is not None:
            count = (operator.index(count[0]) * n_blocks, count[1])
    elif count is not None and not isinstance(count, MPI.Datatype | str):
        count = operator.index(count) * n_blocks
    return [buffer, count, *rest]


def _item_bytes(spec: Any) -> int:
    """The size of the items that may not be cut; 1 where only MPI could tell."""
    kind: Any = None
    if isinstance(spec, list | tuple):
        spec, kind = spec[0], spec[-1]
    if isinstance(kind, str):
        kind = MPI.Datatype.fromcode(kind)
    if isinstance(kind, MPI.Datatype):
        return max(kind.Get_size(), 1)
    try:
        return max(memoryview(spec).itemsize, 1)
    except (TypeError, ValueError, BufferError):
        return 1
