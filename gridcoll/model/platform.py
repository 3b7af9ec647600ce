"""Wires as a platform of SimGrid, and the settings under which SMPI takes them as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gridcoll.model.wires import Wires

OPERATIONS_PER_S = 1e9
"""How fast hosts compute: traces count in nanoseconds."""

INSIDE_BYTES_PER_S = 1e11
"""Between ranks of one host: the network is not what such messages wait for."""

_HEAD = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
<zone id="grid" routing="Full">
"""


def platform_lines(wires: Wires) -> Iterator[str]:
    """A zone per cluster, whose hosts have a link each way to a switch, and links between zones.

    Half of a cluster's latency is on each of its hosts' links, so a link between clusters has what
    remains of the latency between them. What has no rate of its own is given a hundred times that
    of the fastest interface.
    """
    free = 100 * float(wires.nic_bytes_per_s.max())
    clusters = range(len(wires.grid.clusters))
    yield _HEAD
    for c, cluster in enumerate(wires.grid.clusters):
        inside_s = wires.latency_s[c, c]
        yield (
            f'<cluster id="c{c}" prefix="c{c}h" suffix="" radical="0-{len(cluster.nodes) - 1}"'
            f' router_id="c{c}-router" speed="{OPERATIONS_PER_S:.0f}f"'
            f' bw="{wires.nic_bytes_per_s[c]:.0f}Bps" lat="{inside_s / 2:.9f}s"'
            f' loopback_bw="{INSIDE_BYTES_PER_S:.0f}Bps" loopback_lat="{inside_s:.9f}s"/>\n'
        )
        if math.isfinite(wires.uplink_bytes_per_s[c]):
            for way in ("out", "in"):
                yield _link(f"c{c}-{way}", wires.uplink_bytes_per_s[c], 0.0)
    for a in clusters:
        for b in clusters:
            if a != b:
                half_s = (wires.latency_s[a, a] + wires.latency_s[b, b]) / 2
                rate = min(wires.rate_bytes_per_s[a, b], free)
                yield _link(f"c{a}-c{b}", rate, max(wires.latency_s[a, b] - half_s, 0.0))
    for a in clusters:
        for b in clusters:
            if a != b:
                yield _route(wires, a, b)
    yield "</zone>\n</platform>\n"


def _link(name: str, bytes_per_s: float, latency_s: float) -> str:
    return f'<link id="{name}" bandwidth="{bytes_per_s:.0f}Bps" latency="{latency_s:.9f}s"/>\n'


def _route(wires: Wires, a: int, b: int) -> str:
    names = [f"c{a}-c{b}"]
    if math.isfinite(wires.uplink_bytes_per_s[a]):
        names.insert(0, f"c{a}-out")
    if math.isfinite(wires.uplink_bytes_per_s[b]):
        names.append(f"c{b}-in")
    passed = "".join(f'<link_ctn id="{name}"/>' for name in names)
    return (
        f'<zoneRoute src="c{a}" dst="c{b}" gw_src="c{a}-router" gw_dst="c{b}-router"'
        f' symmetrical="NO">{passed}</zoneRoute>\n'
    )


def host_lines(wires: Wires) -> Iterator[str]:
    """The platform's host of each rank."""
    grid = wires.grid
    names = {
        host: f"c{c}h{k}"
        for c, cluster in enumerate(grid.clusters)
        for k, host in enumerate(dict.fromkeys(grid.host_of[rank] for rank in cluster.ranks))
    }
    yield from (f"{names[host]}\n" for host in grid.host_of)


def smpi_settings(window_bytes: int | None) -> tuple[str, ...]:
    """Options of ``smpirun``: the platform's latencies and rates as they stand.

    SMPI's own are fitted to a cluster with Gigabit Ethernet: they multiply latencies and divide
    rates by the size of a message, limit each flow to 4 MiB a round trip, and take part of each
    link for acknowledgements.
    """
    return (
        "--cfg=smpi/lat-factor:0:1",
        "--cfg=smpi/bw-factor:0:1",
        f"--cfg=network/TCP-gamma:{window_bytes or 0}",
        "--cfg=network/crosstraffic:0",
        "--cfg=smpi/os:0:0:0",
        "--cfg=smpi/or:0:0:0",
        "--cfg=smpi/ois:0:0:0",
        "--cfg=smpi/simulate-computation:yes",
        f"--cfg=smpi/host-speed:{OPERATIONS_PER_S:.0f}",
    )
