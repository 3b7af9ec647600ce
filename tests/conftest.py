"""Settings that every test shares."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The same examples every time, and no clock: a slow machine is not a failure.
settings.register_profile("gridcoll", derandomize=True, deadline=None, database=None)
settings.load_profile("gridcoll")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--with-mpi",
        action="store_true",
        help="run tests/mpi; start this under mpiexec on every rank, as `make test-mpi` does",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--with-mpi"):
        return None
    return "tests/mpi: left out here, they need mpiexec: make test-mpi"
