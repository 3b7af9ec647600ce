"""Random grids: the ranges from which links and clusters are drawn, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.errors import UsageError
from gridcoll.schedule import Accounting, Batch
from gridcoll.schedule.instance import Floats

MACHINES = (1, 128)
LATENCY_S = (27e-6, 48e-6)
BYTES_PER_S = (11e6, 120e6)
OVERHEAD_S = 10e-6

ECEF_FAMILY = ("ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t")
"""Early Completion Edge First and its look-aheads that the papers compare."""


def draw_predicted(rng: np.random.Generator, shape: tuple[int, ...], n_bytes: int) -> Floats:
    """Return predicted times in seconds of a broadcast of ``n_bytes`` in random clusters.

    The models are those of paper 002, Table 1, with g(m) = overhead + m / rate. The ranges are our
    choice: 1 to 128 machines, latencies as in Table 3 of paper 000 (27 to 48 µs), and rates from
    Fast to Gigabit Ethernet.
    """
    machines = rng.integers(MACHINES[0], MACHINES[1], shape, endpoint=True)
    latency = rng.uniform(*LATENCY_S, shape)
    rate = rng.uniform(*BYTES_PER_S, shape)
    return predict_internal(machines, latency, rate, n_bytes)


def predict_internal(
    machines: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    latency_s: Floats,
    bytes_per_s: Floats,
    n_bytes: int,
) -> Floats:
    """Return the least time of binomial tree and segmented chain, over segments of m / 2^i bytes.

    All arrays have the same shape. A cluster of one machine takes no time.
    """
    rounds = np.log2(np.maximum(machines, 1))
    whole = OVERHEAD_S + n_bytes / bytes_per_s
    best = np.ceil(rounds) * latency_s + np.floor(rounds) * whole
    hops = machines - 1
    segment = n_bytes
    while segment >= 1024:
        n_segments = -(-n_bytes // segment)
        gap = OVERHEAD_S + segment / bytes_per_s
        best = np.minimum(best, hops * (gap + latency_s) + gap * (n_segments - 1))
        segment //= 2
    return np.where(machines > 1, best, 0.0)


Range = tuple[float, float]
Draw = Callable[[tuple[int, ...]], Floats]


class Parameters(Struct, frozen=True):
    """Uniform ranges. Gaps are drawn directly, or as the bytes of a message over a drawn rate."""

    name: str
    good_for: str
    source: str
    latency_s: Range
    internal_s: Range
    gap_s: Range | None = None
    bytes_per_s: Range | None = None
    message_bytes: int = 1_000_000

    def draw_gap(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Return gaps in seconds."""
        if self.gap_s is not None:
            return rng.uniform(*self.gap_s, shape)
        if self.bytes_per_s is None:
            raise UsageError(f"parameters {self.name!r}: give gap_s or bytes_per_s")
        return self.message_bytes / rng.uniform(*self.bytes_per_s, shape)


_ENTRIES = (
    Parameters(
        "table2",
        "gaps of 100 to 600 ms: links differ six-fold",
        "paper 000, Table 2 (Figures 1-4)",
        latency_s=(1e-3, 15e-3),
        gap_s=(100e-3, 600e-3),
        internal_s=(20e-3, 3000e-3),
    ),
    Parameters(
        "adaptive",
        "1 MB over 1 to 100 MB/s: most links are quick, few very slow",
        "paper 002, §7 (Figure 4)",
        latency_s=(1e-3, 15e-3),
        bytes_per_s=(1e6, 100e6),
        internal_s=(200e-3, 3000e-3),
    ),
)

PARAMETERS: dict[str, Parameters] = {entry.name: entry for entry in _ENTRIES}


def change_parameters(
    parameters: Parameters,
    latency_s: Range | None = None,
    gap_s: Range | None = None,
    bytes_per_s: Range | None = None,
    internal_s: Range | None = None,
    message_bytes: int | None = None,
) -> Parameters:
    """Return ``parameters`` with other ranges (inputs of the simulator in paper 002, §7).

    Raises `UsageError` if gaps are given twice, or a message size with gaps given directly.
    """
    if gap_s is not None and bytes_per_s is not None:
        raise UsageError("gaps: give them directly or by a rate, not both")
    if gap_s is not None or bytes_per_s is not None:
        parameters = replace(parameters, gap_s=gap_s, bytes_per_s=bytes_per_s)
    if message_bytes is not None:
        if parameters.gap_s is not None:
            raise UsageError("sizes: gaps are given directly here; give a rate")
        if message_bytes < 1:
            raise UsageError(f"sizes: must be at least 1 byte, got {message_bytes}")
        parameters = replace(parameters, message_bytes=message_bytes)
    return replace(
        parameters,
        latency_s=latency_s or parameters.latency_s,
        internal_s=internal_s or parameters.internal_s,
    )


class Filling(Struct, frozen=True):
    """How a matrix is filled from a range: ``fill(draw, b, n)`` gives a (b, n, n) array."""

    name: str
    good_for: str
    fill: Callable[[Draw, int, int], Floats]


def _independent(draw: Draw, b: int, n: int) -> Floats:
    return draw((b, n, n))


def _symmetric(draw: Draw, b: int, n: int) -> Floats:
    upper = np.triu(draw((b, n, n)), 1)
    return upper + upper.transpose(0, 2, 1)


def _least(draw: Draw, b: int, n: int) -> Floats:
    own = draw((b, n))
    return np.minimum(own[:, :, None], own[:, None, :])


def _largest(draw: Draw, b: int, n: int) -> Floats:
    own = draw((b, n))
    return np.maximum(own[:, :, None], own[:, None, :])


_FILLINGS = (
    Filling("independent", "every direction of every link by itself", _independent),
    Filling("symmetric", "both directions of a link alike", _symmetric),
    Filling("per-cluster", "a gap per cluster, a link has the smaller of its two", _least),
    Filling("per-cluster-max", "a gap per cluster, a link has the larger of its two", _largest),
)

FILLINGS: dict[str, Filling] = {entry.name: entry for entry in _FILLINGS}

INTERNALS = ("given", "predicted")
"""T drawn from its range, or predicted for a drawn cluster (`gridcoll.study.parameters`)."""


def draw_batch(
    parameters: Parameters,
    rng: np.random.Generator,
    n_instances: int,
    n_clusters: int,
    *,
    filling: str = "independent",
    internal: str = "given",
    accounting: Accounting | None = None,
) -> Batch:
    """Return random instances. Per-cluster fillings apply to gaps; latencies are then symmetric.

    Raises `UsageError` for an unknown ``filling`` or ``internal``.
    """
    if filling not in FILLINGS:
        raise UsageError(f"filling: must be one of {', '.join(FILLINGS)}; got {filling!r}")
    if internal not in INTERNALS:
        raise UsageError(f"internal: must be one of {', '.join(INTERNALS)}; got {internal!r}")
    latency_fill = _independent if filling == "independent" else _symmetric
    latency = latency_fill(
        lambda shape: rng.uniform(*parameters.latency_s, shape), n_instances, n_clusters
    )
    gap = FILLINGS[filling].fill(
        lambda shape: parameters.draw_gap(rng, shape), n_instances, n_clusters
    )
    diagonal = np.arange(n_clusters)
    latency[:, diagonal, diagonal] = gap[:, diagonal, diagonal] = 0.0
    if internal == "given":
        own = rng.uniform(*parameters.internal_s, (n_instances, n_clusters))
    else:
        own = draw_predicted(rng, (n_instances, n_clusters), parameters.message_bytes)
    return Batch(latency, gap, own, 0, accounting or Accounting())
