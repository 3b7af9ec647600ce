"""Ranks raise together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from mpi4py import MPI

from gridcoll import errors
from gridcoll.errors import DisagreementError, GridcollError

T = TypeVar("T")


def together(comm: MPI.Intracomm, step: Callable[[], T]) -> T:
    """Run ``step`` on every rank; if any rank's raises a `GridcollError`, all raise that one.

    The lowest failing rank's error is the one raised; of an error that nobody thought of, as a file
    system's, it becomes a `GridcollError`, for the others must not wait. Collective over ``comm``.
    """
    failure: GridcollError | None = None
    result: T | None = None
    try:
        result = step()
    except GridcollError as error:
        failure = error
    except Exception as error:
        failure = GridcollError(f"rank {comm.Get_rank()}: {type(error).__name__}: {error}")
        failure.__cause__ = error
    raise_together(comm, failure)
    return result  # type: ignore[return-value]


def raise_together(comm: MPI.Intracomm, failure: GridcollError | None) -> None:
    """Raise on all ranks what the lowest rank with a ``failure`` has; return if none has any."""
    size = comm.Get_size()
    first = comm.allreduce(size if failure is None else comm.Get_rank(), MPI.MIN)
    if first == size:
        return
    # Names and text, not a pickled exception: nobody else's code runs here.
    name, text = comm.bcast(
        (type(failure).__name__, str(failure)) if comm.Get_rank() == first else None, first
    )
    if failure is not None and str(failure) == text:
        raise failure
    kind = getattr(errors, name, GridcollError)
    raise kind(text)


def require_equal(comm: MPI.Intracomm, what: str, value: str) -> None:
    """Raise `DisagreementError` on all ranks unless ``value`` is the same on all. Collective."""
    values = comm.allgather(value)
    if any(other != values[0] for other in values):
        odd = next(rank for rank, other in enumerate(values) if other != values[0])
        raise DisagreementError(f"{what}: rank 0 has {values[0]!r}, rank {odd} has {values[odd]!r}")


def require_alike(comm: MPI.Intracomm, what: str, signatures: Iterable[str]) -> None:
    """Raise `DisagreementError` on all ranks unless all ``signatures`` of all are one. Collective.

    Empty ones go with any.
    """
    mine = sorted({each for each in signatures if each})
    known = [(rank, each) for rank, have in enumerate(comm.allgather(mine)) for each in have]
    for rank, other in known:
        if other != known[0][1]:
            raise DisagreementError(
                f"{what}: rank {known[0][0]} has elements of {known[0][1]}, rank {rank} of {other}"
            )
