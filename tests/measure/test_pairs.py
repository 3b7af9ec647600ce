"""pLogP with few messages, on links that take what their numbers say."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from benchmarks.reference_link import ReferenceLink
from gridcoll.measure import pairs
from gridcoll.measure.landmarks import quick_latency
from gridcoll.measure.pairs import BUDGET_BYTES, MOST_TRIPS, disjoint_rounds, quick_plogp
from gridcoll.topology import Grid

LATENCIES_S = (20e-6, 200e-6, 2e-3, 12e-3, 80e-3)
RATES = (0.25e6, 2.5e6, 12.5e6, 125e6, 1.2e9)


@pytest.mark.parametrize("window_bytes", [float("inf"), 1 << 18])
@pytest.mark.parametrize("bytes_per_s", RATES)
@pytest.mark.parametrize("latency_s", LATENCIES_S)
def test_what_the_link_is(latency_s: float, bytes_per_s: float, window_bytes: float) -> None:
    """Within 10 %, from sizes that were measured and to others; and no more than it may carry."""
    link = ReferenceLink(latency_s, bytes_per_s, window_bytes)
    found = quick_plogp(link)
    assert found is not None
    assert found.latency_s == pytest.approx(latency_s, rel=0.1)
    assert found.send_s[0] == found.recv_s[0] == 20e-6
    for n_bytes in (0, 1 << 10, 1 << 13, 50_000, 1 << 16, 1 << 18, 1 << 20):
        assert found.gap(n_bytes) == pytest.approx(link.gap_s(n_bytes), rel=0.1)
    assert link.n_bytes <= BUDGET_BYTES
    assert link.n_trips <= 60


def test_a_kink_is_found() -> None:
    """Longer messages wait for the other end first: sizes around that are measured, too."""

    class Rendezvous(ReferenceLink):
        def gap_s(self, n_bytes: int) -> float:
            return super().gap_s(n_bytes) + (4e-3 if n_bytes > 1 << 14 else 0.0)

    link = Rendezvous(2e-3, 125e6)
    found = quick_plogp(link)
    assert found is not None
    assert 1 << 15 in found.sizes_bytes
    assert found.gap(1 << 13) == pytest.approx(link.gap_s(1 << 13), rel=0.1)
    assert found.gap(1 << 15) == pytest.approx(link.gap_s(1 << 15), rel=0.1)


@pytest.mark.parametrize("budget_bytes", [1 << 17, 1 << 19, 1 << 21])
@pytest.mark.parametrize("bytes_per_s", RATES)
def test_a_budget_is_kept(bytes_per_s: float, budget_bytes: int) -> None:
    link = ReferenceLink(5e-3, bytes_per_s)
    found = quick_plogp(link, budget_bytes)
    assert found is not None
    assert link.n_bytes <= budget_bytes


@pytest.mark.parametrize("seed", range(12))
def test_repeated_trains_leave_enough_for_the_longest_size(seed: int) -> None:
    """It shows that the handshake of each message of 64 KiB does not limit longer ones."""
    luck = random.Random(seed)

    class Busy(ReferenceLink):
        def gap_s(self, n_bytes: int) -> float:
            return super().gap_s(n_bytes) * (1.35 if n_bytes == 1 << 16 else 1.0)

        def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
            half_s, took_s = super().train(n_bytes, n_messages)
            busy = 1 + max(0.0, luck.gauss(0, 0.35))
            return half_s * luck.uniform(0.3, 1) * busy, took_s * busy

        def round_trip_s(self, n_bytes: int) -> float:
            return super().round_trip_s(n_bytes) + abs(luck.gauss(0, 2e-3))

    link = Busy(14e-3, 12.5e6)
    found = quick_plogp(link)
    assert found is not None
    assert max(found.sizes_bytes) >= pairs.BASE_SIZES[-1]
    assert found.gap(1 << 20) == pytest.approx(link.gap_s(1 << 20), rel=0.4)
    assert link.n_bytes <= BUDGET_BYTES


def test_time_in_proportion_needs_no_larger_sizes() -> None:
    found = quick_plogp(ReferenceLink(5e-3, 12.5e6))
    assert found is not None
    assert found.sizes_bytes == tuple(sorted(pairs.BASE_SIZES))


def test_time_in_proportion_needs_no_train_of_the_longest() -> None:
    """A lone message of that size shows it; its trains would be most of what is sent."""
    trains: list[int] = []

    class Noted(ReferenceLink):
        def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
            trains.append(n_bytes)
            return super().train(n_bytes, n_messages)

    assert quick_plogp(Noted(5e-3, 12.5e6)) is not None
    assert max(trains) == 1 << 16
    trains.clear()
    assert quick_plogp(Noted(20e-3, 125e6, window_bytes=1 << 18)) is not None
    assert max(trains) >= 1 << 18, "a window may yet limit"


@pytest.mark.parametrize("bytes_per_s", [2.5e6, 12.5e6])
@pytest.mark.parametrize("latency_s", [5e-3, 45e-3])
def test_a_handshake_is_no_part_of_the_gap(latency_s: float, bytes_per_s: float) -> None:
    """It takes a round trip before a lone long message, and before a train of them."""

    class Handshake(ReferenceLink):
        def _once_s(self, n_bytes: int) -> float:
            return 2 * self.latency_s if n_bytes >= 1 << 15 else 0.0

        def round_trip_s(self, n_bytes: int) -> float:
            return super().round_trip_s(n_bytes) + self._once_s(n_bytes)

        def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
            half_s, took_s = super().train(n_bytes, n_messages)
            return half_s + self._once_s(n_bytes), took_s + self._once_s(n_bytes)

    link = Handshake(latency_s, bytes_per_s)
    found = quick_plogp(link)
    assert found is not None
    for n_bytes in (1 << 13, 1 << 16, 1 << 18):
        assert found.gap(n_bytes) == pytest.approx(link.gap_s(n_bytes), rel=0.1)


class OpeningWindow(ReferenceLink):
    """TCP opens its window while the first megabytes pass: trains of long messages are slower."""

    opens_bytes: int = 2 << 20
    handshake_from: int = 1 << 30

    def _handshake_s(self, n_bytes: int) -> float:
        return 2 * self.latency_s if n_bytes >= self.handshake_from else 0.0

    def round_trip_s(self, n_bytes: int) -> float:
        return super().round_trip_s(n_bytes) + self._handshake_s(n_bytes)

    def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
        slower = 1.5 if self.n_bytes + n_bytes * n_messages / 2 < self.opens_bytes else 1.0
        half_s, took_s = super().train(n_bytes, n_messages)
        answer_s, once_s = 2 * self.latency_s, self._handshake_s(n_bytes)
        return half_s + once_s, answer_s + slower * (took_s - answer_s) + once_s


@pytest.mark.parametrize("latency_s", [30e-3, 0.1])
@pytest.mark.parametrize("handshake_from", [1 << 30, 1 << 16])
def test_the_train_that_opens_a_window_is_not_the_rate_of_the_link(
    latency_s: float, handshake_from: int
) -> None:
    """Nor is it extrapolated to longer messages, which would have to be measured again as well."""
    link = OpeningWindow(latency_s, 12.5e6)
    link.handshake_from = handshake_from
    found = quick_plogp(link)
    assert found is not None
    for n_bytes in (1 << 13, 1 << 16, 1 << 18):
        assert found.gap(n_bytes) == pytest.approx(link.gap_s(n_bytes), rel=0.1)
    assert link.n_trips < 20


def test_a_train_shows_a_far_link_though_messages_begin_with_a_handshake() -> None:
    """That is no part of the time by which the number of messages is chosen: two would be few."""
    trains: list[tuple[int, int]] = []

    class Noted(OpeningWindow):
        handshake_from = 1 << 16

        def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
            trains.append((n_bytes, n_messages))
            return super().train(n_bytes, n_messages)

    link = Noted(0.1, 6.25e6)
    assert quick_plogp(link) is not None
    first = next(n for n_bytes, n in trains if n_bytes == 1 << 16)
    assert first * link.gap_s(1 << 16) > 2 * link.latency_s


def test_handshakes_that_limit_a_size_do_not_limit_longer_ones() -> None:
    """Few messages are under way at once, and each of 64 KiB waits for its handshake."""

    class Waits(ReferenceLink):
        def gap_s(self, n_bytes: int) -> float:
            return super().gap_s(n_bytes) * (2.0 if n_bytes == 1 << 16 else 1.0)

        def _alone(self, n_bytes: int) -> float:
            return n_bytes / self.bytes_per_s

    link = Waits(0.1, 12.5e6)
    found = quick_plogp(link)
    assert found is not None
    assert found.gap(1 << 18) == pytest.approx(link.gap_s(1 << 18), rel=0.1)


@pytest.mark.parametrize("first_bytes", [1 << 14, 40_000, 1 << 16, 100_000, 1 << 18])
def test_a_message_that_needs_no_handshake_has_none(first_bytes: int) -> None:
    """Where handshakes begin is known within a factor of two, for few more round trips."""

    class Handshake(ReferenceLink):
        def round_trip_s(self, n_bytes: int) -> float:
            waits_s = 2 * self.latency_s if n_bytes >= first_bytes else 0.0
            return super().round_trip_s(n_bytes) + waits_s

    link, plain = Handshake(12e-3, 12.5e6), ReferenceLink(12e-3, 12.5e6)
    found, known = quick_plogp(link), quick_plogp(plain)
    assert found is not None
    assert known is not None
    for n_bytes in (1 << 13, first_bytes // 2):
        assert found.one_way(n_bytes) == pytest.approx(known.one_way(n_bytes), rel=0.1)
    assert found.one_way(first_bytes * 2) > known.one_way(first_bytes * 2) + link.latency_s
    assert link.n_trips <= plain.n_trips + 6
    assert not set(pairs.BASE_SIZES) - set(found.sizes_bytes)


@pytest.mark.parametrize("latency_s", [5e-3, 8e-3, 12e-3, 20e-3, 45e-3])
def test_windows_that_open_are_no_part_of_the_gap(latency_s: float) -> None:
    """What was never under way at once takes round trips more, the first time."""

    class Opening(ReferenceLink):
        opened_bytes: int = 1 << 14

        def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
            half_s, took_s = super().train(n_bytes, n_messages)
            wanted = min(n_bytes * n_messages, 2 * self.latency_s * self.bytes_per_s)
            while self.opened_bytes < wanted:
                late_s = 2 * self.latency_s - self.opened_bytes / self.bytes_per_s
                self.opened_bytes *= 2
                half_s, took_s = (each + max(late_s, 0.0) for each in (half_s, took_s))
            return half_s, took_s

    link = Opening(latency_s, 12.5e6)
    found = quick_plogp(link)
    assert found is not None
    for n_bytes in (1 << 13, 1 << 16, 1 << 18):
        assert found.gap(n_bytes) == pytest.approx(link.gap_s(n_bytes), rel=0.15)


def test_empty_messages_are_no_more_than_a_window_of_packets() -> None:
    most: list[int] = []

    class Noted(ReferenceLink):
        def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
            if not n_bytes:
                most.append(n_messages)
            return super().train(n_bytes, n_messages)

    for latency_s in (12e-3, 50e-6):
        quick_plogp(Noted(latency_s, 12.5e6))
    assert most[0] <= 2 * pairs.MOST_EMPTY_IN_FLIGHT < most[1]


@pytest.mark.parametrize("n", range(2, 12))
def test_rounds_share_no_cluster(n: int) -> None:
    wanted = [*combinations(range(n), 2), *((c, c) for c in range(n))]
    rounds = disjoint_rounds(wanted)
    assert sorted(pair for each in rounds for pair in each) == sorted(wanted)
    for each in rounds:
        clusters = [cluster for pair in each for cluster in set(pair)]
        assert len(clusters) == len(set(clusters))
    assert len(rounds) <= n - 1 + n % 2 + 1


def test_inside_clusters_while_between_them() -> None:
    """Where a cluster has hosts enough, others than its coordinator measure inside."""
    wanted = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (0, 2)]
    several = Grid.from_labels([0] * 4 + [1] * 3 + [2] * 5)
    rounds = pairs._packed(several, disjoint_rounds(wanted))
    assert len(rounds) == 3
    assert {(c, c) for c in range(3)} < set(rounds[0])
    for each in rounds:
        ranks = [rank for pair in each for rank in pairs.representatives(several, *pair)]
        assert len(set(ranks)) == len(ranks)
    few = Grid.from_labels([0] * 4 + [1] * 2 + [2] * 5)
    assert pairs._packed(few, disjoint_rounds(wanted)) == disjoint_rounds(wanted)
    assert set(pairs.representatives(few, 1, 1)) == {4, 5}
    one_host = Grid.from_labels([0, 0, 0, 1, 1, 1], ["a", "a", "a", "b", "c", "d"])
    assert set(pairs.representatives(one_host, 0, 0)) == {0, 1}
    assert pairs._packed(one_host, disjoint_rounds([(0, 0), (0, 1)])) == [[(0, 0)], [(0, 1)]]
    assert pairs._packed(several, [[(0, 1)]]) == [[(0, 1)]]
    assert pairs._packed(several, []) == []


def test_some_pairs_only() -> None:
    assert disjoint_rounds([(3, 1)]) == [[(3, 1)]]
    assert disjoint_rounds([]) == []


@pytest.mark.parametrize("latency_s", LATENCIES_S)
def test_latency_takes_few_trips(latency_s: float) -> None:
    link = ReferenceLink(latency_s, 1e8)
    shortest_s, typical_s = quick_latency(link)
    assert shortest_s == typical_s == pytest.approx(latency_s + 20e-6)
    assert 2 <= link.n_trips <= MOST_TRIPS + 1
    assert link.n_trips * latency_s < 0.2
    assert (link.n_trips == 2) == (latency_s > 5e-3)
    assert np.isfinite(shortest_s)


def test_a_busy_moment_does_not_make_a_link_fast() -> None:
    """The first train of 64 KiB meets one: it looks like a smaller gap, and is sent again."""
    met: list[int] = []

    class Busy(ReferenceLink):
        def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
            half_s, took_s = super().train(n_bytes, n_messages)
            if n_bytes == 1 << 16 and not met:
                met.append(n_messages)
                took_s += 0.45 * n_messages * self.gap_s(n_bytes)
            return half_s, took_s

    link = Busy(20e-6, 12.5e6)
    found = quick_plogp(link)
    assert met
    assert found is not None
    assert found.gap(1 << 16) == pytest.approx(link.gap_s(1 << 16), rel=0.1)


def test_a_busy_moment_adds_no_sizes() -> None:
    """Trains of 64 KiB meet one: the gap is not in proportion, until it is measured again."""
    met: list[int] = []

    class Busy(ReferenceLink):
        def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
            half_s, took_s = super().train(n_bytes, n_messages)
            if n_bytes == 1 << 16 and len(met) < 2:
                met.append(n_messages)
                took_s += n_messages * self.gap_s(n_bytes)
            return half_s, took_s

    link = Busy(12e-3, 12.5e6)
    found = quick_plogp(link)
    assert len(met) == 2
    assert found is not None
    assert found.gap(1 << 16) == pytest.approx(link.gap_s(1 << 16), rel=0.1)
    assert found.sizes_bytes == tuple(sorted(pairs.BASE_SIZES))


class BusyHost(ReferenceLink):
    """Most of its round trips wait for others that use the processor."""

    def round_trip_s(self, n_bytes: int) -> float:
        took_s = super().round_trip_s(n_bytes)
        return took_s + (0.0 if self.n_trips % 6 == 0 else 3e-3 + 1e-3 * (self.n_trips % 4))


def test_a_short_latency_is_not_what_a_busy_host_adds() -> None:
    """Four of its trips take longer than is spent on a short link, and say nothing of it."""
    shortest_s, typical_s = quick_latency(BusyHost(50e-6, 1e8))
    assert shortest_s == pytest.approx(50e-6, rel=0.5)
    assert typical_s > 1e-3
    found = quick_plogp(BusyHost(50e-6, 1e8))
    assert found is not None
    assert found.latency_s == pytest.approx(50e-6, rel=0.5)


def test_a_long_link_whose_trips_do_not_agree_takes_few() -> None:
    class Jitter(ReferenceLink):
        def round_trip_s(self, n_bytes: int) -> float:
            return super().round_trip_s(n_bytes) * (1 + 0.2 * (self.n_trips % 3))

    link = Jitter(40e-3, 12.5e6)
    quick_latency(link)
    assert link.n_trips <= 3
