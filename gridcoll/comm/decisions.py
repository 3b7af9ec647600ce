"""Decisions: what a call does, looked up by one key, the same on all ranks.

A decision depends only on values that every rank knows: the model, the settings, and the
collective, size, root and semantics of the call. Therefore communicators of the same ranks share
their decisions. Children of one parent also share them if they have the same number of ranks, in
the same clusters, placed on hosts in the same pattern. All communicators with the same model object
share choices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gridcoll.comm.settings import Settings
from gridcoll.constants import SHORT_IN_ORDER_BYTES
from gridcoll.model import GridModel, planning_model
from gridcoll.model.gridmodel import ModelKey
from gridcoll.plan import Choice, Dataflow, choose, dataflow, rerooted
from gridcoll.plan.natives import NATIVE, NATIVES
from gridcoll.plan.plan import scaled
from gridcoll.plan.registry import Candidate
from gridcoll.schedule.paths import find_hub

K = TypeVar("K")
V = TypeVar("V")

N_DECISIONS = 256
"""Most decisions kept for one set of ranks; they hold compiled plans."""

N_CHOICES = 512
"""Most choices kept: more than decisions, because choosing takes longer than compiling, and a
program may use hundreds of roots."""

N_SHARED_CHOICES = 128
"""Most choices kept for all communicators of this process, by the model object they were made with.
Few, because they keep replaced models in memory."""

N_RANK_SETS = 32
"""Most rank sets of children, and most shapes of such sets, whose decisions are kept."""


class Semantics(NamedTuple):
    """Reduction semantics that a call requires; see `choose`."""

    rank_order: bool = False
    prefer_order: bool = False
    reproducible: bool = False
    bitwise_equal: bool = False
    no_variants: bool = False

    @property
    def depends_on_rank_order(self) -> bool:
        """Whether the time of a plan may depend on the order of ranks by number."""
        return self.rank_order or self.prefer_order or self.reproducible


_Key = tuple[str, int, int, int, "Semantics", "tuple[str, str] | None"]

ANY = Semantics()
PLAIN = Semantics(no_variants=True)


class Decision(Struct, frozen=True):
    """What this rank does in a call of one kind."""

    flow: Dataflow | None
    """This rank's part of a plan, compiled; None for a native collective."""
    native: str = NATIVE
    """The native collective to use if there is no plan; see `engine.natives.native_call`."""


def is_indivisible(collective: str, n_bytes: int, semantics: Semantics) -> bool:
    """Whether a short reduction must not be split, not even between elements.

    True for user-defined operations. Some of them need all elements together, as an ``argmax`` of
    values followed by their positions, or rely on the number of elements. MPI libraries behave the
    same: if they split at all, they split only longer messages.
    """
    is_user_op = semantics.rank_order or semantics.prefer_order
    return is_user_op and collective in ("allreduce", "reduce") and n_bytes <= SHORT_IN_ORDER_BYTES


