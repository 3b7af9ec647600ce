from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.errors import UsageError
from gridcoll.schedule import (
    HEURISTICS,
    Accounting,
    Heuristic,
    Instance,
    find_heuristic,
    timeline,
)
from gridcoll.schedule.greedy import FEW_CLUSTERS

GREEDY = [name for name in HEURISTICS if name not in ("optimal", "best")]
ACCOUNTINGS = [
    Accounting(busy, internal)  # type: ignore[arg-type]
    for busy in ("gap", "gap+latency")
    for internal in ("after-last-send", "from-arrival")
]

# From 0, cluster 1 has the least latency, 2 the earliest arrival, 3 the longest broadcast; 1 relays
# badly and 2 well.
LATENCY = np.array([[0, 1, 5, 5], [9, 0, 9, 9], [2, 2, 0, 2], [9, 9, 9, 0]], dtype=float)
GAP = np.array([[0, 20, 10, 30], [50, 0, 50, 50], [10, 5, 0, 8], [50, 50, 50, 0]], dtype=float)
INTERNAL = np.array([10, 10, 10, 60], dtype=float)


def instance_from(seed: int, n: int, accounting: Accounting, whole: bool) -> Instance:
    """Whole numbers bring ties; the others are all different."""
    rng = np.random.default_rng(seed)
    if whole:
        draw = [rng.integers(0, 4, shape).astype(float) for shape in ((n, n), (n, n), (n,))]
    else:
        draw = [
            rng.uniform(1e-3, 15e-3, (n, n)),
            rng.uniform(0.1, 0.6, (n, n)),
            rng.uniform(0.02, 3.0, n),
        ]
    return Instance(*draw, int(rng.integers(n)), accounting)


instances = st.builds(
    instance_from,
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.sampled_from(ACCOUNTINGS),
    st.booleans(),
)
distinct = st.builds(
    instance_from,
    st.integers(0, 2**32),
    st.integers(2, 9),
    st.sampled_from(ACCOUNTINGS),
    st.just(False),
)


@pytest.mark.parametrize(
    ("name", "transfers"),
    [
        ("flat", [(0, 1), (0, 2), (0, 3)]),
        ("fef", [(0, 1), (0, 2), (2, 3)]),
        ("ecef", [(0, 2), (2, 1), (2, 3)]),
        ("ecef-la", [(0, 2), (2, 1), (2, 3)]),
        ("ecef-la-avg", [(0, 2), (2, 1), (2, 3)]),
        ("ecef-la-avg-senders", [(0, 2), (2, 3), (2, 1)]),
        ("ecef-la-min-t", [(0, 2), (2, 3), (2, 1)]),
        ("ecef-la-max-t", [(0, 2), (2, 3), (2, 1)]),
        ("bottom-up", [(0, 3), (0, 1), (0, 2)]),
        ("bottom-up-la", [(0, 3), (0, 2), (2, 1)]),
        ("mixed", [(0, 2), (2, 1), (2, 3)]),
    ],
)
def test_choices_on_a_small_grid(name, transfers) -> None:
    assert list(HEURISTICS[name](LATENCY, GAP, INTERNAL, 0).transfers) == transfers


@pytest.mark.parametrize("name", ["optimal", "best"])
def test_the_optimum_of_the_small_grid(name) -> None:
    """To 2 (gap 10, latency 5) and on to 3 (8 and 2), which needs 60: nothing reaches 3 sooner."""
    found = HEURISTICS[name](LATENCY, GAP, INTERNAL, 0)
    assert found.makespan_s == found.lower_bound_s == 15 + 10 + 60


def test_ties_go_to_the_smallest_sender_then_receiver() -> None:
    ones = np.ones((4, 4))
    found = HEURISTICS["ecef"](0 * ones, ones, np.ones(4), 2)
    assert list(found.transfers) == [(2, 0), (0, 1), (2, 3)]


