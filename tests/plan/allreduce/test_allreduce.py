from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.constants import SMALLEST_PIECE_BYTES
from gridcoll.errors import PlanError
from gridcoll.model import TimesBySize
from gridcoll.plan import REGISTRIES, Chunk, Plan, Program, Recv, Reduce, Send, check_plan, choose
from gridcoll.plan.allreduce import costs as allreduce_costs
from gridcoll.plan.allreduce import rank_order
from gridcoll.plan.allreduce.costs import COMBINE, RETURN, Costs, load_of_pieces, price_pieces
from gridcoll.plan.allreduce.lanes import MOST_PARTS, cut_columns
from gridcoll.plan.allreduce.pieces import (
    EVERYWHERE,
    Piece,
    keeps_rank_order,
    plan_allreduce,
)
from gridcoll.plan.allreduce.ring import plan_ring
from gridcoll.plan.cost import price_plan
from gridcoll.plan.ops import reads, writes
from gridcoll.plan.plan import Programs, scratch_of
from gridcoll.plan.reduce.mirror import plan_reduce
from gridcoll.topology import Grid
from tests.plan.grids import model_of, unlike_model

labels_of_many = st.lists(st.integers(0, 4), min_size=1, max_size=24)
sorted_labels = labels_of_many.map(sorted)


@settings(max_examples=20)
@given(labels_of_many | sorted_labels, st.data())
@pytest.mark.long
def test_every_candidate_on_any_grid_is_right(labels: list[int], data: st.DataObject) -> None:
    """Its plan passes `check_plan`, in rank order where it claims that."""
    model = model_of(labels, together=data.draw(st.sampled_from([0.0, 1e9])))
    n_bytes = data.draw(st.sampled_from([0, 8, 1000, 40_000, 1_000_000]))
    n_units = data.draw(st.integers(0, min(n_bytes, 300)))
    for collective in ("allreduce", "barrier"):
        for candidate in choose(collective, model, n_bytes, 0).candidates:
            if candidate.build is not None:
                plan = candidate.build(n_units)
                assert (plan.n_units, plan.n_ranks) == (n_units, len(labels))
                check_plan(plan, rank_order=candidate.rank_order)


