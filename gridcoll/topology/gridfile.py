"""Declared grids: the TOML files of ``hostfiles/``.

The same file serves all purposes: the testbed builds the grid, the model is computed from it,
`GridComm` uses it instead of measuring, and placement chooses among its clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gridcoll.errors import FileError, UsageError
from gridcoll.files import decode_toml, read_text
from gridcoll.topology.changes import Change, ChangeSpec, EventSpec, parse_change
from gridcoll.topology.grid import Cluster, Grid, Process
from gridcoll.topology.units import parse_duration_s, parse_rate_bytes_per_s, parse_size_bytes

T = TypeVar("T")

Matrix = npt.NDArray[np.float64]
Count = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=40)]

FORMAT_VERSION = 1


class ClusterSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[clusters]]`` table.

    Either ``hosts`` (a count, or host names) or ``ranks`` (a count, or rank numbers) gives its
    members. Hosts are matched by name, ranks by number, for jobs whose host names tell nothing.
    """

    name: Name
    site: str = ""
    region: str = ""
    hosts: Count | list[Name] | None = None
    ranks: Count | list[int] | None = None
    slots: Count = 1  # processes per host
    latency: str = "50 us"  # one way, inside the cluster
    nic: str = "1 Gbit/s"  # each host's own network rate
    uplink: str | None = None  # shared by all hosts of the cluster, each way


