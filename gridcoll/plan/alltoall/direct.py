"""Direct exchanges: every block goes straight to its receiver, in one of three orders.

``direct`` goes round all ranks, ``farthest-first`` sends blocks over the longest paths first, and
``pairwise`` has only a few sends in progress at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np

from gridcoll.constants import EAGER_PIECES_BYTES, LEAST_SAVED, MOST_EAGER_PIECES
from gridcoll.model.gridmodel import GridModel, Sample
from gridcoll.plan.alltoall.cost import of_grid, priced_s
from gridcoll.plan.alltoall.exchange import blocks, exchange_plan, keep_own, pieces_of
from gridcoll.plan.alltoall.messages import (
    Messages,
    Weights,
    by_rank,
    inside_rows,
    messages_of,
    rows_to_each,
)
from gridcoll.plan.alltoall.relayed import (
    MOST_ORDERED_RANKS,
    at_once_candidates,
    direct_shares,
)
from gridcoll.plan.alltoall.spread import has_unlike_wires
from gridcoll.plan.ops import Copy, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm, alias
from gridcoll.topology.grid import Grid
from gridcoll.topology.units import format_size

N_PAIRWISE_SLOTS = 2
"""Sends that a rank has in progress at once in a pairwise exchange."""

CutPlan = Callable[..., Plan]
"""``plan(n_units, label, piece_units=0)`` writes a plan for blocks of ``n_units``."""


def plan_direct(
    order: Sequence[int], n_units: int, label: str = "direct", piece_units: int = 0
) -> Plan:
    """Return a plan in which every rank sends every block to its receiver, all at once.

    Each rank serves those after it in ``order``, going round, so that ranks do not all send to the
    same one at a time. Blocks are cut into messages of ``piece_units``, so that they need no
    rendezvous; 0 leaves them whole.
    """
    place = {rank: k for k, rank in enumerate(order)}
    n_ranks = len(order)

    def program_of(rank: int) -> Program:
        at = place[rank]
        ops: list[Op] = []
        for step in range(1, n_ranks):
            source = order[(at - step) % n_ranks]
            target = order[(at + step) % n_ranks]
            in_chunks = pieces_of("output", source, n_units, piece_units)
            out_chunks = pieces_of("input", target, n_units, piece_units)
            ops += (Recv(source, chunk, tag) for tag, chunk in enumerate(in_chunks))
            ops += (Send(target, chunk, tag) for tag, chunk in enumerate(out_chunks))
        return (*ops, keep_own(rank, n_units))

    return exchange_plan(label, n_units, Programs(n_ranks, program_of))


@lru_cache(maxsize=64)
def direct_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Return the messages of `plan_direct`, with ranks in the order of their clusters."""
    order = [rank for cluster in grid.clusters for rank in cluster.ranks]
    return messages_of([inside_rows(order, by_rank(grid, weights))])


def far_order(model: GridModel) -> tuple[tuple[int, ...], ...]:
    """Return the other clusters for each cluster, farthest first.

    Equally far ones are in order, beginning with the next cluster.
    """
    n = model.n_clusters
    found = []
    for c in range(n):
        others = (c + np.arange(1, n)) % n
        by_latency = np.argsort(-model.latency_s[c, others], kind="stable")
        found.append(tuple(others[by_latency].tolist()))
    return tuple(found)


def farthest_first_peers(
    clusters: Sequence[Sequence[int]], far_order: Sequence[Sequence[int]], rank: int
) -> list[int]:
    """Return the other ranks in the order in which ``rank`` serves them: `plan_farthest_first`."""
    cluster, at = next((c, ranks.index(rank)) for c, ranks in enumerate(clusters) if rank in ranks)
    peers = [
        ranks[(at + step) % len(ranks)]
        for ranks in (clusters[c] for c in (*far_order[cluster], cluster))
        for step in range(len(ranks))
    ]
    return [peer for peer in peers if peer != rank]


def plan_farthest_first(
    clusters: Sequence[Sequence[int]],
    far_order: Sequence[Sequence[int]],
    n_units: int,
    label: str = "farthest-first",
    piece_units: int = 0,
) -> Plan:
    """Return a direct exchange in which blocks over the longest paths leave first.

    The ranks of a cluster serve the other ``clusters`` in its ``far_order``, and their own last. In
    another cluster, each starts at a different rank, so that they do not all send to the same one.
    """
    n_ranks = sum(map(len, clusters))

    def program_of(rank: int) -> Program:
        others = farthest_first_peers(clusters, far_order, rank)
        receives = [
            Recv(peer, chunk, tag)
            for peer in others
            for tag, chunk in enumerate(pieces_of("output", peer, n_units, piece_units))
        ]
        sends = [
            Send(peer, chunk, tag)
            for peer in others
            for tag, chunk in enumerate(pieces_of("input", peer, n_units, piece_units))
        ]
        return (*receives, *sends, keep_own(rank, n_units))

    return exchange_plan(label, n_units, Programs(n_ranks, program_of))


