"""Models that this process's communicators have, so that nothing is measured twice in a job."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from mpi4py import MPI

from gridcoll.model import GridModel, digest

MOST_MODELS = 32
"""Models kept, each of other processes; the one used longest ago is dropped."""


@dataclass(frozen=True)
class Remembered:
    """A model, and the processes it is about."""

    processes: tuple[int, ...]
    """Ranks in the world, by rank in the model."""
    model: GridModel
    source: str
    """Where it came from; an equal source gives the same model."""


_known: OrderedDict[str, Remembered] = OrderedDict()


def processes_of(comm: MPI.Intracomm) -> tuple[int, ...]:
    """The ranks in the world of ``comm``'s processes; empty where some are not of it."""
    theirs, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        ranks = MPI.Group.Translate_ranks(theirs, list(range(comm.Get_size())), world)
    finally:
        theirs.Free()
        world.Free()
    return () if MPI.UNDEFINED in ranks else tuple(ranks)


def remember(processes: tuple[int, ...], model: GridModel, source: str) -> None:
    """Keep ``model`` of ``processes`` for later communicators."""
    if not processes:
        return
    key = f"{digest(model)} {' '.join(map(str, processes))}"
    _known.pop(key, None)
    _known[key] = Remembered(processes, model, source)
    if len(_known) > MOST_MODELS:
        _known.popitem(last=False)


def forget_all() -> None:
    """Forget everything, for tests."""
    _known.clear()


def remembered(source: str) -> dict[str, Remembered]:
    """Everything remembered from ``source`` by key, newest first, as it is now.

    A copy, since other threads may add and evict: a rank must keep what it told the others.
    """
    return {key: each for key, each in reversed(list(_known.items())) if each.source == source}


def covering(processes: tuple[int, ...], known: Mapping[str, Remembered]) -> list[str]:
    """Keys of those whose models have all of ``processes``."""
    wanted = set(processes)
    return [key for key, each in known.items() if processes and wanted <= set(each.processes)]


def restricted(found: Remembered, processes: tuple[int, ...]) -> GridModel:
    """The model of ``processes``, a part of those that are ``found``."""
    if found.processes == processes:
        return found.model
    place = {process: rank for rank, process in enumerate(found.processes)}
    return found.model.restrict([place[process] for process in processes])
