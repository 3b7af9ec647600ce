"""Replace ``MPI.COMM_WORLD`` by a `GridComm` that still behaves like a world."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from gridcoll.comm.communicator import GridComm, GridIntracomm
from gridcoll.comm.methods.base import set_handle
from gridcoll.errors import GridcollError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gridcoll.comm.settings import Keywords

_ORIGINAL = MPI.COMM_WORLD


def current_world() -> MPI.Intracomm:
    """Return the present ``MPI.COMM_WORLD``; pickled worlds are loaded by this function."""
    return MPI.COMM_WORLD


class World(GridComm):
    """The grid-aware ``MPI.COMM_WORLD``.

    Communicators made from it are ordinary `GridComm` objects. As with mpi4py's own world, copying
    or pickling returns the world itself, and it cannot be freed.
    """

    __module__ = GridIntracomm.__module__

    def __reduce__(self) -> Any:
        return (current_world, ()) if self is MPI.COMM_WORLD else super().__reduce__()

    def free(self) -> None:
        """Like `mpi4py.MPI.Comm.free`: do nothing for a world."""
        if self is not MPI.COMM_WORLD:
            super().free()

    def Free(self) -> None:
        """Like `mpi4py.MPI.Comm.Free`: MPI raises an error for a world."""
        if self is MPI.COMM_WORLD:
            return _ORIGINAL.Free()
        return super().Free()

    def Disconnect(self) -> None:
        """Like `mpi4py.MPI.Comm.Disconnect`: for a world, MPI decides what happens."""
        if self is MPI.COMM_WORLD:
            return _ORIGINAL.Disconnect()
        return super().Disconnect()


def swap_world(
    fail: Callable[[GridcollError, MPI.Intracomm], object], then: Callable[[], object] | None = None
) -> None:
    """Replace ``MPI.COMM_WORLD`` by a `World`.

    If the application starts MPI itself (``mpi4py.rc.initialize = False``), the world is native
    until then. Once MPI is started, the replacement is collective, and ``then`` is called. If there
    is no usable grid, ``fail`` is called on all ranks, with the error and the original world.
    """
    world = _unstarted_world()

    def build() -> None:
        try:
            World.__init__(world, _ORIGINAL)
        except GridcollError as error:
            fail(error, _ORIGINAL)
        if then is not None:
            then()

    _put_in_place(world)
    if MPI.Is_initialized():
        build()
    else:
        MPI.Init = _with_step_after(build, MPI.Init)
        MPI.Init_thread = _with_step_after(build, MPI.Init_thread)


def patch(**settings: Unpack[Keywords]) -> None:
    """Make ``MPI.COMM_WORLD`` grid-aware from here on, as ``gridcoll run`` does. Collective.

    Call it at the top of a program, before other code uses the world. ``settings`` are those of
    `GridComm`. A second call does nothing. Raises `UsageError` before MPI is started, and what
    ``GridComm(MPI.COMM_WORLD)`` raises; in both cases the world does not change.
    """
    if isinstance(MPI.COMM_WORLD, World):
        return
    if not MPI.Is_initialized():
        raise UsageError("patch: MPI has not been started; call it after MPI.Init()")
    world = _unstarted_world()
    World.__init__(world, _ORIGINAL, **settings)
    _put_in_place(world)


def _unstarted_world() -> GridComm:
    """Return a `World` with the original handle and no context; MPI need not be started."""
    world = World.__new__(World)
    set_handle(world, _ORIGINAL)
    return world


def _put_in_place(world: GridComm) -> None:
    """Let ``MPI.COMM_WORLD`` be ``world``, and pickle the original world as it."""
    setattr(MPI, "COMM_WORLD", world)  # noqa: B010 - declared final
    copyreg.pickle(MPI.Intracomm, _reduce_plain)


def _reduce_plain(comm: MPI.Intracomm) -> Any:
    """Pickle a plain `MPI.Intracomm`; the original world is pickled as the present world."""
    return (current_world, ()) if comm is _ORIGINAL else comm.__reduce_ex__(2)


def _with_step_after(step: Callable[[], None], start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def started(*args: Any, **keywords: Any) -> Any:
        result = start(*args, **keywords)
        step()
        return result

    return started
