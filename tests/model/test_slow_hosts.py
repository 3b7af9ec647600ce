"""Plans are made as if slow hosts were a cluster of their own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gridcoll.errors import UsageError
from gridcoll.model import GridModel, SlowHosts, format_model, parse_model, planning_model
from gridcoll.model.gridmodel import CHANGED_SOURCE
from gridcoll.model.plogp import LONG_BYTES
from gridcoll.plan import choose
from gridcoll.plan.cost import price_plan
from tests.plan.grids import model_of

MODEL = model_of([0, 1, 1, 0, 1, 1], together=1e8)
SLOW = replace(
    MODEL,
    slow_hosts=(SlowHosts(1, ("host2",), 3.0),),
    uplink_bytes_per_s=(0.0, 5e7),
    contention=(1.0, 2.0),
)


def rate(model: GridModel, a: int, b: int) -> float:
    return LONG_BYTES / model.link(a, b).gap(float(LONG_BYTES))


def test_slow_hosts_are_a_cluster_apart() -> None:
    model = planning_model(SLOW)
    assert model is planning_model(SLOW)
    assert planning_model(MODEL) is MODEL
    assert [cluster.ranks for cluster in model.grid.clusters] == [(0, 3), (1, 4, 5), (2,)]
    assert model.grid.hosts == MODEL.grid.hosts
    assert model.link(0, 1) == MODEL.link(0, 1)
    assert model.link(1, 1) == MODEL.link(1, 1)
    slow = rate(MODEL, 1, 1) / 3
    for a, b in ((2, 2), (1, 2), (2, 1), (0, 2), (2, 0)):
        assert rate(model, a, b) == pytest.approx(min(slow, rate(MODEL, min(a, 1), min(b, 1))))
    assert model.link(0, 2).latency_s == MODEL.link(0, 1).latency_s
    assert model.aggregate_bytes_per_s[0] == (1e8, 1e8, pytest.approx(slow))
    assert model.uplink_bytes_per_s == (0.0, 5e7, pytest.approx(slow))
    assert model.contention == (1.0, 2.0, 2.0)
    assert [model.source(0, c) for c in range(3)] == ["declared"] * 2 + [CHANGED_SOURCE]


def test_a_child_has_the_slow_hosts_among_its_own() -> None:
    assert SLOW.restrict([3, 2, 4]).slow_hosts == (SlowHosts(1, ("host2",), 3.0),)
    assert not SLOW.restrict([0, 1, 4]).slow_hosts
    assert SLOW.restrict([2, 1]).slow_hosts == (SlowHosts(0, ("host2",), 3.0),)
    alone = planning_model(SLOW.restrict([2, 0, 3]))
    assert [cluster.ranks for cluster in alone.grid.clusters] == [(0,), (1, 2)]
    assert rate(alone, 0, 1) == pytest.approx(min(rate(MODEL, 1, 1) / 3, rate(MODEL, 1, 0)))


def test_they_are_stored() -> None:
    assert parse_model(format_model(SLOW)) == SLOW
    assert b"slow_hosts" not in format_model(MODEL)


@pytest.mark.parametrize("slow", [SlowHosts(2, ("host2",), 3.0), SlowHosts(1, ("host0",), 3.0)])
def test_a_host_that_is_not_there_is_refused(slow: SlowHosts) -> None:
    with pytest.raises(UsageError, match="slow_hosts: must be hosts of a cluster"):
        replace(MODEL, slow_hosts=(slow,))


@pytest.mark.parametrize(
    "slow",
    [
        (SlowHosts(1, (), 3.0),),
        (SlowHosts(1, ("host2",), 0.5),),
        (SlowHosts(1, ("host2",), 3.0), SlowHosts(1, ("host4",), 3.0)),
    ],
)
def test_so_is_what_says_nothing(slow: tuple[SlowHosts, ...]) -> None:
    with pytest.raises(UsageError, match="slow_hosts"):
        replace(MODEL, slow_hosts=slow)


def test_plans_spare_them() -> None:
    """A plan for clusters with one slow host takes less than one for clusters of slow hosts."""
    labels = [0, 0, 0, 0, 1, 1, 1, 1]
    model = model_of(labels, together=1e8)
    slow = planning_model(replace(model, slow_hosts=(SlowHosts(1, ("host5",), 3.0),)))
    inside = slow.link(2, 2)
    links = (model.links[0], (model.links[1][0], inside))
    n_bytes = 1 << 20
    spared, held_up = (
        price_plan(
            choose("allreduce", each, n_bytes, 0, grid_only=True).winner.build(n_bytes), slow
        )
        for each in (slow, replace(model, links=links))
    )
    assert spared.makespan_s < 0.95 * held_up.makespan_s
