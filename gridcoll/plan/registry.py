"""Registry of all algorithms, by collective and name.

A collective is a folder of this package, and importing one of its modules registers the algorithms
of that module. `load` imports all modules of the folder. So a new algorithm is one new file, and
there is no list of names to extend.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from msgspec import Struct

from gridcoll.errors import UsageError, listed
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.natives import natives_of
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid


class Candidate(Struct, frozen=True, eq=False):
    """One way to perform a call, and its predicted time."""

    name: str
    """Name of the algorithm, as in settings."""
    label: str
    """How it works, with the parameters chosen for this size."""
    predicted_s: float | None
    """None for a native collective that was not measured."""
    build: Callable[[int], Plan] | None = None
    """Writes the plan, given the exact size of a message of about this size; None for a native
    collective."""
    store_and_forward_s: float | None = None
    """Time of the same schedule by the papers' store-and-forward accounting."""
    segment_bytes: int | None = None
    rank_order: bool = False
    """Whether a reduction keeps rank order, as non-commutative operations need."""
    build_blocks: Callable[[Sequence[int]], Plan] | None = None
    """Writes the plan for blocks of different sizes, given the block size of every rank."""
    closed_form_s: float | None = None
    """Time by the papers' closed form for the same strategy, if they have one."""
    observed_s: float | None = None
    """Median time of the `n_calls` calls that used this candidate so far."""
    n_calls: int = 0

    @classmethod
    def planned(
        cls,
        name: str,
        label: str,
        predicted_s: float,
        plan: Callable[[int, str], Plan],
        *,
        segment_bytes: int | None = None,
        closed_form_s: float | None = None,
    ) -> Candidate:
        """Return a candidate whose ``plan`` is a function of the number of units and the label."""
        full_label = f"{name}: {label}"
        return cls(
            *(name, label, predicted_s, lambda n_units: plan(n_units, full_label)),
            segment_bytes=segment_bytes,
            closed_form_s=closed_form_s,
        )

    @property
    def expected_s(self) -> float:
        """`predicted_s`, or infinity if there is no prediction; used to compare candidates."""
        return float("inf") if self.predicted_s is None else self.predicted_s


Candidates = Callable[[GridModel, int, int], list[Candidate]]
"""A function of the model, the number of bytes and the root."""

ANY_NUMBER = 1 << 30


class Algorithm(Struct, frozen=True):
    """An entry of a collective's registry, which makes candidates for one call.

    ``candidates(model, n_bytes, root)`` returns a list, which is empty if the algorithm makes no
    sense for the call. With more than ``max_clusters`` clusters, the algorithm is only considered
    on request, because building candidates would take too long. The same holds if the largest
    cluster has fewer than ``min_largest_cluster`` ranks: the steps of the algorithm would cost more
    than they save. Measured corrections are shared by all algorithms of a ``family``; by default an
    algorithm is a family of its own. A ``reproducible`` one combines in a fixed order that depends
    on neither grid nor root. It is only considered where the order or the exact bits of a reduction
    matter.
    """

    name: str
    good_for: str
    source: str
    candidates: Candidates
    max_clusters: int = ANY_NUMBER
    family: str = ""
    min_largest_cluster: int = 1
    reproducible: bool = False

    def suits(self, grid: Grid) -> bool:
        """Whether the algorithm is considered on ``grid`` without being requested."""
        largest = max(grid.ranks_per_cluster)
        return len(grid.clusters) <= self.max_clusters and largest >= self.min_largest_cluster


REGISTRIES: dict[str, dict[str, Algorithm]] = {}
"""Algorithms by collective, then by name."""


ALIASES: dict[str, dict[str, str]] = {}
"""For each collective, the new names of algorithms by their old names; kept for one release."""

_warned: set[tuple[str, str]] = set()
"""Collectives and old names for which a warning was already logged."""


def register(collective: str, algorithm: Algorithm) -> Algorithm:
    """Register ``algorithm`` for ``collective``."""
    REGISTRIES.setdefault(collective, {})[algorithm.name] = algorithm
    return algorithm


def algorithm(
    collective: str,
    name: str,
    good_for: str,
    source: str,
    max_clusters: int = ANY_NUMBER,
    min_largest_cluster: int = 1,
    reproducible: bool = False,
) -> Callable[[Candidates], Candidates]:
    """Register the decorated function as algorithm ``name`` of ``collective``; see `Algorithm`."""

    def decorate(candidates: Candidates) -> Candidates:
        new = Algorithm(
            *(name, good_for, source, candidates, max_clusters),
            min_largest_cluster=min_largest_cluster,
            reproducible=reproducible,
        )
        register(collective, new)
        return candidates

    return decorate


def alias(collective: str, old: str, new: str) -> None:
    """Let settings still use the ``old`` name of the algorithm ``new`` of ``collective``."""
    ALIASES.setdefault(collective, {})[old] = new


def canonical_name(collective: str, name: str) -> str:
    """Return the current name of the algorithm ``name``; ``name`` itself if it is not an alias."""
    return ALIASES.get(collective, {}).get(name, name)


def load(collective: str) -> Mapping[str, Algorithm]:
    """Return the algorithms of ``collective`` after importing every module of its folder."""
    folder = f"{__package__}.{collective}"
    for module in sorted(found.name for found in iter_modules(import_module(folder).__path__)):
        import_module(f"{folder}.{module}")
    return REGISTRIES.get(collective, {})


def load_all() -> None:
    """Import every module of every collective's folder."""
    for found in sorted(iter_modules([str(Path(__file__).parent)])):
        if found.ispkg:
            load(found.name)


def check_collective(name: str) -> None:
    """Raise `UsageError` unless ``name`` is a collective for which plans can be written."""
    if name not in REGISTRIES:
        raise UsageError(f"collective {name!r}: known are {listed(name, REGISTRIES)}")


def check_forced(collective: str, name: str) -> str:
    """Return the current name of the native or the algorithm of ``collective`` called ``name``.

    An old name is logged as a warning by the logger ``gridcoll``, once per process.

    Raises `UsageError` if the collective has nothing of that name.
    """
    check_collective(collective)
    current = canonical_name(collective, name)
    known = (*natives_of(collective), *REGISTRIES[collective])
    if current not in known:
        raise UsageError(f"{collective} algorithm {name!r}: known are {listed(name, known)}")
    if current != name and (collective, name) not in _warned:
        _warned.add((collective, name))
        logging.getLogger("gridcoll").warning(
            "%s algorithm %r is called %r now; the next release will not know the old name",
            *(collective, name, current),
        )
    return current


def family_of(collective: str, algorithm: str) -> str:
    """Return the family whose corrections apply to ``algorithm`` (its current name)."""
    return REGISTRIES[collective][algorithm].family or algorithm
