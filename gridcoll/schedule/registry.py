"""All heuristics by name, with their use, their source and their function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy.typing as npt
from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.schedule.anytime import optimal, solve
from gridcoll.schedule.batch import Batch, BatchSchedules, for_one_instance, one_after_another
from gridcoll.schedule.batch_greedy import (
    ecef_la_avg,
    ecef_la_avg_senders,
    flat_batch,
    mixed_batch,
    run_batch_greedy,
)
from gridcoll.schedule.greedy import RULES, by_level, flat, greedy, mixed
from gridcoll.schedule.instance import Accounting, Instance
from gridcoll.schedule.schedule import Schedule

_BHAT = "Bhat, Raghavendra & Prasanna, JPDC 63 (2003)"
_PMEO = "Barchet-Steffenel & Mounié, PMEO-PDS 2006"


class Heuristic(Struct, frozen=True):
    """A heuristic to order transfers. Call it with matrices, or `pick` with an `Instance`."""

    name: str
    """The name in commands and settings."""
    label: str
    """The name as spelled in the papers."""
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
        """Return the schedule for n clusters from (n, n), (n, n) and (n,) arrays in seconds.

        Raises `UsageError`, which names the invalid argument.
        """
        return self.pick(
            Instance(latency_s, gap_s, internal_s, root, accounting or Accounting())  # type: ignore[arg-type]
        )


def _greedy(name: str, label: str, good_for: str, source: str) -> Heuristic:
    """Return the heuristic with the rule of this name."""
    pick, pick_batch = partial(greedy, RULES[name]), partial(run_batch_greedy, RULES[name])
    return Heuristic(name, label, good_for, source, pick, pick_batch)


_ENTRIES = (
    Heuristic(
        "flat", "Flat Tree", "the baseline: the root sends to all in index order",
        f"{_PMEO}, §4.1 (ECO, MagPIe)", flat, flat_batch,
    ),
    _greedy(
        "fef", "FEF", "the smallest latency first, blind to busy senders",
        f"{_BHAT}; {_PMEO}, §4.2",
    ),
    _greedy(
        "ecef", "ECEF", "the earliest arrival first; few clusters", f"{_BHAT}; {_PMEO}, §4.3",
    ),
    _greedy(
        "ecef-la", "ECEF-LA", "ECEF that prefers receivers with a quick next hop; few clusters",
        f"{_BHAT}; {_PMEO}, §4.4",
    ),
    Heuristic(
        "ecef-la-avg", "ECEF-LA (average)", "ECEF that prefers receivers close to all who wait",
        f"{_BHAT}; {_PMEO}, §4.4", for_one_instance(ecef_la_avg), ecef_la_avg,
    ),
    Heuristic(
        "ecef-la-avg-senders", "ECEF-LA (average, senders)",
        "ECEF that prefers receivers leaving all senders close to all who wait",
        f"{_BHAT}; {_PMEO}, §4.4", for_one_instance(ecef_la_avg_senders), ecef_la_avg_senders,
    ),
    _greedy(
        "ecef-la-min-t", "ECEF-LAt", "ECEF-LA that counts the next cluster's internal broadcast",
        f"{_PMEO}, §5.1",
    ),
    _greedy(
        "ecef-la-max-t", "ECEF-LAT", "ECEF with an eye on the slowest cluster left; many clusters",
        f"{_PMEO}, §5.2",
    ),
    _greedy(
        "bottom-up", "BottomUp", "the slowest cluster first, by its quickest way",
        f"{_PMEO}, §5.3",
    ),
    _greedy(
        "bottom-up-la", "BottomUp-LA", "BottomUp that prefers receivers with a quick next hop",
        f"{_PMEO}, §6 (suggested there)",
    ),
    Heuristic(
        "by-level", "By level", "clusters of clusters by latency, a schedule on each level",
        f"Karonis, in {_PMEO}, §2; gridcoll", by_level, one_after_another(by_level),
    ),
    Heuristic(
        "mixed", "Mixed", "the papers' advice: ECEF-LA for few clusters, ECEF-LAT for many",
        f"{_PMEO}, §6", mixed, mixed_batch,
    ),
    Heuristic(
        "optimal", "Optimal", "the least makespan, proven; exact to a dozen clusters",
        "gridcoll", optimal, one_after_another(optimal),
    ),
    Heuristic(
        "best", "Best", "never worse than the papers' seven, usually the optimum; the default",
        "gridcoll", solve, one_after_another(solve),
    ),
)  # fmt: skip

HEURISTICS: dict[str, Heuristic] = {entry.name: entry for entry in _ENTRIES}


def find_heuristic(name: str) -> Heuristic:
    """Return the heuristic called ``name``. Raises `UsageError`, which lists the known names."""
    try:
        return HEURISTICS[name]
    except KeyError:
        known = ", ".join(HEURISTICS)
        raise UsageError(f"heuristic: must be one of {known}; got {name!r}") from None