def size_class(n_bytes: int) -> int:
    """Return the size that a choice is made for: rounded up to quarters of a power of two."""
    if n_bytes <= 8:
        return 8
    step = 1 << max((n_bytes - 1).bit_length() - 3, 0)
    return -(-n_bytes // step) * step


class Decisions:
    """All decisions so far for one set of ranks; ``rank`` is this process's rank in it.

    Shared between threads: if one thread evicts an entry that another one needs, the other one
    decides again, with the same result. The new object shares the decisions of ``share_with``,
    which has other ranks, but the same rank number for this process and a model that differs only
    in names.
    """

    def __init__(
        self, rank: int, model: GridModel, settings: Settings, share_with: Decisions | None = None
    ) -> None:
        self.rank, self.model, self.settings = rank, model, settings
        self.planning_model = planning_model(model)
        self._choices: OrderedDict[tuple[str, int, int, Semantics], Choice]
        self._decided: OrderedDict[_Key, Decision]
        self._choices = share_with._choices if share_with else OrderedDict()
        self._decided = share_with._decided if share_with else OrderedDict()
        self._by_ranks: OrderedDict[tuple[int, ...], Decisions] = OrderedDict()
        self._by_shape: OrderedDict[tuple[object, ...], Decisions] = OrderedDict()

    @cached_property
    def native_only(self) -> bool:
        """Whether no call can gain anything; then even the size of a call is ignored."""
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

    def is_forced_native(self, collective: str) -> bool:
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
        """Return the choice for calls of this size class, with all candidates and the reason.

        The choice is made once for all equivalent roots of a cluster, because programs often use
        each rank as root in turn. If rank order matters, no roots are equivalent.
        """
        key = (collective, size_class(n_bytes), root, semantics)
        found = self._choices.pop(key, None)
        model = self.planning_model
        alike = root if semantics.depends_on_rank_order else model.grid.first_alike[root]
        if found is None and alike != root:
            found = rerooted(self.choice(collective, n_bytes, alike, semantics), model, root)
        elif found is None:
            grid_only = self.settings.force == "grid"
            found = _choose(ModelKey(model), self._forced(collective), grid_only, key)
        _put(self._choices, key, found, N_CHOICES)
        return found

    def made(self) -> list[tuple[tuple[str, int, int, Semantics], Choice]]:
        """Return all stored choices, with their keys."""
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
        """Return what this rank does in a call of exactly this size.

        The plan counts in units of ``unit_bytes``, because reductions must not split an element.
        ``by`` is the candidate to use; by default, the winner of the choice.
        """
        candidate = (by.name, by.label) if by else None
        key = (collective, n_bytes, root, unit_bytes, semantics, candidate)
        found = self._decided.pop(key, None)
        if found is None:
            winner = by or self.choice(collective, n_bytes, root, semantics).winner
            if winner.build is None:
                found = Decision(None, winner.name)
            else:
                n_units = n_bytes // unit_bytes
                factor = n_units if is_indivisible(collective, n_bytes, semantics) else 1
                program = winner.build(n_units // max(factor, 1)).programs[self.rank]
                flow = dataflow(scaled(program, factor) if factor > 1 else program)
                _ = flow.flat  # written now, so that it does not count as time of the first call
                found = Decision(flow)
        _put(self._decided, key, found, N_DECISIONS)
        return found

    def restrict(self, ranks: Sequence[int]) -> Decisions:
        """Return decisions for a child whose rank ``i`` is our ``ranks[i]``.

        The rank of this process must be one of them.
        """
        key = tuple(ranks)
        if key == tuple(range(self.model.grid.n_ranks)):
            return self
        found = self._by_ranks.pop(key, None)
        if found is None:
            shape = self._shape(key)
            same_shape = self._by_shape.pop(shape, None)
            rank, model = key.index(self.rank), self.model.restrict(key)
            found = Decisions(rank, model, self.settings, same_shape)
            _put(self._by_shape, shape, found, N_RANK_SETS)
        _put(self._by_ranks, key, found, N_RANK_SETS)
        return found

    def _shape(self, ranks: tuple[int, ...]) -> tuple[object, ...]:
        """Return everything that decisions for ``ranks`` depend on, without names.

        Children with equal shapes share their decisions.
        """
        grid = self.planning_model.grid
        host_numbers: dict[str, int] = {}
        hosts = (host_numbers.setdefault(grid.hosts[rank], len(host_numbers)) for rank in ranks)
        return ranks.index(self.rank), *(grid.cluster_of[rank] for rank in ranks), *hosts

    def with_algorithm(self, collective: str, algorithm: str) -> Decisions:
        """Return new decisions, without entries, for the same ranks and a forced algorithm."""
        algorithms = {**self.settings.algorithms, collective: algorithm}
        return Decisions(self.rank, self.model, replace(self.settings, algorithms=algorithms))


@lru_cache(maxsize=N_SHARED_CHOICES)
def _choose(
    model_key: ModelKey, forced: str, grid_only: bool, call: tuple[str, int, int, Semantics]
) -> Choice:
    """Choose for a call; all communicators with the same model share the result."""
    collective, n_bytes, root, semantics = call
    return choose(
        collective,
        model_key.model,
        n_bytes,
        root,
        forced=forced,
        grid_only=grid_only,
        **semantics._asdict(),
    )


def _put(cache: OrderedDict[K, V], key: K, value: V, max_entries: int) -> None:
    """Store ``value`` as the most recently used entry, and evict the least recently used one."""
    cache[key] = value
    if len(cache) > max_entries:
        cache.popitem(last=False)
