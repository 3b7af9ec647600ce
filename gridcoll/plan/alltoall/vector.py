"""A direct exchange of blocks whose sizes only their sender and receiver know.

No choice depends on such sizes: ranks would disagree. So this is no candidate but one fixed way,
and only this rank's share of it can be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from gridcoll.errors import PlanError
from gridcoll.plan.blocks import LARGEST_MESSAGE, Messages
from gridcoll.plan.ops import Chunk, Copy, Op
from gridcoll.plan.plan import Program


def vector_program(
    rank: int,
    send_units: Sequence[int],
    recv_units: Sequence[int],
    peers: Sequence[int] = (),
    *,
    own_message: bool = False,
) -> Program:
    """What ``rank`` does: block ``j`` of ``send_units[j]`` to rank ``j``, all at once.

    Blocks stand one after another in input and output; empty ones send nothing. ``peers`` are the
    other ranks in the order in which blocks leave; by default from the next rank on. With
    ``own_message`` the rank sends its own block to itself: MPI can copy from datatype to datatype.

    Raises `PlanError` when the rank's block for itself has two sizes.
    """
    if send_units[rank] != recv_units[rank]:
        raise PlanError(
            f"rank {rank}: {send_units[rank]} units for itself, {recv_units[rank]} from itself"
        )
    n_ranks = len(send_units)
    out = list(accumulate(send_units, initial=0))
    into = list(accumulate(recv_units, initial=0))
    peers = peers or [(rank + step) % n_ranks for step in range(1, n_ranks)]
    own = [rank] if own_message else []
    ops: list[Op] = []
    for peer in (*peers, *own):
        ops += Messages(peer, LARGEST_MESSAGE).receive(Chunk("output", into[peer], into[peer + 1]))
    for peer in (*peers, *own):
        ops += Messages(peer, LARGEST_MESSAGE).send(Chunk("input", out[peer], out[peer + 1]))
    if not own_message:
        mine = Chunk("input", out[rank], out[rank + 1])
        ops.append(Copy(mine, Chunk("output", into[rank], into[rank + 1])))
    return tuple(ops)
