"""Hosts beside one another whose interfaces are unlike: two clusters, and so they are kept."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gridcoll.testbed.job import Job
from gridcoll.testbed.testbed import Testbed

pytestmark = pytest.mark.testbed

GRID = """
version = 1
name = "unlike"
[[clusters]]
name = "old"
hosts = 2
nic = "25 Mbit/s"
[[clusters]]
name = "new"
hosts = 2
nic = "100 Mbit/s"
[[clusters]]
name = "far"
hosts = 2
nic = "100 Mbit/s"
[[links]]
between = ["old", "new"]
latency = "0.1 ms"
rate = "1 Gbit/s"
[[links]]
between = ["old", "far"]
latency = "4 ms"
rate = "1 Gbit/s"
[[links]]
between = ["new", "far"]
latency = "4 ms"
rate = "1 Gbit/s"
"""

SHOW = """
import json
from mpi4py import MPI
import gridcoll
comm = gridcoll.GridComm(MPI.COMM_WORLD)
if comm.rank == 0:
    print(json.dumps([list(comm.grid.cluster_of), str(comm.model.sources[0][0])]))
"""


def test_they_are_told_apart_at_the_first_start_and_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    monkeypatch.setenv("GRIDCOLL_CACHE", str(tmp_path / "cache"))
    with Testbed.up(path) as testbed:
        for source in ("measured at", "measured 20"):
            job = Job(testbed, "mpich").start(["python", "-c", SHOW], stdout=subprocess.PIPE)
            out, _ = job.communicate(timeout=100)
            assert job.returncode == 0
            labels, told = json.loads(out)
            assert labels == [0, 0, 1, 1, 2, 2]
            assert told.startswith(source)
