"""The messages of all-to-all plans as arrays: what is priced, without a plan being written.

`tally` reads them off a plan; the other functions give the same for a kind of plan at once, so that
a choice among hundreds of ranks takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gridcoll.plan.collectives.alltoall_bruck import bruck_steps
from gridcoll.plan.collectives.alltoall_lg import exchanges
from gridcoll.plan.collectives.alltoall_rounds import Rounds
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
    n_blocks : (M,) int array
        How many blocks it carries, so that one tally serves every block size.
    stage : (M,) int array
        0 for what needs no other message, else one more than the latest stage it needs.
    needs : (N, 2) int array
        Message ``needs[k, 0]`` carries blocks that come with message ``needs[k, 1]``.
    """

    source: IntArray
    target: IntArray
    n_blocks: IntArray
    stage: IntArray
    needs: IntArray


def _messages(rows: Sequence[IntArray], needs: Sequence[IntArray] = ()) -> Messages:
    """From ``(n, 3)`` arrays of source, target and blocks."""
    source, target, n_blocks = np.concatenate([np.empty((0, 3), int), *rows]).T
    later, earlier = all_needs = np.concatenate([np.empty((0, 2), int), *needs]).T
    stage = np.zeros(len(source), int)
    while (stage[later] <= stage[earlier]).any():
        np.maximum.at(stage, later, stage[earlier] + 1)
    return Messages(source, target, n_blocks, stage, all_needs.T)


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
    return _messages([np.array(found, int).reshape(-1, 3)], [np.array(needs, int).reshape(-1, 2)])


def _to_each(source: IntArray, targets: IntArray) -> IntArray:
    """One block from each of n ranks to each of its row of ``targets``, (n, k)."""
    n, k = targets.shape
    return np.stack([np.repeat(source, k), targets.ravel(), np.ones(n * k, int)], axis=1)


def _inside(ranks: IntArray) -> IntArray:
    """The direct exchange within a cluster."""
    n = len(ranks)
    return _to_each(ranks, ranks[(np.arange(n)[:, None] + np.arange(1, n)) % n])


@lru_cache(maxsize=64)
def direct_messages(grid: Grid) -> Messages:
    """Of `plan_direct`, ranks in the order of their clusters."""
    return _messages([_inside(np.array([r for cluster in grid.clusters for r in cluster.ranks]))])


@lru_cache(maxsize=64)
def paced_messages(rounds: Rounds) -> Messages:
    """Of `plan_paced`."""
    return _messages([_to_each(np.arange(len(rounds) + 1), np.array(rounds).T)])


@lru_cache(maxsize=64)
def far_first_messages(grid: Grid, far_order: tuple[tuple[int, ...], ...]) -> Messages:
    """Of `plan_far_first`."""
    clusters = [np.array(cluster.ranks) for cluster in grid.clusters]
    rows = []
    for ranks, others in zip(clusters, far_order, strict=True):
        at = np.arange(len(ranks))[:, None]
        parts = [clusters[c][(at + np.arange(len(clusters[c]))) % len(clusters[c])] for c in others]
        inside = ranks[(at + np.arange(1, len(ranks))) % len(ranks)]
        rows.append(_to_each(ranks, np.concatenate([*parts, inside], axis=1)))
    return _messages(rows)


@lru_cache(maxsize=64)
def pairwise_messages(n_ranks: int) -> Messages:
    """Of `plan_pairwise`."""
    ranks = np.arange(n_ranks)
    steps = np.arange(1, n_ranks)
    if n_ranks & (n_ranks - 1) == 0:
        return _messages([_to_each(ranks, ranks[:, None] ^ steps)])
    return _messages([_inside(ranks)])


@lru_cache(maxsize=64)
def bruck_messages(n_ranks: int) -> Messages:
    """Of `plan_bruck`."""
    ranks, steps = np.arange(n_ranks), bruck_steps(n_ranks)
    rows, needs, before = list[IntArray](), list[IntArray](), set[int]()
    for k, step in enumerate(steps):
        to = (ranks + (1 << k)) % n_ranks
        rows.append(np.stack([ranks, to, np.full(n_ranks, len(step))], axis=1))
        # A block came with the step of its next lower bit; and steps leave in order.
        before |= {(d % (1 << k)).bit_length() - 1 for d in step} - {-1}
        for e in sorted(before):
            come = (ranks - (1 << e)) % n_ranks
            needs.append(np.stack([k * n_ranks + ranks, e * n_ranks + come], axis=1))
    return _messages(rows, needs)


