from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.schedule import HEURISTICS
from gridcoll.study.comparison import SEVEN, Setting, chunk_size, compare
from gridcoll.study.parameters import PARAMETERS

MEANS_MS = {
    "table2": (5392, 4658, 3368, 3362, 3443, 3446, 3684),
    "adaptive": (3045, 2983, 2800, 2800, 2805, 2818, 2853),
}
"""Known means at ten clusters, in the order of `SEVEN`."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_mean_makespans_at_ten_clusters(name) -> None:
    """Within 1 %: accounting, look-aheads and BottomUp are what the papers' figures need."""
    scores = compare(Setting(PARAMETERS[name], n_iterations=6000), 10)
    for score, known in zip(scores, MEANS_MS[name], strict=True):
        assert score.mean_s * 1e3 == pytest.approx(known, rel=0.01), score.heuristic


def test_scores_are_means_and_shares_of_the_batches() -> None:
    setting = Setting(n_iterations=50, n_references=20, seed=3)
    scores = {score.heuristic: score for score in compare(setting, 5)}
    batch = setting.chunk(5, 0)
    times = {name: HEURISTICS[name].pick_batch(batch).makespan_s for name in SEVEN}
    least = np.min(list(times.values()), axis=0)
    assert list(scores) == [*SEVEN, "best"]
    for name in SEVEN:
        assert scores[name].mean_s == pytest.approx(times[name].mean())
        assert scores[name].deviation_s == pytest.approx(times[name].std())
        assert scores[name].hit_rate == (times[name] == least).mean()
    best = np.array([HEURISTICS["best"].pick(batch.instance(k)).makespan_s for k in range(20)])
    assert scores["best"].proven == 1
    assert scores["best"].n_iterations == 20
    assert scores["best"].mean_s == pytest.approx(least.mean() - (least[:20] - best).mean())
    equal = {name: (times[name][:20] <= best * (1 + 1e-9)).mean() for name in SEVEN}
    assert equal == {name: scores[name].as_good for name in SEVEN}
    assert 0 < max(equal.values()) < 1
    assert scores["flat"].excess == pytest.approx((times["flat"][:20] / best - 1).mean())


def test_only_seed_size_and_index_decide() -> None:
    """More iterations add instances and change none; another seed changes all."""
    few, many = Setting(n_iterations=3), Setting(n_iterations=30)
    assert (few.chunk(4, 0).gap_s == many.chunk(4, 0).gap_s[:3]).all()
    assert (Setting(seed=2).chunk(4, 0).gap_s != Setting(seed=1).chunk(4, 0).gap_s)[:, 0, 1].all()
    assert compare(few, 4) == compare(few, 4)


def test_the_last_chunk_is_cut() -> None:
    size = chunk_size(40)
    setting = Setting(n_iterations=size + 7)
    assert setting.chunk(40, 0).n_instances == size
    assert setting.chunk(40, 1).n_instances == 7
    done: list[int] = []
    assert compare(setting, 40, ("flat",), done.append)[0].n_iterations == size + 7
    assert sum(done) == size + 7


def test_impossible_counts() -> None:
    with pytest.raises(UsageError, match="iterations"):
        Setting(n_iterations=0)
    with pytest.raises(UsageError, match="references"):
        Setting(n_iterations=5, n_references=6)
