"""The user's communicator, and its arguments, decisions, requests and settings.

Importing this package does not start MPI; accessing a communicator class in it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridcoll.comm.communicator import GridComm
    from gridcoll.comm.context import ClusterComms

__all__ = ["ClusterComms", "GridComm"]


def __getattr__(name: str) -> object:
    if name == "GridComm":
        from gridcoll.comm.communicator import GridComm

        return GridComm
    if name == "ClusterComms":
        from gridcoll.comm.context import ClusterComms

        return ClusterComms
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
