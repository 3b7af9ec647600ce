"""Costs of a scatter inside one cluster in closed form: Barchet-Estefanel & Mounié 2004, Table 2.

Every strategy is also a plan with a price of its own (`plan.collectives.scatter_candidates`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gridcoll.model.plogp import PLogP


@dataclass(frozen=True)
class ScatterCost:
    """One row of the table.

    Attributes
    ----------
    name : str
        Of the algorithm.
    formula : str
        In the paper's letters: ``P`` ranks, a block of ``m`` bytes for each.
    seconds : callable
        Of link, ranks (two or more) and bytes of a block.
    exact_for : callable
        For which numbers of ranks that is the time of the plan; for others it is more.
    """

    name: str
    formula: str
    seconds: Callable[[PLogP, int, int], float]
    exact_for: Callable[[int], bool] = lambda n_ranks: True


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
"""By the name of the algorithm."""
