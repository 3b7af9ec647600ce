from __future__ import annotations

from gridcoll.study.comparison import Setting
from gridcoll.study.optimum import measure_nearness


def test_methods_are_ranked() -> None:
    setting = Setting(n_iterations=6)
    seven, hasty, exact = measure_nearness(setting, 8, [10.0], exact=True, accelerate=False)
    assert [seven.method, hasty.method, exact.method] == ["best of the seven", "best", "optimal"]
    assert seven.gap > 0
    assert seven.worst_gap >= seven.gap
    assert hasty.gap == exact.gap == exact.own_gap == 0
    assert exact.proven == hasty.proven == 1
    assert seven.proven == 0
    assert exact.n_instances == 6
