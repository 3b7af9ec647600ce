"""Which clusters may have an uplink, who sends what to find it, and what counts as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.measure import uplinks
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


Turn = tuple[list[int], bool, int]
"""Clusters that send at once, whether to each other as well, and how many messages."""


def turn(amounts: uplinks._Turn) -> Turn:
    senders = list(amounts.sizes)
    among = len(senders) > 1 and any(amounts.sizes[senders[0]][senders[1:]])
    return senders, among, amounts.n_messages


@pytest.mark.parametrize(
    ("together", "carried", "found", "looks"),
    [
        (2 * THIN, [], 0.0, 1),
        (THIN, [THIN, THIN], THIN, 3),
        (THIN, [1.9 * THIN], 0.0, 2),  # nearly what both links carry; others held it up at first
        (THIN, [THIN, 1.9 * THIN], 0.0, 3),  # the first times, windows were not open yet
        (THIN, [1.5 * THIN, 1.9 * THIN], 0.0, 3),  # hardly limited
        (THIN, [THIN, 1.2 * THIN], 1.2 * THIN, 3),
    ],
)
def test_what_counts_as_one(
    monkeypatch: pytest.MonkeyPatch,
    together: float,
    carried: list[float],
    found: float,
    looks: int,
) -> None:
    asked: list[list[Turn]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        asked.append([turn(each) for each in turns])
        moved = np.full((model.n_clusters,) * 2, 2 * THIN)
        moved[0] = [together, *carried, 0.0, 0.0][len(asked) - 1]
        return [uplinks._Run(moved, np.full_like(moved, len(moved))) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    rates = measure_uplinks(MPI.COMM_SELF, sites((4, 4, 4), THIN), n_messages=10)
    assert rates == ((pytest.approx(found), 0.0, 0.0) if found else ())
    alone, again = ([([0], False, 10)], [([0], False, 20 if carried[:1] == [1.5 * THIN] else 10)])
    assert list(filter(None, asked)) == [[([0, 1, 2], True, 3)], alone, again][:looks]


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
        rank: uplinks._flows_from(rank, model.grid, 0, [0, 7, 5])
        for rank in range(model.grid.n_ranks)
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


def test_flows_that_do_not_end_together_clear_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """One flow may have what another should, so the sum of their rates is too high.

    Then each cluster sends by itself, and again with messages of lengths that end together.
    """
    sizes: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        sizes.extend(each.sizes[0].tolist() for each in turns if list(each.sizes) == [0])
        moved = THIN * (1 - np.eye(model.n_clusters))
        took_s = np.ones_like(moved)
        took_s[0, 1:] = (1.3, 1.3) if len(sizes) > 1 else (0.6, 2.0)  # one took the other's share
        return [uplinks._Run(moved, took_s) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    rates = measure_uplinks(MPI.COMM_SELF, sites((4, 4, 4), THIN), n_messages=10)
    even, longest = uplinks.MESSAGE_BYTES, uplinks.MESSAGE_BYTES
    assert sizes == [[0, even, even], [0, longest, int(longest * 0.6 / 2.0)]]
    assert rates == (pytest.approx(2 * THIN / 1.3), 0.0, 0.0)


def test_lone_hosts_send_to_all_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all carry until the last flow ends is an interface's rate; many share a few rounds."""
    asked: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        asked.extend(list(each.sizes) for each in turns)
        n = model.n_clusters
        took_s = np.arange(1.0, 1.0 + n)[None].repeat(n, 0)
        return [uplinks._Run(np.full((n, n), 2 * THIN), took_s) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    found = measure_uplinks(MPI.COMM_SELF, sites((2, 1, 1, 1, 1, 1), THIN))
    assert asked[:4] == [[1, 5], [2], [3], [4]]
    assert found[1:] == (6 * 2 * THIN / 6,) * 5
    asked.clear()
    assert measure_uplinks(MPI.COMM_SELF, sites((1, 4), THIN)) == ()
    assert not asked, "its only link shows all there is"


@pytest.mark.parametrize(("late", "looks"), [(1.0, 1), (1.2, 1), (4.0, 2)])
def test_a_lone_host_whose_flows_do_not_end_together_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, late: float, looks: int
) -> None:
    """One of two flows waited for a lost packet, so the interface carries more than it seems to."""
    asked: list[list[int]] = []

    def sent(
        _comm: object, model: GridModel, turns: list[uplinks._Turn], _: object
    ) -> list[uplinks._Run]:
        took_s = np.ones((3, 3))
        took_s[1, 2] = 1.0 if [1] in asked else late
        asked.extend(list(each.sizes) for each in turns)
        return [uplinks._Run(THIN * (1 - np.eye(3)), took_s) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    found = measure_uplinks(MPI.COMM_SELF, sites((4, 1, 4), THIN))
    assert asked.count([1]) == looks
    assert found[1] == pytest.approx(2 * THIN / (late if looks == 1 else 1.0))


def quick_run(bytes_per_s: float, latency_s: float = 5e-3) -> tuple[int, float]:
    """Return the messages of a quick run of one of three clusters, and the bytes on each link."""
    link = linear_plogp(latency_s, bytes_per_s)
    model = replace(sites((4, 4, 4), bytes_per_s), links=((link,) * 3,) * 3)
    sizes, n_messages = uplinks._turn_of(model, np.array(model.link_bytes_per_s), [0], [0], 0)
    return n_messages, n_messages * float(sizes[0].max()) * 4


def test_a_quick_run_is_long_enough_to_tell_and_floods_no_link() -> None:
    """Ranks start apart by a latency, and a short run may end before the others begin."""
    n_near, on_link = quick_run(THIN)
    assert THIN * uplinks.RUN_S <= on_link <= 2 * THIN * uplinks.RUN_S
    n_far, on_link = quick_run(THIN, 0.1)
    assert n_far > n_near
    assert on_link >= THIN * uplinks.RUN_TRIPS * 0.2
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
        return [uplinks._Run(np.ones((3, 3)), np.ones((3, 3))) for _ in turns]

    monkeypatch.setattr(uplinks, "_run_turns", sent)
    for link, n_messages, looks in ((THIN, 0, True), (1.25e9, 0, False), (1.25e9, 10, True)):
        asked.clear()
        inside, between = linear_plogp(50e-6, link), linear_plogp(20e-3, link)
        links = tuple(tuple(inside if a == b else between for b in range(3)) for a in range(3))
        model = sites((4, 4, 4), link)
        measure_uplinks(MPI.COMM_SELF, replace(model, links=links), n_messages=n_messages)
        assert bool(asked) == looks


def test_all_flows_of_a_turn_start_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows that start one after another, each timed by itself, seem to carry too much."""
    done: list[str] = []

    def sent(_comm: object, streams: list[object], n: int) -> list[float]:
        done.append(f"{n} messages")
        return [1.0 for _ in streams]

    monkeypatch.setattr(uplinks, "stream_s", sent)
    monkeypatch.setattr(uplinks, "wait_for_all", lambda _comm: done.append("wait"))
    model = sites((4, 4, 4), THIN)
    turn = uplinks._turn_of(model, np.array(model.link_bytes_per_s), [0], [0], 20)
    uplinks._run_turns(MPI.COMM_SELF, model, [turn], uplinks.silent)
    assert done == ["wait", "6 messages", "wait", "20 messages", "wait"]


def test_a_part_of_a_job_keeps_the_uplinks_of_its_clusters() -> None:
    model = replace(sites((2, 2, 2), THIN), uplink_bytes_per_s=(THIN, 0.0, 2 * THIN))
    assert model.restrict([0, 4, 5]).uplink_bytes_per_s == (THIN, 2 * THIN)
