"""The Python examples of README and docs run, on every number of ranks."""

from __future__ import annotations

import pytest

from gridcoll.comm.communicator import GridComm
from tests.examples import PYTHON


@pytest.mark.parametrize(("name", "code"), PYTHON, ids=[name for name, _ in PYTHON])
def test_example(name: str, code: str) -> None:
    left: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, name, "exec"), left)
    for value in left.values():
        if isinstance(value, GridComm) and value:
            value.Free()


def test_there_are_examples() -> None:
    assert len(PYTHON) > 3
