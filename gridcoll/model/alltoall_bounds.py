"""Bounds of an all-to-all inside one cluster: paper 003, Table 3, and ours beside it.

Both agree on what a message costs at the least, its overheads. At the most, the paper adds what a
rank sends and what it receives, ``g + or`` per message, as if an interface did one at a time. Ours
are full duplex (paper 002, §2, assumes so too): the two pass side by side and only the longer
counts, ``max(g, os + or)``. Where the gap is mostly wire time, as with long messages, ``or`` is as
long as ``g`` and the paper's upper bound is up to twice ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gridcoll.model.plogp import PLogP

PAPER_CONTENTION = 2.0 / 3.0
"""γ of the paper's cluster (§5.1); a property of a network, measured by `gridcoll discover`."""


@dataclass(frozen=True)
class AlltoallBound:
    """One line: ``per_message_s`` is what each of the P - 1 messages adds to ``L``."""

    name: str
    formula: str
    source: str
    per_message_s: Callable[[PLogP, int], float]

    def cost_s(self, link: PLogP, n_ranks: int, n_bytes: int) -> float:
        """Seconds for blocks of ``n_bytes`` among ``n_ranks``; nothing among one."""
        if n_ranks < 2:
            return 0.0
        return (n_ranks - 1) * self.per_message_s(link, n_bytes) + link.latency_s


def _overheads(link: PLogP, n_bytes: int) -> float:
    return link.send_overhead(n_bytes) + link.recv_overhead(n_bytes)


_TABLE = "Barchet-Estefanel & Mounié 2004, Table 3"

ALLTOALL_BOUNDS: dict[str, AlltoallBound] = {
    bound.name: bound
    for bound in (
        AlltoallBound(
            "paper-upper", "(P-1) g(m) + (P-1) or(m) + L", _TABLE,
            lambda link, m: link.gap(m) + link.recv_overhead(m),
        ),
        AlltoallBound(
            "paper-lower", "(P-1) os(m) + (P-1) or(m) + L", _TABLE, _overheads,
        ),
        AlltoallBound(
            "upper", "(P-1) g(m) + L", "gridcoll: full duplex",
            lambda link, m: link.gap(m),
        ),
        AlltoallBound(
            "lower", "(P-1) min(os(m) + or(m), g(m)) + L", "gridcoll",
            lambda link, m: min(_overheads(link, m), link.gap(m)),
        ),
    )
}  # fmt: skip


def between_s(lower_s: float, upper_s: float, contention: float = PAPER_CONTENTION) -> float:
    """``T = Lower + (Upper - Lower) γ`` (paper 003, §5.1)."""
    return lower_s + (upper_s - lower_s) * contention
