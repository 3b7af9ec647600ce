"""The messages of all-to-all plans as arrays: what is priced, without a plan being written.

`tally` reads them off a plan; the other functions give the same for a kind of plan at once, so that
a choice among hundreds of ranks takes milliseconds. Among thousands, those of a `Sample` stand for
all: functions take its ``weights``, and every message says for how many it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.bruck import bruck_steps
from gridcoll.plan.alltoall.rounds import Rounds
from gridcoll.plan.dataflow import dataflow
from gridcoll.plan.ops import Recv, Send
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Messages:
    """Messages of a plan whose blocks are one unit: arrays with an entry per message.

    Attributes
    ----------
    source, target : (M,) int array
        Ranks. The messages of one source stand in the order of its program.
    n_blocks : (M,) array
        How many blocks it carries, so that one tally serves every block size.
    n_out, n_in, n_alike : (M,) array
        How many like it its source sends, its target gets, and there are in all; 1 but in samples.
    stage : (M,) int array
        0 for what needs no other message, else one more than the latest stage it needs.
    needs : (N, 2) int array
        Message ``needs[k, 0]`` carries blocks that come with message ``needs[k, 1]``.
    one_by_one : bool
        Whether the messages of a source leave one after another, rather than side by side.
    """

    source: IntArray
    target: IntArray
    n_blocks: FloatArray
    n_out: FloatArray
    n_in: FloatArray
    n_alike: FloatArray
    stage: IntArray
    needs: IntArray
    one_by_one: bool = False


N_BLOCKS = 2
"""The column of `_rows` that says how many blocks a message carries."""


def _rows(
    source: npt.ArrayLike,
    target: npt.ArrayLike,
    n_blocks: npt.ArrayLike = 1,
    n_out: npt.ArrayLike = 1,
    n_in: npt.ArrayLike = 1,
    n_alike: npt.ArrayLike = 1,
) -> FloatArray:
    """Messages, one a row, with all that `Messages` says of them but what needs what."""
    columns = np.broadcast_arrays(source, target, n_blocks, n_out, n_in, n_alike)
    return np.stack(columns, axis=-1, dtype=float).reshape(-1, len(columns))


def messages_of(
    rows: Sequence[FloatArray], needs: Sequence[IntArray] = (), *, one_by_one: bool = False
) -> Messages:
    """Messages of ``rows``, (K, 6) each; of ``needs``, (N, 2), row numbers over all of them."""
    source, target, n_blocks, n_out, n_in, n_alike = np.concatenate([_rows([], []), *rows]).T
    later, earlier = all_needs = np.concatenate([np.empty((0, 2), int), *needs]).T
    stage = np.zeros(len(source), int)
    while (stage[later] <= stage[earlier]).any():
        np.maximum.at(stage, later, stage[earlier] + 1)
    ends = source.astype(int), target.astype(int)
    return Messages(*ends, n_blocks, n_out, n_in, n_alike, stage, all_needs.T, one_by_one)


def tally(plan: Plan) -> Messages:
    """The messages of ``plan``, written for blocks of one unit."""
    found: list[tuple[int, int, int]] = []
    number: dict[tuple[int, int, int], int] = {}
    comes: list[list[tuple[int, int, int]]] = []
    for rank, program in enumerate(plan.programs):
        flow = dataflow(program)
        carried: list[set[tuple[int, int, int]]] = [set() for _ in program]
        for index, op in enumerate(program):
            if isinstance(op, Send):
                number[rank, op.peer, op.tag] = len(found)
                found.append((rank, op.peer, op.chunk.size))
                comes.append(sorted(carried[index]))
            what = {(op.peer, rank, op.tag)} if isinstance(op, Recv) else carried[index]
            for later in flow.releases[index]:
                carried[later] |= what
    needs = [(k, number[key]) for k, keys in enumerate(comes) for key in keys]
    rows = [_rows(*np.reshape(found, (-1, 3)).T)]
    return messages_of(rows, [np.array(needs, int).reshape(-1, 2)])


Weights = tuple[float, ...]
"""By cluster, for how many each of its ranks stands; empty where each stands for itself."""


def by_rank(grid: Grid, weights: Weights) -> FloatArray:
    """For how many each rank stands, (P,)."""
    by_cluster = np.array(weights or (1.0,) * len(grid.clusters))
    return np.asarray(by_cluster[list(grid.cluster_of)])


def _to_each(
    source: IntArray, targets: IntArray, weight_of: FloatArray | None = None
) -> FloatArray:
    """One block from each of n ranks to each of its row of ``targets``, (n, k)."""
    source = np.broadcast_to(source[:, None], targets.shape)
    if weight_of is None:
        return _rows(source, targets)
    n_out, n_in = weight_of[targets], weight_of[source]
    return _rows(source, targets, 1, n_out, n_in, n_out * n_in)


def inside_rows(ranks: Sequence[int], weight_of: FloatArray) -> FloatArray:
    """The direct exchange within a cluster."""
    n, all_ranks = len(ranks), np.array(ranks)
    return _to_each(all_ranks, all_ranks[(np.arange(n)[:, None] + np.arange(1, n)) % n], weight_of)


@lru_cache(maxsize=64)
def direct_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Of `plan_direct`, ranks in the order of their clusters."""
    order = [rank for cluster in grid.clusters for rank in cluster.ranks]
    return messages_of([inside_rows(order, by_rank(grid, weights))])


