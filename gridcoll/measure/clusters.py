"""Find nodes by host name, and clusters by the latency between nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

from gridcoll.constants import SHORT_LATENCY_S
from gridcoll.engine.agreement import tell_all
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.probe import Channel, measure_latency
from gridcoll.topology.clustering import far_nodes_apart, find_clusters
from gridcoll.topology.grid import Cluster, Grid, Process
from gridcoll.topology.rounds import rounds_of_pairs

Progress = Callable[[str, int, int], None]
"""Called on rank 0 with the name of an activity, the steps that are done, and all its steps."""

N_PASSES = 4
N_PASSES_UNCHANGED = 2
MOST_PASSES = 12


def silent(_what: str, _done: int, _of: int) -> None:
    """Ignore progress."""


Grouping = Callable[[MPI.Intracomm, Sequence[int], float, Progress], list[list[int]]]
"""Finds clusters of nodes, as `find_groups` does."""


def find_grid(
    comm: MPI.Intracomm,
    tolerance: float,
    progress: Progress = silent,
    name: str = "",
    grouping: Grouping | None = None,
    known_nodes: Sequence[tuple[str, str]] = (),
) -> Grid:
    """Find nodes by host name and machine, then clusters by latency between nodes. Collective.

    `MPI.COMM_TYPE_SHARED` would also find nodes, but making a communicator takes some round trips.
    Clusters come from all latencies between nodes, unless another ``grouping`` is given.
    ``known_nodes`` has the host name and `machine_id` of each rank, if they were exchanged already.
    """
    rows = known_nodes or tell_all(comm, (MPI.Get_processor_name(), machine_id()))
    hosts, leaders = [host for host, _ in rows], [rows.index(row) for row in rows]
    nodes = sorted(set(leaders))
    groups = (grouping or find_groups)(comm, nodes, tolerance, progress)
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


def machine_id() -> str:
    """Return a text that distinguishes machines of the same name; empty if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def find_groups(
    comm: MPI.Intracomm, nodes: Sequence[int], tolerance: float, progress: Progress = silent
) -> list[list[int]]:
    """Return clusters of ``nodes`` as lists of their indices. Collective; equal on all ranks.

    ``nodes`` are the ranks of their leaders. Short links are measured in further passes, because
    the noise of either node matters most on them. While a split depends on short links only, those
    are measured again: the minimum of more samples never grows, so a split caused by noise
    disappears and a real one stays.
    """
    passes = [_latency_pass(comm, nodes, None, progress)]
    short = (passes[0][0] < SHORT_LATENCY_S).astype(bool)
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
    shortest_s = np.array(passes)[:, 0].min(axis=0)
    return far_nodes_apart(groups, [dict(enumerate(row)) for row in shortest_s.tolist()])


def _cluster(passes: Sequence[np.ndarray], short: np.ndarray, tolerance: float) -> list[list[int]]:
    stack = np.stack(passes)
    coarse_s = resolution(stack[:N_PASSES, 0], short)
    return find_clusters(stack[:, 0].min(axis=0), tolerance, coarse_s, certain_latency(stack))


def certain_latency(passes: np.ndarray) -> np.ndarray:
    """Return lower bounds of latencies, (n, n), from (passes, 2, n, n) minima and medians.

    If round trips of a link scatter, its latency may be shorter than the shortest one seen, by
    about as much as the median is longer. Only a certain latency may separate two nodes. The bound
    does not show which nodes are near: on a busy host, with medians twice the minima, all bounds
    are 0.
    """
    shortest, typical = passes[:, 0].min(axis=0), passes[:, 1].min(axis=0)
    return np.asarray(np.maximum(2 * shortest - typical, 0.0))


def _between(groups: Sequence[Sequence[int]], n: int) -> np.ndarray:
    """Return which pairs of ``n`` nodes are in different groups, (n, n)."""
    label = np.zeros(n, dtype=int)
    for index, group in enumerate(groups):
        label[list(group)] = index
    return np.asarray(label[:, None] != label[None, :])


def _latency_pass(
    comm: MPI.Intracomm, nodes: Sequence[int], wanted: np.ndarray | None, progress: Progress
) -> np.ndarray:
    """Measure all pairs of nodes, or the ``wanted`` ones, in rounds of disjoint pairs.

    Returns the shortest and the median latency, (2, n, n).
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
    wait_for_all(comm)
    comm.Allreduce(mine, total, MPI.SUM)
    return total


def resolution(passes: np.ndarray, short: np.ndarray) -> float:
    """Return the latency in seconds below which repeated measurements cannot distinguish two links.

    ``passes[k]`` is the k-th (n, n) matrix of shortest latencies. ``short`` marks the links that
    were measured in each. Measurements that differ by d cannot show a 30 % difference between links
    shorter than about 3 d. The upper quartile of d is used, so that one busy moment does not hide a
    cluster.
    """
    repeated = np.triu(short, k=1)
    if not repeated.any():
        return 0.0
    values = passes[:, repeated]
    return float(3 * np.quantile(values.max(axis=0) - values.min(axis=0), 0.75))


def name_clusters(hosts: Sequence[Sequence[str]]) -> list[str]:
    """Return a name for each cluster: the common prefix of its hosts' names, made unique."""
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
