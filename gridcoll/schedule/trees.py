"""Tree shapes: trees over ``n`` equal vertices with the root at vertex 0.

A shape only defines which vertex sends to which others, and in which order. It is independent of
segment size, protocol and of what the vertices are (ranks or clusters).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.errors import UsageError

Children = tuple[tuple[int, ...], ...]
"""``children[v]`` are the vertices to which ``v`` sends, in order."""


class Shape(Struct, frozen=True):
    """One entry of `SHAPES`."""

    name: str
    good_for: str
    source: str
    children: Callable[[int], Children]


def _flat(n: int) -> Children:
    return (tuple(range(1, n)), *((),) * (n - 1))


def _chain(n: int) -> Children:
    return tuple((v + 1,) if v + 1 < n else () for v in range(n))


def _binary(n: int) -> Children:
    return tuple(tuple(c for c in (2 * v + 1, 2 * v + 2) if c < n) for v in range(n))


def _binomial(n: int) -> Children:
    """Send from ``v`` to ``v + 2^k`` for each power below its lowest set bit, largest first."""
    children = []
    for v in range(n):
        powers = (1 << k for k in reversed(range(n.bit_length())))
        low = v & -v or n
        children.append(tuple(v + p for p in powers if p < low and v + p < n))
    return tuple(children)


def _fan(n: int) -> Children:
    return ((1,), tuple(range(2, n)), *((),) * (n - 2)) if n > 1 else ((),)


def _k_chain(degree: int) -> Callable[[int], Children]:
    def children(n: int) -> Children:
        heads = min(degree, n - 1)
        nexts = [(v + heads,) if v + heads < n else () for v in range(1, n)]
        return (tuple(range(1, heads + 1)), *nexts)

    return children


_TABLE = "Barchet-Estefanel & Mounié 2004, Table 1"
_LATER_TABLE = "Steffenel & Mounié 2007, Table 1"

SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("flat", "a handful of ranks, or latency far above the gap", _TABLE, _flat),
        Shape("chain", "long messages: every link carries them once", _TABLE, _chain),
        Shape("binary", "middle sizes: constant degree, logarithmic depth", _TABLE, _binary),
        Shape("binomial", "short messages: all holders send at once", _TABLE, _binomial),
        Shape("2-chain", "long messages among many ranks", _LATER_TABLE, _k_chain(2)),
        Shape("3-chain", "long messages among many ranks", _LATER_TABLE, _k_chain(3)),
        Shape("fan", "one of several trees: a helper sends its share to all", "gridcoll", _fan),
    )
}  # fmt: skip


_ANY_K_CHAIN = re.compile(r"([1-9]\d*)-chain")


def find_shape(name: str) -> Shape:
    """Return the shape called ``name``, which may be a ``d-chain`` of any degree.

    Raises `UsageError`, which lists the known names.
    """
    if name in SHAPES:
        return SHAPES[name]
    if match := _ANY_K_CHAIN.fullmatch(name):
        return replace(SHAPES["2-chain"], name=name, children=_k_chain(int(match[1])))
    raise UsageError(f"tree shape {name!r}: known are {', '.join(SHAPES)}, and any d-chain")


@lru_cache(maxsize=1024)
def find_tree(shape: str, n: int) -> tuple[tuple[int, ...], Children]:
    """Return the parent (-1 for the root) and the children of each of ``n`` vertices."""
    children = find_shape(shape).children(n)
    parents = [-1] * n
    for vertex, sends in enumerate(children):
        for child in sends:
            parents[child] = vertex
    return tuple(parents), children


@lru_cache(maxsize=4096)
def degrees(shape: str, n: int) -> np.ndarray:
    """Return the number of children of each vertex in ``shape``, (n,); read-only."""
    found = np.array([len(sends) for sends in find_shape(shape).children(n)], dtype=float)
    found.flags.writeable = False
    return found


class Profile(Struct, frozen=True):
    """The cost of a shape on ``n`` vertices, as counts of gaps and latencies.

    Under the one-port model, a vertex has the first segment ``gaps`` send gaps and ``latencies``
    link latencies after the root. Vertices that another vertex exceeds in both counts are left out:
    for any L and g, the last vertex to finish is among the others.
    """

    gaps: np.ndarray
    latencies: np.ndarray
    root_degree: int
    max_degree: int
    """Sends per segment at the root, and the most at any vertex: the period of a pipeline."""


@lru_cache(maxsize=4096)
def profile(shape: str, n: int) -> Profile:
    """Return the `Profile` of ``shape`` on ``n`` vertices."""
    children = find_shape(shape).children(n)
    counts = [(0, 0)] * n
    for v, sends in enumerate(children):  # every shape numbers parents below their children
        gaps, latencies = counts[v]
        for position, child in enumerate(sends, start=1):
            counts[child] = (gaps + position, latencies + 1)
    maximal: list[tuple[int, int]] = []
    for count in sorted(set(counts), reverse=True):
        if not maximal or count[1] > maximal[-1][1]:
            maximal.append(count)
    return Profile(
        gaps=np.array([gaps for gaps, _ in maximal], dtype=float),
        latencies=np.array([latencies for _, latencies in maximal], dtype=float),
        root_degree=len(children[0]),
        max_degree=max(len(sends) for sends in children),
    )
