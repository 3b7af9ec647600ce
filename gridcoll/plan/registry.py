"""Every algorithm of every collective, by name: one file each, found by itself.

A collective is a folder of this package; importing a module of it enters its algorithms. `load`
imports them all, so that a new algorithm is one new file and no list anywhere knows its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from gridcoll.errors import UsageError
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.natives import natives_of
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid


@dataclass(frozen=True)
class Candidate:
    """One way to do a call, and what it should take."""

    name: str
    """As in settings."""
    label: str
    """How it works, with the parameters chosen for this size."""
    predicted_s: float | None
    """None for a native that was not measured."""
    build: Callable[[int], Plan] | None = field(repr=False, compare=False, default=None)
    """Writes the plan for a message of about this size, given the exact one; None for a native."""
    store_and_forward_s: float | None = None
    """What the papers' store-and-forward accounting says of the same schedule."""
    segment_bytes: int | None = None
    rank_order: bool = False
    """Whether a reduction keeps rank order, as non-commutative operations need."""
    reproducible: bool = False
    """Whether a reduction combines in the one order that does not depend on grid and root."""
    build_blocks: Callable[[Sequence[int]], Plan] | None = field(
        repr=False, compare=False, default=None
    )
    """Writes the plan for blocks of different sizes; takes the size of every rank's block."""
    closed_form_s: float | None = None
    """What the papers' closed form says of the same strategy, where they have one."""
    observed_s: float | None = None
    """Median time of the `n_calls` calls done by it so far."""
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
        """One whose ``plan`` is written of a number of units and of the label."""
        full_label = f"{name}: {label}"
        return cls(
            *(name, label, predicted_s, lambda n_units: plan(n_units, full_label)),
            segment_bytes=segment_bytes,
            closed_form_s=closed_form_s,
        )

    @property
    def expected_s(self) -> float:
        """`predicted_s`, infinite where nothing is predicted: to compare candidates by."""
        return float("inf") if self.predicted_s is None else self.predicted_s


Candidates = Callable[[GridModel, int, int], list[Candidate]]
"""Of a model, bytes and a root."""

ANY_NUMBER = 1 << 30


@dataclass(frozen=True)
class Algorithm:
    """An entry of a collective's registry: writes candidates for one call.

    ``candidates(model, n_bytes, root)`` returns none (where the algorithm makes no sense) or
    several. With more than ``most_clusters`` clusters it is only considered when it is asked for:
    building candidates would take too long. So it is where no cluster has ``fewest_inside`` ranks:
    its steps would cost more than they save. Measured corrections are shared by all algorithms of a
    ``family``; by default an algorithm is its own family. ``reproducible``: what its candidates
    are; such algorithms are only considered where order or bits of a reduction count.
    """

    name: str
    good_for: str
    source: str
    candidates: Candidates
    most_clusters: int = ANY_NUMBER
    family: str = ""
    fewest_inside: int = 1
    reproducible: bool = False

    def suits(self, grid: Grid) -> bool:
        """Whether it is considered on ``grid`` without being asked for."""
        largest = max(map(len, grid.clusters))
        return len(grid.clusters) <= self.most_clusters and largest >= self.fewest_inside


REGISTRIES: dict[str, dict[str, Algorithm]] = {}
"""Algorithms by collective, then by name."""


ALIASES: dict[str, dict[str, str]] = {}
"""New name of an algorithm by its old one, for each collective; kept for one release."""

_noted: set[tuple[str, str]] = set()
"""Collectives and old names that were logged already."""


def register(collective: str, algorithm: Algorithm) -> Algorithm:
    """Enter ``algorithm`` for ``collective``."""
    REGISTRIES.setdefault(collective, {})[algorithm.name] = algorithm
    return algorithm


def algorithm(
    collective: str,
    name: str,
    good_for: str,
    source: str,
    most_clusters: int = ANY_NUMBER,
    fewest_inside: int = 1,
    reproducible: bool = False,
) -> Callable[[Candidates], Candidates]:
    """Enter the function below as the algorithm ``name`` of ``collective``; see `Algorithm`."""

    def enter(candidates: Candidates) -> Candidates:
        new = Algorithm(
            *(name, good_for, source, candidates, most_clusters),
            fewest_inside=fewest_inside,
            reproducible=reproducible,
        )
        register(collective, new)
        return candidates

    return enter


def alias(collective: str, old: str, new: str) -> None:
    """Let settings go on calling the algorithm ``new`` of ``collective`` by its ``old`` name."""
    ALIASES.setdefault(collective, {})[old] = new


def canonical_name(collective: str, name: str) -> str:
    """What the algorithm ``name`` is called now; ``name`` itself where it has no newer one."""
    return ALIASES.get(collective, {}).get(name, name)


def load(collective: str) -> Mapping[str, Algorithm]:
    """The algorithms of ``collective``, after importing every module of its folder."""
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
    """Raise `UsageError` unless plans can be written for the collective called ``name``."""
    if name not in REGISTRIES:
        raise UsageError(f"collective {name!r}: known are {', '.join(REGISTRIES)}")


def check_forced(collective: str, name: str) -> str:
    """The name of the native or the algorithm of ``collective`` that ``name`` stands for.

    An old name is noted on the logger ``gridcoll``, once per process.

    Raises `UsageError` where there is none of that name.
    """
    check_collective(collective)
    now = canonical_name(collective, name)
    known = (*natives_of(collective), *REGISTRIES[collective])
    if now not in known:
        raise UsageError(f"{collective} algorithm {name!r}: known are {', '.join(known)}")
    if now != name and (collective, name) not in _noted:
        _noted.add((collective, name))
        logging.getLogger("gridcoll").warning(
            "%s algorithm %r is called %r now; the next release will not know the old name",
            *(collective, name, now),
        )
    return now


def family_of(collective: str, algorithm: str) -> str:
    """The family whose corrections hold for ``algorithm`` (its current name)."""
    return REGISTRIES[collective][algorithm].family or algorithm
