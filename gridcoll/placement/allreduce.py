"""How an ALLREDUCE of a few doubles is timed: one registry of closed forms, and one open seam.

A closed form is the subset's longest latency plus a term of each cluster alone, of which the
largest counts; that shape is what lets the searches evaluate subsets by the million. Anything else
(gridcoll's own plan, priced) is a function of the subset: see `PricedAllreduce`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gridcoll.errors import UsageError
from gridcoll.model.arborescence import shortest_paths
from gridcoll.model.plogp import FloatArray
from gridcoll.placement.resources import Resources

AllreducePrice = Callable[[tuple[int, ...]], float]
"""Seconds of one ALLREDUCE over all hosts of the clusters given (ascending indices)."""

PLAN = "plan"  # named in a problem file; the caller hands over the function


@dataclass(frozen=True)
class AllreduceForm:
    """One closed form: ``local_s`` gives the (C,) seconds each cluster adds to the latency."""

    name: str
    good_for: str
    source: str
    local_s: Callable[[Resources], FloatArray]


def _nothing(resources: Resources) -> FloatArray:
    return np.zeros(resources.n_clusters)


def _reduce_and_broadcast(resources: Resources) -> FloatArray:
    """Binomial reduce to the coordinator and binomial broadcast from it, latency only.

    1024 hosts at 44 us give 0.88 ms, the figure of the paper's footnote 2.
    """
    n_rounds = np.ceil(np.log2(resources.n_hosts))
    local_s: FloatArray = 2.0 * n_rounds * resources.latency_s.diagonal()
    return local_s


_ENTRIES = (
    AllreduceForm(
        "latency",
        "the paper's form: the longest latency between the chosen clusters, nothing else",
        "paper 004, §2.2",
        _nothing,
    ),
    AllreduceForm(
        "two-level",
        "clusters of many hosts: local reduce, coordinators' exchange, local broadcast",
        "paper 004, §2.2, with the local rounds its footnote 2 sets aside",
        _reduce_and_broadcast,
    ),
)

FORMS: dict[str, AllreduceForm] = {entry.name: entry for entry in _ENTRIES}


def find_form(name: str) -> AllreduceForm:
    """The form called ``name``. Raises `UsageError`."""
    if name not in FORMS:
        known = ", ".join((*FORMS, PLAN))
        raise UsageError(f"allreduce: form: {name!r} is unknown, must be one of {known}")
    return FORMS[name]


class PricedAllreduce:
    """An ALLREDUCE priced from outside, each subset once.

    No allreduce ends before a value has crossed the longest of the shortest paths between its
    clusters; `floor_ratio` times the longest direct latency is never above that, and searches that
    prove an optimum rest on it, so a price below it is refused.
    """

    def __init__(self, price_s: AllreducePrice, resources: Resources) -> None:
        self._price_s = price_s
        self._resources = resources
        self._known: dict[tuple[int, ...], float] = {}
        self.floor_ratio = _detour_ratio(resources.latency_s)

    def price_s(self, clusters: tuple[int, ...], latency_s: float) -> float:
        """Seconds over ``clusters``, whose longest direct latency is ``latency_s``.

        Raises `UsageError` when the price is below the floor.
        """
        if clusters not in self._known:
            price_s = float(self._price_s(clusters))
            floor_s = self.floor_ratio * latency_s
            if not price_s >= floor_s * (1 - 1e-9):
                names = ", ".join(self._resources.names[i] for i in clusters)
                raise UsageError(
                    f"allreduce over {names}: priced at {price_s} s, below the {floor_s} s "
                    "a value needs to cross them"
                )
            self._known[clusters] = price_s
        return self._known[clusters]


def _detour_ratio(latency_s: FloatArray) -> float:
    """Least ratio of shortest path to direct latency over cluster pairs; 1 on a metric."""
    direct = latency_s.copy()
    np.fill_diagonal(direct, 0.0)
    with np.errstate(invalid="ignore"):
        ratio = np.where(direct > 0, shortest_paths(direct) / direct, 1.0)
    return float(ratio.min())
