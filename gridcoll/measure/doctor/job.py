"""What is known of a whole job: the facts of all ranks, and its links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gridcoll.measure.doctor.facts import Connection, HostFacts
from gridcoll.topology.grid import Grid


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
