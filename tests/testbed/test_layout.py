from __future__ import annotations

import pytest

from gridcoll.errors import TestbedError
from gridcoll.testbed.layout import (
    FRAME_OVERHEAD_BYTES,
    SEGMENT_BYTES,
    cluster_of_address,
    format_etc_hosts,
    gateway,
    gateway_mac,
    lay_out,
    neighbours,
    subnet,
)
from gridcoll.testbed.network import _gso_max_bytes
from gridcoll.topology import parse_gridfile


def spec(clusters: str, head: str = ""):  # type: ignore[no-untyped-def]
    return parse_gridfile(
        f'version = 1\nname = "g"\n{head}\n{clusters}\n[default_link]\nlatency = "5 ms"\n'
    )


TWO = '[[clusters]]\nname = "a"\nhosts = 2\n[[clusters]]\nname = "b"\nhosts = 1\nslots = 3\n'


def test_hosts_come_in_rank_order_with_addresses_by_cluster() -> None:
    hosts = lay_out(spec(TWO, 'rank_order = "interleaved"'))
    assert list(hosts) == ["a-0", "b-0", "a-1"]
    assert [host.address for host in hosts.values()] == ["10.1.0.1", "10.2.0.1", "10.1.0.2"]
    assert hosts["b-0"].slots == 3
    assert [cluster_of_address(int(h.address.split(".")[1])) for h in hosts.values()] == [0, 1, 0]


def test_a_segment_of_8_kib_travels_in_one_packet() -> None:
    """With what MPI libraries put before it; and a packet leaves the burst room to be late."""
    grid = spec(TWO)
    n_frames = (_gso_max_bytes(grid) - FRAME_OVERHEAD_BYTES) // SEGMENT_BYTES
    assert n_frames * SEGMENT_BYTES >= (8 << 10) + 128
    assert n_frames * (SEGMENT_BYTES + FRAME_OVERHEAD_BYTES) <= 0.7 * grid.burst_bytes


def test_gateways_are_no_hosts() -> None:
    assert subnet(1) == "10.2.0.0/24"
    assert gateway(1) == "10.2.0.254"


def test_interfaces_have_macs_of_their_own() -> None:
    hosts = lay_out(spec('[[clusters]]\nname = "a"\nhosts = 200\n' + TWO.replace('"a"', '"c"')))
    macs = [host.mac for host in hosts.values()] + [gateway_mac(cluster) for cluster in range(3)]
    assert len(set(macs)) == 203 + 3
    octets = [[int(part, 16) for part in mac.split(":")] for mac in macs]
    assert all(len(each) == 6 and max(each) < 256 for each in octets)
    assert all(each[0] & 3 == 2 for each in octets), "locally administered, of one interface"


def test_neighbours_are_those_on_the_same_bridge() -> None:
    hosts = lay_out(spec(TWO))
    assert neighbours(hosts, 0) == {
        "10.1.0.1": hosts["a-0"].mac,
        "10.1.0.2": hosts["a-1"].mac,
        gateway(0): gateway_mac(0),
    }
    assert list(neighbours(hosts, 1)) == ["10.2.0.1", gateway(1)]


def test_every_host_is_in_etc_hosts() -> None:
    text = format_etc_hosts(lay_out(spec(TWO)))
    assert text == "127.0.0.1 localhost\n10.1.0.1 a-0\n10.1.0.2 a-1\n10.2.0.1 b-0\n"


def test_a_grid_of_ranks_has_no_hosts_to_emulate() -> None:
    with pytest.raises(TestbedError, match=r"grid 'g' gives ranks, not hosts"):
        lay_out(spec('[[clusters]]\nname = "a"\nranks = 2\n'))


def test_too_many_hosts_are_refused() -> None:
    with pytest.raises(TestbedError, match=r"at most 200 hosts per cluster, 'a' has 201"):
        lay_out(spec('[[clusters]]\nname = "a"\nhosts = 201\n'))
    many = "".join(f'[[clusters]]\nname = "c{i}"\nhosts = 1\n' for i in range(201))
    with pytest.raises(TestbedError, match=r"at most 200 clusters, grid 'g' has 201"):
        lay_out(spec(many))
