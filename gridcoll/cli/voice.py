"""How commands say what went wrong: once, however many ranks it went wrong on."""

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

PATIENCE_S = 5.0
"""How long ranks that fail wait for the others to fail as well."""

HEARD_S = 0.3
"""How long a rank that ends the job gives the launcher to pass on what it said."""


def need_mpi() -> None:
    """Raise `UsageError`, which says what to do, where no MPI library can be loaded."""
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:  # it is not there, or it is another one
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
    rank is gone.
    """
    if comm.Get_rank() == 0:
        report(error)
    request = comm.Ibarrier()
    give_up = time.monotonic() + PATIENCE_S
    while not request.Test():
        if time.monotonic() > give_up:  # not all are here: this rank alone knows
            report(error)
            _end_job(comm, 2)
        time.sleep(1e-3)
    sys.exit(2)


def _end_job(comm: MPI.Intracomm, code: int) -> None:
    sys.stderr.flush()
    time.sleep(HEARD_S)  # launchers drop what they have not passed on by then
    comm.Abort(code)


@contextmanager
def one_voice(comm: MPI.Intracomm) -> Iterator[None]:
    """End the program together if a `GridcollError`, the same on all ranks, comes out.

    Any other error may be one rank's alone: it ends the job, for the others would wait for ever.
    """
    try:
        yield
    except GridcollError as error:
        end_together(error, comm)
    except Exception:
        traceback.print_exc()
        _end_job(comm, 1)
