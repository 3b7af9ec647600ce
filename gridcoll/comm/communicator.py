"""`GridComm`: an MPI communicator whose collectives know the grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from gridcoll.comm.arguments.buffers import open_self_comm
from gridcoll.comm.channel import Channel, Place, can_run_in_background, new_private
from gridcoll.comm.context import ClusterComms, Context
from gridcoll.comm.decisions import Decisions
from gridcoll.comm.methods.allgathering import AllgatheringMethods
from gridcoll.comm.methods.alltoall import AlltoallMethods
from gridcoll.comm.methods.alltoallv import AlltoallvMethods
from gridcoll.comm.methods.base import GridMethods, set_handle
from gridcoll.comm.methods.broadcast import BroadcastMethods
from gridcoll.comm.methods.derivation import DerivationMethods
from gridcoll.comm.methods.gathering import GatheringMethods, ScatteringMethods
from gridcoll.comm.methods.nonblocking import NonblockingMethods
from gridcoll.comm.methods.reduce_scattering import ReduceScatteringMethods
from gridcoll.comm.methods.reductions import ReductionMethods
from gridcoll.comm.settings import (
    VERSION,
    Keywords,
    Settings,
    environment_with,
    misspelt,
    read_settings,
)
from gridcoll.comm.tracing import require_folder, watch
from gridcoll.engine.agreement import agree_on
from gridcoll.engine.compiled import require_engine
from gridcoll.engine.progress import open_progress
from gridcoll.errors import UsageError
from gridcoll.measure.find_model import Hello, HelloRow, find_model, say_hello
from gridcoll.measure.report import Report
from gridcoll.model import GridModel
from gridcoll.plan import Choice
from gridcoll.plan.traces import Traffic
from gridcoll.topology.grid import Grid

if TYPE_CHECKING:
    from typing_extensions import Unpack

Self = TypeVar("Self", bound="GridComm")


class GridComm(
    DerivationMethods,
    NonblockingMethods,
    ReductionMethods,
    AlltoallMethods,
    AlltoallvMethods,
    AllgatheringMethods,
    GatheringMethods,
    ReduceScatteringMethods,
    ScatteringMethods,
    BroadcastMethods,
):
    """A drop-in replacement for an intracommunicator, with grid-aware collectives.

    ``GridComm(comm)`` is collective over ``comm`` and uses the same handle: ranks, groups and
    point-to-point messages are those of ``comm``. The grid is read from the file that
    ``GRIDCOLL_GRID`` names, or measured. gridcoll sends its own messages over a private
    communicator.

    A topology is preserved: for an `MPI.Cartcomm`, ``GridComm(cart)`` is an `MPI.Cartcomm`, too.

    Used as a context manager, it is freed at the end of the block, but not after an error: freeing
    is collective, and the error may have happened on one rank only.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        If omitted or ``MPI.COMM_NULL``, the result is a null communicator.
    model : GridModel, optional
        Use this model instead of reading or measuring one. Must be the same on all ranks.
    **settings
        Settings of this communicator and of those made from it, instead of the environment's:
        ``grid``, ``cache`` (or ``keep``), ``check``, ``force``, ``tolerance``, ``reproducible``,
        ``learn``, ``log``, ``algorithms`` as ``{"bcast": "ecef"}``, and ``info``, an `MPI.Info`
        with hints of the same names and the prefix ``gridcoll_``. Keywords override hints, and
        hints override the environment.

    Raises
    ------
    TypeError
        If ``comm`` is an intercommunicator.
    FileError, UsageError, DisagreementError
        If the grid file does not fit the job, or ranks have different settings. The error is the
        same on all ranks.
    """

    # Class attribute, because MPI's own Dup builds objects without calling __init__.
    _borrowed = False
    """Whether the handle belongs to another object, which will free it."""

    def __new__(
        cls,
        comm: MPI.Comm | None = None,
        *,
        model: GridModel | None = None,
        **settings: Unpack[Keywords],
    ) -> GridComm:
        if comm is not None and not isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL:
            raise TypeError(f"GridComm: needs an intracommunicator, got {type(comm).__name__}")
        # Not super(): with several bases, Python rejects every other `__new__` as unsafe.
        return MPI.Intracomm.__new__(_class_for(comm) if cls is GridComm else cls, comm)

    def __init__(
        self,
        comm: MPI.Comm | None = None,
        *,
        model: GridModel | None = None,
        **settings: Unpack[Keywords],
    ) -> None:
        if comm is None or comm == MPI.COMM_NULL:
            return
        open_self_comm()
        open_progress()
        self._set_context(_make_context(comm, model, settings))
        self._borrowed = True

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.free()

    @property
    def grid(self) -> Grid:
        """The clusters of this communicator; each has ``ranks`` and a ``coordinator``."""
        return self.model.grid

    @property
    def model(self) -> GridModel:
        """The grid and the pLogP parameters of its links."""
        return self._require_context().model

    def explain(self, collective: str, nbytes: int, root: int = 0) -> Choice:
        """Return what a call would do, all candidates, and the reason for the choice. Local.

        Candidates that already executed such calls also have observed times. If all allreduces of
        this size were sums of floats, the choice for sums of floats is explained.

        Raises `UsageError` for an unknown collective, a negative size or a root out of range.
        """
        context = self._require_context()
        if nbytes < 0:
            raise UsageError(f"nbytes: must not be negative, got {nbytes}")
        if not 0 <= root < self.Get_size():
            raise UsageError(f"root: must be in 0..{self.Get_size() - 1}, got {root}")
        return context.explain(collective, nbytes, root)

    def remeasure(self, links: Collection[tuple[str, str]] | None = None) -> None:
        """Measure links between clusters again and choose by the result. Collective.

        This takes seconds. A coarser measurement starts automatically when calls become slower or
        faster than before. Other communicators keep their model.

        Raises `UsageError` for a name that no cluster has, or for a link inside one cluster.

        Parameters
        ----------
        links : collection of (str, str), optional
            Pairs of cluster names, as in ``comm.grid.clusters``; all links by default. Must be the
            same on all ranks.
        """
        context = self._require_context()
        names = [cluster.name for cluster in context.model.grid.clusters]
        n = range(len(names))
        if links is None:
            context.remeasure([(a, b) for a in n for b in n if a < b])
            return
        for link in links:
            if len(set(link)) != 2 or not set(link) <= set(names):
                raise UsageError(f"link {link}: must be two of the clusters {', '.join(names)}")
        context.remeasure([(names.index(a), names.index(b)) for a, b in links])

    def forced(self, collective: str, algorithm: str) -> GridComm:
        """Return a view of this communicator that always uses ``algorithm`` for ``collective``.

        Local. The view shares the handle and the private communicator: do not use both at the same
        time from two threads, and do not free the view.
        """
        view = type(self).__new__(type(self), self)
        view._set_context(self._require_context().with_algorithm(collective, algorithm))
        return view

    def traffic(self) -> Traffic:
        """Messages and bytes that planned calls sent so far, by pair of clusters. Collective.

        The engine counts them as it sends. To get the traffic of one call, ask before and after:
        ``comm.traffic().since(before)``. Messages of native collectives are not included.
        """
        return self._require_context().traffic()

    def cluster_comms(self) -> ClusterComms:
        """Communicators inside clusters, between coordinators, and along lanes.

        The first call is collective. They belong to this communicator and are freed with it.
        """
        return self._require_context().cluster_comms()

    def _set_context(self, context: Context) -> None:
        """Set ``context``. If no call can gain anything, install MPI's own methods.

        A call then costs the same as without gridcoll. Methods that a subclass overrides stay.
        """
        super()._set_context(context)
        watch(context)
        if context.native_only:
            for name, ours in _COLLECTIVES.items():
                if getattr(type(self), name) is ours:
                    self.__dict__[name] = getattr(MPI.Intracomm, name).__get__(self)

    def _require_context(self) -> Context:
        if self._context is None:
            raise UsageError("this GridComm is null, freed, or was not built by GridComm(comm)")
        return self._context

    def _child(self, comm: MPI.Comm, place: Place | None) -> MPI.Intracomm:
        context = self._context
        if context is None or place is None or comm == MPI.COMM_NULL:
            return comm if isinstance(comm, MPI.Intracomm) else MPI.Intracomm(comm)
        # Not the application's subclass, whose `__init__` would not run. mpi4py also keeps the
        # subclass for duplicates only.
        new: GridComm = MPI.Intracomm.__new__(_class_for(comm), comm)
        theirs, ours = comm.Get_group(), self.Get_group()
        try:
            ranks = tuple(theirs.Translate_ranks(range(comm.Get_size()), ours))
        finally:
            theirs.Free()
            ours.Free()
        new._set_context(context.restrict(new, place, ranks))
        return new

    def __reduce__(self) -> Any:
        """Raise `ValueError` unless null, as mpi4py does for communicators without a name.

        If ``GridComm(MPI.COMM_WORLD)`` were pickled by its handle, it would become a communicator
        without a grid, and its calls would not match those of other ranks.
        """
        if self == MPI.COMM_NULL:
            return GridComm, ()
        if self._context is None:
            return super().__reduce__()
        kind = type(self)
        raise ValueError(f"cannot serialize '{kind.__module__}.{kind.__name__}' instance")

    def __copy__(self: Self) -> Self:
        """Return ``self``, where mpi4py would copy the handle. Raises where mpi4py raises."""
        MPI.Intracomm.__reduce__(self)
        return self

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """Same as `__copy__`."""
        return self.__copy__()

    def Free(self) -> None:
        """Like `mpi4py.MPI.Comm.Free`, but only for communicators that gridcoll made. Collective.

        The ``comm`` of ``GridComm(comm)`` is not freed: it belongs to its owner. In all cases this
        object is null afterwards.
        """
        self._end(super().Free)

    def Disconnect(self) -> None:
        """Like `mpi4py.MPI.Comm.Disconnect`; see `Free`."""
        self._end(super().Disconnect)

    def free(self) -> None:
        """Like `mpi4py.MPI.Comm.free`: call `Free` unless this communicator is null."""
        if self != MPI.COMM_NULL:
            self.Free()

    def _end(self, end: Callable[[], None]) -> None:
        context, self._context = self._context, None
        self._fast_path = type(self)._fast_path
        if context is not None:
            context.free()
        if self._borrowed:
            set_handle(self, MPI.COMM_NULL)
            self._borrowed = False
        else:
            end()


_COLLECTIVES = {
    name: method
    for mixin in GridComm.__mro__[1:]
    if issubclass(mixin, GridMethods) and mixin is not DerivationMethods
    for name, method in vars(mixin).items()
    if not name.startswith("_")
}
"""Methods of the mixins that replace MPI's own."""


