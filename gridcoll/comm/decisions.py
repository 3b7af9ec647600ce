"""Decisions: what a call does, looked up by one key, the same on all ranks.

A decision depends on what every rank knows: the model, the settings, and the collective, size, root
and semantics of the call. So communicators of the same ranks share what was decided, and so do all
children of one parent that are alike: as many ranks, of the same clusters, that share hosts alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from gridcoll.comm.settings import Settings
from gridcoll.constants import SHORT_IN_ORDER_BYTES
from gridcoll.model import GridModel
from gridcoll.plan import Choice, Dataflow, choose, dataflow, rerooted
from gridcoll.plan.natives import NATIVE, NATIVES
from gridcoll.plan.plan import scaled
from gridcoll.plan.registry import Candidate
from gridcoll.schedule.paths import find_hub

K = TypeVar("K")
V = TypeVar("V")

N_DECISIONS = 256
"""Decisions kept per set of ranks; they hold compiled plans."""

N_CHOICES = 512
"""Choices kept: more than decisions, as choosing takes longer than compiling, and a program may use
hundreds of roots."""

N_PARTS = 32
"""Rank sets of children, and shapes of such sets, whose decisions are kept."""


class Semantics(NamedTuple):
    """Reduction semantics that a call asks for; see `choose`."""

    rank_order: bool = False
    prefer_order: bool = False
    reproducible: bool = False
    bitwise_equal: bool = False
    no_variants: bool = False

    @property
    def order_counts(self) -> bool:
        """Whether it may depend on ranks by number how long a plan takes."""
        return self.rank_order or self.prefer_order or self.reproducible


_Key = tuple[str, int, int, int, "Semantics", "tuple[str, str] | None"]

ANY = Semantics()
PLAIN = Semantics(no_variants=True)


@dataclass(frozen=True, slots=True)
class Decision:
    """What this rank does at a call of one kind."""

    flow: Dataflow | None
    """This rank's share of a plan, compiled; None for a native collective."""
    native: str = NATIVE
    """Which native collective does it where there is no plan; see `engine.natives.native_call`."""


def takes_whole(collective: str, n_bytes: int, semantics: Semantics) -> bool:
    """Whether a short reduction may not be cut, not even between elements.

    So it is with users' operations, as in MPI libraries, which cut longer ones if any: some look at
    all elements together, as an ``argmax`` of values followed by their places, or take it for
    granted how many there are.
    """
    users = semantics.rank_order or semantics.prefer_order
    return users and collective in ("allreduce", "reduce") and n_bytes <= SHORT_IN_ORDER_BYTES


