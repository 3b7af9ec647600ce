"""Plans for unlike grids, run: what goes round thin links and down packed trees arrives."""

from __future__ import annotations

import numpy as np
import pytest

from gridcoll.engine.memory import ByteMemory
from gridcoll.plan.registry import REGISTRIES
from tests.plan.grids import unlike_model
from tests.reference import run_reference

N_BYTES = 20_000


def filled(n_bytes: int, seed: int) -> bytearray:
    return bytearray(np.random.default_rng(seed).integers(0, 256, n_bytes, np.uint8).tobytes())


@pytest.mark.parametrize("window", [1, 64])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("scatter", "relayed"),
        ("gather", "relayed"),
        ("allgather", "packed-trees"),
        ("alltoall", "relayed"),
        ("alltoall", "spread"),
    ],
)
def test_blocks_arrive(collective: str, algorithm: str, window: int) -> None:
    model, root = unlike_model(), 3
    n = model.grid.n_ranks
    candidate = REGISTRIES[collective][algorithm].candidates(model, N_BYTES, root)[-1]
    assert candidate.build
    plan = candidate.build(N_BYTES)
    long_in = collective in ("scatter", "alltoall")
    long_out = collective != "scatter"
    sent = [filled(N_BYTES * n if long_in else N_BYTES, r) for r in range(n)]
    got = [bytearray(N_BYTES * n if long_out else N_BYTES) for _ in range(n)]
    memories = [
        ByteMemory(
            memoryview(got[r]),
            memoryview(sent[r]),
            scratch=memoryview(bytearray(plan.scratch_of(r))),
        )
        for r in range(n)
    ]
    run_reference(plan, memories, window)

    def block(data: bytearray, k: int) -> bytearray:
        return data[k * N_BYTES : (k + 1) * N_BYTES]

    for r in range(n):
        if collective == "scatter":
            assert got[r] == block(sent[root], r)
        elif collective == "allgather" or (collective == "gather" and r == root):
            assert all(block(got[r], k) == sent[k] for k in range(n))
        elif collective == "alltoall":
            assert all(block(got[r], k) == block(sent[k], r) for k in range(n))
