"""Simulates a plan: every message goes through the network in order of time.

The model is pLogP with one port, full duplex. An interface sends one message at a time and receives
one at a time, each for the gap inside its cluster. Ranks of one host share the interface; a message
between them does not use it and takes as long as an empty one. Messages to one peer start at least
the gap of that link apart. If the model has the aggregate bandwidth between two clusters, all flows
share it. A flow that waits for its TCP window does not block others. This works for any plan;
`plan.tree_cost` is the fast estimate for trees.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from gridcoll.errors import PlanError, UsageError
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.dataflow import Dataflow, dataflow
from gridcoll.plan.ops import Copy, Recv, Reduce, Send
from gridcoll.plan.plan import Plan


class Timeline(Struct, frozen=True):
    """When every op of a plan starts and ends, in seconds after the call.

    A send lasts as long as it keeps its rank's network interface busy. A receive lasts from when
    its message begins to come in until all of it has been received.
    """

    start_s: tuple[tuple[float, ...], ...]
    end_s: tuple[tuple[float, ...], ...]
    """``start_s[rank][op]``, in the order of the rank's program."""

    @property
    def makespan_s(self) -> float:
        """When the last op ends; 0 if there are no ops."""
        return max((end for ends in self.end_s for end in ends), default=0.0)

    def done_s(self, rank: int) -> float:
        """Return when the last op of ``rank`` ends; 0 if it has none."""
        return max(self.end_s[rank], default=0.0)


def price_plan(plan: Plan, model: GridModel, *, unit_bytes: int = 1) -> Timeline:
    """Simulate ``plan`` over ``model``. Combining and copying take no time.

    Raises `UsageError` if plan and model have different numbers of ranks, `PlanError` if some op
    can never run; `check_plan` says why.
    """
    if plan.n_ranks != model.grid.n_ranks:
        raise UsageError(f"plan: {plan.n_ranks} ranks, the model has {model.grid.n_ranks}")
    return _Simulation(plan, _Costs(plan, model, unit_bytes)).run()


def unblocked_one_way_s(
    one_way_s: FloatArray, gap_s: FloatArray, busy_s: FloatArray, latency_s: FloatArray
) -> FloatArray:
    """Return one-way times without the wait for a flow's TCP window; all arrays have one shape.

    ``busy_s`` is how long a message keeps interfaces and links busy. A longer gap is mostly the
    wait for acknowledgements, during which other flows continue.
    """
    waits_s = np.maximum(gap_s - busy_s, 0.0)
    least_s = np.minimum(latency_s + busy_s, one_way_s)
    return np.asarray(np.where(waits_s > 0, np.maximum(one_way_s - waits_s, least_s), one_way_s))


def link_times_s(model: GridModel, n_bytes: FloatArray) -> tuple[FloatArray, ...]:
    """Return gaps, one-way times, unblocked ones and times on shared bandwidth, (C, C, S) each.

    The third are of `unblocked_one_way_s`. The last is how long a message keeps the aggregate
    bandwidth between two clusters busy. The first of ``n_bytes`` must be 0.
    """
    gap_s, one_way_s = model.gap_and_one_way_s(n_bytes)
    shared_s = np.zeros_like(gap_s)
    if model.aggregate_bytes_per_s:
        shared_s = n_bytes / model.link_bytes_per_s[:, :, None]
    inside_s = np.diagonal(gap_s).T  # (C, S)
    busy_s = np.maximum(inside_s[:, None], inside_s[None, :])
    busy_s = np.maximum(busy_s, shared_s + gap_s[:, :, :1])
    unblocked_s = unblocked_one_way_s(one_way_s, gap_s, busy_s, model.latency_s[:, :, None])
    inside = np.arange(model.n_clusters)
    unblocked_s[inside, inside], shared_s[inside, inside] = one_way_s[inside, inside], 0.0
    return gap_s, one_way_s, unblocked_s, shared_s


