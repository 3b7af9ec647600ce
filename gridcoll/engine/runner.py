"""Runs this rank's share of a plan over MPI."""

from __future__ import annotations

from mpi4py import MPI

from gridcoll.engine.executor import DEFAULT_WINDOW, Executor, Memory, Trace, Transport
from gridcoll.engine.waiting import PoliteWait
from gridcoll.plan.dataflow import Dataflow


class MPITransport:
    """Messages on a private communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        largest: int = comm.Get_attr(MPI.TAG_UB) or 32767
        # A channel never has more messages under way than fit below the tag bound.
        self._n_tags = largest + 1

    def isend(self, view: memoryview, peer: int, tag: int) -> MPI.Request:
        return self._comm.Isend((view, MPI.BYTE), peer, tag % self._n_tags)

    def irecv(self, view: memoryview, peer: int, tag: int) -> MPI.Request:
        return self._comm.Irecv((view, MPI.BYTE), peer, tag % self._n_tags)


def run_program(
    flow: Dataflow,
    transport: Transport,
    memory: Memory,
    window: int = DEFAULT_WINDOW,
    trace: Trace | None = None,
) -> None:
    """Run one rank's program to its end, waiting politely."""
    executor = Executor(flow, transport, memory, window, trace)
    wait = PoliteWait()
    while not executor.done:
        if executor.advance():
            wait.reset()
        else:
            wait()
