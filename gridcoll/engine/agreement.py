"""Agreement between ranks: an error is raised on all of them or on none."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from mpi4py import MPI

from gridcoll import errors
from gridcoll.errors import DisagreementError, GridcollError

R = TypeVar("R")
T = TypeVar("T")


ROW_BYTES = 1 << 10
"""`tell_all` sends this many bytes of each rank in its first step. Most pickles have a few hundred
bytes, and a kilobyte takes no longer."""

HEAD_BYTES = 1 << 12
"""`from_root` sends this many bytes in its first step. What is known of a dozen hosts in three
clusters has 2 KB when compressed, and 10 KB otherwise."""

_LENGTH_BYTES = 8


def tell_all(comm: MPI.Intracomm, item: T) -> list[T]:
    """Like ``comm.allgather``, but in one MPI call if all pickles are short. Collective.

    mpi4py would exchange lengths first. At the start of a job each exchange opens connections.
    """
    data = MPI.pickle.dumps(item)
    n_ranks, room = comm.Get_size(), ROW_BYTES - _LENGTH_BYTES
    row = len(data).to_bytes(_LENGTH_BYTES, "little") + data[:room]
    rows = bytearray(n_ranks * ROW_BYTES)
    comm.Allgather([row.ljust(ROW_BYTES, b"\0"), MPI.BYTE], [rows, MPI.BYTE])
    parts = [rows[start : start + ROW_BYTES] for start in range(0, len(rows), ROW_BYTES)]
    lengths = [int.from_bytes(part[:_LENGTH_BYTES], "little") for part in parts]
    missing = [max(length - room, 0) for length in lengths]
    rest = memoryview(bytearray(sum(missing)))
    if rest:
        comm.Allgatherv([data[room:], MPI.BYTE], [rest, missing, None, MPI.BYTE])
    items = []
    for part, length, n_bytes in zip(parts, lengths, missing, strict=True):
        items.append(MPI.pickle.loads(part[_LENGTH_BYTES:][:length] + rest[:n_bytes]))
        rest = rest[n_bytes:]
    return items


def together(comm: MPI.Intracomm, step: Callable[[], T]) -> T:
    """Run ``step`` on every rank; if it fails on any rank, raise the error on all ranks.

    The error of the lowest failing rank is raised. Errors of other types, for example of a file
    system, become a `GridcollError`, so that no rank waits for ever. Collective over ``comm``.
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


def agree_on(
    comm: MPI.Intracomm,
    what: str,
    step: Callable[[], T],
    text: Callable[[T], str],
    row: Callable[[T], R],
) -> tuple[T, list[R]]:
    """Do `together`, then `require_equal` on the results' ``text``, in one exchange. Collective.

    The error tells only the parts of ``text`` that differ; they are separated by ``"; "``.
    Return this rank's result and the ``row`` of every rank's result.
    """
    failure, result, own_text, own_row = ("", ""), None, "", None
    try:
        result = step()
        own_text, own_row = text(result), row(result)
    except GridcollError as error:
        failure = type(error).__name__, str(error)
    except Exception as error:
        failure = "GridcollError", f"rank {comm.Get_rank()}: {type(error).__name__}: {error}"
    rows = tell_all(comm, (failure, own_text, own_row))
    for (name, why), _, _ in rows:
        if name:
            raise getattr(errors, name, GridcollError)(why)
    for rank, (_, other, _) in enumerate(rows):
        if other != rows[0][1]:
            here, there = _without_common_parts(rows[0][1], other)
            raise DisagreementError(f"{what}: rank 0 has {here!r}, rank {rank} has {there!r}")
    return result, [each for _, _, each in rows]  # type: ignore[return-value, misc]


def _without_common_parts(one: str, other: str) -> tuple[str, str]:
    parts, others = one.split("; "), other.split("; ")
    return (
        "; ".join(part for part in parts if part not in others),
        "; ".join(part for part in others if part not in parts),
    )


def from_root(comm: MPI.Intracomm, step: Callable[[], T]) -> T:
    """Run ``step`` on rank 0; return its result, or raise its error, on all ranks. Collective."""
    row: tuple[str, str, T | None] = "", "", None
    if comm.Get_rank() == 0:
        try:
            row = "", "", step()
        except GridcollError as error:
            row = type(error).__name__, str(error), None
        except Exception as error:
            row = "GridcollError", f"rank 0: {type(error).__name__}: {error}", None
    name, why, result = MPI.pickle.loads(_broadcast_bytes(comm, MPI.pickle.dumps(row)))
    if name:
        raise getattr(errors, name, GridcollError)(why)
    found: T = result
    return found


def _broadcast_bytes(comm: MPI.Intracomm, data: bytes) -> bytes:
    """Return rank 0's ``data``, compressed on the way, in one MPI call if it is short. Collective.

    mpi4py would broadcast the length first, over all links between clusters.
    """
    packed = zlib.compress(data, 1) if comm.Get_rank() == 0 else b""
    room = HEAD_BYTES - _LENGTH_BYTES
    head = bytearray(
        (len(packed).to_bytes(_LENGTH_BYTES, "little") + packed[:room]).ljust(HEAD_BYTES)
    )
    comm.Bcast([head, MPI.BYTE], 0)
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    rest = bytearray(packed[room:] if packed else max(length - room, 0))
    if rest:
        comm.Bcast([rest, MPI.BYTE], 0)
    return zlib.decompress(head[_LENGTH_BYTES:][:length] + rest)


def raise_together(comm: MPI.Intracomm, failure: GridcollError | None) -> None:
    """Raise the ``failure`` of the lowest rank that has one on all ranks. Collective."""
    size = comm.Get_size()
    first = comm.allreduce(size if failure is None else comm.Get_rank(), MPI.MIN)
    if first == size:
        return
    # Send name and text, not a pickled exception: unpickling could run any code.
    name, text = comm.bcast(
        (type(failure).__name__, str(failure)) if comm.Get_rank() == first else None, first
    )
    if failure is not None and str(failure) == text:
        raise failure
    kind = getattr(errors, name, GridcollError)
    raise kind(text)


def require_equal(comm: MPI.Intracomm, what: str, value: str) -> None:
    """Raise `DisagreementError` on all ranks unless ``value`` is the same on all. Collective."""
    agree_on(comm, what, lambda: value, str, lambda _: None)


def require_alike(comm: MPI.Intracomm, what: str, signatures: Iterable[str]) -> None:
    """Raise `DisagreementError` on all ranks unless all signatures are equal. Collective.

    ``signatures`` are those of one rank. An empty signature agrees with any other.
    """
    mine = sorted({each for each in signatures if each})
    known = [(rank, each) for rank, have in enumerate(tell_all(comm, mine)) for each in have]
    for rank, other in known:
        if other != known[0][1]:
            raise DisagreementError(
                f"{what}: rank {known[0][0]} has elements of {known[0][1]}, rank {rank} of {other}"
            )
