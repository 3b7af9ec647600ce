"""Prices against walking every segment over every hop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.model import GridModel, linear_plogp
from gridcoll.plan.tree_cost import SegmentCosts, load_of, price_several, price_tree
from gridcoll.plan.trees import GridTree, chain_tree
from gridcoll.schedule.trees import SHAPES
from gridcoll.topology import Grid
from tests.plan.grids import draw_transfers, grids, model_of, thin_grid


def walk(model: GridModel, tree: GridTree, n_bytes: int, segment: int) -> float:
    """When the last rank has the last segment, one event after another.

    A rank's interface passes one segment at a time, in program order; a flow between clusters
    takes one segment per gap of its link; a segment arrives a lone message's time after it starts.
    """
    grid = model.grid
    ranks = tree.expand(grid)
    n_segments = max(-(-n_bytes // segment), 1)
    size = float(min(segment, n_bytes))
    have = np.full((grid.n_ranks, n_segments), np.inf)
    have[tree.root] = 0.0
    frontier = [tree.root]
    while frontier:
        rank = frontier.pop()
        mine = grid.cluster_of[rank]
        port_s = model.link(mine, mine).gap(size)
        port_free, link_free = 0.0, dict.fromkeys(ranks.children[rank], 0.0)
        for k in range(n_segments):
            for child in ranks.children[rank]:
                link = model.link(mine, grid.cluster_of[child])
                port_free = max(port_free, have[rank, k]) + port_s
                start = max(port_free - port_s, link_free[child])
                link_free[child] = start + link.gap(size)
                have[child, k] = start + link.one_way(size)
        frontier += ranks.children[rank]
    return float(have.max())


def price(model: GridModel, tree: GridTree, n_bytes: int, segments: Sequence[int]) -> list[float]:
    costs = SegmentCosts(model, n_bytes, np.array(segments))
    total = price_tree(costs, tree.transfers, tree.shapes, tree.relays).total_s
    return [float(t) for t in total]


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n_bytes", [1, 4096, 65536])
def test_one_cluster(shape: str, n_ranks: int, n_bytes: int) -> None:
    """All shapes whose root is its busiest vertex: nothing queues below it."""
    model = model_of([0] * n_ranks)
    tree = GridTree(0, (), (shape,), (0,))
    children = SHAPES[shape].children(n_ranks)
    segments = [n_bytes, 4096, 1024]
    for segment, priced in zip(segments, price(model, tree, n_bytes, segments), strict=True):
        walked = walk(model, tree, n_bytes, segment)
        if len(children[0]) == max(map(len, children)):
            assert priced == pytest.approx(walked)
        else:
            assert walked * (1 - 1e-9) <= priced


def random_tree(
    labels: list[int], data: st.DataObject, shapes: list[str], root: int | None = None
) -> GridTree:
    grid = model_of(labels).grid
    if root is None:
        root = data.draw(st.integers(0, grid.n_ranks - 1))
    n, transfers = len(grid.clusters), draw_transfers(grid, root, data)
    chosen = tuple(data.draw(st.sampled_from(shapes)) for _ in range(n))
    relays = tuple(
        len(c) - 1 if shape == "chain" and data.draw(st.booleans()) else 0
        for c, shape in zip(grid.clusters, chosen, strict=True)
    )
    return GridTree(root, transfers, chosen, relays)


@settings(max_examples=200)
@given(grids, st.data())
@pytest.mark.long
def test_one_segment_on_any_tree(labels: list[int], data: st.DataObject) -> None:
    """The papers' store and forward, on any grid: exact."""
    model = model_of(labels)
    tree = random_tree(labels, data, sorted(SHAPES))
    n_bytes = data.draw(st.sampled_from([1, 10_000, 1 << 20]))
    (priced,) = price(model, tree, n_bytes, [n_bytes])
    assert priced == pytest.approx(walk(model, tree, n_bytes, n_bytes))


