from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.errors import UsageError
from gridcoll.topology.units import (
    format_duration,
    format_rate,
    format_size,
    parse_duration_s,
    parse_rate_bytes_per_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5.2 ms", 5.2e-3), ("60us", 60e-6), ("60 µs", 60e-6), ("60 μs", 60e-6),
        ("7 ns", 7e-9), ("1 s", 1.0), (" 1e-3 s ", 1e-3), ("0 s", 0.0),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100 Mbit/s", 12.5e6), ("12.5 MB/s", 12.5e6), ("1 Gbit/s", 125e6),
        ("8 bit/s", 1.0), ("1 kB/s", 1000.0),
    ],
)  # fmt: skip
def test_rates(text: str, rate: float) -> None:
    assert parse_rate_bytes_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("8", 8), ("8 B", 8), ("64K", 65536), ("64 KB", 65536), ("64 KiB", 65536),
        ("64 kB", 64000), ("1M", 1 << 20), ("1 MB", 10**6), ("2 GiB", 2 << 30), ("1.5K", 1536),
    ],
)  # fmt: skip
def test_sizes(text: str, n_bytes: int) -> None:
    assert parse_size_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["5.2", "5.2 m", "ms", "", "-1 ms", "5 ms 3", "five ms", "5 MS"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="expected a number and one of the units ns, us"):
        parse_duration_s(text)


def test_a_number_with_two_points() -> None:
    with pytest.raises(UsageError, match=r"rate '1\.2\.3 B/s': '1\.2\.3' is not a number"):
        parse_rate_bytes_per_s("1.2.3 B/s")


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_duration_s, "1e999 s", "duration '1e999 s': too large"),
        (parse_rate_bytes_per_s, "1e308 Gbit/s", "rate '1e308 Gbit/s': too large"),
        (parse_size_bytes, "1e999", "size '1e999': too large"),
    ],
)
def test_beyond_every_float(parse: Callable[[str], float], text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == said


def test_formats() -> None:
    assert format_duration(5.2e-3) == "5.2 ms"
    assert format_duration(12.34567) == "12.3 s"
    assert format_duration(60e-6) == "60 us"
    assert format_duration(5e-9) == "5 ns"
    assert format_duration(0.0) == "0 s"
    assert format_duration(float("inf")) == "inf"
    assert format_rate(12.5e6) == "100 Mbit/s"
    assert format_rate(125e6) == "1 Gbit/s"
    assert format_rate(1.0) == "8 bit/s"
    assert format_size(65536) == "64 KiB"
    assert format_size(1 << 20) == "1 MiB"
    assert format_size(1000) == "1000 B"


@given(st.floats(1e-8, 1e4))
def test_durations_survive_formatting(seconds: float) -> None:
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds, rel=5.1e-3)


@given(st.floats(1.0, 1e12))
def test_rates_survive_formatting(rate: float) -> None:
    assert parse_rate_bytes_per_s(format_rate(rate)) == pytest.approx(rate, rel=5.1e-4)


@given(st.integers(0, 1 << 40))
def test_sizes_survive_formatting(n_bytes: int) -> None:
    assert parse_size_bytes(format_size(n_bytes)) == pytest.approx(n_bytes, rel=5.1e-4)