@lru_cache(maxsize=64)
def farthest_first_messages(
    grid: Grid, far_order: tuple[tuple[int, ...], ...], weights: Weights = ()
) -> Messages:
    """Return the messages of `plan_farthest_first`."""
    clusters = [np.array(cluster.ranks) for cluster in grid.clusters]
    weight_of = by_rank(grid, weights)
    rows = []
    for ranks, others in zip(clusters, far_order, strict=True):
        at = np.arange(len(ranks))[:, None]
        peers_by_cluster = [
            clusters[c][(at + np.arange(len(clusters[c]))) % len(clusters[c])] for c in others
        ]
        inside = ranks[(at + np.arange(1, len(ranks))) % len(ranks)]
        rows.append(
            rows_to_each(ranks, np.concatenate([*peers_by_cluster, inside], axis=1), weight_of)
        )
    return messages_of(rows)


def plan_pairwise(n_ranks: int, n_units: int, label: str = "pairwise") -> Plan:
    """Return a direct exchange in which a rank has only a few sends in progress at once.

    In step ``s``, rank ``r`` exchanges with ``r xor s`` if the number of ranks is a power of two;
    otherwise it sends to ``r + s`` and receives from ``r - s``. Blocks leave through a few slots of
    scratch, so that a send starts when an earlier one has ended.
    """
    two_power = n_ranks & (n_ranks - 1) == 0

    def program_of(rank: int) -> Program:
        sends: list[Op] = []
        receives: list[Op] = []
        for step in range(1, n_ranks):
            source = rank ^ step if two_power else (rank - step) % n_ranks
            target = rank ^ step if two_power else (rank + step) % n_ranks
            slot = blocks("scratch", (step - 1) % N_PAIRWISE_SLOTS, n_units)
            receives.append(Recv(source, blocks("output", source, n_units), 0))
            sends.append(Copy(blocks("input", target, n_units), slot))
            sends.append(Send(target, slot, 0))
        return (*receives, *sends, keep_own(rank, n_units))

    slots = min(N_PAIRWISE_SLOTS, n_ranks - 1)
    return exchange_plan(label, n_units, Programs(n_ranks, program_of), (slots,) * n_ranks)


@lru_cache(maxsize=64)
def pairwise_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Return the messages of `plan_pairwise`."""
    ranks, weight_of = np.arange(grid.n_ranks), by_rank(grid, weights)
    if grid.n_ranks & (grid.n_ranks - 1) == 0:
        rows = rows_to_each(ranks, ranks[:, None] ^ ranks[1:], weight_of)
    else:
        rows = inside_rows(range(grid.n_ranks), weight_of)
    return messages_of([rows], one_by_one=True)


def with_pieces(
    name: str,
    label: str,
    model: GridModel,
    messages_of: Callable[[Sample], Messages],
    n_bytes: int,
    plan: CutPlan,
) -> list[Candidate]:
    """Return the candidate, and variants in pieces that are short enough to need no rendezvous.

    ``messages_of`` returns the messages of a sample of the ranks.
    """
    whole_s = priced_s(model, messages_of, n_bytes)
    found = [Candidate.planned(name, label, whole_s, plan)]
    for piece in EAGER_PIECES_BYTES:
        if not piece < n_bytes <= MOST_EAGER_PIECES * piece:
            continue
        predicted_s = priced_s(model, messages_of, n_bytes, piece)
        if predicted_s < (1 - LEAST_SAVED) * whole_s:
            cut_label = f"{label}, in pieces of {format_size(piece)}"
            cut = partial(plan, piece_units=piece)
            found.append(Candidate.planned(name, cut_label, predicted_s, cut, segment_bytes=piece))
    return found


@algorithm(
    "alltoall",
    "direct",
    "long blocks: interfaces pass nothing twice",
    "003 section 5, direct exchange, rotated",
)
def _direct(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if model.grid.n_ranks == 1:
        return []
    label = "every block to its receiver, all at once"
    order = [rank for cluster in model.grid.clusters for rank in cluster.ranks]
    plan = partial(plan_direct, order)
    return with_pieces("direct", label, model, of_grid(direct_messages), n_bytes, plan)


@algorithm(
    "alltoall",
    "farthest-first",
    "long blocks between clusters: latency passes while interfaces send to neighbours",
    "gridcoll; direct exchange ordered by the model's latencies",
)
def _farthest_first(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return a direct exchange in another order, which changes only when the last block arrives."""
    if model.n_clusters == 1:
        return []
    label = "every block to its receiver, those with the longest way first"

    def messages_of(sample: Sample) -> Messages:
        return farthest_first_messages(sample.model.grid, far_order(sample.model), sample.weights)

    clusters = [cluster.ranks for cluster in model.grid.clusters]
    plan = partial(plan_farthest_first, clusters, far_order(model))
    found = with_pieces("farthest-first", label, model, messages_of, n_bytes, plan)
    if n_bytes and model.grid.n_ranks <= MOST_ORDERED_RANKS and has_unlike_wires(model):
        direct = direct_shares(model)
        label = "every block to its receiver"
        found += at_once_candidates("farthest-first", label, model, direct, n_bytes)
    return found


@algorithm(
    "alltoall",
    "pairwise",
    "long blocks where many flows at once hinder one another",
    "MPICH and Open MPI's pairwise exchange, without its steps",
)
def _pairwise(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return the pairwise exchange. A slot is in use until its message has been sent."""
    n_ranks = model.grid.n_ranks
    if n_ranks == 1:
        return []
    label = f"{N_PAIRWISE_SLOTS} sends at a time"
    predicted_s = priced_s(model, of_grid(pairwise_messages), n_bytes)
    return [Candidate.planned("pairwise", label, predicted_s, partial(plan_pairwise, n_ranks))]


alias("alltoall", "far-first", "farthest-first")
