from __future__ import annotations

import numpy as np
import pytest

from gridcoll.schedule import Accounting, Instance, time_transfers
from gridcoll.schedule.accelerate import Runner
from gridcoll.schedule.anytime import optimal
from gridcoll.schedule.completion import complete

RUN = Runner(compiled=False)


@pytest.mark.parametrize(
    "accounting", [Accounting(), Accounting("gap+latency", "from-arrival")], ids=str
)
@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_ends_by_the_target(seed, accounting) -> None:
    rng = np.random.default_rng(seed)
    n = 9
    times = [rng.uniform(0, 0.1, (n, n)), rng.uniform(0.1, 0.6, (n, n)), rng.uniform(0, 3, n)]
    instance = Instance(*times, 0, accounting)
    problem = RUN.problem(instance)
    order = sorted(range(1, n), key=lambda v: -instance.internals[v])
    least = optimal(instance).makespan_s
    n_found = 0
    for target in least * np.array([0.9, 0.999, 1.0, 1.02, 1.1, 1.3, 2.0]):
        for given in ([], [(0, order[0])]):
            found = complete(RUN, problem, float(target), order, given)
            if found.missed >= 0:
                assert target < 2 * least
                continue
            n_found += 1
            assert found.transfers[: len(given)] == given
            makespan = time_transfers(found.transfers, instance).makespan_s
            assert least * (1 - 1e-12) <= makespan <= target * (1 + 1e-12)
    assert n_found >= 4


def test_the_missed_cluster_is_named() -> None:
    gap = np.ones((3, 3))
    instance = Instance(0 * gap, gap, np.array([0.0, 5.0, 9.0]))
    found = complete(RUN, RUN.problem(instance), 9.5, [2, 1], [])
    assert (found.missed, found.transfers) == (2, [])
    assert complete(RUN, RUN.problem(instance), 10.0, [2, 1], []).missed == -1


def test_paths_lead_through_unreached_clusters() -> None:
    gap = np.full((4, 4), 10.0)
    gap[0, 1] = gap[1, 2] = 1.0
    instance = Instance(0 * gap, gap, np.array([0.0, 0.0, 8.0, 0.0]))
    found = complete(RUN, RUN.problem(instance), 12.0, [2, 1, 3], [])
    assert found.transfers[:2] == [(0, 1), (1, 2)]
    assert found.missed == -1


def test_senders_that_must_broadcast_inside_are_left_alone() -> None:
    """1 is the nearer relay, but by 10 its own broadcast leaves it no time to send."""
    gap = np.full((4, 4), 10.0)
    gap[0, 1] = gap[1, 3] = 1.0
    gap[0, 2] = gap[2, 3] = 2.0
    instance = Instance(0 * gap, gap, np.array([0.0, 9.0, 0.0, 5.0]))
    problem = RUN.problem(instance)
    assert complete(RUN, problem, 10.0, [1, 3, 2], []).transfers == [(0, 1), (0, 2), (2, 3)]
    assert complete(RUN, problem, 11.0, [1, 3, 2], []).transfers == [(0, 1), (1, 3), (0, 2)]


def test_given_transfers_that_end_too_late_are_missed() -> None:
    gap = np.ones((3, 3))
    instance = Instance(0 * gap, gap, np.array([0.0, 5.0, 9.0]))
    assert complete(RUN, RUN.problem(instance), 10.0, [2, 1], [(0, 1), (0, 2)]).missed == 2


def test_a_cluster_given_twice_counts_once() -> None:
    gap = np.ones((3, 3))
    instance = Instance(0 * gap, gap, np.zeros(3))
    found = complete(RUN, RUN.problem(instance), 10.0, [2, 1], [(0, 1), (0, 1), (1, 2)])
    assert found.transfers == [(0, 1), (1, 2)]
