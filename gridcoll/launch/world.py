"""The swap: ``MPI.COMM_WORLD`` becomes a `GridComm`, and stays what a world is."""

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
    """What ``MPI.COMM_WORLD`` is now; unpickling a world ends here."""
    return MPI.COMM_WORLD


class World(GridComm):
    """The grid-aware ``MPI.COMM_WORLD``; its duplicates and parts are ordinary `GridComm`-likes.

    As with mpi4py's own, copying or pickling it gives itself, and it cannot be freed.
    """

    __module__ = GridIntracomm.__module__

    def __reduce__(self) -> Any:
        return (current_world, ()) if self is MPI.COMM_WORLD else super().__reduce__()

    def free(self) -> None:
        """As `mpi4py.MPI.Comm.free`: nothing happens to a world."""
        if self is not MPI.COMM_WORLD:
            super().free()

    def Free(self) -> None:
        """As `mpi4py.MPI.Comm.Free`: MPI refuses for a world."""
        if self is MPI.COMM_WORLD:
            return _ORIGINAL.Free()
        return super().Free()

    def Disconnect(self) -> None:
        """As `mpi4py.MPI.Comm.Disconnect`: what MPI says to that for a world."""
        if self is MPI.COMM_WORLD:
            return _ORIGINAL.Disconnect()
        return super().Disconnect()


def swap_world(
    fail: Callable[[GridcollError, MPI.Intracomm], object], then: Callable[[], object] | None = None
) -> None:
    """Put a `World` in the place of ``MPI.COMM_WORLD``.

    Where the application starts MPI itself (``mpi4py.rc.initialize = False``), the world is native
    until then. Collective once MPI is up, when ``then`` is called. ``fail`` is called on all ranks
    alike, with the error and the original world, if the grid cannot be had.
    """
    world = _unstarted_world()

    def build() -> None:
        try:
            World.__init__(world, _ORIGINAL)
        except GridcollError as error:
            fail(error, _ORIGINAL)
        if then is not None:
            then()

    setattr(MPI, "COMM_WORLD", world)  # noqa: B010 - declared final
    copyreg.pickle(MPI.Intracomm, _reduce_plain)
    if MPI.Is_initialized():
        build()
    else:
        MPI.Init = _followed_by(build, MPI.Init)
        MPI.Init_thread = _followed_by(build, MPI.Init_thread)


def patch(**settings: Unpack[Keywords]) -> None:
    """Let ``MPI.COMM_WORLD`` be grid-aware from here on, as ``gridcoll run`` does. Collective.

    One line at the top of a program, before others take the world. ``settings`` are those of
    `GridComm`. A second call does nothing. Raises `UsageError` before MPI is started, and what
    ``GridComm(MPI.COMM_WORLD)`` raises; the world is then what it was.
    """
    if isinstance(MPI.COMM_WORLD, World):
        return
    if not MPI.Is_initialized():
        raise UsageError("patch: MPI has not been started; call it after MPI.Init()")
    world = _unstarted_world()
    World.__init__(world, _ORIGINAL, **settings)
    setattr(MPI, "COMM_WORLD", world)  # noqa: B010 - declared final
    copyreg.pickle(MPI.Intracomm, _reduce_plain)


def _unstarted_world() -> GridComm:
    """A `World` with the handle of the original and no context; MPI need not be up."""
    world = World.__new__(World)
    set_handle(world, _ORIGINAL)
    return world


def _reduce_plain(comm: MPI.Intracomm) -> Any:
    """The original world pickles by its name, which is no longer its own."""
    return (current_world, ()) if comm is _ORIGINAL else comm.__reduce_ex__(2)


def _followed_by(step: Callable[[], None], start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def started(*args: Any, **keywords: Any) -> Any:
        result = start(*args, **keywords)
        step()
        return result

    return started
