"""Paper 001's Figures 4 to 6: LG against the direct exchange on two sites, by our model.

The network is the paper's (§5): Gigabit Ethernet hosts at Nancy and Rennes, a private backbone of
10 Gbit/s; the latency is assumed (paper 000's longest), as is the TCP window.

By pLogP alone the direct exchange wins for long blocks: its many flows fill the backbone, LG's few
are held back by their windows. What the paper measured (LG 40 to 60 % faster and more) needs
something else: direct has n1 n2 flows in each direction, LG max(n1, n2), and once the flows'
windows exceed what the backbone holds, packets are dropped and senders wait. `flow_contention`
says how much, by the number of flows:

    γ(F) = 1                      up to F0 = (rate · round trip) / window flows
    γ(F) = 1 + h (F / F0 - 1)     beyond

h is a network's own, as γ inside a cluster is (paper 003). The paper does not give it; 0 is a
network that shares without loss. `hindrance_for` finds the h at which LG gains what is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gridcoll.errors import UsageError
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import PLogP
from gridcoll.plan.choose import choose
from gridcoll.topology.grid import Cluster, Grid, Process

LATENCY_S = 5.8e-3
HOST_BYTES_PER_S = 125e6
BACKBONE_BYTES_PER_S = 1.25e9
WINDOW_BYTES = 65536.0
LAN_LATENCY_S = 50e-6
MESSAGE_S = 20e-6
LONG_BYTES = 1 << 20


@dataclass(frozen=True)
class Sites:
    """Two sites as in the paper; ``hindrance`` is h."""

    n_first: int = 30
    n_second: int = 30
    latency_s: float = LATENCY_S
    window_bytes: float = WINDOW_BYTES
    backbone_bytes_per_s: float = BACKBONE_BYTES_PER_S
    hindrance: float = 0.0

    def __post_init__(self) -> None:
        for name in ("n_first", "n_second", "latency_s", "window_bytes", "backbone_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"sites: {name}: must be positive, got {getattr(self, name)}")
        if not self.hindrance >= 0:
            raise UsageError(f"sites: hindrance: must not be negative, got {self.hindrance}")

    @property
    def free_flows(self) -> float:
        """F0: flows whose windows fill the backbone."""
        return self.backbone_bytes_per_s * 2 * self.latency_s / self.window_bytes

    def flow_contention(self, n_flows: int) -> float:
        """γ(F)."""
        return 1.0 + self.hindrance * max(n_flows / self.free_flows - 1.0, 0.0)

    def n_flows(self, algorithm: str) -> int:
        """In each direction at once."""
        if algorithm == "lg":
            return max(self.n_first, self.n_second)
        return self.n_first * self.n_second

    def model(self, n_flows: int) -> GridModel:
        """The sites while so many flows cross: links between them slower by γ(F)."""
        slower = self.flow_contention(n_flows)
        rate = min(self.window_bytes / (2 * self.latency_s), HOST_BYTES_PER_S) / slower
        across = _link(self.latency_s, rate)
        inside = _link(LAN_LATENCY_S, HOST_BYTES_PER_S)
        sizes = (self.n_first, self.n_second)
        first = 0
        clusters = []
        for k, size in enumerate(sizes):
            members = tuple(Process(rank, f"host{rank}") for rank in range(first, first + size))
            clusters.append(Cluster(("nancy", "rennes")[k], members))
            first += size
        together = min(self.backbone_bytes_per_s, min(sizes) * HOST_BYTES_PER_S) / slower
        lan = [size * HOST_BYTES_PER_S for size in sizes]
        return GridModel(
            Grid(tuple(clusters), "nancy-rennes"),
            tuple(
                tuple((inside if sizes[i] > 1 else None) if i == j else across for j in range(2))
                for i in range(2)
            ),
            aggregate_bytes_per_s=((lan[0], together), (together, lan[1])),
        )

    def seconds(self, algorithm: str, n_bytes: int) -> float:
        """Predicted time of ``direct`` or ``lg`` for blocks of ``n_bytes``."""
        model = self.model(self.n_flows(algorithm))
        predicted = choose("alltoall", model, n_bytes, 0, forced=algorithm).winner.predicted_s
        return float("inf") if predicted is None else predicted

    def gain(self, n_bytes: int) -> float:
        """Direct over LG: above 1 where LG is faster."""
        return self.seconds("direct", n_bytes) / self.seconds("lg", n_bytes)


def _link(latency_s: float, bytes_per_s: float) -> PLogP:
    wire_s = LONG_BYTES / bytes_per_s
    times = (MESSAGE_S, MESSAGE_S + wire_s)
    return PLogP(latency_s, (0, LONG_BYTES), times, times, times)


MOST_HINDRANCE = 1e4


def hindrance_for(sites: Sites, n_bytes: int, gain: float) -> float | None:
    """The least h at which LG is ``gain`` times as fast as direct; None where no h makes it so."""

    def enough(hindrance: float) -> bool:
        return replace(sites, hindrance=hindrance).gain(n_bytes) >= gain

    if enough(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST_HINDRANCE:
            return None
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
