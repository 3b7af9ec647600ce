"""What a grid-aware communicator knows and owns besides its handle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex

from mpi4py import MPI

from gridcoll.comm.bands import Bands
from gridcoll.comm.decisions import ANY, Decision, Decisions, Semantics
from gridcoll.comm.private import PrivateComm
from gridcoll.comm.settings import Settings
from gridcoll.engine.compiled import Prepared, prepare
from gridcoll.engine.counting import CountingTransport
from gridcoll.engine.executor import Memory
from gridcoll.engine.runner import run_program
from gridcoll.model import GridModel
from gridcoll.plan import Choice, Dataflow
from gridcoll.plan.traffic import Traffic, traffic_of

N_FAST_CALLS = 256
"""Kinds of calls that the fast path holds; beyond, it begins anew."""

Key = tuple[object, ...]
"""Of a call, as one rank sees it."""

FastCall = Callable[..., None]
"""Does a call whose decision is known: takes the communicator and what mpi4py's method takes."""


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


class Context:
    """Decisions, private communicator and fast path of one communicator.

    Attributes
    ----------
    decisions : Decisions
        Shared with other communicators of the same ranks.
    fast_path : dict
        Calls whose decision is made, by everything that this rank's decision depends on, as simple
        values: native calls, and short plans as `fast_path` has them.

    Parameters
    ----------
    decisions : Decisions
    private : PrivateComm
        Of the same ranks; ours from now on.
    threads : bool
        Whether all ranks' MPI lets programs run beside the application.
    """

    def __init__(self, decisions: Decisions, private: PrivateComm, threads: bool = False) -> None:
        self.decisions = decisions
        self.rank = decisions.rank
        self._n_ranks = decisions.model.grid.n_ranks
        self._private = private
        self._threads = threads
        self.fast_path: dict[Key | None, FastCall] = {}
        self._cluster_comms: ClusterComms | None = None

    @property
    def model(self) -> GridModel:
        """Of the communicator's ranks."""
        return self.decisions.model

    @property
    def settings(self) -> Settings:
        """What the environment said, the same on all ranks."""
        return self.decisions.settings

    @property
    def native_only(self) -> bool:
        """Whether no call can gain anything; see `Decisions.native_only`."""
        return self.decisions.native_only

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
        """Whether non-blocking and persistent calls may be ours."""
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

    def choice(
        self, collective: str, n_bytes: int, root: int, semantics: Semantics = ANY
    ) -> Choice:
        """See `Decisions.choice`."""
        return self.decisions.choice(collective, n_bytes, root, semantics)

    def decide(
        self,
        collective: str,
        n_bytes: int,
        root: int,
        *,
        unit_bytes: int = 1,
        semantics: Semantics = ANY,
    ) -> Decision:
        """See `Decisions.decide`."""
        return self.decisions.decide(
            collective, n_bytes, root, unit_bytes=unit_bytes, semantics=semantics
        )

    def enter(self, key: Key | None, call: FastCall) -> None:
        """Enter ``call`` into the fast path, unless ``key`` is None.

        Nothing is entered where ranks compare their calls: those have to be read.
        """
        if key is not None and not self.settings.check:
            if len(self.fast_path) >= N_FAST_CALLS:
                self.fast_path.clear()
            self.fast_path[key] = call

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
        """The context of a duplicate. Collective; see `PrivateComm.begin`."""
        return Context(self.decisions, PrivateComm.begin(self.private), self._threads)

    def restrict(self, comm: MPI.Intracomm, ranks: Sequence[int]) -> Context:
        """The context of ``comm``, just made, whose rank ``i`` is our ``ranks[i]``.

        Collective over ``comm``; see `PrivateComm.begin`.
        """
        decisions = self.decisions.restrict(ranks)
        return Context(decisions, PrivateComm.begin(comm), self._threads)

    def with_algorithm(self, collective: str, algorithm: str) -> Context:
        """This context with another setting; it shares the communicators."""
        other = copy(self)
        other.decisions = self.decisions.with_algorithm(collective, algorithm)
        other.fast_path = {}
        return other

    def free(self) -> None:
        """Free every communicator made here. Collective."""
        if self._cluster_comms is not None:
            self._cluster_comms.free()
            self._cluster_comms = None
        self._private.free()


def _intracomm(comm: MPI.Comm) -> MPI.Intracomm:
    return comm if isinstance(comm, MPI.Intracomm) else MPI.Intracomm(comm)
