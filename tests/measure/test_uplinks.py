"""Which clusters may have an uplink, who sends what to find it, and what counts as one."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.measure import uplinks
from gridcoll.measure.uplinks import LONGER, measure_uplinks
from gridcoll.model import GridModel, linear_plogp
from gridcoll.topology import Grid

NIC, THIN = 12.5e6, 5e6
"""Bytes per second of interfaces, and of links between sites."""


def sites(sizes: tuple[int, ...], link: float) -> GridModel:
    """Hosts with interfaces of `NIC`; ``link`` bytes per second between every two clusters."""
    labels = [c for c, size in enumerate(sizes) for _ in range(size)]
    n = range(len(sizes))
    inside, between = linear_plogp(50e-6, NIC), linear_plogp(5e-3, min(NIC, link))
    return GridModel(
        Grid.from_labels(labels),
        tuple(tuple(inside if i == j else between for j in n) for i in n),
        "measured",
        aggregate_bytes_per_s=tuple(tuple(NIC if i == j else link for j in n) for i in n),
    )


def suspected(model: GridModel) -> list[int]:
    return [cluster for cluster, _ in uplinks._suspects(model)]


def test_who_may_have_one() -> None:
    assert suspected(sites((4, 4, 4), THIN)) == [0, 1, 2]
    assert suspected(sites((4, 4, 4), 4 * NIC)) == [], "one link carries all that interfaces do"
    assert suspected(sites((4, 4), THIN)) == [], "one link is all there is"
    assert suspected(sites((4, 1, 4), THIN)) == [0, 2], "a lone host has its interface"


@pytest.mark.parametrize(
    ("carried", "found"),
    [
        ([THIN], THIN),
        ([1.9 * THIN], 0.0),  # nearly what both links carry
        ([THIN, 1.9 * THIN], 0.0),  # the first time, windows were not open yet
        ([THIN, 1.2 * THIN], 1.2 * THIN),
    ],
)
def test_what_counts_as_one(
    monkeypatch: pytest.MonkeyPatch, carried: list[float], found: float
) -> None:
    asked: list[int] = []
    times = count()

    def leaving(_comm: object, _model: object, cluster: int, n_messages: int) -> float:
        if cluster:
            return 2 * THIN
        asked.append(n_messages)
        return carried[min(next(times), len(carried) - 1)]

    monkeypatch.setattr(uplinks, "_leaving", leaving)
    rates = measure_uplinks(MPI.COMM_SELF, sites((4, 4, 4), THIN), n_messages=10)
    assert rates == ((found, 0.0, 0.0) if found else ())
    assert asked == [10, 10 * LONGER][: len(asked)]


@pytest.mark.parametrize(
    ("sizes", "carried", "senders"),
    [
        ((3, 1, 2), [(1, 7)] * 3 + [(2, 5)] * 2, [0, 0, 1, 1, 2]),
        ((1, 5, 2), [(1, 7)] * 4 + [(2, 5)] * 2, [0] * 6),  # a lone host sends to several
    ],
)
def test_each_end_knows_the_other(
    sizes: tuple[int, ...], carried: list[tuple[int, int]], senders: list[int]
) -> None:
    """Every flow has one sender and one receiver, which count the same messages."""
    model = sites(sizes, THIN)
    flows = {
        rank: uplinks._flows_from(rank, model.grid, 0, [0, 7, 5])
        for rank in range(model.grid.n_ranks)
    }
    sent = sorted((a, *flow) for a, (sends, out) in flows.items() if sends for flow in out)
    taken = sorted(
        (flow.peer, b, flow.cluster, flow.n_bytes)
        for b, (sends, into) in flows.items()
        if not sends
        for flow in into
    )
    assert sent == taken
    assert sorted(flow[2:] for flow in sent) == carried
    assert [flow[0] for flow in sent] == senders, "no host sends more than it has to"


def test_lone_hosts_send_to_all_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all carry until the last flow ends is an interface's rate; many share a few rounds."""
    groups: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, clusters: list[int], _n: int
    ) -> tuple[np.ndarray, np.ndarray]:
        groups.append(clusters)
        return np.full((model.n_clusters,) * 2, 2 * THIN), np.arange(1.0, 1.0 + model.n_clusters)[
            None
        ].repeat(model.n_clusters, 0)

    monkeypatch.setattr(uplinks, "_sent", sent)
    model = sites((2, 1, 1, 1, 1, 1), THIN)
    found = uplinks.measure_lone_hosts(MPI.COMM_SELF, model)
    assert groups == [[1, 5], [2], [3], [4]]
    assert found == [0.0] + [6 * 2 * THIN / 6] * 5
    groups.clear()
    assert uplinks.measure_lone_hosts(MPI.COMM_SELF, sites((1, 4), THIN)) == [0.0, 0.0]
    assert not groups, "its only link shows all there is"


def test_a_part_of_a_job_keeps_the_uplinks_of_its_clusters() -> None:
    model = replace(sites((2, 2, 2), THIN), uplink_bytes_per_s=(THIN, 0.0, 2 * THIN))
    assert model.restrict([0, 4, 5]).uplink_bytes_per_s == (THIN, 2 * THIN)
