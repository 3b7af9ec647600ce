"""The user's communicator: discovery, agreement, settings and the plan cache behind it.

Importing this package does not start MPI (`runner` is in it, and must not); taking a communicator
class out of it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridcoll.comm.context import ClusterComms
    from gridcoll.comm.gridcomm import GridComm

__all__ = ["ClusterComms", "GridComm"]


def __getattr__(name: str) -> object:
    if name == "GridComm":
        from gridcoll.comm.gridcomm import GridComm

        return GridComm
    if name == "ClusterComms":
        from gridcoll.comm.context import ClusterComms

        return ClusterComms
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
