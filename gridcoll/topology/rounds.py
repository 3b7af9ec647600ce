"""Rounds of disjoint pairs: everybody meets everybody, nobody is in two places."""

from __future__ import annotations


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
