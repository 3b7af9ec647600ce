"""Rounds of disjoint pairs, and the number of flows that fill the link between two clusters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Count = TypeVar("Count", int, npt.NDArray[np.int64])
T = TypeVar("T")

MOST_LANES_PER_RANK = 4
"""More flows to one rank carry no more: its interface, theirs or the link is full."""


def lanes_between(n: Count, m: Count) -> Count:
    """Return the number of flows that use all bandwidth between clusters of ``n`` and ``m`` ranks.

    Each flow has its own rank in the larger cluster. Every rank of the smaller cluster has equally
    many flows: a single host can receive what several hosts send.
    """
    few, many = np.minimum(n, m), np.maximum(n, m)
    lanes = few * np.minimum(many // few, MOST_LANES_PER_RANK)
    return np.asarray(lanes) if isinstance(n, np.ndarray) else int(lanes)


def rounds_of_pairs(n: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of ``0..n-1`` in rounds of disjoint pairs (the circle method).

    There are ``n - 1`` rounds for even ``n``, ``n`` for odd. Each pair is ascending.
    """
    seats = list(range(n)) + ([-1] if n % 2 else [])
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(sorted((min(p), max(p)) for p in pairs if -1 not in p))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in rounds if pairs]


def in_rounds(items: Iterable[T], ends: Callable[[T], Collection[int]]) -> list[list[T]]:
    """Distribute ``items`` over rounds: each to the first one in which its ``ends`` are free."""
    rounds: list[list[T]] = []
    taken: list[set[int]] = []
    for item in items:
        own_ends = set(ends(item))
        turn = next((k for k, each in enumerate(taken) if not each & own_ends), len(rounds))
        if turn == len(rounds):
            rounds.append([])
            taken.append(set())
        rounds[turn].append(item)
        taken[turn] |= own_ends
    return rounds
