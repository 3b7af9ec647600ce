"""Simulates a plan: every message goes through the network in order of time.

One-port, full duplex, pLogP. An interface sends one message at a time and receives one at a time,
each for the gap inside its cluster. Ranks of one host share the interface; a message between them
does not use it and takes the time of an empty one. Messages to one peer start at least that link's
gap apart. If the model has the aggregate bandwidth between two clusters, all flows share it. A flow
that waits for its TCP window does not block others. Works for any plan; `plan.tree_cost` is the
fast estimate for trees.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from gridcoll.errors import PlanError, UsageError
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.dataflow import Dataflow, dataflow
from gridcoll.plan.ops import Copy, Recv, Reduce, Send
from gridcoll.plan.plan import Plan


@dataclass(frozen=True)
class Timeline:
    """When every op of a plan starts and ends, in seconds after the call.

    A send lasts as long as it keeps its rank's network interface; a receive from when its message
    begins to come in until it is there.
    """

    start_s: tuple[tuple[float, ...], ...]
    end_s: tuple[tuple[float, ...], ...]
    """``start_s[rank][op]``, in the order of the rank's program."""

    @property
    def makespan_s(self) -> float:
        """When the last op ends; 0 if there is none."""
        return max((end for ends in self.end_s for end in ends), default=0.0)

    def done_s(self, rank: int) -> float:
        """When ``rank`` has done its last op; 0 if it has none."""
        return max(self.end_s[rank], default=0.0)


def price_plan(plan: Plan, model: GridModel, *, unit_bytes: int = 1) -> Timeline:
    """Simulate ``plan`` over ``model``. Combining and copying take no time.

    Raises `UsageError` when plan and model have different numbers of ranks, `PlanError` when not
    every op can run; `check_plan` says why.
    """
    if plan.n_ranks != model.grid.n_ranks:
        raise UsageError(f"plan: {plan.n_ranks} ranks, the model has {model.grid.n_ranks}")
    return _Simulation(plan, _Costs(plan, model, unit_bytes)).run()


def freely_s(
    one_way_s: FloatArray, gap_s: FloatArray, busy_s: FloatArray, latency_s: FloatArray
) -> FloatArray:
    """One-way time of a message without the wait for the flow's TCP window; arrays of one shape.

    ``busy_s`` is how long it keeps interfaces and links busy. A gap longer than that is mostly
    waiting for acknowledgements, during which other flows go on.
    """
    waits_s = np.maximum(gap_s - busy_s, 0.0)
    least_s = np.minimum(latency_s + busy_s, one_way_s)
    return np.asarray(np.where(waits_s > 0, np.maximum(one_way_s - waits_s, least_s), one_way_s))


def link_times_s(model: GridModel, n_bytes: FloatArray) -> tuple[FloatArray, ...]:
    """Gap, one-way time, the same `freely_s`, and time on what all flows share, (C, C, S) each.

    The first of ``n_bytes`` is 0.
    """
    gap_s, one_way_s = model.gap_and_one_way_s(n_bytes)
    shared_s = np.zeros_like(gap_s)
    if model.aggregate_bytes_per_s:
        shared_s = n_bytes / model.link_bytes_per_s[:, :, None]
    inside_s = np.diagonal(gap_s).T  # (C, S)
    busy_s = np.maximum(inside_s[:, None], inside_s[None, :])
    busy_s = np.maximum(busy_s, shared_s + gap_s[:, :, :1])
    freely = freely_s(one_way_s, gap_s, busy_s, model.latency_s[:, :, None])
    inside = np.arange(model.n_clusters)
    freely[inside, inside], shared_s[inside, inside] = one_way_s[inside, inside], 0.0
    return gap_s, one_way_s, freely, shared_s