# The `__module__` of our communicator classes: petsc4py and other packages accept only classes that
# name mpi4py's module. `GridComm` itself keeps its own, because pickles look for it there.
_MODULE = MPI.Intracomm.__module__


class GridIntracomm(GridComm):
    """A `GridComm` without a topology."""

    __module__ = _MODULE


class GridCartcomm(GridComm, MPI.Cartcomm):
    """A Cartesian `GridComm`."""

    __module__ = _MODULE

    def Sub(self, remain_dims: Sequence[bool]) -> MPI.Cartcomm:
        """Like `mpi4py.MPI.Cartcomm.Sub`; each new communicator knows its part of the grid."""
        return self._derive(lambda: MPI.Cartcomm.Sub(self, remain_dims))  # type: ignore[return-value]


class GridGraphcomm(GridComm, MPI.Graphcomm):
    """A `GridComm` with a graph."""

    __module__ = _MODULE


class GridDistgraphcomm(GridComm, MPI.Distgraphcomm):
    """A `GridComm` with a distributed graph."""

    __module__ = _MODULE


_KINDS: dict[type, type[GridComm]] = {
    MPI.Cartcomm: GridCartcomm,
    MPI.Graphcomm: GridGraphcomm,
    MPI.Distgraphcomm: GridDistgraphcomm,
}


