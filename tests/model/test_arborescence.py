"""Cheapest trees from a root, against all there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model.arborescence import cheapest_arborescence


def cost_of(costs: list[list[float]], parents: list[int]) -> float:
    return sum(costs[parent][child] for child, parent in enumerate(parents) if parent >= 0)


def reaches_all(parents: list[int], root: int) -> bool:
    for node in range(len(parents)):
        for _ in parents:
            node = node if node == root else parents[node]
        if node != root:
            return False
    return parents[root] == -1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10_000))
def test_none_is_cheaper(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    costs = random.integers(0, 9, (n, n)).astype(float).tolist()
    root = int(random.integers(n))
    found = cheapest_arborescence(costs, root)
    assert reaches_all(found, root)
    ways = [[-1] if v == root else [u for u in range(n) if u != v] for v in range(n)]
    every = (list(parents) for parents in product(*ways))
    least = min(cost_of(costs, parents) for parents in every if reaches_all(parents, root))
    assert cost_of(costs, found) == pytest.approx(least)
