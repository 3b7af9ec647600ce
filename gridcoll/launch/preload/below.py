"""Python applications in which compiled libraries make some of the MPI calls."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

from gridcoll.launch.preload import LIBRARY
from gridcoll.launch.programs import is_first_rank

_MPI_LIBRARY = re.compile(r"(/\S*/libmpi(?:ch|_abi)?\.so\S*)")
"""The path in ``/proc/self/maps`` of MPICH, Open MPI, Intel MPI, or a library of the MPI 5 ABI."""


def start_library() -> None:
    """Handle the calls of compiled libraries, too; those of mpi4py's methods are handled already.

    Collective. Call it after the world was replaced.
    """
    from mpi4py import MPI

    in_module = ctypes.cast(ctypes.CDLL(MPI.__file__, os.RTLD_NOLOAD).PyInit_MPI, ctypes.c_void_p)
    ctypes.CDLL(str(LIBRARY), os.RTLD_NOLOAD | os.RTLD_LAZY).gridcoll_start(in_module)


def warn_that_all_was_native() -> None:
    """Warn on the first rank that all calls were native, if a compiled library started MPI.

    To be called at the end of a program whose `MPI.COMM_WORLD` never became grid-aware.
    """
    if is_first_rank() and _is_mpi_started():
        sys.stderr.write(
            "gridcoll: a compiled library started MPI, not mpi4py: all collectives ran natively; "
            "gridcoll run --preload serves such programs\n"
        )


def _is_mpi_started() -> bool:
    """Whether an MPI library is loaded in this process and was started, by whatever code."""
    maps = Path("/proc/self/maps")
    for path in set(_MPI_LIBRARY.findall(maps.read_text() if maps.exists() else "")):
        try:
            is_initialized = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY).MPI_Initialized
        except (OSError, AttributeError):
            continue
        flag = ctypes.c_int(0)
        is_initialized(ctypes.byref(flag))
        if flag.value:
            return True
    return False