class Wire(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[default_link]`` table: the link between clusters that no ``[[links]]`` table gives."""

    latency: str  # one way
    rate: str | None = None  # shared by all flows in one direction; absent: not a bottleneck


class LinkSpec(Wire, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[links]]`` table: the link between two clusters, sites or regions."""

    between: tuple[str, str]

    def __str__(self) -> str:
        return f"link {self.between[0]!r}-{self.between[1]!r}"


class TransportSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[transport]`` table: the behaviour of TCP."""

    congestion_control: str = "cubic"
    window: str | None = None  # limit of one flow's TCP window, in bytes
    burst: str = "16 KiB"  # bytes that a NIC passes at line rate before its limit applies
    queue: str | None = None  # queue of a router between clusters; absent: 50 ms or a round trip


class _Document(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int
    name: Name
    description: str = ""
    dilation: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 1.0
    clusters: Annotated[list[ClusterSpec], msgspec.Meta(min_length=1)]
    links: list[LinkSpec] = []
    default_link: Wire | None = None
    transport: TransportSpec = msgspec.field(default_factory=TransportSpec)
    rank_order: Literal["cluster", "interleaved"] | list[str] = "cluster"
    events: list[EventSpec] = []


class GridSpec:
    """A validated grid file. Arrays are indexed by cluster, in the order of the file."""

    def __init__(self, document: _Document, place: str) -> None:
        self._document = document
        self._place = place
        self.dilation = document.dilation
        """All latencies are multiplied by this factor and all rates divided by it: the same grid in
        slow motion. If a few processors emulate many hosts, software then takes the same share of
        the time as with separate processors for every host (time dilation: Gupta et al., NSDI
        2006)."""
        # Another name, so that times of the dilated grid are not taken for those of the grid.
        self.name = document.name + (f"-x{self.dilation:g}" if self.dilation != 1 else "")
        self.description = document.description
        self.clusters = tuple(document.clusters)
        self.transport = document.transport
        if document.version != FORMAT_VERSION:
            raise self._error("version", f"must be {FORMAT_VERSION}, got {document.version}")
        names = [cluster.name for cluster in self.clusters]
        for name in names:
            if names.count(name) > 1:
                raise self._error("clusters", f"the name {name!r} is used twice")
        self.by_rank = self.clusters[0].ranks is not None
        for cluster in self.clusters:
            self._check_members(cluster)
        self.hosts = tuple(_expand_hosts(cluster) for cluster in self.clusters)
        """Host names by cluster. Empty tuples if the file gives ranks instead."""
        flat = [host for hosts in self.hosts for host in hosts]
        for host in flat:
            if flat.count(host) > 1:
                raise self._error("clusters", f"host {host!r} is listed twice")
        if not self.by_rank:
            self.host_order()  # to report a wrong rank_order here, not when the job starts
        n = len(self.clusters)
        self.latency_s: Matrix = np.zeros((n, n))
        """One-way latency, (C, C). The diagonal is inside a cluster."""
        self.rate_bytes_per_s: Matrix = np.full((n, n), np.inf)
        """Rate that all flows in one direction share, (C, C); ``inf`` if the file gives none. The
        diagonal is ``inf``: inside a cluster only the NICs limit."""
        self.nic_bytes_per_s = np.array(
            [self._rate(f"cluster {c.name!r} nic", c.nic) for c in self.clusters]
        )
        self.uplink_bytes_per_s = np.array(
            [
                self._rate(f"cluster {c.name!r} uplink", c.uplink) if c.uplink else np.inf
                for c in self.clusters
            ]
        )
        """Rate that all hosts of a cluster share, (C,); ``inf`` if not given."""
        for i, cluster in enumerate(self.clusters):
            self.latency_s[i, i] = self._duration(f"cluster {cluster.name!r}", cluster.latency)
        self._fill_links()
        self.window_bytes = self._size("transport.window", self.transport.window)
        """Limit of one flow's TCP window; None if not given."""
        self.queue_bytes = self._size("transport.queue", self.transport.queue)
        """Queue before a link between clusters, beyond which packets are dropped; None if not
        given. Only the testbed uses it."""
        self.burst_bytes = self._size("transport.burst", self.transport.burst) or 0
        self.events = tuple(sorted(map(self._event, document.events), key=lambda e: e.at_s))
        """Changes that the testbed makes while a command runs, by time. Only it uses them."""

    def _error(self, field: str, rule: str) -> FileError:
        return FileError(f"grid file {self._place}: {field}: {rule}")

    def _parsed(self, field: str, parse: Callable[[str], T], text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise self._error(field, str(error)) from None

    def _duration(self, field: str, text: str) -> float:
        return self._parsed(field, parse_duration_s, text) * self.dilation

    def _rate(self, field: str, text: str) -> float:
        rate = self._parsed(field, parse_rate_bytes_per_s, text) / self.dilation
        if rate <= 0:
            raise self._error(field, f"must be positive, got {text!r}")
        return rate

    def _size(self, field: str, text: str | None) -> int | None:
        return None if text is None else self._parsed(field, parse_size_bytes, text)

    def _check_members(self, cluster: ClusterSpec) -> None:
        field = f"cluster {cluster.name!r}"
        if (cluster.hosts is None) == (cluster.ranks is None):
            raise self._error(field, "give either hosts or ranks")
        if (cluster.ranks is not None) != self.by_rank:
            raise self._error(field, "all clusters must be given by hosts, or all by ranks")
        members = cluster.hosts if cluster.hosts is not None else cluster.ranks
        if isinstance(members, list) and not members:
            raise self._error(field, "needs at least one member")

    def _ends(self, link: LinkSpec) -> list[tuple[int, ...]]:
        try:
            return list(product(*map(self._members, link.between)))
        except UsageError as error:
            raise self._error("links", str(error)) from None

    def _members(self, name: str) -> list[int]:
        """Return the cluster called ``name``, or the clusters of that site, or of that region."""
        for attribute in ("name", "site", "region"):
            found = [i for i, c in enumerate(self.clusters) if getattr(c, attribute) == name]
            if found:
                return found
        raise UsageError(f"no cluster, site or region is called {name!r}")

    def _fill_links(self) -> None:
        """Fill the matrices. A link between clusters overrides one between sites or regions."""
        n = len(self.clusters)
        given: dict[tuple[int, int], LinkSpec] = {}
        cluster_names = {cluster.name for cluster in self.clusters}
        sites = {cluster.site for cluster in self.clusters}

        def specificity(link: LinkSpec) -> int:
            return sum((name in cluster_names) * 2 or (name in sites) for name in link.between)

        for link in sorted(self._document.links, key=specificity):
            ends = self._ends(link)
            pairs = {(max(i, j), min(i, j)) for i, j in ends if i != j}
            if not pairs:
                raise self._error(str(link), "must be between two different clusters")
            for pair in sorted(pairs):
                before = given.get(pair)
                if before and specificity(before) == specificity(link):
                    also = f"{before} is about {self._pair(pair)} too, and neither is more specific"
                    raise self._error(str(link), also)
                self._set_link(*pair, str(link), link)
                given[pair] = link
        for i in range(n):
            for j in range(i):
                if (i, j) in given:
                    continue
                if self._document.default_link is None:
                    raise self._error("links", f"none is given between {self._pair((i, j))}")
                self._set_link(i, j, "default_link", self._document.default_link)

    def _pair(self, pair: tuple[int, int]) -> str:
        return " and ".join(repr(self.clusters[i].name) for i in sorted(pair))

    def _set_link(self, i: int, j: int, field: str, link: Wire) -> None:
        rate = self._rate(field, link.rate) if link.rate else np.inf
        self.latency_s[i, j] = self.latency_s[j, i] = self._duration(field, link.latency)
        self.rate_bytes_per_s[i, j] = self.rate_bytes_per_s[j, i] = rate

    def change(self, spec: ChangeSpec, at: str = "0 s") -> Change:
        """Return ``spec`` in numbers. Raises `UsageError` for names that are not in this grid."""
        if spec.host is not None and spec.host not in self.cluster_of_host:
            raise UsageError(f"host {spec.host!r}: known are {', '.join(self.cluster_of_host)}")
        ends = product(*map(self._members, spec.link)) if spec.link else ()
        pairs = sorted({(min(i, j), max(i, j)) for i, j in ends if i != j})
        if spec.link and not pairs:
            raise UsageError(f"{spec}: must be between two different clusters")
        return parse_change(spec, pairs, self.dilation, at)

    def _event(self, event: EventSpec) -> Change:
        try:
            return self.change(event, event.at)
        except UsageError as error:
            raise self._error("events", str(error)) from None

    @cached_property
    def cluster_of_host(self) -> dict[str, int]:
        return {host: i for i, hosts in enumerate(self.hosts) for host in hosts}

    def host_order(self) -> tuple[str, ...]:
        """Return the hosts in the order in which they get ranks.

        Each host gets as many consecutive ranks as its cluster has slots per host.
        """
        order = self._document.rank_order
        in_order = [host for hosts in self.hosts for host in hosts]
        if order == "cluster":
            return tuple(in_order)
        if order == "interleaved":
            longest = max(len(hosts) for hosts in self.hosts)
            return tuple(hosts[k] for k in range(longest) for hosts in self.hosts if k < len(hosts))
        if sorted(order) != sorted(in_order):
            raise self._error("rank_order", f"must name each host once, got {order}")
        return tuple(order)

    def rank_hosts(self) -> tuple[str, ...]:
        """Return the host of each rank if every slot of every host is used."""
        return tuple(
            host
            for host in self.host_order()
            for _ in range(self.clusters[self.cluster_of_host[host]].slots)
        )

    def assign(self, hosts: Sequence[str]) -> tuple[Grid, tuple[int, ...]]:
        """Return the grid of a job whose rank ``i`` runs on ``hosts[i]``.

        Also return, for each of its clusters, the index of that cluster in this file. Raises
        `FileError` if the file does not match the job.
        """
        labels = self._labels_by_rank(len(hosts)) if self.by_rank else self._labels_by_host(hosts)
        groups: dict[int, list[Process]] = {}
        for rank, label in enumerate(labels):
            groups.setdefault(label, []).append(Process(rank, hosts[rank]))
        clusters = tuple(
            Cluster(spec.name, tuple(members), spec.site, spec.region)
            for spec, members in ((self.clusters[i], group) for i, group in groups.items())
        )
        return Grid(clusters, self.name), tuple(groups)

    def _labels_by_host(self, hosts: Sequence[str]) -> list[int]:
        by_label: dict[str, list[str]] = {}
        for name in self.cluster_of_host:
            by_label.setdefault(name.split(".")[0], []).append(name)

        def listed(rank: int, host: str) -> str:
            if host in self.cluster_of_host:
                return host
            # MPI's name or the file's name may lack the domain.
            like = by_label.get(host.split(".")[0], [])
            if not any("." not in host or "." not in name for name in like):
                known = "which is in none of its clusters"
            elif len(like) > 1:
                known = f"which may be any of {', '.join(map(repr, like))}"
            else:
                return like[0]
            raise self._error("hosts", f"rank {rank} runs on {host!r}, {known}")

        return [self.cluster_of_host[listed(rank, host)] for rank, host in enumerate(hosts)]

    def _labels_by_rank(self, n_ranks: int) -> list[int]:
        labels: dict[int, int] = {}
        next_rank = 0
        for index, cluster in enumerate(self.clusters):
            ranks = cluster.ranks
            if isinstance(ranks, int):
                ranks = list(range(next_rank, next_rank + ranks))
                next_rank += len(ranks)
            for rank in ranks or ():
                if rank in labels:
                    raise self._error("ranks", f"rank {rank} is in two clusters")
                labels[rank] = index
        if sorted(labels) != list(range(n_ranks)):
            raise self._error(
                "ranks", f"it describes ranks {_spans(sorted(labels))}, the job has {n_ranks} ranks"
            )
        return [labels[rank] for rank in range(n_ranks)]


def _expand_hosts(cluster: ClusterSpec) -> tuple[str, ...]:
    if cluster.hosts is None:
        return ()
    if isinstance(cluster.hosts, int):
        return tuple(f"{cluster.name}-{k}" for k in range(cluster.hosts))
    return tuple(cluster.hosts)


def _spans(ranks: Sequence[int]) -> str:
    if ranks and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}..{ranks[-1]}"
    return str(list(ranks))


def parse_gridfile(text: str, place: str = "<text>") -> GridSpec:
    """Return the grid of a TOML ``text``; ``place`` names it in errors. Raises `FileError`."""
    document = decode_toml(text, _Document, "grid file", place)
    return GridSpec(document, place)


def read_gridfile(path: str | Path) -> GridSpec:
    """Return the grid that the file at ``path`` declares. Raises `FileError`."""
    return parse_gridfile(read_text(path, "grid file"), str(path))
