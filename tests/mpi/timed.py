"""Communicators where natives were measured to take as long as a test wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.model import TimesBySize
from gridcoll.plan.natives import NATIVE, TIMED, VECTOR, variants_of
from tests.mpi.support import grid_model, layouts

VARIANTS = [(collective, name) for collective in TIMED for name in variants_of(collective)]
QUICK = 1e-9


def call_of(collective: str, name: str) -> str:
    """What ``called`` has of a variant."""
    if name == VECTOR:
        return "Alltoallv"
    return "Ireduce_scatter_block" if collective == "reduce_scatter" else f"I{collective}"


@contextmanager
def timed_comm(
    world: MPI.Intracomm,
    times_s: Mapping[str, Mapping[str, float]],
    labels: list[int] | None = None,
) -> Iterator[GridComm]:
    """Ours where natives took so long, by collective; two clusters unless told otherwise."""

    def flat(seconds: float) -> TimesBySize:
        return TimesBySize((8, 1 << 22), (seconds, seconds))

    size = world.Get_size()
    own = world.Dup()
    model = replace(
        grid_model(labels or layouts(size).get("two", [0] * size)),
        native={collective: flat(by[NATIVE]) for collective, by in times_s.items()},
        native_variants={
            collective: {name: flat(s) for name, s in by.items() if name != NATIVE}
            for collective, by in times_s.items()
        },
    )
    comm = GridComm(own, model=model)
    try:
        yield comm
    finally:
        comm.Free()
        own.Free()
