"""The state of a grid-aware communicator besides its handle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from operator import index
from typing import NamedTuple, SupportsIndex

from mpi4py import MPI
from msgspec import Struct

from gridcoll.comm.channel import Channel, Place, place_of
from gridcoll.comm.decisions import ANY, Decision, Decisions, Semantics
from gridcoll.comm.following import News
from gridcoll.comm.learning import Learning
from gridcoll.comm.settings import Settings
from gridcoll.engine.compiled import Prepared, prepare
from gridcoll.engine.executor import Memory
from gridcoll.engine.repeat import SHORT_BYTES, Form, Repeat, can_repeat
from gridcoll.engine.runner import run_program
from gridcoll.measure.learning.changes import Pair
from gridcoll.measure.learning.links import remeasure_links
from gridcoll.measure.learning.offsets import Offset
from gridcoll.model import GridModel
from gridcoll.plan import Choice, Dataflow
from gridcoll.plan.dataflow import refused
from gridcoll.plan.traces import Traffic, traffic_of

N_FAST_CALLS = 256
"""Most kinds of calls that the fast path holds. When it is full, it is cleared."""

MOST_SCRATCH_BYTES = 128 << 10
"""Most scratch memory that is kept for one kind of call, for each communicator."""

Key = tuple[object, ...]
"""Key of a call on this rank."""

FastCall = Callable[..., None]
"""Executes a call that was decided before. Takes the communicator and the arguments of mpi4py's
method."""

Read = Callable[..., None]
"""Reads the arguments of a call and executes it. Takes the same arguments as `FastCall`."""


class ClusterComms(Struct, frozen=True):
    """Communicators along the clusters of a grid."""

    intra: MPI.Intracomm
    """This rank's cluster; the coordinator is its rank 0."""
    inter: MPI.Intracomm
    """All coordinators in cluster order; ``MPI.COMM_NULL`` on other ranks."""
    lane: MPI.Intracomm
    """The ranks with the same local index, one per cluster."""

    def free(self) -> None:
        """Free all three. Collective."""
        for comm in (self.intra, self.inter, self.lane):
            if comm != MPI.COMM_NULL:
                comm.Free()


class Heritage(NamedTuple):
    """What a communicator knows from its parent when it begins to learn.

    Attributes
    ----------
    news : News
        Changes of the network found by communicators of the parent's processes.
    ranks : sequence of int or None
        The parent's rank of each rank; None if they are the same.
    offset : Offset or None
        The common clock minus this rank's clock, if known.
    first_model : GridModel or None
        The model before links changed; None if they did not.
    """

    news: News
    ranks: Sequence[int] | None = None
    offset: Offset | None = None
    first_model: GridModel | None = None


