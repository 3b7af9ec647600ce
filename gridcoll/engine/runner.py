"""Runs this rank's share of a plan over MPI."""

from __future__ import annotations

from gridcoll.engine.compiled import begin_compiled
from gridcoll.engine.executor import Executor, Memory, Run, Trace, Transport
from gridcoll.engine.waiting import Hold, PoliteWait, polls_at_once
from gridcoll.plan.dataflow import Dataflow


def begin_program(flow: Dataflow, transport: Transport, memory: Memory) -> Run:
    """Start one rank's program by the fastest engine there is."""
    return begin_compiled(flow, transport, memory) or Executor(flow, transport, memory)


def run_program(
    flow: Dataflow,
    transport: Transport,
    memory: Memory,
    trace: Trace | None = None,
) -> None:
    """Run one rank's program to its end, waiting politely.

    Raises what a transfer failed of, or a signal's handler raised, when nothing is under way any
    more; a second interrupt, or one of the engine in Python between two waits, at once: see `Hold`.
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
        if executor not in Hold.abandoned:  # between two waits it cannot go on from anywhere
            Hold.abandoned.append(executor)
        raise
    executor.check()
    hold.release()
