"""The emulated network itself, without MPI."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gridcoll.errors import FileError, TestbedError
from gridcoll.testbed import linux, probe
from gridcoll.testbed.instances import find_instance, list_instances
from gridcoll.testbed.layout import neighbours
from gridcoll.testbed.testbed import Testbed, clear_up
from gridcoll.topology import parse_gridfile

pytestmark = pytest.mark.testbed

PERMANENT, NO_ARP = 0x80, 0x40
"""States of a neighbour, as the kernel has them."""

WriteGrid = Callable[..., Path]


def said(testbed: Testbed, host: str, *argv: str) -> str:
    process = testbed.popen(host, argv, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return out.decode().strip()


class TestNetwork:
    def test_proves_itself(self, small: Testbed) -> None:
        trips, rates = probe.prove(small)
        assert [(trip.source, trip.target) for trip in trips] == [("left", "right")]
        assert trips[0].configured_s == 0.012
        assert [rate.cluster for rate in rates] == ["left", "right"]

    def test_no_flow_is_faster_than_the_link(self, small: Testbed) -> None:
        rate = probe.measure_rate(small, "left-0", "right-0", 1_000_000)
        assert rate <= 5e6 * 1.05

    @pytest.mark.parametrize(("source", "target"), [("left-0", "right-0"), ("right-0", "left-0")])
    def test_sending_and_receiving_are_limited(
        self, write_grid: WriteGrid, source: str, target: str
    ) -> None:
        uneven = write_grid('nic = "80 Mbit/s"', 'nic = "16 Mbit/s"', 'rate = "40 Mbit/s"', "")
        with Testbed.up(uneven) as testbed:
            rate = probe.measure_rate(testbed, source, target, 400_000)
        assert rate <= 2e6 * 1.05

    def test_hosts_know_their_names_and_each_other(self, small: Testbed) -> None:
        assert said(small, "right-1", "hostname") == "right-1"
        assert said(small, "right-1", "getent", "hosts", "left-0").split() == ["10.1.0.1", "left-0"]

    def test_hosts_share_no_memory(self, small: Testbed) -> None:
        said(small, "left-0", "sh", "-c", "echo secret > /dev/shm/mine")
        assert said(small, "left-0", "ls", "/dev/shm") == "mine"
        assert said(small, "left-1", "ls", "/dev/shm") == ""
        assert not Path("/dev/shm/mine").exists()
        ipc = [said(small, host, "readlink", "/proc/self/ns/ipc") for host in small.hosts]
        assert len(set(ipc)) == len(ipc)

    def test_nobody_asks_who_is_where(self, small: Testbed) -> None:
        """All know all they talk to for good; what is asked for counts for the whole machine."""
        probe.check_reachable(small)
        for a, b in permutations(small.hosts, 2):
            assert probe.measure_round_trip_s(small, a, b, 1) > 0
        for name, host in small.hosts.items():
            fd = small.descriptor(name, "net")
            macs = neighbours(small.hosts, host.cluster)
            del macs[host.address]
            assert known_in(fd) == {(address, mac, PERMANENT) for address, mac in macs.items()}
            os.close(fd)
        fd = linux.open_namespace("net", small.instance.pid)
        everybody = {(host.address, host.mac, PERMANENT) for host in small.hosts.values()}
        assert known_in(fd) == everybody
        os.close(fd)

    def test_a_neighbour_that_is_not_written_down_shows(self, write_grid: WriteGrid) -> None:
        """The test above would see it."""
        from pyroute2 import IPRoute

        with Testbed.up(write_grid()) as testbed:
            fd = testbed.descriptor("left-0", "net")
            left_1 = testbed.hosts["left-1"]
            with linux.inside({"net": fd}), IPRoute() as ip:
                ip.neigh("del", dst=left_1.address, ifindex=ip.link_lookup(ifname="eth0")[0])
            probe.measure_round_trip_s(testbed, "left-0", "left-1", 1)
            states = {address: state for address, _, state in known_in(fd)}
            assert states[left_1.address] != PERMANENT
            os.close(fd)

    def test_commands_start_in_this_directory(self, small: Testbed) -> None:
        assert said(small, "left-0", "pwd") == str(Path.cwd())

    @pytest.mark.parametrize("host", ["left-1", "right-0"])
    def test_congestion_control_is_as_configured_at_both_ends(
        self, small: Testbed, host: str
    ) -> None:
        for end in connected(small, "left-0", host):
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(
                b"cubic"
            )
            end.close()

    def test_congestion_control_can_be_chosen(self, write_grid: WriteGrid) -> None:
        grid = write_grid("[[links]]", '[transport]\ncongestion_control = "reno"\n[[links]]')
        with Testbed.up(grid) as testbed:
            for end in connected(testbed, "left-0", "right-0"):
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(
                    b"reno"
                )
                end.close()

    @pytest.mark.parametrize(("dilation", "least_s"), [(1, 0.2), (5, 1.0)])
    def test_timeouts_are_dilated_as_well(
        self, write_grid: WriteGrid, dilation: int, least_s: float
    ) -> None:
        grid = write_grid('name = "small"', f'name = "small"\ndilation = {dilation}')
        with Testbed.up(grid) as testbed:
            for host in ("left-1", "right-0"):
                for end in connected(testbed, "left-0", host):
                    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 12)
                    rto_s = int.from_bytes(info[8:12], sys.byteorder) * 1e-6
                    assert least_s <= rto_s < 1.5 * least_s
                    end.close()

    def test_a_capped_window_caps_a_flow(self, write_grid: WriteGrid) -> None:
        grid = write_grid(
            "[[links]]", '[transport]\nwindow = "64 KiB"\n[[links]]', '"6 ms"', '"20 ms"'
        )
        with Testbed.up(grid) as testbed:
            rate = probe.measure_rate(testbed, "left-0", "right-0", 1_000_000)
        assert rate <= 1.3 * 64 * 1024 / 0.040


def known_in(net: int) -> set[tuple[str, str | None, int]]:
    """The neighbours that a network namespace knows: address, MAC, state; loopback apart."""
    from pyroute2 import IPRoute

    with linux.inside({"net": net}), IPRoute() as ip:
        loopback = ip.link_lookup(ifname="lo")[0]
        return {
            (entry.get_attr("NDA_DST"), entry.get_attr("NDA_LLADDR"), entry["state"])
            for entry in ip.get_neighbours(family=socket.AF_INET)
            if entry["ifindex"] != loopback and entry["state"] != NO_ARP
        }


def connected(testbed: Testbed, source: str, target: str) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection between two hosts."""
    with probe.open_socket(testbed, target, socket.SOCK_STREAM) as listener:
        listener.listen(1)
        listener.settimeout(10)
        a = probe.open_socket(testbed, source, socket.SOCK_STREAM)
        a.settimeout(10)
        a.connect(listener.getsockname())
        return a, listener.accept()[0]


