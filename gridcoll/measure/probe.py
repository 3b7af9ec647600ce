"""Measure links by messages: latency by ping-pong, then pLogP by Kielmann's method.

Both ends call the same function. ``active`` is true on one of them, which measures.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from gridcoll.engine.waiting import PoliteWait, wait_politely
from gridcoll.model.plogp import PLogP

FIRST_SIZES = (0, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
"""Sizes that every link is measured at, in bytes."""

INTERPOLATION_TOLERANCE = 0.15
"""A size between two others is kept if interpolation errs by more than this fraction."""

MOST_ADDED_SIZES = 4
MOST_MESSAGES = 1000

MOST_ATTEMPTS = 4
"""Trains whose times contradict each other are sent up to this many times."""

LONG_PROBE_S = 0.5
"""A message that takes this long is sent only once: disturbances are short."""

SAME_RATE = 0.05
"""No size is added between two sizes whose rates differ by less than this fraction."""

PLAUSIBLE_FACTOR = 1.15
"""A gap is plausible up to this many times the average of the longer train. Above that, one of the
two trains was disturbed."""

MOST_SETUP_TRIPS = 6
"""Most round trips that a train costs once: a handshake, and a TCP window that doubles from 15 to
some 500 KB. Inside a cluster they are nothing beside a train, so its average is a good bound."""

_TAG = 1
_WINDOW = 16
_PROBE_SPIN_S = 300e-6


def _wait(request: MPI.Request) -> None:
    """Wait, spinning longer than the engine does: a pause would be a measurement error."""
    wait_politely(request.Test, PoliteWait(_PROBE_SPIN_S))


class Channel(Struct, frozen=True):
    """One end of a link under measurement."""

    comm: MPI.Intracomm
    peer: int
    active: bool

    def send(self, data: memoryview) -> None:
        _wait(self.comm.Isend([data, MPI.BYTE], self.peer, _TAG))

    def recv(self, data: memoryview) -> None:
        _wait(self.comm.Irecv([data, MPI.BYTE], self.peer, _TAG))

    def round_trip_s(self, n_bytes: int) -> float:
        """Send ``n_bytes``, get an empty answer; return the seconds on the active end, else 0."""
        data = memoryview(bytearray(n_bytes))
        nothing = memoryview(bytearray(0))
        if not self.active:
            self.recv(data)
            self.send(nothing)
            return 0.0
        start = time.perf_counter()
        self.send(data)
        self.recv(nothing)
        return time.perf_counter() - start

    def swap_s(self, n_bytes: int) -> float:
        """Send ``n_bytes`` both ways at once, and an empty answer to each.

        Returns the seconds on this end.
        """
        nothing, got, given = (memoryview(bytearray(size)) for size in (0, n_bytes, n_bytes))
        start = time.perf_counter()
        coming = self.comm.Irecv([got, MPI.BYTE], self.peer, _TAG)
        going = self.comm.Isend([given, MPI.BYTE], self.peer, _TAG)
        _wait(coming)
        answer = self.comm.Isend([nothing, MPI.BYTE], self.peer, _TAG)
        self.recv(nothing)
        took_s = time.perf_counter() - start
        _wait(going)
        _wait(answer)
        return took_s

    def train_s(self, n_bytes: int, n_messages: int) -> float:
        """Send ``n_messages`` back to back and get an answer; return the time on the active end."""
        return self.train(n_bytes, n_messages)[1]

    def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
        """Return the time of a train's first half, and of all; zeros on the passive end.

        The first half needs two or more messages. Its time is that of a train which ends there: the
        passive end reports the time between the last messages of the first half and of all.
        """
        word = memoryview(bytearray(8))
        post: Callable[..., MPI.Request] = self.comm.Isend if self.active else self.comm.Irecv
        slots = [memoryview(bytearray(n_bytes)) for _ in range(min(_WINDOW, n_messages))]
        under_way: deque[MPI.Request] = deque()
        start = halfway = time.perf_counter()
        for k in range(n_messages + len(slots)):
            if k >= len(slots):
                _wait(under_way.popleft())
                if k + 1 - len(slots) == n_messages // 2:
                    halfway = time.perf_counter()
            if k < n_messages:
                under_way.append(post([slots[k % len(slots)], MPI.BYTE], self.peer, _TAG))
        if self.active:
            self.recv(word)
            took_s = time.perf_counter() - start
            return took_s - int.from_bytes(word, "little") * 1e-9, took_s
        later_ns = int((time.perf_counter() - halfway) * 1e9)
        self.send(memoryview(later_ns.to_bytes(8, "little")))
        return 0.0, 0.0

    def exchange(self, n_bytes: int) -> tuple[float, float, float]:
        """Send a message and get an answer; return the round trip, ``os`` and ``or``.

        Zeros on the passive end.
        """
        start = time.perf_counter()
        send_s, recv_s = measure_overheads(self, n_bytes)
        return time.perf_counter() - start if self.active else 0.0, send_s, recv_s

    def largest(self, value: int) -> int:
        """Return the larger one of both ends' values, on both ends."""
        got, given = memoryview(bytearray(8)), value.to_bytes(8, "little", signed=True)
        going = self.comm.Isend([given, MPI.BYTE], self.peer, _TAG)
        self.recv(got)
        _wait(going)
        return max(value, int.from_bytes(got, "little", signed=True))

    def agree(self, value: int) -> int:
        """Return the active end's ``value``, on both ends."""
        word = memoryview(bytearray(8))
        if self.active:
            word[:] = value.to_bytes(8, "little", signed=True)
            self.send(word)
        else:
            self.recv(word)
        return int.from_bytes(word, "little", signed=True)


