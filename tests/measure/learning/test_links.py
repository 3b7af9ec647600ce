"""A model that follows what was found of links."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.measure.learning import links
from gridcoll.measure.learning.changes import (
    LinkFactors,
    Pair,
    Route,
    changed_model,
    found_of,
    is_thinner,
    scaled,
)
from gridcoll.measure.learning.links import glance_of, look_at_links
from gridcoll.measure.learning.slow_hosts import explained_links
from gridcoll.model import GridModel, SlowHosts, linear_plogp
from tests.plan.grids import model_of

MODEL = model_of([0, 0, 1, 1, 2, 2], native_s=1.0, together=1e8)


def test_links_that_are_as_they_were_change_nothing() -> None:
    found = {(a, b): LinkFactors(1.1, 0.9) for a in range(3) for b in range(3) if a != b}
    assert changed_model(MODEL, found) is None


def test_only_the_link_that_changed_is_another_one() -> None:
    changed = changed_model(MODEL, {(0, 1): LinkFactors(1.0, 10.0), (0, 2): LinkFactors(1.0, 1.0)})
    assert changed is not None
    assert changed.link(0, 1).gap(1 << 20) == pytest.approx(
        10 * MODEL.link(0, 1).gap(1 << 20), rel=0.01
    )
    assert changed.link(0, 2) == MODEL.link(0, 2)
    assert not changed.native, "natives were timed on another network"


@pytest.mark.parametrize(
    ("latency", "inside", "ends", "together"),
    [
        (1.0, 1.0, None, 12.5e6 / 4),
        (4.0, 1.0, None, 1e8 / 4),
        (1.0, 4.0, None, 1e8 / 4),
        (1.0, 4.0, (1, 0), 1e8 / 4),
        (1.0, 4.0, (1, 2), 12.5e6 / 4),
    ],
)
def test_a_thinner_link_is_full_by_one_flow(
    latency: float, inside: float, ends: tuple[int, int] | None, together: float
) -> None:
    """Not where a longer way, or the coordinator's slower interface, slows every flow by itself."""
    model = model_of([0, 0, 0, 1, 1], together=1e8)
    found = {(0, 1): LinkFactors(latency, 4.0), (0, 0): LinkFactors(1.0, inside, ends)}
    changed = changed_model(model, found)
    assert changed is not None
    assert changed.aggregate_bytes_per_s[0][1] == pytest.approx(together, rel=0.01)
    assert changed.aggregate_bytes_per_s[1][0] == model.aggregate_bytes_per_s[1][0]


@pytest.mark.parametrize(
    "found", [LinkFactors(5.0, 1.0), LinkFactors(1.0, 0.1), LinkFactors(5.0, 10.0)]
)
def test_latency_and_rate_are_scaled_apart(found: LinkFactors) -> None:
    link = linear_plogp(10e-3, 1e7)
    after = scaled(link, found)
    assert after.latency_s == pytest.approx(link.latency_s * found.latency)
    assert after.gap_s[0] == link.gap_s[0]
    rise = (after.gap_s[1] - after.gap_s[0]) / (link.gap_s[1] - link.gap_s[0])
    assert rise == pytest.approx(found.gap)


@pytest.mark.parametrize(
    "found", [LinkFactors(5.0, 1.0), LinkFactors(1.0, 10.0), LinkFactors(5.0, 10.0)]
)
def test_a_glance_tells_a_link_that_is_back_by_few_bytes(found: LinkFactors) -> None:
    worse = changed_model(MODEL, {(0, 1): found, (1, 0): found})
    assert worse is not None
    glance = glance_of(worse, MODEL, (0, 1))
    link, old = worse.link(0, 1), MODEL.link(0, 1)
    assert glance.expected_s == pytest.approx(link.one_way(glance.n_bytes) + link.one_way(0))
    back_s = old.one_way(glance.n_bytes) + old.one_way(0)
    assert back_s < 0.8 * glance.better_s < 0.8 * glance.expected_s
    assert glance.expected_s < 20 * link.one_way(0), "a look would be as cheap"
    if found.gap == 1.0:
        assert glance.n_bytes == 0


def test_a_glance_at_a_link_as_it_was_measured() -> None:
    glance = glance_of(MODEL, None, (0, 1))
    assert glance.n_bytes
    assert glance.better_s == pytest.approx(0.75 * glance.expected_s)


