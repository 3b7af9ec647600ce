"""How a communicator's model follows changes of links, and tells related communicators.

All decisions use values exchanged at an agreed point, so that all ranks measure links, or change
the model, at the same call. A *look* measures links by all ranks together; a *glance* is one
message each way.
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
from gridcoll.measure.learning.agreed import OVERHEAD_PART, Offer, Point, Said
from gridcoll.measure.learning.links import (
    CHANGED,
    Found,
    Pair,
    changed_model,
    found_of,
    glance_of,
    look_at_links,
    rounds_of,
)
from gridcoll.model import GridModel
from gridcoll.topology.units import format_rate

LOOK_EVERY_S = 60.0
"""Shortest time between two looks at all links that slow calls ask for."""

WINDOWS_S = 20.0
"""TCP windows that losses made small are open again after so long in use: that took 10 s after 15 s
at a tenth of the rate (MPICH, Open MPI). Others stay small: packets get lost there."""

GLANCE_EVERY_S = 1.0
"""Shortest time between two glances at changed links, to see whether they recovered."""

IDLE_GLANCE_EVERY_S = 20.0
"""The same for other links, which may have become faster than when they were measured."""


class News:
    """Changes of the network that communicators of the same processes found, in this process.

    These communicators run in any order and on any thread: one rank may have a model that another
    rank does not have yet. So all ranks compare what they have before they use it.
    """

    def __init__(self, above: News | None = None) -> None:
        self.newest: Offer | None = None
        self.doubt = False
        self._above = above
        self._parts: WeakValueDictionary[tuple[int, ...], News] = WeakValueDictionary()
        self._lock = threading.Lock()

    def part(self, ranks: Sequence[int]) -> News:
        """Of a communicator whose rank ``i`` is our ``ranks[i]``."""
        with self._lock:
            found = self._parts.get(tuple(ranks))
            if found is None:
                found = self._parts[tuple(ranks)] = News(self)
            return found

    def post(self, model: GridModel) -> float:
        """Pass ``model`` on to communicators of these processes or a subset; returns its digest.

        Communicators of more processes only get the hint that something changed: their other ranks
        do not have the new model.
        """
        digest = self._tell(model)
        above = self._above
        while above is not None:
            above.doubt = True
            above = above._above
        return digest

    def _tell(self, model: GridModel) -> float:
        digest = float(zlib.crc32(repr(model.links).encode()) + 1)
        self.newest = Offer(digest, model)
        with self._lock:
            parts = list(self._parts.items())
        for ranks, part in parts:
            part._tell(model.restrict(ranks))
        return digest


class Step(NamedTuple):
    """What follows from an agreed point.

    ``model``: a new model to use, if any. ``compete``: all candidates compete again.
    """

    model: GridModel | None = None
    compete: bool = False


class Following:
    """The links of one communicator as they were and as they are.

    Parameters
    ----------
    comm : MPI.Intracomm
        As plain mpi4py has it.
    messages : callable
        Gives the transport for our own messages; it is idle between calls.
    model : GridModel
        The first model, measured or declared; later measurements are compared with it.
    tell : callable
        Writes a line about a decision.
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
        self.news, self._heard = news, news.newest.digest if news.newest else 0.0
        self._better = False
        self.took_s = 0.0
        """Seconds that looks and glances took on this rank."""
        self.look_cost_s = 0.0
        """Seconds that a look takes; equal on all ranks."""
        self.begin(model)

    def begin(self, at_start: GridModel) -> None:
        """Use ``at_start``, and compare with it from now on."""
        self.at_start = self.model = at_start
        # Declared clusters that share a host are a grid that somebody tries on one machine.
        self._has_network = at_start.origin == "measured" or not at_start.grid.splits_hosts
        self.changed: dict[Pair, Found] = {}
        self._waits_since_s: dict[Pair, float] = {}
        self._looked_s, self._owes_look = -math.inf, False
        self._glanced_s = -math.inf
        self._glance_costs_s: dict[tuple[Pair, ...], float] = {}
        self._n_glances, self._patience = 0, 1.0

    @property
    def is_unseen(self) -> bool:
        """Whether nobody looked at the links so far: all is as a file or an earlier job said.

        Never on a grid that is only declared, on one machine.
        """
        return self._has_network and self._looked_s == -math.inf

    def start_from(self, before: GridModel) -> None:
        """Compare with ``before``: our model was taken over after links had changed."""
        self.at_start = before
        self.changed = found_of(self.model, before)

    def say(self) -> Said:
        """What this rank tells the others at the next agreed point."""
        said = Said(self.news.newest, self.news.doubt, self._better)
        self.news.doubt = self._better = False
        return said

    def step(
        self, point: Point, suspicion: int, now_s: float, total_s: float, *, doubt: bool = False
    ) -> Step:
        """What follows from an agreed point. Collective.

        ``suspicion`` and ``doubt`` are those of `Drift`. After a suspicion candidates compete again
        if a look finds nothing, or is not due; a doubt only asks for a look.

        If calls become faster after links had become slower, the first model is used again. If it
        was declared, links may never have been as it says: then those that differ are looked at.
        While links are slower, glances find out when that is over, even if no call uses the link.
        ``now_s`` is of the common clock, ``total_s`` what calls took so far.
        """
        if point.offer is not None and point.offer.digest != self._heard:
            return self._take(point.offer)
        if suspicion < 0 and self.changed:
            if self.at_start.origin == "measured":
                self._tell("faster again: the links count as they did")
                self._owes_look = False
                return self._become(self.at_start, {})
            if now_s - self._looked_s >= GLANCE_EVERY_S * self._patience:
                return self._look(now_s, self.changed, compete=True)
        wanted = bool(suspicion) or self._owes_look or point.doubt or doubt
        if not self._has_network:
            return self._compete(suspicion)
        least_s = max(LOOK_EVERY_S, self.look_cost_s / OVERHEAD_PART)
        may_look = now_s - self._looked_s >= least_s
        if wanted and may_look:
            return self._look(now_s, None, compete=bool(suspicion))
        if suspicion:
            return self._compete(suspicion)
        self._owes_look = wanted
        if point.better and (self.changed or may_look):
            return self._look(now_s, self.changed or None)
        self._glance(now_s, total_s)
        return Step()

    def _compete(self, suspicion: int) -> Step:
        if not suspicion:
            return Step()
        self._tell("calls take another time than they did: all ways compete again")
        self._owes_look = True
        return Step(compete=True)

    def _take(self, offer: Offer) -> Step:
        """Use the model that a related communicator found."""
        self._heard = offer.digest
        if not isinstance(offer.what, GridModel) or offer.what.links == self.model.links:
            return Step()
        self._tell("another communicator found that links changed")
        self.model = offer.what
        self.changed = found_of(self.model, self.at_start)
        return Step(self.at_start if not self.changed else self.model)

    def _become(self, model: GridModel, changed: dict[Pair, Found]) -> Step:
        self.model, self.changed = model, changed
        self._patience = 1.0
        self._heard = self.news.post(model)
        return Step(model)

    def _look(self, now_s: float, only: Collection[Pair] | None, *, compete: bool = False) -> Step:
        """Look at links, ``only`` those of some pairs or all; ``compete`` if nothing is found."""
        began_s = time.monotonic()
        # Compared with the first model: factors of factors would drift.
        found = look_at_links(self._comm, self._messages(), self.at_start, only)
        # In an array: for objects, mpi4py would make a communicator, keeping other threads waiting.
        took = np.array([time.monotonic() - began_s])
        self._comm.Allreduce(MPI.IN_PLACE, took, MPI.MAX)
        took_s = float(took[0])
        self.took_s += time.monotonic() - began_s
        self._looked_s, self._glanced_s, self._owes_look = now_s, now_s, False
        if only is None:
            self.look_cost_s = took_s
        before = self.changed
        for pair, seen in found.items():
            # Windows open by being used: for a while, the link counts for what several flows carry.
            if not seen.waits:
                self._waits_since_s.pop(pair, None)
            elif now_s - self._waits_since_s.setdefault(pair, now_s) < WINDOWS_S:
                found[pair], self._owes_look = seen.opened(), True
            if pair in before and before[pair].gap > CHANGED * seen.gap:
                found[pair] = found[pair].risen()
        changed = {pair: each for pair, each in found.items() if each.changed}
        if changed.keys() == before.keys() and all(
            each.is_like(before[pair]) for pair, each in changed.items()
        ):
            self._patience *= 2  # a glance that reported a better link was wrong
            self._tell("links were looked at, and are what they were")
            return Step(compete=compete)
        names = [cluster.name for cluster in self.at_start.grid.clusters]
        for a, b in sorted(changed.keys() | before.keys()):
            each = found.get((a, b), before.get((a, b)))
            if each is not None:
                latency = f"{each.latency:.2g} times the latency, " if a != b else ""
                where = f"{names[a]} to {names[b]}" if a != b else f"inside {names[a]}"
                rate = each.together_bytes_per_s
                together = f", {format_rate(rate)} together" if 0 < rate < math.inf else ""
                self._tell(f"{where}: {latency}{each.gap:.2g} times the gap{together}")
        return self._become(changed_model(self.at_start, changed) or self.at_start, changed)

    def _glance(self, now_s: float, total_s: float) -> None:
        """If due, send one message each way over links of disjoint pairs of clusters. No exchange.

        A rank that sees a better link says so at the next agreed point.
        """
        every_s = GLANCE_EVERY_S if self.changed else IDLE_GLANCE_EVERY_S
        if now_s - self._glanced_s < every_s * self._patience:
            return
        rounds = rounds_of(self.model, self.changed or None)
        # Of the hosts of a cluster, the slowest and its neighbour; all clusters at once.
        inside = [(a, b) for (a, b), each in self.changed.items() if a == b and each.ends]
        rounds += [inside] if inside else []
        if not rounds:
            return
        before = self.at_start if self.changed else None
        slow = {pair: self.changed[pair].ends for pair in inside}
        budget_s = OVERHEAD_PART * total_s
        first = self._n_glances % len(rounds)
        for pairs in (*rounds[first:], *rounds[:first]):
            glances = [glance_of(self.model, before, pair, slow.get(pair)) for pair in pairs]
            # Each round has its part of the budget: none waits for a more expensive one.
            cost_s = len(rounds) * max(each.expected_s for each in glances)
            spent_s = self._glance_costs_s.get(tuple(pairs), 0.0) + cost_s
            if spent_s <= budget_s:
                break
        else:
            return
        # Unused budget of long ago is not saved up.
        self._glance_costs_s[tuple(pairs)] = max(spent_s, budget_s - cost_s)
        self._n_glances += 1
        self._glanced_s = now_s
        began_s = time.monotonic()
        rank, messages = self._comm.Get_rank(), self._messages()
        self._better |= any(each.is_better(messages, rank, self.model) for each in glances)
        self.took_s += time.monotonic() - began_s
