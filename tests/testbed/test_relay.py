from __future__ import annotations

import ctypes
import math
import os
import socket
import struct
import threading
from collections.abc import Callable
from random import Random

import pytest

from gridcoll.testbed import relay
from gridcoll.testbed.relay import (
    COMPILED,
    KERNEL_PATH_S,
    CompiledWan,
    Link,
    Wan,
    carry_packets,
    payload_bytes,
    run_relay,
)
from gridcoll.topology import parse_gridfile

GRID = """
version = 1
name = "g"
[[clusters]]
name = "a"
hosts = 1
uplink = "8 Mbit/s"
[[clusters]]
name = "b"
hosts = 1
[[clusters]]
name = "c"
hosts = 1
[[links]]
between = ["a", "b"]
latency = "10 ms"
rate = "80 Mbit/s"
[default_link]
latency = "20 ms"
"""


def packet(source: int, target: int, n_bytes: int, gso: int = 0, header: int = 0) -> bytes:
    """A virtio header and an IPv4 packet of ``n_bytes`` between two clusters' hosts."""
    virtio = struct.pack("<BBHHHH", 0, 1 if gso else 0, header, gso, 0, 0)
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, n_bytes, 0, 0, 64, 6, 0,
        bytes((10, source + 1, 0, 1)), bytes((10, target + 1, 0, 1)),
    )  # fmt: skip
    return virtio + ip + bytes(n_bytes - len(ip))


@pytest.fixture
def wan() -> Wan:
    return Wan(parse_gridfile(GRID))


class TestLink:
    def test_bytes_leave_at_its_rate_one_after_the_other(self) -> None:
        link = Link(1000.0, math.inf)
        assert link.carry(100, 5.0) == pytest.approx(5.1)
        assert link.carry(100, 5.0) == pytest.approx(5.2)
        assert link.carry(100, 9.0) == pytest.approx(9.1)

    def test_drops_what_its_queue_cannot_hold(self) -> None:
        link = Link(1000.0, 150)
        link.carry(100, 0.0)
        assert link.accepts(0.0)
        link.carry(100, 0.0)
        assert not link.accepts(0.0)
        assert link.n_dropped == 1
        assert link.accepts(0.051)

    def test_without_a_rate_nothing_waits(self) -> None:
        link = Link(math.inf, math.inf)
        assert link.carry(10**9, 2.0) == 2.0
        assert link.accepts(2.0)


class TestWan:
    def test_latency_is_counted_from_the_last_byte(self, wan: Wan) -> None:
        assert wan.arrival_s(2, 1, 10_000, 1.0) == pytest.approx(1.02 - KERNEL_PATH_S)
        wan = Wan(parse_gridfile(GRID.replace('uplink = "8 Mbit/s"', "")))
        assert wan.arrival_s(0, 1, 10_000, 1.0) == pytest.approx(1.011 - KERNEL_PATH_S)

    def test_as_many_bytes_wait_in_slow_motion(self) -> None:
        def waiting(text: str) -> list[float]:
            paths = Wan(parse_gridfile(text)).path
            links = [link for path in paths for to in path for link in to]
            return [link.queue_s / link.s_per_byte for link in links if link.s_per_byte]

        fast = GRID.replace("8 Mbit/s", "800 Mbit/s")
        assert waiting(fast) == pytest.approx(waiting("dilation = 8" + fast))
        said = waiting(fast + '[transport]\nqueue = "32 KiB"\n')
        assert said == pytest.approx([32768] * len(said))

    def test_directions_do_not_share_a_link(self) -> None:
        wan = Wan(parse_gridfile(GRID.replace('uplink = "8 Mbit/s"', "")))
        there = wan.arrival_s(0, 1, 10_000, 1.0)
        assert wan.arrival_s(1, 0, 10_000, 1.0) == there
        assert wan.arrival_s(0, 1, 10_000, 1.0) == pytest.approx(there + 0.001)

    def test_all_that_leaves_a_cluster_shares_its_uplink(self, wan: Wan) -> None:
        first = wan.arrival_s(0, 1, 10_000, 1.0)
        assert first == pytest.approx(1.02 - KERNEL_PATH_S)  # 10 ms at 8 Mbit/s, then 10 ms
        assert wan.arrival_s(0, 2, 10_000, 1.0) == pytest.approx(1.04 - KERNEL_PATH_S)

    def test_all_that_enters_a_cluster_shares_its_uplink(self, wan: Wan) -> None:
        wan.arrival_s(1, 0, 10_000, 1.0)
        assert wan.arrival_s(2, 0, 10_000, 1.0) == pytest.approx(1.04 - KERNEL_PATH_S)

    def test_a_full_queue_drops(self, wan: Wan) -> None:
        n_sent = 0
        while wan.arrival_s(0, 1, 10_000, 1.0) is not None:
            n_sent += 1
        assert 256 * 1024 <= n_sent * 10_000 <= 256 * 1024 + 20_000


