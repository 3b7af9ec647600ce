"""Programs in C, C++ and Fortran: a library preloaded before MPI's, and its Python half."""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).with_name("libgridcoll.so")
"""Built when gridcoll is installed, if there is a C compiler."""
