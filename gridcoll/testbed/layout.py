"""Addresses, names and paths of everything in an emulated grid; nothing is built here."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gridcoll.errors import TestbedError
from gridcoll.topology import GridSpec

RUN_DIR = "/run/gridcoll"
"""Outside, it has one file per running testbed. On the hosts, it is a tmpfs for agent and files."""

AGENT = f"{RUN_DIR}/agent"

FRAME_OVERHEAD_BYTES = 66
"""Headers in each frame of a bulk transfer: Ethernet (14), IP (20), TCP with timestamps (32)."""

SEGMENT_BYTES = 1448
"""Application data in a full frame of 1500 bytes."""

WIRE_PER_PAYLOAD = (SEGMENT_BYTES + FRAME_OVERHEAD_BYTES) / SEGMENT_BYTES
"""Rates in grid files are those of application data; the wire must carry headers as well."""

_MAX_CLUSTERS = 200
_MAX_HOSTS = 200
_GATEWAY = 254


class Host(Struct, frozen=True):
    """One emulated host, with its own network, host name, ``/dev/shm`` and IPC namespace."""

    name: str
    cluster: int
    index: int
    slots: int

    @property
    def address(self) -> str:
        return f"10.{self.cluster + 1}.0.{self.index + 1}"

    @property
    def mac(self) -> str:
        return _mac(self.cluster, self.index + 1)

    @property
    def port_name(self) -> str:
        """The interface at the bridge's end of this host's cable."""
        return f"port{self.cluster}-{self.index}"


def subnet(cluster: int) -> str:
    return f"10.{cluster + 1}.0.0/24"


def gateway(cluster: int) -> str:
    return f"10.{cluster + 1}.0.{_GATEWAY}"


def gateway_mac(cluster: int) -> str:
    return _mac(cluster, _GATEWAY)


def _mac(cluster: int, number: int) -> str:
    """Return the MAC address, locally administered, for ``10.{cluster + 1}.0.{number}``."""
    return f"02:00:0a:{cluster + 1:02x}:00:{number:02x}"


def bridge(cluster: int) -> str:
    return f"br{cluster}"


def cluster_of_address(second_octet: int) -> int:
    """Return the cluster whose hosts have ``10.{second_octet}.…``; it may be out of range."""
    return second_octet - 1


def lay_out(spec: GridSpec) -> dict[str, Host]:
    """Return the hosts of ``spec`` by name, in rank order.

    Raises `TestbedError` if the grid has no hosts, or too many hosts or clusters.
    """
    if spec.by_rank:
        raise TestbedError(
            f"testbed: grid {spec.name!r} gives ranks, not hosts; a testbed needs hosts"
        )
    if len(spec.clusters) > _MAX_CLUSTERS:
        raise TestbedError(
            f"testbed: at most {_MAX_CLUSTERS} clusters, grid {spec.name!r} has "
            f"{len(spec.clusters)}"
        )
    hosts = {}
    for cluster, names in enumerate(spec.hosts):
        if len(names) > _MAX_HOSTS:
            raise TestbedError(
                f"testbed: at most {_MAX_HOSTS} hosts per cluster, "
                f"{spec.clusters[cluster].name!r} has {len(names)}"
            )
        for index, name in enumerate(names):
            hosts[name] = Host(name, cluster, index, spec.clusters[cluster].slots)
    return {name: hosts[name] for name in spec.host_order()}


def neighbours(hosts: Mapping[str, Host], cluster: int) -> dict[str, str]:
    """Return MAC addresses by IP address, of the cluster's hosts and of its bridge."""
    found = {host.address: host.mac for host in hosts.values() if host.cluster == cluster}
    return {**found, gateway(cluster): gateway_mac(cluster)}


def format_etc_hosts(hosts: dict[str, Host]) -> str:
    """Return the text of ``/etc/hosts``, which is the same on every host."""
    lines = ["127.0.0.1 localhost"]
    lines += [f"{host.address} {host.name}" for host in hosts.values()]
    return "\n".join(lines) + "\n"
