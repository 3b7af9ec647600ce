"""A direct exchange of blocks whose sizes only their sender and receiver know.

A choice cannot depend on such sizes, because ranks would disagree. So this is not a candidate but
the one fixed algorithm, and a rank can write only its own program.
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
    """Return the program of ``rank``: block ``j`` of ``send_units[j]`` to rank ``j``, all at once.

    Blocks are consecutive in input and output. An empty block is not sent. ``peers`` are the other
    ranks in the order in which blocks leave, by default from the next rank on. With ``own_message``
    the rank sends its own block to itself, because MPI can copy from datatype to datatype.

    Raises `PlanError` if the rank's block for itself has two different sizes.
    """
    if send_units[rank] != recv_units[rank]:
        raise PlanError(
            f"rank {rank}: {send_units[rank]} units for itself, {recv_units[rank]} from itself"
        )
    n_ranks = len(send_units)
    send_starts = list(accumulate(send_units, initial=0))
    recv_starts = list(accumulate(recv_units, initial=0))
    peers = peers or [(rank + step) % n_ranks for step in range(1, n_ranks)]
    own = [rank] if own_message else []
    ops: list[Op] = []
    for peer in (*peers, *own):
        ops += Messages(peer, LARGEST_MESSAGE).receive(
            Chunk("output", recv_starts[peer], recv_starts[peer + 1])
        )
    for peer in (*peers, *own):
        ops += Messages(peer, LARGEST_MESSAGE).send(
            Chunk("input", send_starts[peer], send_starts[peer + 1])
        )
    if not own_message:
        own_block = Chunk("input", send_starts[rank], send_starts[rank + 1])
        ops.append(Copy(own_block, Chunk("output", recv_starts[rank], recv_starts[rank + 1])))
    return tuple(ops)