class _Costs:
    """Times of all links, for the message sizes that occur in a plan."""

    def __init__(self, plan: Plan, model: GridModel, unit_bytes: int) -> None:
        sizes = sorted(
            {op.chunk.size for program in plan.programs for op in program if isinstance(op, Send)}
            | {0}
        )
        n_bytes = np.array(sizes, dtype=float) * unit_bytes
        self._index_of = {size: k for k, size in enumerate(sizes)}
        uplink_s = n_bytes / model.uplinks[:, None]
        self._link_times = tuple(each.tolist() for each in link_times_s(model, n_bytes))
        self._gap_s = self._link_times[0]
        self._uplink_s: list[list[float]] | None = uplink_s.tolist() if uplink_s.any() else None
        self.cluster_of = model.grid.cluster_of
        self._host_of = model.grid.host_of
        self._n_mates = Counter(self._host_of)

    def shares_port(self, rank: int, peer: int) -> bool:
        """Whether other ranks use the port of a message from ``rank`` to ``peer``, too."""
        host = self._host_of[rank]
        return self._n_mates[host] > 1 and host != self._host_of[peer]

    def port_of(self, rank: int, peer: int) -> int:
        """Return the port of a message to or from ``peer``.

        It is the host's number, or a number of the rank alone if ``peer`` is on the same host.
        """
        host = self._host_of[rank]
        return -1 - rank if host == self._host_of[peer] else host

    def port(self, rank: int, peer: int, size: int) -> float:
        """Return how long a message keeps that port busy, in seconds."""
        cluster = self.cluster_of[rank]
        same_host = self._host_of[rank] == self._host_of[peer]
        return float(self._gap_s[cluster][cluster][0 if same_host else self._index_of[size]])

    def link(self, sender: int, receiver: int, size: int) -> _Link:
        i, j, k = self.cluster_of[sender], self.cluster_of[receiver], self._index_of[size]
        if self._host_of[sender] == self._host_of[receiver]:
            k = 0
        return _Link(*(each[i][j][k] for each in self._link_times))

    def uplinks_s(self, sender: int, receiver: int, size: int) -> tuple[float, float] | None:
        """Return how long a message keeps each cluster's uplink busy; None if no uplink limits."""
        i, j, k = self.cluster_of[sender], self.cluster_of[receiver], self._index_of[size]
        if i == j or self._uplink_s is None:
            return None
        return self._uplink_s[i][k], self._uplink_s[j][k]


class _Link(NamedTuple):
    """Times of a message between two ranks; ``shared_s`` is on the bandwidth all flows share."""

    gap_s: float
    one_way_s: float
    unblocked_s: float
    shared_s: float


class _Rank(Struct):
    """State of a rank."""

    flow: Dataflow
    n_waits: list[int]
    start_s: list[float]
    end_s: list[float]
    sends: dict[int, list[tuple[float, int]]]  # by peer, a heap of (ready time, op)
    wakes: float = math.inf  # when it checks next whether it can send


