"""Run all ranks of a plan in one process, without MPI."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from gridcoll.constants import RECEIVES_POSTED
from gridcoll.engine.counting import CountingTransport, Sent
from gridcoll.engine.executor import Executor, Memory, Request
from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import dataflow
from gridcoll.plan.plan import Plan


class _Message(Struct):
    """One transfer. A send is complete only when it is received, as MPI promises nothing more."""

    view: memoryview
    received: bool = False

    def Test(self) -> bool:
        return self.received


class _Receive(Struct):
    network: dict[tuple[int, int, int], _Message]
    key: tuple[int, int, int]
    view: memoryview

    def Test(self) -> bool:
        message = self.network.pop(self.key, None)
        if message is None:
            return False
        if len(message.view) != len(self.view):
            raise PlanError(f"message {self.key}: {len(message.view)} bytes for {len(self.view)}")
        self.view[:] = message.view
        message.received = True
        return True


class _LoopTransport(Struct):
    rank: int
    network: dict[tuple[int, int, int], _Message]

    def isend(self, view: memoryview, peer: int, tag: int) -> _Message:
        message = self.network[self.rank, peer, tag] = _Message(view)
        return message

    def irecv(self, view: memoryview, peer: int, tag: int) -> _Receive:
        return _Receive(self.network, (peer, self.rank, tag), view)

    def test_some(self, requests: list[Request]) -> Sequence[int]:
        return [place for place, request in enumerate(requests) if request.Test()]


def run_reference(
    plan: Plan, memories: Sequence[Memory], window: int = RECEIVES_POSTED
) -> tuple[Sent, ...]:
    """Run all ranks of ``plan`` over ``memories[rank]``, taking turns in rank order.

    Returns what each rank sent. Raises `PlanError` when no rank can make progress.
    """
    network: dict[tuple[int, int, int], _Message] = {}
    transports = [
        CountingTransport(_LoopTransport(rank, network), Sent(plan.n_ranks))
        for rank in range(plan.n_ranks)
    ]
    executors = [
        # Nothing takes time here, so every op is due.
        Executor(
            dataflow(program), transports[rank], memories[rank], window, clock=lambda: math.inf
        )
        for rank, program in enumerate(plan.programs)
    ]
    while not all(executor.done for executor in executors):
        progress = [executor.advance() for executor in executors]
        if not any(progress):
            stuck = [rank for rank, executor in enumerate(executors) if not executor.done]
            raise PlanError(f"{plan.collective} ({plan.label}): ranks {stuck} wait for ever")
    return tuple(transport.sent for transport in transports)
