"""What the mixins of `GridComm` share: one file per collective, one class of state behind them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mpi4py import MPI

from gridcoll.comm.context import Context, FastCall, Key
from gridcoll.engine.natives import native_call
from gridcoll.plan.natives import NATIVE


class GridMethods(MPI.Intracomm):
    """Base of the mixins. A method without a context, or with nothing to gain, is MPI's own.

    A method looks its arguments up in the fast path first, by their sizes alone: where a call like
    it was decided before, that is done again at once. Reading the arguments anew would take some
    thirty microseconds between two calls of a program, whose data, not ours, is in the caches.
    """

    # Class attributes, because MPI's own Dup builds objects without calling __init__.
    _context: Context | None = None
    _fast_path: Mapping[Key | None, FastCall] = MappingProxyType({})

    def _take_context(self, context: Context) -> None:
        """Take ``context``, ours from now on."""
        self._context = context
        self._fast_path = context.fast_path

    def _planning(self) -> Context | None:
        """The context, ready for plans; None where no call can gain anything. Collective."""
        context = self._context
        if context is None or context.native_only:
            return None
        context.channel.open()
        return context

    def _natively(
        self, context: Context, method: str, native: str | None, key: Key | None, *args: Any
    ) -> None:
        """Do the call by ``native``, and by the fast path the next time.

        ``native`` is None for a call whose arguments could not be read: MPI is to refuse it.
        """
        call = native_call(native or NATIVE, method)
        if native is not None:
            call = context.stamped(call)
            context.enter(key, call)
        call(self, *args)
