"""Broadcast that asks before it sends: request, leave, message, on every edge of a tree.

MPI libraries do the same below us for long messages, unless the receive is there already. Ours
always are, so this gains nothing; it is the papers' variant as a plan, to be measured beside the
others, and the one that needs no room at receivers that are late.
"""

from __future__ import annotations

from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.trees import RankTree


def plan_bcast_rendezvous(tree: RankTree, n_units: int, label: str = "") -> Plan:
    """Broadcast ``n_units`` in one piece down ``tree``.

    A rank that has the message asks all its children at once, by its first byte, and sends it to
    each as soon as that one has answered.
    """
    if not n_units:
        return plan_bcast([tree], 0, 1, label)
    message, first, asked = (
        Chunk("output", 0, n_units),
        Chunk("output", 0, 1),
        Chunk("scratch", 0, 1),
    )

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        children = tree.children[rank]
        if rank != tree.root:
            parent = tree.parent[rank]
            ops += [Recv(parent, asked, 0), Send(parent, asked, 0), Recv(parent, message, 1)]
        ops += [Send(child, first, 0) for child in children]
        for place, child in enumerate(children, start=1):
            leave = Chunk("scratch", place, place + 1)
            ops += [Recv(child, leave, 0), Send(child, message, 1, leave)]
        return tuple(ops)

    scratch_units = tuple(1 + len(children) for children in tree.children)
    programs = Programs(len(tree.children), program_of)
    return Plan("bcast", label, n_units, tree.root, programs, scratch_units=scratch_units)