def measure_latency(channel: Channel, longest_s: float = 0.2) -> tuple[float, float]:
    """Return half the shortest of many empty round trips, and half the median, in seconds.

    There are at least 6 round trips, then more until ``longest_s`` is over or there are 40. Zeros
    on the passive end.
    """
    channel.round_trip_s(0)  # the first message opens the connection
    trips_s: list[float] = []
    begin = time.perf_counter()
    going = 1
    while going:
        trips_s.append(channel.round_trip_s(0))
        enough = len(trips_s) >= 40 or time.perf_counter() - begin > longest_s
        going = channel.agree(int(len(trips_s) < 6 or not enough))
    return min(trips_s) / 2, float(np.median(trips_s)) / 2


class Sample(Struct):
    """Measurements of one size: gap, one-way time, and both ends' overheads."""

    gap_s: float
    one_way_s: float
    send_s: float
    recv_s: float


def measure_plogp(channel: Channel) -> PLogP | None:
    """Return the link's pLogP on the active end, None on the other.

    ``g(m)`` comes from trains long enough to make the latency negligible (saturation), ``L`` from
    empty round trips, and the time of a lone message from round trips with an empty answer
    (Kielmann et al. 2000). Sizes are added where linear interpolation of ``g`` errs.
    """
    for _ in range(2):  # open TCP's window before anything is timed
        channel.train_s(1 << 16, 8)
    empty_s = min(channel.round_trip_s(0) for _ in range(20))
    samples = {size: _measure_size(channel, size, empty_s) for size in FIRST_SIZES}
    pairs = [pair for pair in pairwise(FIRST_SIZES) if pair[0] >= 1 << 12]
    while pairs and len(samples) < len(FIRST_SIZES) + MOST_ADDED_SIZES:
        low, high = pairs.pop(0)
        if channel.agree(int(have_same_rate(low, samples[low].gap_s, high, samples[high].gap_s))):
            continue
        middle = (low + high) // 2
        sample = _measure_size(channel, middle, empty_s)
        between = (samples[low].gap_s + samples[high].gap_s) / 2
        is_needed = abs(sample.gap_s - between) > INTERPOLATION_TOLERANCE * between
        if channel.agree(int(is_needed)):
            samples[middle] = sample
            if high > 1.5 * low:
                pairs += [(low, middle), (middle, high)]
    while middle := channel.agree(middle_of_step(samples, empty_s)):
        samples[middle] = _measure_size(channel, middle, empty_s)
    return fit_samples(samples, empty_s) if channel.active else None


