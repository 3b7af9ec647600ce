"""Some ranks that stand for all: as many messages and bytes, and about the same time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.model import GridModel, gridmodel
from gridcoll.model.gridmodel import FEWEST_PER_CLUSTER, draw_sample
from gridcoll.model.plogp import FloatArray
from gridcoll.plan import choose
from gridcoll.plan.alltoall import cost as alltoall_cost
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.direct import (
    direct_messages,
    far_order,
    farthest_first_messages,
    pairwise_messages,
)
from gridcoll.plan.alltoall.hierarchical import hub_messages, leader_messages
from gridcoll.plan.alltoall.lg import lg_messages
from gridcoll.plan.alltoall.messages import Messages
from gridcoll.topology import Grid
from tests.plan.grids import model_of

KINDS: dict[str, Callable[[GridModel, tuple[float, ...]], Messages]] = {
    "direct": lambda model, weights: direct_messages(model.grid, weights),
    "farthest-first": lambda model, weights: farthest_first_messages(
        model.grid, far_order(model), weights
    ),
    "pairwise": lambda model, weights: pairwise_messages(model.grid, weights),
    "leaders": lambda model, weights: leader_messages(model.grid, weights),
    "hub": lambda model, weights: hub_messages(model.grid, 0, weights),
    "lg": lambda model, weights: lg_messages(model.grid, weights),
}


def few(n: int) -> AbstractContextManager[object]:
    """Samples of about ``n`` ranks."""
    return mock.patch.object(gridmodel, "MOST_SAMPLED", n)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=40), st.integers(1, 40))
def test_a_sample_has_some_of_every_cluster(labels: list[int], most: int) -> None:
    model = model_of(labels)
    with few(most):
        some = draw_sample(model)
    assert (some.model is model) == (len(labels) <= most)
    both = zip(model.grid.clusters, some.model.grid.clusters, some.weights, strict=True)
    for cluster, part, weight in both:
        assert part.name == cluster.name
        assert len(part) >= min(len(cluster), FEWEST_PER_CLUSTER)
        assert len(part) * weight == pytest.approx(len(cluster))
    assert (some.model.latency_s == model.latency_s).all()


def test_a_sample_tells_hosts_of_one_name_apart() -> None:
    """Four ranks on the n0 of each of two clusters, one on every other host."""
    labels, hosts = [0] * 8 + [1] * 8, ["n0"] * 4 + [f"n{k}" for k in range(1, 5)]
    model = replace(model_of(labels), grid=Grid.from_labels(labels, hosts * 2))
    with few(4):
        assert draw_sample(model).host_weights == (4, 1, 4, 1)


def totals(model: GridModel, messages: Messages) -> dict[tuple[int, int], tuple[float, float]]:
    """Messages and blocks from cluster to cluster."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for source, target, n_blocks, n_represented in zip(
        messages.source, messages.target, messages.n_blocks, messages.n_represented, strict=True
    ):
        pair = model.grid.cluster_of[source], model.grid.cluster_of[target]
        count, blocks = found.get(pair, (0.0, 0.0))
        found[pair] = count + n_represented, blocks + n_represented * n_blocks
    return {(i, j): counts for (i, j), counts in found.items() if i != j}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(labels=st.lists(st.integers(0, 3), min_size=9, max_size=40))
def test_as_much_crosses_as_in_fact(kind: str, labels: list[int]) -> None:
    model = model_of(labels)
    with few(8):
        some = draw_sample(model)
    whole = totals(model, KINDS[kind](model, ()))
    assert totals(some.model, KINDS[kind](some.model, some.weights)) == {
        pair: pytest.approx(counts) for pair, counts in whole.items()
    }


def unequal(n_clusters: int, n_hosts: int, per_host: int) -> GridModel:
    labels = [k if k < n_clusters else k * k % n_clusters for k in range(n_hosts)]
    by_rank = [label for label in labels for _ in range(per_host)]
    hosts = [f"h{rank // per_host}" for rank in range(len(by_rank))]
    return replace(model_of(by_rank, together=1e9), grid=Grid.from_labels(by_rank, hosts))


@pytest.mark.parametrize("collective", ["alltoall", "scatter", "gather"])
@pytest.mark.long
def test_thousands_are_priced_like_hundreds(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: what is looked up of links, and the messages."""
    looked_up: list[int] = []
    priced: list[int] = []
    look_up, price = GridModel.gap_and_one_way_s, alltoall_cost.price_messages_s

    def counted(model: GridModel, n_bytes: FloatArray, *rest: Any) -> tuple[FloatArray, FloatArray]:
        found = look_up(model, n_bytes, *rest)
        looked_up.append(found[0].size)
        return found

    def counted_price(model: GridModel, messages: Messages, *rest: Any) -> float:
        priced.append(len(messages.source))
        return price(model, messages, *rest)

    monkeypatch.setattr(GridModel, "gap_and_one_way_s", counted)
    monkeypatch.setattr(alltoall_cost, "price_messages_s", counted_price)
    choose(collective, unequal(100, 5000, 1), 4096, 0)
    assert sum(looked_up) < 10**6
    assert sum(priced) < 300_000


@pytest.mark.parametrize("n_bytes", [8, 1024, 65536])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 200, 1), (20, 200, 1), (50, 400, 1), (3, 50, 8)])
@pytest.mark.long
def test_it_takes_about_as_long(shape: tuple[int, int, int], kind: str, n_bytes: int) -> None:
    model = unequal(*shape)
    some = model.sample
    assert some.model is not model
    sampled = KINDS[kind](some.model, some.weights)
    took_s = price_messages_s(some.model, sampled, n_bytes, 0, some.host_weights)
    assert took_s == pytest.approx(
        price_messages_s(model, KINDS[kind](model, ()), n_bytes), rel=0.12
    )