def size_class(n_bytes: int) -> int:
    """The size that a choice is made for: rounded up to quarters of a power of two."""
    if n_bytes <= 8:
        return 8
    step = 1 << max((n_bytes - 1).bit_length() - 3, 0)
    return -(-n_bytes // step) * step


class Decisions:
    """All decisions so far for one set of ranks, of which ``rank`` is ours, and for sets like it.

    Shared between threads: if one evicts an entry that another needs, that one decides again, with
    the same result. Those ``like`` these, whose decisions are shared, are of other ranks, with our
    rank number among them equal and a model that differs in names only.
    """

    def __init__(
        self, rank: int, model: GridModel, settings: Settings, like: Decisions | None = None
    ) -> None:
        self.rank, self.model, self.settings = rank, model, settings
        self._choices: OrderedDict[tuple[str, int, int, Semantics], Choice]
        self._decided: OrderedDict[_Key, Decision]
        self._choices = like._choices if like else OrderedDict()
        self._decided = like._decided if like else OrderedDict()
        self._parts: OrderedDict[tuple[int, ...], Decisions] = OrderedDict()
        self._shapes: OrderedDict[tuple[object, ...], Decisions] = OrderedDict()

    @cached_property
    def native_only(self) -> bool:
        """Whether no call can gain anything: then not even its size is looked at."""
        settings, grid = self.settings, self.model.grid
        if settings.check or settings.reproducible or settings.algorithms:
            return False
        if settings.force == "grid":
            return False
        if settings.force == "native" or grid.n_ranks == 1:
            return True
        return self.model.n_clusters == 1 and (grid.is_one_host or not self.model.native)

    @cached_property
    def hub(self) -> int:
        """The coordinator of the most central cluster."""
        return self.model.grid.clusters[find_hub(self.model.latency_s)].coordinator

    def asks_for_native(self, collective: str) -> bool:
        """Whether settings force ``collective`` to the MPI library."""
        return self._forced(collective) in NATIVES

    def is_forced(self, collective: str) -> bool:
        """Whether settings force an algorithm for ``collective``."""
        return bool(self._forced(collective))

    def _forced(self, collective: str) -> str:
        if self.settings.force == "native":
            return NATIVE
        return self.settings.algorithms.get(collective, "")

    def choice(
        self, collective: str, n_bytes: int, root: int, semantics: Semantics = ANY
    ) -> Choice:
        """The choice for calls of this size class, with all candidates and the reason.

        Made once for all roots of a cluster that are alike, as programs let each rank be root in
        turn; where rank order counts, none are.
        """
        key = (collective, size_class(n_bytes), root, semantics)
        found = self._choices.pop(key, None)
        alike = root if semantics.order_counts else self.model.grid.first_alike[root]
        if found is None and alike != root:
            found = rerooted(self.choice(collective, n_bytes, alike, semantics), self.model, root)
        elif found is None:
            found = choose(
                collective,
                self.model,
                key[1],
                root,
                forced=self._forced(collective),
                grid_only=self.settings.force == "grid",
                **semantics._asdict(),
            )
        _keep(self._choices, key, found, N_CHOICES)
        return found

    def made(self) -> list[tuple[tuple[str, int, int, Semantics], Choice]]:
        """Every choice that is kept, with its key."""
        return list(self._choices.items())

    def decide(
        self,
        collective: str,
        n_bytes: int,
        root: int,
        *,
        unit_bytes: int = 1,
        semantics: Semantics = ANY,
        by: Candidate | None = None,
    ) -> Decision:
        """What this rank does at a call of exactly this size.

        The plan counts in units of ``unit_bytes``: reductions may not cut an element. ``by`` says
        which candidate of the choice does it; by default, the winner.
        """
        way = (by.name, by.label) if by else None
        key = (collective, n_bytes, root, unit_bytes, semantics, way)
        found = self._decided.pop(key, None)
        if found is None:
            winner = by or self.choice(collective, n_bytes, root, semantics).winner
            if winner.build is None:
                found = Decision(None, winner.name)
            else:
                n_units = n_bytes // unit_bytes
                n_whole = n_units if takes_whole(collective, n_bytes, semantics) else 1
                program = winner.build(n_units // max(n_whole, 1)).programs[self.rank]
                found = Decision(dataflow(scaled(program, n_whole) if n_whole > 1 else program))
        _keep(self._decided, key, found, N_DECISIONS)
        return found

    def restrict(self, ranks: Sequence[int]) -> Decisions:
        """Decisions for a child whose rank ``i`` is our ``ranks[i]``; we are one of them."""
        key = tuple(ranks)
        if key == tuple(range(self.model.grid.n_ranks)):
            return self
        found = self._parts.pop(key, None)
        if found is None:
            shape = self._shape(key)
            like = self._shapes.pop(shape, None)
            rank, model = key.index(self.rank), self.model.restrict(key)
            found = Decisions(rank, model, self.settings, like)
            _keep(self._shapes, shape, found, N_PARTS)
        _keep(self._parts, key, found, N_PARTS)
        return found

    def _shape(self, ranks: tuple[int, ...]) -> tuple[object, ...]:
        """All that decisions for ``ranks`` depend on, without names: equal for children alike."""
        grid = self.model.grid
        seen: dict[str, int] = {}
        hosts = (seen.setdefault(grid.hosts[rank], len(seen)) for rank in ranks)
        return ranks.index(self.rank), *(grid.cluster_of[rank] for rank in ranks), *hosts

    def with_algorithm(self, collective: str, algorithm: str) -> Decisions:
        """Empty decisions of the same ranks with another setting."""
        algorithms = {**self.settings.algorithms, collective: algorithm}
        return Decisions(self.rank, self.model, replace(self.settings, algorithms=algorithms))


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Enter ``value`` as the one used last, and forget the one used longest ago."""
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)
