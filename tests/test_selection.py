"""`make test` and `make test-long` together run every test, and none twice."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ALL_OF_TESTS_MPI = {("mpich", "1")}
"""The MPIs and numbers of ranks with which all of tests/mpi runs."""


def commands(*targets: str) -> str:
    """Return the commands that make would run for ``targets``."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make here")
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        [make, "-n", "--no-print-directory", *targets],
        cwd=ROOT, env=clean, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip


def unit_selections(output: str) -> list[list[str]]:
    """Return the arguments of each pytest that runs unit tests."""
    found = re.findall(r"-q -n auto .*?(-m (?:'[^']*'|\S+)) (--ignore=tests/mpi .*)", output)
    return [["-m", marker[3:].strip("'"), *rest.split()] for marker, rest in found]


def mpi_runs(output: str) -> list[tuple[str, str, str]]:
    """Return MPI, number of ranks, and files of each run under mpiexec."""
    found = []
    for block in output.split("export GRIDCOLL_TEST_TALLY=")[1:]:
        mpi = re.match(r"\S*/(\w+)/tally", block)
        ranks = re.search(r"for n in ([\d ]+);", block)
        files = re.search(r"-p no:cacheprovider (.*?) \|\|", block)
        assert mpi is not None
        assert ranks is not None
        assert files is not None
        found += [(mpi.group(1), n, files.group(1)) for n in ranks.group(1).split()]
    return found


@pytest.fixture(scope="module")
def quick() -> str:
    return commands("test")


@pytest.fixture(scope="module")
def rest() -> str:
    return commands("test-long")


def test_units_are_split_by_the_marker(quick: str, rest: str) -> None:
    """The files are the same, so that pytest runs each test, and none twice."""
    (some,), (others,) = unit_selections(quick), unit_selections(rest)
    assert some == ["-m", "not long", *others[2:]]
    assert others[:2] == ["-m", "long"]


def test_what_runs_under_mpi(quick: str, rest: str) -> None:
    runs = mpi_runs(quick) + mpi_runs(rest)
    assert len(set(runs)) == len(runs), "nothing runs twice"
    assert {run[:2] for run in runs if run[2] == "tests/mpi"} == ALL_OF_TESTS_MPI
    by_marker = [run for run in runs if run[2].endswith(" tests/mpi")]
    ((_, _, by_mpi),) = (run for run in mpi_runs(quick) if run[0] == "openmpi")
    others = " ".join(f"--ignore={name}" for name in by_mpi.split())
    assert {(*run[:2], run[2].replace('"', "")) for run in by_marker} == {
        ("mpich", "4", "-m not long tests/mpi"),
        ("mpich", "4", "-m long tests/mpi"),
        ("openmpi", "5", f"-m not long {others} tests/mpi"),
        ("openmpi", "3", "-m long tests/mpi"),
    }
    assert [run[:2] for run in by_marker if run in mpi_runs(quick)] == [("mpich", "4")]
    by_file = {
        run[:2]: run[2].replace('"', "").removeprefix("-m not long ").split()
        for run in runs
        if not run[2].endswith("tests/mpi")
    }
    assert set(by_file) == {("openmpi", "3"), ("impi", "6"), ("impi", "5")}
    assert by_file["impi", "5"] == ["-k", "two_threads", "tests/mpi/test_fuzz.py"]
    assert set(by_file["openmpi", "3"]) < set(by_file["impi", "6"])
    for file in by_file["impi", "6"]:
        assert (ROOT / file).exists(), file


def test_emulated_grids_and_mpi4pys_own(quick: str, rest: str) -> None:
    """The file of the one that `make test` runs is among those of `make test-long`."""
    (smoke,) = re.findall(r"-m pytest -q '(tests/testbed/[^']+)'", quick)
    assert (ROOT / smoke.split("::")[0]).exists()
    (waiting,) = re.findall(r"-m pytest -q (tests/testbed/\S+\.py .*)$", rest, re.MULTILINE)
    (ignored,) = re.findall(r"-m pytest -q (--ignore.*) tests/testbed$", rest, re.MULTILINE)
    assert ignored.replace("--ignore=", "") == waiting
    assert all((ROOT / file).exists() for file in waiting.split())
    assert "tests/draw/test_report_in_browser.py" in rest
    assert "mpichs_own or fortran or hpcc" in rest
    pinned = re.search(r"--differences (\S+) .*\$\(cat", rest)
    assert "-m gridcoll run" in rest
    assert "ls test_*.py" in rest, "all of mpi4py's"
    assert pinned is not None
    assert (ROOT / pinned.group(1)).exists()


def test_check_runs_both(quick: str, rest: str) -> None:
    output = commands("check")
    assert unit_selections(output) == unit_selections(quick) + unit_selections(rest)
    assert mpi_runs(output) == mpi_runs(quick) + mpi_runs(rest)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make check")


def test_a_selection_that_loses_something_is_seen() -> None:
    text = "x/python -m pytest -q -n auto --dist worksteal -m 'not long' --ignore=tests/mpi tests\n"
    assert unit_selections(text) == [["-m", "not long", "--ignore=tests/mpi", "tests"]]
    assert unit_selections(text.replace("-m 'not long' ", "")) == []
    assert mpi_runs("make: nothing to be done") == []


PAGE = ROOT / "tests" / "draw" / "test_report_in_browser.py"


@pytest.mark.parametrize(
    "settings",
    [{"GRIDCOLL_TEST_BROWSER": ""}, {"CI": "true"}],  # make test-browser, and test-unit in CI
)
def test_without_a_browser_the_page_may_be_skipped(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CI", "GRIDCOLL_TEST_BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PATH": "", **settings}.items():
        monkeypatch.setenv(name, value)
    assert runpy.run_path(str(PAGE))["pytestmark"].args == (True,)


@pytest.mark.long
def test_in_ci_the_page_is_looked_at() -> None:
    """`make test-browser` fails in CI if there is no browser."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PAGE)],
        cwd=ROOT, env={**os.environ, "PATH": "", "CI": "true", "GRIDCOLL_TEST_BROWSER": ""},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "no Chromium here: the report page stays unseen" in done.stdout + done.stderr
    assert done.returncode != 0
