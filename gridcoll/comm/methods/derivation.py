"""Communicators made from one: each knows its part of the grid, and nothing is measured again.

Their private communicators are begun when they are made, and where the MPI library allows nobody
waits for them before their first use. `Create_from_group` has no parent to take a grid from and
stays MPI's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from mpi4py import MPI

from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.private import WAITS

Derived = TypeVar("Derived", bound="DerivationMethods")


class DerivationMethods(GridMethods):
    """What makes a communicator of the same ranks, or of some of them."""

    def _derive(self, comm: MPI.Comm) -> MPI.Intracomm:
        """``comm``, made from us, as one of its kind that knows its part of the grid."""
        raise NotImplementedError

    def _with_grid(self: Derived, new: Derived, *, at_once: bool = False) -> Derived:
        """``new``, a duplicate of us, with the grid that we know; without if it cannot be had
        ``at_once``. Collective.
        """
        if self._context is not None and not (at_once and WAITS):
            new._take_context(self._context.duplicate())
        return new

    def Dup(self: Derived, info: MPI.Info | None = None) -> Derived:
        """As `mpi4py.MPI.Comm.Dup`; the duplicate knows the same grid."""
        return self._with_grid(super().Dup(info))

    def Dup_with_info(self: Derived, info: MPI.Info) -> Derived:
        """As `mpi4py.MPI.Comm.Dup_with_info`; the duplicate knows the same grid."""
        return self._with_grid(super().Dup_with_info(info))

    def Clone(self: Derived) -> Derived:
        """As `mpi4py.MPI.Comm.Clone`; the duplicate knows the same grid."""
        return self._with_grid(super().Clone())

    def Idup(self: Derived, info: MPI.Info | None = None) -> tuple[Derived, MPI.Request]:
        """As `mpi4py.MPI.Comm.Idup`; see `Dup`. With Open MPI, the duplicate is native."""
        new, request = super().Idup(info)
        return self._with_grid(new, at_once=True), request

    def Idup_with_info(self: Derived, info: MPI.Info) -> tuple[Derived, MPI.Request]:
        """As `mpi4py.MPI.Comm.Idup_with_info`; see `Idup`."""
        new, request = super().Idup_with_info(info)
        return self._with_grid(new, at_once=True), request

    def Split(self, color: int = 0, key: int = 0) -> MPI.Intracomm:
        """As `mpi4py.MPI.Comm.Split`; the parts know their part of the grid."""
        return self._derive(super().Split(color, key))

    def Split_type(
        self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Intracomm:
        """As `mpi4py.MPI.Comm.Split_type`; the parts know their part of the grid."""
        return self._derive(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> MPI.Intracomm:
        """As `mpi4py.MPI.Comm.Create`; the new one knows its part of the grid."""
        return self._derive(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> MPI.Intracomm:
        """As `mpi4py.MPI.Intracomm.Create_group`; the new one knows its part of the grid."""
        return self._derive(super().Create_group(group, tag))

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> MPI.Cartcomm:
        """As `mpi4py.MPI.Intracomm.Create_cart`; the new one knows its part of the grid."""
        return self._derive(super().Create_cart(dims, periods, reorder))  # type: ignore[return-value]

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> MPI.Graphcomm:
        """As `mpi4py.MPI.Intracomm.Create_graph`; the new one knows its part of the grid."""
        return self._derive(super().Create_graph(index, edges, reorder))  # type: ignore[return-value]

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> MPI.Distgraphcomm:
        """As `mpi4py.MPI.Intracomm.Create_dist_graph_adjacent`, knowing its part of the grid."""
        new = super().Create_dist_graph_adjacent(
            sources, destinations, sourceweights, destweights, info, reorder
        )
        return self._derive(new)  # type: ignore[return-value]

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> MPI.Distgraphcomm:
        """As `mpi4py.MPI.Intracomm.Create_dist_graph`, knowing its part of the grid."""
        new = super().Create_dist_graph(sources, degrees, destinations, weights, info, reorder)
        return self._derive(new)  # type: ignore[return-value]
