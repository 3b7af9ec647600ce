"""Python objects of MPI's as the handles they hold."""

from __future__ import annotations

import ctypes

from mpi4py import MPI


def set_handle(comm: MPI.Comm, source: MPI.Comm) -> None:
    """Let ``comm`` be what ``source`` is.

    Copied as memory: mpi4py has no assignment, and its constructors call MPI, which may not be up.
    """
    ctypes.memmove(MPI._addressof(comm), MPI._addressof(source), MPI._sizeof(source))
