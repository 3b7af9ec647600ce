"""The papers' search for a segment size, against every number of segments there is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from random import Random

import numpy as np

from gridcoll.constants import TIE_FACTOR
from gridcoll.model import GridModel, PLogP, linear_plogp
from gridcoll.plan.bcast.segments import best_segment, segment_sizes
from gridcoll.plan.cost import price_plan
from gridcoll.plan.ops import Send
from gridcoll.plan.registry import REGISTRIES
from gridcoll.plan.tree_cost import SegmentCosts, TreePrice, price_tree
from gridcoll.plan.trees import SMALLEST_SEGMENT, GridTree
from gridcoll.schedule.trees import SHAPES
from gridcoll.topology import Grid
from tests.plan.grids import unlike_model

N_CASES = 150


def measured(random: Random, latency_s: float) -> PLogP:
    """A link as probes find it: overhead and rate, up to 15 % off, some with a step at 64 KiB."""
    sizes = (0, 1, 64, 1024, 4096, 16384, 65536, 262144, 1 << 20)
    overhead_s, rate = random.uniform(1e-6, 1e-4), random.uniform(1e6, 1e9)
    step_s = random.choice([0.0, 3 * overhead_s])
    noisy = [
        (overhead_s + size / rate + step_s * (size >= 65536)) * random.uniform(0.85, 1.15)
        for size in sizes
    ]
    gaps = tuple(accumulate(noisy, max))
    return PLogP(latency_s, sizes, gaps, gaps, gaps)


def case(random: Random) -> tuple[GridModel, GridTree, int]:
    """A grid, a tree over it and a size of 1 KiB to 16 MiB."""
    labels = [random.randrange(4) for _ in range(random.randrange(2, 25))]
    grid = Grid.from_labels(labels)
    n = len(grid.clusters)
    links = tuple(
        tuple(
            measured(random, random.uniform(1e-5, 1e-3) if i == j else random.uniform(1e-3, 2e-2))
            for j in range(n)
        )
        for i in range(n)
    )
    source = grid.cluster_of[0]
    transfers: list[tuple[int, int]] = []
    for cluster in random.sample([c for c in range(n) if c != source], n - 1):
        transfers.append((random.choice([source, *(r for _, r in transfers)]), cluster))
    shapes = tuple(random.choice([name for name in SHAPES if name != "fan"]) for _ in range(n))
    relays = tuple(
        len(members) - 1 if shape == "chain" else 0
        for members, shape in zip(grid.clusters, shapes, strict=True)
    )
    tree = GridTree(0, tuple(transfers), shapes, relays)
    return GridModel(grid, links), tree, int(2 ** random.uniform(10, 24))


def pricing(model: GridModel, tree: GridTree) -> Callable[[SegmentCosts], TreePrice]:
    return lambda costs: price_tree(costs, tree.transfers, tree.shapes, tree.relays)


def losses() -> list[float]:
    """How much longer each case takes at the size found than at the best of all sizes.

    Among sizes that make equally many segments the shortest is the best, since gaps never fall.
    """
    random = Random(3)
    found = []
    for _ in range(N_CASES):
        model, tree, n_bytes = case(random)

        def price(
            costs: SegmentCosts, model: GridModel = model, tree: GridTree = tree
        ) -> TreePrice:
            return price_tree(costs, tree.transfers, tree.shapes, tree.relays)

        size, total_s = best_segment(model, n_bytes, price)
        assert SMALLEST_SEGMENT <= size <= n_bytes
        counts = np.arange(1, max(n_bytes // SMALLEST_SEGMENT, 1) + 1)
        every = np.unique(-(-n_bytes // counts))
        found.append(total_s / float(price(SegmentCosts(model, n_bytes, every)).total_s.min()) - 1)
    return found


def test_the_search_finds_nearly_the_best_of_all_sizes() -> None:
    """Halving and hill climbing may end on another hill: seldom, and then not much lower."""
    lost = np.array(losses())
    assert lost.min() >= -1e-9
    assert np.median(lost) <= 0.001
    assert np.quantile(lost, 0.95) <= 0.01
    assert lost.max() <= 0.04


def test_the_hill_is_climbed_beyond_halving() -> None:
    """A pipeline whose best segment lies between two halvings of the message."""
    n_bytes, link = 1_000_000, linear_plogp(300e-6, 12.5e6, overhead_s=25e-6)
    model = GridModel(Grid.from_labels([0] * 12), ((link,),))

    def price(costs: SegmentCosts) -> TreePrice:
        return price_tree(costs, (), ("chain",), (0,))

    halved_s = price(SegmentCosts(model, n_bytes, segment_sizes(n_bytes))).total_s.min()
    size, total_s = best_segment(model, n_bytes, price)
    assert size not in segment_sizes(n_bytes)
    assert total_s < 0.999 * halved_s


def test_sizes_of_the_first_pass_are_the_papers() -> None:
    """m / 2^i, rounded up, to a kibibyte."""
    assert segment_sizes(5000).tolist() == [5000, 2500, 1250]
    assert segment_sizes(100).tolist() == [100]


def test_of_nearly_equal_sizes_the_largest_is_taken() -> None:
    """Every segment costs a rank work that no gap shows."""
    model = GridModel(
        Grid.from_labels([0] * 4, ["a", "b", "c", "d"]), ((linear_plogp(1e-5, 12.5e6, 1e-6),),)
    )

    def price(costs: SegmentCosts) -> TreePrice:
        return price_tree(costs, (), ("chain",), (0,))

    best, best_s = best_segment(model, 1 << 22, price)
    size, total_s = best_segment(model, 1 << 22, price, TIE_FACTOR)
    assert size > best
    assert best_s < total_s <= TIE_FACTOR * best_s
    twice = price(SegmentCosts(model, 1 << 22, np.array([2 * size]))).total_s[0]
    assert twice > TIE_FACTOR * best_s


def test_segments_below_a_kilobyte_where_a_measured_model_wants_them() -> None:
    """A slow link: a kilobyte takes 10 ms, a message next to nothing."""
    grid = Grid.from_labels([0] * 12)
    tree = GridTree(0, (), ("chain",), (11,))
    for rate, measured_too in ((1e5, True), (1e9, False)):
        link = linear_plogp(50e-6, rate, overhead_s=20e-6)
        declared = GridModel(grid, ((link,),))
        model = GridModel(grid, ((link,),), origin="measured")
        size, total_s = best_segment(model, 4096, pricing(model, tree))
        usual, usual_s = best_segment(declared, 4096, pricing(declared, tree))
        assert usual >= SMALLEST_SEGMENT
        assert (size < SMALLEST_SEGMENT) == measured_too
        assert (total_s < 0.7 * usual_s) == measured_too


def test_the_root_of_a_tree_over_thin_links_keeps_their_pace() -> None:
    """Sent at once, 4 MiB overflowed the queue of an uplink and took 1.2 times the limit."""
    model = unlike_model()
    (found,) = REGISTRIES["bcast"]["ecef"].candidates(model, 4 << 20, 0)
    assert found.build
    plan = found.build(4 << 20)
    sends = [op for op in plan.programs[0] if isinstance(op, Send)]
    assert sends[0].due_us == 0
    assert found.predicted_s
    assert 0.7 < sends[-1].due_us * 1e-6 / found.predicted_s < 1
    short = REGISTRIES["bcast"]["ecef"].candidates(model, 16 << 10, 0)[0].build
    assert short
    assert all(op.due_us == 0 for op in short(16 << 10).programs[0] if isinstance(op, Send))
    assert price_plan(plan, model).makespan_s < 1.15 * found.predicted_s
