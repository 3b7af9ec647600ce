from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.errors import UsageError
from gridcoll.model.plogp import LONG_BYTES, PLogP, linear_plogp


@pytest.fixture
def link() -> PLogP:
    return PLogP(
        latency_s=1.0,
        sizes_bytes=(0, 100, 200),
        gap_s=(0.1, 0.3, 0.7),
        send_s=(0.01, 0.02, 0.04),
        recv_s=(0.03, 0.03, 0.05),
        one_way_s=(1.0, 1.5, 2.5),
    )


def test_measured_sizes_give_what_was_measured(link: PLogP) -> None:
    for k, size in enumerate(link.sizes_bytes):
        assert link.gap(size) == link.gap_s[k]
        assert link.send_overhead(size) == link.send_s[k]
        assert link.recv_overhead(size) == link.recv_s[k]
        assert link.one_way(size) == link.one_way_s[k]


def test_in_between_is_linear(link: PLogP) -> None:
    assert link.gap(50) == pytest.approx(0.2)
    assert link.gap(175) == pytest.approx(0.6)
    assert link.send_overhead(150) == pytest.approx(0.03)
    assert link.recv_overhead(150) == pytest.approx(0.04)
    assert link.one_way(150) == pytest.approx(2.0)


def test_beyond_the_largest_the_last_slope_goes_on(link: PLogP) -> None:
    assert link.gap(400) == pytest.approx(0.7 + 0.004 * 200)
    assert link.one_way(300) == pytest.approx(2.5 + 0.01 * 100)
    assert link.send_overhead(300) == pytest.approx(0.06)


def test_beyond_the_largest_nothing_ever_gets_cheaper(link: PLogP) -> None:
    falling = replace(link, gap_s=(0.1, 0.9, 0.5))
    assert falling.gap(10_000) == 0.5


def test_arrays_give_what_numbers_give(link: PLogP) -> None:
    sizes = np.array([0.0, 30.0, 150.0, 900.0])
    for reading in (link.gap, link.one_way):
        found = reading(sizes)
        assert isinstance(found, np.ndarray)
        assert found.tolist() == pytest.approx([reading(float(size)) for size in sizes])
    assert isinstance(link.gap(30), float)


def test_a_lone_message_takes_latency_and_gap_unless_measured(link: PLogP) -> None:
    by_model = replace(link, one_way_s=())
    assert by_model.one_way(100) == pytest.approx(1.3)
    assert by_model.one_way(np.array([0.0, 50.0])).tolist() == pytest.approx([1.1, 1.2])


@pytest.mark.parametrize("sizes", [(), (0,), (0, 0, 1), (0, 2, 1)])
def test_sizes_are_two_or_more_and_ascend(link: PLogP, sizes: tuple[int, ...]) -> None:
    values = (1.0,) * len(sizes)
    with pytest.raises(UsageError, match=r"sizes_bytes: need two or more, ascending; got \("):
        PLogP(1.0, sizes, values, values, values)


@pytest.mark.parametrize("field", ["gap_s", "send_s", "recv_s", "one_way_s"])
@pytest.mark.parametrize("values", [(0.1, 0.2), (0.1, 0.2, -0.1), (0.1, math.nan, 0.2)])
def test_each_table_has_a_sane_value_per_size(
    link: PLogP, field: str, values: tuple[float, ...]
) -> None:
    with pytest.raises(UsageError, match=rf"^{field}: (2 values for 3 sizes|must be finite)"):
        replace(link, **{field: values})


@pytest.mark.parametrize("latency_s", [-1e-9, math.nan, math.inf])
def test_latency_is_sane(link: PLogP, latency_s: float) -> None:
    with pytest.raises(UsageError, match="latency_s: must be finite and not negative, got"):
        replace(link, latency_s=latency_s)


@given(st.floats(0, 1), st.floats(1e3, 1e11), st.integers(0, 1 << 34))
def test_a_linear_link_is_overhead_plus_bytes_over_rate(
    latency_s: float, bytes_per_s: float, n_bytes: int
) -> None:
    link = linear_plogp(latency_s, bytes_per_s, overhead_s=1e-5)
    assert link.latency_s == latency_s
    assert link.gap(n_bytes) == pytest.approx(1e-5 + n_bytes / bytes_per_s, rel=1e-6)
    assert link.one_way(n_bytes) == pytest.approx(latency_s + link.gap(n_bytes))


@given(
    st.floats(0, 1), st.floats(1e3, 1e11), st.integers(2, LONG_BYTES - 1), st.integers(0, 1 << 34)
)
def test_an_announced_message_takes_a_round_trip_longer(
    latency_s: float, bytes_per_s: float, announced_bytes: int, n_bytes: int
) -> None:
    plain = linear_plogp(latency_s, bytes_per_s)
    link = linear_plogp(latency_s, bytes_per_s, announced_bytes=announced_bytes)
    assert link.gap(n_bytes) == pytest.approx(plain.gap(n_bytes))
    longer_s = 2 * latency_s if n_bytes >= announced_bytes else 0.0
    assert link.one_way(n_bytes) == pytest.approx(plain.one_way(n_bytes) + longer_s)


@pytest.mark.parametrize("announced_bytes", [-1, 1, LONG_BYTES, 2 * LONG_BYTES])
def test_the_size_of_announced_messages_is_sane(announced_bytes: int) -> None:
    with pytest.raises(UsageError, match="sizes_bytes"):
        linear_plogp(1e-3, 1e7, announced_bytes=announced_bytes)
