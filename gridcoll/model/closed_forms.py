"""Closed forms of broadcasts, scatters and all-to-alls inside one cluster: papers 002 and 003.

Every strategy also exists as a plan with its own cost. If ``holds`` is ``exact``, the two costs are
equal in the one-port full-duplex pLogP model; otherwise ``remark`` says how they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.model.plogp import PLogP

TABLE_2004 = "Barchet-Estefanel & Mounié 2004, Table 1"
TABLE_2007 = "Steffenel & Mounié 2007, Table 1"
BOTH = "Barchet-Estefanel & Mounié 2004 and 2007, Table 1"

REQUEST_BYTES = 1
"""Size of a rendezvous request and of its answer; the tables count ``g(1)`` for each."""


class Call(Struct, frozen=True):
    """A broadcast in a homogeneous cluster, with the letters of the tables."""

    link: PLogP
    """Between any two ranks."""
    n_ranks: int
    """``P``."""
    n_bytes: int
    segment_bytes: int
    """``m`` and ``s``."""
    degree: int = 2
    """``d`` of a k-chain."""

    def __post_init__(self) -> None:
        for name, least in (("n_ranks", 1), ("n_bytes", 0), ("segment_bytes", 1), ("degree", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}: must be at least {least}, got {getattr(self, name)}")

    @property
    def latency_s(self) -> float:
        """``L``."""
        return self.link.latency_s

    @property
    def gap_s(self) -> float:
        """``g(m)``."""
        return self.link.gap(self.n_bytes)

    @property
    def segment_gap_s(self) -> float:
        """``g(s)``."""
        return self.link.gap(min(self.segment_bytes, self.n_bytes))

    @property
    def handshake_s(self) -> float:
        """``2 g(1) + 2 L``: the time of a request and its answer."""
        return 2 * (self.link.gap(REQUEST_BYTES) + self.latency_s)

    @property
    def n_segments(self) -> int:
        """``k``."""
        return max(-(-self.n_bytes // self.segment_bytes), 1)

    @property
    def n_others(self) -> int:
        """``P - 1``."""
        return self.n_ranks - 1

    @property
    def log_down(self) -> int:
        """``⌊log2 P⌋``."""
        return self.n_ranks.bit_length() - 1

    @property
    def log_up(self) -> int:
        """``⌈log2 P⌉``."""
        return self.n_others.bit_length()


class ClosedForm(Struct, frozen=True):
    """A row of the tables."""

    name: str
    """The name of the strategy."""
    formula: str
    source: str
    holds: Literal["exact", "bound", "approximate"]
    """A bound: no plan of this kind takes longer."""
    remark: str
    """When it holds, or how it differs from the plan."""
    _total_s: Callable[[Call], float]

    @property
    def good_for(self) -> str:
        """How far to trust it, in one line."""
        return f"{self.holds}: {self.remark}"

    def cost_s(self, call: Call) -> float:
        """Return the time of ``call`` in seconds; 0 for one rank."""
        return self._total_s(call) if call.n_ranks > 1 else 0.0


def _k_chain(call: Call) -> float:
    chains = 2 * call.degree + 1
    steps = call.degree + -(-(call.n_ranks - chains) // chains)
    step_s = call.segment_gap_s + call.latency_s
    return steps * step_s + call.segment_gap_s * (call.n_segments - 1)


def _scatter_collection(call: Call) -> float:
    share = call.n_others / call.n_ranks
    return (call.log_up + call.n_others) * call.latency_s + 2 * share * call.gap_s


POWER_OF_TWO = "where P is a power of two; otherwise up to g above it or L per level below"

CLOSED_FORMS: dict[str, ClosedForm] = {
    form.name: form
    for form in (
        ClosedForm(
            "flat", "(P-1) g(m) + L", BOTH, "exact", "for any P and m",
            lambda c: c.n_others * c.gap_s + c.latency_s,
        ),
        ClosedForm(
            "flat-rendezvous", "(P-1) g(m) + 2 g(1) + 3 L", TABLE_2004, "exact",
            "while requests to all leave before the first answer: (P-3) g(1) ≤ 2 L",
            lambda c: c.n_others * c.gap_s + c.handshake_s + c.latency_s,
        ),
        ClosedForm(
            "segmented-flat", "(P-1) (g(s) k) + L", BOTH, "exact", "where s divides m",
            lambda c: c.n_others * c.segment_gap_s * c.n_segments + c.latency_s,
        ),
        ClosedForm(
            "chain", "(P-1) (g(m) + L)", BOTH, "exact", "for any P and m",
            lambda c: c.n_others * (c.gap_s + c.latency_s),
        ),
        ClosedForm(
            "chain-rendezvous", "(P-1) (g(m) + 2 g(1) + 3 L)", TABLE_2004, "exact",
            "for any P and m",
            lambda c: c.n_others * (c.gap_s + c.handshake_s + c.latency_s),
        ),
        ClosedForm(
            "segmented-chain", "(P-1) (g(s) + L) + g(s) (k-1)", BOTH, "exact",
            "where s divides m",
            lambda c: c.n_others * (c.segment_gap_s + c.latency_s)
            + c.segment_gap_s * (c.n_segments - 1),
        ),
        ClosedForm(
            "binary", "≤ ⌈log2 P⌉ (2 g(m) + L)", BOTH, "bound",
            "every level counts as its second child",
            lambda c: c.log_up * (2 * c.gap_s + c.latency_s),
        ),
        ClosedForm(
            "binomial", "⌊log2 P⌋ g(m) + ⌈log2 P⌉ L", BOTH, "exact", POWER_OF_TWO,
            lambda c: c.log_down * c.gap_s + c.log_up * c.latency_s,
        ),
        ClosedForm(
            "binomial-rendezvous", "⌊log2 P⌋ g(m) + ⌈log2 P⌉ (2 g(1) + 3 L)", TABLE_2004, "exact",
            "as binomial, while requests leave before the first answer: (log2 P - 2) g(1) ≤ 2 L",
            lambda c: c.log_down * c.gap_s + c.log_up * (c.handshake_s + c.latency_s),
        ),
        ClosedForm(
            "segmented-binomial", "⌊log2 P⌋ g(s) k + ⌈log2 P⌉ L", BOTH, "exact",
            "where s divides m and P is a power of two",
            lambda c: c.log_down * c.segment_gap_s * c.n_segments + c.log_up * c.latency_s,
        ),
        ClosedForm(
            "k-chain", "(d + ⌈(P-(2d+1)) / (2d+1)⌉) (g(s) + L) + g(s) (k-1)", TABLE_2007,
            "approximate", "counts 2d+1 chains, and one send of the root per segment; a plan has d",
            _k_chain,
        ),
        ClosedForm(
            "scatter-collection", "(log2 P + P-1) L + 2 ((P-1)/P) g(m)", TABLE_2007, "bound",
            "where g(m) is in proportion to m; overhead of smaller messages comes on top",
            _scatter_collection,
        ),
    )
}  # fmt: skip


class ScatterCost(Struct, frozen=True):
    """A row of the table."""

    name: str
    formula: str
    """With the letters of the paper: ``P`` ranks, a block of ``m`` bytes for each."""
    seconds: Callable[[PLogP, int, int], float]
    """A function of the link, the number of ranks (two or more) and the bytes of a block."""
    exact_for: Callable[[int], bool] = lambda n_ranks: True
    """Whether it is the time of the plan for a number of ranks. Otherwise it is more."""


def _flat(link: PLogP, n_ranks: int, n_bytes: int) -> float:
    return (n_ranks - 1) * link.gap(n_bytes) + link.latency_s


def _chain(link: PLogP, n_ranks: int, n_bytes: int) -> float:
    gaps = sum(link.gap(j * n_bytes) for j in range(1, n_ranks))
    return gaps + (n_ranks - 1) * link.latency_s


def _pipelined_chain(link: PLogP, n_ranks: int, n_bytes: int) -> float:
    return (n_ranks - 1) * (link.gap(n_bytes) + link.latency_s)


def _binomial(link: PLogP, n_ranks: int, n_bytes: int) -> float:
    n_steps = (n_ranks - 1).bit_length()
    gaps = sum(link.gap((1 << j) * n_bytes) for j in range(n_steps))
    return gaps + n_steps * link.latency_s


SCATTER_COSTS: dict[str, ScatterCost] = {
    cost.name: cost
    for cost in (
        ScatterCost("flat", "(P - 1) g(m) + L", _flat),
        ScatterCost("chain", "sum of g(j m) for j = 1..P-1, + (P - 1) L", _chain),
        ScatterCost("pipelined-chain", "(P - 1) (g(m) + L)", _pipelined_chain),
        ScatterCost(
            "binomial",
            "sum of g(2^j m) for j = 0..⌈log2 P⌉-1, + ⌈log2 P⌉ L",
            _binomial,
            lambda n_ranks: n_ranks & (n_ranks - 1) == 0,
        ),
    )
}
"""By name of the algorithm."""


PAPER_CONTENTION = 2.0 / 3.0
"""γ of the paper's cluster (§5.1). It is a property of a network; `gridcoll discover` measures it
for others."""


class AlltoallBound(Struct, frozen=True):
    """One bound: ``per_message_s`` is the time that each of the P - 1 messages adds to ``L``."""

    name: str
    formula: str
    source: str
    per_message_s: Callable[[PLogP, int], float]

    def cost_s(self, link: PLogP, n_ranks: int, n_bytes: int) -> float:
        """Return the seconds for blocks of ``n_bytes`` among ``n_ranks``; 0 for one rank."""
        if n_ranks < 2:
            return 0.0
        return (n_ranks - 1) * self.per_message_s(link, n_bytes) + link.latency_s


def _overheads(link: PLogP, n_bytes: int) -> float:
    return link.send_overhead(n_bytes) + link.recv_overhead(n_bytes)


_TABLE = "Barchet-Estefanel & Mounié 2004, Table 3"

# The lower bounds agree: a message costs at least its overheads. In its upper bound, the paper adds
# the times of sending and receiving, ``g + or`` per message, as if an interface were half duplex.
# Our interfaces are full duplex, as paper 002, §2, assumes too: only the longer time counts,
# ``max(g, os + or)``. For long messages ``or`` is as long as ``g``, and the paper's upper bound is
# up to twice ours.
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


def with_contention_s(
    lower_s: float, upper_s: float, contention: float = PAPER_CONTENTION
) -> float:
    """Return ``T = Lower + (Upper - Lower) γ`` (paper 003, §5.1)."""
    return lower_s + (upper_s - lower_s) * contention