@lru_cache(maxsize=64)
def lg_messages(grid: Grid) -> Messages:
    """Of `plan_lg`: to collectors, across, and inside; collectors wait for what they collect."""
    to_collectors, across, needs = list[IntArray](), list[tuple[int, int, int]](), list[IntArray]()
    n_before = 0
    for exchange in exchanges(grid):
        for collector, target, sources in exchange.messages:
            others = np.array([source for source in sources if source != collector], int)
            n = len(others)
            to_collectors.append(np.stack([others, np.full(n, collector), np.ones(n, int)], axis=1))
            needs.append(np.stack([np.full(n, len(across)), n_before + np.arange(n)], axis=1))
            across.append((collector, target, len(sources)))
            n_before += n
    inside = [_inside(np.array(cluster.ranks)) for cluster in grid.clusters]
    for each in needs:
        each[:, 0] += n_before
    return _messages([*to_collectors, np.array(across, int).reshape(-1, 3), *inside], needs)


@lru_cache(maxsize=64)
def coordinator_messages(grid: Grid) -> Messages:
    """Of `plan_coordinator`: to coordinators, between them, back, and inside."""
    clusters = [cluster.ranks for cluster in grid.clusters]
    n_clusters, n_ranks = len(clusters), grid.n_ranks
    found: list[tuple[int, int, int]] = []
    between: dict[tuple[int, int], int] = {}
    handed: dict[tuple[int, int], list[int]] = {}
    for c, ranks in enumerate(clusters):
        for d in ((c + step) % n_clusters for step in range(1, n_clusters)):
            handed[c, d] = list(range(len(found), len(found) + len(ranks) - 1))
            found += [(member, ranks[0], len(clusters[d])) for member in ranks[1:]]
    for c, ranks in enumerate(clusters):
        for d in ((c + step) % n_clusters for step in range(1, n_clusters)):
            between[c, d] = len(found)
            found.append((ranks[0], clusters[d][0], len(ranks) * len(clusters[d])))
    needs = [(between[link], k) for link, members in handed.items() for k in members]
    for c, ranks in enumerate(clusters):
        for member in ranks[1:]:
            needs += [(len(found), between[d, c]) for d in range(n_clusters) if d != c]
            found.append((ranks[0], member, n_ranks - len(ranks)))
    inside = [_inside(np.array(ranks)) for ranks in clusters]
    return _messages(
        [np.array(found, int).reshape(-1, 3), *inside], [np.array(needs, int).reshape(-1, 2)]
    )


@lru_cache(maxsize=64)
def hub_messages(grid: Grid, hub: int) -> Messages:
    """Of `plan_hub`: to coordinators, to the hub, from it, and to members."""
    clusters = [cluster.ranks for cluster in grid.clusters]
    spokes = [c for c in range(len(clusters)) if c != hub]
    crossing = [len(ranks) * (grid.n_ranks - len(ranks)) for ranks in clusters]
    found: list[tuple[int, int, int]] = []
    needs: list[tuple[int, int]] = []
    handed: list[list[int]] = []
    for ranks in clusters:
        handed.append(list(range(len(found), len(found) + len(ranks) - 1)))
        found += [(member, ranks[0], grid.n_ranks) for member in ranks[1:]]
    to_hub = {}
    for c in spokes:
        needs += [(len(found), k) for k in handed[c]]
        to_hub[c] = len(found)
        found.append((clusters[c][0], clusters[hub][0], crossing[c]))
    came = {hub: list(to_hub.values())}
    for c in spokes:
        others = [k for d, k in to_hub.items() if d != c] + handed[hub]
        needs += [(len(found), k) for k in others]
        came[c] = [len(found)]
        found.append((clusters[hub][0], clusters[c][0], crossing[c]))
    for c, ranks in enumerate(clusters):
        for member in ranks[1:]:
            needs += [(len(found), k) for k in (*handed[c], *came[c])]
            found.append((ranks[0], member, grid.n_ranks))
    return _messages([np.array(found, int).reshape(-1, 3)], [np.array(needs, int).reshape(-1, 2)])
