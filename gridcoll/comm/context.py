"""What a grid-aware communicator knows and owns besides its handle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex

from mpi4py import MPI

from gridcoll.comm.channel import Channel, Place, place_of
from gridcoll.comm.decisions import ANY, Decision, Decisions, Semantics
from gridcoll.comm.following import News
from gridcoll.comm.learning import Learning
from gridcoll.comm.settings import Settings
from gridcoll.engine.compiled import Prepared, prepare
from gridcoll.engine.executor import Memory
from gridcoll.engine.repeat import SHORT_BYTES, Form, Repeat, can_repeat
from gridcoll.engine.runner import run_program
from gridcoll.measure.learning.links import Pair, remeasure_links
from gridcoll.measure.learning.offsets import Offset
from gridcoll.model import GridModel
from gridcoll.plan import Choice, Dataflow
from gridcoll.plan.dataflow import refused
from gridcoll.plan.traces import Traffic, traffic_of

N_FAST_CALLS = 256
"""Kinds of calls that the fast path holds; when there are more, it is emptied."""

MOST_SCRATCH_BYTES = 128 << 10
"""Limit of the scratch that is kept for each kind of call of every communicator."""

Key = tuple[object, ...]
"""Key of a call on this rank."""

FastCall = Callable[..., None]
"""Does a call that was decided before. Takes the communicator and the arguments of mpi4py's
method."""

Read = Callable[..., None]
"""Does a call after reading its arguments. Takes the same."""


@dataclass(frozen=True)
class ClusterComms:
    """Communicators along the clusters of a grid."""

    intra: MPI.Intracomm
    """This rank's cluster; the coordinator is its rank 0."""
    inter: MPI.Intracomm
    """All coordinators in cluster order; ``MPI.COMM_NULL`` on other ranks."""
    lane: MPI.Intracomm
    """The ranks of equal local index across clusters."""

    def free(self) -> None:
        """Free all three. Collective."""
        for comm in (self.intra, self.inter, self.lane):
            if comm != MPI.COMM_NULL:
                comm.Free()