@settings(max_examples=100)
@given(grids, st.data())
def test_a_chain_of_chains_in_segments(labels: list[int], data: st.DataObject) -> None:
    """No rank sends twice: the slowest hop sets the pace, exactly."""
    model = model_of(labels)
    grid = model.grid
    root = data.draw(st.integers(0, grid.n_ranks - 1))
    source = grid.cluster_of[root]
    others = [c for c in range(len(grid.clusters)) if c != source]
    order = [source, *data.draw(st.permutations(others))]
    tree = GridTree(
        root,
        tuple(pairwise(order)),
        ("chain",) * len(order),
        tuple(len(c) - 1 for c in grid.clusters),
    )
    n_bytes, segment = 64 * 2048, data.draw(st.sampled_from([2048, 16_384, 64 * 2048]))
    (priced,) = price(model, tree, n_bytes, [segment])
    assert priced == pytest.approx(walk(model, tree, n_bytes, segment))


@settings(max_examples=100)
@given(grids, st.data())
@pytest.mark.long
def test_any_tree_in_segments_is_priced_near(labels: list[int], data: st.DataObject) -> None:
    """Never below the busiest interface or the first segment's way, nor far above the walk."""
    model = model_of(labels)
    tree = random_tree(labels, data, sorted(SHAPES))
    n_bytes, segment = 64 * 2048, 2048
    (priced,) = price(model, tree, n_bytes, [segment])
    walked = walk(model, tree, n_bytes, segment)
    assert 0.6 * walked <= priced <= 1.6 * walked


