"""`GridComm`: an MPI communicator whose collectives know the grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mpi4py import MPI

from gridcoll.comm.arguments.buffers import open_self_comm
from gridcoll.comm.bands import can_run_beside
from gridcoll.comm.context import ClusterComms, Context
from gridcoll.comm.decisions import Decisions
from gridcoll.comm.handles import set_handle
from gridcoll.comm.methods.allgathering import AllgatheringMethods
from gridcoll.comm.methods.alltoall import AlltoallMethods
from gridcoll.comm.methods.alltoallv import AlltoallvMethods
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.broadcast import BroadcastMethods
from gridcoll.comm.methods.derivation import DerivationMethods
from gridcoll.comm.methods.gathering import GatheringMethods
from gridcoll.comm.methods.nonblocking import NonblockingMethods
from gridcoll.comm.methods.reduce_scattering import ReduceScatteringMethods
from gridcoll.comm.methods.reductions import ReductionMethods
from gridcoll.comm.methods.scattering import ScatteringMethods
from gridcoll.comm.private import PrivateComm
from gridcoll.comm.settings import Settings, read_settings
from gridcoll.comm.version import VERSION
from gridcoll.engine.agreement import require_equal, together
from gridcoll.engine.compiled import require_engine
from gridcoll.engine.progress import open_progress
from gridcoll.errors import UsageError
from gridcoll.measure.find_model import find_model
from gridcoll.model import GridModel
from gridcoll.plan import Choice
from gridcoll.plan.traffic import Traffic
from gridcoll.topology.grid import Grid

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
    """A drop-in for an intracommunicator, with grid-aware collectives.

    ``GridComm(comm)`` is collective over ``comm`` and keeps its handle: ranks, groups and
    point-to-point messages are those of ``comm``. The grid is read from the file that
    ``GRIDCOLL_GRID`` names, or measured. Our own messages go over a private communicator.

    What has a topology keeps it: of an `MPI.Cartcomm`, ``GridComm(cart)`` is one, too.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        Without one, or with ``MPI.COMM_NULL``, a null communicator results.
    model : GridModel, optional
        Use this instead of reading or measuring; the same on all ranks.

    Raises
    ------
    TypeError
        For an intercommunicator.
    FileError, UsageError, DisagreementError
        For a grid file that does not fit the job, or settings that ranks do not agree on; the same
        on all ranks.
    """

    # Class attribute, because MPI's own Dup builds objects without calling __init__.
    _borrowed = False
    """Whether the handle is somebody else's, to be freed by him."""

    def __new__(cls, comm: MPI.Comm | None = None, *, model: GridModel | None = None) -> GridComm:
        if comm is not None and not isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL:
            raise TypeError(f"GridComm: needs an intracommunicator, got {type(comm).__name__}")
        # By name: of several bases, Python takes only the first one's for safe here.
        return MPI.Intracomm.__new__(_kind_of(comm) if cls is GridComm else cls, comm)

    def __init__(self, comm: MPI.Comm | None = None, *, model: GridModel | None = None) -> None:
        if comm is None or comm == MPI.COMM_NULL:
            return
        open_self_comm()
        open_progress()
        self._take_context(_make_context(comm, model))
        self._borrowed = True

    @property
    def grid(self) -> Grid:
        """The clusters of this communicator; each has ``ranks`` and a ``coordinator``."""
        return self.model.grid

    @property
    def model(self) -> GridModel:
        """Grid and pLogP of its links."""
        return self._need().model

    def explain(self, collective: str, nbytes: int, root: int = 0) -> Choice:
        """What a call would do, among which candidates, and why. Local.

        Parameters
        ----------
        collective : str
            As ``"bcast"``.
        nbytes : int
            Bytes of the message.
        root : int

        Raises
        ------
        UsageError
            For an unknown collective, a negative size or a root out of range.
        """
        if nbytes < 0:
            raise UsageError(f"nbytes: must not be negative, got {nbytes}")
        return self._need().decisions.choice(collective, nbytes, root)

    def forced(self, collective: str, algorithm: str) -> GridComm:
        """A view of this communicator that always takes ``algorithm`` for ``collective``. Local.

        It shares handle and private communicator with us: do not use both at the same time from
        two threads, and do not free it.
        """
        view = type(self).__new__(type(self), self)
        view._take_context(self._need().with_algorithm(collective, algorithm))
        return view

    def traffic(self) -> Traffic:
        """Messages and bytes that planned calls sent so far, by pair of clusters. Collective.

        Counted by the engine as it sends. For one call, ask before and after:
        ``comm.traffic().since(before)``. What the native collectives send is not in it.
        """
        return self._need().traffic()

    def cluster_comms(self) -> ClusterComms:
        """Communicators inside clusters, between coordinators, and along lanes.

        Collective at its first call; they belong to this communicator and are freed with it.
        """
        return self._need().cluster_comms()

    def _take_context(self, context: Context) -> None:
        """Take ``context``. Where no call can gain anything, MPI's own methods stand before ours.

        So a call costs there what it costs without us. What a subclass overrides stays in front.
        """
        super()._take_context(context)
        if context.native_only:
            for name, ours in _COLLECTIVES.items():
                if getattr(type(self), name) is ours:
                    self.__dict__[name] = getattr(MPI.Intracomm, name).__get__(self)

    def _need(self) -> Context:
        if self._context is None:
            raise UsageError("this GridComm is null, freed, or was not built by GridComm(comm)")
        return self._context

    def _derive(self, comm: MPI.Comm) -> MPI.Intracomm:
        context = self._context
        if context is None or comm == MPI.COMM_NULL:
            return comm if isinstance(comm, MPI.Intracomm) else MPI.Intracomm(comm)
        # Not the application's own class: its `__init__` would be missing, and mpi4py gives that to
        # duplicates only.
        kind = _kind_of(comm)
        new = kind.__new__(kind, comm)
        theirs, ours = comm.Get_group(), self.Get_group()
        try:
            ranks = MPI.Group.Translate_ranks(theirs, list(range(comm.Get_size())), ours)
        finally:
            theirs.Free()
            ours.Free()
        new._take_context(context.restrict(new, ranks))
        return new

    def __reduce__(self) -> Any:
        """As mpi4py's of what has no name: our private communicator has none.

        By its handle, ``GridComm(MPI.COMM_WORLD)`` would arrive as one that knows no grid, whose
        calls others, which do, would wait for.
        """
        if self._context is None:
            return super().__reduce__()
        kind = type(self)
        raise ValueError(f"cannot serialize '{kind.__module__}.{kind.__name__}' instance")

    def __copy__(self: Self) -> Self:
        """Itself, where mpi4py would copy the handle; it raises where mpi4py does."""
        MPI.Intracomm.__reduce__(self)
        return self

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """As `copy.copy`."""
        return self.__copy__()

    def Free(self) -> None:
        """As `mpi4py.MPI.Comm.Free`, of what gridcoll made. Collective.

        What ``GridComm(comm)`` was built on stays its owner's, and to be freed by him; this object
        is null afterwards in any case.
        """
        self._end(super().Free)

    def Disconnect(self) -> None:
        """As `mpi4py.MPI.Comm.Disconnect`; see `Free`."""
        self._end(super().Disconnect)

    def free(self) -> None:
        """As `mpi4py.MPI.Comm.free`: `Free`, unless null."""
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
"""What the mixins put in the place of MPI's own."""


