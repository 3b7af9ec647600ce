"""The buffers of one reduction: elements of an MPI datatype, combined by an MPI operation."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from gridcoll.engine.memory import ByteMemory, Placement, address_of
from gridcoll.plan.dataflow import Dataflow
from gridcoll.plan.ops import Chunk

ALIGNMENT_BYTES = 64
"""Scratch starts at a multiple of this on every rank: plans that combine the same elements on
several ranks do so at the same alignment, so that vectorised operations treat them alike."""


class ElementMemory:
    """Buffers whose unit is one element of ``datatype``, without gaps.

    Parameters
    ----------
    output, input : memoryview
        Contiguous, format ``B``. ``input`` is never written. None where the program has no use for
        an ``output``.
    flow : Dataflow
        The program to be run; says how much scratch it takes.
    datatype : MPI.Datatype
    op : MPI.Op
    """

    def __init__(
        self,
        output: memoryview | None,
        input: memoryview,  # noqa: A002 - the buffer's name in every plan
        flow: Dataflow,
        datatype: MPI.Datatype,
        op: MPI.Op,
    ) -> None:
        self._unit_bytes = datatype.Get_size()
        scratch = aligned_bytes(flow.scratch_units * self._unit_bytes)
        self._bytes = ByteMemory(output, input, scratch)
        self._datatype = datatype
        self._op = op

    def view(self, chunk: Chunk) -> memoryview:
        """The bytes of ``chunk``, not copied."""
        unit = self._unit_bytes
        return self._bytes.view(Chunk(chunk.buffer, chunk.start * unit, chunk.stop * unit))

    def place(self, flow: Dataflow) -> Placement:
        """As `ByteMemory.place`."""
        return self._bytes.place(flow, self._unit_bytes)._replace(
            datatype=MPI._handleof(self._datatype), operation=MPI._handleof(self._op)
        )

    def copy(self, source: Chunk, into: Chunk) -> None:
        self.view(into)[:] = self.view(source)

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        if source.size == 0:
            return
        left, right = self.view(source), self.view(into)
        if source_first:
            self._reduce(left, right)
            return
        result = aligned_bytes(len(left))
        result[:] = left
        self._reduce(right, result)
        right[:] = result

    def _reduce(self, left: memoryview, right: memoryview) -> None:
        """``right = left (op) right``."""
        n_units = len(left) // self._unit_bytes
        self._op.Reduce_local((left, n_units, self._datatype), (right, n_units, self._datatype))


def aligned_bytes(n_bytes: int) -> memoryview:
    """Uninitialised memory at a multiple of `ALIGNMENT_BYTES`."""
    block = np.empty(n_bytes + ALIGNMENT_BYTES, np.uint8)
    skip = -address_of(block.data) % ALIGNMENT_BYTES
    return block.data[skip : skip + n_bytes]
