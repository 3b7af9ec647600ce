"""What one communicator learns from its calls: each call is stamped, and decisions change at agreed
points.

Ranks identify an agreed point by the number of a call. Therefore all ranks count every call, on the
fast path or not.
"""

from __future__ import annotations

import atexit
import logging
import math
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from mpi4py import MPI
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.comm.decisions import ANY, Decision, Decisions, Semantics, size_class
from gridcoll.comm.following import Following, News
from gridcoll.engine.transport import MPITransport
from gridcoll.measure.cache.folder import Cache
from gridcoll.measure.learning.agreed import Agreed, Alarm, Point, Stamp
from gridcoll.measure.learning.arms import arms_of, competitors, limit_of_calls
from gridcoll.measure.learning.drift import LARGE_DEVIATION, LEAST_DEVIATION
from gridcoll.measure.learning.learner import Change, Kind, Learner, Observation, Races, Ratio
from gridcoll.measure.learning.offsets import Offset, compare_clocks
from gridcoll.measure.learning.outcomes import keep_outcomes
from gridcoll.model import GridModel
from gridcoll.plan import Choice, Dataflow
from gridcoll.plan.natives import TIMED
from gridcoll.plan.registry import Candidate
from gridcoll.topology.units import format_duration, format_size

N_SHAPES = 32
"""Most shapes of communicators whose ratios are stored."""

POINTS_PER_COPY = 16
"""Agreed points between two copies of what was learned for later communicators. One more copy is
made when the communicator is freed."""

SAVE_EVERY_S = 300.0
"""Seconds between two writes of what was learned to the cache. One more write happens at the
end."""

SLOW_FACTOR, FAST_FACTOR = math.exp(LARGE_DEVIATION), math.exp(LEAST_DEVIATION)
"""Calls that differ from usual ones by these factors count in a watch."""

FROM_ROOT = ("bcast", "scatter")
"""Collectives that begin when their root enters."""

_open_learnings: WeakSet[Learning] = WeakSet()

_known_ratios: dict[str, list[Ratio]] = {}
"""What this process learned, by the shape of the communicator. A later communicator uses it if its
ranks find at their first agreed point that all of them have the same ratios."""

_log = logging.getLogger("gridcoll")


def _save_all() -> None:
    """Save what was learned by communicators that were not freed, at the end of the job."""
    for each in list(_open_learnings):
        each.save()


atexit.register(_save_all)


class _Call(Struct):
    """A call that was decided; ``has_run`` is false until it ran."""

    kind: Kind
    arm: int
    flow: Dataflow | None
    n_starts: int
    is_trial: bool
    has_run: bool = False


