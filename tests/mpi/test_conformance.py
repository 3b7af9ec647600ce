"""Every collective on plain mpi4py and on every kind of communicator of ours: the same bodies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from mpi4py import MPI

from tests.mpi.bodies import BODIES
from tests.mpi.calls import CALLS
from tests.mpi.harness import SUBJECTS, check_on, subject

Subjects = dict[str, MPI.Intracomm]


@pytest.fixture(scope="module")
def subjects() -> Iterator[Subjects]:
    """All of them, for all tests: what one leaves behind is the next one's to find."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("GRIDCOLL_FORCE", "grid")
        yield {name: stack.enter_context(subject(name)) for name in SUBJECTS}


@pytest.mark.parametrize("on", SUBJECTS)
@pytest.mark.parametrize("what", BODIES)
def test_blocking(subjects: Subjects, what: str, on: str, n_planned: list[int]) -> None:
    check_on(on, subjects[on], BODIES[what], n_planned)


@pytest.mark.parametrize("on", SUBJECTS)
@pytest.mark.parametrize("what", CALLS)
def test_nonblocking(subjects: Subjects, what: str, on: str, n_beside: list[int]) -> None:
    def body(comm: MPI.Intracomm, n: int, root: int) -> None:
        request, right = CALLS[what](comm, n, root)
        request.Wait()
        assert right()

    check_on(on, subjects[on], body, n_beside)