@settings(max_examples=30)
@given(labels_of_many, st.data())
def test_every_reduction_on_any_grid_is_right(labels: list[int], data: st.DataObject) -> None:
    model = model_of(labels, together=1e9)
    root = data.draw(st.integers(0, len(labels) - 1))
    n_bytes = data.draw(st.sampled_from([0, 8, 20_000]))
    for candidate in choose("reduce", model, n_bytes, root).candidates:
        if candidate.build is not None:
            n_units = data.draw(st.sampled_from([0, 1, n_bytes // 8, n_bytes]))
            plan = candidate.build(n_units)
            assert (plan.n_units, plan.root) == (n_units, root)
            check_plan(plan, rank_order=candidate.rank_order)


@given(labels_of_many | sorted_labels, st.data())
def test_any_pieces_in_any_shape_are_right(labels: list[int], data: st.DataObject) -> None:
    """Whoever owns a piece, wherever it is combined, however long its segments are."""
    grid = Grid.from_labels(labels)
    n_units = data.draw(st.integers(0, 40))
    cuts = sorted(data.draw(st.lists(st.integers(0, n_units), max_size=4)))
    pieces = [
        Piece(
            start,
            stop,
            tuple(data.draw(st.integers(0, len(c) - 1)) for c in grid.clusters),
            data.draw(st.integers(EVERYWHERE, len(grid.clusters) - 1)),
        )
        for start, stop in zip([0, *cuts], [*cuts, n_units], strict=True)
    ]
    shape = data.draw(st.sampled_from(["flat", "chain", "binomial", "binary", "2-chain"]))
    plan = plan_allreduce(grid, n_units, pieces, data.draw(st.integers(1, 9)), shape)
    check_plan(plan, rank_order=keeps_rank_order(grid, pieces, shape))


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "barrier"])
def test_every_algorithm_has_a_grid_it_is_for(collective: str) -> None:
    three = model_of([0, 0, 0, 1, 1, 1, 2, 2, 2], together=1e9)
    models = model_of([0] * 4), three, unlike_model()
    for name, algorithm in REGISTRIES[collective].items():
        cases = [(model, n_bytes) for model in models for n_bytes in (8, 100_000)]
        found = [c for model, n_bytes in cases for c in algorithm.candidates(model, n_bytes, 1)]
        assert found, name
        assert {c.name for c in found} == {name} == {algorithm.name}
        assert algorithm.good_for
        assert algorithm.source


def test_rank_order_is_claimed_only_for_intervals_of_ranks() -> None:
    whole = [Piece(0, 4, (0, 0))]
    assert keeps_rank_order(Grid.from_labels([0, 0, 1, 1]), whole, "binomial")
    assert not keeps_rank_order(Grid.from_labels([0, 1, 0, 1]), whole, "binomial")
    assert not keeps_rank_order(Grid.from_labels([0, 0, 1, 1]), whole, "binary")
    turned = [Piece(0, 4, (1, 0))]
    assert keeps_rank_order(Grid.from_labels([0, 0, 1, 1]), turned, "flat")
    assert not keeps_rank_order(Grid.from_labels([0, 0, 1, 1]), turned, "binomial")


def test_non_commutative_operations_get_only_what_keeps_rank_order() -> None:
    model = model_of([0, 0, 0, 1, 1, 1])
    names = {c.name for c in choose("allreduce", model, 100_000, 0, rank_order=True).candidates}
    assert "ring" in {c.name for c in choose("allreduce", model, 100_000, 0).candidates}
    assert names == {"leaders", "lanes", "rank-order", "native"}
    mixed = model_of([0, 1, 0, 1, 0, 1])
    for collective in ("allreduce", "reduce"):
        names = {c.name for c in choose(collective, mixed, 100_000, 0, rank_order=True).candidates}
        assert names == {"rank-order", "native"}


def test_ranks_get_the_same_bits_only_from_plans() -> None:
    """Between clusters, the native collective is not to be had where that is asked for."""
    two, one = (
        replace(model_of(labels), native={"allreduce": TimesBySize((1,), (1e-9,))})
        for labels in ([0, 0, 1, 1], [0, 0, 0, 0])
    )
    assert choose("allreduce", two, 24, 0).winner.name == "native"
    assert choose("allreduce", two, 24, 0, bitwise_equal=True).winner.build is not None
    assert choose("allreduce", one, 24, 0, bitwise_equal=True).winner.name == "native"
    assert (
        choose("allreduce", two, 24, 0, bitwise_equal=True, forced="native").winner.name == "native"
    )


def _plans() -> list[Plan]:
    grid = Grid.from_labels([0, 0, 0, 1, 1, 2])
    return [
        plan_allreduce(grid, 6, [Piece(0, 6, (0, 0, 0))], 3, "binomial"),
        plan_allreduce(grid, 6, cut_columns(grid, 6, with_homes=False), 3, "flat"),
        plan_allreduce(grid, 6, cut_columns(grid, 6, with_homes=True), 3, "flat"),
        plan_ring(range(6), 6, 1),
    ]


def _with(plan: Plan, rank: int, program: Program) -> Plan:
    programs = list(plan.programs)
    programs[rank] = program
    return replace(plan, programs=programs)


@pytest.mark.parametrize("plan", _plans())
def test_a_contribution_counted_twice_is_rejected(plan: Plan) -> None:
    for rank, program in enumerate(plan.programs):
        for index, op in enumerate(program):
            if isinstance(op, Reduce):
                twice = (*program[: index + 1], op, *program[index + 1 :])
                with pytest.raises(PlanError, match="must leave"):
                    check_plan(_with(plan, rank, twice))
                return
    pytest.fail("nothing is reduced")


@pytest.mark.parametrize("plan", _plans())
def test_a_contribution_left_out_is_rejected(plan: Plan) -> None:
    for rank, program in enumerate(plan.programs):
        for index, op in enumerate(program):
            if isinstance(op, Reduce):
                with pytest.raises(PlanError, match="must leave"):
                    check_plan(_with(plan, rank, (*program[:index], *program[index + 1 :])))
                return


@given(sorted_labels, st.booleans(), st.integers(1, 200))
def test_columns_cover_the_message(labels: list[int], with_homes: bool, n_units: int) -> None:
    """In order, and every member owns an equal part, to a unit."""
    grid = Grid.from_labels(labels)
    pieces = cut_columns(grid, n_units, with_homes)
    assert [u for p in pieces for u in range(p.start, p.stop)] == list(range(n_units))
    for c, cluster in enumerate(grid.clusters):
        owned = np.zeros(len(cluster))
        for piece in pieces:
            owned[piece.owners[c]] += piece.stop - piece.start
        assert np.abs(owned - n_units / len(cluster)).max() <= 1


@given(sorted_labels)
def test_owners_combine_at_the_same_places(labels: list[int]) -> None:
    """All who combine an element do so in the same order and at the same alignment."""
    grid = Grid.from_labels(labels)
    n, n_clusters = 24, len(grid.clusters)
    plan = plan_allreduce(grid, n, cut_columns(grid, n, with_homes=False), 5, "flat")
    zone = n_clusters * n
    combined: dict[int, set[tuple[tuple[Chunk, Chunk], ...]]] = {}
    for program in plan.programs:
        last = [
            (op.source, op.into)
            for op in program
            if isinstance(op, Reduce)
            and op.into.buffer == "scratch"
            and zone <= op.into.start < zone + n
        ]
        for start in {into.start for _, into in last}:
            steps = tuple(step for step in last if step[1].start == start)
            combined.setdefault(start, set()).add(steps)
    assert all(len(ways) == 1 for ways in combined.values())
    assert bool(combined) == (n_clusters > 1)


@given(labels_of_many)
def test_scratch_is_what_is_needed(labels: list[int]) -> None:
    """`check_plan` refuses too little; too much would be memory for nothing."""
    grid = Grid.from_labels(labels)
    plan = plan_allreduce(grid, 30, cut_columns(grid, 30, with_homes=True), 4, "flat")
    for rank, program in enumerate(plan.programs):
        chunks = [c for op in program for c in (*reads(op), *writes(op)) if c.buffer == "scratch"]
        assert plan.scratch_of(rank) == max((c.stop for c in chunks), default=0)


def wan_units(plan: Plan, grid: Grid) -> dict[tuple[int, int], int]:
    """Units that cross between clusters, by direction."""
    crossing: dict[tuple[int, int], int] = {}
    for rank, program in enumerate(plan.programs):
        for op in program:
            if isinstance(op, Send):
                way = grid.cluster_of[rank], grid.cluster_of[op.peer]
                if way[0] != way[1]:
                    crossing[way] = crossing.get(way, 0) + op.chunk.size
    return crossing


@pytest.mark.parametrize("sizes", [(4, 4, 4), (1, 3, 8), (2, 2), (5, 1, 1, 2)])
def test_long_messages_cross_uplinks_least(sizes: Sequence[int]) -> None:
    """No more than 2 m (C-1)/C each way on any cluster's uplink."""
    labels = [c for c, size in enumerate(sizes) for _ in range(size)]
    grid, n_clusters = Grid.from_labels(labels), len(sizes)
    n = 12 * 5 * 24
    least = 2 * n * (n_clusters - 1) / n_clusters
    crossing = wan_units(plan_allreduce(grid, n, cut_columns(grid, n, True), 99, "flat"), grid)
    for c in range(n_clusters):
        for way in (0, 1):
            total = sum(units for link, units in crossing.items() if link[way] == c)
            assert total <= least + n_clusters * len(labels)  # rounding of shares


@pytest.mark.parametrize("n_bytes", [1 << 13, 1 << 16, 1 << 20])
@pytest.mark.parametrize(
    "sizes", [(31, 29, 6, 1, 1, 20), (48, 40, 32, 24), (101, 103), (9, 10, 11)]
)
def test_no_more_pieces_are_priced_than_said(
    sizes: tuple[int, ...], n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that do not divide each other make many more pieces than the largest has members."""
    priced: list[tuple[bool, int, int]] = []

    def price(
        reproducible: bool, costs: Costs, groups: Grid, pieces: list[Piece], *rest: Any
    ) -> Any:
        priced.append((reproducible, len(pieces), groups.n_ranks))
        return price_pieces(costs, groups, pieces, *rest)

    for module in (allreduce_costs, rank_order):
        priced_there = partial(price, module is rank_order)
        monkeypatch.setattr(module, "price_pieces", priced_there)
    labels = [c for c, size in enumerate(sizes) for _ in range(size)]
    choose("allreduce", model_of(labels, together=1e9), n_bytes, 0)
    choose("reduce", model_of(labels, together=1e9), n_bytes, 0)
    for reproducible, n_pieces, n_ranks in priced:
        assert n_pieces * n_ranks <= MOST_PARTS
        assert reproducible or n_bytes >= SMALLEST_PIECE_BYTES * n_pieces


def test_pieces_combined_at_home_load_both_ends() -> None:
    """Ranks 0 and 1 on a host and rank 2 in one cluster, rank 3 in the other."""
    grid = Grid.from_labels([0, 0, 0, 1], ["a", "a", "b", "c"])
    pieces = [Piece(0, 6, (0, 0), 1), Piece(6, 10, (2, 0), 0)]
    load = load_of_pieces(grid, grid, pieces, [2, 1], "flat")
    assert load.out[COMBINE].tolist() == [12, 0, 4]
    assert load.into[COMBINE].tolist() == [0, 4, 12]
    assert load.out[RETURN].tolist() == [0, 4, 6]
    assert load.into[RETURN].tolist() == [6, 0, 4]
    (meet,), (part,) = load.flows[COMBINE], load.flows[RETURN]
    assert [each.tolist() for each in meet] == [[0, 3], [3, 2], [12, 4]]
    assert [each.tolist() for each in part] == [[3, 2], [0, 3], [6, 4]]
    load = load_of_pieces(grid, grid, pieces, [2, 1], "flat", root=1)
    assert load.into[RETURN].tolist() == [10, 0, 0]


@pytest.mark.parametrize("n_bytes", [8, 65536, 1 << 20])
@pytest.mark.parametrize("labels", [[0] * 4 + [1] * 4 + [2] * 4, [0] * 3 + [1] * 6])
def test_predictions_are_near_a_walk(labels: list[int], n_bytes: int) -> None:
    """Of the fastest of each kind; a walk of the plan knows every message."""
    model, seen = model_of(labels), set()
    for candidate in choose("allreduce", model, n_bytes, 0).candidates:
        if candidate.build is None or candidate.name in seen or candidate.predicted_s is None:
            continue
        seen.add(candidate.name)
        walked = price_plan(candidate.build(n_bytes // 8), model, unit_bytes=8).makespan_s
        assert candidate.predicted_s == pytest.approx(walked, rel=0.4), candidate.label


def test_only_broadcasts_run_backwards() -> None:
    with pytest.raises(PlanError, match="must be a bcast, got allreduce"):
        plan_reduce(plan_ring(range(3), 3, 1), 3)


def test_a_reduction_writes_the_programs_asked_for_and_no_others() -> None:
    asked: list[int] = []

    def program_of(rank: int) -> Program:
        asked.append(rank)
        return broadcast.programs[rank]

    build = choose("bcast", model_of([0, 0, 0, 1, 1, 1]), 4096, 0).winner.build
    assert build is not None
    broadcast = build(4096)
    plan = plan_reduce(replace(broadcast, programs=Programs(6, program_of)), 512)
    assert asked == []
    assert plan.scratch_of(3) == scratch_of(plan.programs[3])
    assert asked == [3]


def test_a_ring_visits_everybody() -> None:
    with pytest.raises(PlanError, match="must visit every rank once"):
        plan_ring([0, 2], 3, 1)
    with pytest.raises(PlanError, match="hosts must have its 2 ranks"):
        plan_ring([0, 1], 3, 1, hosts=[1, 2])


@pytest.mark.parametrize("hosts", [(2, 1, 3), (6,), (1, 5), (3, 3), (1,) * 6])
@pytest.mark.parametrize("n_units", [0, 2, 40])
def test_a_ring_enters_hosts_least(hosts: tuple[int, ...], n_units: int) -> None:
    """2 m (H-1)/H out of every host and into it, to a unit of each block."""
    ring = [2, 0, 1, 3, 5, 4]
    plan = plan_ring(ring, n_units, 3, hosts=hosts)
    check_plan(plan)
    host_of = dict(zip(ring, np.repeat(range(len(hosts)), hosts).tolist(), strict=True))
    crossing = [
        (host_of[rank], host_of[op.peer], op.chunk.size)
        for rank, program in enumerate(plan.programs)
        for op in program
        if isinstance(op, Send) and host_of[rank] != host_of[op.peer]
    ]
    least = 2 * n_units * (len(hosts) - 1) / len(hosts)
    for host in range(len(hosts)):
        for end in (0, 1):
            assert sum(c[2] for c in crossing if c[end] == host) <= least + 2


def test_a_ring_moves_least() -> None:
    """2 m (P-1)/P out of every rank and into it."""
    plan = plan_ring([2, 0, 1, 3], 40, 3)
    for program in plan.programs:
        for kind in (Send, Recv):
            assert sum(op.chunk.size for op in program if isinstance(op, kind)) == 60
