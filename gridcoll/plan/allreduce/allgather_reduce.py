"""Short allreduces: every rank gathers all contributions and combines them itself.

Every rank gathers the contributions of its cluster (Bruck et al. 1997: a step per bit of the
cluster's size) and combines them. Then the ranks of a cluster send its partial result to all ranks
of the other clusters, each to different ones, as in node-aware allreduces (Bienz, Olson and Gropp
2019). Every rank combines the partial results of all clusters. This takes one WAN latency and one
gather inside, while trees go up and down, but it has more messages. Where a third cluster is on the
shortest path, its ranks forward the partial results that they get.

All ranks combine in rank order within clusters, then clusters in order, at the same alignment in
memory (`ALIGNED_UNITS`), so that all get the same bits.
"""

from __future__ import annotations

import numpy as np

from gridcoll.constants import MOST_ALLGATHER_REDUCE_BYTES
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.folding import align, fold, no_slots
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.paths import Paths, along_paths, crossing, nearest_paths
from gridcoll.plan.plan import ByRank, Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm, alias
from gridcoll.topology.grid import Cluster, Grid

MOST_MEMBERS = 128
"""Limit of members of a cluster, since every rank combines the contributions of all of them."""


def plan_allgather_reduce(grid: Grid, n_units: int, label: str = "", paths: Paths = ()) -> Plan:
    """Return an allreduce of ``n_units`` elements.

    With ``paths``, the result of cluster ``i`` enters cluster ``j`` from cluster ``paths[i][j]``.
    Scratch holds the gathered contributions one after another, then aligned slots for the same
    contributions, the partial results of clusters, and the result.
    """
    room, n_clusters = align(n_units), len(grid.clusters)
    previous = paths or [[c] * n_clusters for c in range(n_clusters)]

    def first_slot(cluster: Cluster) -> int:
        return align(len(cluster) * n_units)

    def scratch_units(rank: int) -> int:
        cluster = grid.clusters[grid.cluster_of[rank]]
        return first_slot(cluster) + (len(cluster) + len(grid.clusters) + 1) * room

    def program_of(rank: int) -> Program:
        own = grid.cluster_of[rank]
        cluster = grid.clusters[own]
        place, n = cluster.places[rank], len(cluster)
        first = first_slot(cluster)
        slots = [
            Chunk("scratch", first + k * room, first + k * room + n_units)
            for k in range(n + len(grid.clusters) + 1)
        ]
        terms, partials, result = slots[:n], slots[n:-1], slots[-1]
        ops = _gather(cluster, place, n_units)
        for term, member in zip(terms, cluster.ranks, strict=True):
            at = (cluster.places[member] - place) % n * n_units
            ops.append(Copy(Chunk("scratch", at, at + n_units), term))
        fold(ops, list(enumerate(terms)), partials[own], no_slots)
        for home in [(own + step) % n_clusters for step in range(n_clusters)]:
            if home != own:
                line = grid.clusters[previous[home][own]].line
                # Results that a rank forwards must not hold up those that it has earlier.
                stream = home if paths else 0
                ops.append(Recv(line[place % len(line)], partials[home], home, stream))
            for other in [(own + step) % n_clusters for step in range(1, n_clusters)]:
                if other != home and previous[home][other] == own:
                    line = grid.clusters[other].line
                    to = range(place % n, len(line), n)
                    ops += [Send(line[at], partials[home], home) for at in to]
        fold(ops, list(enumerate(partials)), result, no_slots)
        ops.append(Copy(result, Chunk("output", 0, n_units)))
        return tuple(ops)

    programs, scratch = Programs(grid.n_ranks, program_of), ByRank(grid.n_ranks, scratch_units)
    return Plan("allreduce", label, n_units, -1, programs, scratch)


def _gather(cluster: Cluster, place: int, n_units: int) -> list[Op]:
    """Gather all contributions at the start of scratch, from the one at ``place`` on."""
    line, n = cluster.line, len(cluster)
    ops: list[Op] = [Copy(Chunk("input", 0, n_units), Chunk("scratch", 0, n_units))]
    for step, (n_held, n_new) in enumerate(_steps(n)):
        ops.append(Send(line[(place - n_held) % n], Chunk("scratch", 0, n_new * n_units), step))
        recv_chunk = Chunk("scratch", n_held * n_units, (n_held + n_new) * n_units)
        ops.append(Recv(line[(place + n_held) % n], recv_chunk, step))
    return ops


def _steps(n: int) -> list[tuple[int, int]]:
    """Return, for each step, how many of ``n`` contributions a rank has, and how many it gets."""
    doubling = (1 << k for k in range((n - 1).bit_length()))
    return [(n_held, min(n_held, n - n_held)) for n_held in doubling]


