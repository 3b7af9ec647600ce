"""What a grid-aware communicator knows and owns besides its handle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from typing import NamedTuple, SupportsIndex

from mpi4py import MPI

from gridcoll.comm.bands import Bands
from gridcoll.comm.private import PrivateComm
from gridcoll.comm.settings import Settings
from gridcoll.engine.compiled import Prepared, prepare
from gridcoll.engine.counting import CountingTransport
from gridcoll.engine.executor import Memory
from gridcoll.engine.runner import run_program
from gridcoll.model import GridModel
from gridcoll.plan import Choice, Dataflow, choose, dataflow
from gridcoll.plan.natives import NATIVE, NATIVES
from gridcoll.plan.traffic import Traffic, traffic_of

N_CACHED_PLANS = 256
N_CACHED_CHOICES = 512
"""To choose takes longer than to plan, and roots may go round hundreds of ranks."""


class Demands(NamedTuple):
    """What a call asks of how it is done; see `choose`."""

    ordered: bool = False
    fixed: bool = False
    equal: bool = False
    plain: bool = False


ANY = Demands()
PLAIN = Demands(plain=True)

Key = tuple[object, ...]
"""Of a call, as one rank sees it."""

KnownCall = Callable[..., None]
"""Does a call that is known: takes the communicator and what mpi4py's method takes."""

_Call = tuple[str, int, int, int, "Demands"]
"""Collective, bytes, root, bytes per unit, and what it demands."""


@dataclass(frozen=True)
class ClusterComms:
    """The communicators of the splitting.

    Attributes
    ----------
    intra : MPI.Intracomm
        This rank's cluster; the coordinator is its rank 0.
    inter : MPI.Intracomm
        All coordinators in cluster order; ``MPI.COMM_NULL`` on other ranks.
    lane : MPI.Intracomm
        The ranks of equal local index across clusters.
    """

    intra: MPI.Intracomm
    inter: MPI.Intracomm
    lane: MPI.Intracomm

    def free(self) -> None:
        """Free all three. Collective."""
        for comm in (self.intra, self.inter, self.lane):
            if comm != MPI.COMM_NULL:
                comm.Free()


