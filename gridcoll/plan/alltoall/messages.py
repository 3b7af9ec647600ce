"""The messages of an all-to-all plan as arrays, from which it is priced.

`tally` reads them from a written plan. Each algorithm also has a function that computes the same
arrays without writing the plan, so that a choice with hundreds of ranks takes milliseconds. With
thousands of ranks, the messages of a `Sample` represent all: these functions take its ``weights``,
and each message has the number of messages that it represents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gridcoll.model.plogp import FloatArray
from gridcoll.plan.dataflow import dataflow
from gridcoll.plan.ops import Recv, Send
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid

IntArray = npt.NDArray[np.int64]


class Messages(Struct, frozen=True):
    """The M messages of a plan whose blocks are one unit, as arrays with an entry per message."""

    source: IntArray
    target: IntArray
    """(M,) int arrays. Ranks. The messages of a source are in the order of its program."""
    n_blocks: FloatArray
    """(M,) array. Blocks in each message. In blocks, one tally serves every block size."""
    n_out: FloatArray
    n_in: FloatArray
    n_represented: FloatArray
    """(M,) arrays. How many messages each message represents at its source, at its target, and in
    all. They are 1 except in samples."""
    stage: IntArray
    """(M,) int array. 0 for a message that needs no other, otherwise one more than the latest stage
    among the messages that it needs."""
    needs: IntArray
    """(N, 2) int array. Message ``needs[k, 0]`` carries blocks that arrive with message ``needs[k,
    1]``."""
    one_by_one: bool = False
    """Whether the messages of a source leave one after another instead of at the same time."""


Weights = tuple[float, ...]
"""By cluster, how many ranks each sampled rank represents; empty if each represents only itself."""


def rows_of(
    source: npt.ArrayLike,
    target: npt.ArrayLike,
    n_blocks: npt.ArrayLike = 1,
    n_out: npt.ArrayLike = 1,
    n_in: npt.ArrayLike = 1,
    n_represented: npt.ArrayLike = 1,
) -> FloatArray:
    """Return rows of messages, (K, 6): the fields of `Messages` up to ``n_represented``."""
    columns = np.broadcast_arrays(source, target, n_blocks, n_out, n_in, n_represented)
    return np.stack(columns, axis=-1, dtype=float).reshape(-1, len(columns))


def messages_of(
    rows: Sequence[FloatArray], needs: Sequence[IntArray] = (), *, one_by_one: bool = False
) -> Messages:
    """Return the messages of all ``rows``, arrays of (K, 6).

    ``needs``, arrays of (N, 2), refer to messages by their row number over all ``rows``.
    """
    source, target, n_blocks, n_out, n_in, n_represented = np.concatenate(
        [rows_of([], []), *rows]
    ).T
    later, earlier = all_needs = np.concatenate([np.empty((0, 2), int), *needs]).T
    stage = np.zeros(len(source), int)
    while (stage[later] <= stage[earlier]).any():
        np.maximum.at(stage, later, stage[earlier] + 1)
    ends = source.astype(int), target.astype(int)
    return Messages(*ends, n_blocks, n_out, n_in, n_represented, stage, all_needs.T, one_by_one)


def tally(plan: Plan) -> Messages:
    """Return the messages of ``plan``, which was written for blocks of one unit."""
    sent: list[tuple[int, int, int]] = []
    number: dict[tuple[int, int, int], int] = {}
    needed_keys: list[list[tuple[int, int, int]]] = []
    for rank, program in enumerate(plan.programs):
        flow = dataflow(program)
        carried: list[set[tuple[int, int, int]]] = [set() for _ in program]
        for index, op in enumerate(program):
            if isinstance(op, Send):
                number[rank, op.peer, op.tag] = len(sent)
                sent.append((rank, op.peer, op.chunk.size))
                needed_keys.append(sorted(carried[index]))
            brought = {(op.peer, rank, op.tag)} if isinstance(op, Recv) else carried[index]
            for later in flow.releases[index]:
                carried[later] |= brought
    needs = [(k, number[key]) for k, keys in enumerate(needed_keys) for key in keys]
    rows = [rows_of(*np.reshape(sent, (-1, 3)).T)]
    return messages_of(rows, [np.array(needs, int).reshape(-1, 2)])


def by_rank(grid: Grid, weights: Weights) -> FloatArray:
    """Return how many ranks each rank represents, (P,)."""
    by_cluster = np.array(weights or (1.0,) * len(grid.clusters))
    return np.asarray(by_cluster[list(grid.cluster_of)])


def rows_to_each(
    source: IntArray, targets: IntArray, weight_of: FloatArray | None = None
) -> FloatArray:
    """Return rows for one block from each of n ranks to each target in its row of ``targets``.

    ``targets`` is (n, k).
    """
    source = np.broadcast_to(source[:, None], targets.shape)
    if weight_of is None:
        return rows_of(source, targets)
    n_out, n_in = weight_of[targets], weight_of[source]
    return rows_of(source, targets, 1, n_out, n_in, n_out * n_in)


def inside_rows(ranks: Sequence[int], weight_of: FloatArray) -> FloatArray:
    """Return rows for the direct exchange among ``ranks``, the members of a cluster."""
    n, all_ranks = len(ranks), np.array(ranks)
    return rows_to_each(
        all_ranks, all_ranks[(np.arange(n)[:, None] + np.arange(1, n)) % n], weight_of
    )


def rows_table(rows: Sequence[tuple[float, ...]]) -> FloatArray:
    """Return a list of rows as the array that `rows_of` returns."""
    return np.array(rows, float).reshape(-1, 6)
