"""The process that is a testbed: it builds the network, keeps it, and carries the WAN's packets.

It is pid 1 of the testbed's pid namespace and holds the only references to the other namespaces, so
its end, by whatever cause, ends every process on the hosts and removes the network. It ends when
its standard input ends (its owner died or closed it), unless it was started detached.

Protocol: one JSON line on standard input (`Order`), one on standard output (`Report`).
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

import msgspec
from msgspec import Struct

from gridcoll.errors import GridcollError
from gridcoll.testbed import linux
from gridcoll.testbed.layout import lay_out
from gridcoll.topology import parse_gridfile
from gridcoll.topology.changes import Change


class Order(Struct, frozen=True, kw_only=True):
    """What to build: the text of a grid file, and its path for error messages."""

    text: str
    place: str
    detached: bool = False


class Report(Struct, frozen=True, kw_only=True):
    """What was built: the keeper's pid as seen outside, and descriptors by host and kind.

    If building failed, ``error`` says why.
    """

    error: str = ""
    pid: int = 0
    namespaces: dict[str, dict[str, int]] = {}


def _report(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.flush()


def _raise_priority() -> None:
    """Run in real time if allowed, else at the highest priority.

    The WAN must not wait for ranks that spin.
    """
    linux.set_timer_slack(1)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def _become_init() -> None:
    """Continue as pid 1 of a new pid namespace; the process that was started ends."""
    linux.unshare("pid")
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans end up here: reap them


def _keep(order: Order) -> None:
    from gridcoll.testbed import network
    from gridcoll.testbed.control import Controller, Network, start_control
    from gridcoll.testbed.relay import CompiledWan, Wan, carry_packets

    spec = parse_gridfile(order.text, order.place)
    hosts = lay_out(spec)
    pid = int(Path("/proc/self").readlink().name)  # /proc is still the one outside
    linux.unshare("mnt", "net")
    linux.make_mounts_private()
    linux.mount("proc", "/proc", "proc")
    network.write_host_files(hosts)
    namespaces = network.make_host_namespaces(hosts)
    network.write_agent(namespaces)
    net = {name: kinds["net"] for name, kinds in namespaces.items()}
    tun = network.build_wan(spec, hosts, net)
    _raise_priority()
    if order.detached:  # do not keep a terminal or pipe of the caller open
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)
    wan = Wan(spec)
    links = CompiledWan(wan)

    def change_link(source: int, target: int, change: Change) -> None:
        wan.change(
            source,
            target,
            rate_bytes_per_s=change.rate_bytes_per_s,
            latency_s=change.latency_s,
            loss=change.loss,
            reset=change.reset,
        )
        links.follow()

    def set_host_rate(name: str, rate_bytes_per_s: float) -> None:
        network.set_host_rate(spec, hosts[name], net[name], rate_bytes_per_s)

    def set_host_up(name: str, up: bool) -> None:
        network.set_host_up(hosts[name], up)

    start_control(Controller(spec, Network(change_link, set_host_rate, set_host_up)))
    _report(Report(pid=pid, namespaces=namespaces))
    carry_packets(tun, wan, -1 if order.detached else 0, links)


def main() -> None:
    try:
        order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
        os.setsid()
        _become_init()
        _keep(order)
    except GridcollError as error:
        _report(Report(error=str(error)))
    except OSError as error:
        _report(Report(error=f"cannot build the network: {error}"))
    except Exception:  # pyroute2 raises many types; the caller waits for the report
        _report(Report(error=traceback.format_exc()))


if __name__ == "__main__":
    main()