class Context:
    """Decisions, channel and fast path of one communicator.

    Decisions are shared with other communicators of the same ranks; the channel is ours from now
    on. ``threads``: whether all ranks' MPI lets programs run beside the application. ``offset``
    is the common clock minus this rank's, where that is known; ``news`` are changes of the network
    found by communicators of the same processes.
    """

    def __init__(
        self,
        decisions: Decisions,
        channel: Channel,
        threads: bool = False,
        offset: Offset | None = None,
        news: News | None = None,
    ) -> None:
        self.decisions = decisions
        self.rank = decisions.rank
        self._n_ranks = decisions.model.grid.n_ranks
        self.channel = channel
        self.comm = channel.comm
        """The communicator as plain mpi4py has it: for native collectives."""
        self._threads, self._steady = threads, False
        self.changed: Callable[[], None] = _nothing
        """Called when decisions changed, for who keeps some besides the fast path."""
        self.fast_path: dict[Key | None, FastCall] = {}
        """Calls that were decided before: native ones, and short plans (see `engine.repeat`). The
        key holds all that the decision depends on, as simple values."""
        self._cluster_comms: ClusterComms | None = None
        self._last_sent: list[tuple[int, int, int, int]] | None = None
        self.learning = self._begin_to_learn(offset, news)

    def _begin_to_learn(self, offset: Offset | None, news: News | None) -> Learning | None:
        """None where settings forbid it, or inside one cluster, where nothing can be gained."""
        settings = self.settings
        if not settings.learn or settings.force or self.model.n_clusters == 1:
            return None
        return Learning(
            self.comm,
            self.decisions,
            lambda: self.channel.messages,
            self.forget_calls,
            self.follow,
            offset,
            news or News(),
        )

    def forget_calls(self) -> None:
        """Decisions changed: what is known of calls holds no more."""
        self.fast_path.clear()
        self.changed()

    def follow(self, model: GridModel, *, measured: bool = False) -> None:
        """Go on with ``model``, of the same ranks; the same on all of them, at the same call."""
        self.decisions = Decisions(self.rank, model, self.settings)
        self.forget_calls()
        if self.learning is not None:
            self.learning.take(self.decisions, measured=measured)

    def remeasure(self, pairs: Collection[Pair]) -> None:
        """Measure links between clusters anew, and go on with what they are. Collective."""
        self.channel.open()
        messages = self.channel.messages
        self.follow(remeasure_links(self.comm, messages, self.model, pairs), measured=True)

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
    def beside(self) -> bool:
        """Whether non-blocking and persistent calls may be ours."""
        return self._threads and not self.native_only and self.channel.is_open

    def as_rank(self, root: SupportsIndex) -> int | None:
        """``root`` as an int; None for anything that is no rank: MPI is to refuse it.

        An int on one rank may be a NumPy integer on another: both must lead to the same decision.
        """
        try:
            rank = index(root)
        except TypeError:
            return None
        return rank if 0 <= rank < self._n_ranks else None

    def explain(self, collective: str, n_bytes: int, root: int) -> Choice:
        """What such a call would do now, and what was observed of it."""
        learning, semantics = self.learning, ANY
        # Sums of floats have a choice of their own.
        floats = Semantics(bitwise_equal=True)
        if learning is not None and not learning.knows(collective, n_bytes, root, ANY):
            semantics = floats if learning.knows(collective, n_bytes, root, floats) else ANY
        choice = self.decisions.choice(collective, n_bytes, root, semantics)
        return choice if learning is None else learning.explain(choice, semantics)

    def explained(self) -> Iterator[Choice]:
        """As `explain`, every choice that was made so far."""
        for (*_, semantics), choice in self.decisions.made():
            learning = self.learning
            yield choice if learning is None else learning.explain(choice, semantics)

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
        if self.learning is not None:
            return self.learning.decide(
                *(collective, n_bytes, root),
                unit_bytes=unit_bytes,
                semantics=semantics,
                steady=self._steady,
            )
        return self.decisions.decide(
            collective, n_bytes, root, unit_bytes=unit_bytes, semantics=semantics
        )

    @contextmanager
    def steadily(self) -> Iterator[None]:
        """Decisions inside this block are never trials: the call starts later, or is repeated."""
        self._steady = True
        try:
            yield
        finally:
            self._steady = False

    def stamped(self, call: FastCall) -> FastCall:
        """``call``, which does the last decision, with time stamps if this communicator learns."""
        return call if self.learning is None else self.learning.stamped(call)

    def enter(self, key: Key | None, call: FastCall) -> None:
        """Enter ``call`` into the fast path, unless ``key`` is None.

        Nothing is entered where ``GRIDCOLL_CHECK`` is on: arguments must be read to be compared.
        """
        if self.learning is not None and not self.learning.repeats:
            return
        if key is not None and not self.settings.check:
            if len(self.fast_path) >= N_FAST_CALLS:
                self.fast_path.clear()
            self.fast_path[key] = call

    def run(self, flow: Dataflow, memory: Memory | Prepared, *, has_data: bool = True) -> None:
        """Run this rank's share of a call on the private communicator; see `refused`."""

        def run() -> None:
            if isinstance(memory, Prepared):
                memory.run()
            else:
                ours = flow if has_data else refused(flow)
                run_program(ours, self.channel.transport, memory)

        if self.learning is not None:
            self.learning.run(flow, run)
        else:
            run()

    def prepare(self, flow: Dataflow, memory: Memory) -> Prepared | None:
        """Prepare what `run` does for the C engine; None where Python has to run it."""
        return prepare(flow, self.channel.transport, memory)

    def repeat(
        self,
        key: Key | None,
        flow: Dataflow,
        memory: Callable[[], Memory],
        read: Read,
        *,
        unit_bytes: int = 1,
        given: Form | None = None,
        output: Form | None = None,
        writes: bool = True,
        own: memoryview | None = None,
    ) -> None:
        """Enter a planned call into the fast path, if it is short; see `Repeat`.

        The next call of this kind then starts at once: reading arguments and looking up the
        decision takes several times as long as starting. Long calls would gain nothing.
        """
        if key is None or self.settings.check or not can_repeat():
            return
        n_bytes = [form.n_bytes for form in (given, output) if form]
        scratch_bytes = flow.scratch_units * unit_bytes
        if 0 in n_bytes or sum(n_bytes) > SHORT_BYTES or scratch_bytes > MOST_SCRATCH_BYTES:
            return
        if prepared := prepare(flow, self.channel.transport, memory()):
            again = Repeat(prepared, given=given, output=output, writes=writes, own=own, read=read)
            self.enter(key, self.stamped(again.function))

    def traffic(self) -> Traffic:
        """What all ranks sent in plans so far. Collective."""
        rows = self.comm.allgather(self._sent())
        return traffic_of(self.model.grid, (row for mine in rows for row in mine))

    def own_traffic(self) -> Traffic:
        """What this rank sent in plans so far; also after the communicator was freed."""
        return traffic_of(self.model.grid, self._sent())

    def _sent(self) -> list[tuple[int, int, int, int]]:
        return self.channel.sent(self.rank) if self._last_sent is None else self._last_sent

    def cluster_comms(self) -> ClusterComms:
        """The communicators of the splitting, made at the first call. Collective."""
        if self._cluster_comms is None:
            grid = self.model.grid
            cluster = grid.cluster_of[self.rank]
            lane = grid.lane_of(self.rank)
            self._cluster_comms = ClusterComms(
                intra=_intracomm(self.comm.Split(cluster, self.rank)),
                inter=_intracomm(self.comm.Split(MPI.UNDEFINED if lane else 0, cluster)),
                lane=_intracomm(self.comm.Split(lane, cluster)),
            )
        return self._cluster_comms

    def duplicate(self, comm: MPI.Comm, place: Place) -> Context:
        """The context of ``comm``, a duplicate."""
        channel = Channel(MPI.Intracomm(comm), place)
        return self._child(self.decisions, channel, None)

    def restrict(self, comm: MPI.Comm, place: Place, ranks: Sequence[int]) -> Context:
        """The context of ``comm``, a child whose rank ``i`` is our ``ranks[i]``."""
        channel = Channel(MPI.Intracomm(comm), place_of(place, ranks))
        decisions = self.decisions.restrict(ranks)
        return self._child(decisions, channel, ranks)

    def _child(
        self, decisions: Decisions, channel: Channel, ranks: Sequence[int] | None
    ) -> Context:
        if self.learning is None:
            return Context(decisions, channel, self._threads)
        following = self.learning.following
        news = following.news.part(ranks) if ranks else following.news
        child = Context(decisions, channel, self._threads, self.learning.agreed.offset, news)
        before = following.at_start
        if child.learning is not None and before is not self.model:
            child.learning.following.start_from(before.restrict(ranks) if ranks else before)
        return child

    def with_algorithm(self, collective: str, algorithm: str) -> Context:
        """This context with another setting; it shares the communicators."""
        other = copy(self)
        other.decisions = self.decisions.with_algorithm(collective, algorithm)
        other.fast_path, other.changed = {}, _nothing
        other.learning = None
        return other

    def free(self) -> None:
        """Free every communicator made here, and give the channel back. Collective."""
        self._last_sent = self._sent()
        if self.learning is not None:
            self.learning.close()
        if self._cluster_comms is not None:
            self._cluster_comms.free()
            self._cluster_comms = None
        self.channel.free()


def _nothing() -> None:
    pass


def _intracomm(comm: MPI.Comm) -> MPI.Intracomm:
    return comm if isinstance(comm, MPI.Intracomm) else MPI.Intracomm(comm)