class GridCartcomm(GridComm, MPI.Cartcomm):
    """A Cartesian `GridComm`."""

    def Sub(self, remain_dims: Sequence[bool]) -> MPI.Cartcomm:
        """As `mpi4py.MPI.Cartcomm.Sub`; the parts know their part of the grid."""
        return self._derive(super().Sub(remain_dims))  # type: ignore[return-value]


class GridGraphcomm(GridComm, MPI.Graphcomm):
    """A `GridComm` with a graph."""


class GridDistgraphcomm(GridComm, MPI.Distgraphcomm):
    """A `GridComm` with a distributed graph."""


_KINDS: dict[type[MPI.Comm], type[GridComm]] = {
    MPI.Cartcomm: GridCartcomm,
    MPI.Graphcomm: GridGraphcomm,
    MPI.Distgraphcomm: GridDistgraphcomm,
}


def _kind_of(comm: MPI.Comm | None) -> type[GridComm]:
    """The class that keeps ``comm``'s topology."""
    return next((ours for theirs, ours in _KINDS.items() if isinstance(comm, theirs)), GridComm)


def _make_context(comm: MPI.Comm, model: GridModel | None) -> Context:
    private = PrivateComm.create(comm)
    try:
        settings = together(private.comm, _read_own)
        what = "settings (GRIDCOLL_* variables) and version"
        require_equal(private.comm, what, f"{settings.text()} gridcoll={VERSION}")
        found = find_model(
            private.comm,
            model,
            grid_file=settings.grid_file,
            keep=settings.keep,
            tolerance=settings.tolerance,
            tolerance_is_set=settings.tolerance_is_set,
        )
        threads = can_run_beside(private.comm)
    except BaseException:
        private.free()
        raise
    decisions = Decisions(private.comm.Get_rank(), found, settings)
    return Context(decisions, private, threads)


def _read_own() -> Settings:
    """This rank's settings. What may be wrong here alone is found now, while all ranks ask."""
    require_engine()
    return read_settings()
