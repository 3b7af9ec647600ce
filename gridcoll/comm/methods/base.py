"""Base class of the mixins of `GridComm`; there is one file per kind of collective."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mpi4py import MPI

from gridcoll.comm.context import Context, FastCall, Key
from gridcoll.engine.natives import native_call
from gridcoll.plan.natives import NATIVE


class GridMethods(MPI.Intracomm):
    """Base of the mixins. Without a context, or if nothing can be gained, a method is MPI's own.

    A method first looks in the fast path, by the sizes of its arguments: a call like an earlier one
    is repeated at once. Reading the arguments would take some thirty microseconds, because the CPU
    caches then hold the program's data, not ours.
    """

    # Class attributes, because MPI's own Dup builds objects without calling __init__.
    _context: Context | None = None
    _fast_path: Mapping[Key | None, FastCall] = MappingProxyType({})

    def _set_context(self, context: Context) -> None:
        """Set ``context``, which this object owns from now on."""
        self._context = context
        self._fast_path = context.fast_path

    def _planning_context(self) -> Context | None:
        """Return the context, ready for plans; None if no call can gain anything. Collective."""
        context = self._context
        if context is None or context.native_only:
            return None
        context.channel.open()
        return context

    def _natively(
        self, context: Context, method: str, native: str | None, key: Key | None, *args: Any
    ) -> None:
        """Execute the call by the native collective ``native``, and add it to the fast path.

        ``native`` is None for a call whose arguments could not be read, so that MPI rejects it.
        """
        call = native_call(native or NATIVE, method)
        if native is not None:
            call = context.stamped(call)
            context.add_fast_call(key, call)
        call(self, *args)


def set_handle(comm: MPI.Comm, source: MPI.Comm) -> None:
    """Give ``comm`` the handle of ``source``.

    The handle is copied as memory: mpi4py has no assignment, and its constructors call MPI, which
    may not be initialized.
    """
    ctypes.memmove(MPI._addressof(comm), MPI._addressof(source), MPI._sizeof(source))
