"""Proves that a plan is correct: matched messages, no deadlock, and the stated result."""

from __future__ import annotations

from collections import Counter, deque

from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import Dataflow, IntervalMap, dataflow
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send, reads, writes
from gridcoll.plan.plan import Plan
from gridcoll.plan.statements import Content, Contribution, Runs, find_statement


def check_plan(plan: Plan, *, rank_order: bool = False) -> None:
    """Raise `PlanError` unless ``plan`` fulfils its collective's statement.

    Receives are posted one at a time per lane. Sends end only when received, and those of one lane
    end in the order in which they started, as in the engine. A plan without deadlock under these
    rules has none with any buffering of MPI and any window of the engine.

    With ``rank_order``, reductions must combine contributions in rank order, as a non-commutative
    operation requires. Otherwise any order is accepted, but every contribution must count exactly
    once.
    """
    flows = [dataflow(program) for program in plan.programs]
    check_messages(plan)
    ranks = [_Rank(rank, flow, plan) for rank, flow in enumerate(flows)]
    _run(ranks)
    for rank in ranks:
        _check_result(plan, rank, rank_order)


def check_messages(plan: Plan) -> None:
    """Raise `PlanError` unless every message has one sender and one receiver, of the same size.

    This is fast even with thousands of ranks, where `check_plan` is slow.
    """
    _check_peers(plan)
    _check_matching(plan)


def _place(rank: int, index: int, op: Op) -> str:
    return f"rank {rank}, op {index} ({op})"


def _check_peers(plan: Plan) -> None:
    for rank, program in enumerate(plan.programs):
        for index, op in enumerate(program):
            if isinstance(op, Send | Recv) and (not 0 <= op.peer < plan.n_ranks or op.peer == rank):
                raise PlanError(
                    f"{_place(rank, index, op)}: peer must be another rank below {plan.n_ranks}"
                )
            for chunk in (*reads(op), *writes(op)):
                if chunk.buffer == "scratch" and chunk.stop > plan.scratch_of(rank):
                    raise PlanError(
                        f"{_place(rank, index, op)}: the rank has {plan.scratch_of(rank)} units "
                        "of scratch"
                    )


def _check_matching(plan: Plan) -> None:
    """Raise `PlanError` unless every message has one sender and one receiver, of the same size."""
    sends: dict[tuple[int, int, int], tuple[int, Send]] = {}
    for rank, program in enumerate(plan.programs):
        for index, op in enumerate(program):
            if isinstance(op, Send):
                key = (rank, op.peer, op.tag)
                if key in sends:
                    raise PlanError(f"{_place(rank, index, op)}: tag used twice towards that peer")
                sends[key] = (index, op)
    for rank, program in enumerate(plan.programs):
        for index, op in enumerate(program):
            if isinstance(op, Recv):
                match = sends.pop((op.peer, rank, op.tag), None)
                if match is None:
                    raise PlanError(
                        f"{_place(rank, index, op)}: rank {op.peer} has no matching send"
                    )
                if match[1].chunk.size != op.chunk.size:
                    raise PlanError(
                        f"{_place(rank, index, op)}: {op.chunk.size} units expected, "
                        f"{_place(op.peer, *match)} has {match[1].chunk.size}"
                    )
    for (rank, _, _), (index, op) in sends.items():
        raise PlanError(f"{_place(rank, index, op)}: rank {op.peer} has no matching receive")


def _shift(content: Content, offset: int) -> Content:
    return tuple(Contribution(rank, unit + offset) for rank, unit in content)


class _Rank:
    """The memory and the progress of a rank while the plan is walked."""

    def __init__(self, rank: int, flow: Dataflow, plan: Plan) -> None:
        self.rank = rank
        self.flow = flow
        self.n_waits = list(flow.n_waits)
        self.memory: dict[str, IntervalMap[Content]] = {}
        self.receives: dict[int, list[deque[int]]] = {}  # by source, by lane
        self.started: dict[int, deque[int]] = {}  # by lane, sends in progress
        self.received: set[int] = set()  # sends whose message was received
        self.n_done = 0
        for buffer, runs in find_statement(plan.collective).before(plan, rank).items():
            self._buffer(buffer).set(0, runs)
        for lane in filter(None, flow.receives):
            first = flow.program[lane[0]]
            if isinstance(first, Recv):
                self.receives.setdefault(first.peer, []).append(deque(lane))

    def _buffer(self, name: str) -> IntervalMap[Content]:
        return self.memory.setdefault(name, IntervalMap((), _shift))

    def read(self, index: int, chunk: Chunk) -> Runs:
        runs = self._buffer(chunk.buffer).get(chunk.start, chunk.stop)
        if any(not content for _, content in runs):
            raise PlanError(
                f"{_place(self.rank, index, self.flow.program[index])}: "
                f"{chunk} is read before anything is in it"
            )
        return runs

    def write(self, chunk: Chunk, runs: Runs) -> None:
        self._buffer(chunk.buffer).set(chunk.start, runs)

    def start_send(self, index: int) -> None:
        self.started.setdefault(self.flow.lane_of[index], deque()).append(index)

    def end_sends(self, index: int) -> list[int]:
        """Record that send ``index`` was received; return the sends that the engine ends now."""
        self.received.add(index)
        lane, ended = self.started[self.flow.lane_of[index]], []
        while lane and lane[0] in self.received:
            ended.append(lane.popleft())
        return ended

    def complete(self, index: int) -> list[int]:
        """Mark op ``index`` as done; return the ops that this makes ready."""
        self.n_done += 1
        ready = []
        for later in self.flow.releases[index]:
            self.n_waits[later] -= 1
            if self.n_waits[later] == 0:
                ready.append(later)
        return ready


