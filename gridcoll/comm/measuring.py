"""Discovery: node grouping, latencies, clusters, then pLogP of representative pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from gridcoll.comm.clock import estimate_offset, run_together
from gridcoll.comm.natives import STEPS, time_native
from gridcoll.engine.memory import ByteMemory
from gridcoll.engine.probe import Channel, measure_latency, measure_plogp
from gridcoll.engine.runner import MPITransport, run_program
from gridcoll.model import GridModel, PLogP, TimesBySize
from gridcoll.plan import dataflow
from gridcoll.plan.collectives.bcast import RankTree, plan_bcast
from gridcoll.topology.clustering import find_clusters
from gridcoll.topology.grid import Cluster, Grid, Process
from gridcoll.topology.rounds import rounds_of_pairs

Progress = Callable[[str, int, int], None]
"""Called on rank 0 with what is being done, how many steps are done, and of how many."""

PACE_SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16)
_TOGETHER_BYTES = 1 << 15

N_PASSES = 4
N_PASSES_UNCHANGED = 2
MOST_PASSES = 12
_SHORT_LINK_S = 2e-3

NATIVE_SIZES = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22)


def _silent(_what: str, _done: int, _of: int) -> None:
    pass


def discover(
    comm: MPI.Intracomm,
    tolerance: float,
    *,
    both_directions: bool = False,
    native: bool = True,
    progress: Progress = _silent,
    name: str = "",
) -> GridModel:
    """Measure the grid that ``comm`` spans. Collective; the result is the same on all ranks.

    At most C(C-1)/2 + C pLogP measurements for C clusters, twice the first term with
    ``both_directions``.

    Parameters
    ----------
    comm : MPI.Intracomm
        Used for all messages; a private duplicate.
    tolerance : float
        ρ of the clustering.
    both_directions : bool
        Measure links from both ends; otherwise they count as symmetric.
    native : bool
        Time the MPI library's own collectives as well.
    progress : callable
    name : str
        Name of the grid in files.
    """
    grid = find_grid(comm, tolerance, progress, name)
    links = measure_links(comm, grid, both_directions, progress)
    model = GridModel(grid, links, "measured", tolerance)
    if len(set(grid.hosts)) == 1:
        return model  # shared memory: no plan of ours is meant for it
    model = replace(
        model,
        pace=measure_pace(comm, grid),
        together_bytes_per_s=measure_together(comm, grid, progress),
    )
    if native:
        clock = estimate_offset(comm)
        model = replace(
            model,
            native={
                name: time_native(comm, model, clock, name, NATIVE_SIZES, progress)
                for name in STEPS
            },
        )
    return model


def find_grid(
    comm: MPI.Intracomm, tolerance: float, progress: Progress = _silent, name: str = ""
) -> Grid:
    """Nodes by shared memory, then clusters by latency between nodes. Collective."""
    rank, hosts = comm.Get_rank(), comm.allgather(MPI.Get_processor_name())
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED, rank)
    leaders = comm.allgather(shared.bcast(rank, 0))
    shared.Free()
    nodes = sorted(set(leaders))
    groups = find_groups(comm, nodes, tolerance, progress)
    clusters = []
    for group in groups:
        members = {nodes[k] for k in group}
        ranks = [r for r in range(comm.Get_size()) if leaders[r] in members]
        clusters.append(tuple(Process(r, hosts[r]) for r in ranks))
    clusters.sort(key=lambda processes: processes[0].rank)
    names = name_clusters([[p.host for p in processes] for processes in clusters])
    return Grid(
        tuple(Cluster(n, processes) for n, processes in zip(names, clusters, strict=True)), name
    )


def find_groups(
    comm: MPI.Intracomm, nodes: Sequence[int], tolerance: float, progress: Progress = _silent
) -> list[list[int]]:
    """Clusters of ``nodes`` (their leaders' ranks), as indices; equal on all ranks. Collective.

    Links that turn out short are measured in further passes, because on them a busy moment of
    either node weighs most. While a split rests on short links only, those are measured again: the
    shortest of more samples is never longer, so a split that noise made goes away and one that the
    network made stays.
    """
    passes = [_latency_pass(comm, nodes, None, progress)]
    short = (passes[0][0] < _SHORT_LINK_S).astype(bool)
    for _ in range(N_PASSES - 1):
        passes.append(np.where(short, _latency_pass(comm, nodes, short, progress), passes[0]))
    groups, n_unchanged = _cluster(passes, short, tolerance), 0
    while n_unchanged < N_PASSES_UNCHANGED and len(passes) < MOST_PASSES:
        doubtful = short & _between(groups, len(nodes))
        if not doubtful.any():
            break
        again = _latency_pass(comm, nodes, doubtful, progress)
        passes.append(np.where(doubtful, again, np.min(passes, axis=0)))
        before, groups = groups, _cluster(passes, short, tolerance)
        n_unchanged = n_unchanged + 1 if groups == before else 0
    return groups


def _cluster(passes: Sequence[np.ndarray], short: np.ndarray, tolerance: float) -> list[list[int]]:
    stack = np.stack(passes)
    coarse_s = resolution(stack[:N_PASSES, 0], short)
    return find_clusters(certain_latency(stack), tolerance, coarse_s)


def certain_latency(passes: np.ndarray) -> np.ndarray:
    """What each link's latency is at least, as far as (passes, 2, n, n) minima and medians show.

    A link whose round trips scatter may be shorter than the shortest seen, by about as much as the
    typical one is longer. Only a latency that is certain may keep two nodes apart.
    """
    shortest, typical = passes[:, 0].min(axis=0), passes[:, 1].min(axis=0)
    return np.asarray(np.maximum(2 * shortest - typical, 0.0))


def _between(groups: Sequence[Sequence[int]], n: int) -> np.ndarray:
    """Which pairs of ``n`` nodes are in different groups, (n, n)."""
    label = np.zeros(n, dtype=int)
    for index, group in enumerate(groups):
        label[list(group)] = index
    return np.asarray(label[:, None] != label[None, :])


def _latency_pass(
    comm: MPI.Intracomm, nodes: Sequence[int], wanted: np.ndarray | None, progress: Progress
) -> np.ndarray:
    """One pass over all pairs of nodes, or over the ``wanted`` ones, in disjoint rounds.

    Shortest and median latency, (2, n, n).
    """
    mine = np.zeros((2, len(nodes), len(nodes)))
    place = {leader: k for k, leader in enumerate(nodes)}
    me = place.get(comm.Get_rank(), -1)
    rounds = rounds_of_pairs(len(nodes))
    for done, pairs in enumerate(rounds):
        progress("latency between nodes", done, len(rounds))
        for a, b in pairs:
            if me in (a, b) and (wanted is None or wanted[a, b]):
                measured = measure_latency(Channel(comm, nodes[b if me == a else a], me == a))
                if me == a:
                    mine[:, a, b] = mine[:, b, a] = measured
    progress("latency between nodes", len(rounds), len(rounds))
    total = np.empty_like(mine)
    comm.Allreduce(mine, total, MPI.SUM)
    return total


def resolution(passes: np.ndarray, short: np.ndarray) -> float:
    """Below which latency, in seconds, repeated measurements cannot tell two links apart.

    ``passes[k]`` is the k-th (n, n) matrix of shortest latencies, ``short`` says which links were
    measured in each. Measurements that differ by d cannot show a 30 % difference between links
    shorter than about 3 d; the upper quartile of d, so that one busy moment hides no cluster.
    """
    repeated = np.triu(short, k=1)
    if not repeated.any():
        return 0.0
    values = passes[:, repeated]
    return float(3 * np.quantile(values.max(axis=0) - values.min(axis=0), 0.75))


def name_clusters(hosts: Sequence[Sequence[str]]) -> list[str]:
    """A name per cluster: what its hosts' names share, made unique."""
    names: list[str] = []
    for members in hosts:
        prefix = _common_prefix([host.split(".")[0] for host in members])
        base = re.sub(r"[-_.]*\d*$", "", prefix) or f"cluster{len(names)}"
        name, k = base, 2
        while name in names:
            name, k = f"{base}-{k}", k + 1
        names.append(name)
    return names


def _common_prefix(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    same = (k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(same, min(len(first), len(last)))]


def measure_links(
    comm: MPI.Intracomm, grid: Grid, both_directions: bool = False, progress: Progress = _silent
) -> tuple[tuple[PLogP | None, ...], ...]:
    """One pLogP measurement per cluster and per cluster pair, clusters in disjoint pairs.

    Collective; the result is the same on all ranks.
    """
    n = len(grid.clusters)
    steps: list[list[tuple[int, int]]] = [[(c, c) for c in range(n) if len(grid.clusters[c]) > 1]]
    for pairs in rounds_of_pairs(n):
        steps.append(pairs)
        if both_directions:
            steps.append([(b, a) for a, b in pairs])
    n_links = sum(len(pairs) for pairs in steps)
    mine: list[tuple[int, int, PLogP]] = []
    done = 0
    for pairs in steps:
        progress("pLogP of links", done, n_links)
        for a, b in pairs:
            sender, receiver = representatives(grid, a, b)
            if comm.Get_rank() in (sender, receiver):
                active = comm.Get_rank() == sender
                peer = receiver if active else sender
                measured = measure_plogp(Channel(comm, peer, active))
                if measured is not None:
                    mine.append((a, b, measured))
        done += len(pairs)
        comm.Barrier()  # the next round's pairs must not find a link still busy
    progress("pLogP of links", n_links, n_links)
    links: list[list[PLogP | None]] = [[None] * n for _ in range(n)]
    for a, b, link in (entry for entries in comm.allgather(mine) for entry in entries):
        links[a][b] = link
        if not both_directions:
            links[b][a] = link
    return tuple(tuple(row) for row in links)


def representatives(grid: Grid, a: int, b: int) -> tuple[int, int]:
    """The ranks that measure for a cluster pair: coordinators; inside, two on different nodes."""
    first = grid.clusters[a].coordinator
    if a != b:
        return first, grid.clusters[b].coordinator
    nodes = grid.clusters[a].nodes
    return first, (nodes[1][0].rank if len(nodes) > 1 else grid.clusters[a].ranks[1])


def measure_pace(comm: MPI.Intracomm, grid: Grid, n_segments: int = 48) -> TimesBySize:
    """Seconds per segment while a chain over all ranks passes segments on. Collective.

    The links' own gaps are in it; what it has above them is our engine's cost, and that of ranks
    which share cores.
    """
    order = [rank for cluster in grid.clusters for rank in cluster.ranks]
    children: list[tuple[int, ...]] = [()] * len(order)
    for rank, following in pairwise(order):
        children[rank] = (following,)
    tree = RankTree(order[0], tuple(children))
    transport = MPITransport(comm)
    clock = estimate_offset(comm)

    def run(segment: int, n: int) -> float:
        flow = dataflow(plan_bcast([tree], n * segment, segment).programs[comm.Get_rank()])
        memory = ByteMemory(memoryview(bytearray(n * segment)))
        return run_together(comm, clock, lambda: run_program(flow, transport, memory))

    seconds: list[float] = []
    for segment in PACE_SIZES:
        run(segment, n_segments)
        long_s = min(run(segment, 3 * n_segments) for _ in range(2))
        short_s = min(run(segment, n_segments) for _ in range(2))
        seconds.append(max((long_s - short_s) / (2 * n_segments), 0.0))
    return TimesBySize(PACE_SIZES, tuple(seconds))


def measure_together(
    comm: MPI.Intracomm, grid: Grid, progress: Progress = _silent
) -> tuple[tuple[float, ...], ...]:
    """Bytes per second of several flows at once between every two clusters. Collective.

    As many flows as the smaller cluster has ranks, each between other ranks. Both directions count
    as alike.
    """
    n = len(grid.clusters)
    rates = np.ones((n, n))
    rounds = rounds_of_pairs(n)
    rank = comm.Get_rank()
    for done, pairs in enumerate(rounds):
        progress("flows together", done, len(rounds))
        comm.Barrier()
        mine = np.zeros((n, n))
        for a, b in pairs:
            lanes = list(zip(grid.clusters[a].ranks, grid.clusters[b].ranks, strict=False))
            for sender, receiver in lanes:
                if rank in (sender, receiver):
                    active = rank == sender
                    channel = Channel(comm, receiver if active else sender, active)
                    channel.train_s(_TOGETHER_BYTES, 4)
                    took = channel.train_s(_TOGETHER_BYTES, 12) - channel.round_trip_s(0)
                    if active:
                        mine[a, b] = took
        slowest = np.empty_like(mine)
        comm.Allreduce(mine, slowest, MPI.MAX)
        for a, b in pairs:
            n_lanes = min(len(grid.clusters[a]), len(grid.clusters[b]))
            moved = 12 * _TOGETHER_BYTES * n_lanes
            rates[a, b] = rates[b, a] = moved / max(float(slowest[a, b]), 1e-9)
    progress("flows together", len(rounds), len(rounds))
    return tuple(tuple(float(x) for x in row) for row in rates)
