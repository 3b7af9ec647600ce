"""The messages of an all-to-all plan as arrays: what is priced, without a plan being written.

`tally` reads them from a plan. Each algorithm also has a function that gives the same directly, so
that a choice with hundreds of ranks takes milliseconds. With thousands, the messages of a `Sample`
represent all: functions take its ``weights``, and each message has the number of messages that it
stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridcoll.model.plogp import FloatArray
from gridcoll.plan.dataflow import dataflow
from gridcoll.plan.ops import Recv, Send
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Messages:
    """Messages of a plan whose blocks are one unit: arrays with an entry per message."""

    source: IntArray
    target: IntArray
    """(M,) int array. Ranks. The messages of one source stand in the order of its program."""
    n_blocks: FloatArray
    """(M,) array. How many blocks it carries, so that one tally serves every block size."""
    n_out: FloatArray
    n_in: FloatArray
    n_alike: FloatArray
    """(M,) array. How many like it its source sends, its target gets, and there are in all; 1 but
    in samples."""
    stage: IntArray
    """(M,) int array. 0 for what needs no other message, else one more than the latest stage it
    needs."""
    needs: IntArray
    """(N, 2) int array. Message ``needs[k, 0]`` carries blocks that come with message ``needs[k,
    1]``."""
    one_by_one: bool = False
    """Whether the messages of a source leave one after another, rather than side by side."""


Weights = tuple[float, ...]
"""By cluster, how many ranks each sampled rank stands for; empty for 1."""


def rows_of(
    source: npt.ArrayLike,
    target: npt.ArrayLike,
    n_blocks: npt.ArrayLike = 1,
    n_out: npt.ArrayLike = 1,
    n_in: npt.ArrayLike = 1,
    n_alike: npt.ArrayLike = 1,
) -> FloatArray:
    """Messages, one a row, with all that `Messages` says of them but what needs what."""
    columns = np.broadcast_arrays(source, target, n_blocks, n_out, n_in, n_alike)
    return np.stack(columns, axis=-1, dtype=float).reshape(-1, len(columns))


def messages_of(
    rows: Sequence[FloatArray], needs: Sequence[IntArray] = (), *, one_by_one: bool = False
) -> Messages:
    """Messages of ``rows``, (K, 6) each; of ``needs``, (N, 2), row numbers over all of them."""
    source, target, n_blocks, n_out, n_in, n_alike = np.concatenate([rows_of([], []), *rows]).T
    later, earlier = all_needs = np.concatenate([np.empty((0, 2), int), *needs]).T
    stage = np.zeros(len(source), int)
    while (stage[later] <= stage[earlier]).any():
        np.maximum.at(stage, later, stage[earlier] + 1)
    ends = source.astype(int), target.astype(int)
    return Messages(*ends, n_blocks, n_out, n_in, n_alike, stage, all_needs.T, one_by_one)


def tally(plan: Plan) -> Messages:
    """The messages of ``plan``, written for blocks of one unit."""
    found: list[tuple[int, int, int]] = []
    number: dict[tuple[int, int, int], int] = {}
    comes: list[list[tuple[int, int, int]]] = []
    for rank, program in enumerate(plan.programs):
        flow = dataflow(program)
        carried: list[set[tuple[int, int, int]]] = [set() for _ in program]
        for index, op in enumerate(program):
            if isinstance(op, Send):
                number[rank, op.peer, op.tag] = len(found)
                found.append((rank, op.peer, op.chunk.size))
                comes.append(sorted(carried[index]))
            what = {(op.peer, rank, op.tag)} if isinstance(op, Recv) else carried[index]
            for later in flow.releases[index]:
                carried[later] |= what
    needs = [(k, number[key]) for k, keys in enumerate(comes) for key in keys]
    rows = [rows_of(*np.reshape(found, (-1, 3)).T)]
    return messages_of(rows, [np.array(needs, int).reshape(-1, 2)])


def by_rank(grid: Grid, weights: Weights) -> FloatArray:
    """How many ranks each rank stands for, (P,)."""
    by_cluster = np.array(weights or (1.0,) * len(grid.clusters))
    return np.asarray(by_cluster[list(grid.cluster_of)])


def rows_to_each(
    source: IntArray, targets: IntArray, weight_of: FloatArray | None = None
) -> FloatArray:
    """One block from each of n ranks to each of its row of ``targets``, (n, k)."""
    source = np.broadcast_to(source[:, None], targets.shape)
    if weight_of is None:
        return rows_of(source, targets)
    n_out, n_in = weight_of[targets], weight_of[source]
    return rows_of(source, targets, 1, n_out, n_in, n_out * n_in)


def inside_rows(ranks: Sequence[int], weight_of: FloatArray) -> FloatArray:
    """The direct exchange within a cluster."""
    n, all_ranks = len(ranks), np.array(ranks)
    return rows_to_each(
        all_ranks, all_ranks[(np.arange(n)[:, None] + np.arange(1, n)) % n], weight_of
    )


def table_of(rows: Sequence[tuple[float, ...]]) -> FloatArray:
    """What `rows_of` makes of columns."""
    return np.array(rows, float).reshape(-1, 6)
