"""Latencies of grids to replay, and random grids whose clusters a full matrix tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field

Pair = tuple[int, int]


class Replay(Struct):
    """Measures by looking up; up to ``noise`` longer, by pair, the same every time.

    Typical latencies are longer by ``scatter``.
    """

    between_s: np.ndarray
    labels: np.ndarray
    noise: float = 0.0
    scatter: float = 0.02
    n_measured: dict[Pair, int] = field(default_factory=dict)

    def shortest_s(self, a: int, b: int) -> float:
        low, high = min(a, b), max(a, b)
        part = ((low * 1_000_003 + high) * 2_654_435_761 + 12_345) % (1 << 32) / (1 << 32)
        return float(self.between_s[self.labels[a], self.labels[b]]) * (1 + self.noise * part)

    def measure(self, rounds: Sequence[Sequence[Pair]]) -> Mapping[Pair, tuple[float, float]]:
        for pairs in rounds:
            assert len({node for pair in pairs for node in pair}) == 2 * len(pairs)
        found = {}
        for a, b in (pair for pairs in rounds for pair in pairs):
            self.n_measured[a, b] = self.n_measured.get((a, b), 0) + 1
            found[a, b] = (self.shortest_s(a, b), (1 + self.scatter) * self.shortest_s(a, b))
        return found

    def matrix(self) -> np.ndarray:
        n = len(self.labels)
        found = np.zeros((n, n))
        for a in range(n):
            for b in range(a):
                found[a, b] = found[b, a] = self.shortest_s(a, b)
        return found

    def groups(self) -> list[list[int]]:
        names = set(self.labels.tolist())
        return sorted(np.flatnonzero(self.labels == name).tolist() for name in names)


def random_grid(seed: int, n_nodes: int) -> Replay:
    """Some clusters at some sites, sizes uneven, nodes shuffled; 20 % noise.

    Inside a cluster 20 to 100 us, to others of its site 1.7 to 6 times the wider one's, to other
    sites milliseconds. A host alone has others nearer than any other host alone, as at the papers'
    IDPOT: two hosts that have nobody near are one cluster by Lowekamp's rule or are not, as noise
    decides.
    """
    random = np.random.default_rng(seed)
    n = int(random.integers(2, min(100, max(3, n_nodes // 3))))
    site = random.integers(0, int(random.integers(1, n + 1)), n)
    places = random.uniform(0, 1, (n, 2))
    inside_s = random.uniform(20e-6, 100e-6, n)
    between_s = np.diag(inside_s)
    weights = random.pareto(1.0, n) + 0.2
    sizes = np.maximum(2, (weights / weights.sum() * n_nodes).astype(int))
    for i in range(n):
        for j in range(i):
            wider_s = max(inside_s[i], inside_s[j])
            distance = float(np.linalg.norm(places[site[i]] - places[site[j]]))
            near_s = wider_s * random.uniform(1.7, 6)
            between_s[i, j] = near_s if site[i] == site[j] else 1e-3 + 20e-3 * distance
            between_s[j, i] = between_s[i, j]
    for i in range(n):
        beside = [j for j in range(n) if j != i and site[j] == site[i]]
        if any(sizes[j] > 1 for j in beside) and random.random() < 0.3:
            sizes[i] = 1
            for j in beside:
                away_s = 250e-6 if sizes[j] > 1 else 600e-6
                between_s[i, j] = between_s[j, i] = away_s * random.uniform(1, 1.3)
    labels = np.repeat(np.arange(n), sizes)
    random.shuffle(labels)
    return Replay(between_s, labels, 0.2)
