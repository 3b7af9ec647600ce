"""The 88 machines of paper 000, Table 3, predicted as in its Figure 5.

The paper prints latencies but no gaps. Ours are calibrated on what paper 002 says of the same grid:
1 MB from Orsay to Grenoble takes 350 ms (a TCP window of 64 KiB per round trip of twice the latency
gives 372 + 12 ms), and a binomial broadcast of 1 MB among 50 nodes over Gigabit Ethernet takes
600 ms (five rounds of 120 ms: 8.4 MB/s). So

    g(m) = overhead + m / min(local rate, window / (2 L)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridcoll.errors import UsageError
from gridcoll.schedule import Accounting, Instance
from gridcoll.schedule.instance import Floats
from gridcoll.schedule.trees import find_shape

CLUSTERS = ("Orsay 1", "Orsay 2", "IDPOT 1", "IDPOT 2", "IDPOT 3", "Toulouse")
MACHINES = (31, 29, 6, 1, 1, 20)
LATENCY_US = (
    (47.56, 62.10, 12181.52, 12187.24, 12197.49, 5210.99),
    (62.10, 47.92, 12181.52, 12198.03, 12195.22, 5211.47),
    (12181.52, 12181.52, 35.52, 60.08, 60.08, 5388.49),
    (12187.24, 12198.03, 60.08, 0.0, 242.47, 5393.98),
    (12197.49, 12195.22, 60.08, 242.47, 0.0, 5394.10),
    (5210.99, 5211.47, 5388.49, 5393.98, 5394.10, 27.53),
)
"""Paper 000, Table 3; the diagonal is inside a cluster (none for single machines)."""

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Calibration:
    """What the paper leaves out; see the module's text for where the defaults come from."""

    window_bytes: float = 65536.0
    local_bytes_per_s: float = 8.4e6
    overhead_s: float = 100e-6

    def __post_init__(self) -> None:
        for name in ("window_bytes", "local_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"calibration: {name} must be positive, got {getattr(self, name)}")

    def gap_s(self, n_bytes: float) -> Floats:
        """g(m) between and (diagonal) inside clusters, (6, 6)."""
        latency = np.array(LATENCY_US) * 1e-6
        with np.errstate(divide="ignore"):
            rate = np.minimum(self.local_bytes_per_s, self.window_bytes / (2 * latency))
        gap: Floats = self.overhead_s + n_bytes / rate
        return gap


def grid_instance(
    n_bytes: float, calibration: Calibration, root: int = 0, accounting: Accounting | None = None
) -> Instance:
    """The broadcast of ``n_bytes`` between the six clusters.

    Inside, a binomial tree as the paper has it: ceil(log2 P) L + floor(log2 P) g(m) (paper 002,
    Table 1).
    """
    latency = np.array(LATENCY_US) * 1e-6
    gap = calibration.gap_s(n_bytes)
    rounds = np.log2(np.array(MACHINES))
    internal = np.ceil(rounds) * latency.diagonal() + np.floor(rounds) * gap.diagonal()
    return Instance(latency, gap, internal, root, accounting or Accounting())


def unaware_binomial_s(n_bytes: float, calibration: Calibration, root: int = 0) -> float:
    """The binomial tree over all 88 machines in cluster order, as an MPI library sends it.

    Vertex v of the tree is machine (first machine of the root's cluster + v) mod 88; a sender is
    busy for the gap of each transfer.
    """
    place = [cluster for cluster, count in enumerate(MACHINES) for _ in range(count)]
    shift = sum(MACHINES[:root])
    place = place[shift:] + place[:shift]
    latency = np.array(LATENCY_US) * 1e-6
    gap = calibration.gap_s(n_bytes)
    arrival = [0.0] * len(place)
    for sender, receivers in enumerate(find_shape("binomial").children(len(place))):
        free = arrival[sender]  # children have higher numbers: arrival[sender] is known
        for receiver in receivers:
            free += float(gap[place[sender], place[receiver]])
            arrival[receiver] = free + float(latency[place[sender], place[receiver]])
    return max(arrival)
