"""Follow changes of links with the model of a communicator, and tell related communicators.

All decisions use values exchanged at an agreed point, so that all ranks measure links, or change
the model, at the same call. In a *look*, all ranks measure links together; a *glance* is one
message in each direction.
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from mpi4py import MPI

from gridcoll.engine.transport import MPITransport
from gridcoll.measure.learning.agreed import OVERHEAD_PART, Offer, Point, RankMessage
from gridcoll.measure.learning.changes import (
    CHANGED,
    LinkFactors,
    Pair,
    changed_model,
    found_of,
)
from gridcoll.measure.learning.links import glance_of, look_at_links, rounds_of
from gridcoll.model import GridModel
from gridcoll.topology.units import format_rate

LOOK_EVERY_S = 60.0
"""Shortest mean time between looks at all links. Two may follow each other sooner."""

WINDOW_RECOVERY_S = 20.0
"""TCP windows that became small by packet loss recover when they are used for this long: it took
10 s after 15 s at a tenth of the rate (MPICH, Open MPI). Windows that stay small for longer do so
because packets are still lost."""

GLANCE_EVERY_S = 1.0
"""Shortest time between two glances at changed links, to see whether they recovered."""

IDLE_GLANCE_EVERY_S = 20.0
"""The same for other links, which may have become faster than when they were measured."""


class News:
    """Changes of the network that communicators of the same processes found, in this process.

    These communicators run in any order and on any thread: one rank may have a model that another
    rank does not have yet. Therefore all ranks compare what they have before they use it.
    """

    def __init__(self, parent: News | None = None) -> None:
        self.newest: Offer | None = None
        self.doubt = False
        self._parent = parent
        self._children: WeakValueDictionary[tuple[int, ...], News] = WeakValueDictionary()
        self._lock = threading.Lock()

    def restrict(self, ranks: Sequence[int]) -> News:
        """Return the news of a communicator whose rank ``i`` is our ``ranks[i]``."""
        with self._lock:
            found = self._children.get(tuple(ranks))
            if found is None:
                found = self._children[tuple(ranks)] = News(self)
                if self.newest is not None and isinstance(self.newest.what, GridModel):
                    found._set_newest(self.newest.what.restrict(ranks))
            return found

    def post(self, model: GridModel) -> float:
        """Pass ``model`` to communicators of these processes or a subset; return its digest.

        Communicators of more processes only get a hint that something changed: their other ranks
        do not have the new model.
        """
        digest = self._set_newest(model)
        parent = self._parent
        while parent is not None:
            parent.doubt = True
            parent = parent._parent
        return digest

    def _set_newest(self, model: GridModel) -> float:
        digest = float(zlib.crc32(repr(_state(model)).encode()) + 1)
        self.newest = Offer(digest, model)
        with self._lock:
            children = list(self._children.items())
        for ranks, child in children:
            child._set_newest(model.restrict(ranks))
        return digest


class Step(NamedTuple):
    """What to do after an agreed point.

    ``model`` is a new model to use, if any. ``compete`` tells whether all candidates compete again.
    """

    model: GridModel | None = None
    compete: bool = False


class Following:
    """The links of one communicator: as in the first model, and as they are now.

    Parameters
    ----------
    comm : MPI.Intracomm
        The plain mpi4py communicator.
    messages : callable
        Returns the transport for our own messages; it is idle between calls.
    model : GridModel
        The first model, measured or declared; later measurements are compared with it.
    news : News
        Changes found by communicators of the same processes.
    tell : callable
        Logs a line about a decision.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        messages: Callable[[], MPITransport],
        model: GridModel,
        news: News,
        tell: Callable[[str], None],
    ) -> None:
        self._comm, self._messages, self._tell = comm, messages, tell
        self.news = news
        self._saw_better_link = False
        self.measuring_s = 0.0
        """Seconds that looks and glances took on this rank."""
        self.look_cost_s = 0.0
        """Seconds that a look takes; equal on all ranks."""
        self.reset(model)
        self._known_digest = 0.0  # news that came before may be about another model

    def reset(self, first_model: GridModel) -> None:
        """Use ``first_model``, and compare with it from now on."""
        self.first_model = self.model = first_model
        self._known_digest = self.news.newest.digest if self.news.newest else 0.0
        # If declared clusters share a host, somebody simulates a grid on one machine.
        self._has_network = first_model.origin == "measured" or not first_model.grid.splits_hosts
        self.changed: dict[Pair, LinkFactors] = {}
        self._windows_small_since_s: dict[Pair, float] = {}
        self._last_look_s, self._look_pending = -math.inf, False
        # When the last two looks at all links were taken, and whether the last found a change.
        self._whole_looks_s, self._found_change = (-math.inf, -math.inf), True
        self._last_glance_s = -math.inf
        self._glance_costs_s: dict[tuple[Pair, ...], float] = {}
        self._n_glances, self._backoff = 0, 1.0

    @property
    def is_unverified(self) -> bool:
        """Whether no look was taken so far: all links are as in a file or an earlier job.

        Always false for a declared grid that is simulated on one machine.
        """
        return self._has_network and self._last_look_s == -math.inf

    def compare_with(self, first_model: GridModel) -> None:
        """Compare with ``first_model``: our model was taken over after links had changed."""
        self.first_model = first_model
        self.changed = found_of(self.model, first_model)

    @property
    def has_message(self) -> bool:
        """Whether this rank has something new to tell the others."""
        newest = self.news.newest
        is_new = newest is not None and newest.digest != self._known_digest
        return is_new or self.news.doubt or self._saw_better_link

    def take_message(self) -> RankMessage:
        """Return what this rank tells the others at the next agreed point, and reset it."""
        message = RankMessage(self.news.newest, self.news.doubt, self._saw_better_link)
        self.news.doubt = self._saw_better_link = False
        return message

    def step(
        self, point: Point, suspicion: int, now_s: float, total_s: float, *, doubt: bool = False
    ) -> Step:
        """Return what to do after an agreed point. Collective.

        ``suspicion`` and ``doubt`` are those of `Drift`. After a suspicion, candidates compete
        again if a look finds nothing or is not due, and one look may soon follow another. A doubt
        only asks for a look.

        If calls become faster after links had become slower, the first model is used again. If that
        model was declared, links may never have been as it says, so those that differ are looked
        at. While links are slower, glances find out when they recover, even if no call uses the
        link. ``now_s`` is a time of the common clock; ``total_s`` is the time of all calls so far.
        """
        if point.offer is not None and point.offer.digest != self._known_digest:
            return self._use_offer(point.offer)
        if suspicion < 0 and self.changed:
            if self.first_model.origin == "measured":
                self._tell("faster again: the links count as they did")
                self._look_pending = False
                return self._switch_to(self.first_model, {})
            if now_s - self._last_look_s >= self._backed_off_s(GLANCE_EVERY_S):
                return self._look_at_better_links(now_s, compete=True)
        wanted = bool(suspicion) or self._look_pending or point.doubt or doubt
        if not self._has_network:
            return self._compete(suspicion)
        before_s, last_s = self._whole_looks_s
        may_look = now_s - last_s >= self._look_interval_s
        # The network may have changed during a look, or just after it.
        may_repeat = now_s - before_s >= 2 * self._look_interval_s
        if (wanted and may_look) or (suspicion and may_repeat):
            return self._look(now_s, None, compete=bool(suspicion))
        if suspicion:
            return self._compete(suspicion)
        self._look_pending = wanted
        if point.better and (self.changed or may_look):
            return self._look_at_better_links(now_s)
        self._glance(now_s, total_s)
        return Step()

    @property
    def _look_interval_s(self) -> float:
        """Seconds from one look at all links to the next.

        They are more after a look that found nothing: such looks take `OVERHEAD_PART` of the time.
        """
        cost_s = 0.0 if self._found_change else self.look_cost_s
        return max(LOOK_EVERY_S, cost_s / OVERHEAD_PART)

    def _compete(self, suspicion: int) -> Step:
        if not suspicion:
            return Step()
        self._tell("calls became slower or faster: all candidates compete again")
        self._look_pending = True
        return Step(compete=True)

    def _use_offer(self, offer: Offer) -> Step:
        """Use the model that a related communicator found."""
        self._known_digest = offer.digest
        if not isinstance(offer.what, GridModel) or _state(offer.what) == _state(self.model):
            return Step()
        self._tell("another communicator found that links changed")
        self.model = offer.what
        self.changed = found_of(self.model, self.first_model)
        return Step(self.first_model if not self.changed else self.model)

    def _switch_to(self, model: GridModel, changed: dict[Pair, LinkFactors]) -> Step:
        self.model, self.changed = model, changed
        self._backoff = 1.0
        self._known_digest = self.news.post(model)
        return Step(model)

    def _backed_off_s(self, every_s: float) -> float:
        """Return the time between glances: the longer, the more were wrong.

        It is not so long that a better link stays unnoticed for hours: if all glances are wrong,
        their looks take `OVERHEAD_PART` of the time.
        """
        longest_s = max(LOOK_EVERY_S, self.look_cost_s / OVERHEAD_PART)
        return min(every_s * self._backoff, longest_s)

    def _look_at_better_links(self, now_s: float, *, compete: bool = False) -> Step:
        """Look at what changed, or at all links. If nothing is better, glances become rarer."""
        self._backoff *= 2  # until the model changes
        return self._look(now_s, self.changed or None, compete=compete)

    def _look(self, now_s: float, only: Collection[Pair] | None, *, compete: bool = False) -> Step:
        """Look at all links, or ``only`` those of some pairs. Collective.

        If nothing is found, candidates compete again if ``compete``.
        """
        began_s = time.monotonic()
        # Compare with the first model: factors relative to other factors would drift.
        found = look_at_links(self._comm, self._messages(), self.first_model, only)
        # Use an array: for objects, mpi4py would make a communicator, which blocks other threads.
        duration = np.array([time.monotonic() - began_s])
        self._comm.Allreduce(MPI.IN_PLACE, duration, MPI.MAX)
        duration_s = float(duration[0])
        self.measuring_s += time.monotonic() - began_s
        self._last_look_s, self._last_glance_s, self._look_pending = now_s, now_s, False
        before = self.changed
        for pair, seen in found.items():
            # Windows open by being used: for a while, use the rate of several flows for the link.
            # What was not measured with several flows is a longer link, which may not be in use.
            if not seen.waits:
                self._windows_small_since_s.pop(pair, None)
            else:
                since_s = self._windows_small_since_s.setdefault(pair, now_s)
                is_new = now_s - since_s < WINDOW_RECOVERY_S
                if is_new or not seen.together_bytes_per_s:
                    found[pair] = seen.opened()
                self._look_pending |= is_new
            if pair in before and before[pair].gap > CHANGED * seen.gap:
                found[pair] = found[pair].risen()
        changed = {pair: each for pair, each in found.items() if each.changed}
        is_as_before = changed.keys() == before.keys() and all(
            each.is_like(before[pair]) for pair, each in changed.items()
        )
        if only is None:
            self.look_cost_s, self._found_change = duration_s, not is_as_before
            self._whole_looks_s = self._whole_looks_s[1], now_s
        if is_as_before:
            self._tell("links were looked at, and are what they were")
            return Step(compete=compete)
        names = [cluster.name for cluster in self.first_model.grid.clusters]
        for a, b in sorted(changed.keys() | before.keys()):
            each = found.get((a, b), before.get((a, b)))
            if each is not None:
                latency = f"{each.latency:.2g} times the latency, " if a != b else ""
                where = f"{names[a]} to {names[b]}" if a != b else f"inside {names[a]}"
                where += f", {' '.join(each.slow_hosts)}" if each.slow_hosts else ""
                rate = each.together_bytes_per_s
                together = f", {format_rate(rate)} together" if 0 < rate < math.inf else ""
                self._tell(f"{where}: {latency}{each.gap:.2g} times the gap{together}")
        return self._switch_to(
            changed_model(self.first_model, changed) or self.first_model, changed
        )

    def _glance(self, now_s: float, total_s: float) -> None:
        """If due, send one message in each direction over links of disjoint pairs of clusters.

        Ranks exchange nothing here. A rank that sees a better link reports it at the next agreed
        point.
        """
        every_s = GLANCE_EVERY_S if self.changed else IDLE_GLANCE_EVERY_S
        if now_s - self._last_glance_s < self._backed_off_s(every_s):
            return
        rounds = rounds_of(self.model, self.changed or None)
        # In each cluster, glance between the slowest host and its neighbour; all clusters at once.
        inside = [(a, b) for (a, b), each in self.changed.items() if a == b and each.ends]
        rounds += [inside] if inside else []
        if not rounds:
            return
        first_model = self.first_model if self.changed else None
        slow = {pair: self.changed[pair].ends for pair in inside}
        budget_s = OVERHEAD_PART * total_s
        first = self._n_glances % len(rounds)
        for pairs in (*rounds[first:], *rounds[:first]):
            glances = [glance_of(self.model, first_model, pair, slow.get(pair)) for pair in pairs]
            # Each round has its own part of the budget: none waits for a more expensive one.
            cost_s = len(rounds) * max(each.expected_s for each in glances)
            spent_s = self._glance_costs_s.get(tuple(pairs), 0.0) + cost_s
            if spent_s <= budget_s:
                break
        else:
            return
        # Do not save up unused budget for long.
        self._glance_costs_s[tuple(pairs)] = max(spent_s, budget_s - cost_s)
        self._n_glances += 1
        self._last_glance_s = now_s
        began_s = time.monotonic()
        rank, messages = self._comm.Get_rank(), self._messages()
        self._saw_better_link |= any(each.is_better(messages, rank, self.model) for each in glances)
        self.measuring_s += time.monotonic() - began_s


def _state(model: GridModel) -> tuple[object, ...]:
    """Return what can change while a job runs."""
    return model.links, model.slow_hosts
