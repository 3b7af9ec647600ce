"""Commands that need an MPI library where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", [("discover",), ("bench", "bcast")], ids=" ".join)
@pytest.mark.parametrize(
    "error",
    ['RuntimeError("cannot load MPI library")', 'ImportError("libmpi.so.12: no such file")'],
)
def test_says_what_to_do(tmp_path, command, error):
    """mpi4py is there, and its wheels look for an MPI library when MPI is imported."""
    stub = tmp_path / "mpi4py"
    stub.mkdir()
    (stub / "__init__.py").touch()
    (stub / "MPI.py").write_text(f"raise {error}\n")
    done = subprocess.run(
        [sys.executable, "-m", "gridcoll", *command],
        cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    reason = error.split('"')[1]
    assert done.stderr == (
        f"gridcoll: UsageError: no MPI library can be loaded ({reason}); bring one, by a module of "
        "the cluster or with pip install mpich\n"
    )
