"""What really happened: a plan run once with every op's start and end on one clock."""

from __future__ import annotations

from mpi4py import MPI

from gridcoll.engine.executor import Memory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.measure.clock import find_clock, run_together
from gridcoll.plan import Plan, dataflow
from gridcoll.plan.timeline import Timeline
from gridcoll.topology.grid import Grid


def trace_plan(comm: MPI.Intracomm, grid: Grid, plan: Plan, memory: Memory) -> Timeline:
    """Run ``plan`` once over ``memory`` on ``grid`` and time every op of every rank. Collective.

    Seconds after the agreed start, on rank 0's clock. A send's end is when MPI has taken it, which
    for short messages is long before it is there. The result is the same on all ranks.
    """
    flow = dataflow(plan.programs[comm.Get_rank()])
    clock = find_clock(comm, grid)
    marks: dict[str, list[float]] = {
        "start": [0.0] * len(flow.program),
        "end": [0.0] * len(flow.program),
    }

    def mark(index: int, what: str) -> None:
        marks[what][index] = clock.now()

    transport = MPITransport(comm)
    begin: list[float] = []

    def step() -> None:
        begin.append(clock.now())
        run_program(flow, transport, memory, trace=mark)

    run_together(clock, step)
    origin = comm.allreduce(begin[0], MPI.MIN)
    rows = comm.allgather([[time - origin for time in marks[what]] for what in ("start", "end")])
    return Timeline(tuple(tuple(row[0]) for row in rows), tuple(tuple(row[1]) for row in rows))
