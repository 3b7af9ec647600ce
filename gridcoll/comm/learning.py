"""What one communicator learns from its calls: each is stamped, and at agreed points decisions
change.

Ranks agree by the number of a call. So every call is counted on all ranks, by the fast path or not.
"""

from __future__ import annotations

import atexit
import logging
import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from mpi4py import MPI

from gridcoll.comm.decisions import ANY, Decision, Decisions, Semantics, size_class
from gridcoll.comm.following import Following, News
from gridcoll.engine.transport import MPITransport
from gridcoll.measure.cache.folder import Cache
from gridcoll.measure.learning.agreed import Agreed, Point
from gridcoll.measure.learning.arms import arms_of, competitors, limit_of_calls
from gridcoll.measure.learning.learner import Change, Kind, Learner, Observation, Races, Ratio
from gridcoll.measure.learning.offsets import Offset, compare_clocks
from gridcoll.measure.learning.outcomes import keep_outcomes
from gridcoll.model import GridModel
from gridcoll.plan import Choice, Dataflow
from gridcoll.plan.natives import TIMED
from gridcoll.plan.registry import Candidate
from gridcoll.topology.units import format_duration, format_size

N_SHAPES = 32
POINTS_PER_NOTE = 16
"""Agreed points between two copies of what was learned for later communicators; another one is made
when the communicator is freed."""

KEEP_EVERY_S = 300.0
"""Seconds between two writes of what was learned into the cache; another one at the end."""

FROM_ROOT = ("bcast", "scatter")
"""Collectives that begin when their root comes."""

_open_learnings: WeakSet[Learning] = WeakSet()

_known: dict[str, list[Ratio]] = {}
"""What this process learned, by the shape of the communicator. A later communicator uses it if its
ranks find at their first agreed point that all have the same."""

_log = logging.getLogger("gridcoll")


def _keep_all() -> None:
    """Write what communicators learned that were not freed, at the end of the job."""
    for each in list(_open_learnings):
        each.keep()


atexit.register(_keep_all)


@dataclass
class _Call:
    """A call that was decided; ``made`` is false until it ran."""

    kind: Kind
    arm: int
    flow: Dataflow | None
    n_starts: int
    is_trial: bool
    made: bool = False


