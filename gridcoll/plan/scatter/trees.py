"""Scatter: every rank gets its block from the root, directly or down a tree.

Its time is that of the messages to subtrees, which leave the root's interface one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property, partial
from itertools import zip_longest

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.constants import (
    EAGER_PIECES_BYTES,
    LEAST_SAVED,
    MOST_EAGER_PIECES,
)
from gridcoll.model.closed_forms import SCATTER_COSTS
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.blocks import LARGEST_MESSAGE, BlockLayout, Messages, copy_runs
from gridcoll.plan.ops import Chunk, Copy, Op
from gridcoll.plan.pacing import Pace, one_by_one, pace_of, thin_links
from gridcoll.plan.paths import along_paths, nearest_paths
from gridcoll.plan.plan import Plan, Program, Programs, scratch_of_each
from gridcoll.plan.registry import ANY_NUMBER, Algorithm, Candidate, alias, register
from gridcoll.plan.statements import Statement, moved, state
from gridcoll.plan.trees import GridTree, RankTree
from gridcoll.topology.units import format_size


def price_bulk(model: GridModel, subtrees: Subtrees, n_bytes: int, piece_bytes: int = 0) -> float:
    """Return the seconds until the last rank has its block, with one message per subtree.

    For one cluster, this is Table 2 of paper 003. It walks over the ranks, O(P). With
    ``piece_bytes``, longer messages are sent in pieces of at most this length.
    """
    size, cluster_of = subtrees.size, model.grid.cluster_of
    carried = np.array(sorted(set(size)))
    at = {int(count): k for k, count in enumerate(carried)}
    carried_bytes = carried.astype(float) * n_bytes
    everywhere = range(model.n_clusters)
    host_of, inside = model.grid.host_of, (everywhere, everywhere)
    gaps, one_way = model.gap_and_one_way_s(np.zeros(1), inside)
    host_gap_s, host_s = gaps[:, 0].tolist(), one_way[:, 0].tolist()
    gap_s, inside_s = _in_pieces(model, carried_bytes, piece_bytes, inside)
    ways = sorted(_crossed(subtrees.tree, cluster_of))
    way_of = {way: k for k, way in enumerate(ways)}
    senders, receivers = [i for i, _ in ways], [j for _, j in ways]
    _, outward_s = _in_pieces(model, carried_bytes, piece_bytes, (senders, receivers))
    shared_s = _shared_s(model, senders, receivers, carried_bytes).tolist()
    uplink_s = (carried_bytes / model.uplinks[:, None]).tolist()
    arrived_s, uplink_free_s = [0.0] * len(size), [0.0] * len(everywhere)
    link_free_s, port_free_s = [0.0] * len(ways), [0.0] * len(set(host_of))
    for rank in subtrees.order:
        i, host = cluster_of[rank], host_of[rank]
        free_s, port_s = arrived_s[rank], max(arrived_s[rank], port_free_s[host])
        for child in subtrees.tree.children[rank]:
            j, k = cluster_of[child], at[size[child]]
            if host == host_of[child]:
                arrived_s[child] = free_s + host_s[j]
                free_s += host_gap_s[j]
                continue
            if i == j:
                arrived_s[child] = port_s + inside_s[j][k]
            else:
                way = way_of[i, j]
                leaves_s = max(port_s, uplink_free_s[i])
                uplink_free_s[i] = leaves_s + uplink_s[i][k]
                enters_s = max(leaves_s, link_free_s[way])
                link_free_s[way] = enters_s + shared_s[way][k]
                arrived_s[child] = enters_s + outward_s[way][k]
            port_s += gap_s[i][k]
        port_free_s[host] = port_s
    return max(arrived_s)


def _crossed(tree: RankTree, cluster_of: Sequence[int]) -> set[tuple[int, int]]:
    """Return the pairs of clusters between which messages of ``tree`` pass."""
    ends = (
        (cluster_of[rank], cluster_of[child])
        for rank, children in enumerate(tree.children)
        for child in children
    )
    return {(i, j) for i, j in ends if i != j}


def _in_pieces(
    model: GridModel,
    n_bytes: FloatArray,
    piece_bytes: int,
    links: tuple[Sequence[int], Sequence[int]],
) -> tuple[list[list[float]], list[list[float]]]:
    """Return gaps and one-way times of messages of ``n_bytes``, whose pieces follow one another."""
    n_pieces = np.ceil(n_bytes / piece_bytes) if piece_bytes else np.ones_like(n_bytes)
    gaps, one_way = model.gap_and_one_way_s(n_bytes / n_pieces, links)
    return (n_pieces * gaps).tolist(), ((n_pieces - 1) * gaps + one_way).tolist()


def price_pipelined(model: GridModel, root: int, order: list[int], n_bytes: int) -> float:
    """Return the seconds for a chain inside every cluster with a message per block.

    The block with the longest path leaves first. The root serves the other clusters in this
    ``order``, then its own.
    """
    home = model.grid.cluster_of[root]
    gaps, one_way = model.gap_and_one_way_s(np.array([float(n_bytes), 0.0]))
    gaps, one_way, inside_host = gaps[..., 0], one_way[..., 0], one_way[..., 1]
    everywhere = range(model.n_clusters)
    from_home = [home] * model.n_clusters
    shared = _shared_s(model, from_home, everywhere, np.array([float(n_bytes)]))[..., 0]
    port_s = float(gaps[home, home])
    out_s = max(port_s, n_bytes / float(model.uplinks[home]))
    n_sent, latest_s = 0, 0.0
    for turn, cluster in enumerate(order):
        n_blocks = len(model.grid.clusters[cluster])
        pace_s = max(port_s, float(gaps[home, cluster]), float(shared[cluster]))
        n_sent += n_blocks
        # While a slow link is busy, messages to other clusters are sent. A fast link ends after all
        # messages before it.
        last_s = max(turn * out_s + (n_blocks - 1) * pace_s, (n_sent - 1) * out_s)
        n_hops = len(model.grid.clusters[cluster].nodes) - 1
        hops_s = n_hops * float(one_way[cluster, cluster])
        hops_s += (n_blocks - 1 - n_hops) * float(inside_host[cluster, cluster])
        first_s = last_s - (n_blocks - 1) * pace_s
        latest_s = max(latest_s, max(last_s, first_s + hops_s) + float(one_way[home, cluster]))
    own, host_of = model.grid.clusters[home], model.grid.host_of
    n_away = sum(host_of[rank] != host_of[root] for rank in own.ranks)
    n_hops = len(own.nodes) - 1
    own_s = n_hops * float(one_way[home, home]) + (len(own) - 1 - n_hops) * float(
        inside_host[home, home]
    )
    if n_away:
        last_s = (n_away - 1) * port_s + float(one_way[home, home])
        own_s = n_sent * port_s + max(own_s, last_s)
    return max(latest_s, own_s)


def _shared_s(
    model: GridModel, senders: Sequence[int], receivers: Sequence[int], n_bytes: np.ndarray
) -> np.ndarray:
    """Return the time on the bandwidth that all flows between two clusters share, (W, S)."""
    if not model.aggregate_bytes_per_s:
        return np.zeros((len(senders), len(n_bytes)))
    links = model.link_bytes_per_s[list(senders), list(receivers)]
    return np.asarray(n_bytes / np.minimum(links, model.uplinks[list(receivers)])[:, None])


state(
    Statement(
        "scatter",
        before=lambda plan, rank: (
            {"input": [(plan.n_ranks * plan.n_units, moved(rank))]} if rank == plan.root else {}
        ),
        after=lambda plan, rank: {
            "output": [(plan.n_units, moved(plan.root, rank * plan.n_units))]
        },
    )
)


class Subtrees(Struct, frozen=True, dict=True):
    """A tree, and an order of its ranks in which every subtree is consecutive, its root first."""

    tree: RankTree

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All ranks. Children are in rank order, so that subtrees of adjacent ranks have adjacent
        blocks.
        """
        order, left = [], [self.tree.root]
        while left:
            rank = left.pop()
            order.append(rank)
            left += sorted(self.tree.children[rank], reverse=True)
        return tuple(order)

    @cached_property
    def place(self) -> tuple[int, ...]:
        """``place[rank]`` in `order`."""
        place = [0] * len(self.order)
        for at, rank in enumerate(self.order):
            place[rank] = at
        return tuple(place)

    @cached_property
    def size(self) -> tuple[int, ...]:
        """``size[rank]``: number of ranks in the subtree of ``rank``."""
        size = [1] * len(self.order)
        for rank in reversed(self.order):
            if rank != self.tree.root:
                size[self.tree.parent[rank]] += size[rank]
        return tuple(size)

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the subtree of ``rank``."""
        return self.order[self.place[rank] : self.place[rank] + self.size[rank]]


def plan_scatter(
    tree: RankTree,
    n_units: int,
    *,
    pipelined: bool = False,
    pace: Pace | None = None,
    longest: int = LARGEST_MESSAGE,
    label: str = "",
) -> Plan:
    """Return a scatter of blocks of ``n_units`` down ``tree``.

    A child gets all blocks of its subtree in one message, or in several if this has more than
    ``longest`` units. If ``pipelined``, every block is a message of its own, which is forwarded at
    once; those with the longest path leave first. Without a ``pace``, the root starts all sends at
    once.
    """
    subtrees = Subtrees(tree)
    write = _pipelined if pipelined else partial(_bulk, longest=longest)
    n_ranks = len(tree.children)

    def program_of(rank: int) -> Program:
        ops = tuple(write(subtrees, rank, n_units)) if n_units else ()
        return one_by_one(ops, pace) if pace and rank == tree.root else ops

    programs = Programs(n_ranks, program_of)
    scratch = scratch_of_each(programs)
    return Plan("scatter", label, n_units, tree.root, programs, scratch)


def _layout_of(subtrees: Subtrees, rank: int, n_units: int) -> BlockLayout:
    """Return where ``rank`` stores the blocks that it forwards."""
    sizes = (n_units,) * len(subtrees.order)
    if rank == subtrees.tree.root:
        return BlockLayout("input", range(len(sizes)), sizes)
    return BlockLayout("scratch", subtrees.of(rank), sizes)


def _bulk(subtrees: Subtrees, rank: int, n_units: int, longest: int) -> list[Op]:
    tree, ours = subtrees.tree, subtrees.of(rank)
    here, own = _layout_of(subtrees, rank, n_units), Chunk("output", 0, n_units)
    if not tree.children[rank] and rank != tree.root:
        return Messages(tree.parent[rank], longest).receive(own)
    packed = BlockLayout("scratch", ours, here.sizes)
    ops: list[Op] = []
    if rank != tree.root:
        (whole,) = here.runs(ours)
        ops += Messages(tree.parent[rank], longest).receive(whole)
    for child in tree.children[rank]:
        theirs = subtrees.of(child)
        runs = here.runs(theirs)
        if len(runs) > 1:
            ops += copy_runs(theirs, here, packed)
            runs = packed.runs(theirs)
        ops += Messages(child, longest).send(runs[0])
    ops.append(Copy(here.block(rank), own))
    return ops


def _pipelined(subtrees: Subtrees, rank: int, n_units: int) -> list[Op]:
    tree = subtrees.tree
    here, own = _layout_of(subtrees, rank, n_units), Chunk("output", 0, n_units)
    to_child = {child: Messages(child) for child in tree.children[rank]}
    towards = {
        other: to_child[child] for child in tree.children[rank] for other in subtrees.of(child)
    }
    if rank == tree.root:
        sends = [
            op
            for child in tree.children[rank]
            for other in reversed(subtrees.of(child))
            for op in towards[other].send(here.block(other))
        ]
        return [*sends, Copy(here.block(rank), own)]
    ops: list[Op] = []
    from_parent = Messages(tree.parent[rank])
    for other in reversed(subtrees.of(rank)[1:]):
        ops += from_parent.receive(here.block(other))
        ops += towards[other].send(here.block(other))
    return [*ops, *from_parent.receive(own)]


def serve_blocks(
    root: int, order: Sequence[int], starts: Sequence[int], sizes: Sequence[int]
) -> Program:
    """Return the program of the root for blocks whose sizes only it and their receivers know.

    Every block goes directly to its rank, in this ``order``, since a relay would not know its size.
    The block of a rank begins at ``starts[rank]`` in the root's input.
    """
    ops: list[Op] = []
    for rank in order:
        block = Chunk("input", starts[rank], starts[rank] + sizes[rank])
        ops += Messages(rank).send(block)
    if sizes[root]:
        own = Chunk("input", starts[root], starts[root] + sizes[root])
        ops.append(Copy(own, Chunk("output", 0, own.size)))
    return tuple(ops)


def take_block(root: int, n_units: int) -> Program:
    """Return the program of another rank for such a scatter. Its block has ``n_units``."""
    return tuple(Messages(root).receive(Chunk("output", 0, n_units)))


PlanTransform = Callable[[Plan, str], Plan]
"""Turns the plan of a scatter, with a label, into the plan of the collective."""


def serving_order(model: GridModel, root: int, n_bytes: int) -> list[int]:
    """Return the other clusters in the order in which the root serves them: farthest first."""
    home = model.grid.cluster_of[root]
    _, one_way = model.gap_and_one_way_s(np.array([float(n_bytes)]))
    others = [c for c in range(model.n_clusters) if c != home]
    return sorted(others, key=lambda c: (-float(one_way[home, c, 0]), c))


def serving_ranks(model: GridModel, root: int, n_bytes: int, *, in_turn: bool = False) -> list[int]:
    """Return the other ranks in the order in which a root sends to each of them directly.

    If ``in_turn``, this is one rank of every other cluster, then the next of each, so that thin
    links are busy at the same time. The root's own cluster always comes last.
    """
    home = model.grid.cluster_of[root]
    clusters = [model.grid.clusters[c].ranks for c in serving_order(model, root, n_bytes)]
    if in_turn:
        turns = zip_longest(*clusters)
        clusters = [tuple(rank for rank in turn if rank is not None) for turn in turns]
    own = tuple(rank for rank in model.grid.clusters[home].ranks if rank != root)
    return [rank for ranks in (*clusters, own) for rank in ranks]


def _flat_tree(model: GridModel, n_bytes: int, root: int, in_turn: bool) -> RankTree:
    children: list[tuple[int, ...]] = [()] * model.grid.n_ranks
    children[root] = tuple(serving_ranks(model, root, n_bytes, in_turn=in_turn))
    return RankTree(root, tuple(children))


def _cluster_tree(shape: str, model: GridModel, n_bytes: int, root: int) -> RankTree:
    """Return a tree from the root to the coordinators of other clusters, with ``shape`` inside."""
    n, home = model.n_clusters, model.grid.cluster_of[root]
    transfers = tuple((home, c) for c in serving_order(model, root, n_bytes))
    return GridTree(root, transfers, (shape,) * n, (0,) * n).expand(model.grid)


def _flat(model: GridModel, n_bytes: int, root: int, transform: PlanTransform) -> list[Candidate]:
    """Return scatters directly from the root to each rank, all at once."""
    return _direct("flat", "every block by itself", model, n_bytes, root, transform)


def uneven(model: GridModel, n_bytes: int, root: int, transform: PlanTransform) -> list[Candidate]:
    """Return the same for block sizes that only the root knows; it also decides whether to pace."""
    label = "every block by itself; long ones one after another, unless flat is asked for"
    # Receivers do not know the sizes, so they could not tell the number of pieces.
    return _direct("flat", label, model, n_bytes, root, transform, in_pieces=False)


def _paced(model: GridModel, n_bytes: int, root: int, transform: PlanTransform) -> list[Candidate]:
    """Return scatters directly from the root to each rank, one block after another."""
    pace = pace_of(model, root, n_bytes)
    if pace is None:
        return []
    return _direct("rate-paced", "one block after another", model, n_bytes, root, transform, pace)


def _direct(
    name: str,
    label: str,
    model: GridModel,
    n_bytes: int,
    root: int,
    transform: PlanTransform,
    pace: Pace | None = None,
    *,
    in_pieces: bool = True,
) -> list[Candidate]:
    orders = [(False, "those with the longest way first")]
    if model.n_clusters > 2:
        orders.append((True, "clusters in turn"))
    found = []
    for in_turn, order in orders:
        tree = _flat_tree(model, n_bytes, root, in_turn)
        variants = _in_bulk(name, f"{label}, {order}", model, n_bytes, tree, transform, pace)
        found += variants if in_pieces else variants[:1]
    return found


def _by_cluster(
    name: str,
    label: str,
    shape: str,
    model: GridModel,
    n_bytes: int,
    root: int,
    transform: PlanTransform,
) -> list[Candidate]:
    """Return scatters with a message per cluster, and ``shape`` inside.

    Long messages leave one by one. If all left at once, all would arrive at the end, and would only
    then be forwarded inside clusters.
    """
    tree, pace = _cluster_tree(shape, model, n_bytes, root), pace_of(model, root, n_bytes)
    return _in_bulk(name, f"a message per cluster, {label}", model, n_bytes, tree, transform, pace)


def _in_bulk(
    name: str,
    label: str,
    model: GridModel,
    n_bytes: int,
    tree: RankTree,
    transform: PlanTransform,
    pace: Pace | None = None,
) -> list[Candidate]:
    """Return a candidate with whole messages, and one in pieces if that is predicted faster.

    Pieces are short enough to need no rendezvous.
    """
    subtrees = Subtrees(tree)
    whole_s = price_bulk(model, subtrees, n_bytes)
    found = [_candidate(name, label, tree, whole_s, transform, pace=pace)]
    longest = n_bytes * max((subtrees.size[child] for child in tree.children[tree.root]), default=0)
    pieces = [p for p in EAGER_PIECES_BYTES if p < longest <= MOST_EAGER_PIECES * p]
    cut_s = [price_bulk(model, subtrees, n_bytes, piece) for piece in pieces]
    if cut_s and min(cut_s) < (1 - LEAST_SAVED) * whole_s:
        piece = pieces[cut_s.index(min(cut_s))]
        how = f"{label}, in pieces of {format_size(piece)}"
        fraction = Fraction(piece, n_bytes)
        found.append(
            _candidate(name, how, tree, min(cut_s), transform, pace=pace, fraction=fraction)
        )
    return found


def _pipelined_chain(
    model: GridModel, n_bytes: int, root: int, transform: PlanTransform
) -> list[Candidate]:
    tree = _cluster_tree("chain", model, n_bytes, root)
    predicted_s = price_pipelined(model, root, serving_order(model, root, n_bytes), n_bytes)
    label = "block after block, through every cluster from rank to rank"
    home = model.grid.cluster_of[root]
    # A thin link is always busy only if its blocks need not wait for those of other links.
    pace = None if thin_links(model)[home].any() else pace_of(model, root, n_bytes)
    return [
        _candidate(
            "pipelined-chain", label, tree, predicted_s, transform, pace=pace, pipelined=True
        )
    ]


def _candidate(
    name: str,
    label: str,
    tree: RankTree,
    predicted_s: float,
    transform: PlanTransform,
    *,
    pace: Pace | None = None,
    pipelined: bool = False,
    fraction: Fraction | None = None,
) -> Candidate:
    """Return a candidate. With ``fraction``, messages have at most this part of a block."""
    full_label = f"{name}: {label}"

    def build(n_units: int) -> Plan:
        longest = max(math.ceil(fraction * n_units), 1) if fraction else LARGEST_MESSAGE
        plan = plan_scatter(
            tree, n_units, pipelined=pipelined, pace=pace, longest=longest, label=full_label
        )
        return transform(plan, full_label)

    return Candidate(name, label, predicted_s, build)


def _leaders(
    model: GridModel, n_bytes: int, root: int, transform: PlanTransform
) -> list[Candidate]:
    """Return none unless there are messages both inside clusters and between clusters.

    If clusters are nearer over others, also return scatters that take these ways.
    """
    label, found = "handed out by its coordinator", []
    if 1 < model.n_clusters < model.grid.n_ranks:
        found += _by_cluster("leaders", label, "flat", model, n_bytes, root, transform)
    transfers = _nearest_transfers(model, n_bytes, root)
    if transfers:
        n = model.n_clusters
        tree = GridTree(root, transfers, ("flat",) * n, (0,) * n).expand(model.grid)
        label = f"a message per cluster, over nearer clusters, {label}"
        found += _in_bulk("leaders", label, model, n_bytes, tree, transform)
    return found


def _nearest_transfers(model: GridModel, n_bytes: int, root: int) -> tuple[tuple[int, int], ...]:
    """Return transfers along the shortest paths from the root's cluster, to the farthest one first.

    Return nothing if all of them are direct.
    """
    home = model.grid.cluster_of[root]
    one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))[1]
    paths = nearest_paths(one_way_s[..., 0])
    if not paths or set(paths[home]) == {home}:
        return ()
    path_s = along_paths(paths, one_way_s, np.add)[home, :, 0]
    farthest_first = np.argsort(-path_s, kind="stable").tolist()
    return tuple((paths[home][c], c) for c in farthest_first if c != home)


class Strategy(Struct, frozen=True):
    """A strategy to scatter, which becomes an algorithm for scatter and one for gather.

    With more than ``max_clusters`` clusters it is tried only if it is asked for.
    """

    name: str
    good_for: str
    source: str
    candidates: Callable[[GridModel, int, int, PlanTransform], list[Candidate]]
    max_clusters: int = ANY_NUMBER


STRATEGIES = (
    Strategy("flat", "long blocks: no interface passes anything twice", "003 Table 2", _flat),
    Strategy(
        "leaders",
        "short blocks for clusters of many ranks: fewest messages between clusters",
        "gridcoll",
        _leaders,
    ),
    Strategy(
        "chain",
        "for comparison: every rank passes on all that is behind it",
        "003 Table 2",
        partial(_by_cluster, "chain", "from rank to rank", "chain"),
        # Predicted as fast as flat for short blocks, but measured 4-8 % slower on three sites.
        max_clusters=0,
    ),
    Strategy(
        "pipelined-chain",
        "long blocks where a link between clusters is slower than interfaces",
        "003 Table 2",
        _pipelined_chain,
    ),
    Strategy(
        "binomial",
        "short blocks: a logarithm of messages one after another",
        "003 Table 2",
        partial(_by_cluster, "binomial", "down a binomial tree", "binomial"),
    ),
)


def unchanged(plan: Plan, label: str) -> Plan:
    """Return ``plan``, which is a scatter already."""
    return plan


def register_strategy(
    collective: str, transform: PlanTransform, strategy: Strategy, source: str
) -> None:
    """Register ``strategy`` for ``collective``. ``transform`` makes its plans from scatters."""

    def candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
        if model.grid.n_ranks == 1:
            return []
        found = strategy.candidates(model, n_bytes, root, transform)
        if model.n_clusters > 1 or strategy.name not in SCATTER_COSTS:
            return found
        closed_form_s = SCATTER_COSTS[strategy.name].seconds(
            model.link(0, 0), model.grid.n_ranks, n_bytes
        )
        return [replace(candidate, closed_form_s=closed_form_s) for candidate in found]

    register(
        collective,
        Algorithm(strategy.name, strategy.good_for, source, candidates, strategy.max_clusters),
    )


# Registered first, since its predicted and measured times equal those of the flat one.
_PACED = Strategy(
    "rate-paced",
    "long blocks for far clusters: what leaves first is there first, and shares no interface",
    "gridcoll",
    _paced,
)


for _strategy in (_PACED, *STRATEGIES):
    register_strategy("scatter", unchanged, _strategy, _strategy.source)

# Only the root knows the block sizes, so no other rank can relay, and no choice is possible.
UNEVEN = replace(STRATEGIES[0], good_for="blocks of any sizes, which only the root knows all of")
register_strategy("scatterv", unchanged, replace(UNEVEN, candidates=uneven), UNEVEN.source)
alias("scatter", "paced", "rate-paced")
alias("scatter", "coordinators", "leaders")
