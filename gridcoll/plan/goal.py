"""Plans as GOAL schedules (Hoefler, Siebert, Lumsdaine 2009), the input of LogGOPSim.

GOAL is a graph of tasks, as a plan is: each op is one task, and what it waits for it requires. So
nothing is lost but what GOAL has no word for: that receives of one stream end in program order.
"""

from __future__ import annotations

from collections.abc import Iterator

from gridcoll.plan.check import check_messages
from gridcoll.plan.dataflow import Dataflow, dataflow
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan

WAITING_CPU = 1
"""Where tasks that only let time pass are done: on cpu 0 they would keep the messages waiting."""


def goal_lines(plan: Plan, *, unit_bytes: int = 1) -> Iterator[str]:
    """``plan`` as the lines of a GOAL schedule, a block per rank; op 0 is task ``l0``.

    Combining and copying take no time there, as in our own prices: a plan knows no speeds. A send
    that is due later requires a task that lasts until then.

    Raises `PlanError` where a message has no sender, no receiver, or two sizes.
    """
    check_messages(plan)
    yield f"num_ranks {plan.n_ranks}\n"
    for rank, program in enumerate(plan.programs):
        yield f"\nrank {rank} {{\n"
        yield from _tasks(dataflow(program), unit_bytes)
        yield "}\n"


def _tasks(flow: Dataflow, unit_bytes: int) -> Iterator[str]:
    for index, op in enumerate(flow.program):
        yield f"l{index}: {_task(op, flow.tags[index], unit_bytes)}\n"
        if isinstance(op, Send) and op.due_us:
            yield f"d{index}: calc {1000 * op.due_us} cpu {WAITING_CPU}\n"
            yield f"l{index} requires d{index}\n"
    for index, later in enumerate(flow.releases):
        yield from (f"l{waiting} requires l{index}\n" for waiting in later)


def _task(op: Op, tag: int, unit_bytes: int) -> str:
    match op:
        case Send():
            return f"send {op.chunk.size * unit_bytes}b to {op.peer} tag {tag}"
        case Recv():
            return f"recv {op.chunk.size * unit_bytes}b from {op.peer} tag {tag}"
        case _:
            return "calc 0"
