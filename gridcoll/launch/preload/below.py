"""Python applications whose MPI calls are partly made below Python, by compiled libraries."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

from gridcoll.launch.preload import LIBRARY
from gridcoll.launch.programs import speaks

_MPI_LIBRARY = re.compile(r"(/\S*/libmpi(?:ch|_abi)?\.so\S*)")
"""A line of ``/proc/self/maps`` for MPICH, Open MPI, Intel MPI, or a binary of the MPI 5 ABI."""


def start_library() -> None:
    """Let compiled libraries' calls be ours, too; those of mpi4py's methods are already.

    Collective, once the world is swapped.
    """
    from mpi4py import MPI

    in_module = ctypes.cast(ctypes.CDLL(MPI.__file__, os.RTLD_NOLOAD).PyInit_MPI, ctypes.c_void_p)
    ctypes.CDLL(str(LIBRARY), os.RTLD_NOLOAD | os.RTLD_LAZY).gridcoll_start(in_module)


def say_that_all_was_native() -> None:
    """Say on the first rank that all calls were native, if a compiled library started MPI.

    To be called at the end of a program whose `MPI.COMM_WORLD` never became grid-aware.
    """
    if speaks() and _is_mpi_started():
        sys.stderr.write(
            "gridcoll: a compiled library started MPI, not mpi4py: all collectives ran natively; "
            "gridcoll run --preload serves such programs\n"
        )


def _is_mpi_started() -> bool:
    """Whether an MPI library is in this process and was started, whoever did that."""
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
