"""The hostfile that ``gridcoll select`` writes is taken by each MPI, and the subset runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gridcoll.cli.select_command import command
from gridcoll.testbed.launchers import find_environment, launch_environment, launch_line, launcher
from gridcoll.testbed.testbed import Testbed

pytestmark = pytest.mark.testbed

GRID = """
version = 1
name = "select"
[[clusters]]
name = "near"
hosts = 2
nic = "100 Mbit/s"
[[clusters]]
name = "far"
hosts = 2
nic = "100 Mbit/s"
[[clusters]]
name = "next"
hosts = 1
nic = "100 Mbit/s"
[[links]]
between = ["near", "next"]
latency = "1 ms"
[[links]]
between = ["near", "far"]
latency = "30 ms"
[[links]]
between = ["next", "far"]
latency = "30 ms"
"""

PROBLEM = """
version = 1
grid = "grid.toml"
n_elements = 10000
[[phases]]
name = "all"
alpha_s = 1e-5
"""

SAY_WHERE = (
    "from mpi4py import MPI\n"
    "hosts = MPI.COMM_WORLD.gather(MPI.Get_processor_name())\n"
    "if hosts: print('\\n'.join(hosts))\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("select")
    (path / "grid.toml").write_text(GRID)
    (path / "problem.toml").write_text(PROBLEM)
    return path


@pytest.fixture(scope="module")
def testbed(folder: Path) -> Iterator[Testbed]:
    with Testbed.up(folder / "grid.toml") as testbed:
        yield testbed


def test_the_chosen_subset_runs(folder: Path, testbed: Testbed, mpi: str) -> None:
    starts = launcher(mpi)
    hostfile = folder / f"hosts-{mpi}"
    arguments = [folder / "problem.toml", "--json", "--hostfile", hostfile, "--mpi"]
    result = CliRunner().invoke(
        command, [*map(str, arguments), starts.hostfile], catch_exceptions=False
    )
    best = json.loads(result.stdout)["best"]
    assert best["clusters"] == ["near", "next"]

    written, inside = testbed.shared_file(hostfile.name)
    written.write_text(hostfile.read_text())
    venv = find_environment(mpi)
    program = [str(venv / "bin" / "python"), "-c", SAY_WHERE]
    line = launch_line(starts, venv, inside, best["n_hosts"], True, program)
    environment = launch_environment(starts, venv, os.environ)
    process = testbed.popen("near-0", line, environment, stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert output.decode().split() == ["near-0", "near-1", "next-0"]
