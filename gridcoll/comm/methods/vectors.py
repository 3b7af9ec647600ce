"""When ranks exchange the counts of `Alltoallv` and `Alltoallw`.

An exchange costs about a latency of the longest link; the grid decides whether it can pay at all.
Where it can, ranks exchange counts at every call as long as that leads to a faster way now and
then. After some calls without gain, more and more calls are made without an exchange. The next
exchange also carries each rank's largest call in between: if it was larger than any without gain,
ranks exchange at every call again. All this depends on exchanged values only, so ranks never
disagree.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from gridcoll.comm.context import Context
from gridcoll.comm.decisions import PLAIN, Decisions
from gridcoll.comm.methods.moving import move
from gridcoll.comm.methods.typed_calls import TypedCalls
from gridcoll.plan import Dataflow, dataflow
from gridcoll.plan.alltoall.direct import far_order, farthest_first_peers
from gridcoll.plan.alltoall.unequal import Counts
from gridcoll.plan.alltoall.unequal_choice import asked_for, can_gain, choose_unequal
from gridcoll.plan.alltoall.vector import vector_program

PATIENCE = 4
"""After so many exchanges in a row without gain, some calls are made without one."""

MOST_WITHOUT = 64
"""Most calls in a row without an exchange, which then costs 1/65 of a latency per call."""

N_KEPT = 16
"""Counts whose plan is kept, per communicator."""


_Direct = tuple[tuple[int, ...], tuple[int, ...], bool]


class Vectors:
    """The counts of one communicator's calls."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self._forced = asked_for(decisions.settings.algorithms.get("alltoall", ""))
        self._may_gain = decisions.model.n_clusters > 1 and (
            self._forced not in ("", "direct")
            or (not self._forced and not decisions.settings.force and can_gain(decisions.model))
        )
        self._n_quiet = self._n_without = self._missed = self._idle = 0
        self._kept: OrderedDict[bytes, Dataflow | None] = OrderedDict()
        self._direct: OrderedDict[_Direct, Dataflow] = OrderedDict()
        self.typed_calls = TypedCalls()

    @property
    def tells(self) -> bool:
        """Whether ranks exchange counts at the next call."""
        return self._may_gain and self._n_without == 0

    def direct(
        self, out: tuple[int, ...], into: tuple[int, ...], *, own_message: bool = False
    ) -> Dataflow:
        """This rank's share of the direct exchange of so many bytes to and from each rank.

        With ``own_message``, its own block is a message, too.
        """
        key = out, into, own_message
        if key in self._direct:
            self._direct.move_to_end(key)
            return self._direct[key]
        rank, model = self.decisions.rank, self.decisions.model
        clusters = [cluster.ranks for cluster in model.grid.clusters]
        peers = farthest_first_peers(clusters, far_order(model), rank)
        flow = self._direct[key] = dataflow(
            vector_program(rank, out, into, peers, own_message=own_message)
        )
        if len(self._direct) > N_KEPT:
            self._direct.popitem(last=False)
        return flow

    def note(self, n_bytes: int) -> None:
        """Enter a call without an exchange, with so many bytes from this rank."""
        if self._n_without:
            self._n_without -= 1
            self._missed = max(self._missed, n_bytes)

    def flow(self, context: Context, sizes: tuple[list[int], list[int]] | None) -> Dataflow | None:
        """This rank's share of a plan that is faster than the direct way; None if there is none.
        Collective.

        ``sizes`` are the bytes to and from each rank; None where this rank's arguments are wrong.
        Then, and where the two ends of a block differ, nothing is planned on any rank.
        """
        n = context.model.grid.n_ranks
        out, into = sizes or ([-1] * n, [-1] * n)
        told = _tell(context, np.array([*out, *into, self._missed], np.int64))
        counts, missed = told[:, :n], int(told[:, -1].max())
        self._missed = 0
        fits = bool((counts >= 0).all()) and np.array_equal(counts.T, told[:, n:-1])
        flow = self._planned(context, counts) if fits else None
        largest = int(counts.sum(axis=1).max())
        if flow is not None or missed > self._idle or self._forced:
            self._n_quiet = 0
        else:
            self._n_quiet += 1
            self._n_without = min(1 << max(self._n_quiet - PATIENCE, 0), MOST_WITHOUT)
            self._n_without -= self._n_quiet < PATIENCE
        self._idle = max(self._idle, largest) if flow is None else self._idle
        return flow

    def _planned(self, context: Context, counts: Counts) -> Dataflow | None:
        key = counts.tobytes()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        winner = choose_unequal(context.model, counts, self._forced).winner
        flow = None
        if winner.name != "direct" and winner.build is not None:
            flow = dataflow(winner.build(0).programs[context.rank])
        self._kept[key] = flow
        if len(self._kept) > N_KEPT:
            self._kept.popitem(last=False)
        return flow


def _tell(context: Context, row: Counts) -> Counts:
    """Every rank's ``row``, on all; in one crossing where a plan does it. Collective."""
    n = context.model.grid.n_ranks
    told = np.empty((n, len(row)), np.int64)
    flow = context.decisions.decide("allgather", row.nbytes, 0, semantics=PLAIN).flow
    if flow is None:
        context.comm.Allgather(row, told)
    else:
        move(context, flow, row.data.cast("B"), told.reshape(-1).data.cast("B"))
    return told