@lru_cache(maxsize=64)
def paced_messages(rounds: Rounds) -> Messages:
    """Of `plan_paced`."""
    return messages_of([_to_each(np.arange(len(rounds) + 1), np.array(rounds).T)], one_by_one=True)


@lru_cache(maxsize=64)
def far_first_messages(
    grid: Grid, far_order: tuple[tuple[int, ...], ...], weights: Weights = ()
) -> Messages:
    """Of `plan_far_first`."""
    clusters = [np.array(cluster.ranks) for cluster in grid.clusters]
    weight_of = by_rank(grid, weights)
    rows = []
    for ranks, others in zip(clusters, far_order, strict=True):
        at = np.arange(len(ranks))[:, None]
        parts = [clusters[c][(at + np.arange(len(clusters[c]))) % len(clusters[c])] for c in others]
        inside = ranks[(at + np.arange(1, len(ranks))) % len(ranks)]
        rows.append(_to_each(ranks, np.concatenate([*parts, inside], axis=1), weight_of))
    return messages_of(rows)


@lru_cache(maxsize=64)
def pairwise_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Of `plan_pairwise`."""
    ranks, weight_of = np.arange(grid.n_ranks), by_rank(grid, weights)
    if grid.n_ranks & (grid.n_ranks - 1) == 0:
        rows = _to_each(ranks, ranks[:, None] ^ ranks[1:], weight_of)
    else:
        rows = inside_rows(range(grid.n_ranks), weight_of)
    return messages_of([rows], one_by_one=True)


@lru_cache(maxsize=64)
def bruck_messages(n_ranks: int) -> Messages:
    """Of `plan_bruck`."""
    ranks, steps = np.arange(n_ranks), bruck_steps(n_ranks)
    rows, needs, before = list[FloatArray](), list[IntArray](), set[int]()
    for k, step in enumerate(steps):
        to = (ranks + (1 << k)) % n_ranks
        rows.append(_rows(ranks, to, len(step)))
        # A block came with the step of its next lower bit; and steps leave in order.
        before |= {(d % (1 << k)).bit_length() - 1 for d in step} - {-1}
        for e in sorted(before):
            come = (ranks - (1 << e)) % n_ranks
            needs.append(np.stack([k * n_ranks + ranks, e * n_ranks + come], axis=1))
    return messages_of(rows, needs)


@lru_cache(maxsize=64)
def coordinator_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Of `plan_coordinator`: to coordinators, between them, back, and inside."""
    clusters = [cluster.ranks for cluster in grid.clusters]
    sizes, members = _sizes(grid, weights)
    n_clusters, n_ranks = len(clusters), sum(sizes)
    found = list[tuple[float, ...]]()
    between: dict[tuple[int, int], int] = {}
    handed: dict[tuple[int, int], list[int]] = {}
    for c, ranks in enumerate(clusters):
        for d in ((c + step) % n_clusters for step in range(1, n_clusters)):
            handed[c, d] = list(range(len(found), len(found) + len(ranks) - 1))
            found += [_to_desk(member, ranks[0], sizes[d], members[c]) for member in ranks[1:]]
    for c, ranks in enumerate(clusters):
        for d in ((c + step) % n_clusters for step in range(1, n_clusters)):
            between[c, d] = len(found)
            found.append(_between_desks(ranks[0], clusters[d][0], sizes[c] * sizes[d]))
    needs = [(between[link], k) for link, all_members in handed.items() for k in all_members]
    for c, ranks in enumerate(clusters):
        for member in ranks[1:]:
            needs += [(len(found), between[d, c]) for d in range(n_clusters) if d != c]
            found.append(_from_desk(ranks[0], member, n_ranks - sizes[c], members[c]))
    inside = [inside_rows(ranks, by_rank(grid, weights)) for ranks in clusters]
    return messages_of([table_of(found), *inside], [np.array(needs, int).reshape(-1, 2)])


