from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.errors import UsageError
from gridcoll.topology.clustering import (
    DEFAULT_TOLERANCE,
    MOST_FAR_HOSTS,
    far_nodes_apart,
    find_clusters,
)
from tests.topology.plain_clustering import plain_clusters

# Barchet-Steffenel and Mounié 2006, Table 3: machines, and latencies between clusters in us. The
# diagonal is inside a cluster; clusters of one machine have none.
TABLE_3_MACHINES = (31, 29, 6, 1, 1, 20)
TABLE_3_US = np.array(
    [
        [47.56, 62.10, 12181.52, 12187.24, 12197.49, 5210.99],
        [62.10, 47.92, 12181.52, 12198.03, 12195.22, 5211.47],
        [12181.52, 12181.52, 35.52, 60.08, 60.08, 5388.49],
        [12187.24, 12198.03, 60.08, 0.0, 242.47, 5393.98],
        [12197.49, 12195.22, 60.08, 242.47, 0.0, 5394.10],
        [5210.99, 5211.47, 5388.49, 5393.98, 5394.10, 27.53],
    ]
)


def expand(latency: np.ndarray, sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The matrix between machines, and the cluster of each."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    return latency[np.ix_(of, of)], of


def groups_of(labels: np.ndarray) -> list[list[int]]:
    return sorted(sorted(np.flatnonzero(labels == x).tolist()) for x in set(labels.tolist()))


def shuffled(matrix: np.ndarray, labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(len(labels))
    return matrix[np.ix_(order, order)], labels[order]


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_the_88_machines_of_table_3_are_its_six_clusters(seed: int | None) -> None:
    matrix, labels = expand(TABLE_3_US * 1e-6, TABLE_3_MACHINES)
    if seed is not None:
        matrix, labels = shuffled(matrix, labels, seed)
    found = find_clusters(matrix, tolerance=0.3)
    assert found == groups_of(labels)
    assert sorted(map(len, found)) == [1, 1, 6, 20, 29, 31]


def test_the_default_tolerance_is_the_papers() -> None:
    assert DEFAULT_TOLERANCE == 0.3
    matrix, labels = expand(TABLE_3_US, TABLE_3_MACHINES)
    assert find_clusters(matrix) == groups_of(labels)


def test_tolerance_decides() -> None:
    """62.10 is 30.6 % above 47.56, and one cluster from 31 % on."""
    matrix, _ = expand(TABLE_3_US[:2, :2], TABLE_3_MACHINES[:2])
    assert len(find_clusters(matrix, 0.30)) == 2
    assert len(find_clusters(matrix, 0.31)) == 1


def test_zero_tolerance_joins_equals_only() -> None:
    matrix = np.array([[0, 1, 1], [1, 0, 1.0001], [1, 1.0001, 0]])
    assert find_clusters(matrix, 0) == [[0, 1], [2]]
    assert find_clusters(np.ones((3, 3)), 0) == [[0, 1, 2]]


def test_near_one_member_is_not_enough() -> None:
    """All latencies to the members count, not the shortest."""
    matrix = np.array([[0, 1, 1.2], [1, 0, 5], [1.2, 5, 0]])
    assert find_clusters(matrix, 0.3) == [[0, 1], [2]]


def test_groups_founded_apart_become_one() -> None:
    """0-1 and 2-3 are the shortest edges and share nobody; all four are one cluster."""
    matrix = np.array(
        [[0, 10, 11, 11], [10, 0, 11, 12], [11, 11, 0, 10.5], [11, 12, 10.5, 0]], dtype=float
    )
    assert find_clusters(matrix, 0.3) == [[0, 1, 2, 3]]
    assert find_clusters(matrix, 0.15) == [[0, 1], [2, 3]]


def test_a_wide_group_does_not_become_part_of_a_narrow_one() -> None:
    """All latencies between both are within the tolerance, and one inside the second is not."""
    matrix = np.full((5, 5), 1.2)
    for pair, latency in {(0, 1): 1.0, (2, 3): 1.1, (2, 4): 1.12, (3, 4): 1.4}.items():
        matrix[pair] = matrix[pair[::-1]] = latency
    assert find_clusters(matrix) == [[0, 1], [2, 3, 4]]
    matrix[3, 4] = matrix[4, 3] = 1.3
    assert find_clusters(matrix) == [[0, 1, 2, 3, 4]]


def test_below_the_resolution_all_is_equal() -> None:
    matrix = np.array([[0, 1, 9], [1, 0, 9], [9, 9, 0.0]])
    assert find_clusters(matrix, 0.3) == [[0, 1], [2]]
    assert find_clusters(matrix, 0.3, resolution_s=9) == [[0, 1, 2]]


def test_what_is_not_certain_keeps_nobody_apart() -> None:
    """And founds no group, nor makes a node a neighbour, however short it may be.

    The last two are left over, and what is between them may be nothing: they are no cluster.
    """
    seen = np.array([[0, 10, 30, 99], [10, 0, 20, 99], [30, 20, 0, 99], [99, 99, 99, 0]])
    certain = seen.copy()
    assert find_clusters(seen, 0.3, at_least_s=certain) == [[0, 1], [2], [3]]
    certain[2] = certain[:, 2] = 0  # a busy machine
    assert find_clusters(seen, 0.3, at_least_s=certain) == [[0, 1, 2], [3]]
    certain[2, 0] = certain[0, 2] = 14
    assert find_clusters(seen, 0.3, at_least_s=certain) == [[0, 1], [2], [3]]


def test_groups_that_are_not_certainly_apart_are_one() -> None:
    """Though the shortest edge between them is beyond the limits of both."""
    seen = np.full((4, 4), 20.0)
    seen[0, 1] = seen[1, 0] = seen[2, 3] = seen[3, 2] = 10.0
    assert find_clusters(seen) == [[0, 1], [2, 3]]
    assert find_clusters(seen, at_least_s=seen * 0.6) == [[0, 1, 2, 3]]


def test_more_than_was_seen_is_certain_of_nothing() -> None:
    seen = np.array([[0, 10, 11], [10, 0, 11], [11, 11, 0]])
    assert find_clusters(seen, at_least_s=9 * seen) == find_clusters(seen) == [[0, 1, 2]]


@pytest.mark.parametrize("shape", [(3, 2), (2,), (2, 2)])
def test_two_matrices_of_one_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"at_least_s: must be of shape \(3, 3\), got"):
        find_clusters(np.ones((3, 3)), at_least_s=np.ones(shape))


def test_the_larger_direction_counts() -> None:
    matrix = np.array([[0, 1, 1], [1, 0, 5], [1, 1, 0]])
    assert find_clusters(matrix) == find_clusters(np.maximum(matrix, matrix.T)) == [[0, 1], [2]]


def test_the_diagonal_is_ignored() -> None:
    matrix = np.full((3, 3), 1.0)
    np.fill_diagonal(matrix, np.nan)
    assert find_clusters(matrix) == [[0, 1, 2]]


def test_the_callers_matrix_is_left_alone() -> None:
    matrix = np.array([[0, 1.0], [2.0, 0]])
    before = matrix.copy()
    find_clusters(matrix)
    assert (matrix == before).all()


@pytest.mark.parametrize("n", [0, 1])
def test_nobody_and_one(n: int) -> None:
    assert find_clusters(np.zeros((n, n))) == [[k] for k in range(n)]


@pytest.mark.parametrize("tolerance", [-0.01, 10, float("nan"), float("inf")])
def test_tolerance_out_of_range(tolerance: float) -> None:
    with pytest.raises(UsageError, match=r"tolerance: must be in \[0, 10\), got"):
        find_clusters(np.ones((2, 2)), tolerance)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 2, 2)])
