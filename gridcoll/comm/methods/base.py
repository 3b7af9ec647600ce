"""What the mixins of `GridComm` share: one file per collective, one class of state behind them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mpi4py import MPI

from gridcoll.comm.context import Context, Key, KnownCall
from gridcoll.engine.natives import native_call


class GridMethods(MPI.Intracomm):
    """Base of the mixins. A method without a context, or with nothing to gain, is MPI's own.

    Between two calls of a program the caches are the program's. What we do before a short message
    costs a microsecond in a loop and thirty otherwise, on every rank. So what is known to be MPI's
    own, or a short plan of ours, is looked up first, in `_known`, and by nothing but the arguments;
    they are arrays in most programs. What is wrong with them, MPI will say.
    """

    # Class attributes, because MPI's own Dup builds objects without calling __init__.
    _context: Context | None = None
    _known: Mapping[Key | None, KnownCall] = MappingProxyType({})

    def _know(self, context: Context) -> None:
        """Take ``context``, ours from now on."""
        self._context = context
        self._known = context.known

    def _natively(
        self,
        context: Context,
        method: str,
        n_bytes: int | None,
        root: int,
        key: Key | None,
        *args: Any,
    ) -> None:
        """Do what there is no program for, and know it the next time by ``key``.

        ``n_bytes`` are None of a call that could not be read.
        """
        call = native_call(context.native(method.lower(), n_bytes, root), method)
        if n_bytes is not None:
            context.know(key, call)
        call(self, *args)
