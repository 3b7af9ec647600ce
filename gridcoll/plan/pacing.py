"""Pacing: sending one message after another, no faster than an interface or a link carries them.

Messages that are sent at the same time share the bandwidth, so that the first one arrives late.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.constants import LINK_PACE, PACE, SHORTEST_PACED_BYTES, THIN_LINK
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.ops import Op, Send
from gridcoll.plan.plan import Plan, Program, Programs


class Pace(Struct, frozen=True):
    """How fast a rank sends: no faster than its interface, so that messages leave one by one."""

    unit_s: float
    """How long the interface is busy with a unit."""
    beside: frozenset[int] = frozenset()
    """Ranks on the sender's own host: messages to them do not use the interface."""


def pace_of(model: GridModel, sender: int, n_bytes: int, *, all_send: bool = False) -> Pace | None:
    """Return the pace of a rank's sends; None if pacing gains nothing.

    Inside one cluster all latencies are alike, so no order is better than another. With
    ``all_send``, the ranks of a host share its interface.
    """
    if model.n_clusters == 1 or n_bytes < SHORTEST_PACED_BYTES:
        return None
    home, hosts = model.grid.cluster_of[sender], model.grid.hosts
    beside = frozenset(r for r in model.grid.clusters[home].ranks if hosts[r] == hosts[sender])
    share = len(beside) if all_send else 1
    return Pace(share * PACE * float(model.gap_s(n_bytes)[home, home]) / n_bytes, beside)


def one_by_one(program: Program, pace: Pace, *, beside_at_once: bool = False) -> Program:
    """Return ``program`` with each send due when those before it should have left.

    With ``beside_at_once``, sends that do not use the interface are due at once.
    """
    ops: list[Op] = []
    n_sent = 0
    for op in program:
        if isinstance(op, Send):
            is_beside = op.peer in pace.beside
            due_s = 0.0 if is_beside and beside_at_once else n_sent * pace.unit_s
            ops.append(replace(op, due_us=int(due_s * 1e6)))
            n_sent += 0 if is_beside else op.chunk.size
        else:
            ops.append(op)
    return tuple(ops)


def paced_by_links(
    plan: Plan, model: GridModel, unit_bytes: float = 1.0, *, all_send: bool = False
) -> Plan:
    """Return ``plan`` with sends to other clusters no faster than thin links carry them.

    Faster sends would fill the queue of the link's router, which then drops packets. Forwarded
    messages leave after their due time anyway, because the first sends set the pace for all later
    ones. With ``all_send``, the ranks of a cluster share its links.
    """
    cluster_of, thin = model.grid.cluster_of, thin_links(model)
    if not thin.any():
        return plan

    def program_of(rank: int) -> Program:
        home = cluster_of[rank]
        n_senders = len(model.grid.clusters[home]) if all_send else 1
        units_s = LINK_PACE * n_senders * unit_bytes / model.link_bytes_per_s[home]
        ops: list[Op] = []
        n_sent = [0] * model.n_clusters
        for op in plan.programs[rank]:
            if isinstance(op, Send) and thin[home, there := cluster_of[op.peer]]:
                due_s = n_sent[there] * units_s[there] - model.latency_s[home, there]
                ops.append(replace(op, due_us=max(int(due_s * 1e6), 0)))
                n_sent[there] += op.chunk.size
            else:
                ops.append(op)
        return tuple(ops)

    return replace(plan, programs=Programs(len(plan.programs), program_of))


def root_ahead_s(model: GridModel, cluster: int) -> float:
    """Return by how much a root in ``cluster`` may be ahead of the pace of its trees, in seconds:
    the latency to the nearest other cluster.
    """
    return float(np.delete(model.latency_s[cluster], cluster).min(initial=np.inf))


def thin_links(model: GridModel) -> np.ndarray:
    """Return which links carry less than an interface of the sender's cluster, (C, C) bool.

    Links inside clusters are not thin.
    """
    interfaces = np.diagonal(model.flow_bytes_per_s)
    return np.asarray(model.link_bytes_per_s < THIN_LINK * interfaces[:, None])
