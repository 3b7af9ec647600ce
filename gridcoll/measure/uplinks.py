"""Measure uplinks: the rate at which a cluster sends to all others at once, if an uplink limits it.

A site often has one line to all other sites. Flows to one other site show what that line carries,
but they do not show that flows to all sites share it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_for_all, wait_politely
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.flows import FIRST_LANES, MESSAGE_BYTES, Stream
from gridcoll.model import GridModel
from gridcoll.topology.rounds import lanes_between

UPLINK_BELOW = 0.85
"""A cluster has a limiting uplink if its outgoing flows together carry less than this fraction of
what its links and interfaces allow. Sums of measured rates are accurate to about 10 %."""

SURELY_BELOW = 0.7
"""A cluster whose flows carry more than this fraction sends four times as long before its uplink is
believed: over long round trips, flows that recover from a loss carry too little for some time."""

SURELY_FREE = 0.97
"""A cluster whose only run so far has a lower peak runs again before it is taken to be free."""

PEAK_S, PEAK_TRIPS, PEAK_BYTES = 0.1, 1, 1 << 20
"""The peak of a run is its highest rate over so many seconds, so many round trips, and the time of
so many bytes. Bursts are shorter. An uplink limits every part of a run, while flows over long round
trips carry too little until their windows are open, and when most of them have ended. Over 0.1 s, a
burst of 16 KiB is a tenth of what an uplink of 15 Mbit/s carries, and as much may have waited at a
busy receiver."""

SHORTEST_BYTES = 1 << 10
"""Smallest message to any cluster."""

MOST_LONE_HOST_RUNS = 4
"""Lone hosts are measured in at most this many runs. More of them share runs, so that many lone
hosts do not make the start of a job long."""

RUN_S = 0.1
RUN_TRIPS = 4
"""A quick run lasts about so many seconds, and so many round trips, if nothing limits the cluster.
Ranks start some latency apart. Messages that open windows come before these."""

FEWEST_MESSAGES = 3
"""Fewest messages of each flow in a quick run: one alone may have to wait for its window."""

BUDGET_BYTES = 32 << 20
"""Most bytes for a link in a quick run. 1 Gbit/s carries them in 0.27 s."""

FEWEST_TRIPS = 2
"""A quick start does not look for an uplink if these bytes pass in fewer round trips: windows would
still be opening."""

OPENING_MESSAGES = 3
"""At least so many messages of each flow come before any is timed, 96 KiB in all: a window starts
at 15 KiB and doubles in each round trip."""

INITIAL_WINDOW = 10 * 1448
"""Bytes that TCP sends at once: ten packets (RFC 6928)."""

OPEN_BYTES = OPENING_MESSAGES * MESSAGE_BYTES
"""A flow should not have more than this under way."""

MOST_FLOWS = 4 * FIRST_LANES
"""Most flows between two clusters."""

AGREE_ABOVE = 0.9
"""Two rates of a cluster agree if one is more than this fraction of the other. An uplink is
believed if two of them agree: a lost packet slows a run, and a receiver that was busy makes it seem
faster, but neither does so by the same amount twice."""

MOST_RUNS = 5
"""Most runs of a cluster alone, whether any of them agree or not."""

LEAST_PART = 0.85
"""At least this part of the rate in the best half of a run counts. In that half may arrive what
waited for a lost packet before: up to 1.27 times what an uplink of 15 Mbit/s carries, and plans by
such rates overflow its queue. All that arrived since the start shows no more than it carries, but
less where windows took long to open."""

_TAG = 7

_STEPS = 8
"""In each half of a run, arrivals are counted at this many times."""


def measure_uplinks(
    comm: MPI.Intracomm, model: GridModel, progress: Progress = silent, n_messages: int = 0
) -> tuple[float, ...]:
    """Return the bytes per second that each cluster sends to all others together, (C,).

    The value is 0 for a cluster that no uplink limits; the result is empty if there is no limit at
    all. Collective; equal on all ranks. Each flow has ``n_messages``, or as many as take `RUN_S`
    and no more than `BUDGET_BYTES` on a link. Messages have `MESSAGE_BYTES` for the cluster that is
    reached fastest, and fewer bytes for others, in proportion to the rate. Incoming traffic is
    taken to have the same limit.

    A cluster is left out if one link carries about as much as all its links, or its interfaces,
    together. All other clusters send at once first. Those that carry less than all interfaces allow
    send again, each alone, because uplinks of others may have slowed them. They repeat this until
    two rates agree, that of the widest link included. The messages of a later run are in proportion
    to the rates seen, so that all flows last as long; those of clusters that are hardly limited are
    more. For a cluster of one host, the value is the rate of its interface. If that is less than
    its links carry together, and more than the widest of them, it is the higher one of two runs.
    """
    lone, suspects = _lone_hosts(model), _suspects(model)
    if not n_messages:
        suspects = {c: rate for c, rate in suspects.items() if _passes_slowly(model, c)}
    found = np.zeros(model.n_clusters)
    # The widest of its links has shown an uplink or interface, too, if one limits it.
    outgoing = {c: [_widest_link(model, c)] for c in [*suspects, *itertools.chain(*lone)]}
    # For each run, what part of the rate without an uplink its peak was.
    shown: dict[int, list[float]] = {c: [] for c in suspects}
    rates = _outgoing_rates(model)
    # An uplink may carry as much as the widest link only.
    expected = np.maximum(_without_uplinks(model) / 2, rates.max(axis=1))
    links_together = rates.sum(axis=1)
    for group in lone:
        expected[group] = np.maximum(links_together[group] / 2, rates[group].max(axis=1))

    def run_groups(groups: Sequence[Sequence[int]]) -> None:
        turns = [_turn_of(model, rates, group, group, expected, n_messages) for group in groups]
        runs = _run_turns(comm, model, turns, progress)
        for group, run in zip(groups, runs, strict=True):
            for c in group:
                sent = run.rates[c].sum()
                outgoing[c].append(sent)
                if c in suspects:
                    shown[c].append(run.peaks[c] / suspects[c])
                    rates[c] = run.rates[c]
                    expected[c] = max(outgoing[c])
                elif run.peaks[c] >= UPLINK_BELOW * links_together[c]:
                    found[c] = max(sent, min(run.peaks[c], links_together[c]))
                else:
                    found[c] = max(found[c], sent, _widest_link(model, c))

    def is_shown(lone_host: int) -> bool:
        # Like a second run, the widest link shows what the interface carries.
        shows_all = found[lone_host] >= UPLINK_BELOW * links_together[lone_host]
        return bool(shows_all or _confirmed(outgoing[lone_host]))

    def limited() -> list[int]:
        return [c for c in suspects if not _is_free(shown[c])]

    if len(suspects) > 1:
        together = _rates_together(model, [*suspects])
        everybody = _turn_of(model, together, [*suspects], (), expected, n_messages)
        (run,) = _run_turns(comm, model, [everybody], progress)
        for c in suspects:
            outgoing[c].append(run.rates[c].sum())
            # What seems limited here may be slowed by uplinks of others.
            part = run.peaks[c] / together[c].sum()
            shown[c] += [part] if part >= UPLINK_BELOW else []
            # Alone it may carry more. But a run that is half as long shows that, too.
            expected[c] = max(run.rates[c].sum(), expected[c] / 2)
        suspects = {c: suspects[c] for c in limited()}
    run_groups([*lone, *([c] for c in suspects)])
    again = [group for group in lone if not all(is_shown(c) for c in group)]
    for group in again:
        expected[group] = links_together[group]
    sent_long: set[int] = set()
    for _ in range(MOST_RUNS - 1):
        for c in limited():
            most = max(outgoing[c])
            if most > SURELY_BELOW * suspects[c] and c not in sent_long:
                sent_long.add(c)
                outgoing[c], expected[c] = [most], 2 * suspects[c]
        run_groups([*again, *([c] for c in limited() if not _confirmed(outgoing[c]))])
        again = []
    for c in limited():
        found[c] = max(_confirmed(outgoing[c]) or max(outgoing[c]), _widest_link(model, c))
    return tuple(found.tolist()) if found.any() else ()


def _is_free(shown: Sequence[float]) -> bool:
    """Whether most runs show that no uplink limits, given peaks over the rate without an uplink.

    A single peak may be too high: if a receiver was busy, what waited for it seems to arrive at
    once.
    """
    n_free = sum(part >= UPLINK_BELOW for part in shown)
    return 2 * n_free > len(shown) and (n_free > 1 or max(shown) >= SURELY_FREE)


def _confirmed(rates: Sequence[float]) -> float:
    """Return the largest of ``rates`` with which a larger one agrees, 0 if there is none."""
    ordered = sorted(rates, reverse=True)
    return next(
        (slow for fast, slow in itertools.pairwise(ordered) if slow > AGREE_ABOVE * fast), 0.0
    )


def _outgoing_rates(model: GridModel) -> np.ndarray:
    """Return the bytes per second of each link between clusters, (C, C); 0 on the diagonal."""
    return np.where(np.eye(model.n_clusters, dtype=bool), 0.0, model.link_bytes_per_s)


def _interfaces(model: GridModel) -> np.ndarray:
    """Return the bytes per second of all interfaces of each cluster together, (C,)."""
    return np.array(model.grid.hosts_per_cluster) * model.flow_bytes_per_s.diagonal()


def _without_uplinks(model: GridModel) -> np.ndarray:
    """Return the bytes per second that each cluster can send if no uplink limits it, (C,)."""
    return np.asarray(np.minimum(_outgoing_rates(model).sum(axis=1), _interfaces(model)))


def _rates_together(model: GridModel, senders: Sequence[int]) -> np.ndarray:
    """Return the bytes per second of links if all ``senders`` send and no uplink limits, (C, C).

    What several links bring to a cluster, or take from it, has to fit its interfaces. Those of a
    lone host are not known yet.
    """
    rates = np.zeros((model.n_clusters,) * 2)
    rates[[*senders]] = _outgoing_rates(model)[[*senders]]
    interfaces = np.where(np.array(model.grid.hosts_per_cluster) > 1, _interfaces(model), np.inf)
    for axis in (1, 0):
        total = np.maximum(rates.sum(axis=axis), 1e-9)
        rates = rates * np.expand_dims(np.minimum(interfaces / total, 1.0), axis)
    return rates


def _suspects(model: GridModel) -> dict[int, float]:
    """Return the clusters that may have an uplink, and the bytes per second of each without one."""
    if model.n_clusters < 3:
        return {}
    widest, allowed = _outgoing_rates(model).max(axis=1), _without_uplinks(model)
    return {
        c: float(allowed[c])
        for c, n_hosts in enumerate(model.grid.hosts_per_cluster)
        if n_hosts > 1 and widest[c] < UPLINK_BELOW * allowed[c]
    }


def _passes_slowly(model: GridModel, cluster: int) -> bool:
    """Whether `BUDGET_BYTES` on its widest link take ``cluster`` some round trips."""
    trip_s = float(model.round_trip_s[cluster].max())
    return FEWEST_TRIPS * trip_s * _widest_link(model, cluster) <= BUDGET_BYTES


def _lone_hosts(model: GridModel) -> list[list[int]]:
    """Return the clusters of one host whose widest link does not show their interface's rate.

    Such a host has to send to all others at once. Each inner list is one run; there are at most
    `MOST_LONE_HOST_RUNS`, so that some of many clusters share a run.
    """
    rates = _outgoing_rates(model)
    lone = [
        c
        for c, cluster in enumerate(model.grid.clusters)
        if len(cluster.nodes) == 1 and rates[c].max(initial=0.0) < UPLINK_BELOW * rates[c].sum()
    ]
    return [lone[turn::MOST_LONE_HOST_RUNS] for turn in range(min(MOST_LONE_HOST_RUNS, len(lone)))]


class _Turn(NamedTuple):
    """Clusters that send at once.

    ``sizes`` has, for each of them, the bytes of a message to every other cluster, (C,).
    Each flow has ``n_messages``, after ``n_opening`` that open its window.
    """

    sizes: dict[int, np.ndarray]
    n_messages: int
    n_opening: int


def _turn_of(
    model: GridModel,
    rates: np.ndarray,
    senders: Sequence[int],
    excluded: Sequence[int],
    expected: np.ndarray,
    n_messages: int,
) -> _Turn:
    """Return what ``senders`` send to all clusters but ``excluded`` ones.

    The lengths of messages are in proportion to ``rates``, (C, C). If ``n_messages`` is 0, there
    are as many messages as take `RUN_S` or `RUN_TRIPS` at the ``expected`` rates of clusters, (C,),
    and at most `BUDGET_BYTES` for a link.

    The bytes that pass while a window doubles up to what a link holds are twice as many as these.
    """
    sizes = _message_sizes(model, rates, senders, excluded)
    wanted, opening = FEWEST_MESSAGES, OPENING_MESSAGES
    for c, each in sizes.items():
        of_links = each * _lanes(model, c)
        trips_s, most = model.round_trip_s[c], BUDGET_BYTES // int(of_links.max())
        lasts_s = max(RUN_S, RUN_TRIPS * float(trips_s.max()))
        wanted = max(wanted, min(math.ceil(lasts_s * expected[c] / of_links.sum()), most))
        held = trips_s * rates[c] / np.where(of_links > 0, of_links, np.inf)
        held *= min(expected[c] / rates[c].sum(), 1.0)
        opening = max(opening, min(math.ceil(2 * held.max()), most))
    return _Turn(sizes, n_messages or wanted, opening)


def _widest_link(model: GridModel, cluster: int) -> float:
    """Return the bytes per second that the widest link from ``cluster`` carries by itself."""
    return float(_outgoing_rates(model)[cluster].max())


class _Flow(NamedTuple):
    """Messages from one cluster to another that this rank sends or receives."""

    source: int
    target: int
    stream: Stream


def _lanes(model: GridModel, cluster: int) -> np.ndarray:
    """Return the number of flows from ``cluster`` to each other one, (C,).

    It is a multiple of the number of hosts: if some sent more than others, these would be idle in
    the end, and their interfaces would seem to be an uplink. A link that holds much is shared by
    more flows, whose windows are open sooner; no two of them connect the same ranks.
    """
    grid = model.grid
    sizes, hosts = np.array(grid.ranks_per_cluster), np.array(grid.hosts_per_cluster)
    lanes = np.minimum(lanes_between(np.full_like(sizes, sizes[cluster]), sizes), FIRST_LANES)
    n_hosts = min(grid.hosts_per_cluster[cluster], FIRST_LANES)
    lanes = -(-lanes // n_hosts) * n_hosts
    held = _outgoing_rates(model)[cluster] * model.round_trip_s[cluster]
    times = np.ceil(held / (lanes * OPEN_BYTES))
    most = np.minimum(hosts, np.maximum(MOST_FLOWS // lanes, 1))
    return np.asarray(lanes * np.clip(times, 1, most).astype(int))


def _flows_from(rank: int, model: GridModel, cluster: int, sizes: Sequence[int]) -> list[_Flow]:
    """Return the flows from ``cluster`` that ``rank`` sends or receives.

    Messages to cluster ``d`` have ``sizes[d]`` bytes. The widest flows are assigned first, each to
    a rank whose host has least to send so far.
    """
    grid = model.grid
    members = grid.clusters[cluster].spread(len(grid.clusters[cluster]))
    host_bytes: Counter[int] = Counter()
    found: list[_Flow] = []
    lanes = _lanes(model, cluster)
    others = [d for d in range(len(sizes)) if d != cluster and sizes[d]]
    for other in sorted(others, key=lambda d: (-sizes[d], d)):
        free: list[int] = []
        receivers = grid.clusters[other].spread(lanes[other])
        for lane in range(lanes[other]):
            shift = lane // math.lcm(len(members), len(receivers))
            receiver = receivers[(lane + shift) % len(receivers)]
            free = free or list(members)
            sender = min(free, key=lambda each: host_bytes[grid.host_of[each]])
            free.remove(sender)
            host_bytes[grid.host_of[sender]] += sizes[other]
            if rank in (sender, receiver):
                peer = receiver if rank == sender else sender
                stream = Stream(peer, sizes[other], rank == sender)
                found.append(_Flow(cluster, other, stream))
    return found


def _message_sizes(
    model: GridModel, rates: np.ndarray, senders: Sequence[int], excluded: Sequence[int]
) -> dict[int, np.ndarray]:
    """Return the bytes of a message of each of ``senders`` to every other cluster, (C,).

    They are 0 for ``excluded`` clusters. All flows of such messages end at about the same time if
    links carry ``rates``, (C, C).
    """
    per_flow = {c: rates[c] / _lanes(model, c) for c in senders}
    for c, each in per_flow.items():
        each[[c, *excluded]] = 0.0
    widest = max(float(each.max()) for each in per_flow.values())
    sizes = {}
    for c, each in per_flow.items():
        # A flow that carried nothing in one run may carry something in the next.
        sizes[c] = np.maximum(MESSAGE_BYTES * each / widest, SHORTEST_BYTES).astype(int)
        sizes[c][[c, *excluded]] = 0
    return sizes


class _Run(NamedTuple):
    """What a turn shows.

    ``rates`` has the bytes per second from each cluster to every other one, (C, C), in the half of
    the turn in which most arrives: windows open before it, and when flows with more than their
    share have ended, the others alone may not fill an uplink. It is reduced by what may have waited
    before that half (`LEAST_PART`). ``peaks`` has the highest rate from each cluster to all others,
    (C,): see `PEAK_S`.
    """

    rates: np.ndarray
    peaks: np.ndarray


def _run_turns(
    comm: MPI.Intracomm, model: GridModel, turns: Sequence[_Turn], progress: Progress
) -> list[_Run]:
    """Let clusters send to others, one of ``turns`` after another. Returns what each shows.

    All flows of a turn start together.
    """
    if not turns:
        return []
    rank, n = comm.Get_rank(), model.n_clusters
    arrivals: list[tuple[int, _Flow, list[float]]] = []
    for at, (sizes, n_messages, n_opening) in enumerate(turns):
        progress("uplinks", at, len(turns))
        flows = [
            flow
            for cluster, n_bytes in sizes.items()
            for flow in _flows_from(rank, model, cluster, n_bytes.tolist())
        ]
        streams, taken = [f.stream for f in flows], [f for f in flows if not f.stream.sends]
        wait_for_all(comm)
        arrived = _transfer(comm, streams, n_opening + n_messages)
        arrivals += [(at, *each) for each in zip(taken, arrived, strict=True)]
    lasts_s = np.full((len(turns), n), 1e-9)
    for at, flow, arrived_s in arrivals:
        lasts_s[at, flow.source] = max(lasts_s[at, flow.source], arrived_s[-1])
    wait_for_all(comm)
    comm.Allreduce(MPI.IN_PLACE, lasts_s, MPI.MAX)
    moved = np.zeros((2 * _STEPS + 1, len(turns), n, n))
    for at, (source, target, stream), arrived_s in arrivals:
        steps_s = np.linspace(0.0, lasts_s[at, source], len(moved))
        # A message passes at an even rate from the arrival of the one before to its own.
        n_arrived = np.interp(steps_s, [0.0, *arrived_s], np.arange(len(arrived_s) + 1))
        moved[:, at, source, target] += stream.n_bytes * n_arrived
    wait_for_all(comm)
    comm.Allreduce(MPI.IN_PLACE, moved, MPI.SUM)
    halves = moved[_STEPS:] - moved[: _STEPS + 1]
    best = halves.sum(axis=3).argmax(axis=0)[None, ..., None]
    rates = np.take_along_axis(halves, best, axis=0)[0] / (lasts_s[..., None] / 2)
    sent = moved.sum(axis=3)
    rates *= _sustained_part(sent)[..., None]
    peaks = _peaks(sent, lasts_s, _peak_s(model), _opening_s(model))
    progress("uplinks", len(turns), len(turns))
    return [_Run(*each) for each in zip(rates, peaks, strict=True)]


def _sustained_part(moved: np.ndarray) -> np.ndarray:
    """Return how much of the rate in the best half of a run was sustained from its start, (T, C).

    ``moved``: bytes from each cluster until each step of a run, (S, T, C). It is at least
    `LEAST_PART`.
    """
    best_half = (moved[_STEPS:] - moved[: _STEPS + 1]).max(axis=0) / _STEPS
    n_steps = np.arange(_STEPS, len(moved))[:, None, None]
    from_start = (moved[_STEPS:] / n_steps).max(axis=0)
    return np.asarray(np.clip(from_start / np.maximum(best_half, 1e-9), LEAST_PART, 1.0))


def _peak_s(model: GridModel) -> np.ndarray:
    """Return the seconds over which the peak of each cluster's runs is taken, (C,)."""
    trips_s, bytes_s = model.round_trip_s.max(axis=1), PEAK_BYTES / _without_uplinks(model)
    return np.asarray(np.maximum(np.maximum(PEAK_S, PEAK_TRIPS * trips_s), bytes_s))


