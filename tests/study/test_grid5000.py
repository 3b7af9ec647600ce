from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.schedule import HEURISTICS
from gridcoll.study.grid5000_command import (
    ECEF_FAMILY,
    LATENCY_US,
    MACHINES,
    Calibration,
    binomial_s,
    fastest_inside_s,
    grid_instance,
    unaware_binomial_s,
    variants,
)


def test_table_3_is_symmetric_and_has_88_machines() -> None:
    latency = np.array(LATENCY_US)
    assert (latency == latency.T).all()
    assert sum(MACHINES) == 88


def test_the_calibration_gives_what_paper_002_measured() -> None:
    """1 MB from Orsay to Grenoble: 350 ms; among 50 nodes by a binomial tree: 600 ms."""
    gap = Calibration().gap_s(1e6)
    assert gap[0, 2] + LATENCY_US[0][2] * 1e-6 == pytest.approx(0.350, rel=0.11)
    assert 5 * gap[0, 0] == pytest.approx(0.600, rel=0.01)


def test_internal_broadcasts_are_binomial() -> None:
    instance = grid_instance(1e6, Calibration())
    gap = Calibration().gap_s(1e6)
    assert instance.internal_s[0] == pytest.approx(5 * 47.56e-6 + 4 * gap[0, 0])
    assert instance.internal_s[3] == 0


def test_the_unaware_binomial_in_one_cluster_is_the_model() -> None:
    """With the same time everywhere, 88 machines take seven rounds."""
    fast = Calibration(window_bytes=1e30, local_bytes_per_s=1e6, overhead_s=0.0)
    rounds = unaware_binomial_s(1e6, fast)
    assert 6 < rounds < 7 + 7 * max(map(max, LATENCY_US)) * 1e-6


@pytest.mark.parametrize("root", range(6))
def test_figure_5_orders(root) -> None:
    """Flat is the slowest, slower than the grid-unaware binomial; ECEF beats both."""
    times = {
        name: HEURISTICS[name].pick(grid_instance(4e6, Calibration(), root)).makespan_s
        for name in ("flat", "ecef", "best")
    }
    unaware_s = unaware_binomial_s(4e6, Calibration(), root)
    assert times["best"] <= times["ecef"] < unaware_s < times["flat"]


def test_impossible_calibrations() -> None:
    with pytest.raises(UsageError, match="window_bytes"):
        Calibration(window_bytes=0)


def test_inside_the_best_of_table_1_is_never_slower_than_binomial() -> None:
    for n_bytes in (1e3, 1e5, 4e6):
        fastest = fastest_inside_s(n_bytes, Calibration())
        assert (fastest <= binomial_s(n_bytes, Calibration()) + 1e-12).all()
        assert fastest[3] == fastest[4] == 0  # one machine each
    assert fastest[0] < 0.3 * binomial_s(4e6, Calibration())[0]


def test_inside_the_best_ecef_takes_less_than_paper_000_says() -> None:
    """Its 3 s for 4 MB; with the binomial tree that the paper names it is more."""
    for inside, under in (("binomial", False), ("best", True)):
        instance = grid_instance(4e6, Calibration(), inside=inside)
        family = [HEURISTICS[name].pick(instance).makespan_s for name in ECEF_FAMILY]
        assert (max(family) < 3) is under
    with pytest.raises(UsageError, match="inside"):
        grid_instance(4e6, Calibration(), inside="flat")


def test_no_variant_makes_flat_six_times_as_slow() -> None:
    ratios = [found.flat_over_ecef for found in variants()]
    assert len(ratios) == 54
    assert 3.5 < max(ratios) < 4
