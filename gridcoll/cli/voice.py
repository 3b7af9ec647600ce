"""How commands report errors: once, even if the same error is raised on many ranks."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from gridcoll.errors import GridcollError, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

ALL_FAIL_TIMEOUT_S = 5.0
"""How long a failing rank waits for all others to fail as well."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as of shells."""

OUTPUT_WAIT_S = 0.3
"""How long a rank waits before it aborts the job, so that the launcher passes on its output."""


def need_mpi() -> None:
    """Raise `UsageError` with a remedy if no MPI library can be loaded."""
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:  # none is there, or it does not fit mpi4py
        raise UsageError(
            f"no MPI library can be loaded ({error}); bring one, by a module of the cluster or "
            "with pip install mpich"
        ) from None


def report(error: GridcollError) -> None:
    """Print ``error`` for the user; raise it instead if ``GRIDCOLL_DEBUG`` is set."""
    if os.environ.get("GRIDCOLL_DEBUG", "0") not in ("", "0"):
        raise error
    sys.stderr.write(f"gridcoll: {type(error).__name__}: {error}\n")
    sys.stderr.flush()


def end_together(error: GridcollError, comm: MPI.Intracomm) -> NoReturn:
    """End the program with code 2 on all ranks of ``comm``, which all have the same ``error``.

    Rank 0 reports it. The others wait for that, because a launcher may end the job as soon as one
    rank has ended.
    """
    if comm.Get_rank() == 0:
        report(error)
    request = comm.Ibarrier()
    give_up = time.monotonic() + ALL_FAIL_TIMEOUT_S
    while not request.Test():
        if time.monotonic() > give_up:  # other ranks have not failed: this one must report
            report(error)
            _end_job(comm, 2)
        time.sleep(1e-3)
    sys.exit(2)


def _end_job(comm: MPI.Intracomm, code: int) -> None:
    sys.stderr.flush()
    time.sleep(OUTPUT_WAIT_S)  # launchers drop output that they have not passed on by then
    comm.Abort(code)


@contextmanager
def one_voice(comm: MPI.Intracomm) -> Iterator[None]:
    """End the program on all ranks if the body raises a `GridcollError`, the same on all of them.

    Any other error may be raised on one rank only. It aborts the job, as the other ranks would wait
    for ever. So does Ctrl-C: a launcher passes it on, and a rank that waits in MPI does not see it.
    """
    try:
        yield
    except GridcollError as error:
        end_together(error, comm)
    except KeyboardInterrupt:
        if comm.Get_size() == 1:
            raise
        _end_job(comm, INTERRUPTED)
    except Exception:
        traceback.print_exc()
        _end_job(comm, 1)
