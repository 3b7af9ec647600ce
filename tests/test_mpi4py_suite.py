"""The checker that runs other projects' tests on our communicators detects failures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

Run = Callable[..., "subprocess.CompletedProcess[str]"]

MPIEXEC = Path(sys.prefix, "bin", "mpiexec")
ROOT = Path(__file__).parents[1]

BODY = """
import unittest
from mpi4py import MPI
RANK = MPI.COMM_WORLD.Get_rank()

class Tests(unittest.TestCase):
    def test_fine(self):
        buffer = bytearray([RANK] * 8)
        MPI.COMM_WORLD.Bcast(buffer, root=1)
        self.assertEqual(buffer, bytes([1] * 8))
"""

RANK_1_FAILS = """
    def test_odd(self):
        self.assertEqual(RANK, 0, "a mistake")
"""

RANK_1_STUMBLES = """
    def test_missing(self):
        [0][RANK]
"""

RANK_1_HANGS = """
    def test_odd(self):
        if RANK == 1:
            MPI.COMM_WORLD.recv()
"""

NOTHING_OF_OURS = """
import unittest

class Tests(unittest.TestCase):
    def test_fine(self):
        pass
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the checker on two ranks, with test modules given as ``name=text``."""
    if not MPIEXEC.exists():
        pytest.skip(f"needs {MPIEXEC}")

    def start(*options: str, **modules: str) -> subprocess.CompletedProcess[str]:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        suite = ROOT / "tests" / "mpi4py" / "suite.py"
        return subprocess.run(
            [
                *(MPIEXEC, "-n", "2", sys.executable, suite),
                *(str(tmp_path), *modules, *options),
            ],
            cwd=tmp_path,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("PMI_")},
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return start


def test_what_passes(run: Run) -> None:
    done = run(sample=BODY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "sample …: 0 of 1 failed, 0 differ as pinned, 0 skipped, 2 plans run on 2 ranks"
        in done.stdout
    )
    assert "FAILED" not in done.stdout


def test_one_rank_is_enough(run: Run) -> None:
    """A failure or an error on one rank fails the test."""
    done = run(sample=BODY + RANK_1_FAILS + RANK_1_STUMBLES)
    assert done.returncode != 0
    assert done.stdout.count("FAILED sample.Tests.test_odd\n") == 1
    assert done.stdout.count("FAILED sample.Tests.test_missing\n") == 1
    assert "sample …: 2 of 3 failed" in done.stdout


def test_modules_apart_run_once_and_count(run: Run, tmp_path: Path) -> None:
    """Their tests run on rank 0 and rank 1 in turn; the second, on rank 1, fails."""
    writes = NOTHING_OF_OURS.replace("pass", "open('ran', 'a').write('x')")
    fails = "from mpi4py import MPI\nRANK = MPI.COMM_WORLD.Get_rank()\n"
    fails += NOTHING_OF_OURS + RANK_1_FAILS
    done = run("--apart", "fails,writes", sample=BODY, writes=writes, fails=fails)
    assert done.returncode != 0
    assert (tmp_path / "ran").read_text() == "x"
    assert done.stdout.count("FAILED") == 1
    assert "FAILED fails.Tests.test_odd\n" in done.stdout
    assert "sample …: 1 of 4 failed" in done.stdout


def test_each_test_on_comm_self_runs_once_and_counts(run: Run, tmp_path: Path) -> None:
    """The first runs on rank 0, the second on rank 1, where it fails."""
    alone = "from mpi4py import MPI\nRANK = MPI.COMM_WORLD.Get_rank()\n"
    alone += NOTHING_OF_OURS.replace("pass", "open('ran', 'a').write('x')")
    alone += "    COMM = MPI.COMM_SELF\n" + RANK_1_FAILS
    done = run(sample=BODY, alone=alone)
    assert done.returncode != 0
    assert (tmp_path / "ran").read_text() == "x"
    assert done.stdout.count("FAILED") == 1
    assert "FAILED alone.Tests.test_odd\n" in done.stdout
    assert "sample …: 1 of 3 failed" in done.stdout


def test_what_is_pinned_must_fail_and_nothing_else(run: Run, tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("sample.Tests.test_odd # it is odd\n")
    assert run("--differences", str(pins), sample=BODY + RANK_1_FAILS).returncode == 0
    passing = run("--differences", str(pins), sample=BODY)
    assert passing.returncode != 0
    assert "PASSED though pinned sample.Tests.test_odd" in passing.stdout
    pins.write_text("sample.Tests.test_fine # another\n")
    assert run("--differences", str(pins), sample=BODY + RANK_1_FAILS).returncode != 0
    pins.write_text("sample.Tests.test_odd\n")
    assert "no reason" in run("--differences", str(pins), sample=BODY + RANK_1_FAILS).stderr


def test_a_module_without_tests(run: Run) -> None:
    """It is an error, also beside a module with tests: a renamed module must be noticed."""
    done = run(sample=BODY, empty="import unittest\n")
    assert done.returncode != 0
    assert done.stdout.count("FAILED empty: no tests\n") == 1


def test_no_plan_ran(run: Run) -> None:
    """Then nothing of gridcoll was tested, which is an error unless ``--plain`` is given."""
    assert run(sample=NOTHING_OF_OURS).returncode != 0
    assert run("--plain", sample=NOTHING_OF_OURS).returncode == 0


def test_a_test_that_hangs_is_named(run: Run) -> None:
    done = run("--limit", "2", sample=BODY + RANK_1_HANGS)
    assert done.returncode != 0
    assert "Timeout" in done.stderr
    assert "in test_odd" in done.stderr
