"""A check of the emulated network: what is measured on it is compared with the grid file.

No program runs on the hosts for this: a socket stays in the namespace where it was opened, so this
process can hold both ends of every path.
"""

from __future__ import annotations

import os
import select
import socket
import time
from itertools import combinations
from typing import TypeVar

from msgspec import Struct

from gridcoll.errors import TestbedError
from gridcoll.testbed import linux
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.units import format_duration, format_rate

ROUND_TRIP_TOLERANCE = 0.05
ROUND_TRIP_SLACK_S = 0.5e-3
"""Time for wake-ups of idle processors and of waiting processes; a round trip has six of them."""
ROUND_TRIP_EARLY_S = 40e-6
"""The most by which the relay sends packets before they are due, both directions together."""

RATE_TOLERANCE = 0.15
SLOW_RATE_TOLERANCE = 0.4
"""How much slower a flow may be. It is wider because busy processors may slow down any flow."""

_RATE_BYTES = 1_500_000
_RATE_CHECKED_BELOW_BYTES_PER_S = 25e6  # above, the processors may be what limits
_ROUNDS = 3
_LOST_AFTER_S = 2.0  # on top of the largest round trip
_REPEAT_FOR_S = 15.0


class RoundTrip(Struct, frozen=True):
    """The round trip between the first hosts of two clusters, as configured and as measured."""

    source: str
    target: str
    configured_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return abs(self.measured_s / self.configured_s - 1)

    @property
    def is_off(self) -> bool:
        allowed_s = self.configured_s * ROUND_TRIP_TOLERANCE
        return not (
            self.configured_s - allowed_s - ROUND_TRIP_EARLY_S
            <= self.measured_s
            <= self.configured_s + allowed_s + ROUND_TRIP_SLACK_S
        )


class NicRate(Struct, frozen=True):
    """The rate of one TCP flow between the first two hosts of a cluster."""

    cluster: str
    configured_bytes_per_s: float
    measured_bytes_per_s: float

    @property
    def error(self) -> float:
        return abs(self.measured_bytes_per_s / self.configured_bytes_per_s - 1)

    @property
    def is_off(self) -> bool:
        ratio = self.measured_bytes_per_s / self.configured_bytes_per_s
        return not 1 - SLOW_RATE_TOLERANCE <= ratio <= 1 + RATE_TOLERANCE


Measured = TypeVar("Measured", RoundTrip, NicRate)


def prove(testbed: Testbed) -> tuple[list[RoundTrip], list[NicRate]]:
    """Measure round trips and NIC rates. Raise `TestbedError` if some are off, and name them.

    Before that, values that are off are measured again for some seconds: the machine may be busy.
    """
    check_reachable(testbed)
    give_up_s = time.monotonic() + _REPEAT_FOR_S
    trips = measure_round_trips(testbed)
    rates = measure_nic_rates(testbed)
    while any(trip.is_off for trip in trips) or any(rate.is_off for rate in rates):
        if time.monotonic() > give_up_s:
            wrong = [describe_trip(trip) for trip in trips if trip.is_off]
            wrong += [describe_rate(rate) for rate in rates if rate.is_off]
            raise TestbedError(
                f"testbed {testbed.instance.id}: the network is not what its file says: "
                f"{'; '.join(wrong)} (if too slow: is the machine overloaded?)"
            )
        if any(trip.is_off for trip in trips):
            trips = list(map(_closer, trips, measure_round_trips(testbed)))
        if any(rate.is_off for rate in rates):
            rates = list(map(_closer, rates, measure_nic_rates(testbed)))
    return trips, rates


def _closer(before: Measured, now: Measured) -> Measured:
    """Return the measurement that is closer to what the grid file says."""
    return min(before, now, key=lambda one: one.error)


def describe_trip(trip: RoundTrip) -> str:
    return (
        f"round trip {trip.source}-{trip.target} configured {format_duration(trip.configured_s)}, "
        f"measured {format_duration(trip.measured_s)}"
    )


def describe_rate(rate: NicRate) -> str:
    return (
        f"NIC of {rate.cluster} configured {format_rate(rate.configured_bytes_per_s)}, "
        f"measured {format_rate(rate.measured_bytes_per_s)}"
    )