class Learning:
    """Learner, stamps and decisions of one communicator.

    Parameters
    ----------
    comm : MPI.Intracomm
        As plain mpi4py has it.
    decisions : Decisions
        As made by the model.
    messages : callable
        Gives where our own messages go; between calls nothing is under way there.
    changed : callable
        To be called when decisions changed: empties the fast path.
    follow : callable
        Takes the model of a network that changed.
    offset : Offset or None
        Common clock minus this rank's clock, if known already.
    news : News or None
        Shared with other communicators of the same processes.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        decisions: Decisions,
        messages: Callable[[], MPITransport],
        changed: Callable[[], None],
        follow: Callable[[GridModel], None],
        offset: Offset | None = None,
        news: News | None = None,
    ) -> None:
        self.decisions, self._messages = decisions, messages
        self._changed, self._follow = changed, follow
        self.learner = Learner()
        self._known_at_start: Races | None = None
        model = decisions.model
        self.following = Following(comm, messages, model, news or News(), self._tell)
        latency_s = float(model.latency_s.max())
        self._shape = shape_of(model)
        self._brought = _known.get(self._shape, [])
        knowledge = float(zlib.crc32(repr(self._brought).encode()))
        self.agreed = Agreed(
            *(comm, latency_s, offset, knowledge, self.following.say),
            *(self._begins, self._allowed_s),
        )
        self._begun: set[Kind] = set()
        self._lost_s = 0.0
        self._kept_s = time.monotonic()
        _open_learnings.add(self)
        self._candidates: dict[Kind, Sequence[Candidate]] = {}
        self._call: _Call | None = None
        self._steady_call: _Call | None = None

    def decide(
        self,
        collective: str,
        n_bytes: int,
        root: int,
        *,
        unit_bytes: int = 1,
        semantics: Semantics = ANY,
        steady: bool = False,
    ) -> Decision:
        """As `Decisions.decide`; with ``steady`` never a trial, and not stamped."""
        decisions, self._call, self._steady_call = self.decisions, None, None
        if not self._is_learned(collective, semantics):
            return decisions.decide(
                collective, n_bytes, root, unit_bytes=unit_bytes, semantics=semantics
            )
        kind = self._kind(collective, n_bytes, root, semantics)
        candidates = self._candidates.get(kind)
        if candidates is None:
            choice = decisions.choice(collective, n_bytes, root, semantics)
            # Of a native, ranks may get different bits.
            unequal = semantics.bitwise_equal and decisions.model.n_clusters > 1
            natives = not (semantics.reproducible or unequal)
            candidates = competitors(choice, natives, semantics.prefer_order)
            self._candidates[kind] = candidates
        if steady:
            arm = self.learner.leader(kind)
        else:
            model = decisions.model
            arm = self.learner.next_arm(
                kind,
                lambda: arms_of(collective, candidates, model, n_bytes),
                lambda: limit_of_calls(collective, model, n_bytes, root),
            )
        decision = decisions.decide(
            collective,
            n_bytes,
            root,
            unit_bytes=unit_bytes,
            semantics=semantics,
            by=candidates[arm] if arm else None,
        )
        is_trial = arm != self.learner.leader(kind)
        call = _Call(kind, arm, decision.flow, self.learner.n_starts, is_trial)
        if steady:
            self._steady_call = call
        else:
            self._call = call
        return decision

    def _is_learned(self, collective: str, semantics: Semantics) -> bool:
        forced = self.decisions.is_forced(collective)
        return collective in TIMED and not (forced or semantics.no_variants)

    def _kind(self, collective: str, n_bytes: int, root: int, semantics: Semantics) -> Kind:
        place = self.decisions.model.grid.cluster_of[root]
        return Kind(collective, size_class(n_bytes), root, place, semantics)

    def _begins(self, tag: object) -> bool:
        """Whether such a call cannot begin without this rank."""
        if not isinstance(tag, _Call) or tag.kind.collective not in FROM_ROOT:
            return True
        return tag.kind.root == self.decisions.rank

    def _allowed_s(self, tag: object) -> float:
        """What a call may take before its time counts as lost; first ones open connections."""
        learner = self.learner
        if not isinstance(tag, _Call) or tag.n_starts != learner.n_starts:
            return math.inf
        if tag.kind not in self._begun:
            self._begun.add(tag.kind)
            return math.inf
        return learner.allowed_s(tag.kind, tag.arm)

    def run(self, flow: Dataflow, run: Callable[[], None]) -> None:
        """Call ``run``, which runs ``flow``; with stamps if ``flow`` was decided last."""
        call = self._call
        if call is None or call.flow is not flow:
            run()
        else:
            self._stamped(call, run)

    def stamped(self, function: Callable[..., None]) -> Callable[..., None]:
        """``function``, which does calls like the last one decided, with stamps around it.

        It is a native collective about to be called, or a plan that ran.
        """
        call = self._call
        if call is None or call.made != (call.flow is not None):
            return function

        def do(*args: Any) -> None:
            self._stamped(call, function, *args)

        return do

    def _stamped(self, call: _Call, function: Callable[..., None], *args: Any) -> None:
        call.made = True
        n_calls, entry_s = self.agreed.n_calls, time.monotonic()
        try:
            function(*args)
        finally:
            # A call whose buffers had another form was read, and counted, inside ``function``.
            if self.agreed.n_calls == n_calls:
                self.end(call, entry_s, time.monotonic())

    def end(self, call: object, entry_s: float, exit_s: float) -> None:
        """Enter a call that ended, and learn if it is an agreed point. Collective."""
        is_trial = isinstance(call, _Call) and call.is_trial
        point = self.agreed.end(call, entry_s, exit_s, is_trial=is_trial)
        if point is not None:
            began_s, before_s = time.monotonic(), self.following.took_s
            self._learn(point)
            # Looks have their own part: exchanges go on where one took long.
            looked_s = self.following.took_s - before_s
            learned_s = time.monotonic()
            self.agreed.spend(learned_s - began_s - looked_s)
            # Slow calls do not wait until the clock's cost is saved up: it counts with the look.
            is_slow = not point.on_clock and self._is_wrong
            if is_slow or self.agreed.is_clock_due:
                rank, grid = self.decisions.rank, self.decisions.model.grid
                before = self.agreed.offset
                self.agreed.offset = compare_clocks(self._messages(), rank, grid, before)
                if not is_slow:
                    self.agreed.spend(time.monotonic() - learned_s, waiting=True)

    @property
    def repeats(self) -> bool:
        """Whether the next call like the last one has the same decision."""
        call = self._call
        if call is None:
            return True
        return call.arm == self.learner.leader(call.kind) and self.learner.is_settled(call.kind)

    def standing(self) -> tuple[object, bool] | None:
        """Of the last decision, which was a steady one: what calls like it are stamped with by who
        makes them without `decide`, and whether they may be made so now.

        None where nothing is learned from them. The first call of a kind, and trials, may not.
        """
        call = self._steady_call
        return None if call is None else (call, self.learner.is_settled(call.kind))

    def _learn(self, point: Point) -> None:
        """Learn from what was exchanged. Collective, at the same call on all ranks."""
        learner = self.learner
        if self._brought:
            if point.same_knowledge:
                learner.bring(self._brought)
            self._brought = []
        seen = [
            Observation(
                *(each.tag.kind, each.tag.arm, each.seconds),
                each.behind_s if each.tag.kind.collective in FROM_ROOT else each.skew_s,
                each.whole_s,
            )
            for each in point.seen
            if isinstance(each.tag, _Call) and each.tag.n_starts == learner.n_starts
        ]
        changes = learner.learn(seen, point.total_s)
        if learner.is_restless:
            self._changed()
        if self.agreed.n_points % POINTS_PER_NOTE == 0:
            self._note()
        if time.monotonic() - self._kept_s > KEEP_EVERY_S:
            self.keep()
        for change in changes:
            self._tell(describe(change))
        self._lost_s += point.lost_s
        if point.seen:
            self._watch(point)

    def _note(self) -> None:
        """Keep what was learned for later communicators of the same shape."""
        if ratios := self.learner.ratios():
            _known.pop(self._shape, None)
            _known[self._shape] = ratios
            while len(_known) > N_SHAPES:
                _known.pop(next(iter(_known)))

    def keep(self) -> None:
        """Write what was learned into the cache, on rank 0. Local."""
        decisions, settings = self.decisions, self.decisions.settings
        self._kept_s = time.monotonic()
        if decisions.rank == 0 and not settings.grid_file:
            cache = Cache(settings.places, settings.tolerance)
            keep_outcomes(cache, decisions.model, self.learner)

    @property
    def _is_wrong(self) -> bool:
        """Whether calls are slow from the first one on: the model is another network's."""
        learner = self.learner
        lost_s = max(learner.surprise_s, self._lost_s)
        return self.following.is_unseen and lost_s > learner.drift.worth_s

    def _watch(self, point: Point) -> None:
        """Follow the network. Collective; see `Following.step`."""
        learner, following = self.learner, self.following
        now_s, drift = point.seen[-1].ended_s, learner.drift
        is_wrong = self._is_wrong and not drift.suspicion
        doubt = drift.take_doubt() or is_wrong
        step = following.step(point, drift.suspicion, now_s, self.agreed.total_s, doubt=doubt)
        if following.look_cost_s:
            learner.drift.worth_s = following.look_cost_s
        if step.model is not None:
            self._begin_anew(step.model, keep=not is_wrong)
        elif step.compete:
            learner.forget()
            self._changed()

    def _begin_anew(self, model: GridModel, *, keep: bool = True) -> None:
        """Use another model. When the first one returns, what was learned with it returns, too.

        ``keep`` how far predictions were off: where the first model was right, they will be again.
        """
        self._follow(model)
        known = self.learner.restart(keep=keep)
        if model is not self.following.at_start:
            self._known_at_start = self._known_at_start or known
        elif self._known_at_start:
            self.learner.resume(self._known_at_start)
            self._known_at_start = None

    def take(self, decisions: Decisions, *, measured: bool = False) -> None:
        """Use other decisions; ``measured``: their model was measured thoroughly."""
        self.decisions, self._call = decisions, None
        self._candidates.clear()
        if measured:
            self.following.begin(decisions.model)
            self.learner.restart()
            self._known_at_start = None

    def _tell(self, text: str) -> None:
        if self.decisions.rank == 0 and self.decisions.settings.log_decisions:
            _log.warning("gridcoll: call %d: %s", self.agreed.n_calls, text)

    def knows(self, collective: str, n_bytes: int, root: int, semantics: Semantics) -> bool:
        """Whether such calls were made."""
        return bool(self.learner.rows(self._kind(collective, n_bytes, root, semantics)))

    def explain(self, choice: Choice, semantics: Semantics = ANY) -> Choice:
        """``choice`` with observed times of its candidates, and the winner by these. Local."""
        kind = self._kind(choice.collective, choice.n_bytes, choice.root, semantics)
        rows = {(row.arm.name, row.arm.label): row for row in self.learner.rows(kind)}
        if not rows:
            return choice
        candidates, winner, reason = [], choice.winner, choice.reason
        for each in choice.candidates:
            row = rows.get((each.name, each.label))
            if row is None:
                candidates.append(each)
                continue
            seen = replace(each, observed_s=row.observed_s, n_calls=row.n_calls)
            candidates.append(seen)
            if row.leads:
                winner = seen
                if each is not choice.winner:
                    reason = f"learned from calls; at first {choice.winner.name}, {choice.reason}"
        n_calls = sum(row.n_calls for row in rows.values())
        calls = "1 call" if n_calls == 1 else f"{n_calls} calls"
        return replace(
            choice,
            candidates=tuple(candidates),
            winner=winner,
            reason=reason,
            sources=(*choice.sources, f"observed: {calls} of this job"),
        )

    def close(self) -> None:
        """Wait for exchanges under way. Collective."""
        self.agreed.close()
        self._note()
        self.keep()
        _open_learnings.discard(self)


def shape_of(model: GridModel) -> str:
    """A text that is equal for communicators of equal shape, whoever is in them."""
    grid, n = model.grid, range(model.n_clusters)
    sizes = [(len(cluster), len(cluster.nodes)) for cluster in grid.clusters]
    links = [f"{model.link(i, j).latency_s:.1e}" for i in n for j in n]
    return f"{sizes} {grid.cluster_of} {links}"


def describe(change: Change) -> str:
    """``bcast of 1 MiB, root 0: chain (101 ms) instead of stars (140 ms)``."""
    kind = change.kind
    return (
        f"{kind.collective} of {format_size(kind.n_bytes)}, root {kind.root}: "
        f"{change.after.name} ({format_duration(change.after_s)} in {change.n_calls} calls) "
        f"instead of {change.before.name} ({format_duration(change.before_s)})"
    )