def price_allgather_reduce(model: GridModel, n_bytes: int, paths: Paths = ()) -> float:
    """Return the seconds of the steps inside clusters, then of the messages across by ``paths``."""
    clusters, n = model.grid.clusters, model.n_clusters
    hosts = np.array([max(cluster.node_sizes) for cluster in clusters])  # most ranks on one
    gathered_s = np.array([_gather_s(model, c, n_bytes) for c in range(n)])
    if n == 1:
        return float(gathered_s[0])
    gap_s, one_way_s = (
        each[:, :, 0] for each in model.gap_and_one_way_s(np.array([float(n_bytes)]))
    )
    sizes = np.array(model.grid.ranks_per_cluster)
    n_out = -(-sizes[None] // sizes[:, None])  # ranks of the target to which each rank sends
    n_results = crossing(np.ones(n), paths)
    n_out = n_out * n_results
    port_s = np.diagonal(gap_s)
    leaves_s = gathered_s + (hosts * n_out.sum(axis=1) - 1) * port_s
    if model.aggregate_bytes_per_s:
        n_before = np.maximum(sizes[:, None], sizes[None]) * np.maximum(n_results, 1) - 1
        one_way_s = one_way_s + n_before * n_bytes / model.link_bytes_per_s
    across_s = leaves_s[:, None] + along_paths(paths, one_way_s[..., None], np.add)[..., 0]
    np.fill_diagonal(across_s, 0.0)
    comes_s = across_s.max(axis=0) + (hosts * (n - 1) - 1) * port_s
    return float(comes_s.max())


def _gather_s(model: GridModel, c: int, n_bytes: int) -> float:
    """Return the seconds of the steps inside cluster ``c``.

    A step begins when the data that it sends has arrived and the interface is free.
    """
    cluster = model.grid.clusters[c]
    steps = _steps(len(cluster))
    if not steps:
        return 0.0
    if len(cluster.nodes) == 1:  # inside a host, a message takes as long as an empty one
        return len(steps) * float(np.max(model.gap_and_one_way_s(np.zeros(1), ([c], [c]))))
    in_bytes = np.array([n_new * float(n_bytes) for _, n_new in steps])
    gap_s, one_way_s = (each[0] for each in model.gap_and_one_way_s(in_bytes, ([c], [c])))
    # The ranks of a host send at once, except those whose target is on the same host.
    at_once = np.array([min(n_held, max(cluster.node_sizes)) for n_held, _ in steps])
    done_s, free_s = list[float](), 0.0
    for (_, n_new), one_way, port in zip(steps, one_way_s, at_once * gap_s, strict=True):
        n_needed = (n_new - 1).bit_length()  # the first steps bring what this one sends
        start_s = max([free_s, *done_s[:n_needed]])
        free_s = start_s + float(port)
        done_s.append(max(start_s + float(one_way), free_s))
    return max(done_s)


@algorithm(
    "allreduce",
    "allgather-reduce",
    "the shortest messages: one WAN latency, and inside a way up but none down",
    "gridcoll; Bruck et al. 1997 inside, Bienz, Olson and Gropp 2019 between",
)
def allgather_reduce(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return the candidate: a gather inside clusters, then other clusters' partial results."""
    grid = model.grid
    largest = max(grid.ranks_per_cluster)
    if grid.n_ranks == 1 or n_bytes > MOST_ALLGATHER_REDUCE_BYTES or largest > MOST_MEMBERS:
        return []
    ordered = all(c.ranks == tuple(range(c.ranks[0], c.ranks[0] + len(c))) for c in grid.clusters)
    label = f"{len(_steps(largest))} steps inside"
    if model.n_clusters > 1:
        label += ", then a message from each other cluster"

    found = [_candidate(model, n_bytes, label, (), ordered)]
    if model.n_clusters > 2:
        one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))[1][..., 0]
        if paths := nearest_paths(one_way_s):
            found.append(_candidate(model, n_bytes, f"{label}, the nearer way", paths, ordered))
    return found


def _candidate(
    model: GridModel, n_bytes: int, label: str, paths: Paths, ordered: bool
) -> Candidate:
    def build(n_units: int) -> Plan:
        return plan_allgather_reduce(model.grid, n_units, f"allgather-reduce: {label}", paths)

    seconds = price_allgather_reduce(model, n_bytes, paths)
    return Candidate("allgather-reduce", label, seconds, build, None, n_bytes, ordered)


alias("allreduce", "everyone", "allgather-reduce")