class Learning:
    """Learner, stamps and decisions of one communicator.

    Parameters
    ----------
    comm : MPI.Intracomm
        The plain mpi4py communicator.
    decisions : Decisions
        Decisions by the model.
    messages : callable
        Returns the transport for our own messages; it is idle between calls.
    on_change : callable
        Called when decisions changed; clears the fast path.
    use_model : callable
        Called with the new model when the network changed.
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
        on_change: Callable[[], None],
        use_model: Callable[[GridModel], None],
        offset: Offset | None = None,
        news: News | None = None,
    ) -> None:
        self.decisions, self._messages = decisions, messages
        self._on_change, self._use_model = on_change, use_model
        self.learner = Learner()
        self._first_model_races: Races | None = None
        model = decisions.model
        self.following = Following(comm, messages, model, news or News(), self._tell)
        latency_s = float(model.latency_s.max())
        self._shape = shape_of(model)
        self._inherited = _known_ratios.get(self._shape, [])
        knowledge = float(zlib.crc32(repr(self._inherited).encode()))
        self.agreed = Agreed(
            *(comm, latency_s, offset, knowledge, self.following.take_message),
            *(self._is_needed_to_begin, self._allowed_s, self._watch),
        )
        self._seen_kinds: set[Kind] = set()
        self._lost_s = 0.0
        self._last_save_s = time.monotonic()
        _open_learnings.add(self)
        self._candidates: dict[Kind, Sequence[Candidate]] = {}
        self._call: _Call | None = None
        self._no_trials_call: _Call | None = None

    def decide(
        self,
        collective: str,
        n_bytes: int,
        root: int,
        *,
        unit_bytes: int = 1,
        semantics: Semantics = ANY,
        no_trials: bool = False,
    ) -> Decision:
        """Like `Decisions.decide`; with ``no_trials`` never a trial, and not stamped."""
        decisions, self._call, self._no_trials_call = self.decisions, None, None
        if not self._is_learned(collective, semantics):
            return decisions.decide(
                collective, n_bytes, root, unit_bytes=unit_bytes, semantics=semantics
            )
        kind = self._kind(collective, n_bytes, root, semantics)
        candidates = self._candidates.get(kind)
        if candidates is None:
            choice = decisions.choice(collective, n_bytes, root, semantics)
            # With a native collective, ranks may get results that differ in some bits.
            unequal = semantics.bitwise_equal and decisions.model.n_clusters > 1
            natives = not (semantics.reproducible or unequal)
            candidates = competitors(choice, natives, semantics.prefer_order)
            self._candidates[kind] = candidates
        if no_trials:
            arm = self.learner.leader(kind)
        else:
            model = decisions.planning_model
            arm = self.learner.next_arm(
                kind,
                lambda: arms_of(collective, candidates, model, n_bytes),
                lambda: limit_of_calls(collective, model, n_bytes, root),
            )
        began_s = time.monotonic()
        decision = decisions.decide(
            collective,
            n_bytes,
            root,
            unit_bytes=unit_bytes,
            semantics=semantics,
            by=candidates[arm] if arm else None,
        )
        is_trial = arm != self.learner.leader(kind)
        if is_trial:
            self.agreed.spend_building(time.monotonic() - began_s)
        call = _Call(kind, arm, decision.flow, self.learner.n_starts, is_trial)
        if no_trials:
            self._no_trials_call = call
        else:
            self._call = call
        return decision

    def _is_learned(self, collective: str, semantics: Semantics) -> bool:
        forced = self.decisions.is_forced(collective)
        return collective in TIMED and not (forced or semantics.no_variants)

    def _kind(self, collective: str, n_bytes: int, root: int, semantics: Semantics) -> Kind:
        place = self.decisions.model.grid.cluster_of[root]
        return Kind(collective, size_class(n_bytes), root, place, semantics)

    def _is_needed_to_begin(self, tag: object) -> bool:
        """Whether such a call cannot begin before this rank enters it."""
        if not isinstance(tag, _Call) or tag.kind.collective not in FROM_ROOT:
            return True
        return tag.kind.root == self.decisions.rank

    def _allowed_s(self, tag: object) -> float:
        """Return the time that a call may take before the rest of its time counts as lost.

        Infinite for the first call of a kind, which opens connections.
        """
        learner = self.learner
        if not isinstance(tag, _Call) or tag.n_starts != learner.n_starts:
            return math.inf
        if tag.kind not in self._seen_kinds:
            self._seen_kinds.add(tag.kind)
            return math.inf
        return learner.allowed_s(tag.kind, tag.arm)

    def _watch(self, stamps: Sequence[Stamp]) -> Alarm:
        """Return what this rank's last calls say about the network."""
        learner, following = self.learner, self.following
        more_s, less_s = [], []
        for each in stamps:
            call, took_s = each.tag, each.exit_s - each.entry_s
            if not isinstance(call, _Call) or call.n_starts != learner.n_starts:
                continue
            usual_s = learner.usual_s(call.kind, call.arm)
            if usual_s is None:  # after the first call, the prediction counts
                known = call.kind in self._seen_kinds
                most_s = learner.allowed_s(call.kind, call.arm) if known else math.inf
                more_s += [took_s - most_s] if took_s > most_s else []
            elif took_s > usual_s * SLOW_FACTOR:
                more_s.append(took_s - usual_s)
            elif took_s * FAST_FACTOR < usual_s:
                less_s.append(usual_s - took_s)
        return Alarm(
            following.has_message or learner.drift.is_alarm(more_s),
            bool(following.changed) and learner.drift.is_alarm(less_s),
        )

    def run(self, flow: Dataflow, run: Callable[[], None]) -> None:
        """Call ``run``, which runs ``flow``; take stamps if ``flow`` is the last decision."""
        call = self._call
        if call is None or call.flow is not flow:
            run()
        else:
            self._stamped(call, run)

    def stamped(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function``, which executes calls like the last one decided, with stamps.

        It is a native collective about to be called, or a plan that ran.
        """
        call = self._call
        if call is None or call.has_run != (call.flow is not None):
            return function

        def run(*args: Any) -> None:
            self._stamped(call, function, *args)

        return run

    def _stamped(self, call: _Call, function: Callable[..., None], *args: Any) -> None:
        call.has_run = True
        n_calls, entry_s = self.agreed.n_calls, time.monotonic()
        try:
            function(*args)
        finally:
            # If buffers had another form, the call was read and counted inside ``function``.
            if self.agreed.n_calls == n_calls:
                self.end(call, entry_s, time.monotonic())

    def end(self, call: object, entry_s: float, exit_s: float) -> None:
        """Record a call that ended, and learn if it is an agreed point. Collective."""
        is_trial = isinstance(call, _Call) and call.is_trial
        point = self.agreed.end(call, entry_s, exit_s, is_trial=is_trial)
        if point is not None:
            began_s, before_s = time.monotonic(), self.following.measuring_s
            self._learn(point)
            # Looks have their own budget, so that a long look does not stop exchanges.
            looked_s = self.following.measuring_s - before_s
            learned_s = time.monotonic()
            self.agreed.spend(learned_s - began_s - looked_s)
            # If calls are slow, compare clocks at once, before the budget allows it: the cost
            # counts with the look.
            is_slow = not point.on_clock and self._is_model_wrong
            if is_slow or self.agreed.is_clock_due:
                rank, grid = self.decisions.rank, self.decisions.model.grid
                before = self.agreed.offset
                self.agreed.offset = compare_clocks(self._messages(), rank, grid, before)
                if before is not None:
                    self.agreed.spend(time.monotonic() - learned_s, waiting=True)
                elif not is_slow:
                    self.learner.invest(self.agreed.clock_cost_s)

    @property
    def repeats(self) -> bool:
        """Whether the next call like the last one has the same decision."""
        call = self._call
        if call is None:
            return True
        return call.arm == self.learner.leader(call.kind) and self.learner.is_settled(call.kind)

    def repeatable_call(self) -> tuple[object, bool] | None:
        """Return the tag of calls like the last decision, and whether they may repeat it now.

        The last decision was made with ``no_trials``. The tag is for the stamps of a caller that
        repeats the call without `decide`. The first call of a kind, and trials, may not be
        repeated. None if nothing is learned from such calls.
        """
        call = self._no_trials_call
        return None if call is None else (call, self.learner.is_settled(call.kind))

    def _learn(self, point: Point) -> None:
        """Learn from what was exchanged. Collective, at the same call on all ranks."""
        learner = self.learner
        if self._inherited:
            if point.same_knowledge:
                learner.bring(self._inherited)
            self._inherited = []
        seen = [
            Observation(
                *(each.tag.kind, each.tag.arm, each.seconds),
                each.behind_s if each.tag.kind.collective in FROM_ROOT else each.skew_s,
                each.whole_s,
            )
            for each in point.seen
            if isinstance(each.tag, _Call) and each.tag.n_starts == learner.n_starts
        ]
        changes = learner.learn(seen, point.total_s, point.built_s)
        if learner.is_restless:
            self._on_change()
        if self.agreed.n_points % POINTS_PER_COPY == 0:
            self._copy_ratios()
        if time.monotonic() - self._last_save_s > SAVE_EVERY_S:
            self.save()
        for change in changes:
            self._tell(describe(change))
        self._lost_s += point.lost_s
        if point.seen:
            self._follow_network(point)

    def _copy_ratios(self) -> None:
        """Store what was learned for later communicators of the same shape in this process."""
        if ratios := self.learner.ratios():
            _known_ratios.pop(self._shape, None)
            _known_ratios[self._shape] = ratios
            while len(_known_ratios) > N_SHAPES:
                _known_ratios.pop(next(iter(_known_ratios)))

    def save(self) -> None:
        """Write what was learned to the cache, on rank 0. Local."""
        decisions, settings = self.decisions, self.decisions.settings
        self._last_save_s = time.monotonic()
        if decisions.rank == 0 and not settings.grid_file:
            cache = Cache(settings.places, settings.tolerance)
            keep_outcomes(cache, decisions.model, self.learner)

    @property
    def _is_model_wrong(self) -> bool:
        """Whether calls were slow from the start, so that the model is of another network."""
        learner = self.learner
        lost_s = max(learner.surprise_s, self._lost_s)
        return self.following.is_unverified and lost_s > learner.drift.worth_s

    def _follow_network(self, point: Point) -> None:
        """Follow changes of the network. Collective; see `Following.step`."""
        learner, following = self.learner, self.following
        now_s, drift = point.seen[-1].ended_s, learner.drift
        is_wrong = self._is_model_wrong and not drift.suspicion
        doubt = drift.take_doubt() or is_wrong
        step = following.step(point, drift.suspicion, now_s, self.agreed.total_s, doubt=doubt)
        if following.look_cost_s:
            learner.drift.worth_s = following.look_cost_s
        if step.model is not None or step.compete:
            self.agreed.heed()
        if step.model is not None:
            self._restart_with(step.model, keep=not is_wrong)
        elif step.compete:
            learner.forget()
            self._on_change()

    def _restart_with(self, model: GridModel, *, keep: bool = True) -> None:
        """Use another model. If it is the first model again, restore what was learned with it.

        With ``keep``, keep the errors of predictions: if the first model was right, predictions
        will be off as before.
        """
        self._use_model(model)
        races = self.learner.restart(keep=keep)
        if model is not self.following.first_model:
            self._first_model_races = self._first_model_races or races
        elif self._first_model_races:
            self.learner.resume(self._first_model_races)
            self._first_model_races = None

    def use_decisions(self, decisions: Decisions, *, measured: bool = False) -> None:
        """Use other decisions; ``measured`` tells whether their model was measured thoroughly."""
        self.decisions, self._call = decisions, None
        self._candidates.clear()
        if measured:
            self.following.reset(decisions.model)
            self.learner.restart()
            self._first_model_races = None

    def _tell(self, text: str) -> None:
        if self.decisions.rank == 0 and self.decisions.settings.log_decisions:
            _log.warning("gridcoll: call %d: %s", self.agreed.n_calls, text)

    def knows(self, collective: str, n_bytes: int, root: int, semantics: Semantics) -> bool:
        """Whether such calls were made."""
        return bool(self.learner.rows(self._kind(collective, n_bytes, root, semantics)))

    def explain(self, choice: Choice, semantics: Semantics = ANY) -> Choice:
        """Return ``choice`` with observed times of candidates, and the winner by them. Local."""
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
        """Wait for pending exchanges, and save what was learned. Collective."""
        self.agreed.close()
        self._copy_ratios()
        self.save()
        _open_learnings.discard(self)


def shape_of(model: GridModel) -> str:
    """Return a text that is equal for communicators of equal shape, whichever ranks they have."""
    grid, n = model.grid, range(model.n_clusters)
    sizes = [(len(cluster), len(cluster.nodes)) for cluster in grid.clusters]
    links = [f"{model.link(i, j).latency_s:.1e}" for i in n for j in n]
    return f"{sizes} {grid.cluster_of} {links}"


def describe(change: Change) -> str:
    """Return, e.g., ``bcast of 1 MiB, root 0: chain (101 ms) instead of stars (140 ms)``."""
    kind = change.kind
    return (
        f"{kind.collective} of {format_size(kind.n_bytes)}, root {kind.root}: "
        f"{change.after.name} ({format_duration(change.after_s)} in {change.n_calls} calls) "
        f"instead of {change.before.name} ({format_duration(change.before_s)})"
    )