def middle_of_step(samples: Mapping[int, Sample], empty_s: float) -> int:
    """Return a size between two others of which only the larger one has a handshake; 0 if none.

    With a handshake, a lone message takes a round trip longer than its gap explains, which half a
    round trip shows. A step that hardly matters beside the rest of its time counts as none. The
    larger size is then more than twice the smaller one. ``empty_s``: an empty round trip.
    """
    for low, high in pairwise(sorted(samples)[1:]):
        longer_s = samples[high].one_way_s - samples[low].one_way_s
        step_s = longer_s - (samples[high].gap_s - samples[low].gap_s)
        least_s = max(empty_s / 2, INTERPOLATION_TOLERANCE * samples[high].one_way_s)
        if high > 2 * low and step_s > least_s:
            return high // 2
    return 0


def have_same_rate(low: int, low_gap_s: float, high: int, high_gap_s: float) -> bool:
    """Whether two sizes have the same rate, so that no size is needed between them."""
    rates = low / max(low_gap_s, 1e-12), high / max(high_gap_s, 1e-12)
    return max(rates) <= (1 + SAME_RATE) * min(rates)


def _measure_size(channel: Channel, n_bytes: int, empty_s: float) -> Sample:
    repeats = 3 if n_bytes < 1 << 12 else 2  # times of long messages vary little
    lone_s = channel.round_trip_s(n_bytes)
    if channel.agree(int(lone_s - empty_s >= max(LONG_PROBE_S, empty_s))):
        n_messages, took_s = 1, lone_s  # a train of one, long compared with its answer
    else:
        # Other load only makes times longer: the shortest time is that of the link.
        lone_s = min(lone_s, *(channel.round_trip_s(n_bytes) for _ in range(repeats - 1)))
        n_messages, took_s = _long_enough_train(channel, n_bytes, empty_s)
    repeats = channel.agree(repeats if took_s < LONG_PROBE_S else 1)
    longer_s = math.inf
    for attempt in range(MOST_ATTEMPTS):
        for again in range(repeats):
            if attempt or again:
                took_s = min(took_s, channel.train_s(n_bytes, n_messages))
            longer_s = min(longer_s, channel.train_s(n_bytes, 2 * n_messages))
        gap_s, is_plausible = gap_of_trains(took_s, longer_s, n_messages, empty_s)
        if channel.agree(int(is_plausible)):
            break
    send_s, recv_s = measure_overheads(channel, n_bytes)
    return Sample(gap_s, lone_s - empty_s / 2, send_s, recv_s)


def gap_of_trains(
    took_s: float, longer_s: float, n_messages: int, empty_s: float
) -> tuple[float, bool]:
    """Return the gap from a train of ``n_messages`` and one of twice as many.

    The second value tells whether the gap is plausible. Both times contain what a train costs once,
    as the first handshake across a WAN, so the gap comes from their difference. But a disturbance
    of either train falsifies the difference, which may even vanish. The average of the longer
    train, less the empty round trip at its end, gives bounds: what a train costs once takes no
    longer than all messages of the shorter train, which last longer than a round trip, nor than
    `MOST_SETUP_TRIPS`; and what buffers take in at its beginning is a fraction of them.
    """
    average_s = max(longer_s - empty_s, 1e-9) / (2 * n_messages)
    gap_s = (longer_s - took_s) / n_messages
    least_s = max(average_s / 2, average_s - MOST_SETUP_TRIPS * empty_s / (2 * n_messages))
    most_s = PLAUSIBLE_FACTOR * average_s
    return min(max(gap_s, least_s), most_s), least_s <= PLAUSIBLE_FACTOR * gap_s and gap_s <= most_s


