"""Runs of a plan at discovery, and the sizes at which plans and natives are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.constants import ANNOUNCED_BYTES
from gridcoll.engine.compiled import prepare
from gridcoll.engine.executor import Memory
from gridcoll.engine.memory import ByteMemory, ElementMemory, byte_memory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.measure.clock import CommonClock, Series
from gridcoll.model import GridModel
from gridcoll.plan import Dataflow, Plan, choose, dataflow

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
    """Return a run of ``flow``, prepared as for a call that the engine already knows.

    That matters for short calls; for long ones, only the run itself takes time.
    """
    transport = MPITransport(comm)
    prepared = prepare(flow, transport, memory)
    if prepared is None:
        return lambda: run_program(flow, transport, memory)
    return prepared.run


def _flow(comm: MPI.Intracomm, plan: Plan) -> Dataflow:
    return dataflow(plan.programs[comm.Get_rank()])


RUNS = {"bcast": _bcast_run, "allreduce": _allreduce_run, "alltoall": _alltoall_run}
"""Collectives whose plans are tried, and functions that make a run of a plan of some bytes."""

TRIAL_SIZES = {
    "bcast": (8, 1 << 13, 1 << 16, 1 << 20, 1 << 22),
    "allreduce": (8, 1 << 13, 1 << 16, 1 << 20, 1 << 22),
    "alltoall": (8, 1 << 7, 1 << 10, 1 << 12, 1 << 13, 1 << 16, 1 << 19),
}
"""Sizes in bytes at which plans are tried. All-to-alls have more short ones: headers are a large
part of them, and P * P messages enter a queue at once."""

LONGEST_TRIAL_S = 4.0
"""Sizes are not tried, with plans or natives, if a call is predicted to take longer than this."""

PER_RANK = frozenset(("alltoall", "gather", "scatter", "allgather", "reduce_scatter"))
"""Collectives whose size is that of a block. A buffer has one block for every rank."""

LARGEST_BYTES = {
    **dict.fromkeys(("gather", "scatter", "allgather", "reduce_scatter"), 1 << 16),
    **dict.fromkeys(("alltoall", "reduce"), 1 << 19),
    "barrier": 8,
}
"""Largest sizes that are run. Beyond them, time grows in proportion. Barriers have no size."""

MOST_HELD_BYTES = 1 << 24
"""Most bytes in one buffer of one rank. A host may have a rank on each of many cores, with two
buffers each."""


def series_of(comm: MPI.Intracomm, clock: CommonClock, collective: str, n_bytes: int) -> Series:
    """Return a series of runs of ``collective`` at one size.

    All ranks enter them at once. Only all-to-alls of announced messages are entered as ranks leave
    a barrier, as in many programs. A rank that is still in the barrier reads what its peers
    announce, and then answers before it announces its own messages (see `ANNOUNCED_BYTES`). Under
    Open MPI on `thin-wan`, natives of 512 KiB took 3.7 s when all ranks entered at once, but 6.1 s
    after barriers.
    """
    after_barrier = collective == "alltoall" and n_bytes >= ANNOUNCED_BYTES
    return Series(clock, comm.Barrier if after_barrier else None)


def affordable(collective: str, n_ranks: int, sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """Return the ``sizes_bytes`` (ascending) that ``n_ranks`` can run, at least the first one."""
    largest = LARGEST_BYTES.get(collective, sizes_bytes[-1])
    if collective in PER_RANK:
        largest = min(largest, MOST_HELD_BYTES // n_ranks)
    return tuple(n for n in sizes_bytes if n <= max(largest, sizes_bytes[0]))


def worth_trying(
    comm: MPI.Intracomm, model: GridModel, collective: str, sizes_bytes: Sequence[int]
) -> tuple[int, ...]:
    """Return those of ``sizes_bytes`` (ascending) that are neither too large nor take too long.

    Always the first one; equal on all ranks.
    """
    first, *others = affordable(collective, comm.Get_size(), sizes_bytes)
    plain = replace(model, corrections={}, native={}, native_variants={})

    def takes_s(n_bytes: int) -> float:
        winner = choose(collective, plain, n_bytes, 0, grid_only=True).winner
        return winner.predicted_s or 0.0

    return (first, *takewhile(lambda n_bytes: takes_s(n_bytes) <= LONGEST_TRIAL_S, others))
