"""The processes of a job: on nodes, in clusters, at sites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

from msgspec import Struct

from gridcoll.errors import UsageError


class Process(NamedTuple):
    """A rank and the host on which it runs."""

    rank: int
    host: str


T = TypeVar("T")


def _rotated(items: tuple[T, ...], shift: int) -> tuple[T, ...]:
    """Return ``items`` from index ``shift`` on, then those before it."""
    shift %= max(len(items), 1)
    return items[shift:] + items[:shift]


class Cluster(Struct, frozen=True, dict=True):
    """A logical homogeneous group of processes, found by clustering or declared in a file.

    ``processes`` are in rank order. ``site`` and ``region`` are the names of the levels above the
    cluster, empty if they are not known.
    """

    name: str
    processes: tuple[Process, ...]
    site: str = ""
    region: str = ""

    def __post_init__(self) -> None:
        ranks = [process.rank for process in self.processes]
        if not ranks:
            raise UsageError(f"cluster {self.name!r}: needs at least one process")
        if ranks != sorted(set(ranks)):
            raise UsageError(f"cluster {self.name!r}: ranks must be ascending, got {ranks}")

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of this cluster, ascending."""
        return tuple(process.rank for process in self.processes)

    @cached_property
    def line(self) -> tuple[int, ...]:
        """The ranks node by node, from the coordinator on.

        A message that follows this order enters and leaves every node once, wherever the launcher
        placed the ranks.
        """
        return tuple(process.rank for node in self.nodes for process in node)

    def line_from(self, first: int, turn: int = 0) -> tuple[int, ...]:
        """Return a line that starts with rank ``first`` and the rest of its node.

        The order of the other nodes, and the last rank, differ for every ``turn``.
        """
        if not self.shares_nodes:  # a shortcut: the general case takes thousands of steps
            at = self.places[first]
            return (first, *_rotated(self.ranks[at + 1 :] + self.ranks[:at], turn))
        own = next(k for k, node in enumerate(self._by_node) if first in node)
        own_node, *others = _rotated(self._by_node, own)
        neighbours = _rotated(own_node, own_node.index(first))[1:]
        if not others:
            return (first, *_rotated(neighbours, turn))
        within, among = divmod(turn, len(others))
        other_nodes = (_rotated(node, within) for node in _rotated(tuple(others), among))
        return (first, *neighbours, *chain.from_iterable(other_nodes))

    @cached_property
    def _by_node(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(process.rank for process in node) for node in self.nodes)

    @cached_property
    def in_turns(self) -> tuple[int, ...]:
        """The ranks, one of each node in turn. Several lines can start at the first of these."""
        turns = zip_longest(*self.nodes)
        return tuple(process.rank for turn in turns for process in turn if process)

    @cached_property
    def places(self) -> dict[int, int]:
        """The position of each rank in `line`."""
        return {rank: place for place, rank in enumerate(self.line)}

    @property
    def coordinator(self) -> int:
        """The rank that relays for this cluster: the lowest one."""
        return self.processes[0].rank

    @cached_property
    def nodes(self) -> tuple[tuple[Process, ...], ...]:
        """The processes by host. Hosts are ordered by their lowest rank."""
        by_host: dict[str, list[Process]] = {}
        for process in self.processes:
            by_host.setdefault(process.host, []).append(process)
        return tuple(tuple(processes) for processes in by_host.values())

    @cached_property
    def node_sizes(self) -> tuple[int, ...]:
        """The number of ranks of each of `nodes`."""
        return tuple(map(len, self.nodes))

    @property
    def shares_nodes(self) -> bool:
        """Whether any node has several ranks of this cluster."""
        return len(self.nodes) < len(self.processes)

    def spread(self, most: int) -> tuple[int, ...]:
        """Return at most ``most`` ranks, ascending, spread evenly over nodes.

        The coordinator is one of them.
        """
        return tuple(sorted(self.in_turns[:most]))

    def __len__(self) -> int:
        return len(self.processes)


