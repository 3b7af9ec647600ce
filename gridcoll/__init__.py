"""Grid-aware MPI collectives for mpi4py.

Importing this package does not start MPI, nor need an MPI library; asking for a communicator does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridcoll.release import __version__

if TYPE_CHECKING:
    from gridcoll.comm import GridComm

__all__ = ["GridComm", "__version__"]


def __getattr__(name: str) -> object:
    if name == "GridComm":
        from gridcoll.comm import GridComm

        return GridComm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