def _opening_s(model: GridModel) -> np.ndarray:
    """Return the seconds by which flows from each cluster are behind steady ones, (C,).

    They arrive one latency after they leave, and as little passes until their windows are open. A
    window of `INITIAL_WINDOW` bytes doubles in each round trip, up to what a link holds.
    """
    rates, trips_s = _outgoing_rates(model), model.round_trip_s
    rates = rates * (_without_uplinks(model) / np.maximum(rates.sum(axis=1), 1e-9))[:, None]
    lanes = np.stack([_lanes(model, c) for c in range(model.n_clusters)])
    windows = np.maximum(rates * trips_s / np.maximum(lanes, 1) / INITIAL_WINDOW, 1.0)
    behind_s = trips_s * (0.5 + np.log2(windows) - 1 + 1 / windows)
    return np.asarray((rates * behind_s).sum(axis=1) / np.maximum(rates.sum(axis=1), 1e-9))


def _peaks(
    moved: np.ndarray, lasts_s: np.ndarray, peak_s: np.ndarray, opening_s: np.ndarray
) -> np.ndarray:
    """Return the highest bytes per second over ``peak_s``, (C,), and at most half a run: (T, C).

    ``moved``: bytes from each cluster until each step of a run, (S, T, C); steps are evenly spaced
    in runs that last ``lasts_s``, (T, C). No rate counts that is higher than that of all bytes
    since the start, less ``opening_s``, (C,): the rest had waited.
    """
    n_steps = len(moved) - 1
    found = np.zeros_like(lasts_s)
    since_s = np.linspace(0.0, lasts_s, n_steps + 1)
    sustained = moved / np.maximum(since_s - opening_s, since_s / 2 + 1e-9)
    widths = np.clip(np.ceil(n_steps * peak_s / lasts_s), 1, n_steps // 2).astype(int)
    for width in np.unique(widths):
        rates = (moved[width:] - moved[:-width]) / (width / n_steps * lasts_s)
        most = np.minimum(rates, sustained[width:]).max(axis=0)
        found = np.where(widths == width, most, found)
    return found


def _transfer(comm: MPI.Intracomm, streams: Sequence[Stream], n_messages: int) -> list[list[float]]:
    """Transfer ``n_messages`` of each of ``streams`` at once.

    Both ends call it. Returns the seconds until each message arrived, in the order of those
    ``streams`` that this rank receives.
    """
    start = time.perf_counter()
    received, sent = [], []
    for peer, n_bytes, sends in streams:
        if sends:
            data = bytearray(n_bytes)
            sent += [comm.Isend([data, MPI.BYTE], peer, _TAG) for _ in range(n_messages)]
        else:
            received.append(
                [comm.Irecv([bytearray(n_bytes), MPI.BYTE], peer, _TAG) for _ in range(n_messages)]
            )
    arrived_s: list[list[float]] = [[] for _ in received]

    def all_done() -> bool:
        for requests, times_s in zip(received, arrived_s, strict=True):
            while len(times_s) < n_messages and requests[len(times_s)].Test():
                times_s.append(time.perf_counter() - start)
        are_here = all(len(times_s) == n_messages for times_s in arrived_s)
        return are_here and MPI.Request.Testall(sent)

    wait_politely(all_done)
    return arrived_s
