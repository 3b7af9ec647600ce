from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.engine.memory import ByteMemory
from gridcoll.errors import PlanError
from gridcoll.plan import REGISTRIES, Chunk, Plan, Recv, Send
from tests.plan.grids import grids, model_of
from tests.reference import run_reference


def message(n_bytes: int) -> bytes:
    """No two segments alike, whatever their size."""
    return bytes((k * 167 + k // 251 + (k >> 11)) % 256 for k in range(n_bytes))


@settings(max_examples=40)
@given(grids, st.sampled_from([1, 64]), st.data())
def test_every_candidate_delivers_the_bytes(
    labels: list[int], window: int, data: st.DataObject
) -> None:
    """Law 1: the engine runs what `check_plan` proves, with one receive posted or many."""
    model = model_of(labels, together=1e9)
    root = data.draw(st.integers(0, len(labels) - 1))
    n_bytes = data.draw(st.sampled_from([0, 1, 1025, 20_000]))
    wanted = message(n_bytes)
    for candidate in (
        candidate
        for algorithm in REGISTRIES["bcast"].values()
        for candidate in algorithm.candidates(model, max(n_bytes, 8192), root)
    ):
        assert candidate.build is not None
        plan = candidate.build(n_bytes)
        buffers = [bytearray(wanted if r == root else n_bytes) for r in range(len(labels))]
        memories = [
            ByteMemory(memoryview(buffer), scratch=memoryview(bytearray(plan.scratch_of(r))))
            for r, buffer in enumerate(buffers)
        ]
        run_reference(plan, memories, window)
        assert all(buffer == wanted for buffer in buffers), candidate.label


def by_hand(*programs: tuple[Send | Recv, ...]) -> Plan:
    return Plan("bcast", "by hand", 4, 0, programs)


def run(plan: Plan) -> None:
    run_reference(plan, [ByteMemory(memoryview(bytearray(8))) for _ in range(plan.n_ranks)])


def test_ranks_that_wait_for_ever_are_named() -> None:
    a = Chunk("output", 0, 4)
    with pytest.raises(PlanError, match=r"bcast \(by hand\): ranks \[1, 2\] wait for ever"):
        run(by_hand((), (Recv(2, a, 0),), (Recv(1, a, 0),)))


def test_a_send_ends_only_when_received() -> None:
    with pytest.raises(PlanError, match=r"ranks \[0\] wait for ever"):
        run(by_hand((Send(1, Chunk("output", 0, 4), 0),), ()))


def test_sizes_must_agree() -> None:
    with pytest.raises(PlanError, match=r"message \(0, 1, 0\): 4 bytes for 3"):
        run(by_hand((Send(1, Chunk("output", 0, 4), 0),), (Recv(0, Chunk("output", 0, 3), 0),)))
