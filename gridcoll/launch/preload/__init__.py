"""Programs in C, C++ and Fortran: a library put in front of MPI's, and its half in Python."""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).with_name("libgridcoll.so")
"""Built when gridcoll is installed where there is a C compiler."""
