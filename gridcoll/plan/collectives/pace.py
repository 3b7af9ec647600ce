"""Sending one message after another, no faster than an interface can.

What several flows are given at once they carry side by side: what goes first is not there first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.ops import Op, Send
from gridcoll.plan.plan import Program

PACED_BYTES = 8 << 10
"""Shorter blocks leave at once: by the time that order matters, all of a dozen are under way."""

PACE = 0.9
"""Of the gap: a wire that idles loses more than order gains."""


@dataclass(frozen=True)
class Pace:
    """How fast a rank sends: no faster than its interface, so that messages leave one by one.

    Attributes
    ----------
    unit_s : float
        How long the interface is busy with a unit.
    beside : frozenset of int
        Ranks on the sender's own host: no interface is busy with what they get.
    """

    unit_s: float
    beside: frozenset[int] = frozenset()


def pace_of(model: GridModel, sender: int, n_bytes: int, *, all_send: bool = False) -> Pace | None:
    """How a rank keeps its sends apart; None where they may as well leave at once.

    On one cluster all ways are as long, and no order is better than another. Where ``all_send``,
    ranks of one host have a part of its interface each.
    """
    if model.n_clusters == 1 or n_bytes < PACED_BYTES:
        return None
    home, hosts = model.grid.cluster_of[sender], model.grid.hosts
    beside = frozenset(r for r in model.grid.clusters[home].ranks if hosts[r] == hosts[sender])
    share = len(beside) if all_send else 1
    return Pace(share * PACE * float(model.gap_s(n_bytes)[home, home]) / n_bytes, beside)


def one_by_one(program: Program, pace: Pace) -> Program:
    """``program``, whose sends start no sooner than those before them have left."""
    ops: list[Op] = []
    n_sent = 0
    for op in program:
        if isinstance(op, Send):
            ops.append(replace(op, due_us=int(n_sent * pace.unit_s * 1e6)))
            n_sent += 0 if op.peer in pace.beside else op.chunk.size
        else:
            ops.append(op)
    return tuple(ops)
