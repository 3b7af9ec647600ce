from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.errors import PlanError
from gridcoll.plan.trees import GridTree
from gridcoll.schedule.trees import SHAPES
from gridcoll.topology import Grid
from tests.plan.grids import draw_transfers, grids

# Clusters (0, 2, 4), (1, 3, 5, 6), (7,).
GRID = Grid.from_labels([0, 1, 0, 1, 0, 1, 1, 2])


def test_coordinators_relay_before_they_serve_their_own() -> None:
    tree = GridTree(0, ((0, 1), (0, 2)), ("flat", "chain", "flat"), (0, 0, 0)).expand(GRID)
    assert tree.root == 0
    assert tree.children == ((1, 7, 2, 4), (3,), (), (5,), (), (6,), (), ())


def test_the_message_enters_the_roots_cluster_at_the_root() -> None:
    tree = GridTree(3, ((1, 0), (0, 2)), ("chain", "chain", "flat"), (0, 0, 0)).expand(GRID)
    assert tree.children == ((7, 2), (), (4,), (0, 5), (), (6,), (1,), ())


def test_a_relay_at_the_end_makes_a_chain_of_chains() -> None:
    tree = GridTree(2, ((0, 1), (1, 2)), ("chain", "chain", "flat"), (2, 3, 0)).expand(GRID)
    order = [2]
    while tree.children[order[-1]]:
        (following,) = tree.children[order[-1]]
        order.append(following)
    assert order == [2, 4, 0, 1, 3, 5, 6, 7]


@pytest.mark.parametrize("place", [-1, 3])
def test_a_relay_place_beyond_the_line(place: int) -> None:
    tree = GridTree(0, ((0, 1), (0, 2)), ("flat", "flat", "flat"), (place, 0, 0))
    with pytest.raises(PlanError, match=rf"cluster 0: relay place {place} of 3"):
        tree.expand(GRID)


def test_lanes_end_the_roots_line_at_different_ranks_and_enter_elsewhere() -> None:
    def lane(k: int) -> GridTree:
        return GridTree(2, ((0, 1), (1, 2)), ("chain", "chain", "flat"), (2, 3, 0), lane=k)

    assert [lane(k).line(GRID, 0) for k in range(3)] == [(2, 4, 0), (2, 0, 4), (2, 4, 0)]
    assert [lane(k).line(GRID, 1)[0] for k in range(5)] == [1, 3, 5, 6, 1]
    assert lane(2).line(GRID, 1) == (5, 6, 1, 3)
    assert lane(9).line(GRID, 2) == (7,)


@given(grids, st.data())
def test_every_tree_spans_every_rank(labels: list[int], data: st.DataObject) -> None:
    grid = Grid.from_labels(labels)
    root = data.draw(st.integers(0, grid.n_ranks - 1))
    n, transfers = len(grid.clusters), draw_transfers(grid, root, data)
    shapes = tuple(data.draw(st.sampled_from(sorted(SHAPES))) for _ in range(n))
    relays = tuple(data.draw(st.integers(0, len(c) - 1)) for c in grid.clusters)
    tree = GridTree(root, transfers, shapes, relays, data.draw(st.integers(0, 20)))
    parent = tree.expand(grid).parent  # raises unless all are reached, once
    crossings = [
        (grid.cluster_of[parent[r]], grid.cluster_of[r])
        for r in range(grid.n_ranks)
        if r != root and grid.cluster_of[parent[r]] != grid.cluster_of[r]
    ]
    assert sorted(crossings) == sorted(transfers)
    for cluster in range(n):
        assert tree.outgoing[cluster] == tuple(r for s, r in transfers if s == cluster)


@given(grids, st.integers(0, 20), st.data())
def test_a_rank_by_its_place_is_the_lines(
    labels: list[int], lane: int, data: st.DataObject
) -> None:
    n_hosts = data.draw(st.integers(1, 3))
    hosts = [f"{label}-{rank % n_hosts}" for rank, label in enumerate(labels)]
    grid = Grid.from_labels(labels, data.draw(st.sampled_from([(), hosts])))
    n = len(grid.clusters)
    root = data.draw(st.integers(0, grid.n_ranks - 1))
    tree = GridTree(root, (), ("chain",) * n, (0,) * n, lane)
    for cluster in range(n):
        line = tree.line(grid, cluster)
        places = range(len(line))
        assert tuple(tree.rank_at(grid, cluster, place) for place in places) == line