class _Costs:
    """Every link's times for the message sizes that occur in a plan."""

    def __init__(self, plan: Plan, model: GridModel, unit_bytes: int) -> None:
        sizes = sorted(
            {op.chunk.size for program in plan.programs for op in program if isinstance(op, Send)}
            | {0}
        )
        n_bytes = np.array(sizes, dtype=float) * unit_bytes
        self._at = {size: k for k, size in enumerate(sizes)}
        up_s = n_bytes / model.uplinks[:, None]
        self._of_links = tuple(each.tolist() for each in link_times_s(model, n_bytes))
        self._gap_s = self._of_links[0]
        self._up_s: list[list[float]] | None = up_s.tolist() if up_s.any() else None
        self.cluster_of = model.grid.cluster_of
        self._host_of = model.grid.host_of

    def port_of(self, rank: int, peer: int) -> int:
        """The port of a message to or from ``peer``: the host's, or inside one the rank itself."""
        host = self._host_of[rank]
        return -1 - rank if host == self._host_of[peer] else host

    def port(self, rank: int, peer: int, size: int) -> float:
        """How long a message keeps that port busy."""
        cluster = self.cluster_of[rank]
        at_home = self._host_of[rank] == self._host_of[peer]
        return float(self._gap_s[cluster][cluster][0 if at_home else self._at[size]])

    def link(self, sender: int, receiver: int, size: int) -> _Link:
        i, j, k = self.cluster_of[sender], self.cluster_of[receiver], self._at[size]
        if self._host_of[sender] == self._host_of[receiver]:
            k = 0
        return _Link(*(each[i][j][k] for each in self._of_links))

    def uplinks_s(self, sender: int, receiver: int, size: int) -> tuple[float, float] | None:
        """How long a message keeps the uplinks of both clusters; None where none limits."""
        i, j, k = self.cluster_of[sender], self.cluster_of[receiver], self._at[size]
        if i == j or self._up_s is None:
            return None
        return self._up_s[i][k], self._up_s[j][k]


class _Link(NamedTuple):
    """Times of a message from rank to rank; ``shared_s`` on the bandwidth that all flows share."""

    gap_s: float
    one_way_s: float
    freely_s: float
    shared_s: float


@dataclass
class _Rank:
    """State of a rank."""

    flow: Dataflow
    n_waits: list[int]
    start_s: list[float]
    end_s: list[float]
    sends: dict[int, list[tuple[float, int]]]  # by peer a heap of when and which became ready
    wakes: float = math.inf  # when it looks again whether it can send


