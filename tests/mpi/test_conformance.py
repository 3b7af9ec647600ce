"""Every collective on plain mpi4py and on every kind of communicator of ours: the same bodies."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from tests.mpi.bodies import BODIES
from tests.mpi.calls import CALLS
from tests.mpi.harness import SUBJECTS, check_on


@pytest.mark.parametrize("on", SUBJECTS)
@pytest.mark.parametrize("what", BODIES)
def test_blocking(
    what: str, on: str, n_planned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    check_on(on, BODIES[what], n_planned)


@pytest.mark.parametrize("on", SUBJECTS)
@pytest.mark.parametrize("what", CALLS)
def test_nonblocking(
    what: str, on: str, n_beside: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")

    def body(comm: MPI.Intracomm, n: int, root: int) -> None:
        request, right = CALLS[what](comm, n, root)
        request.Wait()
        assert right()

    check_on(on, body, n_beside)
