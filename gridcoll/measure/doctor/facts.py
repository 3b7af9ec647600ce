"""Facts about a rank's host, from Linux, and about a job. Needs no MPI."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from gridcoll.topology.grid import Grid

_SIOCGIFADDR = 0x8915
_ESTABLISHED = "01"

LAUNCHER_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
"""Variables in which launchers give their processes the number of ranks and the rank.

The first pair that is set counts: an mpiexec within Slurm may start its own helpers, one per host,
by srun.
"""


class Interface(Struct, frozen=True):
    """A network interface of a host that is up and has an IPv4 address.

    ``bits_per_s`` is the rate that the driver reports, 0 if it does not.
    """

    name: str
    address: str
    bits_per_s: float


class Connection(Struct, frozen=True):
    """A TCP connection of this process, by the addresses of its ends."""

    local: str
    remote: str


class HostFacts(Struct, frozen=True):
    """What a rank finds out without asking others."""

    host: str
    addresses: tuple[str, ...]
    """Addresses that the host's own name resolves to, in the order of the resolver."""
    interfaces: tuple[Interface, ...]
    cores: tuple[int, ...]
    """Cores that this process may use."""
    n_cores: int
    """Number of all cores of the host."""
    load: float
    """Mean number of processes that wanted to run, over the last minute."""
    launched_ranks: int
    """Number of ranks that the launcher reports; 0 if it does not."""
    environment: tuple[tuple[str, str], ...]
    """Variables that decide how the MPI library waits and which network it uses."""
    tcp_window_bytes: tuple[int, int]
    """Most bytes that one connection may have in flight: the sender's and the receiver's limit."""


VARIABLE_PREFIXES = (
    *("GRIDCOLL_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "MPIR_CVAR_", "I_MPI_", "FI_", "UCX_"),
    "MPICH_",
)


def look_around(host: str) -> HostFacts:
    """Return the facts that this process finds on the host called ``host``."""
    return HostFacts(
        host=host,
        addresses=resolve(host),
        interfaces=tuple(list_interfaces()),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        n_cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        launched_ranks=launched_ranks(dict(os.environ)),
        environment=tuple(
            sorted((k, v) for k, v in os.environ.items() if k.startswith(VARIABLE_PREFIXES))
        ),
        tcp_window_bytes=(_largest_of_three("tcp_wmem"), _largest_of_three("tcp_rmem")),
    )


def launched_ranks(variables: Mapping[str, str]) -> int:
    """Return the number of ranks that the launcher gives in the environment; 0 if it gives none."""
    for n_ranks, _ in LAUNCHER_VARIABLES:
        if variables.get(n_ranks, "").isdigit():
            return int(variables[n_ranks])
    return 0


def is_first(variables: Mapping[str, str]) -> bool:
    """Whether this process is the launcher's first, or the launcher gives no rank."""
    for n_ranks, rank in LAUNCHER_VARIABLES:
        if variables.get(n_ranks, "").isdigit():
            return variables.get(rank, "0") == "0"
    return True


def resolve(host: str) -> tuple[str, ...]:
    """Return the IPv4 addresses that ``host`` resolves to; empty if it does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def list_interfaces() -> Iterator[Interface]:
    """Yield interfaces that are up and have an address, including loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                packed = struct.pack("256s", name.encode()[:15])
                address = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, packed)[20:24])
            except OSError:
                continue  # it has no address
            state = _read(f"/sys/class/net/{name}/operstate")
            if state != "down":
                yield Interface(name, address, _speed(name))


def _speed(name: str) -> float:
    text = _read(f"/sys/class/net/{name}/speed")
    return float(text) * 1e6 if text.isdigit() else 0.0


def _largest_of_three(name: str) -> int:
    words = _read(f"/proc/sys/net/ipv4/{name}").split()
    return int(words[2]) if len(words) == 3 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:  # a driver may not report it
        return ""


def own_sockets() -> frozenset[str]:
    """Return the inode numbers of the sockets that this process holds."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    return frozenset(inodes)


def own_connections(excluded: frozenset[str] = frozenset()) -> list[Connection]:
    """Return the established TCP connections of this process, except those to itself.

    Sockets in ``excluded`` are left out, too: launchers leave theirs open in the processes that
    they start.
    """
    inodes = own_sockets() - excluded
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
    """Return the address in ``text``, which Linux writes as ``0100007F:1F90``; IPv4 if possible."""
    digits = text.split(":")[0]
    words = [bytes.fromhex(digits[k : k + 8])[::-1] for k in range(0, len(digits), 8)]
    address = ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def has_fast_network() -> bool:
    """Whether this process holds a device that bypasses TCP, such as InfiniBand."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith(("/dev/infiniband", "/dev/hfi", "/dev/cxi")):
                return True
    return False


class RankFacts(Struct, frozen=True):
    """Facts about one rank."""

    host: HostFacts
    mpi_version: str
    """Version text of the MPI library."""
    vendor: str
    """The library's name in mpi4py: MPICH, Open MPI or Intel MPI."""
    gridcoll: str
    """Version and digest of the sources."""
    engine: str
    """``"C"``, ``"Python"``, or the reason why the engine in C cannot be loaded."""
    node: int
    """The lowest rank with which this one shares memory."""
    wall_offset_s: float = 0.0
    """The host's clock minus that of rank 0's host."""
    connections: tuple[Connection, ...] = ()
    """Connections of the MPI library, after messages to other hosts."""
    fast_network: bool = False
    """See `has_fast_network`."""
    threads: bool = True
    """Whether MPI allows several threads to call it."""
    yields_when_idle: bool | None = None
    """Whether the MPI library says that a waiting rank yields its core; None if it does not say."""


class LinkFacts(Struct, frozen=True):
    """One direction between two clusters, or inside one."""

    sender: int
    receiver: int
    latency_s: float
    bytes_per_s: float


class Kept(NamedTuple):
    """What rank 0 finds in the cache; see the fields of `JobFacts`."""

    kept: str = ""
    broken: tuple[str, ...] = ()
    unwritable: str = ""


class JobFacts(Struct, frozen=True, dict=True):
    """All facts that rules use.

    ``faults`` are the messages about settings and files that gridcoll refuses. ``kept`` says what
    the cache would give a start of gridcoll, ``broken`` which of its files cannot be read, and
    ``unwritable`` why it cannot be written.
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
        """The ranks on each node, by the node's lowest rank."""
        found: dict[int, list[int]] = {}
        for rank, facts in enumerate(self.ranks):
            found.setdefault(facts.node, []).append(rank)
        return found

    def host_of(self, rank: int) -> str:
        return self.ranks[rank].host.host

    def link(self, sender: int, receiver: int) -> LinkFacts | None:
        """Return the link between two clusters; None if it was not measured."""
        for each in self.links:
            if (each.sender, each.receiver) == (sender, receiver):
                return each
        return None
