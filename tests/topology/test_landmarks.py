"""Grouping by some latencies of each node, replayed: as by all of them, in few rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gridcoll.topology import read_gridfile
from gridcoll.topology.clustering import Latencies, find_clusters, sparse_groups
from gridcoll.topology.landmarks import group_nodes
from tests.topology.latencies import Pair, Replay, random_grid
from tests.topology.test_clustering import TABLE_3_MACHINES, TABLE_3_US

HOSTFILES = sorted((Path(__file__).parents[2] / "hostfiles").glob("*.toml"))
LARGE = "grid5000-25"
"""Of 1634 hosts; the next has 208."""


def named(path: Path, seed: int) -> Replay:
    """20 % noise where that leaves the file's clusters apart: not on grid5000, 1 ms against 50 us
    but hosts alone whose distances are the same.
    """
    spec = read_gridfile(path)
    labels = np.repeat(np.arange(len(spec.hosts)), [len(hosts) for hosts in spec.hosts])
    np.random.default_rng(seed).shuffle(labels)
    return Replay(spec.latency_s, labels, 0.2 if path.stem != "grid5000" else 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.long) if path.stem == LARGE else path
        for path in HOSTFILES
    ],
    ids=lambda path: path.stem,
)
def test_named_grids(path: Path, seed: int) -> None:
    replay = named(path, seed)
    found = group_nodes(len(replay.labels), replay.measure, 0.3)
    assert found.groups == replay.groups()
    if len(replay.labels) <= 20:
        assert found.groups == find_clusters(replay.matrix())
    assert found.n_rounds <= 60


@pytest.mark.parametrize("seed", range(5))
def test_table_3(seed: int) -> None:
    """62.10 against 47.56 us: no noise, and still only some of the latencies."""
    labels = np.repeat(np.arange(6), TABLE_3_MACHINES)
    np.random.default_rng(seed).shuffle(labels)
    replay = Replay(TABLE_3_US * 1e-6, labels, scatter=0.0)
    assert group_nodes(88, replay.measure, 0.3).groups == replay.groups()


THREE_SITES_S = np.array([[0.1, 5.2, 5.4], [5.2, 0.1, 12.2], [5.4, 12.2, 0.1]]) * 1e-3

SIZES = [12] * 50 + [30] * 50 + [90] * 40 + [250] * 40 + [800] * 15 + [2000] * 3 + [5000] * 2


@pytest.mark.parametrize(
    ("seed", "n_nodes"),
    [
        pytest.param(seed, n, marks=pytest.mark.long) if n > 90 else (seed, n)
        for seed, n in enumerate(SIZES)
    ],
)  # fmt: skip
def test_random_grids(seed: int, n_nodes: int) -> None:
    replay = random_grid(seed, n_nodes)
    n = len(replay.labels)
    found = group_nodes(n, replay.measure, 0.3)
    assert found.groups == replay.groups()
    if n <= 120:
        matrix = replay.matrix()
        assert found.groups == find_clusters(matrix, 0.3, 0.0, 0.98 * matrix)
    assert found.n_rounds <= 80
    if n > 500:  # never all pairs
        assert len(replay.n_measured) < n * n / 8


@pytest.mark.long
def test_five_thousand_hosts_take_a_few_dozen_rounds() -> None:
    """Of ten sites; and their number hardly matters."""
    rounds = []
    for n_nodes in (500, 5000):
        labels = np.arange(n_nodes) % 10
        np.random.default_rng(n_nodes).shuffle(labels)
        between_s = np.add.outer(np.arange(10), np.arange(10)) * 1e-3 + 4e-3
        np.fill_diagonal(between_s, 50e-6)
        replay = Replay(between_s, labels, 0.2)
        found = group_nodes(n_nodes, replay.measure, 0.3)
        assert found.groups == replay.groups()
        rounds.append(found.n_rounds)
    assert rounds[1] <= 48
    assert rounds[1] <= 1.5 * rounds[0]


def test_the_same_every_time() -> None:
    first, again = (group_nodes(60, random_grid(3, 60).measure, 0.3) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("seed", range(30))
def test_where_all_is_measured_it_is_the_full_matrix(seed: int) -> None:
    """Whatever latencies are, in no order and with no clusters to find."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 25))
    matrix = random.choice([1.0, 1.1, 1.25, 1.5, 3.0], (n, n)) * random.uniform(1, 1.2, (n, n))
    matrix = np.maximum(matrix, matrix.T)
    certain = matrix * random.uniform(0.8, 1.0, (n, n))
    certain = np.maximum(certain, certain.T)
    latencies = Latencies(n)
    for a in range(n):
        for b in range(a):
            latencies.enter(a, b, matrix[a, b], 2 * matrix[a, b] - certain[a, b])
    assert sparse_groups(latencies, 0.3).members == find_clusters(matrix, 0.3, 0.0, certain)


def test_noise_that_repeats_show_keeps_nobody_apart() -> None:
    latencies = Latencies(4)
    for a in range(4):
        for b in range(a):
            for turn in range(2):
                shortest_s = 20e-6 + (15e-6 if (a + b + turn) % 2 else 0.0)
                latencies.enter(a, b, shortest_s, shortest_s)
    assert latencies.resolution_s() == pytest.approx(45e-6)
    latencies.enter(0, 1, 40e-6, 40e-6)
    assert sparse_groups(latencies, 0.3).members == [[0, 1, 2, 3]]