def size_class(n_bytes: int) -> int:
    """The size that a choice is made for: the next of 1, 1.25, 1.5, 1.75 times a power of two."""
    if n_bytes <= 8:
        return 8
    step = 1 << max((n_bytes - 1).bit_length() - 3, 0)
    return -(-n_bytes // step) * step


class Context:
    """Model, settings, private communicator and plan cache of one communicator.

    Everything in it is created when the communicator is, collectively, and freed with it.

    Attributes
    ----------
    known : dict
        What is known to do what the key says, so that nobody need look again: native calls, and
        short plans as `repeated` has them. The key names the method and everything that this rank's
        choice depends on, as simple values.

    Parameters
    ----------
    rank : int
        Ours in the communicator.
    model : GridModel
        Of the communicator's ranks.
    settings : Settings
    private : PrivateComm
        Of the same ranks; ours from now on.
    threads : bool
        Whether all ranks' MPI lets programs run beside the application.
    """

    def __init__(
        self,
        rank: int,
        model: GridModel,
        settings: Settings,
        private: PrivateComm,
        threads: bool = False,
    ) -> None:
        self.model = model
        self.settings = settings
        self.rank = rank
        self._n_ranks = model.grid.n_ranks
        self._private = private
        self._threads = threads
        self._choices: OrderedDict[tuple[str, int, int, Demands], Choice] = OrderedDict()
        self._programs: OrderedDict[_Call, Dataflow | None] = OrderedDict()
        self.known: dict[Key | None, KnownCall] = {}
        self._cluster_comms: ClusterComms | None = None

    @property
    def private(self) -> MPI.Intracomm:
        """The communicator for our own messages."""
        return self._private.comm

    @property
    def _transport(self) -> CountingTransport:
        return self._private.transport

    @property
    def bands(self) -> Bands:
        """Where non-blocking calls run, if `beside`."""
        return self._private.bands

    @property
    def beside(self) -> bool:
        """Whether non-blocking calls may be ours."""
        return self._threads and not self.native_only

    def is_rank(self, root: SupportsIndex) -> bool:
        """Whether `as_rank` gives one."""
        return self.as_rank(root) is not None

    def as_rank(self, root: SupportsIndex) -> int | None:
        """``root`` as an int; None for what is no rank, which is left to MPI to refuse.

        One rank's int may be another's NumPy integer: both must go the same way.
        """
        try:
            rank = index(root)
        except TypeError:
            return None
        return rank if 0 <= rank < self._n_ranks else None

    @cached_property
    def native_only(self) -> bool:
        """Whether no call can gain anything, so that not even its size need be looked at."""
        settings = self.settings
        asked = settings.check or settings.reproducible or settings.algorithms
        if asked or settings.force == "grid":
            return False
        if settings.force == "native" or self.model.grid.n_ranks == 1:
            return True
        one_node = len(set(self.model.grid.hosts)) == 1
        return self.model.n_clusters == 1 and (one_node or not self.model.native)

    def choice(self, collective: str, n_bytes: int, root: int, *, demands: Demands = ANY) -> Choice:
        """What to do with a call of this size class. A pure function of what all ranks know.

        The last `N_CACHED_CHOICES` are kept. Duplicates share them, and may be used by other
        threads: what one takes out, another chooses again, alike.
        """
        key = (collective, size_class(n_bytes), root, demands)
        found = self._choices.pop(key, None)
        if found is None:
            forced = self.settings.algorithms.get(collective, "")
            if self.settings.force == "native":
                forced = NATIVE
            found = choose(
                collective,
                self.model,
                key[1],
                root,
                forced=forced,
                grid_only=self.settings.force == "grid",
                **demands._asdict(),
            )
        self._choices[key] = found
        if len(self._choices) > N_CACHED_CHOICES:
            self._choices.popitem(last=False)
        return found

    def program(
        self,
        collective: str,
        n_bytes: int,
        root: int,
        *,
        unit_bytes: int = 1,
        ordered: bool = False,
        fixed: bool = False,
        equal: bool = False,
        plain: bool = False,
    ) -> Dataflow | None:
        """This rank's ops for a call of exactly this size; None for a native collective.

        Which one, `native` says. The plan counts in units of ``unit_bytes``; reductions may not cut
        an element. For ``ordered``, ``fixed``, ``equal`` and ``plain`` see `choose`.
        """
        demands = Demands(ordered, fixed, equal, plain)
        key = (collective, n_bytes, root, unit_bytes, demands)
        if key in self._programs:
            self._programs.move_to_end(key)
            return self._programs[key]
        winner = self.choice(collective, n_bytes, root, demands=demands).winner
        build = winner.build
        flow = dataflow(build(n_bytes // unit_bytes).programs[self.rank]) if build else None
        self._programs[key] = flow
        if len(self._programs) > N_CACHED_PLANS:
            self._programs.popitem(last=False)
        return flow

    def native(
        self, collective: str, n_bytes: int | None, root: int, demands: Demands = ANY
    ) -> str:
        """Which native collective does a call for which there is no program; see `native_call`.

        The plain one for a call that could not be read: its ``n_bytes`` are None.
        """
        if n_bytes is None:
            return NATIVE
        winner = self.choice(collective, n_bytes, root, demands=demands).winner
        return NATIVE if winner.build else winner.name

    def know(self, key: Key | None, call: KnownCall) -> None:
        """Enter into `known`; what was known before is forgotten when that is much.

        Nothing is where ranks compare their calls, which have to be read for that.
        """
        if key is not None and not self.settings.check:
            if len(self.known) >= N_CACHED_PLANS:
                self.known.clear()
            self.known[key] = call

    def asks_for_native(self, collective: str) -> bool:
        """Whether settings leave ``collective`` to the MPI library, whatever it costs."""
        settings = self.settings
        return settings.force == NATIVE or settings.algorithms.get(collective, "") in NATIVES

    def run(self, flow: Dataflow, memory: Memory) -> None:
        """Run this rank's share of a call on the private communicator."""
        run_program(flow, self._transport, memory)

    def prepare(self, flow: Dataflow, memory: Memory) -> Prepared | None:
        """What `run` does, to be done again and again; None where that gains nothing."""
        return prepare(flow, self._transport, memory)

    def traffic(self) -> Traffic:
        """What all ranks sent in plans so far. Collective."""
        sent = self._transport.sent.rows(self.rank)
        if self._threads:
            sent += self.bands.rows(self.rank)
        rows = self.private.allgather(sent)
        return traffic_of(self.model.grid, (row for mine in rows for row in mine))

    def cluster_comms(self) -> ClusterComms:
        """The communicators of the splitting, made at the first call. Collective."""
        if self._cluster_comms is None:
            grid = self.model.grid
            cluster = grid.cluster_of[self.rank]
            lane = grid.lane_of(self.rank)
            split = MPI.Intracomm.Split
            self._cluster_comms = ClusterComms(
                intra=_intracomm(split(self.private, cluster, self.rank)),
                inter=_intracomm(split(self.private, MPI.UNDEFINED if lane else 0, cluster)),
                lane=_intracomm(split(self.private, lane, cluster)),
            )
        return self._cluster_comms

    def duplicate(self) -> Context:
        """The context of a duplicate; what one has chosen, the other knows. Collective.

        See `PrivateComm.begin`.
        """
        private = PrivateComm.begin(self.private)
        other = Context(self.rank, self.model, self.settings, private, self._threads)
        other._choices = self._choices
        return other

    def restrict(self, comm: MPI.Intracomm, ranks: Sequence[int]) -> Context:
        """The context of ``comm``, just made, whose rank ``i`` is our ``ranks[i]``.

        Collective over ``comm``; see `PrivateComm.begin`.
        """
        same = list(ranks) == list(range(self._n_ranks))
        model = self.model if same else self.model.restrict(ranks)
        private = PrivateComm.begin(comm)
        return Context(comm.Get_rank(), model, self.settings, private, self._threads)

    def with_algorithm(self, collective: str, algorithm: str) -> Context:
        """This context with another setting and plan cache; it shares the communicators."""
        other = copy(self)
        other.settings = replace(
            self.settings, algorithms={**self.settings.algorithms, collective: algorithm}
        )
        other._choices, other._programs = OrderedDict(), OrderedDict()
        other.known = {}
        other.__dict__.pop("native_only", None)
        return other

    def free(self) -> None:
        """Free every communicator made here. Collective."""
        if self._cluster_comms is not None:
            self._cluster_comms.free()
            self._cluster_comms = None
        self._private.free()


def _intracomm(comm: MPI.Comm) -> MPI.Intracomm:
    return comm if isinstance(comm, MPI.Intracomm) else MPI.Intracomm(comm)
