"""Plans for simulators: GOAL schedules, and traces that SimGrid's SMPI replays on a platform.

GOAL (Hoefler, Siebert, Lumsdaine 2009), the input of LogGOPSim, is a graph of tasks, as a plan is.
Each op is one task, which requires the tasks of the ops that it waits for. Only one thing cannot be
expressed in GOAL: that receives of one stream end in program order.

A trace is a list of actions per rank, done one after the other, whereas a plan is a graph. So ops
are put in the order of a timeline, which all ranks together can follow to the end. Receives are
posted as early as their buffers allow, and waited for just before the first op that needs them.

Between messages, a rank computes for as long as a message keeps its interface busy (g of the model,
in nanoseconds: hosts of our platforms do 10⁹ operations per second). Without that, all segments of
a pipeline would enter the network at once, share it evenly and arrive all together at the end. Over
a real connection, and in our predictions, they go one by one. From then on, SimGrid simulates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.check import check_messages
from gridcoll.plan.cost import Timeline, price_plan
from gridcoll.plan.dataflow import Dataflow, dataflow
from gridcoll.plan.ops import Copy, Op, Recv, Reduce, Send
from gridcoll.plan.plan import Plan

NS_PER_S = 1e9


def smpi_lines(
    plan: Plan, model: GridModel, *, unit_bytes: int = 1, timeline: Timeline | None = None
) -> Iterator[str]:
    """Yield ``plan`` as the lines of one trace file for all ranks.

    ``timeline`` is the result of `price_plan`, if it is known already. Empty messages get one byte,
    because to SMPI a receive of 0 bytes has an unknown length.

    Raises `PlanError` if a message has no sender, no receiver or two sizes, or if some op can never
    run; `UsageError` if plan and model have different numbers of ranks.
    """
    check_messages(plan)
    if timeline is None:
        timeline = price_plan(plan, model, unit_bytes=unit_bytes)
    gaps = _Gaps(model, unit_bytes)
    for rank, program in enumerate(plan.programs):
        flow = dataflow(program)
        actions = _Actions(rank, flow, timeline.start_s[rank], timeline.end_s[rank], unit_bytes)
        yield f"{rank} init\n"
        for line in actions.lines(gaps):
            yield f"{rank} {line}\n"
        yield f"{rank} finalize\n"


class _Gaps:
    """How long messages keep the sender's interface and the connection busy, in seconds."""

    def __init__(self, model: GridModel, unit_bytes: int) -> None:
        self._model = model
        self._unit_bytes = unit_bytes
        self._by_size: dict[int, list[list[float]]] = {}

    def of(self, rank: int, op: Send) -> tuple[float, float] | None:
        """Return the two times of ``op``; None inside a host, where no interface is used."""
        grid = self._model.grid
        if grid.host_of[rank] == grid.host_of[op.peer]:
            return None
        size = op.chunk.size
        if size not in self._by_size:
            self._by_size[size] = self._model.gap_s(size * self._unit_bytes).tolist()
        here, there = grid.cluster_of[rank], grid.cluster_of[op.peer]
        row = self._by_size[size][here]
        return row[here], max(row[there], row[here])


class _Actions:
    """The ops of one rank as a sequence of actions; ``_now_s`` estimates the time of the next."""

    def __init__(
        self,
        rank: int,
        flow: Dataflow,
        start_s: Sequence[float],
        end_s: Sequence[float],
        unit_bytes: int,
    ) -> None:
        self._rank, self._flow, self._unit_bytes = rank, flow, unit_bytes
        self._start_s, self._end_s = start_s, end_s
        self._is_waited_for = [False] * len(flow.program)  # waited for, or needs no wait
        self._now_s = 0.0
        self._port_free_s = 0.0
        self._link_free_s: dict[int, float] = {}

    def lines(self, gaps: _Gaps) -> Iterator[str]:
        in_time_order = []
        for index, op in enumerate(self._flow.program):
            if isinstance(op, Send):
                in_time_order.append((self._start_s[index], index))
            elif isinstance(op, Recv) and self._flow.needs[index]:
                in_time_order.append(
                    (max(self._end_s[needed] for needed in self._flow.needs[index]), index)
                )
            elif isinstance(op, Recv):
                yield self._line("irecv", index, op)
        for _, index in sorted(in_time_order):
            match self._flow.program[index]:
                case Recv() as op:
                    yield from self._waits(index)
                    yield self._line("irecv", index, op)
                case Send() as op:
                    yield from self._send(index, op, gaps.of(self._rank, op))
        yield "waitall"

    def _send(self, index: int, op: Send, gaps_s: tuple[float, float] | None) -> Iterator[str]:
        if gaps_s is not None:
            free_s = max(self._port_free_s, self._link_free_s.get(op.peer, 0.0))
            if free_s > self._now_s:
                yield f"compute {NS_PER_S * (free_s - self._now_s):.0f}"
                self._now_s = free_s
        yield from self._waits(index)
        if 1e-6 * op.due_us > self._now_s:
            yield f"sleep {1e-6 * op.due_us - self._now_s:.9f}"
            self._now_s = 1e-6 * op.due_us
        yield self._line("isend", index, op)
        if gaps_s is not None:
            self._port_free_s = self._now_s + gaps_s[0]
            self._link_free_s[op.peer] = self._now_s + gaps_s[1]

    def _waits(self, index: int) -> Iterator[str]:
        """Yield waits for the messages that op ``index`` needs, in the order in which they end."""
        found: list[tuple[float, int, str]] = []
        needed = list(self._flow.needs[index])
        while needed:
            at = needed.pop()
            if self._is_waited_for[at]:
                continue
            self._is_waited_for[at] = True
            tag, end_s = self._flow.tags[at], self._end_s[at]
            match self._flow.program[at]:
                case Send(peer=peer):
                    found.append((end_s, at, f"wait {self._rank} {peer} {tag}"))
                case Recv(peer=peer):
                    found.append((end_s, at, f"wait {peer} {self._rank} {tag}"))
                case Reduce() | Copy():
                    needed += self._flow.needs[at]
        for end_s, _, line in sorted(found):
            yield line
            self._now_s = max(self._now_s, end_s)

    def _line(self, action: str, index: int, op: Send | Recv) -> str:
        n_bytes = max(op.chunk.size * self._unit_bytes, 1)
        return f"{action} {op.peer} {self._flow.tags[index]} {n_bytes}"


WAITING_CPU = 1
"""The CPU of tasks that only let time pass. On CPU 0 they would delay the messages."""


def goal_lines(plan: Plan, *, unit_bytes: int = 1) -> Iterator[str]:
    """Yield ``plan`` as the lines of a GOAL schedule, a block per rank; op 0 is task ``l0``.

    Combining and copying take no time, as in our own predictions: a plan has no speeds. A send that
    is due later requires a task that lasts until then.

    Raises `PlanError` if a message has no sender, no receiver, or two sizes.
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
