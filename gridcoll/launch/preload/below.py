"""Python applications whose MPI calls are partly made below Python, by compiled libraries."""

from __future__ import annotations

import ctypes
import os

from gridcoll.launch.preload import LIBRARY


def start_library() -> None:
    """Let compiled libraries' calls be ours, too; those of mpi4py's methods are already.

    Collective, once the world is swapped.
    """
    from mpi4py import MPI

    in_module = ctypes.cast(ctypes.CDLL(MPI.__file__, os.RTLD_NOLOAD).PyInit_MPI, ctypes.c_void_p)
    ctypes.CDLL(str(LIBRARY), os.RTLD_NOLOAD | os.RTLD_LAZY).gridcoll_start(in_module)