class TestSeveral:
    # Clusters (0, 1) and (2, 3), 12.5 MB/s each way.
    MODEL = model_of([0, 0, 1, 1])

    def lanes(self, n: int) -> list[GridTree]:
        return [GridTree(0, ((0, 1),), ("chain", "chain"), (1, 1), lane) for lane in range(n)]

    def test_load_by_hand(self) -> None:
        """0→1→2→3 and 0→1→3→2: rank 1 crosses to either host of the other cluster."""
        load = load_of(self.lanes(2), self.MODEL.grid)
        assert load.interfaces.tolist() == [1.0, 1.0]
        assert load.flows == {(0, 1): 0.5}
        assert load.links == {(0, 1): 1.0}

    def test_load_of_a_rank_that_sends_twice(self) -> None:
        trees = [GridTree(0, ((0, 1),), ("flat", "flat"), (0, 0), lane) for lane in range(2)]
        load = load_of(trees, self.MODEL.grid)
        assert load.interfaces.tolist() == [2.0, 1.0]  # 0 → 2 or 3, and 1
        assert load.flows == {(0, 1): 0.5}

    @settings(max_examples=100)
    @given(grids, st.data())
    def test_load_is_what_the_trees_over_ranks_send(
        self, labels: list[int], data: st.DataObject
    ) -> None:
        grid = model_of(labels).grid
        root = data.draw(st.integers(0, grid.n_ranks - 1))
        trees = [
            replace(random_tree(labels, data, sorted(SHAPES), root), lane=lane) for lane in range(3)
        ]
        sends = np.zeros((grid.n_ranks, grid.n_ranks))
        for tree in trees:
            for rank, children in enumerate(tree.expand(grid).children):
                sends[rank, list(children)] += 1 / 3
        load = load_of(trees, grid)
        for cluster, found in zip(grid.clusters, load.interfaces, strict=True):
            ranks = list(cluster.ranks)
            assert found == pytest.approx(max(1.0, sends[ranks].sum(axis=1).max()))
        for i, sender in enumerate(grid.clusters):
            for j, receiver in enumerate(grid.clusters):
                if i != j:
                    flows = sends[np.ix_(sender.ranks, receiver.ranks)]
                    assert load.flows.get((i, j), 0.0) == pytest.approx(flows.max())
                    assert load.links.get((i, j), 0.0) == pytest.approx(flows.sum())

    def test_one_tree_costs_what_it_costs_alone(self) -> None:
        tree = self.lanes(1)
        costs = SegmentCosts(self.MODEL, 1 << 20, np.array([1 << 20, 1 << 14, 1 << 12]))
        alone = price_tree(costs, tree[0].transfers, tree[0].shapes, tree[0].relays)
        together = price_several(costs, tree, load_of(tree, self.MODEL.grid))
        assert together.total_s == pytest.approx(alone.total_s)

    @pytest.mark.parametrize(
        ("flow_bytes_per_s", "aggregate_bytes_per_s", "period_s"),
        [
            (12.5e6, 1e9, 8192 / 12.5e6 + 10e-6),  # interfaces: each passes every segment
            (4e6, 1e9, (8192 / 4e6 + 10e-6) / 2),  # flows: each takes every other segment
            (12.5e6, 5e6, 8192 / 12.5e6 + 10e-6),  # one flow carries more than all: it does not
            (4e6, 5e6, 8192 / 5e6),  # the wire below the flows
        ],
    )
    def test_the_pace_by_hand(
        self, flow_bytes_per_s: float, aggregate_bytes_per_s: float, period_s: float
    ) -> None:
        flow = linear_plogp(5e-3, flow_bytes_per_s)
        (inside, _), (_, other) = self.MODEL.links
        model = replace(
            self.MODEL,
            links=((inside, flow), (flow, other)),
            aggregate_bytes_per_s=((aggregate_bytes_per_s,) * 2,) * 2,
        )
        costs = SegmentCosts(model, 1 << 20, np.array([8192]))
        trees = self.lanes(2)
        found = price_several(costs, trees, load_of(trees, model.grid))
        assert found.period_s[0] == pytest.approx(period_s)
        # Two entries of the second cluster: segments of one wait for one of the other, as often as
        # interfaces are busy.
        port_s = 8192 / 12.5e6 + 10e-6
        wait_s = port_s * min(port_s / period_s, 1)
        assert found.total_s[0] == pytest.approx(found.first_s[0] + 127 * period_s + wait_s)

    def split(self) -> tuple[GridModel, list[GridTree]]:
        """Two clusters are reached through each other; twice as often by 1 as by 2."""
        model = thin_grid([0, 0, 1, 1, 2, 2])
        trees = [chain_tree(model.grid, 0, hops) for hops in (((0, 1), (1, 2)), ((0, 2), (2, 1)))]
        return model, [trees[0], trees[1], trees[0]]

    def test_load_of_a_tree_that_takes_more_turns(self) -> None:
        model, trees = self.split()
        load = load_of(trees, model.grid)
        assert load.links == load.flows
        assert load.links == pytest.approx(
            {(0, 1): 2 / 3, (1, 2): 2 / 3, (0, 2): 1 / 3, (2, 1): 1 / 3}
        )
        alike = [trees[k] for k in (0, 0, 1, 0, 1, 0)]
        assert load_of(alike, model.grid).links == pytest.approx(load.links)

    @pytest.mark.parametrize("hosts", ["abcdef", "aabbcc"])
    def test_load_of_interfaces_by_turns(self, hosts: str) -> None:
        """Who sends twice as often is twice as busy, whether or not ranks share an interface."""
        grid = Grid.from_labels([0, 0, 1, 1, 2, 2], hosts=list(hosts))
        both = [
            GridTree(0, hops, ("flat",) * 3, (0,) * 3)
            for hops in (((0, 1), (1, 2)), ((0, 2), (0, 1)))
        ]
        for turns, busiest in (((0, 1), 2.5), ((0, 0, 1), 7 / 3), ((1, 1, 0), 8 / 3)):
            load = load_of([both[k] for k in turns], grid)
            inside = hosts[0] == hosts[1]
            assert load.interfaces[0] == pytest.approx(busiest - inside)

    def test_a_tree_goes_at_its_own_links_pace(self) -> None:
        """And the last of them is the last of all, however busy the others are."""
        model, trees = self.split()
        costs = SegmentCosts(model, 64 * 8192, np.array([8192]))
        found = price_several(costs, trees, load_of(trees, model.grid)).total_s
        slow = 8192 / 1e6 + 10e-6
        (first,) = price_tree(costs, trees[0].transfers, trees[0].shapes, trees[0].relays).first_s
        assert found == pytest.approx(first + 63 * slow * 2 / 3)
        # With 300 ms more before it, the one with fewer turns is.
        later = linear_plogp(305e-3, 1e6)
        rows = [list(row) for row in model.links]
        rows[0][2] = later
        late = replace(model, links=tuple(tuple(row) for row in rows))
        costs = SegmentCosts(late, 64 * 8192, np.array([8192]))
        found = price_several(costs, trees, load_of(trees, late.grid)).total_s
        assert found == pytest.approx(first + 300e-3 + 63 * slow / 3)
