"""Rounds of disjoint pairs: everybody meets everybody, nobody is in two places.

And how many flows fill what is between two clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Count = TypeVar("Count", int, npt.NDArray[np.int64])
T = TypeVar("T")

MOST_LANES_PER_RANK = 4
"""More flows to one rank open no wider: its interface or theirs is full, or the link."""


def lanes_between(n: Count, m: Count) -> Count:
    """How many flows go between clusters of ``n`` and ``m`` ranks when all is to be used at once.

    Each from another rank of the larger one, equally many to every rank of the smaller one: a lone
    host takes what several send.
    """
    few, many = np.minimum(n, m), np.maximum(n, m)
    lanes = few * np.minimum(many // few, MOST_LANES_PER_RANK)
    return np.asarray(lanes) if isinstance(n, np.ndarray) else int(lanes)


def rounds_of_pairs(n: int) -> list[list[tuple[int, int]]]:
    """All pairs of ``0..n-1`` in rounds whose pairs share nobody (the circle method).

    ``n - 1`` rounds for even ``n``, ``n`` for odd; each pair ascending.
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
    """``items`` in rounds: each in the first in which none of its ``ends`` is taken."""
    rounds: list[list[T]] = []
    taken: list[set[int]] = []
    for item in items:
        those = set(ends(item))
        turn = next((k for k, each in enumerate(taken) if not each & those), len(rounds))
        if turn == len(rounds):
            rounds.append([])
            taken.append(set())
        rounds[turn].append(item)
        taken[turn] |= those
    return rounds
