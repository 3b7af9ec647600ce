"""What the mixins of `GridComm` share: one file per collective, one class of state behind them."""

from __future__ import annotations

from mpi4py import MPI

from gridcoll.comm.context import Context


class GridMethods(MPI.Intracomm):
    """Base of the mixins. A method without a context, or with nothing to gain, is MPI's own."""

    # Class attribute, because MPI's own Dup builds objects without calling __init__.
    _context: Context | None = None

    def _know(self, context: Context) -> None:
        """Take ``context``, ours from now on."""
        self._context = context
