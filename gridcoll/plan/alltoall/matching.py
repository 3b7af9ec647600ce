"""A direct exchange in rounds, those over the longest links first, paced by the clock.

If all blocks are sent at once, flows share interfaces arbitrarily: a block for a far rank may be
the last to leave, and a receiver may idle while its block waits behind others. In a round, every
rank sends one block and receives one. No rank waits for the end of a round: a block leaves when the
interface should have sent the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from gridcoll.model.gridmodel import GridModel, Sample
from gridcoll.plan.alltoall.direct import with_pieces
from gridcoll.plan.alltoall.exchange import exchange_plan, keep_own, pieces_of
from gridcoll.plan.alltoall.messages import Messages, messages_of, rows_to_each
from gridcoll.plan.ops import Recv, Send
from gridcoll.plan.pacing import Pace, one_by_one, pace_of
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm, alias

MOST_RANKS = 32
"""Limit of ranks. The time to find rounds grows with the cube of the number of ranks."""

Rounds = tuple[tuple[int, ...], ...]
"""``rounds[k][rank]``: the rank to which ``rank`` sends in round ``k``."""


@lru_cache(maxsize=16)
def rounds_farthest_first(
    cluster_of: tuple[int, ...], latency_s: tuple[tuple[float, ...], ...]
) -> Rounds:
    """Return the fewest rounds in which every rank sends to every other once.

    A regular bipartite graph of senders and receivers splits into perfect matchings (König 1916).
    Each is found by augmenting paths (Kuhn 1955). These try the targets with the longest latency
    first.
    """
    n_ranks = len(cluster_of)

    def path_latency_s(source: int, target: int) -> float:
        a, b = cluster_of[source], cluster_of[target]
        return 0.0 if a == b else latency_s[a][b]

    remaining = [
        sorted(
            (target for target in range(n_ranks) if target != source),
            key=lambda target: (-path_latency_s(source, target), (target - source) % n_ranks),
        )
        for source in range(n_ranks)
    ]
    rounds = []
    for _ in range(n_ranks - 1):
        # The rank with the most remaining latency picks first.
        urgency = [sum(path_latency_s(s, t) for t in remaining[s]) for s in range(n_ranks)]
        order = sorted(
            range(n_ranks), key=lambda s: (-path_latency_s(s, remaining[s][0]), -urgency[s], s)
        )
        targets = _perfect_matching(remaining, order)
        for source, target in enumerate(targets):
            remaining[source].remove(target)
        rounds.append(targets)
    return tuple(rounds)


def _perfect_matching(targets: Sequence[Sequence[int]], order: Sequence[int]) -> tuple[int, ...]:
    """Return a different target for every source.

    Sources pick in ``order``, and each prefers its first targets.
    """
    source_of: dict[int, int] = {}

    def pick(source: int, tried: set[int]) -> bool:
        for target in targets[source]:
            if target not in tried:
                tried.add(target)
                if target not in source_of or pick(source_of[target], tried):
                    source_of[target] = source
                    return True
        return False

    for source in order:
        pick(source, set())
    target_of = {source: target for target, source in source_of.items()}
    return tuple(target_of[source] for source in range(len(targets)))


def plan_matching(
    rounds: Rounds,
    pace: Callable[[int], Pace],
    n_units: int,
    label: str = "matching",
    piece_units: int = 0,
) -> Plan:
    """Return a plan in which every rank sends its blocks one after another, round by round.

    ``pace`` returns how fast a rank sends. Blocks are cut as by `plan_direct`.
    """
    n_ranks = len(rounds) + 1

    def program_of(rank: int) -> Program:
        receives = [
            Recv(source, chunk, tag)
            for source in (targets.index(rank) for targets in rounds)
            for tag, chunk in enumerate(pieces_of("output", source, n_units, piece_units))
        ]
        sends = [
            Send(targets[rank], chunk, tag)
            for targets in rounds
            for tag, chunk in enumerate(pieces_of("input", targets[rank], n_units, piece_units))
        ]
        return (*receives, *one_by_one(tuple(sends), pace(rank)), keep_own(rank, n_units))

    return exchange_plan(label, n_units, Programs(n_ranks, program_of))


@lru_cache(maxsize=64)
def matching_messages(rounds: Rounds) -> Messages:
    """Return the messages of `plan_matching`."""
    return messages_of(
        [rows_to_each(np.arange(len(rounds) + 1), np.array(rounds).T)], one_by_one=True
    )


def _rounds(model: GridModel) -> Rounds:
    between_s = tuple(tuple(map(float, row)) for row in model.latency_s)
    return rounds_farthest_first(tuple(model.grid.cluster_of), between_s)


@algorithm(
    "alltoall",
    "matching",
    "middle sizes between clusters: no receiver idles while another has a queue",
    "gridcoll; a direct exchange in perfect matchings (König 1916), kept by the clock",
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return none for many ranks: in any order, their blocks take longer than any latency."""
    n_ranks = model.grid.n_ranks
    if not 1 < n_ranks <= MOST_RANKS or pace_of(model, 0, n_bytes) is None:
        return []

    def messages_of(sample: Sample) -> Messages:
        return matching_messages(_rounds(sample.model))

    def plan(n_units: int, label: str, piece_units: int = 0) -> Plan:
        def pace(rank: int) -> Pace:
            return pace_of(model, rank, n_units, all_send=True) or Pace(0.0)

        return plan_matching(_rounds(model), pace, n_units, label, piece_units)

    label = "a block at a time, those with the longest way first"
    return with_pieces("matching", label, model, messages_of, n_bytes, plan)


alias("alltoall", "paced", "matching")
