"""What trains of messages say of a link; the messages themselves are in tests/mpi."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.measure import probe
from gridcoll.measure.probe import Sample, fit_samples, gap_of_trains

GAP_S, EMPTY_S, N = 1e-3, 10e-3, 12


def took_s(n_messages: int, once_s: float = 0.0) -> float:
    """Of a train on a link of `GAP_S`, with the answer to its end."""
    return EMPTY_S + once_s + n_messages * GAP_S


class TestGapOfTrains:
    def test_the_difference_of_two_trains(self) -> None:
        gap_s, is_plausible = gap_of_trains(took_s(N), took_s(2 * N), N, EMPTY_S)
        assert gap_s == pytest.approx(GAP_S)
        assert is_plausible

    @pytest.mark.parametrize("once_s", [EMPTY_S, -1e-3])
    def test_what_a_train_costs_or_saves_once_is_no_gap(self, once_s: float) -> None:
        """A handshake across a WAN; a burst that an interface lets pass."""
        gap_s, is_plausible = gap_of_trains(took_s(N, once_s), took_s(2 * N, once_s), N, EMPTY_S)
        assert gap_s == pytest.approx(GAP_S)
        assert is_plausible

    @pytest.mark.parametrize("late_s", [8e-3, 30e-3])
    def test_a_disturbed_shorter_train_is_unlikely(self, late_s: float) -> None:
        """And is no reason to believe in a link that costs nothing."""
        gap_s, is_plausible = gap_of_trains(took_s(N) + late_s, took_s(2 * N), N, EMPTY_S)
        assert not is_plausible
        assert gap_s == pytest.approx(GAP_S / 2)

    @pytest.mark.parametrize("late_s", [1e-3, 3e-3, 8e-3])
    def test_inside_a_cluster_a_disturbed_train_makes_no_interface_faster(
        self, late_s: float
    ) -> None:
        """Nothing that costs so much once is known there: the longer train's average tells."""
        short_s = 0.1e-3
        took, longer = short_s + N * GAP_S + late_s, short_s + 2 * N * GAP_S
        gap_s, is_plausible = gap_of_trains(took, longer, N, short_s)
        assert gap_s == pytest.approx(GAP_S, rel=0.03)
        assert is_plausible == (late_s < 2e-3)

    def test_a_disturbed_longer_train_is_unlikely(self) -> None:
        gap_s, is_plausible = gap_of_trains(took_s(N), took_s(2 * N) + 12e-3, N, EMPTY_S)
        assert not is_plausible
        assert gap_s < 2 * GAP_S

    @given(st.floats(0, 10), st.floats(0, 10), st.integers(2, 1000), st.floats(0, 1))
    def test_it_is_a_time_whatever_was_measured(
        self, took: float, longer: float, n: int, empty: float
    ) -> None:
        gap_s, _ = gap_of_trains(took, longer, n, empty)
        assert 0 < gap_s <= 1.15 * max(longer, 1e-9)


def test_a_shorter_message_takes_no_longer_than_a_longer_one() -> None:
    """Where it did, it met a disturbance."""
    alone = {0: 0.0, 1024: 9e-3, 4096: 6e-3, 16384: 7e-3}
    link = fit_samples({size: Sample(1e-4, s, 1e-5, 1e-5) for size, s in alone.items()}, EMPTY_S)
    assert link.one_way_s == (5e-3, 6e-3, 6e-3, 7e-3)
    gaps = {0: 1e-5, 1024: 5e-4, 4096: 3e-4, 16384: 1e-3}
    link = fit_samples({size: Sample(gap, 6e-3, 1e-5, 1e-5) for size, gap in gaps.items()}, EMPTY_S)
    assert link.gap_s == (1e-5, 3e-4, 3e-4, 1e-3)


def test_a_byte_takes_as_long_in_a_short_message_as_in_a_long_one() -> None:
    """Short ones passed in a burst; if they are far shorter, long ones wait for a handshake."""
    gaps = {0: 1e-5, 1024: 0.94e-3, 8192: 0.85 * 8e-3, 1 << 20: 1.024}
    link = fit_samples({size: Sample(gap, 1.0, 1e-5, 1e-5) for size, gap in gaps.items()}, EMPTY_S)
    assert link.gap_s == pytest.approx((1e-5, 1e-3, 1.08 * gaps[8192], 1.024))
    assert link.one_way_s[1:] == (1.0, 1.0, 1.0)


class _Link:
    """The active end of a link on which messages take ``gap_s`` of their sizes; counts trains."""

    active = True

    def __init__(self, gap_s: Callable[[int], float]) -> None:
        self.gap_s, self.n_trains, self.sizes = gap_s, 0, set[int]()

    def round_trip_s(self, n_bytes: int) -> float:
        self.sizes.add(n_bytes)
        return EMPTY_S + self.gap_s(n_bytes)

    def train_s(self, n_bytes: int, n_messages: int) -> float:
        self.n_trains += 1
        return EMPTY_S + n_messages * self.gap_s(n_bytes)

    def agree(self, value: int) -> int:
        return value


@pytest.mark.parametrize(("gap_s", "n_trains"), [(20e-3, 1 + 1 + 2), (0.3, 1 + 1), (0.6, 1)])
def test_long_trains_are_sent_once(
    monkeypatch: pytest.MonkeyPatch, gap_s: float, n_trains: int
) -> None:
    """One that outlasts the round trip and one of twice as many; short ones once more.

    Where a lone message takes so long, it is the shorter train.
    """
    monkeypatch.setattr(probe, "measure_overheads", lambda *_: (0.0, 0.0))
    link = _Link(lambda n_bytes: gap_s)
    sample = probe._measure_size(link, 1 << 20, EMPTY_S)  # type: ignore[arg-type]
    assert sample.gap_s == pytest.approx(gap_s)
    assert link.n_trains == n_trains


@pytest.mark.parametrize(
    ("slower_from", "wanted"), [(1 << 30, set()), (100_000, {163_840, 114_688, 90_112, 102_400})]
)
def test_sizes_are_added_where_the_rate_changes(
    monkeypatch: pytest.MonkeyPatch, slower_from: int, wanted: set[int]
) -> None:
    """And none is tried between two that messages pass at one rate."""
    monkeypatch.setattr(probe, "measure_overheads", lambda *_: (0.0, 0.0))
    link = _Link(lambda n_bytes: n_bytes * (1e-8 if n_bytes < slower_from else 4e-8))
    found = probe.measure_plogp(link)  # type: ignore[arg-type]
    assert found is not None
    assert link.sizes - set(probe.FIRST_SIZES) == wanted


def test_sizes_are_added_where_a_handshake_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a lone message a round trip more, and is no part of the gap."""

    class Handshake(_Link):
        def round_trip_s(self, n_bytes: int) -> float:
            return super().round_trip_s(n_bytes) + (EMPTY_S if n_bytes > 40_000 else 0.0)

    monkeypatch.setattr(probe, "measure_overheads", lambda *_: (0.0, 0.0))
    link = Handshake(lambda n_bytes: n_bytes * 1e-8)
    found = probe.measure_plogp(link)  # type: ignore[arg-type]
    assert found is not None
    assert link.sizes - set(probe.FIRST_SIZES) == {1 << 15}
    assert found.one_way(1 << 15) == pytest.approx(EMPTY_S / 2 + (1 << 15) * 1e-8)
