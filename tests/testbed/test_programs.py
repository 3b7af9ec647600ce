"""Programs in C on an emulated grid: what they learn there, and what is kept of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gridcoll.measure.cache.entries import Outcome
from gridcoll.measure.cache.folder import Folder
from gridcoll.testbed.job import Job
from gridcoll.testbed.testbed import Testbed
from tests.launch.programs import Done, needs_compiler, planned_of, toolchain

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.long,
    needs_compiler,
]

SOURCE = Path(__file__).parents[1] / "launch" / "learned.c"

WRONG = """
version = 1
name = "wrong"
clusters = [{ name = "left", ranks = [0, 2] }, { name = "right", ranks = [1, 3] }]
links = [{ between = ["left", "right"], latency = "0.1 ms", rate = "1 Gbit/s" }]
"""
"""Where a ring of all ranks would be fast; between sites, messages go around it for long."""

N_SUMS, N_CALLS = 8192, 500
"""Long enough that comparing clocks is a hundredth of it, and the next exchange comes."""

PERIOD_MS = 80
"""Twice what a call takes: on a busy machine, too, all calls end before the next ones begin."""

Run = Callable[..., Done]


@pytest.fixture
def run(write_grid: Callable[..., Path], tmp_path: Path) -> Run:
    """Run ``learned`` where the sites are 10 ms apart, with settings."""

    def run_one(mpi: str, *arguments: int, **settings: str) -> Done:
        program = toolchain(mpi).build(SOURCE.read_text(), tmp_path)
        command = ["python", "-m", "gridcoll", "run", "--stats"]
        command += [str(program), *map(str, arguments)]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **settings}
        log = tmp_path / "log"
        with Testbed.up(write_grid('"6 ms"', '"10 ms"')) as testbed, log.open("wb") as err:
            job = Job(testbed, mpi).start(command, env=env, stdout=subprocess.PIPE, stderr=err)
            out, _ = job.communicate(timeout=240)
        return Done(command, job.returncode, out.decode(), log.read_text())

    return run_one


def test_a_wrong_model_is_corrected(run: Run, tmp_path: Path) -> None:
    """Calls that take far more than it predicts lead to a look at the links."""
    path = tmp_path / "wrong.toml"
    path.write_text(WRONG)
    done = run(
        "openmpi",
        N_CALLS,
        2 * N_SUMS,  # a ring is the fastest by this model from 128 KiB on
        GRIDCOLL_GRID=str(path),
        GRIDCOLL_CACHE="off",
        GRIDCOLL_LOG="decisions",
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    corrected = r"^gridcoll: call \d+: left to right: \S+ times the latency"
    assert re.search(corrected, done.stderr, re.M)
    planned, native, through_python = planned_of(done)["Allreduce"]
    assert planned > 0
    assert planned + native > through_python


def test_what_it_learned_is_kept(run: Run, tmp_path: Path) -> None:
    """Of calls in which no rank was late: others take another time than predicted."""
    cache = tmp_path / "cache"
    done = run("mpich", 300, N_SUMS, PERIOD_MS, GRIDCOLL_CACHE=str(cache))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert planned_of(done)["Allreduce"][0] > 0
    kept = Folder(cache / "v1").read()
    assert "allreduce" in {each.collective for each in kept if isinstance(each, Outcome)}
