"""The harness of tests/mpi fails if any rank fails, and ends if any rank hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

Run = Callable[..., "subprocess.CompletedProcess[str]"]

MPIEXEC = Path(sys.prefix, "bin", "mpiexec")
HERE = Path(__file__).parent

BODY = """
import pytest
from mpi4py import MPI
RANK = MPI.COMM_WORLD.Get_rank()

def test_fine():
    assert MPI.COMM_WORLD.allreduce(1) == 2
"""

RANK_1_FAILS = """
def test_odd():
    assert RANK == 0, "a mistake"
"""

RANK_1_FAILS_WHILE_0_WAITS = """
def test_odd():
    assert RANK == 0, "a mistake"
    MPI.COMM_WORLD.Barrier()
"""

RANK_1_FAILS_IN_SETUP = """
@pytest.fixture
def broken():
    assert RANK == 0, "a mistake"

def test_odd(broken):
    MPI.COMM_WORLD.Barrier()
"""

RANK_1_CANNOT_COLLECT = """
if RANK == 1:
    raise RuntimeError("a mistake")
"""

RANK_1_HANGS = """
def test_odd():
    if RANK == 1:
        MPI.COMM_WORLD.recv()
"""

NEEDS_THREE = """
@pytest.mark.mpi(min_size=3)
def test_three():
    raise RuntimeError

@pytest.mark.mpi(max_size=1)
def test_one():
    raise RuntimeError
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run BODY and more on two ranks, with the harness of tests/mpi."""
    if not MPIEXEC.exists():
        pytest.skip(f"needs {MPIEXEC}")
    tests = tmp_path / "tests" / "mpi"
    tests.mkdir(parents=True)
    shutil.copy(HERE / "conftest.py", tests.parent)
    shutil.copy(HERE / "mpi" / "conftest.py", tests)

    def start(more: str, limit_s: int = 8) -> subprocess.CompletedProcess[str]:
        (tests / "test_it.py").write_text(BODY + more)
        return subprocess.run(
            [
                *(MPIEXEC, "-n", "2", sys.executable, "-m", "pytest", str(tests)),
                *(
                    "-q",
                    "--color=no",
                    "--with-mpi",
                    f"--timeout={limit_s}",
                    "-p",
                    "no:cacheprovider",
                ),
            ],
            cwd=tmp_path,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PYTEST_"))},
                "GRIDCOLL_TEST_PATIENCE_S": "1",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return start


def test_success_is_told_once(run: Run) -> None:
    done = run("")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 1


@pytest.mark.parametrize(
    "more",
    [RANK_1_FAILS, RANK_1_FAILS_WHILE_0_WAITS, RANK_1_FAILS_IN_SETUP],
    ids=["fails", "fails while 0 waits", "fails in setup"],
)
def test_one_ranks_failure_is_everybodys(run: Run, more: str) -> None:
    done = run(more)
    assert done.returncode != 0
    assert "rank 1 of 2 failed" in done.stdout
    assert "a mistake" in done.stdout
    closing = "1 passed, 1 error" if "fixture" in more else "1 failed, 1 passed"
    assert closing in done.stdout


def test_a_rank_that_hangs_ends_the_job(run: Run) -> None:
    done = run(RANK_1_HANGS, limit_s=2)  # the test takes all of it
    assert done.returncode != 0
    assert "Timeout" in done.stdout + done.stderr


def test_a_rank_that_cannot_load_a_module_ends_the_job(run: Run) -> None:
    done = run(RANK_1_CANNOT_COLLECT)
    assert done.returncode != 0
    assert "rank 1 of 2 failed" in done.stdout
    assert "a mistake" in done.stdout


def test_tests_of_other_numbers_of_ranks_are_left_out_and_counted(run: Run) -> None:
    done = run(NEEDS_THREE)
    assert done.returncode == 0
    assert "1 passed, 2 deselected" in done.stdout