class TestProof:
    """A network that is not what its file says: here the file changes after the fact."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probe, "_REPEAT_FOR_S", 0.0)

    @pytest.mark.parametrize("latency", ["2 ms", "30 ms"])
    def test_a_wrong_latency_is_told_with_both_figures(self, small: Testbed, latency: str) -> None:
        other = Testbed(small.instance)
        other.spec = parse_gridfile(small.instance.text.replace("6 ms", latency))
        with pytest.raises(
            TestbedError, match=r"round trip left-right configured (4|60) ms, measured [0-9.]+ ms"
        ):
            probe.prove(other)

    @pytest.mark.parametrize("rate", ["20 Mbit/s", "180 Mbit/s"])
    def test_a_wrong_nic_is_told_with_both_figures(self, small: Testbed, rate: str) -> None:
        other = Testbed(small.instance)
        other.spec = parse_gridfile(small.instance.text.replace("100 Mbit/s", rate))
        with pytest.raises(
            TestbedError, match=rf"NIC of left configured {rate}, measured [0-9.]+ Mbit/s"
        ):
            probe.prove(other)

    @pytest.mark.parametrize("end", ["eth0", "port1-1"])
    def test_an_unreachable_host_is_named(
        self, write_grid: WriteGrid, monkeypatch: pytest.MonkeyPatch, end: str
    ) -> None:
        """Its cable is unplugged, at the host or at the switch."""
        from pyroute2 import IPRoute

        monkeypatch.setattr(probe, "_LOST_AFTER_S", 0.1)
        with Testbed.up(write_grid()) as testbed:
            fd = (
                testbed.descriptor("right-1", "net")
                if end == "eth0"
                else linux.open_namespace("net", testbed.instance.pid)
            )
            with linux.inside({"net": fd}), IPRoute() as ip:
                ip.link("set", index=ip.link_lookup(ifname=end)[0], state="down")
            os.close(fd)
            with pytest.raises(TestbedError, match="right-1 cannot be reached from right-0"):
                probe.prove(testbed)


class TestLife:
    def test_nothing_is_left(self, write_grid: WriteGrid, watch: Any) -> None:
        with Testbed.up(write_grid()) as testbed:
            watch.note(testbed.instance)
            assert [i.id for i in list_instances()].count(testbed.instance.id) == 1
            testbed.popen("left-0", ["sleep", "1000"])

    def test_nothing_is_left_after_a_crash(self, write_grid: WriteGrid, watch: Any) -> None:
        def crash() -> None:
            with Testbed.up(write_grid()) as testbed:
                watch.note(testbed.instance)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            crash()

    def test_orphans_on_its_hosts_are_reaped(self, small: Testbed) -> None:
        said(small, "left-0", "sh", "-c", "(sleep 0.1 > /dev/null &)")
        pid = small.instance.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        give_up_s = time.monotonic() + 20
        while children.read_text() and time.monotonic() < give_up_s:
            time.sleep(0.05)
        assert children.read_text() == ""

    def test_down_twice_is_down(self, write_grid: WriteGrid, watch: Any) -> None:
        testbed = Testbed.up(write_grid())
        watch.note(testbed.instance)
        testbed.down()
        testbed.down()
        with pytest.raises(TestbedError, match=rf"{testbed.instance.id}: is down"):
            testbed.popen("left-0", ["true"])

    def test_two_of_the_same_grid_do_not_meet(self, write_grid: WriteGrid, watch: Any) -> None:
        with Testbed.up(write_grid()) as one, Testbed.up(write_grid()) as other:
            watch.note(one.instance)
            watch.note(other.instance)
            assert one.instance.id != other.instance.id
            said(one, "left-0", "sh", "-c", "echo one > /dev/shm/whose")
            assert said(other, "left-0", "ls", "/dev/shm") == ""
            probe.prove(other)
            one.down()
            probe.prove(other)

    def test_what_a_killed_one_left_is_cleared_up(self, write_grid: WriteGrid) -> None:
        stale = Testbed.up(write_grid())
        stale.down()
        stale.instance.save()
        assert stale.instance.path.exists()
        with Testbed.up(write_grid()):
            assert not stale.instance.path.exists()
        with pytest.raises(TestbedError, match=rf"none is called '{stale.instance.id}'"):
            find_instance(stale.instance.id)

    def test_one_that_outlived_its_owner_is_taken_down(
        self, write_grid: WriteGrid, watch: Any
    ) -> None:
        owner = subprocess.Popen(["true"])
        owner.wait()
        testbed = Testbed.up(write_grid(), detached=True)
        watch.note(testbed.instance)
        orphan = msgspec.structs.replace(testbed.instance, owner_pid=owner.pid, owner_started="1")
        orphan.save()
        testbed.let_go()
        assert orphan.id in clear_up()

    def test_a_file_that_is_no_instance_is_cleared_up(self, small: Testbed) -> None:
        path = small.instance.path.with_name("garbage.json")
        path.write_text("{")
        list_instances()
        assert not path.exists()

    def test_a_host_that_is_not_there_is_told(self, small: Testbed) -> None:
        with pytest.raises(TestbedError, match="no host is called 'centre-0'; there are left-0, r"):
            small.popen("centre-0", ["true"])

    def test_an_unknown_congestion_control_is_told(self, write_grid: WriteGrid) -> None:
        grid = write_grid("[[links]]", '[transport]\ncongestion_control = "wish"\n[[links]]')
        with pytest.raises(TestbedError, match=r"this machine has .*cubic.*, not 'wish'"):
            Testbed.up(grid)

    def test_a_bad_file_costs_nothing(self, write_grid: WriteGrid, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="link 'left'-'right': duration"):
            Testbed.up(write_grid('latency = "6 ms"', 'latency = "6 m"'))
        with pytest.raises(FileError, match=r"missing\.toml"):
            Testbed.up(tmp_path / "missing.toml")