def test_a_busy_machine_does_not_make_sites_one() -> None:
    """Short latencies that differ by milliseconds say nothing, but of 5 ms they do."""
    random = np.random.default_rng(0)

    def measure(
        rounds: Sequence[Sequence[tuple[int, int]]],
    ) -> dict[tuple[int, int], tuple[float, float]]:
        found = {}
        for a, b in (pair for pairs in rounds for pair in pairs):
            shortest_s = float(random.uniform(0.1e-3, 1.9e-3)) if a // 4 == b // 4 else 5.2e-3
            found[a, b] = (shortest_s, 1.1 * shortest_s)
        return found

    assert group_nodes(8, measure, 0.3).groups == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_clusters_of_a_site_a_few_times_as_far_apart_as_they_are_wide(seed: int) -> None:
    """Only a search in several steps meets enough of its own cluster: 30 of 6 hosts, 5 sites."""
    random = np.random.default_rng(seed)
    site, places = np.arange(30) // 6, random.random((5, 2))
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)[np.ix_(site, site)]
    between_s = np.where(site[:, None] == site, 300e-6, 1e-3 + 20e-3 * distance)
    np.fill_diagonal(between_s, 60e-6)
    replay = Replay(between_s, random.permutation(np.repeat(np.arange(30), 6)), 0.2)
    assert group_nodes(180, replay.measure, 0.3).groups == replay.groups()


@pytest.mark.parametrize("seed", range(2))
def test_small_clusters_that_are_all_as_far_from_each_other(seed: int) -> None:
    """Hosts that have not met their own cluster yet are not taken for one wide cluster."""
    random = np.random.default_rng(seed)
    between_s = 5e-3 * (1 + 0.25 * random.random((33, 33)))
    between_s = np.maximum(between_s, between_s.T)
    np.fill_diagonal(between_s, 50e-6)
    replay = Replay(between_s, random.permutation(np.repeat(np.arange(33), 3)), 0.2)
    assert group_nodes(99, replay.measure, 0.3).groups == replay.groups()


class _WithCables(Replay):
    """Every fifth link between clusters less than 200 us apart is a direct cable of 60 us."""

    def shortest_s(self, a: int, b: int) -> float:
        low, high = min(a, b), max(a, b)
        is_near = 100e-6 < self.between_s[self.labels[a], self.labels[b]] < 200e-6
        if is_near and (low * 31 + high) * 2_654_435_761 % (1 << 32) % 5 == 0:
            return 60e-6
        return super().shortest_s(a, b)


def test_a_host_with_cables_to_some_hosts_of_a_cluster_is_none_of_it() -> None:
    """One short link is not enough. 20 sites have a cluster of 15 hosts and two hosts beside it."""
    random = np.random.default_rng(0)
    between_s = 5e-3 * (1 + 0.25 * random.random((60, 60)))
    between_s = np.maximum(between_s, between_s.T)
    for first in range(0, 60, 3):
        between_s[first : first + 3, first : first + 3] = 300e-6
        between_s[first, first + 1 : first + 3] = 150e-6
        between_s[first + 1 : first + 3, first] = 150e-6
    np.fill_diagonal(between_s, 50e-6)
    labels = random.permutation(np.repeat(np.arange(60), [15, 1, 1] * 20))
    replay = _WithCables(between_s, labels, 0.1)
    assert group_nodes(340, replay.measure, 0.3).groups == replay.groups()


def test_one_node_and_two() -> None:
    def measure(rounds: object) -> dict[tuple[int, int], tuple[float, float]]:
        return {(0, 1): (1e-5, 1e-5)}

    assert group_nodes(1, measure, 0.3).groups == [[0]]
    assert group_nodes(2, measure, 0.3).groups == [[0, 1]]


@pytest.mark.parametrize("seed", range(20))
def test_hosts_that_answer_late_now_and_then_stay_in_their_cluster(seed: int) -> None:
    """By more than `SHORT_S`, too: a way round by a near host shows that the link is shorter."""
    luck = random.Random(seed)
    replay = Replay(THREE_SITES_S, np.repeat(np.arange(3), 4))

    def measure(rounds: Sequence[Sequence[Pair]]) -> dict[Pair, tuple[float, float]]:
        late_s = {
            pair: luck.expovariate(1e3) if luck.random() < 0.3 else 0.0
            for pairs in rounds
            for pair in pairs
        }
        return {
            pair: (shortest_s + late_s[pair], typical_s + late_s[pair])
            for pair, (shortest_s, typical_s) in replay.measure(rounds).items()
        }

    assert group_nodes(12, measure, 0.3).groups == replay.groups()


def test_a_long_link_with_a_shorter_way_round_is_not_measured_for_ever() -> None:
    """Routes that are no straight lines: hosts apart stay apart."""
    between_s = np.full((3, 3), 5e-3)
    np.fill_diagonal(between_s, 0.1e-3)
    between_s[0, 1] = between_s[1, 0] = 0.3e-3
    between_s[1, 2] = between_s[2, 1] = 0.3e-3
    replay = Replay(between_s, np.repeat(np.arange(3), 3))
    assert group_nodes(9, replay.measure, 0.3).groups == replay.groups()
    assert max(replay.n_measured.values()) <= 8
