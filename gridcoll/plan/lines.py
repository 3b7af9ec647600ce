"""A shape laid over a line of hosts: what ranks that share one ask of its interface.

Between ranks of one host a message takes what an empty one takes: it does not pass the interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

from gridcoll.model.plogp import FloatArray
from gridcoll.schedule.trees import find_shape, profile

Hosts = tuple[int, ...]
"""How many places of the line each host has, one after another."""


@dataclass(frozen=True)
class LineCosts:
    """Counts of what happens until a place has the first segment, and of what passes then.

    Attributes
    ----------
    waits, hops : (k, 2) arrays
        Between hosts and inside one: sends that others on the way made before, and the way's own.
        Only places that no other exceeds in all are kept; the last one done is among them.
    busiest : float
        Messages per segment that the busiest interface sends, or takes in.
    """

    waits: FloatArray
    hops: FloatArray
    busiest: float


@lru_cache(maxsize=4096)
def line_costs(shape: str, hosts: Hosts) -> LineCosts:
    """The `LineCosts` of ``shape`` over a line of ``hosts``."""
    if max(hosts) == 1:
        found = profile(shape, len(hosts))
        none = np.zeros_like(found.gaps)
        waits, hops = found.gaps - found.latencies, found.latencies
        return LineCosts(
            np.stack([waits, none], axis=1), np.stack([hops, none], axis=1), found.max_degree
        )
    out, into = _crossings(shape, hosts)
    # Ranks of one host wait for one another as well: whoever is the last of them.
    most = int(max(out.max(), into.max()))
    counts = [*_counts(shape, hosts), *([(most - 1, 0, 1, 0)] if most else [])]
    kept: list[FloatArray] = []
    for row in np.unique(np.array(counts, dtype=float), axis=0)[::-1]:
        if not any((row <= other).all() for other in kept):
            kept.append(row)
    rows = np.array(kept)
    into[0] += 1  # what enters the line
    return LineCosts(rows[:, :2], rows[:, 2:], float(max(out.max(), into.max())))


@lru_cache(maxsize=1024)
def place_costs(shape: str, hosts: Hosts, place: int) -> tuple[int, int, int, int, int]:
    """Waits and hops of ``place``, as `LineCosts` has them, and how often its host sends."""
    if max(hosts) == 1 and place == 0:
        return 0, 0, 0, 0, profile(shape, len(hosts)).root_degree
    out, _ = _crossings(shape, hosts)
    return *_counts(shape, hosts)[place], int(out[_host_of_place(hosts, place)])


def _host_of_place(hosts: Hosts, place: int) -> int:
    """Which of ``hosts`` the ``place`` of the line is on."""
    return next(k for k, end in enumerate(accumulate(hosts)) if place < end)


@lru_cache(maxsize=1024)
def _counts(shape: str, hosts: Hosts) -> list[tuple[int, int, int, int]]:
    """By place: waits between hosts and inside, hops between hosts and inside."""
    host = np.repeat(np.arange(len(hosts)), hosts).tolist()
    counts = [(0, 0, 0, 0)] * len(host)
    # Every shape numbers parents below their children.
    for place, sends in enumerate(find_shape(shape).children(len(host))):
        far, near, far_hops, near_hops = counts[place]
        for child in sends:
            if host[child] == host[place]:
                counts[child] = far, near, far_hops, near_hops + 1
                near += 1
            else:
                counts[child] = far, near, far_hops + 1, near_hops
                far += 1
    return counts


@lru_cache(maxsize=4096)
def _edges(shape: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of parents and of their children, (n - 1,) each."""
    children = find_shape(shape).children(n)
    pairs = [(place, child) for place, sends in enumerate(children) for child in sends]
    both = np.array(pairs, dtype=int).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _crossings(shape: str, hosts: Hosts) -> tuple[FloatArray, FloatArray]:
    """How often every host sends to others, and takes in, per segment of ``shape``, (H,) each."""
    host = np.repeat(np.arange(len(hosts)), hosts)
    return crossings_of(shape, host, len(hosts))


def crossings_of(shape: str, host: np.ndarray, n_hosts: int) -> tuple[FloatArray, FloatArray]:
    """The same of a line whose ``k``-th place is on ``host[k]``."""
    parents, children = (host[places] for places in _edges(shape, len(host)))
    away = parents != children
    return (
        np.bincount(parents[away], minlength=n_hosts).astype(float),
        np.bincount(children[away], minlength=n_hosts).astype(float),
    )
