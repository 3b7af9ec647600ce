"""The WAN: a process that delays every packet between clusters as the grid file says.

The kernel hands packets between clusters to a TUN device. Here each packet waits for its link,
which has a rate, and for its latency; then it goes back to the kernel. Packets inside a cluster do
not pass here.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import math
import os
import random
import select
import struct
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from gridcoll.testbed.layout import FRAME_OVERHEAD_BYTES, WIRE_PER_PAYLOAD, cluster_of_address
from gridcoll.topology import GridSpec

_VNET_HEADER = struct.Struct("<BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_off
_MAX_PACKET_BYTES = 65536 + 64
_ETHERNET_BYTES = 14

KERNEL_PATH_S = 35e-6
"""The time that a packet's path through hosts, bridges and this process takes by itself."""

_SPIN_S = 60e-6
"""The process stops sleeping this long before a packet is due, as sleeps end that late."""

# Buffers of a router, if the grid file gives none: 50 ms or one round trip at the link's rate,
# whichever is more.
_QUEUE_S = 0.05
_QUEUE_MIN_BYTES = 256 * 1024


class Link:
    """A link that carries one byte after the other, with a queue in front of it and tail drop.

    ``rate_bytes_per_s`` may be ``inf``; ``queue_bytes`` is how many bytes may wait.
    """

    def __init__(self, rate_bytes_per_s: float, queue_bytes: float) -> None:
        self.s_per_byte = 1.0 / rate_bytes_per_s
        self.queue_s = math.inf if math.isinf(rate_bytes_per_s) else queue_bytes * self.s_per_byte
        self.free_s = 0.0
        self.n_dropped = 0

    def accepts(self, now_s: float) -> bool:
        """Whether a packet arriving now finds room in the queue; if not, it counts as dropped."""
        if self.free_s - now_s > self.queue_s:
            self.n_dropped += 1
            return False
        return True

    def carry(self, n_bytes: float, now_s: float) -> float:
        """Return the time at which ``n_bytes`` that arrive now have left."""
        self.free_s = max(now_s, self.free_s) + n_bytes * self.s_per_byte
        return self.free_s


class Wan:
    """The links and latencies of a grid, and when packets arrive over them. It reads no clock."""

    def __init__(self, spec: GridSpec) -> None:
        n = len(spec.clusters)
        self.n_clusters = n
        self.delay_s = [
            [max(0.0, float(spec.latency_s[i, j]) - KERNEL_PATH_S) for j in range(n)]
            for i in range(n)
        ]
        worst_s = float(spec.latency_s.max())
        self._least_queue_s, self._queue_bytes = _QUEUE_S * spec.dilation, spec.queue_bytes
        self.loss = [[0.0] * n for _ in range(n)]
        up = [self._link(float(rate), worst_s) for rate in spec.uplink_bytes_per_s]
        down = [self._link(float(rate), worst_s) for rate in spec.uplink_bytes_per_s]
        self.link: list[list[Link]] = [
            [
                self._link(float(spec.rate_bytes_per_s[i, j]), float(spec.latency_s[i, j]))
                for j in range(n)
            ]
            for i in range(n)
        ]
        self.path: list[list[tuple[Link, ...]]] = [
            [(*(k for k in (up[i], down[j]) if k.s_per_byte), self.link[i][j]) for j in range(n)]
            for i in range(n)
        ]
        self._original = [
            [(float(spec.rate_bytes_per_s[i, j]), float(spec.latency_s[i, j])) for j in range(n)]
            for i in range(n)
        ]
        self._now = [list(row) for row in self._original]

    def change(
        self,
        source: int,
        target: int,
        *,
        rate_bytes_per_s: float | None = None,
        latency_s: float | None = None,
        loss: float | None = None,
        reset: bool = False,
    ) -> None:
        """Change one direction of a link, for packets from now on."""
        if reset:
            self._now[source][target] = self._original[source][target]
            self.loss[source][target] = 0.0
        rate, latency = self._now[source][target]
        rate = rate if rate_bytes_per_s is None else rate_bytes_per_s
        latency = latency if latency_s is None else latency_s
        self._now[source][target] = rate, latency
        self.delay_s[source][target] = max(0.0, latency - KERNEL_PATH_S)
        new = self._link(rate, latency)
        link = self.link[source][target]
        link.s_per_byte, link.queue_s = new.s_per_byte, new.queue_s
        if loss is not None:
            self.loss[source][target] = loss

    def _link(self, rate_bytes_per_s: float, latency_s: float) -> Link:
        if math.isinf(rate_bytes_per_s):
            return Link(rate_bytes_per_s, math.inf)
        if self._queue_bytes is not None:
            return Link(rate_bytes_per_s, self._queue_bytes)
        queue_s = max(self._least_queue_s, 2 * latency_s)
        return Link(rate_bytes_per_s, max(_QUEUE_MIN_BYTES, queue_s * rate_bytes_per_s))

    def arrival_s(self, source: int, target: int, n_bytes: float, now_s: float) -> float | None:
        """Return when a packet leaving ``source`` now is at ``target``; None if it is dropped."""
        links = self.path[source][target]
        for link in links:
            if not link.accepts(now_s):
                return None
        gone_s = now_s
        for link in links:
            gone_s = max(gone_s, link.carry(n_bytes, now_s))
        return gone_s + self.delay_s[source][target]


