"""Building the emulated network: namespaces, cables, bridges, rate limits, routes.

The network exists as long as file descriptors of the building process are open: when that process
ends, for whatever reason, the kernel removes the network. Nothing has a name outside, so testbeds
cannot collide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyroute2 import IPRoute, NetlinkError

from gridcoll.errors import TestbedError
from gridcoll.testbed import linux
from gridcoll.testbed.layout import (
    AGENT,
    RUN_DIR,
    WIRE_PER_PAYLOAD,
    Host,
    bridge,
    format_etc_hosts,
    gateway,
    gateway_mac,
    neighbours,
    subnet,
)
from gridcoll.topology import GridSpec

TUN = "wan"

_ETC_FILES = ("hosts", "resolv.conf")
_WAN_TABLE = 100
_TRIAL_TABLE = 101
_NO_PREFIX_ROUTE = 0x200
_HEADER_BYTES = 200  # headers of GSO packets, on top of gso_max_size, rounded up

# A queue of 60 ms holds what a dozen hosts send to one of them at once (their windows at LAN round
# trips), like a switch with a shared buffer. Tail loss in a LAN costs a timeout of 200 ms.
_NIC_QUEUE_S = 0.06
_NIC_QUEUE_MIN_BYTES = 256 * 1024
_BURST_MIN_BYTES = 4096  # with a burst of less than a frame or two, tbf passes nothing
_FASTEST_BYTES_PER_S = 3e9

# Data that is sent and not yet acknowledged stays in the sender's buffer, with the bookkeeping of
# packets. A limit on the receiver's buffer would be more like a window, but Linux changes the part
# of it that it advertises whenever packets of another size arrive.
_BUFFER_PER_WINDOW = 1.4

# The shortest retransmission timeout of Linux. In slow motion it must be longer as well, or losses
# that stop a real flow would cost almost no time.
_RTO_MIN_MS = 200
_RTAX_RTO_MIN = 13


def make_host_namespaces(hosts: Mapping[str, Host]) -> dict[str, dict[str, int]]:
    """Make namespaces for every host. Return file descriptors by host and kind.

    The caller must be in a mount namespace of its own. MPI libraries tell nodes apart by host name,
    and find shared memory in ``/dev/shm`` and System V IPC, so each host has its own of these.
    """
    home = {kind: linux.open_namespace(kind) for kind in linux.HOST_NAMESPACES}
    made = {}
    for name in hosts:
        linux.unshare(*linux.HOST_NAMESPACES)
        linux.sethostname(name)
        linux.make_mounts_private()
        linux.mount("tmpfs", "/dev/shm", "tmpfs", options="mode=1777")
        linux.mount("sysfs", "/sys", "sysfs")  # shows the network devices of the mounter
        for file in _ETC_FILES:
            if Path("/etc", file).exists():
                linux.bind_mount(Path(RUN_DIR, file), Path("/etc", file))
        made[name] = {kind: linux.open_namespace(kind) for kind in linux.HOST_NAMESPACES}
        for kind, fd in home.items():
            linux.setns(fd, kind)
    for fd in home.values():
        os.close(fd)
    return made


def write_host_files(hosts: Mapping[str, Host]) -> None:
    """Mount the tmpfs that all hosts share for launching, and write the host files into it."""
    linux.mount("tmpfs", RUN_DIR, "tmpfs", options="mode=755")
    Path(RUN_DIR, "hosts").write_text(format_etc_hosts(dict(hosts)))
    # Nothing outside can be reached: without this file, name servers would be asked in vain.
    Path(RUN_DIR, "resolv.conf").write_text("# no name servers\n")


def write_agent(namespaces: Mapping[str, Mapping[str, int]]) -> None:
    """Write the script that MPI launchers call instead of ssh: ``agent [-OPTION…] HOST COMMAND…``.

    Like ssh, it passes the joined command to a shell on that host. It finds the namespaces of all
    hosts among the descriptors of the building process, which is pid 1 of the testbed.
    """
    lines = ["#!/bin/sh", 'while case "$1" in -*) true ;; *) false ;; esac; do shift; done']
    lines += ["host=$1; shift", 'case "$host" in']
    for name, fds in namespaces.items():
        options = " ".join(linux.nsenter_options(fds, 1))
        lines.append(f'{name}) set -- {options} --wdns="$PWD" -- /bin/sh -c "$*" ;;')
    lines += [
        '*) echo "gridcoll testbed: no host is called $host" >&2; exit 255 ;;',
        "esac",
        'exec nsenter "$@"',
    ]
    Path(AGENT).write_text("\n".join(lines) + "\n")
    Path(AGENT).chmod(0o755)


def build_wan(spec: GridSpec, hosts: Mapping[str, Host], net: Mapping[str, int]) -> int:
    """Connect the hosts (network namespaces ``net``) in this process's own network namespace.

    Return the descriptor of the TUN device through which packets between clusters pass.
    """
    _write_sysctls({"ip_forward": "1"})
    for scope in ("all", "default"):
        _write_sysctls({f"conf/{scope}/rp_filter": "0", f"conf/{scope}/send_redirects": "0"})
    _disable_ipv6()
    _keep_firewall_out_of_bridges()
    tun = linux.open_tun(TUN)
    with IPRoute() as ip:
        _set_up(ip, "lo")
        _set_up(ip, TUN, txqlen=10_000)
        tun_index = ip.link_lookup(ifname=TUN)[0]
        _check_congestion_control(ip, spec, tun_index)
        ip.route("add", dst="0.0.0.0/0", oif=tun_index, table=_WAN_TABLE)
        for cluster in range(len(spec.clusters)):
            ip.link("add", ifname=bridge(cluster), kind="bridge", br_mcast_snooping=0)
            mac = gateway_mac(cluster)
            index = _set_up(ip, bridge(cluster), address=mac)
            _add_neighbours(ip, index, neighbours(hosts, cluster), mac)
            ip.addr("add", index=index, address=gateway(cluster), prefixlen=24)
            ip.rule("add", iifname=bridge(cluster), table=_WAN_TABLE, priority=100)
        for host in hosts.values():
            _plug_in(ip, spec, host, net[host.name])
    for host in hosts.values():
        with linux.inside({"net": net[host.name]}):
            _configure_host(spec, host, neighbours(hosts, host.cluster))
    return tun


def _check_congestion_control(ip: IPRoute, spec: GridSpec, tun_index: int) -> None:
    """Raise `TestbedError` if the kernel lacks the congestion control of ``spec``.

    It is set on an unused route: the kernel loads its module, or refuses.
    """
    name = spec.transport.congestion_control
    try:
        ip.route(
            "add",
            dst="192.0.2.0/24",  # reserved for documentation
            oif=tun_index,
            table=_TRIAL_TABLE,
            metrics={"cc_algo": name},
        )
    except NetlinkError:
        known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
        raise TestbedError(
            f"grid {spec.name!r}: transport.congestion_control: this machine has {known.strip()}, "
            f"not {name!r} (modprobe tcp_{name} may help)"
        ) from None


def _plug_in(ip: IPRoute, spec: GridSpec, host: Host, net_fd: int) -> None:
    ip.link(
        "add",
        ifname=host.port_name,
        kind="veth",
        peer={"ifname": "eth0", "net_ns_fd": net_fd, "address": host.mac},
    )
    index = ip.link_lookup(ifname=host.port_name)[0]
    ip.link("set", index=index, master=ip.link_lookup(ifname=bridge(host.cluster))[0], state="up")
    _limit_rate(ip, index, spec, float(spec.nic_bytes_per_s[host.cluster]))


def _add_neighbours(ip: IPRoute, index: int, macs: Mapping[str, str], own: str) -> None:
    """Add permanent ARP entries for ``macs`` to interface ``index``, whose MAC address is ``own``.

    Entries that the kernel learns are kept in one table for all namespaces, which has 1024 entries
    by default. Dozens of hosts that all talk to each other need thousands. Permanent entries do not
    count there, and no ARP request is ever sent.
    """
    for address, mac in macs.items():
        if mac != own:
            ip.neigh("add", dst=address, lladdr=mac, ifindex=index, state="permanent")


def _configure_host(spec: GridSpec, host: Host, macs: Mapping[str, str]) -> None:
    _disable_ipv6()
    sysctls = {"tcp_slow_start_after_idle": "0", "tcp_no_metrics_save": "1"}
    if spec.window_bytes:
        buffer = int(spec.window_bytes * _BUFFER_PER_WINDOW)
        sysctls["tcp_wmem"] = f"4096 {buffer} {buffer}"
        sysctls["tcp_rmem"] = f"4096 {4 * buffer} {4 * buffer}"
    _write_sysctls(sysctls)
    with IPRoute() as ip:
        _set_up(ip, "lo")
        index = _set_up(ip, "eth0", gso_max_size=_gso_max_bytes(spec))
        _limit_rate(ip, index, spec, float(spec.nic_bytes_per_s[host.cluster]))
        ip.addr("add", index=index, address=host.address, prefixlen=24, flags=_NO_PREFIX_ROUTE)
        _add_neighbours(ip, index, macs, host.mac)
        # Set by route, because a namespace may only choose what the machine allows for everybody.
        metrics: dict[str, str | int] = {"cc_algo": spec.transport.congestion_control}
        if spec.dilation > 1:
            metrics["rto_min"] = int(_RTO_MIN_MS * spec.dilation)
            metrics["lock"] = 1 << _RTAX_RTO_MIN  # else the kernel ignores it
        ip.route(
            "add",
            dst=subnet(host.cluster),
            oif=index,
            scope=253,
            prefsrc=host.address,
            metrics=metrics,
        )
        ip.route("add", dst="0.0.0.0/0", gateway=gateway(host.cluster), metrics=metrics)


def set_host_rate(spec: GridSpec, host: Host, net: int, rate_bytes_per_s: float) -> None:
    """Limit both ends of ``host``'s cable to another rate. ``net`` is its network namespace."""
    with IPRoute() as ip:
        index = ip.link_lookup(ifname=host.port_name)[0]
        _limit_rate(ip, index, spec, rate_bytes_per_s, "replace")
    with linux.inside({"net": net}), IPRoute() as ip:
        index = ip.link_lookup(ifname="eth0")[0]
        _limit_rate(ip, index, spec, rate_bytes_per_s, "replace")