class _Simulation:
    """Event queue: events by time, those of equal time in the order in which they were made."""

    def __init__(self, plan: Plan, costs: _Costs) -> None:
        self._costs = costs
        self._events: list[tuple[float, int, str, int, int]] = []  # time, number, what, rank, op
        self._n_events = 0
        self._link_free: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._pipe_free: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._up_free: defaultdict[tuple[int, bool], float] = defaultdict(float)  # out and in
        self._out_free: defaultdict[int, float] = defaultdict(float)  # by `_Costs.port_of`
        self._in_free: defaultdict[int, float] = defaultdict(float)
        self._receive_of: dict[tuple[int, int, int], int] = {}
        self._posted_in_order: dict[tuple[int, int, int], deque[int]] = {}
        self._arrived: dict[tuple[int, int], float] = {}  # by rank and receive
        self._least_s: dict[tuple[int, int], float] = {}  # likewise, by its flow's window
        self._postable: set[tuple[int, int]] = set()
        self._ranks = [self._open(r, dataflow(p)) for r, p in enumerate(plan.programs)]

    def _open(self, rank: int, flow: Dataflow) -> _Rank:
        n = len(flow.program)
        for index, op in enumerate(flow.program):
            if isinstance(op, Recv):
                self._receive_of[op.peer, rank, op.tag] = index
                self._posted_in_order.setdefault((op.peer, rank, op.stream), deque()).append(index)
            if not flow.n_waits[index]:
                self._at(0.0, "ready", rank, index)
        return _Rank(flow, list(flow.n_waits), [math.nan] * n, [math.nan] * n, {})

    def _at(self, time: float, what: str, rank: int, index: int) -> None:
        heappush(self._events, (time, self._n_events, what, rank, index))
        self._n_events += 1

    def run(self) -> Timeline:
        """Handle events until none is left."""
        handlers = {
            "ready": self._ready,
            "send": self._send,
            "enter": self._enter,
            "arrive": self._arrive,
            "done": self._done,
        }
        while self._events:
            time, _, what, rank, index = heappop(self._events)
            handlers[what](time, rank, index)
        for number, state in enumerate(self._ranks):
            stuck = [k for k, end in enumerate(state.end_s) if math.isnan(end)]
            if stuck:
                op = state.flow.program[stuck[0]]
                raise PlanError(f"rank {number}, op {stuck[0]} ({op}): never ends")
        return Timeline(
            tuple(tuple(rank.start_s) for rank in self._ranks),
            tuple(tuple(rank.end_s) for rank in self._ranks),
        )

    def _ready(self, time: float, number: int, index: int) -> None:
        """The data or the buffer that the op needs is there."""
        rank = self._ranks[number]
        op = rank.flow.program[index]
        match op:
            case Send(due_us=due_us) if due_us * 1e-6 > time:
                self._at(due_us * 1e-6, "ready", number, index)
            case Send(peer=peer):
                heappush(rank.sends.setdefault(peer, []), (time, index))
                self._send(time, number, index)
            case Recv():
                self._postable.add((number, index))
                self._deliver(time, number, op)
            case Reduce() | Copy():
                rank.start_s[index] = time
                self._at(time, "done", number, index)

    def _send(self, time: float, number: int, _index: int) -> None:
        """Start ready sends, the oldest first, as long as their links and ports are free."""
        rank = self._ranks[number]
        if time >= rank.wakes:
            rank.wakes = math.inf
        while rank.sends:
            frees = [(self._free(number, peer), peer) for peer in rank.sends]
            startable = [(rank.sends[peer][0], peer) for free, peer in frees if free <= time]
            if not startable:
                soonest = min(frees)[0]
                if soonest < rank.wakes:
                    rank.wakes = soonest
                    self._at(soonest, "send", number, -1)
                return
            (ready, index), peer = min(startable)
            heappop(rank.sends[peer])
            if not rank.sends[peer]:
                del rank.sends[peer]
            self._start(time, ready, number, index)

    def _free(self, number: int, peer: int) -> float:
        """The earliest time at which a message to ``peer`` may start."""
        return max(self._link_free[number, peer], self._out_free[self._costs.port_of(number, peer)])

    def _start(self, time: float, ready: float, number: int, index: int) -> None:
        rank = self._ranks[number]
        op = rank.flow.program[index]
        if not isinstance(op, Send):
            raise PlanError(f"rank {number}, op {index} ({op}): is no send")
        size = op.chunk.size
        link = self._costs.link(number, op.peer, size)
        # A flow that waits for its window does so while the interface still serves others.
        begun = max(ready, self._link_free[number, op.peer])
        pipe = (self._costs.cluster_of[number], self._costs.cluster_of[op.peer])
        enters = max(time, self._pipe_free[pipe])
        up_s = self._costs.uplinks_s(number, op.peer, size)
        if up_s:
            enters = max(enters, self._up_free[pipe[0], True])
            self._up_free[pipe[0], True] = enters + up_s[0]
        self._pipe_free[pipe] = enters + link.shared_s
        free = time + self._costs.port(number, op.peer, size)
        self._out_free[self._costs.port_of(number, op.peer)] = free
        self._link_free[number, op.peer] = time + link.gap_s
        rank.start_s[index] = time
        self._at(free, "done", number, index)
        receive = self._receive_of.get((number, op.peer, op.tag))
        if receive is not None:
            self._least_s[op.peer, receive] = begun + link.one_way_s
            if up_s:
                self._at(enters, "enter", op.peer, receive)
            else:
                self._at(enters + link.freely_s, "arrive", op.peer, receive)

    def _enter(self, time: float, number: int, index: int) -> None:
        """What a link carries comes to the receiving cluster's uplink, which others share."""
        op = self._ranks[number].flow.program[index]
        if not isinstance(op, Recv):
            raise PlanError(f"rank {number}, op {index} ({op}): is no receive")
        up_s = self._costs.uplinks_s(op.peer, number, op.chunk.size) or (0.0, 0.0)
        end = self._costs.cluster_of[number], False
        enters = max(time, self._up_free[end])
        self._up_free[end] = enters + up_s[1]
        freely_s = self._costs.link(op.peer, number, op.chunk.size).freely_s
        self._at(enters + freely_s, "arrive", number, index)

    def _arrive(self, time: float, number: int, index: int) -> None:
        """The end of a message reaches the interface, which may still be busy with another one."""
        rank = self._ranks[number]
        op = rank.flow.program[index]
        if not isinstance(op, Recv):
            raise PlanError(f"rank {number}, op {index} ({op}): is no receive")
        port_s = self._costs.port(number, op.peer, op.chunk.size)
        port = self._costs.port_of(number, op.peer)
        free = max(time, self._in_free[port] + port_s)
        self._in_free[port] = free
        there = max(free, self._least_s.pop((number, index)))
        rank.start_s[index] = there - port_s
        self._arrived[number, index] = there
        self._deliver(time, number, op)

    def _deliver(self, time: float, number: int, op: Recv) -> None:
        """End the receives of ``op``'s channel that have message and buffer, in program order."""
        order = self._posted_in_order[op.peer, number, op.stream]
        while (
            order and (number, order[0]) in self._postable and (number, order[0]) in self._arrived
        ):
            index = order.popleft()
            self._at(max(time, self._arrived.pop((number, index))), "done", number, index)

    def _done(self, time: float, number: int, index: int) -> None:
        rank = self._ranks[number]
        rank.end_s[index] = time
        for later in rank.flow.releases[index]:
            rank.n_waits[later] -= 1
            if not rank.n_waits[later]:
                self._at(time, "ready", number, later)