class TestPayload:
    def test_a_full_frame_costs_what_it_carries(self) -> None:
        assert payload_bytes(packet(0, 1, 1500)) == pytest.approx(1448)

    def test_a_packet_of_many_frames_pays_for_each_header(self) -> None:
        assert payload_bytes(packet(0, 1, 10 * 1448 + 52, 1448, 52)) == pytest.approx(14480)

    def test_an_acknowledgement_costs_its_frame(self) -> None:
        assert payload_bytes(packet(0, 1, 52)) == pytest.approx(66 * 1448 / 1514)


class TestCompiledWan:
    def test_packets_arrive_when_they_would_in_python(self) -> None:
        """Drops included: queues fill up on the way."""
        arrival_s = ctypes.CDLL(str(COMPILED)).gridcoll_arrival_s
        arrival_s.restype = ctypes.c_double
        arrival_s.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 2, *[ctypes.c_double] * 2]
        random, wan = Random(1), Wan(parse_gridfile(GRID))
        links = CompiledWan(wan)
        now_s, n_dropped = 1.0, 0
        for _ in range(3000):
            source, target = random.sample(range(3), 2)
            n_bytes, now_s = random.uniform(50, 64_000), now_s + random.uniform(0, 0.01)
            wanted_s = wan.arrival_s(source, target, n_bytes, now_s)
            got_s = arrival_s(ctypes.addressof(links), source, target, n_bytes, now_s)
            assert got_s == (-1.0 if wanted_s is None else pytest.approx(wanted_s, abs=1e-12))
            n_dropped += wanted_s is None
        assert 0 < n_dropped < 3000


class TestChanges:
    def test_a_link_changes_for_what_comes_later(self, wan: Wan) -> None:
        wan.change(1, 2, latency_s=0.05, rate_bytes_per_s=1e6)
        assert wan.arrival_s(1, 2, 1000, 1.0) == pytest.approx(1.051 - KERNEL_PATH_S)
        assert wan.arrival_s(2, 1, 1000, 1.0) == pytest.approx(1.02 - KERNEL_PATH_S)
        wan.change(1, 2, latency_s=0.01)
        assert wan.arrival_s(1, 2, 1000, 2.0) == pytest.approx(2.011 - KERNEL_PATH_S)
        wan.change(1, 2, reset=True)
        assert wan.arrival_s(1, 2, 1000, 3.0) == pytest.approx(3.02 - KERNEL_PATH_S)

    def test_c_follows(self, wan: Wan) -> None:
        arrival_s = ctypes.CDLL(str(COMPILED)).gridcoll_arrival_s
        arrival_s.restype = ctypes.c_double
        arrival_s.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 2, *[ctypes.c_double] * 2]
        links = CompiledWan(wan)
        wan.change(0, 1, latency_s=0.05, rate_bytes_per_s=1e6)
        links.follow()
        got_s = arrival_s(ctypes.addressof(links), 0, 1, 1000.0, 1.0)
        assert got_s == pytest.approx(wan.arrival_s(0, 1, 1000, 1.0))


class TestRelay:
    @pytest.mark.parametrize("relay_loop", [run_relay, carry_packets])
    def test_frames_are_lost(self, relay_loop: Callable[[int, Wan, int], None]) -> None:
        wan = Wan(parse_gridfile(GRID))
        for target in (0, 1):
            wan.change(2, target, latency_s=1e-3, loss=0.5 if target else 0.0)
        ours, tun = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tun.setblocking(False)
        stop, end = os.pipe()
        thread = threading.Thread(target=relay_loop, args=(tun.fileno(), wan, stop))
        thread.start()
        for _ in range(100):
            ours.send(packet(2, 1, 60))
            ours.send(packet(2, 0, 60))
        ours.settimeout(10)
        targets = []
        while targets.count(0) < 100:
            targets.append(ours.recv(100)[27] - 1)
        os.close(end)
        thread.join(10)
        for each in (ours, tun):
            each.close()
        os.close(stop)
        assert 20 <= targets.count(1) <= 80

    @pytest.mark.parametrize("relay_loop", [run_relay, carry_packets])
    def test_carries_packets_in_the_order_they_are_due_until_stopped(
        self, monkeypatch: pytest.MonkeyPatch, relay_loop: Callable[[int, Wan, int], None]
    ) -> None:
        assert COMPILED.exists(), "there is a C compiler where tests run"
        monkeypatch.setattr(relay, "KERNEL_PATH_S", 0.0)
        ours, tun = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tun.setblocking(False)
        stop, end = os.pipe()
        late, soon = packet(2, 1, 1500), packet(0, 1, 60)
        ours.send(late)
        ours.send(packet(0, 7, 60))  # of no cluster: dropped
        ours.send(soon)
        wan = Wan(parse_gridfile(GRID))
        thread = threading.Thread(target=relay_loop, args=(tun.fileno(), wan, stop))
        thread.start()
        ours.settimeout(10)
        assert ours.recv(2000) == soon  # 10 ms against 20 ms
        assert ours.recv(2000) == late
        os.close(end)
        thread.join(10)
        assert not thread.is_alive()
        os.close(stop)
        ours.close()
        tun.close()
