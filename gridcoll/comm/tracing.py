"""``GRIDCOLL_TRACE=DIR``: at exit, each rank writes what it decided and sent, for the report.

Ranks do not communicate here, so that a job that ends early cannot hang.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from mpi4py import MPI

from gridcoll.comm.context import Context
from gridcoll.errors import FileError
from gridcoll.files import make_directory
from gridcoll.model import write_model
from gridcoll.plan.traces import MODEL, Decided, RankTrace, Sent, decided_of, write_trace

_FOLDER = os.environ.get("GRIDCOLL_TRACE", "")

_watched: list[Context] = []
"""Contexts in the order in which they were made, including those of freed communicators."""

_ranks: list[int] = []
"""This process's rank in the world, and the number of ranks: MPI may be finalized at exit."""


def require_folder() -> None:
    """Make the folder of the trace, if a trace is requested. Raises `FileError`."""
    if _FOLDER:
        try:
            make_directory(Path(_FOLDER))
        except FileError as error:
            raise FileError(f"GRIDCOLL_TRACE: {error}") from None


def watch(context: Context) -> None:
    """Include what ``context`` decides and sends in the trace, if a trace is requested."""
    if not _FOLDER:
        return
    if not _watched:
        _ranks[:] = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        atexit.register(_write)
    _watched.append(context)


def _write() -> None:
    rank, n_ranks = _ranks
    decided = _decided() if rank == 0 else []
    folder = Path(_FOLDER)
    try:
        make_directory(folder)
        write_trace(RankTrace(1, rank, n_ranks, _sent(), decided), folder)
        if rank == 0:
            write_model(_watched[0].model, folder / MODEL)
    except FileError as error:
        sys.stderr.write(f"gridcoll: GRIDCOLL_TRACE: {error}\n")


def _decided() -> list[Decided]:
    found: dict[tuple[str, int, int, int], Decided] = {}
    for context in _watched:
        n_ranks = context.model.grid.n_ranks
        for choice in context.explained():
            decided = decided_of(choice, n_ranks)
            found[choice.collective, choice.n_bytes, choice.root, n_ranks] = decided
    return [found[key] for key in sorted(found)]


def _sent() -> list[Sent]:
    sent = []
    # Views that force an algorithm share the channel of their communicator; count it only once.
    for context in {id(each.channel): each for each in _watched}.values():
        names = [cluster.name for cluster in context.model.grid.clusters]
        traffic = context.own_traffic()
        sent += [
            Sent(names[i], names[j], n, traffic.units[i, j])
            for (i, j), n in traffic.messages.items()
        ]
    return sent
