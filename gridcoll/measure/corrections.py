"""Trying plans at discovery: how much longer they take than the model says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
from mpi4py import MPI

from gridcoll.engine.compiled import prepare
from gridcoll.engine.executor import Memory
from gridcoll.engine.memory import ByteMemory, ElementMemory, byte_memory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.measure.clock import CommonClock, Series, find_clock
from gridcoll.measure.sizes import affordable
from gridcoll.model import Correction, GridModel
from gridcoll.plan import Choice, Dataflow, Plan, choose, dataflow
from gridcoll.plan.registry import REGISTRIES, Candidate, family_of

MOST_TRIALS = 4
"""Families tried at one size."""

FEWEST_RUNS, MOST_RUNS = 3, 9
ENOUGH_S = 0.3
"""Runs that took so long together show more than the noise of the moment."""

BEHIND = 1.5
"""What takes so many times as long as the fastest, twice, runs no more."""

_FACTORS = (0.25, 16.0)  # whatever is beyond was an accident of this moment

Step = Callable[[], None]


def _bcast_run(comm: MPI.Intracomm, build: Callable[[int], Plan], n_bytes: int) -> Step:
    flow = _flow(comm, build(n_bytes))
    return step_of(comm, flow, ByteMemory(memoryview(bytearray(n_bytes))))


def _allreduce_run(comm: MPI.Intracomm, build: Callable[[int], Plan], n_bytes: int) -> Step:
    flow = _flow(comm, build(n_bytes // 8))
    mine, result = memoryview(bytes(n_bytes)), memoryview(bytearray(n_bytes))
    return step_of(comm, flow, ElementMemory(result, mine, flow, MPI.DOUBLE, MPI.SUM))


def _alltoall_run(comm: MPI.Intracomm, build: Callable[[int], Plan], n_bytes: int) -> Step:
    n_ranks = comm.Get_size()
    flow = _flow(comm, build(n_bytes))
    mine, result = (memoryview(bytearray(n_ranks * n_bytes)) for _ in range(2))
    return step_of(comm, flow, byte_memory(flow, mine, result))


def step_of(comm: MPI.Intracomm, flow: Dataflow, memory: Memory) -> Step:
    """A run as a short call makes it that is known; of long ones that is all that takes time."""
    transport = MPITransport(comm)
    prepared = prepare(flow, transport, memory)
    if prepared is None:
        return lambda: run_program(flow, transport, memory)
    return prepared.run


def _flow(comm: MPI.Intracomm, plan: Plan) -> Dataflow:
    return dataflow(plan.programs[comm.Get_rank()])


RUNS = {"bcast": _bcast_run, "allreduce": _allreduce_run, "alltoall": _alltoall_run}
"""Collectives whose plans are tried: the run of a plan, by its size."""

TRIAL_SIZES = {
    "bcast": (8, 1 << 13, 1 << 16, 1 << 20, 1 << 22),
    "allreduce": (8, 1 << 13, 1 << 16, 1 << 20, 1 << 22),
    "alltoall": (8, 1 << 7, 1 << 10, 1 << 12, 1 << 13, 1 << 16, 1 << 19),
}
"""Of all-to-alls more short ones: headers count for much, and P * P fill a queue at once."""

LONGEST_TRIAL_S = 4.0
"""What is predicted to take longer, of plans and natives alike, is not run to see which is best."""


def measure_corrections(
    comm: MPI.Intracomm,
    model: GridModel,
    collective: str,
    progress: Callable[[str, int, int], None],
) -> dict[str, Correction]:
    """How far predictions are off, by family of algorithms. Collective; equal on all ranks.

    At each size runs what is predicted fastest, corrects the prediction, and goes on until
    something that ran already stays in front. Of families that did not run at a size, the model is
    believed no more than of the best that did.
    """
    sizes = worth_trying(comm, model, collective, TRIAL_SIZES[collective])
    found: dict[int, dict[str, float]] = {}
    clock = find_clock(comm, model.grid)  # clocks drift: within minutes that shows
    for done, n_bytes in enumerate(sizes):
        progress(f"plans for {collective}", done, len(sizes))
        found[n_bytes] = _try_size(comm, model, clock, collective, n_bytes)
    progress(f"plans for {collective}", len(sizes), len(sizes))
    families = dict.fromkeys(family for tried in found.values() for family in tried)
    return {
        family: Correction(sizes, tuple(_factor(found[n_bytes], family) for n_bytes in sizes))
        for family in families
    }


def worth_trying(
    comm: MPI.Intracomm, model: GridModel, collective: str, sizes_bytes: Sequence[int]
) -> tuple[int, ...]:
    """Those of ``sizes_bytes``, ascending, that are neither too much nor take too long.

    The first one always; equal on all ranks.
    """
    first, *others = affordable(collective, comm.Get_size(), sizes_bytes)
    plain = replace(model, corrections={}, native={}, native_variants={})

    def takes_s(n_bytes: int) -> float:
        winner = choose(collective, plain, n_bytes, 0, grid_only=True).winner
        return winner.predicted_s or 0.0

    return (first, *takewhile(lambda n_bytes: takes_s(n_bytes) <= LONGEST_TRIAL_S, others))


def _factor(tried: dict[str, float], family: str) -> float:
    return tried.get(family, max(1.0, min(tried.values(), default=1.0)))


def _try_size(
    comm: MPI.Intracomm, model: GridModel, clock: CommonClock, collective: str, n_bytes: int
) -> dict[str, float]:
    """Measured over predicted of each family that ran, in the order of trials."""
    tried: dict[str, float] = {}
    fastest_s = math.inf
    plain = choose(collective, model, n_bytes, 0, grid_only=True)
    families = {family_of(collective, name) for name in REGISTRIES[collective]}
    for _ in range(MOST_TRIALS):
        learned = {name: Correction((n_bytes,), (tried.get(name, 1.0),)) for name in families}
        corrected = replace(model, corrections={collective: learned})
        winner = choose(collective, corrected, n_bytes, 0, grid_only=True).winner
        if winner.build is None or (family := family_of(collective, winner.name)) in tried:
            break
        step = RUNS[collective](comm, winner.build, n_bytes)
        took_s = _median_s(clock, step, fastest_s)
        fastest_s = min(fastest_s, took_s)
        tried[family] = float(np.clip(took_s / _predicted_s(plain, winner), *_FACTORS))
    return tried


def _median_s(clock: CommonClock, step: Step, fastest_s: float) -> float:
    """Of the more runs the shorter they are; of two where ``fastest_s`` is far ahead.

    Equal on all ranks.
    """
    took_s: list[float] = []
    series = Series(clock)
    while len(took_s) < FEWEST_RUNS or (len(took_s) < MOST_RUNS and sum(took_s) < ENOUGH_S):
        took_s.append(series.run(step))
        if len(took_s) == 2 and min(took_s) > BEHIND * fastest_s:
            break
    return float(np.median(took_s))


def _predicted_s(choice: Choice, wanted: Candidate) -> float:
    """What ``choice``, made by a model without corrections, says of the same candidate."""
    same = (c for c in choice.candidates if (c.name, c.label) == (wanted.name, wanted.label))
    return max(next(same).predicted_s or 0.0, 1e-9)


def try_plans(
    comm: MPI.Intracomm,
    model: GridModel,
    progress: Callable[[str, int, int], None],
    collectives: Sequence[str] = tuple(RUNS),
) -> GridModel:
    """``model`` with what trying plans of every collective shows. Collective."""
    return replace(
        model,
        corrections={
            name: measure_corrections(comm, model, name, progress) for name in collectives
        },
    )
