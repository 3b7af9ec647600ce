"""LG (paper 001): who collects for whom, between two clusters and among many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gridcoll.plan import Copy, Plan, Recv, Send, check_plan
from gridcoll.plan.alltoall.lg import Exchange, exchanges, plan_lg
from gridcoll.topology import Grid
from gridcoll.topology.rounds import rounds_of_pairs
from tests.plan.alltoall.test_traffic import two


def all_for_rank_0() -> Grid:
    """Rank 0 collects the more whenever there is more to collect, and has all it gets to sort."""
    sizes = [3] * 20
    for turn, pairs in enumerate(rounds_of_pairs(20)):
        sizes[next(b for a, b in pairs if a == 0)] += turn % 3 == 0
    return Grid.from_labels([c for lap in range(4) for c in range(20) if lap < sizes[c]])


def test_what_arrives_takes_turns_where_room_is_short() -> None:
    grid = all_for_rank_0()
    plan = plan_lg(grid, 1)
    assert max(plan.scratch_units) == plan.scratch_of(0) == 2 * grid.n_ranks
    check_plan(plan)


def test_those_who_collect_more_take_turns() -> None:
    """A rank of two cannot collect for half of three; over three such clusters it evens out."""
    grid = Grid.from_labels([0, 0, *[1] * 3, *[2] * 3, *[3] * 3])
    collected = [
        sum(collector == rank for each in exchanges(grid) for collector, _, _ in each.messages)
        for rank in (0, 1)
    ]
    assert sorted(collected) == [4, 5]


def route(plan: Plan, source: int, target: int) -> list[int]:
    """The ranks through which the block of ``source`` for ``target`` goes (blocks of one unit)."""
    unit, came = target, -1  # and the op by which it came to where it is
    path, buffer, rank = [source], "input", source
    while rank != target or buffer != "output":
        for index, op in enumerate(plan.programs[rank][came + 1 :], start=came + 1):
            if isinstance(op, Send) and op.chunk.buffer == buffer:
                if op.chunk.start <= unit < op.chunk.stop:
                    came, receive = next(
                        (at, other)
                        for at, other in enumerate(plan.programs[op.peer])
                        if isinstance(other, Recv) and (other.peer, other.tag) == (rank, op.tag)
                    )
                    unit += receive.chunk.start - op.chunk.start
                    rank, buffer = op.peer, receive.chunk.buffer
                    path.append(rank)
                    break
            elif (
                isinstance(op, Copy)
                and op.source.buffer == buffer
                and op.source.start <= unit < op.source.stop
            ):
                unit += op.into.start - op.source.start
                came, buffer = index, op.into.buffer
                break
        else:
            raise AssertionError(f"{source} to {target}: lost at {path}, {buffer}[{unit}]")
    return path


def test_the_example_takes_the_papers_route() -> None:
    """Section 4.1: ``M(7, 2)`` with 3 and 7 ranks goes to 8, with ``M(6, 2)`` and ``M(8, 2)``."""
    plan = plan_lg(two(3, 7), 1)
    assert route(plan, 7, 2) == [7, 8, 2]
    assert route(plan, 6, 2) == [6, 8, 2]
    assert route(plan, 8, 2) == [8, 2]


def test_the_examples_pairs_meet_as_in_the_paper() -> None:
    """Its three steps: 0-3 1-4 2-5, then 0-6 1-7 2-8, then 0-9."""
    (exchange,) = exchanges(two(3, 7))
    met = [tuple(sorted((a, b))) for a, b, _ in exchange.messages]
    steps = [(0, 3), (1, 4), (2, 5), (0, 6), (1, 7), (2, 8), (0, 9)]
    assert met == [pair for pair in steps for _ in range(2)]


def test_data_is_stored_where_the_prose_says() -> None:
    """From C1, for ``j``: at ``j mod n1``. From C2: at ``floor(i / n1) n1 + j``, where that is."""
    n1, n2 = 3, 7
    exchange = Exchange(tuple(range(n1)), tuple(range(n1, n1 + n2)))
    for i in range(n1):
        for j in range(n1, n1 + n2):
            assert exchange.collector(i, j) == j % n1
            home = j // n1 * n1 + i
            if home < n1 + n2:
                assert exchange.collector(j, i) == home
    # The prose would have 10 and 11 collect these; there are none.
    assert exchange.collector(9, 1) == 7
    assert exchange.collector(9, 2) == 8


@given(st.integers(1, 9), st.integers(0, 12))
def test_collectors_share_the_load(n1: int, more: int) -> None:
    """No message carries more than the paper's group and its share of who is left over."""
    exchange = Exchange(tuple(range(n1)), tuple(range(n1, 2 * n1 + more)))
    n2 = n1 + more
    left_over = -(-(n2 % n1) // (n2 // n1))
    for collector, _, sources in exchange.messages:
        assert len(sources) <= (n1 if collector < n1 else n1 + left_over)
        assert sources


def test_every_cluster_meets_one_other_per_round() -> None:
    met = [
        sorted((each.small[0] // 4, each.large[0] // 4))
        for each in exchanges(Grid.from_labels([c for c in range(4) for _ in range(4)]))
    ]
    for at in range(0, len(met), 2):
        assert sorted(met[at] + met[at + 1]) == [0, 1, 2, 3]


def test_lg_copies_a_block_at_most_once_where_clusters_are_rank_intervals() -> None:
    """Packing is one copy, of a collector's own blocks; nothing is copied on arrival."""
    plan = plan_lg(two(4, 4), 5)
    for program in plan.programs:
        copies = [op for op in program if isinstance(op, Copy)]
        assert all(op.source.buffer == "input" for op in copies)
        assert sum(op.source.size for op in copies) == 5 * (1 + 1)  # the collector's, and its own