def test_what_links_have_over_others() -> None:
    worse = changed_model(MODEL, {(0, 2): LinkFactors(2.0, 10.0)})
    assert worse is not None
    found = found_of(worse, MODEL)
    assert list(found) == [(0, 2)]
    assert found[0, 2].latency == pytest.approx(2.0)
    assert found[0, 2].gap == pytest.approx(10.0, rel=0.1)
    assert not found_of(MODEL, MODEL)


class Opening:
    """A link whose round trip is ``trip_s``: a long train waits once for its window to open."""

    active = True

    def __init__(self, trip_s: float) -> None:
        self._trip_s, self.gap_s = trip_s, 2.6e-3

    def agree(self, value: int) -> int:
        return value

    def round_trip_s(self, _n_bytes: int) -> float:
        return self._trip_s

    def train(self, _n_bytes: int, n: int) -> tuple[float, float]:
        stall_s = self._trip_s if n > links.SHORT_TRAIN else 0.0
        half_s = self._trip_s + stall_s + n // 2 * self.gap_s
        return half_s, half_s + (n - n // 2) * self.gap_s

    def train_s(self, n_bytes: int, n: int) -> float:
        return self.train(n_bytes, n)[1]


def test_a_longer_way_is_no_thinner_one() -> None:
    channel = Opening(30e-3)
    gap_s, _ = links._gap_s(channel, 30e-3, channel.gap_s, 3.0)  # type: ignore[arg-type]
    assert gap_s == pytest.approx(channel.gap_s)


class Doubling(Opening):
    """A link that was thin: the window of its connection doubles with every train."""

    def __init__(self, trip_s: float, gap_s: float, window: int) -> None:
        super().__init__(trip_s)
        self.gap_s, self._window = gap_s, window

    def train(self, _n_bytes: int, n: int) -> tuple[float, float]:
        took_s = self._trip_s + n * max(self.gap_s, self._trip_s / self._window)
        self._window *= 2
        return took_s / 2, took_s


@pytest.mark.parametrize("window", [1, 2, 4, 64])
def test_a_link_that_recovered_is_seen_at_its_full_rate(window: int) -> None:
    channel = Doubling(20e-3, 2.6e-3, window)
    gap_s, _ = links._gap_s(channel, 20e-3, channel.gap_s)  # type: ignore[arg-type]
    assert gap_s == pytest.approx(channel.gap_s, rel=0.05)


class Counted(Opening):
    """A link whose window is open, with trains counted."""

    def __init__(self, trip_s: float, gap_s: float) -> None:
        super().__init__(trip_s)
        self.gap_s, self.n_trains = gap_s, 0

    def train(self, _n_bytes: int, n: int) -> tuple[float, float]:
        self.n_trains += 1
        return self._trip_s + n // 2 * self.gap_s, self._trip_s + n * self.gap_s


@pytest.mark.parametrize(
    ("gap", "n_trains"),
    [
        (1.0, 2),  # as it was: a short train, and a longer one
        (30.0, 1),  # so thin that any window is open: a short one
        (3.0, 2),  # may be a window: a short one again
        (0.5, 4),  # better: both again, as windows may hide how much
    ],
)
def test_trains_are_repeated_where_that_can_tell_more(gap: float, n_trains: int) -> None:
    channel = Counted(10e-3, gap * 2.6e-3)
    gap_s, _ = links._gap_s(channel, 10e-3, 2.6e-3)  # type: ignore[arg-type]
    assert gap_s == pytest.approx(channel.gap_s)
    assert channel.n_trains == n_trains


class Trips(Opening):
    """A link with these round trips."""

    def __init__(self, trips_s: Sequence[float]) -> None:
        super().__init__(0.0)
        self.trips_s = list(trips_s)

    def round_trip_s(self, _n_bytes: int) -> float:
        return self.trips_s.pop(0)


@pytest.mark.parametrize(
    ("trips_s", "trip_s", "n_trips"),
    [
        ([11e-3, 10e-3, 10e-3], 11e-3, 1),  # as by the model
        ([30e-3, 11e-3, 10e-3], 11e-3, 2),  # the first one was disturbed
        ([52e-3, 51e-3, 10e-3], 51e-3, 2),  # longer, and that is confirmed
        ([52e-3, 90e-3, 70e-3], 52e-3, 3),  # never confirmed
    ],
)
def test_a_round_trip_counts_when_another_one_confirms_it(
    trips_s: list[float], trip_s: float, n_trips: int
) -> None:
    channel = Trips(trips_s)
    assert links._confirmed_trip_s(channel, [10e-3]) == pytest.approx(trip_s)  # type: ignore[arg-type]
    assert len(channel.trips_s) == len(trips_s) - n_trips


class Slowly(Counted):
    """A link that became longer, with a window that grows by a third with every train."""

    def __init__(self, trip_s: float, gap_s: float, slower: float) -> None:
        super().__init__(trip_s, gap_s)
        self._slower = slower

    def train(self, n_bytes: int, n: int) -> tuple[float, float]:
        super().train(n_bytes, n)
        gap_s = max(self.gap_s, self._slower * 2.6e-3) if n > links.SHORT_TRAIN else self.gap_s
        self._slower /= 1.3
        return self._trip_s + n // 2 * gap_s, self._trip_s + n * gap_s


@pytest.mark.parametrize(
    ("gap", "slower", "opens", "n_trains"),
    [
        (1.0, 1.0, False, 2),  # open: a short train and a longer one
        (1.0, 4.0, True, 3),  # opening: a second longer one shows it
        (3.0, 1.0, False, 4),  # thinner as well: a second of both is as slow
        (3.0, 9.0, True, 4),  # may be thinner: the next look tells
    ],
)
def test_a_window_that_opens_over_a_longer_link_is_not_waited_for(
    gap: float, slower: float, opens: bool, n_trains: int
) -> None:
    channel = Slowly(50e-3, gap * 2.6e-3, slower)
    gap_s, still_opens = links._gap_s(channel, 50e-3, 2.6e-3, 5.0)  # type: ignore[arg-type]
    assert still_opens == opens
    assert opens or gap_s == pytest.approx(channel.gap_s)
    assert channel.n_trains == n_trains


def test_only_gaps_that_changed_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latencies are, on all routes that changed in any way."""
    channel = Slowly(2 * 5 * MODEL.link(0, 1).one_way(0), 2.6e-3, 1.0)
    monkeypatch.setattr(links, "channel_over", lambda *_: channel)
    there, back = ((0, 1), (0, 2)), ((1, 0), (2, 0))
    opening = LinkFactors(5.0, 2.3, open_gap=1.0)
    for before, is_measured in (
        ({}, True),
        ({there: LinkFactors(5.0, 1.1), back: opening}, False),
        ({there: opening, back: LinkFactors(5.0, 2.3)}, True),
    ):
        channel.n_trains = 0
        found = dict(links._compare_both_ways(None, True, 2, MODEL, there, before))  # type: ignore[arg-type]
        assert found.keys() == {there, back}
        assert found[there].latency == found[back].latency == pytest.approx(5.0)
        assert bool(channel.n_trains) == is_measured
        for route in found.keys() & before.keys():
            assert before[route].nearer(found[route]).waits == before[route].waits


LINK_RATE = links.MESSAGE_BYTES / MODEL.link(0, 1).gap(links.MESSAGE_BYTES)


def look_at_a_slow_flow(
    monkeypatch: pytest.MonkeyPatch, gaps: tuple[float, float], together_bytes_per_s: float
) -> tuple[LinkFactors, set[Pair], list[int]]:
    """What is found of a link whose flow has these ``gaps`` at two looks, while several carry so
    much; the pairs that were looked at together, and how many ways were looked at each time.
    """
    together: set[Pair] = set()
    n_ways: list[int] = []

    def passed(
        _c: object, _t: object, _m: object, rounds: list[list[Route]], before: object = None
    ) -> dict[Route, LinkFactors]:
        assert bool(before) == bool(n_ways), "the second comparison is given what the first found"
        gap = gaps[len(n_ways)]
        n_ways.append(sum(map(len, rounds)))
        ends = {way: gap if set(way[0]) == {0, 1} else 1.0 for ways in rounds for way in ways}
        return {
            way: LinkFactors(1.0, each)
            for (pair, at), each in ends.items()
            for way in ((pair, at), (pair[::-1], at[::-1]))
        }

    def looked(*args: object) -> dict[Pair, float]:
        pairs = [pair for ways in args[3] for pair in ways]  # type: ignore[attr-defined]
        together.update(pairs)
        return dict.fromkeys(pairs, together_bytes_per_s)

    monkeypatch.setattr(links, "_compare_rounds", passed)
    monkeypatch.setattr(links, "measure_flows_together", looked)
    found = look_at_links(MPI.COMM_SELF, None, MODEL)[0, 1]  # type: ignore[arg-type]
    return found, together, n_ways


def test_a_thin_link_is_told_from_a_small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """By several flows: of a thin link they are the second look, and what it carries."""
    rate, before = LINK_RATE / 4, MODEL.aggregate_bytes_per_s[0][1]
    for carried, together, n_looks in ((rate, rate, 1), (2 * rate, before, 2)):
        found, pairs, n_ways = look_at_a_slow_flow(monkeypatch, (4.0, 4.0), carried)
        assert pairs == {(0, 1)}, "both directions are alike"
        assert len(n_ways) == n_looks
        changed = changed_model(MODEL, {(0, 1): found})
        assert changed is not None
        assert changed.aggregate_bytes_per_s[0][1] == pytest.approx(together)
        assert found.gap == 4.0
    assert not found.is_like(replace(found, together_bytes_per_s=rate))
    assert found.opened().gap == pytest.approx(2.0)
    assert not replace(found, open_gap=1.0).opened().changed
    assert not replace(found, open_gap=3.0).waits
    assert replace(found, gap=1.4, open_gap=0.5).opened().gap == 1.0


def test_what_disturbed_one_flow_is_no_thin_link(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, n_ways = look_at_a_slow_flow(monkeypatch, (4.0, 1.0), 2 * LINK_RATE)
    assert len(n_ways) == 2
    assert not found.changed


SLOW_HOST = 4


def look_of(
    model: GridModel, monkeypatch: pytest.MonkeyPatch, slow: Collection[int] = (SLOW_HOST,)
) -> tuple[dict[Pair, LinkFactors], set[int]]:
    """What a look finds that ``slow`` ranks make three times slower, and whom it asked."""
    asked: set[int] = set()

    def seen_by(way: Route) -> list[tuple[Route, LinkFactors]]:
        asked.update(way[1])
        gap = 3.0 if set(slow) & set(way[1]) else 1.0
        return [(way, LinkFactors(1.0, gap)), ((way[0][::-1], way[1][::-1]), LinkFactors(1.0, gap))]

    def passed(
        _c: object, _t: object, _m: object, rounds: list[list[Route]], *_: object
    ) -> dict[Route, LinkFactors]:
        for ways in rounds:
            ranks = [rank for _, ends in ways for rank in ends]
            assert len(ranks) == len(set(ranks)), "pairs of a round share a rank"
        return dict(each for ways in rounds for way in ways for each in seen_by(way))

    monkeypatch.setattr(links, "_compare_rounds", passed)
    return look_at_links(None, None, model), asked  # type: ignore[arg-type]


def test_a_glance_inside_a_cluster_is_no_shorter_than_a_call() -> None:
    """Processes of busy hosts come milliseconds late to it."""
    worse = changed_model(MODEL, {(1, 1): LinkFactors(1.0, 3.0)})
    assert worse is not None
    glance = glance_of(worse, MODEL, (1, 1))
    assert glance.expected_s >= MODEL.link(0, 1).latency_s > 2 * glance_s(MODEL, 4 << 10)
    assert glance_s(MODEL, glance.n_bytes) < 0.8 * glance.better_s < 0.8 * glance.expected_s


def glance_s(model: GridModel, n_bytes: int) -> float:
    link = model.link(1, 1)
    return link.one_way(n_bytes) + link.one_way(0)


def level(labels: list[int]) -> GridModel:
    """The same link between all hosts of all clusters."""
    model = model_of(labels, together=1e8)
    n = range(model.n_clusters)
    return replace(model, links=tuple(tuple(model.link(0, 1) for _ in n) for _ in n))


def test_a_look_finds_a_slow_host_that_is_no_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is slower than the links; inside, faster interfaces hold up nobody."""
    model = level([0, 0, 1, 1, 1, 2])
    link = model.link(0, 1)
    found, asked = look_of(model, monkeypatch)
    assert [pair for pair, each in found.items() if each.changed] == [(1, 1)]
    assert asked == set(range(6))
    changed = changed_model(model, found)
    assert changed is not None
    assert changed.links == model.links
    assert changed.slow_hosts == (SlowHosts(1, ("host4",), 3.0),)
    again = found_of(changed, model)
    assert list(again) == [(1, 1)]
    assert again[1, 1].is_like(found[1, 1])
    ends = found[1, 1].ends
    assert ends is not None
    assert SLOW_HOST in ends
    assert again[1, 1].ends is not None
    glance = glance_of(changed, model, (1, 1), ends)
    assert glance.ends == ends
    assert 2 * link.one_way(glance.n_bytes) < glance.expected_s
    fast = linear_plogp(1e-6, 1e12)
    rows = tuple(tuple(fast if a == b else link for b in range(3)) for a in range(3))
    found, _ = look_of(replace(model, links=rows), monkeypatch)
    assert not any(each.changed for each in found.values())


@pytest.mark.parametrize(
    ("n_hosts", "slow"),
    [
        *((3, {0}), (3, {1}), (3, {2}), (4, {0}), (4, {3}), (4, {0, 2}), (5, {1}), (5, {0, 2})),
        *((6, {5}), (8, {0, 1, 2}), (3, {0, 1, 2}), (2, {0}), (2, {1})),
        *((2, {0, 1}), (4, {0, 1, 2, 3})),
    ],
)
def test_a_look_tells_which_hosts_are_slow(
    monkeypatch: pytest.MonkeyPatch, n_hosts: int, slow: set[int]
) -> None:
    """By pairs with hosts that are not, and by flows elsewhere. If there is neither, all are."""
    model = level([0] * n_hosts + [1, 1])
    found, _ = look_of(model, monkeypatch, slow)
    changed = changed_model(model, found)
    assert changed is not None
    if len(slow) == n_hosts:
        assert not changed.slow_hosts
        assert changed.link(0, 0) != model.link(0, 0)
        return
    hosts = tuple(f"host{rank}" for rank in sorted(slow))
    assert changed.slow_hosts == (SlowHosts(0, hosts, 3.0),)
    assert changed.links == model.links, "other hosts use the links, too"
    assert not found[0, 0].is_like(replace(found[0, 0], slow_hosts=()))


def test_a_slow_coordinator_is_told_by_its_own_neighbour() -> None:
    """Even if another pair of its cluster is a little slower; not if that pair is much slower."""
    model = level([0, 0, 0, 0, 1, 1])
    for other, ends in ((3.2, (0, 1)), (6.0, (2, 3))):
        by_route = {
            ((0, 0), (2, 3)): LinkFactors(1.0, other),
            ((0, 0), (0, 1)): LinkFactors(1.0, 3.0),
            ((0, 1), (0, 4)): LinkFactors(1.0, 3.0),
        }
        found = links._slowest(model, by_route)
        assert found[0, 0].ends == ends
        assert found[0, 1].ends == (0, 4)
        assert is_thinner(model, (0, 1), found) == (other == 6.0)


def test_pairs_inside_clusters_are_measured_beside_those_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three clusters one is always free, and of its hosts all but the coordinator."""
    n_rounds: list[int] = []

    def passed(
        _c: object, _t: object, _m: object, rounds: list[list[Route]], *_: object
    ) -> dict[Route, LinkFactors]:
        n_rounds.append(len(rounds))
        return {way: LinkFactors(1.0, 1.0) for ways in rounds for way in ways}

    monkeypatch.setattr(links, "_compare_rounds", passed)
    look_at_links(None, None, level([0] * 4 + [1] * 4 + [2] * 4))  # type: ignore[arg-type]
    assert n_rounds == [3]


def test_a_slow_coordinator_does_not_hide_that_a_link_is_thinner() -> None:
    model = level([0, 0, 0, 1])
    thin = {(0, 1): LinkFactors(1.0, 10.0), (0, 0): LinkFactors(1.0, 3.0, slow_hosts=("host0",))}
    assert explained_links(model, 0, thin) == {}
    thin[0, 1] = LinkFactors(1.0, 3.2)
    assert explained_links(model, 0, thin) == {(0, 1): LinkFactors(1.0, 1.0)}
    thin[0, 0] = LinkFactors(1.0, 3.0, (1, 0), slow_hosts=("host1",))
    assert explained_links(model, 0, thin) == {}
    assert is_thinner(model, (0, 1), thin), "its neighbour's interface explains nothing"
