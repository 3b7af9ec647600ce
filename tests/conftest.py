"""Settings that all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Tests share no measurements with each other or with the user. Jobs that tests start inherit this.
os.environ["GRIDCOLL_CACHE"] = "off"
for _name in ("GRIDCOLL_KEEP", "GRIDCOLL_SITE_CACHE", "GRIDCOLL_QUIET"):
    os.environ.pop(_name, None)

# Use the same examples every time, and no deadline: tests must not fail on a slow machine.
settings.register_profile("gridcoll", derandomize=True, deadline=None, database=None)
settings.load_profile("gridcoll")


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--with-mpi"):
        return None
    return "tests/mpi: left out here, they need mpiexec: make test-mpi"


LENIENT = {  # allow more ranks than cores, and root, under any MPI
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OPENBLAS_NUM_THREADS": "1",
}


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``launch(n, *argv)`` runs ``python argv`` on n ranks in ``tmp_path``, as a job of its own."""
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        pytest.skip("no mpiexec beside this Python")

    def run(n_ranks: int, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [mpiexec, "-n", str(n_ranks), sys.executable, *argv],
            cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **LENIENT},
        )  # fmt: skip

    return run
