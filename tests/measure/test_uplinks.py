"""Which clusters may have an uplink, who sends what to find it, and what counts as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.measure import uplinks
from gridcoll.measure.clusters import silent
from gridcoll.measure.flows import MESSAGE_BYTES, Stream
from gridcoll.measure.uplinks import measure_uplinks
from gridcoll.model import GridModel, linear_plogp
from gridcoll.topology import Grid

NIC, THIN = 12.5e6, 5e6
"""Bytes per second of interfaces, and of links between sites."""


def sites(sizes: tuple[int, ...], link: float) -> GridModel:
    """Hosts with interfaces of `NIC`; ``link`` bytes per second between every two clusters."""
    labels = [c for c, size in enumerate(sizes) for _ in range(size)]
    n = range(len(sizes))
    inside, between = linear_plogp(50e-6, NIC), linear_plogp(5e-3, min(NIC, link))
    return GridModel(
        Grid.from_labels(labels),
        tuple(tuple(inside if i == j else between for j in n) for i in n),
        "measured",
        aggregate_bytes_per_s=tuple(tuple(NIC if i == j else link for j in n) for i in n),
    )


def suspected(model: GridModel) -> list[int]:
    return list(uplinks._suspects(model))


def test_who_may_have_one() -> None:
    assert suspected(sites((4, 4, 4), THIN)) == [0, 1, 2]
    assert suspected(sites((4, 4, 4), 4 * NIC)) == [], "one link carries all that interfaces do"
    assert suspected(sites((4, 4, 4), 0.82 * 4 * NIC)) == [0, 1, 2], "interfaces carry more"
    assert suspected(sites((4, 4), THIN)) == [], "one link is all there is"
    assert suspected(sites((4, 1, 4), THIN)) == [0, 2], "a lone host has its interface"


def run(rates: np.ndarray, peak: float = 1.0) -> uplinks._Run:
    """A run in which all flows last as long, whose peak is ``peak`` times their rates together."""
    return uplinks._Run(rates, peak * rates.sum(axis=1))


Turn = tuple[list[int], bool, int]
"""Clusters that send at once, whether to each other as well, and how many messages."""


def turn(amounts: uplinks._Turn) -> Turn:
    senders = list(amounts.sizes)
    among = len(senders) > 1 and any(amounts.sizes[senders[0]][senders[1:]])
    return senders, among, amounts.n_messages


@pytest.mark.parametrize(
    ("together", "carried", "found"),
    [
        (2 * THIN, [], 0.0),
        (1.3 * THIN, [1.25 * THIN], 1.25 * THIN),  # by itself no more than while others sent
        (0.6 * THIN, [1.3 * THIN, 1.25 * THIN], 1.25 * THIN),  # others held it up at first
        (0.6 * THIN, [1.96 * THIN], 0.0),  # nearly what both links carry
        (0.6 * THIN, [1.9 * THIN] * 2, 0.0),  # the same, twice
        (0.6 * THIN, [0.5 * THIN, 1.9 * THIN, 1.9 * THIN], 0.0),  # a packet was lost
        (0.6 * THIN, [1.3 * THIN, 1.9 * THIN, *[1.25 * THIN] * 2], 1.25 * THIN),  # much at once
        (0.6 * THIN, [1.6 * THIN, 1.3 * THIN, 1.25 * THIN], 1.25 * THIN),  # a receiver was busy
        (0.8 * THIN, [THIN * 0.8**k for k in range(2, 7)], THIN),  # no two agree: its link's rate
    ],
)
def test_what_counts_as_one(
    monkeypatch: pytest.MonkeyPatch, together: float, carried: list[float], found: float
) -> None:
    asked: list[list[Turn]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        if turns:
            asked.append([turn(each) for each in turns])
        rates = np.full((model.n_clusters,) * 2, THIN)
        rates[0] = [0.0, *[[together, *carried][len(asked) - 1] / 2] * 2]
        return [run(rates) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    measured = measure_uplinks(MPI.COMM_SELF, sites((4, 4, 4), THIN), n_messages=10)
    assert measured == ((pytest.approx(found), 0.0, 0.0) if found else ())
    assert asked == [[([0, 1, 2], True, 10)], *[[([0], False, 10)]] * len(carried)]


@pytest.mark.parametrize(
    ("sizes", "carried", "senders"),
    [
        ((3, 1, 2), [(1, 7)] * 3 + [(2, 5)] * 3, [0, 0, 1, 1, 2, 2]),
        ((1, 5, 2), [(1, 7)] * 4 + [(2, 5)] * 2, [0] * 6),  # a lone host sends to several
    ],
)
def test_each_end_knows_the_other(
    sizes: tuple[int, ...], carried: list[tuple[int, int]], senders: list[int]
) -> None:
    """Every flow has one sender and one receiver, which count the same messages."""
    model = sites(sizes, THIN)
    flows = {
        rank: uplinks._flows_from(rank, model, 0, [0, 7, 5]) for rank in range(model.grid.n_ranks)
    }
    sent, taken = (
        sorted(
            (*((rank, flow.stream.peer)[:: 1 if sends else -1]), flow.target, flow.stream.n_bytes)
            for rank, each in flows.items()
            for flow in each
            if flow.stream.sends == sends
        )
        for sends in (True, False)
    )
    assert sent == taken
    assert sorted(flow[2:] for flow in sent) == carried
    assert [flow[0] for flow in sent] == senders, "all hosts send as much"


def test_flows_of_the_next_run_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One flow had what another should, so its messages are longer in the next run."""
    sizes: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        sizes.extend(each.sizes[0].tolist() for each in turns if list(each.sizes) == [0])
        rates = THIN * (1 - np.eye(model.n_clusters))
        rates[0, 1:] = (0.9 * THIN, 0.3 * THIN) if sizes else (0.2 * THIN, 0.2 * THIN)
        return [run(rates) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    rates = measure_uplinks(MPI.COMM_SELF, sites((4, 4, 4), THIN), n_messages=10)
    longest = MESSAGE_BYTES
    assert sizes == [[0, longest, longest], [0, longest, longest // 3]]
    assert rates == (pytest.approx(1.2 * THIN), 0.0, 0.0)


def test_lone_hosts_send_to_all_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all flows carry is an interface's rate; many hosts share a few runs."""
    asked: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        asked.extend(list(each.sizes) for each in turns)
        return [run(np.full((model.n_clusters,) * 2, THIN / 3)) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    found = measure_uplinks(MPI.COMM_SELF, sites((2, 1, 1, 1, 1, 1), THIN))
    assert asked[:4] == [[1, 5], [2], [3], [4]]
    assert found[1:] == (pytest.approx(6 * THIN / 3),) * 5
    asked.clear()
    assert measure_uplinks(MPI.COMM_SELF, sites((1, 4), THIN)) == ()
    assert not asked, "its only link shows all there is"


@pytest.mark.parametrize(
    ("carried", "looks", "shown"), [(1.8, 1, 1.8), (1.2, 2, 1.8), (0.6, 2, 1.8), (1.05, 1, 1.05)]
)
def test_a_lone_host_that_seems_slower_than_its_links_sends_again(
    monkeypatch: pytest.MonkeyPatch, carried: float, looks: int, shown: float
) -> None:
    """One of two flows waited for a lost packet, so the interface carries more than it seems to.

    It does not send again if all links together carry as much as one, since two rates agree then.
    """
    asked: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        rate = 0.9 * THIN if [1] in asked else carried / 2 * THIN
        asked.extend(list(each.sizes) for each in turns)
        return [run(rate * (1 - np.eye(3))) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    found = measure_uplinks(MPI.COMM_SELF, sites((4, 1, 4), THIN))
    assert asked.count([1]) == looks
    assert found[1] == pytest.approx(shown * THIN)


def turn_alone(model: GridModel, n_messages: int) -> uplinks._Turn:
    """What cluster 0 sends by itself."""
    rates = uplinks._outgoing_rates(model)
    expected = uplinks._without_uplinks(model)
    return uplinks._turn_of(model, rates, [0], [0], expected, n_messages)


def quick_run(bytes_per_s: float, latency_s: float = 5e-3) -> tuple[int, float]:
    """Return the messages of a quick run of one of three clusters, and the bytes on each link."""
    link = linear_plogp(latency_s, bytes_per_s)
    model = replace(sites((4, 4, 4), bytes_per_s), links=((link,) * 3,) * 3)
    turn = turn_alone(model, 0)
    return turn.n_messages, turn.n_messages * float(
        (turn.sizes[0] * uplinks._lanes(model, 0)).max()
    )


def test_a_quick_run_is_long_enough_to_tell_and_floods_no_link() -> None:
    """Ranks start apart by a latency, and a short run may end before the others begin."""
    n_near, on_link = quick_run(THIN)
    assert THIN * uplinks.RUN_S <= on_link <= 2 * THIN * uplinks.RUN_S
    n_far, on_link = quick_run(THIN, 0.1)
    assert n_far > n_near
    assert on_link >= THIN * uplinks.RUN_TRIPS * 0.2 / 2
    _, on_link = quick_run(1.25e9)
    assert uplinks.BUDGET_BYTES / 2 < on_link <= uplinks.BUDGET_BYTES


def test_uplinks_too_fast_for_the_budget_are_left_to_discovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10 Gbit/s carry the bytes in less than two round trips: windows would seem to be uplinks."""
    asked: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        asked.extend(list(each.sizes) for each in turns)
        return [run(np.ones((3, 3))) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    for link, n_messages, looks in ((THIN, 0, True), (1.25e9, 0, False), (1.25e9, 10, True)):
        asked.clear()
        inside, between = linear_plogp(50e-6, link), linear_plogp(20e-3, link)
        links = tuple(tuple(inside if a == b else between for b in range(3)) for a in range(3))
        model = sites((4, 4, 4), link)
        measure_uplinks(MPI.COMM_SELF, replace(model, links=links), n_messages=n_messages)
        assert bool(asked) == looks


@pytest.mark.parametrize(
    ("arrives", "lasts_s", "peak_s", "opening_s", "peak"),
    [
        # An uplink that carries 0.75. Much of what arrives late had waited for lost packets.
        ("60 55 74 77 74 76 77 70 43 21 21 24 69 165 194 52", 1.534, 0.42, 0.050, 0.76),
        ("56 58 73 77 74 73 75 77 56 25 25 31 109 160 120 71", 1.503, 0.42, 0.048, 0.75),
        # No uplink. Windows open in the first third.
        ("50 49 65 81 90 97 102 103 105 97 101 97 93 95 98 53", 0.470, 0.25, 0.191, 1.02),
        ("56 58 82 100 107 104 99 94 92 96 101 99 94 95 33 14", 0.581, 0.25, 0.187, 0.99),
        ("63 55 74 106 103 105 99 96 104 89 78 105 97 99 84 65", 0.106, 0.1, 0.058, 0.98),
    ],
)
def test_what_had_waited_is_no_peak(
    arrives: str, lasts_s: float, peak_s: float, opening_s: float, peak: float
) -> None:
    """Of a run in 16 steps, the rate in each, in per cent of what passes without an uplink.

    Seen on the emulated grids ``unlike-hosts`` and ``patchwork``.
    """
    steps = [0.01 * float(rate) * lasts_s / 16 for rate in arrives.split()]
    moved = np.concatenate([[0.0], np.cumsum(steps)])[:, None, None]
    times_s = (np.array([[lasts_s]]), np.array([peak_s]), np.array([opening_s]))
    assert uplinks._peaks(moved, *times_s)[0, 0] == pytest.approx(peak, abs=0.03)


def test_how_far_flows_are_behind_while_windows_open() -> None:
    """One latency, and what is missing of a full window in each round trip in which it doubles."""
    near = sites((4, 4, 4), THIN)
    assert uplinks._opening_s(near) == pytest.approx(0.5 * near.round_trip_s[0, 1])
    model = far(near, 8 * THIN)
    trip_s = float(model.round_trip_s[0, 1])
    window, full = (
        float(uplinks.INITIAL_WINDOW),
        float(uplinks._without_uplinks(model)[0] * trip_s / uplinks._lanes(model, 0)[1:].sum()),
    )
    missing = 0.0
    while window < full:
        missing += full - window
        window *= 2
    expected = trip_s * (0.5 + missing / full)
    assert uplinks._opening_s(model)[0] == pytest.approx(expected, rel=0.1)


def far(model: GridModel, bytes_per_s: float) -> GridModel:
    """The same clusters, a tenth of a second apart."""
    link = linear_plogp(0.1, bytes_per_s)
    return replace(model, links=((link,) * 3,) * 3)


def test_windows_are_open_before_anything_is_timed() -> None:
    """As many bytes pass before as a window takes to grow to its part of what a link holds."""
    near = turn_alone(sites((4, 4, 4), THIN), 0)
    assert near.n_opening == uplinks.OPENING_MESSAGES
    model = far(sites((4, 4, 4), 8 * THIN), 8 * THIN)
    n_flows = uplinks._lanes(model, 0)[1]
    on_link = turn_alone(model, 0).n_opening * MESSAGE_BYTES * n_flows
    assert on_link == pytest.approx(2 * 8 * THIN * float(model.round_trip_s[0, 1]), rel=0.2)


def test_a_link_that_holds_much_has_more_flows() -> None:
    """Each of them between other ranks, and all hosts send as much."""
    near, model = sites((4, 4, 4), THIN), far(sites((4, 4, 4), THIN), THIN)
    assert uplinks._lanes(near, 0).tolist() == [4, 4, 4]
    assert uplinks._lanes(model, 0)[1:].tolist() == [12, 12]
    pairs = [
        (rank, flow.stream.peer)
        for rank in range(4)
        for flow in uplinks._flows_from(rank, model, 0, [0, 9, 9])
        if flow.target == 1
    ]
    assert len(set(pairs)) == len(pairs) == 12
    assert [sum(rank == each for each, _ in pairs) for rank in range(4)] == [3] * 4


@pytest.mark.parametrize(("carried", "is_left"), [(0.98, False), (0.9, True), (0.7, True)])
def test_what_interfaces_of_others_limit_is_no_uplink(
    monkeypatch: pytest.MonkeyPatch, carried: float, is_left: bool
) -> None:
    """Two sites of four hosts each can send more than one of two hosts can receive."""
    model = sites((4, 2, 4), 2 * NIC)
    together = uplinks._rates_together(model, [0, 1, 2])
    assert together[0].sum() == pytest.approx(3 * NIC, rel=1e-3)
    alone: list[int] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        alone.extend(c for each in turns for c in each.sizes if len(each.sizes) == 1)
        return [run((carried if len(each.sizes) > 1 else 1.0) * together) for each in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    assert uplinks._suspects(model).keys() == {0, 2}
    measure_uplinks(MPI.COMM_SELF, model, n_messages=10)
    assert (0 in alone) == is_left


def test_what_seems_hardly_limited_sends_much_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows that recover from a loss carry too little for a while, twice in a row as well."""
    alone: list[int] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        alone.extend(each.n_messages for each in turns if [*each.sizes] == [0])
        part = 0.95 if len(alone) > 1 else 0.75
        return [run(part * THIN * (1 - np.eye(3))) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    assert measure_uplinks(MPI.COMM_SELF, sites((4, 4, 4), THIN)) == ()
    short, long, _ = alone
    assert long > 2 * short


def test_what_passes_inside_a_cluster_makes_no_run_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages and their numbers follow the rates of links to other clusters only."""
    inside: list[float] = []
    turn_of = uplinks._turn_of

    def noted(model: GridModel, rates: np.ndarray, *rest: Any) -> uplinks._Turn:
        inside.extend(rates.diagonal())
        return turn_of(model, rates, *rest)

    monkeypatch.setattr(uplinks, "_turn_of", noted)
    monkeypatch.setattr(
        uplinks,
        "_run_turns",
        lambda _comm, _model, turns, _: [run(THIN / 2 * (1 - np.eye(3)))] * len(turns),
    )
    measure_uplinks(MPI.COMM_SELF, sites((4, 4, 4), THIN))
    assert set(inside) == {0.0}


def test_slow_clusters_send_shorter_messages() -> None:
    """All flows of a run end together, those of clusters with slow interfaces as well."""
    model = sites((4, 4, 4), THIN)
    rates = uplinks._outgoing_rates(model) * np.array([[1.0], [0.25], [1.0]])
    sizes = uplinks._turn_of(model, rates, [0, 1], (), rates.sum(axis=1), 0).sizes
    assert sizes[0].tolist() == [0, MESSAGE_BYTES, MESSAGE_BYTES]
    assert sizes[1].tolist() == [MESSAGE_BYTES // 4, 0, MESSAGE_BYTES // 4]


def test_a_flow_that_carried_nothing_takes_part_in_the_next_run() -> None:
    """It may have waited for a lost packet."""
    model = sites((4, 4, 4), THIN)
    rates = uplinks._outgoing_rates(model) * np.array([1.0, 1.0, 0.0])
    sizes = uplinks._turn_of(model, rates, [0], [0], rates.sum(axis=1), 0).sizes
    assert sizes[0].tolist() == [0, MESSAGE_BYTES, uplinks.SHORTEST_BYTES]


Arrivals = list[list[float]]


def run_of_one_turn(
    monkeypatch: pytest.MonkeyPatch, arrived_s: Callable[[int], Arrivals], done: list[str]
) -> uplinks._Run:
    """Let one rank receive all flows of cluster 0, as ``arrived_s`` says for so many messages."""

    def flows(_rank: int, _: GridModel, cluster: int, sizes: list[int]) -> list[uplinks._Flow]:
        return [
            uplinks._Flow(cluster, target, Stream(0, sizes[target], False)) for target in (1, 2)
        ]

    def sent(_comm: object, _streams: object, n: int) -> Arrivals:
        done.append(f"{n} messages")
        return arrived_s(n)

    monkeypatch.setattr(uplinks, "_flows_from", flows)
    monkeypatch.setattr(uplinks, "_transfer", sent)
    monkeypatch.setattr(uplinks, "wait_for_all", lambda _comm: done.append("wait"))
    model = sites((4, 4, 4), THIN)
    turn = turn_alone(model, 20)
    (found,) = uplinks._run_turns(MPI.COMM_SELF, model, [turn], silent)
    return found


def test_all_flows_of_a_turn_start_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that starts after others gets more than its share when these end."""
    done: list[str] = []
    run_of_one_turn(monkeypatch, lambda n: [[1.0 + k for k in range(n)]] * 2, done)
    assert done[:2] == ["wait", "23 messages"]


@pytest.mark.parametrize(("last_s", "carried"), [(2.0, 2.0), (3.9, 2.0), (4.1, 1.95)])
def test_the_best_half_of_a_run_counts(
    monkeypatch: pytest.MonkeyPatch, last_s: float, carried: float
) -> None:
    """A flow that ends late may not fill the uplink by itself, but the uplink was full before."""

    def arrived_s(n: int) -> Arrivals:
        steady = [2.0 * (k + 1) / n for k in range(n)]
        return [steady, [*steady[:-1], last_s]]

    rates, peaks = run_of_one_turn(monkeypatch, arrived_s, [])
    of_one = 23 * MESSAGE_BYTES / 2.0
    assert rates[0].sum() == pytest.approx(carried * of_one, rel=0.05)
    assert peaks[0] == pytest.approx(2.0 * of_one, rel=0.05)


@pytest.mark.parametrize(
    ("arrives", "part"),
    [
        ([15] * 16, 1.0),
        ([12, 10, 8, 7, 10, 15, 20, 21, 19, 19, 17, 18, 16, 3, 3, 2], 0.85),  # 15 were carried
        ([12, 12, 14, 15, 15, 15, 15, 12, 9, 5, 5, 5, 14, 42, 29, 14], 14.7 / 15.4),
        ([1, 1, 2, 2, 4, 4, 8, 8, 15, 15, 15, 15, 15, 15, 15, 15], 0.85),  # windows open late
    ],
)
def test_what_had_waited_does_not_count(arrives: list[float], part: float) -> None:
    """Of a run in 16 steps, what arrives in each. Seen under MPICH, but for the first and last."""
    moved = np.concatenate([[0.0], np.cumsum(arrives)])[:, None, None]
    assert uplinks._sustained_part(moved) == pytest.approx(part, rel=0.01)


def test_an_uplink_counts_what_it_sustains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing arrives for an eighth of the time, then what was carried meanwhile with the rest."""

    def arrived_s(n: int) -> Arrivals:
        steady = np.linspace(4.0 / n, 4.0, n)
        late = np.where((steady > 1.5) & (steady < 2.0), 2.0 + 1e-3 * steady, steady)
        return [late.tolist()] * 2

    rates, _ = run_of_one_turn(monkeypatch, arrived_s, [])
    carried = 2 * 23 * MESSAGE_BYTES / 4.0
    assert rates[0].sum() == pytest.approx(carried, rel=0.1)


def test_windows_that_open_one_after_another_are_no_uplink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near flows end while far ones still begin: in no half of a run do all carry what they can."""
    alone: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        alone.extend([*each.sizes] for each in turns if len(each.sizes) == 1)
        return [run(0.6 * THIN * (1 - np.eye(3)), peak=1.65) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    assert measure_uplinks(MPI.COMM_SELF, sites((4, 4, 4), THIN)) == ()
    assert not alone
    found = measure_uplinks(MPI.COMM_SELF, sites((4, 1, 4), THIN))
    assert alone == [[1]], "it does not send again either"
    assert found == (0.0, pytest.approx(0.99 * 2 * THIN), 0.0)


def test_a_peak_is_no_burst_and_no_longer_than_half_a_run() -> None:
    """All within 50 ms is a burst: a wire with a tenth of a second to carry it needs half of it."""
    steps_s, at_once = np.linspace(0.0, 1.6, 17), np.zeros(1)
    burst = np.interp(steps_s, [0.0, 0.05, 1.6], [0.0, 1.0, 1.0])
    moved = np.stack([burst, steps_s / 1.6])[..., None].transpose(1, 0, 2)
    found = uplinks._peaks(moved, np.full((2, 1), 1.6), np.array([0.2]), at_once)
    assert found[:, 0] == pytest.approx([1.0 / 0.2, 1.0 / 1.6])
    longest = uplinks._peaks(moved, np.full((2, 1), 1.6), np.array([100.0]), at_once)
    assert longest[:, 0] == pytest.approx([1.0 / 0.8, 1.0 / 1.6])
    model = far(sites((4, 4, 4), THIN), THIN)
    assert uplinks._peak_s(model) == pytest.approx(model.round_trip_s.max(axis=1), rel=1e-6)
    slow, fast = sites((4, 4, 4), THIN), sites((4, 4, 4), 100 * THIN)
    lasts_s = uplinks.PEAK_BYTES / uplinks._without_uplinks(slow)
    assert uplinks._peak_s(slow) == pytest.approx(lasts_s)
    assert lasts_s.min() > uplinks.PEAK_S, "a burst would be a large part of it"
    assert uplinks._peak_s(fast) == pytest.approx(uplinks.PEAK_S)


def test_a_part_of_a_job_keeps_the_uplinks_of_its_clusters() -> None:
    model = replace(sites((2, 2, 2), THIN), uplink_bytes_per_s=(THIN, 0.0, 2 * THIN))
    assert model.restrict([0, 4, 5]).uplink_bytes_per_s == (THIN, 2 * THIN)