def open_socket(testbed: Testbed, host: str, kind: socket.SocketKind) -> socket.socket:
    """Open a socket of this process on the network of ``host``, bound to its address."""
    fd = testbed.descriptor(host, "net")
    try:
        with linux.inside({"net": fd}):
            opened = socket.socket(socket.AF_INET, kind)
    finally:
        os.close(fd)
    opened.bind((testbed.hosts[host].address, 0))
    return opened


def check_reachable(testbed: Testbed) -> None:
    """Raise `TestbedError` if the first host of a cluster cannot reach another host of it."""
    for hosts in testbed.spec.hosts:
        for host in hosts[1:]:
            measure_round_trip_s(testbed, hosts[0], host, 1)


def measure_round_trips(testbed: Testbed) -> list[RoundTrip]:
    """Measure the shortest round trip between the first hosts of each pair of clusters."""
    spec = testbed.spec
    measured = []
    for i, j in combinations(range(len(spec.clusters)), 2):
        least_s = measure_round_trip_s(testbed, spec.hosts[i][0], spec.hosts[j][0], _ROUNDS)
        configured_s = 2 * float(spec.latency_s[i, j])
        measured.append(
            RoundTrip(spec.clusters[i].name, spec.clusters[j].name, configured_s, least_s)
        )
    return measured


def measure_round_trip_s(testbed: Testbed, source: str, target: str, n_rounds: int) -> float:
    """Measure the shortest of ``n_rounds`` UDP round trips; `TestbedError` if one is lost."""
    try:
        with (
            open_socket(testbed, source, socket.SOCK_DGRAM) as a,
            open_socket(testbed, target, socket.SOCK_DGRAM) as b,
        ):
            a.connect(b.getsockname())
            b.connect(a.getsockname())
            for end in (a, b):
                end.settimeout(_LOST_AFTER_S + 2 * float(testbed.spec.latency_s.max()))
            return min(_round_trip_s(a, b) for _ in range(n_rounds))
    except OSError as error:
        raise TestbedError(
            f"testbed {testbed.instance.id}: {target} cannot be reached from {source}: {error}"
        ) from None


def _round_trip_s(a: socket.socket, b: socket.socket) -> float:
    start_s = time.perf_counter()
    a.send(bytes(8))
    b.recv(8)
    b.send(bytes(8))
    a.recv(8)
    return time.perf_counter() - start_s


def measure_nic_rates(testbed: Testbed) -> list[NicRate]:
    """Measure the rate between two hosts of each cluster.

    Clusters are left out if they have one host, or NICs so fast that processors may be the limit.
    """
    spec = testbed.spec
    measured = []
    for cluster, hosts in enumerate(spec.hosts):
        configured = float(spec.nic_bytes_per_s[cluster])
        if len(hosts) < 2 or configured > _RATE_CHECKED_BELOW_BYTES_PER_S:
            continue
        n_bytes = min(_RATE_BYTES, int(configured * 0.2)) + 4 * spec.burst_bytes
        rate = measure_rate(testbed, hosts[0], hosts[1], n_bytes)
        measured.append(NicRate(spec.clusters[cluster].name, configured, rate))
    return measured


def measure_rate(testbed: Testbed, source: str, target: str, n_bytes: int) -> float:
    """Measure the bytes per second of one TCP flow from host to host, after the burst."""
    with (
        open_socket(testbed, target, socket.SOCK_STREAM) as listener,
        open_socket(testbed, source, socket.SOCK_STREAM) as sender,
    ):
        listener.listen(1)
        listener.settimeout(2.0)
        sender.settimeout(2.0)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            return _drain_rate(sender, receiver, n_bytes, 2 * testbed.spec.burst_bytes)


def _drain_rate(
    sender: socket.socket, receiver: socket.socket, n_bytes: int, n_skipped: int
) -> float:
    sender.setblocking(False)
    receiver.setblocking(False)
    n_sent = n_received = n_first = 0
    block = bytes(65536)
    first_s = last_s = start_s = time.perf_counter()
    give_up_s = start_s + 10.0
    while n_received < n_bytes and last_s < give_up_s:
        senders = [sender] if n_sent < n_bytes else []
        readable, writable, _ = select.select([receiver], senders, [], 1.0)
        if writable:
            n_sent += sender.send(block)
        if readable:
            n_received += len(receiver.recv(1 << 20))
        last_s = time.perf_counter()
        if not n_first and n_received > n_skipped:
            n_first, first_s = n_received, last_s
    return (n_received - n_first) / max(last_s - first_s, 1e-9)