def n_frames_of(packet: bytes) -> int:
    """Return how many frames ``packet`` (virtio header, then IP) is on the wire."""
    _, gso_type, header, gso, _, _ = _VNET_HEADER.unpack_from(packet)
    length = len(packet) - _VNET_HEADER.size
    return -(-(length - header) // gso) if gso_type and gso else 1


def payload_bytes(packet: bytes) -> float:
    """Return what ``packet`` (virtio header, then IP) costs a link, in bytes of application data.

    TCP hands over many frames as one packet; each frame has headers of its own on the wire.
    """
    n_frames, length = n_frames_of(packet), len(packet) - _VNET_HEADER.size
    wire = length + _ETHERNET_BYTES + (n_frames - 1) * FRAME_OVERHEAD_BYTES
    return wire / WIRE_PER_PAYLOAD


COMPILED = Path(__file__).with_name("_relay.so")
"""The loop in C; see relay.c."""

_LINKS_PER_PATH = 3


class _Link(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_double) for name in ("s_per_byte", "queue_s", "free_s")),
        ("n_dropped", ctypes.c_int64),
    ]


class CompiledWan(ctypes.Structure):
    """The links and latencies of a `Wan`, as relay.c has them."""

    _fields_ = [
        ("n_clusters", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("delay_s", "loss", "path", "links")),
        *((name, ctypes.c_double) for name in ("frame_overhead_bytes", "wire_per_payload")),
    ]

    def __init__(self, wan: Wan) -> None:
        n = wan.n_clusters
        paths = [path for row in wan.path for path in row]
        links = list({id(link): link for path in paths for link in path}.values())
        index_of = {id(link): k for k, link in enumerate(links)}
        numbers = [k for path in paths for k in _padded([index_of[id(link)] for link in path])]
        self._arrays = (
            (ctypes.c_double * (n * n))(),
            (ctypes.c_double * (n * n))(),
            (ctypes.c_int64 * len(numbers))(*numbers),
            (_Link * len(links))(),
        )
        self._wan, self._source = wan, links
        addresses = (ctypes.addressof(each) for each in self._arrays)
        super().__init__(n, *addresses, FRAME_OVERHEAD_BYTES, WIRE_PER_PAYLOAD)
        self.follow()

    def follow(self) -> None:
        """Copy changes of the `Wan`, one double at a time, also while C is reading."""
        delays, losses, _, links = self._arrays
        for k, (delay, loss) in enumerate(
            zip(chain(*self._wan.delay_s), chain(*self._wan.loss), strict=True)
        ):
            delays[k], losses[k] = delay, loss
        for compiled, link in zip(links, self._source, strict=True):
            compiled.s_per_byte, compiled.queue_s = link.s_per_byte, link.queue_s


def _padded(links: Sequence[int]) -> list[int]:
    return [*links, *[-1] * (_LINKS_PER_PATH - len(links))]


def carry_packets(tun: int, wan: Wan, stop: int, links: CompiledWan | None = None) -> None:
    """Do what `run_relay` does, in C if that was built: it takes a quarter of the time, or less.

    Changes of ``wan`` by another thread take effect at once; in C, after ``links.follow()``.
    """
    if not COMPILED.exists():
        run_relay(tun, wan, stop)
        return
    links = links or CompiledWan(wan)
    ctypes.CDLL(str(COMPILED)).gridcoll_relay(tun, stop, ctypes.byref(links))


def run_relay(tun: int, wan: Wan, stop: int, clock: Callable[[], float] = time.monotonic) -> None:
    """Carry packets from and to ``tun`` until ``stop`` is readable (its other end is closed)."""
    waiting: list[tuple[float, int, bytes]] = []
    n_seen = 0
    n = wan.n_clusters
    draw = random.Random(0).random
    while True:
        now = clock()
        while waiting and waiting[0][0] <= now:
            _write(tun, heapq.heappop(waiting)[2])
        timeout = max(0.0, waiting[0][0] - _SPIN_S - clock()) if waiting else None
        readable, _, _ = select.select([tun, stop] if stop >= 0 else [tun], [], [], timeout)
        if stop in readable:
            return
        if tun not in readable:
            continue
        now = clock()
        for packet in _read_all(tun):
            # IPv4 source and destination are at 12 and 16 of the header, after 10 bytes of virtio.
            source = cluster_of_address(packet[23])
            target = cluster_of_address(packet[27])
            if packet[10] >> 4 != 4 or not (0 <= source < n and 0 <= target < n):
                continue
            loss = wan.loss[source][target]
            if loss and draw() >= (1 - loss) ** n_frames_of(packet):
                continue
            at = wan.arrival_s(source, target, payload_bytes(packet), now)
            if at is not None:
                n_seen += 1
                heapq.heappush(waiting, (at, n_seen, packet))


def _read_all(tun: int, most: int = 64) -> list[bytes]:
    packets: list[bytes] = []
    try:
        while len(packets) < most:
            packets.append(os.read(tun, _MAX_PACKET_BYTES))
    except BlockingIOError:
        pass
    return packets


def _write(tun: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # a network drops what it cannot deliver
        os.write(tun, packet)
