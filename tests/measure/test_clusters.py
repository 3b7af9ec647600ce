"""From measured latencies to groups of nodes, and their names: what needs no messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.measure import clusters, landmarks
from gridcoll.measure.clusters import (
    _cluster,
    certain_latency,
    find_groups,
    name_clusters,
    resolution,
)
from gridcoll.topology.landmarks import Grouping


def passes_of(labels: Sequence[int], medians: Sequence[float], far_s: float) -> list[np.ndarray]:
    """Four passes over nodes: 20 us where ``labels`` are equal, else ``far_s``.

    Minima scatter by 3 %; medians are as many times as long as the busier node's ``medians`` say.
    """
    random, site = np.random.default_rng(1), np.array(labels)
    latency = np.where(site[:, None] == site[None, :], 20e-6, far_s)
    np.fill_diagonal(latency, 0.0)
    passes = []
    for _ in range(4):
        noise = np.triu(random.uniform(1, 1.03, latency.shape))
        shortest = latency * (noise + noise.T)
        passes.append(np.stack([shortest, shortest * np.maximum.outer(medians, medians)]))
    return passes


@pytest.mark.parametrize("busy", [0, 3, 9])
@pytest.mark.parametrize("times", [1.1, 2.1, 30.0])
@pytest.mark.parametrize("labels", [[0] * 10, [0] * 5 + [1] * 5, [0, 1] * 5])
def test_a_busy_node_is_where_it_is(labels: list[int], busy: int, times: float) -> None:
    """It tears no cluster apart, and joins none of another site, half a millisecond away."""
    medians = [times if node == busy else 1.1 for node in range(10)]
    passes = passes_of(labels, medians, 500e-6)
    groups = _cluster(passes, np.ones((10, 10), dtype=bool), 0.3)
    assert groups == [[k for k in range(10) if labels[k] == site] for site in sorted(set(labels))]


def test_scatter_alone_keeps_nobody_apart() -> None:
    """Nodes 0 and 1 are 20 us apart; whether the third's 30 us are longer, its medians say."""
    shortest = np.array([[0, 20, 30], [20, 0, 30], [30, 30, 0]]) * 1e-6
    everywhere = np.ones((3, 3), dtype=bool)
    for times, groups in ((1.05, [[0, 1], [2]]), (1.2, [[0, 1, 2]])):
        passes = [np.stack([shortest, times * shortest])] * 4
        assert _cluster(passes, everywhere, 0.3) == groups


def test_certain_is_as_much_less_as_the_median_is_more() -> None:
    """Of the shortest of all minima and the shortest of all medians; never below 0."""
    first = [[[0, 20], [10, 0]], [[0, 23], [25, 0]]]
    second = [[[0, 21], [12, 0]], [[0, 22], [24, 0]]]
    assert certain_latency(np.array([first, second])).tolist() == [[0, 18], [0, 0]]


def test_resolution() -> None:
    """Three times by how much most repeated measurements differ."""
    short = np.array([[False, True, True], [True, False, False], [True, False, False]])
    passes = np.zeros((3, 3, 3))
    passes[:, 0, 1] = (20, 21, 22)
    passes[:, 0, 2] = (30, 30, 36)
    passes[:, 1, 2] = (500, 900, 700)  # is not short
    assert resolution(passes, short) == pytest.approx(3 * (2 + 0.75 * (6 - 2)))
    assert resolution(passes, np.zeros((3, 3), dtype=bool)) == 0.0


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ([["node-1", "node-2"]], ["node"]),
        ([["paris-1.fr", "paris-12.fr"], ["lyon01.fr"]], ["paris", "lyon"]),
        ([["a1"], ["a2"], ["a3"]], ["a", "a-2", "a-3"]),
        ([["x1", "y1"], ["10.0.0.1"]], ["cluster0", "cluster1"]),
    ],
)
def test_clusters_are_named_after_their_hosts(hosts: list[list[str]], names: list[str]) -> None:
    assert name_clusters(hosts) == names


FAR_APART_S = np.array([[0, 1e-4, 17e-3, 10e-3], [1e-4, 0, 17e-3, 10e-3],
                        [17e-3, 17e-3, 0, 7.5e-3], [10e-3, 10e-3, 7.5e-3, 0]])  # fmt: skip
"""A site of two hosts, and two lone hosts that are nearest to each other."""


def test_a_full_discovery_keeps_lone_hosts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_latency_pass", lambda *_: np.stack([FAR_APART_S] * 2))
    assert find_groups(MPI.COMM_SELF, range(4), 0.3) == [[0, 1], [2], [3]]


def test_a_quick_start_keeps_lone_hosts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies_s = [dict(enumerate(row)) for row in FAR_APART_S.tolist()]
    found = Grouping([[0, 1], [2, 3]], 0, 0, 0, 0, latencies_s)
    monkeypatch.setattr(landmarks, "group_nodes", lambda *_: found)
    groups = landmarks.find_groups_by_landmarks(MPI.COMM_SELF, range(4), 0.3)
    assert groups == [[0, 1], [2], [3]]