class _Simulation:
    """Simulation by an event queue: in order of time, and of creation for equal times."""

    def __init__(self, plan: Plan, costs: _Costs) -> None:
        self._costs = costs
        self._events: list[tuple[float, int, str, int, int]] = []  # time, number, kind, rank, op
        self._n_events = 0
        self._link_free: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._shared_free: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._uplink_free: defaultdict[tuple[int, bool], float] = defaultdict(float)  # True: out
        self._out_free: defaultdict[int, float] = defaultdict(float)  # by `_Costs.port_of`
        self._in_free: defaultdict[int, float] = defaultdict(float)
        self._receive_of: dict[tuple[int, int, int], int] = {}
        self._posted_in_order: dict[tuple[int, int, int], deque[int]] = {}
        self._arrived: dict[tuple[int, int], float] = {}  # arrival time, by rank and receive
        self._soonest_s: dict[tuple[int, int], float] = {}  # the soonest its flow's window allows
        self._postable: set[tuple[int, int]] = set()
        self._ranks = [self._add_rank(r, dataflow(p)) for r, p in enumerate(plan.programs)]

    def _add_rank(self, rank: int, flow: Dataflow) -> _Rank:
        n = len(flow.program)
        for index, op in enumerate(flow.program):
            if isinstance(op, Recv):
                self._receive_of[op.peer, rank, op.tag] = index
                self._posted_in_order.setdefault((op.peer, rank, op.stream), deque()).append(index)
            if not flow.n_waits[index]:
                self._schedule(0.0, "ready", rank, index)
        return _Rank(flow, list(flow.n_waits), [math.nan] * n, [math.nan] * n, {})

    def _schedule(self, time: float, kind: str, rank: int, index: int) -> None:
        heappush(self._events, (time, self._n_events, kind, rank, index))
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
            time, _, kind, rank, index = heappop(self._events)
            handlers[kind](time, rank, index)
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
        """Handle that the data or the buffer that the op needs is there."""
        rank = self._ranks[number]
        op = rank.flow.program[index]
        match op:
            case Send(due_us=due_us) if due_us * 1e-6 > time:
                self._schedule(due_us * 1e-6, "ready", number, index)
            case Send(peer=peer):
                heappush(rank.sends.setdefault(peer, []), (time, index))
                self._send(time, number, index)
            case Recv():
                self._postable.add((number, index))
                self._deliver(time, number, op)
            case Reduce() | Copy():
                rank.start_s[index] = time
                self._schedule(time, "done", number, index)

    def _send(self, time: float, number: int, _index: int) -> None:
        """Start ready sends, the oldest first, as long as their links and ports are free."""
        rank = self._ranks[number]
        if time >= rank.wakes:
            rank.wakes = math.inf
        while rank.sends:
            starts = [(self._soonest_start(number, peer), peer) for peer in rank.sends]
            startable = [(rank.sends[peer][0], peer) for start, peer in starts if start <= time]
            if not startable:
                soonest = min(starts)[0]
                if soonest < rank.wakes:
                    rank.wakes = soonest
                    self._schedule(soonest, "send", number, -1)
                return
            (ready, index), peer = min(startable)
            heappop(rank.sends[peer])
            if not rank.sends[peer]:
                del rank.sends[peer]
            self._start(time, ready, number, index)
            if rank.sends and self._costs.shares_port(number, peer):
                # Ranks of a host take turns, as flows through one interface do.
                rank.wakes = time
                self._schedule(time, "send", number, -1)
                return

    def _soonest_start(self, number: int, peer: int) -> float:
        """Return the earliest time at which a message to ``peer`` may start."""
        return max(self._link_free[number, peer], self._out_free[self._costs.port_of(number, peer)])

    def _start(self, time: float, ready: float, number: int, index: int) -> None:
        rank = self._ranks[number]
        op = rank.flow.program[index]
        if not isinstance(op, Send):
            raise PlanError(f"rank {number}, op {index} ({op}): is no send")
        size = op.chunk.size
        link = self._costs.link(number, op.peer, size)
        # A flow waits for its window while the interface still serves others.
        begun = max(ready, self._link_free[number, op.peer])
        clusters = (self._costs.cluster_of[number], self._costs.cluster_of[op.peer])
        enters = time
        uplinks_s = self._costs.uplinks_s(number, op.peer, size)
        if uplinks_s:
            # Before the link: what waits for a thin link does not keep others from the uplink.
            enters = max(enters, self._uplink_free[clusters[0], True])
            self._uplink_free[clusters[0], True] = enters + uplinks_s[0]
        enters = max(enters, self._shared_free[clusters])
        self._shared_free[clusters] = enters + link.shared_s
        free = time + self._costs.port(number, op.peer, size)
        self._out_free[self._costs.port_of(number, op.peer)] = free
        self._link_free[number, op.peer] = time + link.gap_s
        rank.start_s[index] = time
        self._schedule(free, "done", number, index)
        receive = self._receive_of.get((number, op.peer, op.tag))
        if receive is not None:
            self._soonest_s[op.peer, receive] = begun + link.one_way_s
            if uplinks_s:
                self._schedule(enters, "enter", op.peer, receive)
            else:
                self._schedule(enters + link.unblocked_s, "arrive", op.peer, receive)

    def _enter(self, time: float, number: int, index: int) -> None:
        """Handle that a message reaches the uplink of the receiving cluster, which others share."""
        op = self._ranks[number].flow.program[index]
        if not isinstance(op, Recv):
            raise PlanError(f"rank {number}, op {index} ({op}): is no receive")
        uplinks_s = self._costs.uplinks_s(op.peer, number, op.chunk.size) or (0.0, 0.0)
        uplink = self._costs.cluster_of[number], False
        enters = max(time, self._uplink_free[uplink])
        self._uplink_free[uplink] = enters + uplinks_s[1]
        unblocked_s = self._costs.link(op.peer, number, op.chunk.size).unblocked_s
        self._schedule(enters + unblocked_s, "arrive", number, index)

    def _arrive(self, time: float, number: int, index: int) -> None:
        """Handle that the end of a message reaches the interface, which may still be busy."""
        rank = self._ranks[number]
        op = rank.flow.program[index]
        if not isinstance(op, Recv):
            raise PlanError(f"rank {number}, op {index} ({op}): is no receive")
        port_s = self._costs.port(number, op.peer, op.chunk.size)
        port = self._costs.port_of(number, op.peer)
        free = max(time, self._in_free[port] + port_s)
        self._in_free[port] = free
        received = max(free, self._soonest_s.pop((number, index)))
        rank.start_s[index] = received - port_s
        self._arrived[number, index] = received
        self._deliver(time, number, op)

    def _deliver(self, time: float, number: int, op: Recv) -> None:
        """End receives from ``op``'s peer and stream that have message and buffer, in order."""
        order = self._posted_in_order[op.peer, number, op.stream]
        while (
            order and (number, order[0]) in self._postable and (number, order[0]) in self._arrived
        ):
            index = order.popleft()
            self._schedule(max(time, self._arrived.pop((number, index))), "done", number, index)

    def _done(self, time: float, number: int, index: int) -> None:
        rank = self._ranks[number]
        rank.end_s[index] = time
        for later in rank.flow.releases[index]:
            rank.n_waits[later] -= 1
            if not rank.n_waits[later]:
                self._schedule(time, "ready", number, later)
