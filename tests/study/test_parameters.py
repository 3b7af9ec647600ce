from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.schedule import Accounting
from gridcoll.study.parameters import FILLINGS, PARAMETERS, draw_batch, predict_internal

B, N = 400, 6
OFF = ~np.eye(N, dtype=bool)


def draw(name: str = "table2", **options):
    return draw_batch(PARAMETERS[name], np.random.default_rng(1), B, N, **options)


def test_table_2_ranges() -> None:
    """Paper 000: L 1 to 15 ms, g 100 to 600 ms, T 20 to 3000 ms."""
    batch = draw()
    for values, (low, high) in (
        (batch.latency_s[:, OFF], (1e-3, 15e-3)),
        (batch.gap_s[:, OFF], (0.1, 0.6)),
        (batch.internal_s, (0.02, 3.0)),
    ):
        assert low <= values.min() < low + (high - low) / 100
        assert high >= values.max() > high - (high - low) / 100
        assert values.mean() == pytest.approx((low + high) / 2, rel=0.02)


def test_adaptive_ranges() -> None:
    """Paper 002: 1 MB at 1 to 100 MB/s, T 200 to 3000 ms."""
    batch = draw("adaptive")
    rate = 1e6 / batch.gap_s[:, OFF]
    assert rate.min() >= 1e6 * (1 - 1e-9)
    assert rate.max() <= 100e6 * (1 + 1e-9)
    assert rate.mean() == pytest.approx(50.5e6, rel=0.02)
    assert 0.2 <= batch.internal_s.min() <= batch.internal_s.max() <= 3.0


def test_fillings() -> None:
    transposed = (0, 2, 1)
    independent, symmetric = draw().gap_s, draw(filling="symmetric").gap_s
    assert (independent != independent.transpose(transposed))[:, OFF].all()
    assert (symmetric == symmetric.transpose(transposed)).all()
    least, largest = draw(filling="per-cluster").gap_s, draw(filling="per-cluster-max").gap_s
    for gap in (least, largest):
        assert (gap == gap.transpose(transposed)).all()
    # per cluster, the row of the cluster with the largest (smallest) gap has everybody's own gap
    for b in range(B):
        rows = np.where(OFF, least[b], -np.inf)
        own = rows.max(axis=1)
        assert (least[b] == np.minimum(own[:, None], own[None, :]))[OFF].all()
        own = np.where(OFF, largest[b], np.inf).min(axis=1)
        assert (largest[b] == np.maximum(own[:, None], own[None, :]))[OFF].all()
    assert set(FILLINGS) == {"independent", "symmetric", "per-cluster", "per-cluster-max"}


def test_accounting_is_passed_on() -> None:
    accounting = Accounting("gap+latency")
    assert draw(accounting=accounting).accounting == accounting


def test_predicted_internal_broadcasts() -> None:
    """One machine: nothing. Two: one transfer. Many and large: near one transfer and the chain."""
    machines = np.array([1, 2, 3, 64])
    latency, rate = np.full(4, 50e-6), np.full(4, 10e6)
    found = predict_internal(machines, latency, rate, 1_000_000)
    whole = 10e-6 + 0.1
    assert found[0] == 0
    assert found[1] == pytest.approx(50e-6 + whole)
    assert whole < found[2] < 2 * whole + 100e-6  # a pipeline of two hops
    assert whole < found[3] < 1.3 * whole + 63 * 60e-6 + 0.1
    batch = draw(internal="predicted")
    assert (batch.internal_s >= 0).all()
    assert batch.internal_s.max() < 0.5


@pytest.mark.parametrize("option", ["filling", "internal"])
def test_unknown_options(option) -> None:
    with pytest.raises(UsageError, match=f"{option}: must be one of"):
        draw(**{option: "other"})
