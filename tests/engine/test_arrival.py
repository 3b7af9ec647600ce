"""Plans need no network that keeps what nobody waits for.

MPI libraries keep messages that come before their receives, but some keep only so many of one peer
(Intel MPI 64 over TCP), and then hold up whatever comes behind them from there, for ever if that is
what the receiver waits for.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Struct, field

from gridcoll.engine.executor import IDLE_POLLS, Executor, Request
from gridcoll.plan import REGISTRIES, Chunk, Op, Plan, Recv, Send, dataflow
from tests.plan.grids import model_of

KEPT = 4
"""Messages of one peer that the network keeps for a rank that does not wait for them yet."""

WINDOW = 4

PATIENCE = 20 * IDLE_POLLS
"""Rounds in which nothing happens: windows grow some twenty times meanwhile."""


class Transfer(Struct):
    over: bool = False

    def Test(self) -> bool:
        return self.over


class StrictNetwork(Struct):
    """Between two ranks messages come in the order sent; few are taken that nobody waits for."""

    sent: defaultdict[tuple[int, int], deque[int]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    posted: defaultdict[tuple[int, int], dict[int, Transfer]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    kept: defaultdict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))

    def deliver(self, rank: int) -> None:
        for pair in [pair for pair in self.sent if pair[1] == rank]:
            tags, posted, kept = self.sent[pair], self.posted[pair], self.kept[pair]
            for tag in kept & posted.keys():
                kept.remove(tag)
                posted.pop(tag).over = True
            while tags and (tags[0] in posted or len(kept) < KEPT):
                tag = tags.popleft()
                if tag in posted:
                    posted.pop(tag).over = True
                else:
                    kept.add(tag)


class StrictTransport(Struct):
    rank: int
    network: StrictNetwork

    def isend(self, view: Any, peer: int, tag: int) -> Transfer:
        self.network.sent[self.rank, peer].append(tag)
        return Transfer(over=True)  # as short messages are, whoever waits for them

    def irecv(self, view: Any, peer: int, tag: int) -> Transfer:
        transfer = self.network.posted[peer, self.rank][tag] = Transfer()
        return transfer

    def test_some(self, requests: list[Request]) -> Sequence[int]:
        self.network.deliver(self.rank)
        return [place for place, request in enumerate(requests) if request.Test()]


class Nothing:
    """Buffers of no bytes: when what arrives is what counts here."""

    def view(self, chunk: Chunk) -> memoryview:
        return memoryview(b"")

    def place(self, flow: Any) -> None: ...
    def copy(self, source: Chunk, into: Chunk) -> None: ...
    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None: ...


def arrives(plan: Plan, seed: int) -> bool:
    """Whether all ranks come to their end, in whatever order they have their turns."""
    turns = random.Random(seed)
    network = StrictNetwork()
    left = [
        Executor(
            *(dataflow(program), StrictTransport(rank, network), Nothing(), WINDOW),
            clock=lambda: math.inf,
        )
        for rank, program in enumerate(plan.programs)
    ]
    patience = PATIENCE
    while patience and (left := [executor for executor in left if not executor.done]):
        turns.shuffle(left)
        patience = PATIENCE if sum(executor.advance() for executor in left) else patience - 1
    return not left


@pytest.mark.parametrize("labels", [[0] * 5 + [1] * 2, [0, 1, 2, 0, 1]], ids=str)
@pytest.mark.parametrize("collective", REGISTRIES)
def test_every_plan_arrives(collective: str, labels: list[int]) -> None:
    """Also from the last rank of a small cluster, and where many pieces are under way."""
    model, root = model_of(labels, together=1e9), len(labels) - 1
    for algorithm in REGISTRIES[collective].values():
        for candidate in algorithm.candidates(model, 1 << 16, root)[:3]:
            if candidate.build:
                assert arrives(candidate.build(1 << 13), 0), f"{candidate.name}: {candidate.label}"


def early(n_messages: int) -> Plan:
    """So many that nobody waits for yet, before the one that somebody does."""
    first, *others = (Chunk("output", k, k + 1) for k in range(n_messages + 1))
    answer = (Send(1, first, 99),)
    receives = [Recv(1, chunk, tag) for tag, chunk in enumerate((first, *others))]
    sends = [Send(0, chunk, tag) for tag, chunk in enumerate(others, start=1)]
    sender: tuple[Op, ...] = (*sends, Recv(0, first, 99), Send(0, first, 0))
    return Plan("bcast", "by hand", n_messages + 1, 0, ((*answer, *receives), sender))


def test_what_is_kept_needs_no_receive() -> None:
    assert arrives(early(WINDOW - 1 + KEPT), 0)


def test_what_is_not_kept_is_received_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = early(10 * WINDOW)
    assert arrives(plan, 0)
    monkeypatch.setattr(Executor, "_widen", lambda executor: None)
    assert not arrives(plan, 0)
