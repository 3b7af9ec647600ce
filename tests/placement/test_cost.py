"""The vectorised formulas against a plain transcription of the paper's, cluster by cluster."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.placement import IterationCost, Phase, Problem, predict
from gridcoll.placement.problem import Allreduce, Memory, Update


def paper_iteration_s(cost: IterationCost, chosen: list[int]) -> float:
    """Paper 004, §2, with no array in sight. ``inf`` where memory lacks."""
    problem, grid = cost.problem, cost.resources
    alpha = [[phase.alpha_s[name] for name in grid.names] for phase in problem.phases]
    power = [1 / sum(row[i] for row in alpha) for i in range(len(grid.names))]
    cores = grid.processes
    total_power = sum(grid.n_hosts[i] * cores[i] * power[i] for i in chosen)
    local = {i: problem.n_elements * power[i] / total_power for i in chosen}
    if problem.memory is not None:
        for i in chosen:
            if cores[i] * local[i] * problem.memory.element_bytes > float(
                problem.memory.host[grid.names[i]]
            ):
                return math.inf
    phase_s = [max(row[i] * local[i] for i in chosen) for row in alpha]

    l_wan = max(grid.latency_s[i, j] for i in chosen for j in chosen)
    update = problem.update
    per_cluster = (problem.n_elements / len(chosen)) ** (2 / 3)
    per_host = (problem.n_elements / sum(grid.n_hosts[i] for i in chosen)) ** (2 / 3)
    nic = [update.bandwidth_factor * rate for rate in grid.nic_bytes_per_s]
    uplink = [update.bandwidth_factor * rate for rate in grid.uplink_bytes_per_s]
    inter_s = max(
        update.face_bytes / min(uplink[j], grid.n_hosts[j] * nic[j])
        * update.beta_cluster * per_cluster
        for j in chosen
    )  # fmt: skip
    intra_s = max(update.face_bytes / nic[i] * update.beta_host * per_host for i in chosen)
    update_s = l_wan + (inter_s if len(chosen) > 1 else 0) + intra_s

    allreduce_s = l_wan
    if problem.allreduce.form == "two-level":
        allreduce_s += max(
            2 * math.ceil(math.log2(grid.n_hosts[i])) * grid.latency_s[i, i] for i in chosen
        )
    total = problem.allreduce.count * allreduce_s
    if update.mode == "blocking":
        return total + sum(phase_s) + update.count * update_s
    for number in range(1, update.count + 1):
        behind = [
            time
            for phase, time in zip(problem.phases, phase_s, strict=True)
            if phase.overlaps_update == number
        ]
        total += max(update_s, sum(behind))
    return total + sum(
        time
        for phase, time in zip(problem.phases, phase_s, strict=True)
        if phase.overlaps_update is None
    )


def test_agrees_with_the_plain_transcription(draw) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(1)
    lacking = 0
    for _ in range(400):
        cost = draw(rng, int(rng.integers(1, 9)))
        masks = rng.random((10, cost.n_clusters)) < 0.6
        masks = masks[masks.any(axis=1)]
        for mask, time_s in zip(masks, cost.times(masks), strict=True):
            plain_s = paper_iteration_s(cost, np.flatnonzero(mask).tolist())
            if math.isinf(plain_s):
                lacking += 1
                assert cost.lacks_memory(time_s)
            else:
                assert time_s == pytest.approx(plain_s, rel=1e-12)
    assert lacking > 50


def test_no_clusters_never_finish(draw) -> None:  # type: ignore[no-untyped-def]
    cost = draw(np.random.default_rng(2), 4)
    assert cost.times(np.zeros((1, 4), dtype=bool)).tolist() == [math.inf]
    with pytest.raises(UsageError, match="clusters: needs at least one"):
        predict(cost, ())


def two_clusters(resources_of, **fields) -> IterationCost:  # type: ignore[no-untyped-def]
    latency_s = np.array([[1e-5, 1e-2], [1e-2, 1e-5]])
    resources = resources_of(latency_s, n_hosts=np.array([10, 20]))
    phases = [
        Phase(name="p", alpha_s={"c0": 4e-6, "c1": 8e-6}),
        Phase(name="q", alpha_s={"c0": 6e-6, "c1": 2e-6}, overlaps_update=1),
    ]
    return IterationCost(Problem(n_elements=3_000_000, phases=phases, **fields), resources)


def test_by_hand(resources_of) -> None:  # type: ignore[no-untyped-def]
    # 1e5 elements per host and second, 3e6 in all: a second on 30 hosts if phases were even.
    best = predict(two_clusters(resources_of), (0, 1))
    assert best.elements_per_host == pytest.approx((1e5, 1e5))
    assert best.phase_s == pytest.approx((0.8, 0.6))  # c1 is slow at p, c0 at q
    assert best.latency_s == 1e-2
    assert best.intra_s == pytest.approx(48 * 5 / 62.5e6 * 1e5 ** (2 / 3))
    assert best.inter_s == pytest.approx(48 / 625e6 * 1.5e6 ** (2 / 3))
    assert best.update_s == pytest.approx(1e-2 + best.inter_s + best.intra_s)
    assert best.allreduce_s == 1e-2
    assert best.iteration_s == pytest.approx(1.4 + 2 * best.update_s + 4e-2)
    assert best.communication_s == pytest.approx(2 * best.update_s + 4e-2)


def test_several_processes_of_a_host_compute_side_by_side(resources_of) -> None:  # type: ignore[no-untyped-def]
    """Four on each host of c1: its interface carries what it did, with as much more to compute."""
    plain = two_clusters(resources_of)
    cores = resources_of(
        plain.resources.latency_s, n_hosts=np.array([10, 20]), processes_per_host=np.array([1, 4])
    )
    best = predict(IterationCost(plain.problem, cores), (1,))
    alone = predict(plain, (1,))
    assert best.phase_s == pytest.approx([seconds / 4 for seconds in alone.phase_s])
    assert best.intra_s == alone.intra_s
    both = predict(IterationCost(plain.problem, cores), (0, 1))
    assert both.elements_per_host[1] == pytest.approx(4 * both.elements_per_host[0])


def test_overlapped_updates_cost_what_they_outlast(resources_of) -> None:  # type: ignore[no-untyped-def]
    best = predict(two_clusters(resources_of, update=Update(mode="overlapped")), (0, 1))
    # q hides the first UPDATE; nothing hides the second.
    assert best.iteration_s == pytest.approx(0.8 + 0.6 + best.update_s + 4e-2)


def test_one_cluster_pays_no_wan(resources_of) -> None:  # type: ignore[no-untyped-def]
    alone = predict(two_clusters(resources_of), (1,))
    assert (alone.latency_s, alone.inter_s, alone.allreduce_s) == (1e-5, 0.0, 1e-5)


def test_published_tetrahedra_per_gibibyte(resources_of) -> None:  # type: ignore[no-untyped-def]
    """§3: 1 GB holds at least 1,750,000 tetrahedra of 600 bytes."""
    for n_elements, fits in ((1_750_000, True), (1_800_000, False)):
        problem = Problem(
            n_elements=n_elements,
            phases=[Phase(name="p", alpha_s=1e-5)],
            memory=Memory(element_bytes=600, host="1 GiB"),
        )
        cost = IterationCost(problem, resources_of(np.zeros((1, 1)), n_hosts=np.array([1])))
        assert cost.lacks_memory(cost.time_s((0,))) is not fits


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"phases": [Phase(name="p", alpha_s={"c0": 1.0, "c1": 1.0, "lyon": 1.0})]},
            "phase 'p': alpha_s: cluster 'lyon' is unknown; the grid has c0, c1",
        ),
        (
            {"phases": [Phase(name="p", alpha_s={"c0": 1.0})]},
            "phase 'p': alpha_s: nothing is said about cluster 'c1'",
        ),
        (
            {"memory": Memory(element_bytes=1, host={"c0": "1 GiB"})},
            "memory: host: nothing is said about cluster 'c1'",
        ),
        (
            {"memory": Memory(element_bytes=1, host={"x": "1 GiB"})},
            "memory: host: cluster 'x' is unknown",
        ),
        (
            {"allreduce": Allreduce(form="tree")},
            "allreduce: form: 'tree' is unknown, must be one of latency, two-level, plan",
        ),
        ({"allreduce": Allreduce(form="plan")}, "form: 'plan' needs a function"),
    ],
)
def test_problems_that_do_not_fit_the_grid(resources_of, fields, message) -> None:  # type: ignore[no-untyped-def]
    given = {"n_elements": 10, "phases": [Phase(name="p", alpha_s=1.0)], **fields}
    with pytest.raises(UsageError, match=message):
        IterationCost(Problem(**given), resources_of(np.full((2, 2), 1e-3)))
