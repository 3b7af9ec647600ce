"""The buffers of one call, as bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import Dataflow
from gridcoll.plan.ops import BUFFERS, Chunk


class Placement(NamedTuple):
    """Where the buffers of one run are, as addresses; whoever asks keeps the buffers alive.

    ``buffers`` are in the order of `BUFFERS`; ``by_op``, where they lie in parts, has two addresses
    for each op: of its chunk, and of where it goes. ``datatype`` and ``operation`` are handles, 0
    where there is nothing to combine.
    """

    buffers: tuple[int, ...]
    unit_bytes: int = 1
    datatype: int = 0
    operation: int = 0
    by_op: np.ndarray | None = None


def address_of(view: memoryview) -> int:
    """Where the bytes of ``view`` begin; 0 where it has none."""
    # Whoever asks runs over MPI, whose function takes a tenth of NumPy's time.
    from mpi4py.MPI import Get_address

    return Get_address(view) if view.nbytes else 0


class ByteMemory:
    """Buffers whose unit is a byte; enough for every collective that only moves data.

    Parameters
    ----------
    output, input, scratch : memoryview or None
        Contiguous, format ``B``. ``input`` is never written.
    """

    def __init__(
        self,
        output: memoryview | None = None,
        input: memoryview | None = None,  # noqa: A002 - the buffer's name in every plan
        scratch: memoryview | None = None,
    ) -> None:
        self._views = {"output": output, "input": input, "scratch": scratch}

    def view(self, chunk: Chunk) -> memoryview:
        """The bytes of ``chunk``, not copied."""
        view = self._views[chunk.buffer]
        if view is None or chunk.stop > len(view):
            size = "none" if view is None else f"{len(view)} bytes"
            raise PlanError(f"{chunk}: the call's {chunk.buffer} buffer is {size}")
        return view[chunk.start : chunk.stop]

    def place(self, flow: Dataflow, unit_bytes: int = 1) -> Placement:
        """The buffers that ``flow`` reaches into. Raises `PlanError` where they are too short."""
        addresses = []
        for name in BUFFERS:
            n_bytes, view = flow.extent[name] * unit_bytes, self._views[name]
            if n_bytes and (view is None or n_bytes > len(view)):
                view = self.view(Chunk(name, 0, n_bytes))  # raises
            addresses.append(address_of(view) if n_bytes and view is not None else 0)
        return Placement(tuple(addresses), unit_bytes)

    def copy(self, source: Chunk, into: Chunk) -> None:
        self.view(into)[:] = self.view(source)

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        raise PlanError(f"reduce {source} into {into}: bytes have no operation")
