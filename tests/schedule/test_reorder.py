from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from gridcoll.schedule import HEURISTICS, Accounting, Instance, time_transfers
from gridcoll.schedule.schedule import children
from gridcoll.schedule.search import reorder


def all_orders(tree: list[tuple[int, ...]], root: int):
    """Every schedule with this tree, senders' orders permuted; breadth first."""
    for orders in product(*(permutations(row) for row in tree)):
        transfers: list[tuple[int, int]] = []
        reached = [root]
        for sender in reached:
            transfers += [(sender, child) for child in orders[sender]]
            reached += orders[sender]
        yield transfers


@pytest.mark.parametrize("internal", ["after-last-send", "from-arrival"])
@pytest.mark.parametrize("busy", ["gap", "gap+latency"])
def test_no_order_of_the_same_tree_is_faster(busy, internal) -> None:
    rng = np.random.default_rng(7)
    improved = 0
    for _ in range(60):
        n = int(rng.integers(2, 7))
        times = [rng.uniform(0, 1, shape) for shape in ((n, n), (n, n), (n,))]
        instance = Instance(*times, int(rng.integers(n)), Accounting(busy, internal))
        schedule = HEURISTICS[("flat", "ecef", "bottom-up")[n % 3]].pick(instance)
        found = reorder(schedule.transfers, instance)
        assert sorted(found) == sorted(schedule.transfers)
        makespan = time_transfers(found, instance).makespan_s
        least = min(
            time_transfers(transfers, instance).makespan_s
            for transfers in all_orders(list(children(schedule)), instance.root)
        )
        assert makespan == pytest.approx(least, rel=1e-12)
        improved += makespan < schedule.makespan_s * (1 - 1e-9)
    assert improved > 5