def test_look_aheads_differ_where_they_should() -> None:
    """The seven are seven: no two of them always agree."""
    seen: dict[str, list[tuple[tuple[int, int], ...]]] = {name: [] for name in GREEDY}
    for seed in range(40):
        instance = instance_from(seed, 12, Accounting(), whole=False)
        for name in GREEDY:
            seen[name].append(HEURISTICS[name].pick(instance).transfers)
    different = [name for name in GREEDY if name != "mixed"]
    for k, name in enumerate(different):
        for other in different[k + 1 :]:
            assert seen[name] != seen[other], (name, other)


def test_mixed_changes_over() -> None:
    few = instance_from(1, FEW_CLUSTERS, Accounting(), whole=False)
    many = instance_from(1, FEW_CLUSTERS + 1, Accounting(), whole=False)
    assert HEURISTICS["mixed"].pick(few) == HEURISTICS["ecef-la"].pick(few)
    assert HEURISTICS["mixed"].pick(many) == HEURISTICS["ecef-la-max-t"].pick(many)
    assert HEURISTICS["ecef-la"].pick(many) != HEURISTICS["ecef-la-max-t"].pick(many)


@given(instances)
@settings(max_examples=60, deadline=None)
def test_schedules_are_broadcasts_with_the_makespan_they_say(instance) -> None:
    """`Schedule` itself refuses transfers that do not reach everybody once from a holder."""
    for heuristic in HEURISTICS.values():
        schedule = heuristic.pick(instance)
        assert schedule.n_clusters == instance.n_clusters
        assert schedule.root == instance.root
        assert schedule.makespan_s == timeline(schedule, instance).makespan_s
        assert schedule.makespan_s >= schedule.lower_bound_s
        assert schedule.makespan_s >= instance.internal_s.max()


@given(distinct, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_relabelling_changes_only_labels(instance, random) -> None:
    n = instance.n_clusters
    new = list(range(n))
    random.shuffle(new)  # cluster i is called new[i]
    old = np.argsort(new)
    relabelled = Instance(
        instance.latency_s[np.ix_(old, old)],
        instance.gap_s[np.ix_(old, old)],
        instance.internal_s[old],
        new[instance.root],
        instance.accounting,
    )
    for name, heuristic in HEURISTICS.items():
        here, there = heuristic.pick(instance), heuristic.pick(relabelled)
        if name in ("optimal", "best"):  # there may be several optima
            assert there.makespan_s == pytest.approx(here.makespan_s, rel=1e-12)
        elif name not in ("flat", "by-level"):  # these go by labels
            assert there.transfers == tuple((new[i], new[j]) for i, j in here.transfers)


@given(instances, st.sampled_from([0.25, 2.0, 1024.0]))
@settings(max_examples=40, deadline=None)
def test_scaling_time_changes_only_the_scale(instance, scale) -> None:
    """Powers of two scale floating point without rounding, so all must be the very same."""
    scaled = Instance(
        instance.latency_s * scale,
        instance.gap_s * scale,
        instance.internal_s * scale,
        instance.root,
        instance.accounting,
    )
    for heuristic in HEURISTICS.values():
        here, there = heuristic.pick(instance), heuristic.pick(scaled)
        assert there.transfers == here.transfers
        assert there.makespan_s == here.makespan_s * scale
        assert there.lower_bound_s == here.lower_bound_s * scale


def test_entries_say_what_they_are() -> None:
    labels = [heuristic.label for heuristic in HEURISTICS.values()]
    assert len(set(labels)) == len(labels)
    for name, heuristic in HEURISTICS.items():
        assert isinstance(heuristic, Heuristic)
        assert heuristic.name == name
        assert heuristic.good_for
        assert heuristic.source


def test_unknown_names_list_the_known() -> None:
    assert find_heuristic("fef") is HEURISTICS["fef"]
    with pytest.raises(UsageError, match=r"must be one of flat, fef, ecef.*got 'fifo'"):
        find_heuristic("fifo")