class Context:
    """Decisions, channel and fast path of one communicator.

    Decisions are shared with other communicators of the same ranks; the context takes ownership of
    the channel. ``threads`` tells whether programs can run in the background on all ranks; see
    `can_run_in_background`.
    """

    def __init__(
        self,
        decisions: Decisions,
        channel: Channel,
        threads: bool = False,
        heritage: Heritage | None = None,
    ) -> None:
        self.decisions = decisions
        self.rank = decisions.rank
        self._n_ranks = decisions.model.grid.n_ranks
        self.channel = channel
        self.comm = channel.comm
        """The plain mpi4py communicator, for native collectives."""
        self._threads, self._no_trials = threads, False
        self.on_change: Callable[[], None] = _nothing
        """Called when decisions changed. Set by code that stores decisions outside the fast
        path."""
        self.fast_path: dict[Key | None, FastCall] = {}
        """Calls that were decided before: native ones, and short plans (see `engine.repeat`). The
        key holds everything the decision depends on, as simple values."""
        self._cluster_comms: ClusterComms | None = None
        self._last_sent: list[tuple[int, int, int, int]] | None = None
        self._heritage = heritage or Heritage(News())

    @cached_property
    def learning(self) -> Learning | None:
        """What is learned, from the first call on: most communicators of some programs have none.

        None if settings forbid learning, or if there is one cluster and no gain.
        """
        settings = self.settings
        if not settings.learn or settings.force or self.model.n_clusters == 1:
            return None
        learning = Learning(
            self.comm,
            self.decisions,
            lambda: self.channel.messages,
            self.forget_calls,
            self.use_model,
            self._heritage.offset,
            self._news,
        )
        if (first_model := self._heritage.first_model) is not None:
            learning.following.compare_with(first_model)
        return learning

    @cached_property
    def _news(self) -> News:
        """Changes of the network found by communicators of these processes."""
        news, ranks = self._heritage.news, self._heritage.ranks
        return news if ranks is None else news.restrict(ranks)

    @property
    def _begun_learning(self) -> Learning | None:
        """`learning`, or None if it has not begun."""
        found: Learning | None = vars(self).get("learning")
        return found

    def forget_calls(self) -> None:
        """Forget all prepared calls, because decisions changed."""
        self.fast_path.clear()
        self.on_change()

    def use_model(self, model: GridModel, *, measured: bool = False) -> None:
        """Use ``model``, of the same ranks, from now on.

        All ranks must pass the same model, at the same call. ``measured`` tells whether it was
        measured thoroughly.
        """
        self.decisions = Decisions(self.rank, model, self.settings)
        self.forget_calls()
        if self.learning is not None:
            self.learning.use_decisions(self.decisions, measured=measured)

    def remeasure(self, pairs: Collection[Pair]) -> None:
        """Measure links between clusters again, and use the resulting model. Collective."""
        self.channel.open()
        messages = self.channel.messages
        self._heritage = self._heritage._replace(first_model=None)
        self.use_model(remeasure_links(self.comm, messages, self.model, pairs), measured=True)

    @property
    def model(self) -> GridModel:
        """The model of the communicator's ranks."""
        return self.decisions.model

    @property
    def settings(self) -> Settings:
        """The settings of this communicator, the same on all ranks."""
        return self.decisions.settings

    @property
    def native_only(self) -> bool:
        """Whether no call can gain anything; see `Decisions.native_only`."""
        return self.decisions.native_only

    @property
    def can_run_in_background(self) -> bool:
        """Whether non-blocking and persistent calls may be run by gridcoll."""
        return self._threads and not self.native_only and self.channel.is_open

    def as_rank(self, root: SupportsIndex) -> int | None:
        """Return ``root`` as an int, or None if it is not a valid rank, so that MPI rejects it.

        One rank may pass an int, another one a NumPy integer: both must get the same decision.
        """
        try:
            rank = index(root)
        except TypeError:
            return None
        return rank if 0 <= rank < self._n_ranks else None

    def explain(self, collective: str, n_bytes: int, root: int) -> Choice:
        """Return what such a call would do now, with observed times."""
        learning, semantics = self._begun_learning, ANY
        # Sums of floats have a separate choice.
        floats = Semantics(bitwise_equal=True)
        if learning is not None and not learning.knows(collective, n_bytes, root, ANY):
            semantics = floats if learning.knows(collective, n_bytes, root, floats) else ANY
        choice = self.decisions.choice(collective, n_bytes, root, semantics)
        return choice if learning is None else learning.explain(choice, semantics)

    def explained(self) -> Iterator[Choice]:
        """Yield every choice that was made so far, as `explain` returns it."""
        learning = self._begun_learning
        for (*_, semantics), choice in self.decisions.made():
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
                no_trials=self._no_trials,
            )
        return self.decisions.decide(
            collective, n_bytes, root, unit_bytes=unit_bytes, semantics=semantics
        )

    @contextmanager
    def without_trials(self) -> Iterator[None]:
        """Make no trials inside this block: the call is started later, or repeatedly."""
        self._no_trials = True
        try:
            yield
        finally:
            self._no_trials = False

    def stamped(self, call: FastCall) -> FastCall:
        """Return ``call``, which executes the last decision.

        If this communicator learns, time stamps are taken around it.
        """
        return call if self.learning is None else self.learning.stamped(call)

    def add_fast_call(self, key: Key | None, call: FastCall) -> None:
        """Add ``call`` to the fast path, unless ``key`` is None.

        Nothing is added if ``GRIDCOLL_CHECK`` is on: arguments must be read to be compared.
        """
        if self.learning is not None and not self.learning.repeats:
            return
        if key is not None and not self.settings.check:
            if len(self.fast_path) >= N_FAST_CALLS:
                self.fast_path.clear()
            self.fast_path[key] = call

    def run(self, flow: Dataflow, memory: Memory | Prepared, *, has_data: bool = True) -> None:
        """Run this rank's part of a call on the private communicator.

        Without data (``has_data`` false), ranks that need this rank's data fail; see `refused`.
        """

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
        """Prepare ``flow`` for the C engine; return None if it must run in Python."""
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
        """Add a planned call to the fast path, if it is short; see `Repeat`.

        The next call of this kind then starts at once: reading arguments and looking up the
        decision takes several times as long as starting it. Long calls would gain nothing.
        """
        if key is None or self.settings.check or not can_repeat():
            return
        n_bytes = [form.n_bytes for form in (given, output) if form]
        scratch_bytes = flow.scratch_units * unit_bytes
        if 0 in n_bytes or sum(n_bytes) > SHORT_BYTES or scratch_bytes > MOST_SCRATCH_BYTES:
            return
        if prepared := prepare(flow, self.channel.transport, memory()):
            repeat = Repeat(prepared, given=given, output=output, writes=writes, own=own, read=read)
            self.add_fast_call(key, self.stamped(repeat.function))

    def traffic(self) -> Traffic:
        """Return what all ranks sent in plans so far. Collective."""
        rows_by_rank = self.comm.allgather(self._sent())
        return traffic_of(self.model.grid, (row for rows in rows_by_rank for row in rows))

    def own_traffic(self) -> Traffic:
        """Return what this rank sent in plans so far; works after the communicator was freed."""
        return traffic_of(self.model.grid, self._sent())

    def _sent(self) -> list[tuple[int, int, int, int]]:
        return self.channel.sent(self.rank) if self._last_sent is None else self._last_sent

    def cluster_comms(self) -> ClusterComms:
        """Return the communicators along the clusters, made at the first call. Collective."""
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
        """Return the context of ``comm``, a duplicate of this communicator."""
        channel = Channel(MPI.Intracomm(comm), place)
        return self._child(self.decisions, channel, None)

    def restrict(self, comm: MPI.Comm, place: Place, ranks: Sequence[int]) -> Context:
        """Return the context of ``comm``, a child whose rank ``i`` is our ``ranks[i]``."""
        channel = Channel(MPI.Intracomm(comm), place_of(place, ranks))
        decisions = self.decisions.restrict(ranks)
        return self._child(decisions, channel, ranks)

    def _child(
        self, decisions: Decisions, channel: Channel, ranks: Sequence[int] | None
    ) -> Context:
        offset, first = self._heritage.offset, self._heritage.first_model
        if (learning := self._begun_learning) is not None:
            offset, first = learning.agreed.offset, learning.following.first_model
        if first is self.model:
            first = None
        if first is not None and ranks is not None:
            first = first.restrict(ranks)
        heritage = Heritage(self._news, ranks, offset, first)
        return Context(decisions, channel, self._threads, heritage)

    def with_algorithm(self, collective: str, algorithm: str) -> Context:
        """Return a copy with ``algorithm`` forced; it shares the communicators."""
        other = copy(self)
        other.decisions = self.decisions.with_algorithm(collective, algorithm)
        other.fast_path, other.on_change = {}, _nothing
        other.learning = None
        return other

    def free(self) -> None:
        """Free all communicators made here, and free the channel. Collective."""
        self._last_sent = self._sent()
        if (learning := self._begun_learning) is not None:
            learning.close()
        if self._cluster_comms is not None:
            self._cluster_comms.free()
            self._cluster_comms = None
        self.channel.free()


def _nothing() -> None:
    pass


def _intracomm(comm: MPI.Comm) -> MPI.Intracomm:
    return comm if isinstance(comm, MPI.Intracomm) else MPI.Intracomm(comm)
