from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.engine.memory import ByteMemory
from gridcoll.errors import PlanError
from gridcoll.plan import Chunk, Copy, Recv, Reduce, Send, check_plan, choose
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.gather.mirror import backwards, plan_gather
from gridcoll.plan.trees import RankTree
from tests.plan.grids import grids, model_of
from tests.plan.traffic import count_traffic
from tests.reference import run_reference


@settings(max_examples=60, deadline=None)
@given(grids, st.integers(0, 10), st.sampled_from([0, 1, 3, 1000]))
def test_every_candidate_on_any_grid_is_right(labels: list[int], root: int, n_bytes: int) -> None:
    root %= len(labels)
    for candidate in choose("gather", model_of(labels), n_bytes, root).candidates:
        if candidate.build is not None:
            for exact in {n_bytes, n_bytes // 2 + 1}:
                plan = candidate.build(exact)
                assert (plan.collective, plan.n_units, plan.root) == ("gather", exact, root)
                check_plan(plan)


@settings(max_examples=40, deadline=None)
@given(grids, st.integers(0, 10))
def test_a_byte_crosses_from_its_cluster_to_the_roots_once(labels: list[int], root: int) -> None:
    root %= len(labels)
    model = model_of(labels)
    home = model.grid.cluster_of[root]
    for candidate in choose("gather", model, 100, root).candidates:
        if candidate.build is None or "over nearer clusters" in candidate.label:
            continue
        units = count_traffic(candidate.build(7), model.grid).units
        for c, cluster in enumerate(model.grid.clusters):
            if c != home:
                assert units[c, home] == 7 * len(cluster)
        assert all(j in (home, i) for i, j in units)


@settings(max_examples=20, deadline=None)
@given(grids, st.integers(0, 10))
def test_bytes_arrive(labels: list[int], root: int) -> None:
    """The engine, not the checker."""
    n_ranks = len(labels)
    root %= n_ranks
    sent = np.random.default_rng(n_ranks).integers(0, 256, (n_ranks, 5), np.uint8)
    for candidate in choose("gather", model_of(labels), 5, root).candidates:
        if candidate.build is None:
            continue
        plan = candidate.build(5)
        got = np.zeros_like(sent)
        run_reference(
            plan,
            [
                ByteMemory(
                    memoryview(got.reshape(-1)) if rank == root else None,  # type: ignore[arg-type]
                    memoryview(sent[rank]),  # type: ignore[arg-type]
                    memoryview(bytearray(plan.scratch_of(rank))),
                )
                for rank in range(n_ranks)
            ],
        )
        assert (got == sent).all(), candidate.name


def test_backwards() -> None:
    here, there, slot = Chunk("input", 0, 4), Chunk("output", 4, 8), Chunk("scratch", 0, 4)
    program = (Recv(1, slot, 3), Copy(slot, there), Copy(here, slot), Send(2, slot, 0))
    assert backwards(program) == (
        Recv(2, slot, 0),
        Copy(slot, Chunk("output", 0, 4)),
        Copy(Chunk("input", 4, 8), slot),
        Send(1, slot, 3),
    )
    with pytest.raises(PlanError, match="cannot be undone"):
        backwards((Reduce(here, slot),))


def test_only_a_scatter_is_run_backwards() -> None:
    with pytest.raises(PlanError, match="must be a scatter, got bcast"):
        plan_gather(plan_bcast([RankTree(0, ((),))], 1, 1))
