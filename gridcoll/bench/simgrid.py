"""Run SimGrid's SMPI, if it is installed: replay traces, and run programs with its own MPI."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from gridcoll.errors import FileError, UsageError
from gridcoll.files import make_directory, write_atomically
from gridcoll.model.wires import Wires

OPERATIONS_PER_S = 1e9
"""Speed of hosts: traces give computation in nanoseconds."""

INSIDE_BYTES_PER_S = 1e11
"""Bandwidth between ranks of one host: such messages do not wait for the network."""

_HEAD = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
<zone id="grid" routing="Full">
"""


def platform_lines(wires: Wires) -> Iterator[str]:
    """Yield the platform: a zone per cluster, and links between zones.

    In a zone, each host has a link in each direction to a switch. Half of a cluster's latency is on
    each of its hosts' links, so a link between clusters has the rest of the latency between them. A
    link without a limit gets a hundred times the rate of the fastest interface.
    """
    unlimited_bytes_per_s = 100 * float(wires.nic_bytes_per_s.max())
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
            for direction in ("out", "in"):
                yield _link(f"c{c}-{direction}", wires.uplink_bytes_per_s[c], 0.0)
    for a in clusters:
        for b in clusters:
            if a != b:
                half_s = (wires.latency_s[a, a] + wires.latency_s[b, b]) / 2
                rate = min(wires.rate_bytes_per_s[a, b], unlimited_bytes_per_s)
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
    """Yield the host of each rank, by its name in the platform."""
    grid = wires.grid
    names = {
        host: f"c{c}h{k}"
        for c, cluster in enumerate(grid.clusters)
        for k, host in enumerate(dict.fromkeys(grid.host_of[rank] for rank in cluster.ranks))
    }
    yield from (f"{names[host]}\n" for host in grid.host_of)


def smpi_settings(window_bytes: int | None) -> tuple[str, ...]:
    """Return options of ``smpirun`` for using the platform's latencies and rates unchanged.

    SMPI's defaults are fitted to a cluster with Gigabit Ethernet: depending on the size of a
    message, they multiply latencies and divide rates, limit each flow to 4 MiB per round trip, and
    use a part of each link for acknowledgements.
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


PLATFORM, HOSTS, TRACE, LIST = "platform.xml", "hosts.txt", "trace.txt", "traces.txt"
REPLAYED = re.compile(r"Simulation time (\S+)")


def find_simgrid(place: str = "") -> Path:
    """Return the path of ``smpirun``: ``place``, or found on the PATH. Raises `UsageError`."""
    found = shutil.which(place or "smpirun")
    if found is None:
        raise UsageError(
            f"{place or 'smpirun'}: not found; SimGrid is available from Debian (apt-get install "
            "libsimgrid-dev) or simgrid.org"
        )
    return Path(found).resolve()


class Folder(Struct, frozen=True):
    """A folder with the files of a platform, its hosts, and a trace to replay."""

    path: Path
    n_ranks: int
    settings: tuple[str, ...]
    """Options of ``smpirun``."""

    @classmethod
    def write(cls, path: Path, wires: Wires, window_bytes: int | None) -> Folder:
        """Make the directory ``path`` and write platform and hosts there. Raises `FileError`."""
        make_directory(path)
        write_atomically(path / PLATFORM, "".join(platform_lines(wires)))
        write_atomically(path / HOSTS, "".join(host_lines(wires)))
        return cls(path, wires.grid.n_ranks, smpi_settings(window_bytes))

    def write_trace(self, lines: Iterable[str]) -> None:
        """Write one trace, for all ranks."""
        write_atomically(self.path / TRACE, "".join(lines))
        write_atomically(self.path / LIST, f"{TRACE}\n")

    def replay_command(self, smpirun: str | Path = "smpirun") -> list[str]:
        """Return the command that replays the trace. It must be started in the folder."""
        return [*self._start(smpirun), "-replay", LIST, *self.settings]

    def replay_s(self, smpirun: Path, timeout_s: float) -> float:
        """Return the simulated time of the trace, to the microsecond.

        Raises `FileError`, `UsageError`; see `run_command`.
        """
        return _seconds(self.run_command(self.replay_command(smpirun), timeout_s), REPLAYED)

    def run(
        self, smpirun: Path, program: Sequence[str], options: Sequence[str], timeout_s: float
    ) -> str:
        """Run ``program``, compiled with ``smpicc``, on the platform, and return its output."""
        return self.run_command(
            [*self._start(smpirun), *self.settings, *options, *program], timeout_s
        )

    def _start(self, smpirun: str | Path) -> list[str]:
        return [
            *(str(smpirun), "-quiet", "-np", str(self.n_ranks)),
            *("-platform", PLATFORM, "-hostfile", HOSTS),
        ]

    def run_command(self, command: Sequence[str], timeout_s: float) -> str:
        """Run ``command`` in the folder, and return its output.

        Raises `FileError` if it fails, and `UsageError` if it takes longer than ``timeout_s``.
        """
        try:
            done = subprocess.run(
                command, cwd=self.path, timeout=timeout_s, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"{command[0]}: not finished after {timeout_s:g} s") from None
        output = done.stdout + done.stderr
        if done.returncode:
            raise FileError(f"{command[0]}: code {done.returncode}: {_last_lines(output)}")
        return output


def _seconds(output: str, pattern: re.Pattern[str]) -> float:
    match = pattern.search(output)
    if match is None:
        raise FileError(f"smpirun: no time in its output: {_last_lines(output)}")
    return float(match[1])


def _last_lines(output: str) -> str:
    lines = [line for line in output.splitlines() if "Configuration change" not in line]
    return " / ".join(lines[-3:])