def test_not_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="latency_s: must be a square matrix, got shape"):
        find_clusters(np.ones(shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_no_latency_at_all(bad: float) -> None:
    matrix = np.ones((3, 3))
    matrix[2, 0] = bad
    with pytest.raises(UsageError, match="latency_s: must be finite and non-negative off the"):
        find_clusters(matrix)
    with pytest.raises(UsageError, match="at_least_s: must be finite and non-negative off the"):
        find_clusters(np.ones((3, 3)), at_least_s=matrix)


@given(st.data())
def test_well_separated_clusters_are_found_in_any_order(data: st.DataObject) -> None:
    """Inside, latencies differ by up to 20 %; between, they are at least ten times as long."""
    sizes = data.draw(st.lists(st.integers(2, 6), min_size=1, max_size=6))
    # One machine may be alone; of two, nothing nearer would tell whether they are a cluster.
    sizes += data.draw(st.sampled_from([[], [1]]))
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    n = len(sizes)
    between = np.triu(random.uniform(1e-3, 30e-3, (n, n)), 1)
    latency = between + between.T + np.diag(random.uniform(20e-6, 80e-6, n))
    matrix, labels = expand(latency, tuple(sizes))
    noise = np.triu(random.uniform(1, 1.2, matrix.shape), 1)
    matrix, labels = shuffled(matrix * (noise + noise.T), labels, seed + 1)
    assert find_clusters(matrix, 0.3) == groups_of(labels)


@given(st.integers(0, 2**32 - 1), st.integers(2, 10))
def test_renaming_the_machines_renames_the_groups(seed: int, n: int) -> None:
    """For distinct latencies; equal ones are tied by number, which a renaming changes."""
    random = np.random.default_rng(seed)
    upper = np.triu(random.lognormal(0, 1, (n, n)), 1)
    matrix = upper + upper.T
    order = random.permutation(n)
    direct = find_clusters(matrix[np.ix_(order, order)])
    renamed = sorted(sorted(int(order[k]) for k in group) for group in direct)
    assert renamed == find_clusters(matrix)


@given(st.integers(0, 2**32 - 1), st.integers(1, 10), st.floats(0, 2))
def test_groups_hold_every_machine_once_and_stay_within_tolerance(
    seed: int, n: int, tolerance: float
) -> None:
    upper = np.triu(np.random.default_rng(seed).uniform(1, 4, (n, n)), 1)
    matrix = upper + upper.T
    groups = find_clusters(matrix, tolerance)
    assert sorted(k for group in groups for k in group) == list(range(n))
    assert groups == sorted(sorted(group) for group in groups)
    for group in groups:
        inside = [matrix[pair] for pair in combinations(group, 2)]
        if inside:
            assert max(inside) <= min(inside) * (1 + tolerance) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_ties_go_to_low_numbers(seed: int) -> None:
    """Equal latencies count as if each were a hair longer than the one before it."""
    n = 14
    rows, columns = np.triu_indices(n, 1)
    matrix = np.zeros((n, n))
    matrix[rows, columns] = np.random.default_rng(seed).integers(2, 7, len(rows))
    hair = np.zeros((n, n))
    hair[rows, columns] = np.arange(len(rows)) * 1e-9
    assert find_clusters(matrix) == find_clusters(matrix + hair)


LENGTHS = (1e-5, 1.2e-5, 1.3e-5, 1.35e-5, 2e-5, 1e-3, 1.2e-3)
"""So few that many edges are equal, or about as much longer as the tolerance."""


@given(
    st.integers(0, 12).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from(LENGTHS), min_size=n, max_size=n), min_size=n, max_size=n
        )
    ),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    st.sampled_from([0.0, 1.25e-5]),
    st.none() | st.integers(0, 2**32 - 1),
)
def test_as_when_every_latency_is_looked_at_again(
    rows: list[list[float]], tolerance: float, resolution_s: float, seed: int | None
) -> None:
    """Certain are all latencies, or some, and parts of others."""
    matrix = np.array(rows).reshape(len(rows), len(rows))
    certain = None
    if seed is not None:
        certain = matrix * np.random.default_rng(seed).choice([0.0, 0.5, 0.9, 1.0], matrix.shape)
    wanted = plain_clusters(matrix, tolerance, resolution_s, certain)
    assert find_clusters(matrix, tolerance, resolution_s, certain) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_as_when_every_latency_is_looked_at_again_over_sites(seed: int) -> None:
    random = np.random.default_rng(seed)
    site = random.integers(0, 4, 30)
    between = np.abs(site[:, None] - site[None, :])
    matrix = np.where(between == 0, 1e-4, 1e-2 * (1 + between)) * (
        1 + 0.5 * random.random((30, 30))
    )
    assert find_clusters(matrix) == plain_clusters(matrix, DEFAULT_TOLERANCE, 0.0)


