"""How an ALLREDUCE of a few doubles is priced: by a closed form, or by a function from outside.

A closed form is the longest latency of the subset plus the largest of one term per cluster. This
allows searches to evaluate millions of subsets. Any other price, such as that of gridcoll's own
plan, is a function of the subset: see `PricedAllreduce`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.model.arborescence import shortest_paths
from gridcoll.model.plogp import FloatArray
from gridcoll.placement.resources import Resources

AllreducePrice = Callable[[tuple[int, ...]], float]
"""Seconds of one ALLREDUCE over all hosts of the clusters given (ascending indices)."""

PLAN = "plan"  # a form in problem files for which the caller provides the function


class AllreduceForm(Struct, frozen=True):
    """One closed form. ``local_s`` returns (C,) seconds that each cluster adds to the latency."""

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
    """Return the form called ``name``. Raises `UsageError`."""
    if name not in FORMS:
        known = ", ".join((*FORMS, PLAN))
        raise UsageError(f"allreduce: form: {name!r} is unknown, must be one of {known}")
    return FORMS[name]


class PricedAllreduce:
    """An ALLREDUCE priced by a function from outside, once for each subset.

    No allreduce ends before a value has crossed the longest of the shortest paths between its
    clusters. `floor_ratio` times the longest direct latency is never above that. Searches that
    prove an optimum rely on this floor, so a lower price is refused.
    """

    def __init__(self, price_s: AllreducePrice, resources: Resources) -> None:
        self._price_s = price_s
        self._resources = resources
        self._prices_s: dict[tuple[int, ...], float] = {}
        self.floor_ratio = _detour_ratio(resources.latency_s)

    def price_s(self, clusters: tuple[int, ...], latency_s: float) -> float:
        """Return the seconds over ``clusters``, whose longest direct latency is ``latency_s``.

        Raises `UsageError` if the price is below the floor.
        """
        if clusters not in self._prices_s:
            price_s = float(self._price_s(clusters))
            floor_s = self.floor_ratio * latency_s
            if not price_s >= floor_s * (1 - 1e-9):
                names = ", ".join(self._resources.names[i] for i in clusters)
                raise UsageError(
                    f"allreduce over {names}: priced at {price_s} s, below the {floor_s} s "
                    "a value needs to cross them"
                )
            self._prices_s[clusters] = price_s
        return self._prices_s[clusters]


def _detour_ratio(latency_s: FloatArray) -> float:
    """Return the least ratio of shortest path to direct latency over cluster pairs.

    It is 1 if latencies obey the triangle inequality.
    """
    direct = latency_s.copy()
    np.fill_diagonal(direct, 0.0)
    with np.errstate(invalid="ignore"):
        ratio = np.where(direct > 0, shortest_paths(direct) / direct, 1.0)
    return float(ratio.min())
