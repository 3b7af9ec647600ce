"""The deliberate faults can still be made: their source lines and their tests exist.

`python tests/make_faults.py` shows that they are caught.
"""

from __future__ import annotations

import pytest

from tests.make_faults import (
    README,
    ROOT,
    Fault,
    FaultError,
    read_faults,
    table,
    table_in,
    target_of,
    verdict,
)

FAULTS = read_faults()


def test_names_are_unique() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


def test_each_can_be_made() -> None:
    for fault in FAULTS:
        text = (ROOT / "gridcoll" / fault.file).read_text(encoding="utf-8")
        assert fault.make(text) != text, fault.name


def test_their_tests_exist() -> None:
    for fault in FAULTS:
        assert fault.caught_by, fault.name
        for test in fault.caught_by:
            target_of(test)


def test_the_table_is_theirs() -> None:
    """`python tests/make_faults.py --table` writes it."""
    assert table_in(README.read_text(encoding="utf-8")) == table(FAULTS)


def test_lines_that_are_gone_are_an_error() -> None:
    fault = Fault("some", "something", "grid.py", "a line\n", "", ())
    assert fault.make("a line\nanother\n") == "another\n"
    for text in ("another\n", "a line\na line\n"):
        with pytest.raises(FaultError, match=r"some: .* times in gridcoll/grid\.py"):
            fault.make(text)


@pytest.mark.parametrize("test", ["tests/test_none.py", "tests/test_faults.py::test_none"])
def test_a_test_that_is_gone_is_an_error(test: str) -> None:
    with pytest.raises(FaultError, match="there is no such"):
        target_of(test)


def test_where_tests_run() -> None:
    assert target_of("tests/test_faults.py::test_where_tests_run") == "test"
    assert target_of("tests/mpi/test_measuring.py") == "long"
    assert target_of("tests/testbed/test_run.py") == "long"
    assert target_of("tests/test_harness.py::test_a_rank_that_hangs_ends_the_job") == "long"


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ("", ""),
        ("FAILED tests/a.py::test_b - assert 0\n1 failed", "failed"),
        ("FAILED tests/a.py::test_b[0] - assert 0\n1 failed, 2 passed", "failed"),
        ("ERROR tests/a.py::test_b - in a fixture\n1 error", "failed"),
        ("FAILED tests/a.py::test_bc - assert 0\n1 failed", ""),
        ("FAILED tests/a.py::test_c - assert 0\n1 failed", ""),
        ("+++ Timeout +++\nmake: *** [test-mpi] Error 1", "ended the job"),
        ("Fatal Python error: Segmentation fault", "ended the job"),
        ("ERROR: not found: tests/a.py::test_b\nno tests ran in 0.1s", ""),
        ("ERROR tests/a.py - ImportError\n1 error in 0.1s", ""),
    ],
)
def test_what_counts_as_caught(said: str, how: str) -> None:
    assert verdict(said, "tests/a.py::test_b") == how
