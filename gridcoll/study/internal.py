"""Internal broadcast times predicted for random clusters, instead of drawn.

The models are those of paper 002, Table 1, with g(m) = overhead + m / rate. The ranges of the
clusters are ours: 1 to 128 machines, latencies as in paper 000's Table 3 (27 to 48 µs), and
rates from Fast to Gigabit Ethernet.
"""

from __future__ import annotations

import numpy as np

from gridcoll.schedule.instance import Floats

MACHINES = (1, 128)
LATENCY_S = (27e-6, 48e-6)
BYTES_PER_S = (11e6, 120e6)
OVERHEAD_S = 10e-6


def draw_predicted(rng: np.random.Generator, shape: tuple[int, ...], n_bytes: int) -> Floats:
    """Predicted times in seconds of a broadcast of ``n_bytes`` in random clusters."""
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
    """The least of the binomial tree and the segmented chain over segments of m / 2^i bytes.

    All arrays have one shape; a cluster of one machine takes no time.
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