def matrix_of(latencies_ms: Sequence[Sequence[float]]) -> list[dict[int, float]]:
    return [{b: ms * 1e-3 for b, ms in enumerate(row)} for row in latencies_ms]


def test_hosts_alone_in_their_places_are_no_cluster() -> None:
    """By Lowekamp's rule, two hosts that are nearest to each other are one, however far apart."""
    of = matrix_of([[0, 0.1, 17, 10], [0.1, 0, 17, 10], [17, 17, 0, 7.5], [10, 10, 7.5, 0]])
    assert far_nodes_apart([[0, 1], [2, 3]], of) == [[0, 1], [2], [3]]
    alone = matrix_of([[0, 9, 10], [9, 0, 9], [10, 9, 0]])
    assert far_nodes_apart([[0, 1, 2]], alone) == [[0], [1], [2]]


def test_hosts_of_a_site_stay_together() -> None:
    near = matrix_of([[0, 0.2, 0.5], [0.2, 0, 0.5], [0.5, 0.5, 0]])
    assert far_nodes_apart([[0, 1], [2]], near) == [[0, 1], [2]], "no more than a campus apart"
    slow_motion = matrix_of([[0, 3, 80], [3, 0, 80], [80, 80, 0]])
    assert far_nodes_apart([[0, 1], [2]], slow_motion) == [[0, 1], [2]]
    n = MOST_FAR_HOSTS + 1
    many = [{b: 9e-3 for b in range(n) if a != b} for a in range(n)]
    assert far_nodes_apart([list(range(n))], many) == [list(range(n))], "too many links to measure"
