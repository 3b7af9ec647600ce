"""Every heuristic by name: what it is good for, where it comes from, and the function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy.typing as npt

from gridcoll.errors import UsageError
from gridcoll.schedule import (
    anytime,
    bottom_up,
    bottom_up_la,
    by_level,
    ecef,
    fef,
    flat,
    mixed,
    optimal,
)
from gridcoll.schedule.batch import Batch, BatchSchedules, one_by_one
from gridcoll.schedule.instance import Accounting, Instance
from gridcoll.schedule.schedule import Schedule

SEVEN = ("flat", "fef", "ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t", "bottom-up")
"""The heuristics that Barchet-Steffenel and Mounié 2006 compare."""

_BHAT = "Bhat, Raghavendra & Prasanna, JPDC 63 (2003)"
_PMEO = "Barchet-Steffenel & Mounié, PMEO-PDS 2006"


@dataclass(frozen=True)
class Heuristic:
    """One way to order the transfers. Call it with matrices, or `pick` with an `Instance`."""

    name: str
    """What commands and settings call it."""
    label: str
    """The papers' spelling."""
    good_for: str
    source: str
    pick: Callable[[Instance], Schedule]
    """``pick(instance) -> Schedule``."""
    pick_batch: Callable[[Batch], BatchSchedules]
    """The same for many instances: ``pick_batch(batch) -> BatchSchedules``."""

    def __call__(
        self,
        latency_s: npt.ArrayLike,
        gap_s: npt.ArrayLike,
        internal_s: npt.ArrayLike,
        root: int = 0,
        *,
        accounting: Accounting | None = None,
    ) -> Schedule:
        """The schedule for n clusters: (n, n), (n, n) and (n,) arrays in seconds.

        Raises `UsageError` naming the invalid argument.
        """
        return self.pick(
            Instance(latency_s, gap_s, internal_s, root, accounting or Accounting())  # type: ignore[arg-type]
        )


_ENTRIES = (
    Heuristic(
        "flat", "Flat Tree", "the baseline: the root sends to all in index order",
        f"{_PMEO}, §4.1 (ECO, MagPIe)", flat.flat, flat.flat_batch,
    ),
    Heuristic(
        "fef", "FEF", "the smallest latency first, blind to busy senders",
        f"{_BHAT}; {_PMEO}, §4.2", fef.fef, fef.fef_batch,
    ),
    Heuristic(
        "ecef", "ECEF", "the earliest arrival first; few clusters", f"{_BHAT}; {_PMEO}, §4.3",
        ecef.ecef, ecef.ecef_batch,
    ),
    Heuristic(
        "ecef-la", "ECEF-LA", "ECEF that prefers receivers with a quick next hop; few clusters",
        f"{_BHAT}; {_PMEO}, §4.4", ecef.ecef_la, ecef.ecef_la_batch,
    ),
    Heuristic(
        "ecef-la-avg", "ECEF-LA (average)", "ECEF that prefers receivers close to all who wait",
        f"{_BHAT}; {_PMEO}, §4.4", ecef.ecef_la_avg, ecef.ecef_la_avg_batch,
    ),
    Heuristic(
        "ecef-la-avg-senders", "ECEF-LA (average, senders)",
        "ECEF that prefers receivers leaving all senders close to all who wait",
        f"{_BHAT}; {_PMEO}, §4.4", ecef.ecef_la_avg_senders, ecef.ecef_la_avg_senders_batch,
    ),
    Heuristic(
        "ecef-la-min-t", "ECEF-LAt", "ECEF-LA that counts the next cluster's internal broadcast",
        f"{_PMEO}, §5.1", ecef.ecef_la_min_t, ecef.ecef_la_min_t_batch,
    ),
    Heuristic(
        "ecef-la-max-t", "ECEF-LAT", "ECEF with an eye on the slowest cluster left; many clusters",
        f"{_PMEO}, §5.2", ecef.ecef_la_max_t, ecef.ecef_la_max_t_batch,
    ),
    Heuristic(
        "bottom-up", "BottomUp", "the slowest cluster first, by its quickest way",
        f"{_PMEO}, §5.3", bottom_up.bottom_up, bottom_up.bottom_up_batch,
    ),
    Heuristic(
        "bottom-up-la", "BottomUp-LA", "BottomUp that prefers receivers with a quick next hop",
        f"{_PMEO}, §6 (suggested there)", bottom_up_la.bottom_up_la,
        bottom_up_la.bottom_up_la_batch,
    ),
    Heuristic(
        "by-level", "By level", "clusters of clusters by latency, a schedule on each level",
        f"Karonis, in {_PMEO}, §2; gridcoll", by_level.by_level, one_by_one(by_level.by_level),
    ),
    Heuristic(
        "mixed", "Mixed", "the papers' advice: ECEF-LA for few clusters, ECEF-LAT for many",
        f"{_PMEO}, §6", mixed.mixed, mixed.mixed_batch,
    ),
    Heuristic(
        "optimal", "Optimal", "the least makespan, proven; exact to a dozen clusters",
        "gridcoll", optimal.optimal, one_by_one(optimal.optimal),
    ),
    Heuristic(
        "best", "Best", "never worse than the papers' seven, usually the optimum; the default",
        "gridcoll", anytime.solve, one_by_one(anytime.solve),
    ),
)  # fmt: skip

HEURISTICS: dict[str, Heuristic] = {entry.name: entry for entry in _ENTRIES}


def find_heuristic(name: str) -> Heuristic:
    """The heuristic called ``name``. Raises `UsageError` listing the known names."""
    try:
        return HEURISTICS[name]
    except KeyError:
        known = ", ".join(HEURISTICS)
        raise UsageError(f"heuristic: must be one of {known}; got {name!r}") from None
