"""Grid-aware MPI collectives for mpi4py.

Importing this package does not start MPI, nor need an MPI library; asking for a communicator does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gridcoll.errors import DisagreementError, FileError, GridcollError, PlanError, UsageError
from gridcoll.release import __version__

if TYPE_CHECKING:
    from gridcoll.comm import GridComm
    from gridcoll.launch.world import patch
    from gridcoll.measure.discover import discover
    from gridcoll.model import GridModel, read_model

__all__ = [
    "DisagreementError",
    "FileError",
    "GridComm",
    "GridModel",
    "GridcollError",
    "PlanError",
    "UsageError",
    "__version__",
    "discover",
    "patch",
    "read_model",
]

_ROOMS = {
    "GridComm": "gridcoll.comm",
    "GridModel": "gridcoll.model",
    "discover": "gridcoll.measure.discover",
    "patch": "gridcoll.launch.world",
    "read_model": "gridcoll.model",
}
"""What is loaded when it is asked for: it needs NumPy, and some of it MPI."""


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