class Grid(Struct, frozen=True, dict=True):
    """All clusters of a job. Clusters are ordered by their coordinator's rank.

    The tree is site, cluster, node, process; `sites` and `Cluster.nodes` give the outer levels.
    """

    clusters: tuple[Cluster, ...]
    name: str = ""

    def __post_init__(self) -> None:
        ranks = sorted(rank for cluster in self.clusters for rank in cluster.ranks)
        if ranks != list(range(len(ranks))) or not ranks:
            raise UsageError(
                f"grid {self.name!r}: every rank 0..n-1 must be in exactly one cluster, got {ranks}"
            )
        coordinators = [cluster.coordinator for cluster in self.clusters]
        if coordinators != sorted(coordinators):
            raise UsageError(
                f"grid {self.name!r}: clusters must be ordered by their lowest rank, "
                f"got lowest ranks {coordinators}"
            )

    @classmethod
    def from_labels(cls, labels: Sequence[int | str], hosts: Sequence[str] = ()) -> Grid:
        """Return the grid in which ranks with equal ``labels`` share a cluster.

        ``labels[rank]`` may be a number or a name; ``hosts[rank]`` defaults to one node per rank.
        """
        hosts = hosts or [f"host{rank}" for rank in range(len(labels))]
        if len(hosts) != len(labels):
            raise UsageError(f"{len(labels)} labels but {len(hosts)} hosts")
        groups: dict[int | str, list[Process]] = {}
        for rank, label in enumerate(labels):
            groups.setdefault(label, []).append(Process(rank, hosts[rank]))
        return cls(tuple(Cluster(str(label), tuple(group)) for label, group in groups.items()))

    @cached_property
    def n_ranks(self) -> int:
        return sum(self.ranks_per_cluster)

    @cached_property
    def cluster_of(self) -> tuple[int, ...]:
        """``cluster_of[rank]`` is the index in `clusters` of the rank's cluster."""
        owner = [0] * self.n_ranks
        for index, cluster in enumerate(self.clusters):
            for rank in cluster.ranks:
                owner[rank] = index
        return tuple(owner)

    @cached_property
    def ranks_per_cluster(self) -> tuple[int, ...]:
        """``ranks_per_cluster[c]`` is the number of ranks of cluster ``c``."""
        return tuple(map(len, self.clusters))

    @cached_property
    def hosts_per_cluster(self) -> tuple[int, ...]:
        """``hosts_per_cluster[c]`` is the number of hosts of cluster ``c``."""
        return tuple(len(cluster.nodes) for cluster in self.clusters)

    @cached_property
    def shares_hosts(self) -> bool:
        """Whether any host, as numbered by `host_of`, has several ranks."""
        return any(cluster.shares_nodes for cluster in self.clusters)

    @cached_property
    def is_one_host(self) -> bool:
        """Whether all ranks are on one host and in one cluster."""
        return len(self.clusters) == 1 and len(self.clusters[0].nodes) == 1

    @cached_property
    def splits_hosts(self) -> bool:
        """Whether a host name is in several clusters, as when one machine emulates a grid."""
        return len(set(self.hosts)) < sum(self.hosts_per_cluster)

    @cached_property
    def host_of(self) -> tuple[int, ...]:
        """``host_of[rank]`` is the number of the rank's host. Hosts are ordered by lowest rank.

        Names are not unique: hosts of two clusters may both be called ``n0``.
        """
        places = tuple(zip(self.cluster_of, self.hosts, strict=True))
        number = {place: k for k, place in enumerate(dict.fromkeys(places))}
        return tuple(number[place] for place in places)

    @cached_property
    def first_alike(self) -> tuple[int, ...]:
        """``first_alike[rank]`` is the lowest rank that models treat like ``rank``.

        It is in the same cluster, on a host with the same number of ranks.
        """
        first: dict[tuple[int, int], int] = {}
        found = [0] * self.n_ranks
        for index, cluster in enumerate(self.clusters):
            for node in cluster.nodes:
                for process in node:
                    found[process.rank] = first.setdefault((index, len(node)), process.rank)
        return tuple(found)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """``hosts[rank]`` is the name of that rank's host, unique inside its cluster."""
        by_rank = {p.rank: p.host for cluster in self.clusters for p in cluster.processes}
        return tuple(by_rank[rank] for rank in range(self.n_ranks))

    @cached_property
    def sites(self) -> dict[str, tuple[int, ...]]:
        """Cluster indices by site. A cluster without a site is a site of its own."""
        sites: dict[str, list[int]] = {}
        for index, cluster in enumerate(self.clusters):
            sites.setdefault(cluster.site or cluster.name, []).append(index)
        return {site: tuple(indices) for site, indices in sites.items()}

    def lane_of(self, rank: int) -> int:
        """Return the index of ``rank`` inside its cluster. Ranks of equal index form a lane."""
        return self.clusters[self.cluster_of[rank]].ranks.index(rank)

    def lanes(self) -> tuple[tuple[int, ...], ...]:
        """Return the lanes: the ranks of equal local index across clusters."""
        longest = max(self.ranks_per_cluster)
        return tuple(
            tuple(cluster.ranks[lane] for cluster in self.clusters if lane < len(cluster))
            for lane in range(longest)
        )

    def regroup(self, labels: Sequence[int]) -> Grid:
        """Return the same ranks and hosts in other clusters, one for each of ``labels``.

        Hosts get their numbers as names, because a cluster may now have two hosts of one name.
        """
        return Grid.from_labels(labels, tuple(map(str, self.host_of)))

    def restrict(self, ranks: Iterable[int]) -> tuple[Grid, tuple[int, ...]]:
        """Return the grid of a sub-communicator whose rank ``i`` is ``ranks[i]`` here.

        Also return, for each of its clusters, the index of its cluster here.
        """
        ordered = list(ranks)
        if len(set(ordered)) != len(ordered) or not all(0 <= r < self.n_ranks for r in ordered):
            raise UsageError(
                f"restriction to ranks {ordered}: they must differ and lie in 0..{self.n_ranks - 1}"
            )
        groups: dict[int, list[Process]] = {}
        for new, old in enumerate(ordered):
            groups.setdefault(self.cluster_of[old], []).append(Process(new, self.hosts[old]))
        origin = tuple(groups)  # in order of their lowest new rank
        clusters = tuple(
            Cluster(
                self.clusters[old].name,
                tuple(groups[old]),
                self.clusters[old].site,
                self.clusters[old].region,
            )
            for old in origin
        )
        return Grid(clusters, self.name), origin
