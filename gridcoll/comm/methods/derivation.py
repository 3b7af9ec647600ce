"""Communicators made from another one: each gets its part of the grid, without measurements.

gridcoll sends no message for them; see `channel`. `Create_from_group` has no parent with a grid, so
it stays MPI's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from mpi4py import MPI

from gridcoll.comm.channel import Place
from gridcoll.comm.context import Context
from gridcoll.comm.methods.base import GridMethods

Derived = TypeVar("Derived", bound="DerivationMethods")


def _place_of(context: Context) -> Place:
    """Return the place of a child that all ranks take part in making. Collective."""
    return context.channel.place_for_child(may_wait=not context.native_only)


class DerivationMethods(GridMethods):
    """Methods that make a communicator of the same ranks, or of some of them."""

    def _child(self, comm: MPI.Comm, place: Place | None) -> MPI.Intracomm:
        """Return ``comm``, made from us, as an object that knows its part of the grid."""
        raise NotImplementedError

    def _derive(self, make: Callable[[], MPI.Comm]) -> MPI.Intracomm:
        """Return the communicator that ``make`` returns, with its part of our grid. Collective.

        The place is reserved first, so that all ranks count it even if MPI raises on one of them.
        """
        context = self._context
        place = None if context is None else _place_of(context)
        return self._child(make(), place)

    def _duplicate(self: Derived, make: Callable[[], Derived]) -> Derived:
        """Return the duplicate that ``make`` returns, with our grid. Collective."""
        context = self._context
        if context is None:
            return make()
        place = _place_of(context)
        new = make()
        new._set_context(context.duplicate(new, place))
        return new

    def _begin_duplicate(
        self: Derived, make: Callable[[], tuple[Derived, MPI.Request]]
    ) -> tuple[Derived, MPI.Request]:
        """Like `_duplicate`, for a non-blocking duplicate: no rank may wait."""
        context = self._context
        if context is None:
            return make()
        place = context.channel.place_for_child(may_wait=False)
        new, request = make()
        new._set_context(context.duplicate(new, place))
        return new, request

    def Dup(self: Derived, info: MPI.Info | None = None) -> Derived:
        """Like `mpi4py.MPI.Comm.Dup`; the duplicate knows the same grid."""
        return self._duplicate(lambda: MPI.Intracomm.Dup(self, info))

    def Dup_with_info(self: Derived, info: MPI.Info) -> Derived:
        """Like `mpi4py.MPI.Comm.Dup_with_info`; the duplicate knows the same grid."""
        return self._duplicate(lambda: MPI.Intracomm.Dup_with_info(self, info))

    def Clone(self: Derived) -> Derived:
        """Like `mpi4py.MPI.Comm.Clone`; the duplicate knows the same grid."""
        return self._duplicate(lambda: MPI.Intracomm.Clone(self))

    def Idup(self: Derived, info: MPI.Info | None = None) -> tuple[Derived, MPI.Request]:
        """Like `mpi4py.MPI.Comm.Idup`; see `Dup`."""
        return self._begin_duplicate(lambda: MPI.Intracomm.Idup(self, info))

    def Idup_with_info(self: Derived, info: MPI.Info) -> tuple[Derived, MPI.Request]:
        """Like `mpi4py.MPI.Comm.Idup_with_info`; see `Dup`."""
        return self._begin_duplicate(lambda: MPI.Intracomm.Idup_with_info(self, info))

    def Split(self, color: int = 0, key: int = 0) -> MPI.Intracomm:
        """Like `mpi4py.MPI.Comm.Split`; the parts know their part of the grid."""
        return self._derive(lambda: MPI.Intracomm.Split(self, color, key))

    def Split_type(
        self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Intracomm:
        """Like `mpi4py.MPI.Comm.Split_type`; the parts know their part of the grid."""
        return self._derive(lambda: MPI.Intracomm.Split_type(self, split_type, key, info))

    def Create(self, group: MPI.Group) -> MPI.Intracomm:
        """Like `mpi4py.MPI.Comm.Create`; the new one knows its part of the grid."""
        return self._derive(lambda: MPI.Intracomm.Create(self, group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> MPI.Intracomm:
        """Like `mpi4py.MPI.Intracomm.Create_group`; the new one knows its part of the grid."""
        context = self._context
        place = None if context is None else context.channel.place_in_group()
        return self._child(super().Create_group(group, tag), place)

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> MPI.Cartcomm:
        """Like `mpi4py.MPI.Intracomm.Create_cart`; the new one knows its part of the grid."""
        return self._derive(lambda: MPI.Intracomm.Create_cart(self, dims, periods, reorder))  # type: ignore[return-value]

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> MPI.Graphcomm:
        """Like `mpi4py.MPI.Intracomm.Create_graph`; the new one knows its part of the grid."""
        return self._derive(lambda: MPI.Intracomm.Create_graph(self, index, edges, reorder))  # type: ignore[return-value]

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> MPI.Distgraphcomm:
        """Like `mpi4py.MPI.Intracomm.Create_dist_graph_adjacent`, knowing its part of the grid."""
        return self._derive(  # type: ignore[return-value]
            lambda: MPI.Intracomm.Create_dist_graph_adjacent(
                self, sources, destinations, sourceweights, destweights, info, reorder
            )
        )

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> MPI.Distgraphcomm:
        """Like `mpi4py.MPI.Intracomm.Create_dist_graph`, knowing its part of the grid."""
        return self._derive(  # type: ignore[return-value]
            lambda: MPI.Intracomm.Create_dist_graph(
                self, sources, degrees, destinations, weights, info, reorder
            )
        )