def _run(ranks: list[_Rank]) -> None:
    """Walk the plan to its end. Raises `PlanError` for a deadlock or a read of empty memory."""
    in_flight: dict[tuple[int, int, int], tuple[int, Runs]] = {}
    ready = deque(
        (rank.rank, index)
        for rank in ranks
        for index, n_waits in enumerate(rank.n_waits)
        if n_waits == 0
    )
    waiting: set[tuple[int, int]] = set()  # receives whose buffer is free
    while ready:
        number, index = ready.popleft()
        rank = ranks[number]
        op = rank.flow.program[index]
        finished: list[tuple[int, int]] = []
        match op:
            case Send(peer=peer, chunk=chunk, tag=tag, after=after):
                if after is not None:
                    rank.read(index, after)
                in_flight[number, peer, tag] = (index, rank.read(index, chunk))
                rank.start_send(index)
                finished = _deliver(ranks, number, peer, in_flight, waiting)
            case Recv(peer=peer):
                waiting.add((number, index))
                finished = _deliver(ranks, peer, number, in_flight, waiting)
            case Copy(source=source, into=into):
                rank.write(into, rank.read(index, source))
                finished = [(number, index)]
            case Reduce():
                rank.write(op.into, _reduced(rank, index, op))
                finished = [(number, index)]
        for done_rank, done_index in finished:
            ready.extend((done_rank, later) for later in ranks[done_rank].complete(done_index))
    for rank in ranks:
        if rank.n_done < len(rank.flow.program):
            raise PlanError(_stuck(rank, waiting, in_flight))


def _deliver(
    ranks: list[_Rank],
    sender: int,
    receiver: int,
    in_flight: dict[tuple[int, int, int], tuple[int, Runs]],
    waiting: set[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Receive the messages in flight between two ranks, in the order of each lane.

    Returns the ops that this ends.
    """
    finished: list[tuple[int, int]] = []
    for lane in ranks[receiver].receives[sender]:
        while lane and (receiver, lane[0]) in waiting:
            index = lane[0]
            op = ranks[receiver].flow.program[index]
            if not isinstance(op, Recv) or (sender, receiver, op.tag) not in in_flight:
                break
            send_index, runs = in_flight.pop((sender, receiver, op.tag))
            ranks[receiver].write(op.chunk, runs)
            lane.popleft()
            waiting.discard((receiver, index))
            finished += [(sender, ended) for ended in ranks[sender].end_sends(send_index)]
            finished.append((receiver, index))
    return finished


def _reduced(rank: _Rank, index: int, op: Reduce) -> Runs:
    """Return the runs of the result of ``op``, cut wherever either operand is cut."""
    source, into = rank.read(index, op.source), rank.read(index, op.into)
    runs: Runs = []
    while source and into:
        length = min(source[0][0], into[0][0])
        pair = (source[0][1], into[0][1])
        first, second = pair if op.source_first else pair[::-1]
        runs.append((length, first + second))
        for side in (source, into):
            rest, content = side.pop(0)
            if rest > length:
                side.insert(0, (rest - length, _shift(content, length)))
    return runs


def _stuck(
    rank: _Rank,
    waiting: set[tuple[int, int]],
    in_flight: dict[tuple[int, int, int], tuple[int, Runs]],
) -> str:
    """Return the error message for a rank that cannot finish."""
    for index, op in enumerate(rank.flow.program):
        if (rank.rank, index) in waiting and isinstance(op, Recv):
            return f"deadlock: {_place(rank.rank, index, op)} waits for a send that never starts"
    for (sender, _, tag), (index, _) in in_flight.items():
        if sender == rank.rank:
            op = rank.flow.program[index]
            return f"deadlock: {_place(sender, index, op)} (tag {tag}) is never received"
    index = next(i for i, n in enumerate(rank.n_waits) if n)
    return f"deadlock: {_place(rank.rank, index, rank.flow.program[index])} never starts"


def _check_result(plan: Plan, rank: _Rank, rank_order: bool) -> None:
    after = find_statement(plan.collective).after(plan, rank.rank)
    for buffer, expected in after.items():
        at = 0
        for length, wanted in expected:
            for run, found in rank._buffer(buffer).get(at, at + length):
                if not _same(found, wanted, rank_order):
                    raise PlanError(
                        f"rank {rank.rank}, {Chunk(buffer, at, at + run)}: {plan.collective} "
                        f"({plan.label}) must leave {_text(wanted)} there, "
                        f"but it holds {_text(found)}"
                    )
                at += run
                wanted = _shift(wanted, run)


def _same(found: Content, wanted: Content, rank_order: bool) -> bool:
    return found == wanted if rank_order else Counter(found) == Counter(wanted)


def _text(content: Content) -> str:
    if not content:
        return "nothing"
    return " + ".join(f"unit {unit} of rank {rank}" for rank, unit in content)
