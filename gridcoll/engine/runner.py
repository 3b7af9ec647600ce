"""Runs this rank's program of a plan over MPI."""

from __future__ import annotations

from gridcoll.engine.compiled import begin_compiled
from gridcoll.engine.executor import Executor, Memory, Run, Trace, Transport
from gridcoll.engine.waiting import Hold, PoliteWait, polls_at_once
from gridcoll.plan.dataflow import Dataflow


def begin_program(flow: Dataflow, transport: Transport, memory: Memory) -> Run:
    """Start one rank's program with the fastest available engine."""
    return begin_compiled(flow, transport, memory) or Executor(flow, transport, memory)


def run_program(
    flow: Dataflow, transport: Transport, memory: Memory, trace: Trace | None = None
) -> None:
    """Run one rank's program to its end, waiting politely.

    Errors of transfers and exceptions of signal handlers are raised when no transfer is pending any
    more. A second interrupt, or one that comes in the Python engine between two waits, is raised at
    once: see `Hold`.
    """
    if trace is None and (compiled := begin_compiled(flow, transport, memory)):
        compiled.run()
        compiled.check()
        return
    executor = Executor(flow, transport, memory, trace=trace)
    wait, n_polls, hold = PoliteWait(), polls_at_once(), Hold(executor)
    try:
        while not executor.done:
            if any(executor.advance() for _ in range(n_polls)):
                wait.reset()
            else:
                hold.back(wait)
    except BaseException:
        if executor not in Hold.abandoned:  # it cannot be resumed
            Hold.abandoned.append(executor)
        raise
    executor.check()
    hold.release()
