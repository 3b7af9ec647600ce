"""What one rank sees of its host, from Linux, and what is known of a job. Needs no MPI."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from gridcoll.topology.grid import Grid

_SIOCGIFADDR = 0x8915
_ESTABLISHED = "01"

LAUNCHERS_SAY = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
"""In which variables launchers tell their processes how many there are, and which this is.

The first counts: an mpiexec within Slurm may start its own helpers, one per host, by srun.
"""


@dataclass(frozen=True)
class Interface:
    """A network interface of a host that is up and has an IPv4 address.

    ``bits_per_s`` is what the driver says it carries, 0 where it does not say.
    """

    name: str
    address: str
    bits_per_s: float


@dataclass(frozen=True)
class Connection:
    """A TCP connection of this process, by the addresses of its ends."""

    local: str
    remote: str


@dataclass(frozen=True)
class HostFacts:
    """What a rank sees without asking others."""

    host: str
    addresses: tuple[str, ...]
    """What the host's own name resolves to, in the order of the resolver."""
    interfaces: tuple[Interface, ...]
    cores: tuple[int, ...]
    """Those that this process may use."""
    n_cores: int
    """Of the host."""
    load: float
    """Mean number of processes that wanted to run, over the last minute."""
    launched_ranks: int
    """How many ranks the launcher says there are; 0 where it says nothing."""
    environment: tuple[tuple[str, str], ...]
    """Variables that decide how the MPI library waits and which network it takes."""
    tcp_window_bytes: tuple[int, int]
    """The most that one connection may have under way: sender's and receiver's limit."""


PREFIXES = (
    *("GRIDCOLL_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "MPIR_CVAR_", "I_MPI_", "FI_", "UCX_"),
    "MPICH_",
)


def look_around(host: str) -> HostFacts:
    """What this process sees on the host called ``host``."""
    return HostFacts(
        host=host,
        addresses=resolve(host),
        interfaces=tuple(list_interfaces()),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        n_cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        launched_ranks=launched_ranks(dict(os.environ)),
        environment=tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(PREFIXES))),
        tcp_window_bytes=(_third("tcp_wmem"), _third("tcp_rmem")),
    )


def launched_ranks(said: Mapping[str, str]) -> int:
    """How many ranks the launcher started, as it says in the environment; 0: it does not say."""
    for n_ranks, _ in LAUNCHERS_SAY:
        if said.get(n_ranks, "").isdigit():
            return int(said[n_ranks])
    return 0


def is_first(said: Mapping[str, str]) -> bool:
    """Whether the launcher calls this process its first, or does not say which it is."""
    for n_ranks, rank in LAUNCHERS_SAY:
        if said.get(n_ranks, "").isdigit():
            return said.get(rank, "0") == "0"
    return True


def resolve(host: str) -> tuple[str, ...]:
    """IPv4 addresses that ``host`` resolves to; none where it does not."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def list_interfaces() -> Iterator[Interface]:
    """Interfaces that are up and have an address, loopback too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                packed = struct.pack("256s", name.encode()[:15])
                address = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, packed)[20:24])
            except OSError:
                continue  # it has none
            state = _read(f"/sys/class/net/{name}/operstate")
            if state != "down":
                yield Interface(name, address, _speed(name))


def _speed(name: str) -> float:
    text = _read(f"/sys/class/net/{name}/speed")
    return float(text) * 1e6 if text.isdigit() else 0.0


def _third(name: str) -> int:
    words = _read(f"/proc/sys/net/ipv4/{name}").split()
    return int(words[2]) if len(words) == 3 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:  # a driver may have nothing to say
        return ""


def own_sockets() -> frozenset[str]:
    """Sockets that this process holds, by their numbers."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    return frozenset(inodes)


def own_connections(but: frozenset[str] = frozenset()) -> list[Connection]:
    """Established TCP connections of this process; without those to itself.

    And without the sockets ``but``: launchers leave theirs open in the processes that they start.
    """
    inodes = own_sockets() - but
    found = []
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/self/net/{table}").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _ESTABLISHED and words[9] in inodes:
                local, remote = (parse_address(word) for word in words[1:3])
                if local != remote:
                    found.append(Connection(local, remote))
    return found


def parse_address(text: str) -> str:
    """The address in ``text``, which Linux writes as ``0100007F:1F90``; IPv4 where it can be."""
    digits = text.split(":")[0]
    words = [bytes.fromhex(digits[k : k + 8])[::-1] for k in range(0, len(digits), 8)]
    address = ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def has_fast_network() -> bool:
    """Whether this process holds a device that goes past TCP, as InfiniBand's."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith(("/dev/infiniband", "/dev/hfi", "/dev/cxi")):
                return True
    return False


@dataclass(frozen=True)
class RankFacts:
    """One rank."""

    host: HostFacts
    mpi_version: str
    """The MPI library's own line."""
    vendor: str
    """As mpi4py names it: MPICH, Open MPI, Intel MPI."""
    gridcoll: str
    """Version and digest of the sources."""
    engine: str
    """``"C"``, ``"Python"``, or what keeps the one in C from being loaded."""
    node: int
    """The lowest rank with which this one shares memory."""
    wall_offset_s: float = 0.0
    """The host's clock less that of rank 0's host."""
    connections: tuple[Connection, ...] = ()
    """Of the MPI library, after messages to other hosts."""
    fast_network: bool = False
    threads: bool = True
    """Whether MPI lets several threads call it."""
    gives_way: bool | None = None
    """Whether a rank that waits gives its core away, as the MPI library says; None: it does not."""


@dataclass(frozen=True)
class LinkFacts:
    """One direction between two clusters, or inside one."""

    sender: int
    receiver: int
    latency_s: float
    bytes_per_s: float


class Kept(NamedTuple):
    """What rank 0 finds of the cache: see the fields of `JobFacts`."""

    kept: str = ""
    broken: tuple[str, ...] = ()
    unwritable: str = ""


@dataclass(frozen=True)
class JobFacts:
    """Everything that rules judge.

    ``faults`` are settings and files that gridcoll refuses, in its own words; ``kept`` says what a
    start of gridcoll would find of the grid, ``broken`` which kept files cannot be read, and
    ``unwritable`` why nothing can be kept.
    """

    ranks: tuple[RankFacts, ...]
    grid: Grid
    links: tuple[LinkFacts, ...] = ()
    faults: tuple[str, ...] = ()
    kept: str = ""
    broken: tuple[str, ...] = ()
    unwritable: str = ""

    @cached_property
    def nodes(self) -> dict[int, list[int]]:
        """Ranks by the node that they are on."""
        found: dict[int, list[int]] = {}
        for rank, facts in enumerate(self.ranks):
            found.setdefault(facts.node, []).append(rank)
        return found

    def host_of(self, rank: int) -> str:
        return self.ranks[rank].host.host

    def link(self, sender: int, receiver: int) -> LinkFacts | None:
        """That of a pair of clusters; None where it was not measured."""
        for each in self.links:
            if (each.sender, each.receiver) == (sender, receiver):
                return each
        return None
