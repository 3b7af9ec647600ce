"""The buffers of one call, as bytes."""

from __future__ import annotations

from gridcoll.errors import PlanError
from gridcoll.plan.ops import Chunk


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

    def copy(self, source: Chunk, into: Chunk) -> None:
        self.view(into)[:] = self.view(source)

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        raise PlanError(f"reduce {source} into {into}: bytes have no operation")