@lru_cache(maxsize=64)
def hub_messages(grid: Grid, hub: int, weights: Weights = ()) -> Messages:
    """Of `plan_hub`: to coordinators, to the hub, from it, and to members."""
    clusters = [cluster.ranks for cluster in grid.clusters]
    sizes, members = _sizes(grid, weights)
    n_ranks = sum(sizes)
    spokes = [c for c in range(len(clusters)) if c != hub]
    crossing = [size * (n_ranks - size) for size in sizes]
    found = list[tuple[float, ...]]()
    needs = list[tuple[int, int]]()
    handed: list[list[int]] = []
    for c, ranks in enumerate(clusters):
        handed.append(list(range(len(found), len(found) + len(ranks) - 1)))
        found += [_to_desk(member, ranks[0], n_ranks, members[c]) for member in ranks[1:]]
    to_hub = {}
    for c in spokes:
        needs += [(len(found), k) for k in handed[c]]
        to_hub[c] = len(found)
        found.append(_between_desks(clusters[c][0], clusters[hub][0], crossing[c]))
    came = {hub: list(to_hub.values())}
    for c in spokes:
        others = [k for d, k in to_hub.items() if d != c] + handed[hub]
        needs += [(len(found), k) for k in others]
        came[c] = [len(found)]
        found.append(_between_desks(clusters[hub][0], clusters[c][0], crossing[c]))
    for c, ranks in enumerate(clusters):
        for member in ranks[1:]:
            needs += [(len(found), k) for k in (*handed[c], *came[c])]
            found.append(_from_desk(ranks[0], member, n_ranks, members[c]))
    return messages_of([table_of(found)], [np.array(needs, int).reshape(-1, 2)])


def _sizes(grid: Grid, weights: Weights) -> tuple[list[float], list[float]]:
    """By cluster: all ranks, and for how many members besides the coordinator each one stands."""
    sampled = [len(cluster) for cluster in grid.clusters]
    sizes = [
        n * weight for n, weight in zip(sampled, weights or (1.0,) * len(sampled), strict=True)
    ]
    return sizes, [(size - 1) / max(n - 1, 1) for n, size in zip(sampled, sizes, strict=True)]


def _to_desk(member: int, desk: int, n_blocks: float, members: float) -> tuple[float, ...]:
    return member, desk, n_blocks, 1, members, members


def _between_desks(source: int, target: int, n_blocks: float) -> tuple[float, ...]:
    return source, target, n_blocks, 1, 1, 1


def _from_desk(desk: int, member: int, n_blocks: float, members: float) -> tuple[float, ...]:
    return desk, member, n_blocks, members, 1, members


def table_of(rows: Sequence[tuple[float, ...]]) -> FloatArray:
    """What `_rows` makes of columns."""
    return np.array(rows, float).reshape(-1, 6)