def set_host_up(host: Host, up: bool) -> None:
    """Connect or disconnect ``host``'s cable at the bridge."""
    with IPRoute() as ip:
        index = ip.link_lookup(ifname=host.port_name)[0]
        ip.link("set", index=index, state="up" if up else "down")


def _set_up(ip: IPRoute, name: str, **settings: int | str) -> int:
    index: int = ip.link_lookup(ifname=name)[0]
    ip.link("set", index=index, state="up", **settings)
    return index


def _limit_rate(ip: IPRoute, index: int, spec: GridSpec, rate: float, command: str = "add") -> None:
    if rate > _FASTEST_BYTES_PER_S:
        return  # nothing on this machine is that fast, and tbf has no such rates
    ip.tc(
        command,
        "tbf",
        index,
        rate=int(rate * WIRE_PER_PAYLOAD),
        burst=max(spec.burst_bytes, _BURST_MIN_BYTES),
        limit=int(max(_NIC_QUEUE_MIN_BYTES, rate * _NIC_QUEUE_S * spec.dilation)),
    )


def _gso_max_bytes(spec: GridSpec) -> int:
    """Return the size of the largest packet that TCP may build: three fifths of a burst.

    tbf splits packets that do not fit its burst, which is slow. A packet as long as the burst waits
    for a full bucket; if the next packet is late, the bucket overflows, which costs a quarter of
    the rate. With three fifths of the usual 16 KiB, a segment of 8 KiB and its header travel in one
    packet. With slightly less they need two, and the processor's work per byte is a third more.
    """
    return max(2048, min(65536, spec.burst_bytes * 3 // 5) - _HEADER_BYTES)


def _write_sysctls(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)


def _keep_firewall_out_of_bridges() -> None:
    """Keep iptables from seeing every frame of a bridge, as it does if its module is loaded."""
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if switch.exists():
        switch.write_text("0")


def _disable_ipv6() -> None:
    for scope in ("all", "default"):
        path = Path("/proc/sys/net/ipv6/conf", scope, "disable_ipv6")
        if path.exists():
            path.write_text("1")
