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
    """Base of the mixins. A method without a context, or with nothing to gain, is MPI's own.

    A method first looks in the fast path, by the sizes of its arguments: a call like one before is
    repeated at once. Reading the arguments would take some thirty microseconds, as the caches hold
    the program's data, not ours.
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
        """Do the call by ``native``, and enter it into the fast path.

        ``native`` is None for a call whose arguments could not be read: MPI is to refuse it.
        """
        call = native_call(native or NATIVE, method)
        if native is not None:
            call = context.stamped(call)
            context.enter(key, call)
        call(self, *args)


def set_handle(comm: MPI.Comm, source: MPI.Comm) -> None:
    """Let ``comm`` be what ``source`` is.

    Copied as memory: mpi4py has no assignment, and its constructors call MPI, which may not be up.
    """
    ctypes.memmove(MPI._addressof(comm), MPI._addressof(source), MPI._sizeof(source))