def _long_enough_train(channel: Channel, n_bytes: int, empty_s: float) -> tuple[int, float]:
    """Return the length and the time of a train that lasts longer than the round trip at its end.

    The train grows from a short one. The time of a single message is no substitute: with less than
    a TCP window in flight, a link looks faster than it is.
    """
    wanted_s = max(empty_s, 10e-3)
    n_messages = 2
    while True:
        took_s = channel.train_s(n_bytes, n_messages)
        sent_s = max(took_s - empty_s, 1e-6)
        grown = int(n_messages * min(max(1.2 * wanted_s / sent_s, 2), 8))
        enough = sent_s >= wanted_s or n_messages >= MOST_MESSAGES
        following = channel.agree(n_messages if enough else min(grown, MOST_MESSAGES))
        if following == n_messages:
            return n_messages, took_s
        n_messages = following


def measure_overheads(channel: Channel, n_bytes: int) -> tuple[float, float]:
    """Return ``os(m)``, the time of a send call, and ``or(m)``, that of receiving what has arrived.

    In seconds; zeros on the passive end.
    """
    data = memoryview(bytearray(n_bytes))
    start = time.perf_counter()
    if channel.active:
        request = channel.comm.Isend([data, MPI.BYTE], channel.peer, _TAG)
        send_s = time.perf_counter() - start
        _wait(request)
        answer = memoryview(bytearray(8))
        channel.recv(answer)
        return send_s, int.from_bytes(answer, "little") * 1e-9
    wait_politely(lambda: channel.comm.Iprobe(channel.peer, _TAG), PoliteWait(_PROBE_SPIN_S))
    start = time.perf_counter()
    channel.recv(data)
    recv_ns = int((time.perf_counter() - start) * 1e9)
    channel.send(memoryview(recv_ns.to_bytes(8, "little")))
    return 0.0, 0.0


MOST_BURST = 0.08
"""Gaps of short messages that pass in a burst, before an interface's limit applies, seem shorter by
up to this fraction: 3 to 8 % on 8 KiB where long messages got 39 to 59 Mbit/s. If more is missing
to the gap per byte of the longest message, that has other reasons, such as a handshake."""


def fit_samples(samples: dict[int, Sample], empty_s: float) -> PLogP:
    """Return the pLogP of ``samples``, and of the empty round trip.

    ``L`` is half the empty round trip less ``g(0)``, or less ``os(0) + or(0)`` if that is smaller.
    Neither gaps nor one-way times shrink with size: if they seem to, the smaller size was
    disturbed. Nor does a byte of a shorter message take less than one of the longest, since gaps
    are those of a long stream.
    """
    sizes = sorted(samples)
    gaps, alone = (
        [min(getattr(samples[other], what) for other in sizes if other >= size) for size in sizes]
        for what in ("gap_s", "one_way_s")
    )
    per_byte_s = gaps[-1] / sizes[-1]
    gaps = [
        min(max(gap_s, size * per_byte_s), (1 + MOST_BURST) * gap_s)
        for size, gap_s in zip(sizes, gaps, strict=True)
    ]
    first = samples[sizes[0]]
    # A single message waits for no gap: it costs only the overheads of both ends.
    latency_s = max(empty_s / 2 - min(gaps[0], first.send_s + first.recv_s), empty_s / 4)
    return PLogP(
        latency_s=latency_s,
        sizes_bytes=tuple(sizes),
        gap_s=tuple(gaps),
        send_s=tuple(samples[size].send_s for size in sizes),
        recv_s=tuple(samples[size].recv_s for size in sizes),
        one_way_s=(empty_s / 2, *(max(seconds, empty_s / 2) for seconds in alone[1:])),
    )