def _class_for(comm: MPI.Comm | None) -> type[GridComm]:
    """Return our class for the topology of ``comm``."""
    for kind in type(comm).__mro__:
        if kind is MPI.Intracomm:
            break
        if (ours := _KINDS.get(kind)) is not None:
            return ours
    return GridIntracomm


def _make_context(comm: MPI.Comm, model: GridModel | None, keywords: Keywords) -> Context:
    plain = MPI.Intracomm(comm)
    private = new_private(plain)
    try:
        settings, hello, rows = _agree_on_settings(private, keywords)
        found = find_model(
            private,
            model,
            grid_file=settings.grid_file,
            places=settings.places,
            tolerance=settings.tolerance,
            greeting=(hello, [row for _, row in rows]),
        )
    except BaseException:
        private.Free()
        raise
    _warn_of_misspelt(plain.Get_rank())
    threads = all(can_run for can_run, _ in rows)
    channel = Channel.create(plain, private, threads)
    return Context(Decisions(plain.Get_rank(), found, settings), channel, threads)


@cache
def _warn_of_misspelt(rank: int) -> None:
    """Warn once, on rank 0, about misspelt variables, which have no effect."""
    Report(rank == 0).warn(misspelt(os.environ))


def _agree_on_settings(
    private: MPI.Intracomm, keywords: Keywords
) -> tuple[Settings, Hello, list[tuple[bool, HelloRow]]]:
    """Agree on settings, and exchange the rows that `find_model` needs first. Collective.

    Everything is done in one exchange, since each exchange crosses the grid several times.
    """

    def read() -> tuple[Settings, Hello]:
        own = _read_own(keywords)
        return own, say_hello(private, own.tolerance)

    (settings, hello), rows = agree_on(
        private,
        "settings (GRIDCOLL_* variables) and version",
        read,
        lambda own: f"{own[0].text()}; gridcoll={VERSION}",
        lambda own: (can_run_in_background(), own[1].row),
    )
    return settings, hello, rows


def _read_own(keywords: Keywords) -> Settings:
    """Return this rank's settings. Errors raised here are passed on to all ranks by `agree_on`."""
    require_engine()
    require_folder()
    return read_settings(environment_with(keywords))
