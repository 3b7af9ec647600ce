"""mypy --strict checks a user's program as it does with mpi4py's own communicators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[1]

PROGRAM = """
from mpi4py import MPI
import numpy as np
import gridcoll

def mean(comm: MPI.Intracomm, values: np.ndarray) -> float:
    total = np.empty(1)
    comm.Allreduce([np.array([values.sum()]), MPI.DOUBLE], total, op=MPI.SUM)
    return float(total[0]) / comm.size

with gridcoll.GridComm(MPI.COMM_WORLD, reproducible=True, algorithms={"bcast": "chain"}) as comm:
    data = np.zeros(10)
    comm.Bcast(data, root=0)
    comm.Reduce(MPI.IN_PLACE if comm.rank == 0 else data, data)
    comm.Scatterv([data, ([10], [0]), MPI.DOUBLE], np.empty(10), root=0)
    print(mean(comm, data), [cluster.ranks for cluster in comm.grid.clusters])
gridcoll.patch(learn=False)
try:
    model: gridcoll.GridModel = gridcoll.read_model("grid.json")
except gridcoll.FileError as error:
    print(error, gridcoll.__version__)
"""
WRONG = """
from mpi4py import MPI
import gridcoll

comm = gridcoll.GridComm(MPI.COMM_WORLD, reproducible="often")
comm.Bcast(bytearray(3), root="zero")
gridcoll.patch(speed=1)
gridcoll.read_model(3)
"""


def check(program: str, place: Path) -> str:
    (place / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "program.py"]
    command += ["--cache-dir", str(place / "cache")]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=280,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_typed_program(tmp_path: Path) -> None:
    assert "Success" in check(PROGRAM, tmp_path)
    output = check(WRONG, tmp_path)
    found = {int(line.split(":")[1]) for line in output.splitlines() if ": error: " in line}
    assert found == {5, 6, 7, 8}, output
