"""Allgather: every rank's block goes to all others, down a tree from its owner, in segments.

Its time is that of the busiest interface, flow or link, plus the path of one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from gridcoll.constants import (
    LEAST_SAVED_BY_SEGMENTS,
    MOST_COLLECTED_BYTES,
    SHORTEST_PACED_BYTES,
)
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.allgather.ways import (
    BlockTrees,
    LaneTrees,
    RingTrees,
    Segments,
    owners_backwards,
)
from gridcoll.plan.bcast.segments import segment_sizes
from gridcoll.plan.blocks import LARGEST_MESSAGE, BlockLayout, Messages, copy_runs
from gridcoll.plan.cost import price_plan
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.pacing import one_by_one, pace_of
from gridcoll.plan.packed_trees import LEAST_BYTES, is_unlike
from gridcoll.plan.paths import Paths, along_paths, balanced_paths, crossing, nearest_paths
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Algorithm, Candidate, algorithm, alias, register
from gridcoll.plan.statements import Statement, moved, state
from gridcoll.plan.tree_cost import SegmentCosts, line_costs, place_costs
from gridcoll.schedule.paths import shortest_path
from gridcoll.schedule.trees import find_shape
from gridcoll.topology.grid import Grid
from gridcoll.topology.units import format_size

state(
    Statement(
        "allgather",
        before=lambda plan, rank: {"input": [(plan.block_units[rank], moved(rank))]},
        after=lambda plan, rank: {
            "output": [(size, moved(other)) for other, size in enumerate(plan.block_units)]
        },
    )
)


def plan_allgather(
    trees: BlockTrees, sizes: Sequence[int], segment_units: int, label: str = ""
) -> Plan:
    """Return an allgather of blocks of ``sizes``, by rank.

    Segments have at most ``segment_units``.
    """
    segments = Segments(sizes, segment_units)

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        ours = segments.starts[rank]
        for owner in owners_backwards(trees, rank):
            parent, children = trees.parent(owner, rank), trees.children(owner, rank)
            for _, tag, start, stop in segments.of(owner):
                chunk = Chunk("output", start, stop)
                if owner == rank:
                    chunk = Chunk("input", start - ours, stop - ours)
                else:
                    ops.append(Recv(parent, chunk, tag, trees.stream_of[owner]))
                ops += [Send(child, chunk, tag) for child in children]
        return (*ops, *_keep_own(rank, segments.starts))

    return _plan(sizes, label, Programs(len(sizes), program_of))


def _keep_own(rank: int, starts: Sequence[int]) -> list[Op]:
    start, stop = starts[rank], starts[rank + 1]
    own = Copy(Chunk("input", 0, stop - start), Chunk("output", start, stop))
    return [own] if start < stop else []


def _plan(
    sizes: Sequence[int], label: str, programs: Programs, scratch: tuple[int, ...] = ()
) -> Plan:
    even = len(set(sizes)) == 1
    blocks = () if even else tuple(sizes)
    return Plan("allgather", label, sizes[0] if even else 0, -1, programs, scratch, blocks)


def plan_leaders(grid: Grid, sizes: Sequence[int], shape: str, label: str = "") -> Plan:
    """Return an allgather in which leaders collect their clusters' blocks and exchange them.

    Leaders then send all blocks down a tree of ``shape``.
    """
    writer = _Leaders(grid, sizes, shape)
    scratch = (writer.scratch_units,) * grid.n_ranks
    return _plan(sizes, label, Programs(grid.n_ranks, writer.program_of), scratch)


class _Leaders:
    """Writes programs. The blocks of a cluster are one message.

    If the ranks of the cluster are not consecutive, these blocks are stored in scratch.
    """

    def __init__(self, grid: Grid, sizes: Sequence[int], shape: str) -> None:
        self._grid = grid
        self._shape = shape
        self._output = BlockLayout("output", range(grid.n_ranks), sizes)
        self._zones: list[BlockLayout] = []
        self.scratch_units = 0
        for cluster in grid.clusters:
            ranks = cluster.ranks
            if ranks[-1] - ranks[0] == len(ranks) - 1:
                self._zones.append(self._output)
            else:
                self._zones.append(BlockLayout("scratch", ranks, sizes, self.scratch_units))
                self.scratch_units += sum(sizes[rank] for rank in ranks)

    def program_of(self, rank: int) -> Program:
        clusters, home = self._grid.clusters, self._grid.cluster_of[rank]
        ranks, zone = clusters[home].ranks, self._zones[home]
        peers = _Peers()
        own = Chunk("input", 0, self._output.block(rank).size)
        ops: list[Op] = []
        if rank == ranks[0]:
            ops += [Copy(own, zone.block(rank))] if own.size else []
            for member in ranks[1:]:
                ops += peers[member].receive(zone.block(member))
            for other in self._others(home):
                for chunk in self._whole(home):
                    ops += peers[clusters[other].coordinator].send(chunk)
        else:
            ops += peers[ranks[0]].send(own)
        line = clusters[home].line
        below = find_shape(self._shape).children(len(line))
        place = clusters[home].places[rank]
        above = [line[v] for v, children in enumerate(below) if place in children]
        for cluster in (home, *self._others(home)):
            source = above or [clusters[cluster].coordinator] * (cluster != home)
            for chunk in self._whole(cluster):
                for peer in source:
                    ops += peers[peer].receive(chunk)
                for child in below[place]:
                    ops += peers[line[child]].send(chunk)
            if self._zones[cluster] is not self._output:
                ops += copy_runs(clusters[cluster].ranks, self._zones[cluster], self._output)
        return tuple(ops)

    def _others(self, home: int) -> list[int]:
        """Return the other clusters, beginning with the next one."""
        n = len(self._grid.clusters)
        return [(home + k) % n for k in range(1, n)]

    def _whole(self, cluster: int) -> list[Chunk]:
        """Return all blocks of ``cluster``: one chunk, or none if all blocks are empty."""
        return self._zones[cluster].runs(self._grid.clusters[cluster].ranks)


class _Peers(dict[int, Messages]):
    """The messages with each peer, by its rank."""

    def __missing__(self, peer: int) -> Messages:
        self[peer] = Messages(peer)
        return self[peer]


class BlockCosts(SegmentCosts, frozen=True):
    """Costs of segments of blocks of ``n_bytes``."""

    @cached_property
    def hosts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each cluster, the number of hosts, and most and fewest ranks on one, (C,) each."""
        nodes = [cluster.node_sizes for cluster in self.model.grid.clusters]
        counts, most, least = zip(*((len(n), max(n), min(n)) for n in nodes), strict=True)
        return np.array(counts), np.array(most), np.array(least)


def price_lanes(costs: BlockCosts, paths: Paths = (), *, upwards: bool = False) -> FloatArray:
    """Return the time of lanes, `LaneTrees`, with ``paths`` between clusters, (S,).

    If ``upwards``, blocks go in the other direction and are combined on the path.
    """
    one_way_s, sizes, n = costs.one_way_s, costs.sizes, costs.model.n_clusters
    is_paced = costs.n_bytes >= SHORTEST_PACED_BYTES  # see `pace_of`
    relaying = _relaying(paths, n)
    n_crossing = crossing(sizes, paths)
    hosts, most, least = costs.hosts
    port_s = np.einsum("iis->is", costs.gap_s)
    home_port_s, home_hop_s = (each[:, 0] for each in costs.beside)
    beside_s = home_hop_s * (most > 1)
    hop_s = np.einsum("iis->is", one_way_s) * (hosts > 1)[:, None] + beside_s[:, None]
    n_turns = np.ceil((sizes.sum() - sizes) / sizes)
    n_far = np.ceil(n_crossing.sum(axis=1) / sizes)
    n_out, n_in = most * ((hosts - 1) * (1 + n_turns) + n_far), sizes.sum() - least
    # A forwarded or combined segment is one segment late at every hop.
    n_behind = (n - 1) * (n_turns > 0) * (hosts > 1)
    n_passed = np.maximum(n_out, n_in)[:, None] * costs.n_segments + n_behind[:, None]
    total_s = n_passed * port_s - port_s * (hosts > 1)[:, None] + hop_s
    if n > 1:  # a single rank has nothing to send on until the first segment arrives
        first_s = np.where(np.eye(n, dtype=bool)[:, :, None], np.inf, one_way_s).min(axis=0)
        total_s += np.where((sizes == 1)[:, None], np.maximum(first_s - port_s, 0.0), 0.0)
        if upwards:
            # Nothing arrives between the last contribution to a sum and the first sum.
            sums_s = (most * n_turns)[:, None] * costs.n_segments * port_s
            waits = (hosts > 1) & (relaying.any(axis=1) | (not is_paced))
            total_s += np.where(waits[:, None], np.minimum(first_s, sums_s), 0.0)
    total_s = total_s.max(axis=0)
    handed_s = (
        (most - 1) / most * sizes.sum() * home_port_s
    )  # by each rank to the others on its host
    total_s = np.maximum(total_s, handed_s.max() * costs.n_segments)
    if n == 1:
        return np.asarray(total_s)
    path_s = along_paths(paths, one_way_s, np.add, upwards=upwards)
    flow_s = _flows_s(costs, n_crossing.T if upwards else n_crossing)
    flow_s = along_paths(paths, flow_s, np.maximum, upwards=upwards)
    if upwards:
        sums_s = ((most * n_turns)[:, None] * costs.n_segments - 1) * port_s
        before_s = (most * (hosts - 1) * n_turns)[:, None] * costs.n_segments * port_s
        # All contributions for entry ranks are sent before the first sum. If they are paced, a sum
        # leaves after its own ones, unless it also has parts from other clusters.
        first_s = (before_s + beside_s[:, None])[:, None]
        if is_paced:
            own_s = (most * (hosts - 1))[:, None] * port_s + beside_s[:, None]
            first_s = np.where(relaying[:, :, None], first_s, own_s[:, None])
        way_s = np.maximum(first_s + flow_s, (before_s + beside_s[:, None] + sums_s)[:, None])
    else:
        last_s = np.maximum(hosts - 2, 0)[:, None] * port_s
        n_handed = np.maximum(most * n_turns * (hosts - 1), 1)[:, None] * costs.n_segments
        handed_s = (n_handed - 1) * port_s
        way_s = np.maximum(flow_s + last_s, handed_s) + hop_s
    between = ~np.eye(n, dtype=bool)
    return np.asarray(np.maximum(total_s, (path_s + way_s)[between].max(axis=0)))


def _relaying(paths: Paths, n: int) -> np.ndarray:
    """Return whether sums of other clusters pass a cluster on their way to another one, (C, C)."""
    found = np.zeros((n, n), dtype=bool)
    for home, previous in enumerate(paths):
        found[[at for at in previous if at != home], home] = True
    return found


def _flows_s(costs: BlockCosts, n_blocks: np.ndarray) -> FloatArray:
    """Return the time between two clusters from the first segment to the last, (C, C, S).

    ``n_blocks`` go from one to another, (C, C). The limit is the rate of a flow, of the link, or of
    an uplink of either cluster.
    """
    n_segments = costs.n_segments * np.maximum(n_blocks, 1)[:, :, None]
    crossing = np.maximum(n_blocks.sum(axis=0), n_blocks.sum(axis=1))[:, None]
    # For an uplink, the first one of all segments that cross it is already counted.
    uplinks_s = costs.n_bytes * (crossing - 1 / costs.n_segments) / costs.model.uplinks[:, None]
    shared_s = costs.n_bytes * n_blocks / costs.model.link_bytes_per_s
    own_s = (costs.n_segments - 1) * costs.gap_s
    links_s = np.maximum(own_s, shared_s[:, :, None] * (1 - 1 / n_segments))
    return np.asarray(np.maximum(links_s, np.maximum(uplinks_s[:, None], uplinks_s[None])))


def price_ring(costs: BlockCosts, order: tuple[int, ...]) -> FloatArray:
    """Return the time of a ring over all ranks, clusters in ``order``, host by host, (S,)."""
    gap_s, one_way_s, (hosts, _, _) = costs.gap_s, costs.one_way_s, costs.hosts
    hops = list(pairwise([*order, order[0]])) if len(order) > 1 else []
    inner = [c for c in order if costs.sizes[c] > 1]
    far = [(c, c) for c in inner for _ in range(hosts[c] - 1 + (not hops))]
    links = [*hops, *far]
    pace_s = np.max([gap_s[link] for link in links], axis=0)
    ways_s, gaps_s = ([table[link] for link in links] for table in (one_way_s, gap_s))
    for c in inner:
        n_beside = costs.sizes[c] - hosts[c]
        for table, seconds in zip((gaps_s, ways_s), costs.beside, strict=True):
            table += [np.full_like(pace_s, seconds[c, 0])] * n_beside
    # A block is forwarded when it has arrived and the one before has left. It does not use one of
    # the hops.
    steps_s = np.array([np.maximum(way_s, costs.n_segments * pace_s) for way_s in ways_s])
    last_s = np.min([way_s - gap_s for way_s, gap_s in zip(ways_s, gaps_s, strict=True)], axis=0)
    return np.asarray(steps_s.sum(axis=0) - steps_s.min(axis=0) + last_s)


def price_leaders(model: GridModel, n_bytes: int, shape: str) -> float:
    """Return the seconds of `plan_leaders`, with one message per cluster and ``shape`` inside."""
    sizes = np.array(model.grid.ranks_per_cluster)
    n = len(sizes)
    # For the blocks of each cluster, for one block, and for an empty message.
    gap_s, one_way_s = model.gap_and_one_way_s(np.append(sizes, [1, 0]).astype(float) * n_bytes)
    nodes = [cluster.node_sizes for cluster in model.grid.clusters]
    n_away = np.array([size - hosts[0] for size, hosts in zip(sizes, nodes, strict=True)])
    one = np.arange(n)
    crossing = np.array([sizes * (n - 2), sizes.sum() - sizes])  # all but the last message, and all
    leaving_s, entering_s = n_bytes * crossing / model.uplinks
    collected_s = np.maximum(n_away - 1, 0) * gap_s[one, one, n]
    collected_s += np.where(
        n_away, one_way_s[one, one, n], one_way_s[one, one, n + 1] * (sizes > 1)
    )
    latest_s = 0.0
    for c in range(n):
        sends = place_costs(shape, nodes[c], 0)[4]
        # Leaders distribute their own blocks, then those of each other cluster as they arrive.
        port_s = sends * float(sum(gap_s[c, c, other] for other in range(n)))
        port_s += (n - 1) * float(gap_s[c, c, c])
        last = max((other for other in range(n)), key=lambda other: float(gap_s[c, c, other]))
        line, at = line_costs(shape, nodes[c]), [last, n + 1]
        down_s = float((line.waits @ gap_s[c, c, at] + line.hops @ one_way_s[c, c, at]).max())
        come_s = max(
            (float(collected_s[o] + max((n - 2) * gap_s[o, o, o], leaving_s[o])
                   + one_way_s[o, c, o]) for o in range(n) if o != c),
            default=float(collected_s[c]),
        )  # fmt: skip
        if n > 1:  # all blocks that arrive pass one interface, and an uplink
            others = one != c
            first_s = float((collected_s + one_way_s[:, c, n + 1])[others].min())
            comes_s = max(float(gap_s[c, c, :n][others].sum()), float(entering_s[c]))
            come_s = max(come_s, first_s + comes_s)
        full_s = float(collected_s[c]) + port_s - sends * float(gap_s[c, c, last]) + down_s
        latest_s = max(latest_s, come_s + down_s, full_s)
    return latest_s


MOST_SIMULATED_RANKS = 40
"""Limit of ranks, since every rank grows all trees and simulates plans."""

MOST_SIMULATED_MESSAGES = 8_000
"""Limit of messages of a plan that is simulated: about 0.2 s."""


def is_simulated(model: GridModel, n_bytes: int) -> bool:
    """Whether plans for blocks of ``n_bytes`` are simulated, those down one tree per owner too."""
    is_small = 2 < model.grid.n_ranks <= MOST_SIMULATED_RANKS
    return is_small and n_bytes >= LEAST_BYTES and model.n_clusters > 1 and is_unlike(model)


Planner = Callable[[BlockTrees, Sequence[int], int, str], Plan]
"""`plan_allgather` or `plan_reduce_scatter`."""


def candidate(
    name: str,
    label: str,
    predicted_s: float,
    n_ranks: int,
    build_blocks: Callable[[Sequence[int]], Plan],
    *,
    segment_bytes: int | None = None,
    rank_order: bool = False,
) -> Candidate:
    """Return a candidate whose plan ``build_blocks`` writes from the sizes of all blocks."""

    def build(n_units: int) -> Plan:
        return build_blocks((n_units,) * n_ranks)

    return Candidate(
        name, label, predicted_s, build, None, segment_bytes, rank_order, build_blocks=build_blocks
    )


def _segmented(
    name: str,
    how: str,
    trees: Callable[[], BlockTrees],
    costs: BlockCosts,
    totals_s: FloatArray,
    planner: Planner,
    rank_order: bool,
) -> list[Candidate]:
    """Return a candidate with ``trees`` at the largest segment size with about the least time.

    ``totals_s`` are the times by segment size, (S,).
    """
    is_good = (1 - LEAST_SAVED_BY_SEGMENTS) * totals_s <= totals_s.min()
    best = int(np.argmax(np.where(is_good, costs.segment_bytes, -1)))
    segment, n_bytes = int(costs.segment_bytes[best]), max(costs.n_bytes, 1)
    n_ranks = costs.model.grid.n_ranks
    label = f"{how}; {format_size(segment)} segments" if segment < n_bytes else how

    def build_blocks(sizes: Sequence[int]) -> Plan:
        # Units may be elements: a segment has the same fraction of a block as in bytes.
        units = -(-sum(sizes) * segment // (n_bytes * n_ranks))
        size = min(max(units, 1), LARGEST_MESSAGE)
        return planner(trees(), sizes, size, f"{name}: {label}")

    predicted_s = float(totals_s[best])
    return [
        candidate(
            name,
            label,
            predicted_s,
            n_ranks,
            build_blocks,
            segment_bytes=segment,
            rank_order=rank_order,
        )
    ]


def _simulated(found: list[Candidate], model: GridModel, n_bytes: int) -> list[Candidate]:
    """Return ``found``, the fastest of them with its simulated time where plans are simulated.

    Beside trees that are priced by simulation, a formula that is too low would win: on grids of
    unlike parts, some were 1.4 times too low.
    """
    if not found or not is_simulated(model, n_bytes):
        return found
    fastest = min(found, key=lambda each: each.predicted_s or 0.0)
    n = model.grid.n_ranks
    n_segments = -(-n_bytes // (fastest.segment_bytes or n_bytes))
    if fastest.build_blocks is None or n * (n - 1) * n_segments > MOST_SIMULATED_MESSAGES:
        return found
    plan = fastest.build_blocks((n_bytes,) * n)
    simulated = replace(fastest, predicted_s=price_plan(plan, model).makespan_s)
    return [simulated if each is fastest else each for each in found]


def _paced(planner: Planner, model: GridModel, n_bytes: int) -> Planner:
    """Return ``planner`` with sends in program order, no faster than an interface carries them.

    Otherwise what a rank sends to its own cluster would slow down what goes to other clusters.
    """

    def plan(trees: BlockTrees, sizes: Sequence[int], segment_units: int, label: str) -> Plan:
        unpaced = planner(trees, sizes, segment_units, label)
        unit_bytes = n_bytes * len(sizes) / max(sum(sizes), 1)

        def program_of(rank: int) -> Program:
            program, pace = unpaced.programs[rank], pace_of(model, rank, n_bytes, all_send=True)
            if pace is None:
                return program
            pace = replace(pace, unit_s=pace.unit_s * unit_bytes)
            # What other ranks of the host send on waits for it.
            return one_by_one(program, pace, beside_at_once=True)

        return replace(unpaced, programs=Programs(len(sizes), program_of))

    return plan


def _lanes(model: GridModel, n_bytes: int, planner: Planner, *, upwards: bool) -> list[Candidate]:
    """Return lanes: a block enters each other cluster and host once; members take turns."""
    grid = model.grid
    if grid.n_ranks == 1:
        return []
    costs = BlockCosts(model, n_bytes, segment_sizes(n_bytes))
    paced = _paced(planner, model, n_bytes)
    others = [
        what
        for what, there_are in (("host", grid.shares_hosts), ("cluster", model.n_clusters > 1))
        if there_are
    ]
    how = f"straight to the own {'host' if grid.shares_hosts else 'cluster'}"
    if others:
        how += f", one of each other {' and '.join(others)}, who hands it on"
    totals_s = price_lanes(costs, upwards=upwards)
    found = _segmented(
        "lanes", how, lambda: LaneTrees(grid), costs, totals_s, paced, _intervals(grid)
    )
    one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))[1][..., 0]
    nearest = nearest_paths(one_way_s.T if upwards else one_way_s)
    around = balanced_paths(model, n_bytes, upwards=upwards)
    for paths, where in ((nearest, "over nearer clusters"), (around, "around busy links")):
        if paths:
            found += _segmented(
                "lanes",
                f"{how}, {where}",
                partial(LaneTrees, grid, paths),
                costs,
                price_lanes(costs, paths, upwards=upwards),
                paced,
                rank_order=False,
            )
    return found


def _intervals(grid: Grid) -> bool:
    """Whether ranks of each cluster and host are consecutive, so that sums are in rank order."""
    return all(c.line == tuple(range(c.coordinator, c.coordinator + len(c))) for c in grid.clusters)


def _ring(model: GridModel, n_bytes: int, planner: Planner) -> list[Candidate]:
    """Return the ring around all ranks, cluster by cluster."""
    if model.grid.n_ranks < 3:
        return []
    order = shortest_path(model.latency_s, 0)
    ring = [rank for c in order for rank in model.grid.clusters[c].line]
    costs = BlockCosts(model, n_bytes, segment_sizes(n_bytes))
    totals_s = price_ring(costs, order)
    how = "around all ranks in cluster order"
    return _segmented(
        "ring", how, lambda: RingTrees(ring), costs, totals_s, planner, rank_order=False
    )


def register_lanes_and_ring(
    collective: str, planner: Planner, tail: str, *, upwards: bool = False
) -> None:
    """Register lanes and ring for ``collective``. ``planner`` writes their plans.

    If ``upwards``, blocks go to their owners and are combined, instead of coming from them.
    """
    register(
        collective,
        Algorithm(
            "lanes",
            "most sizes: one WAN latency, a byte crosses to a cluster once, all interfaces busy",
            f"gridcoll{tail}",
            lambda model, n_bytes, root: _simulated(
                _lanes(model, n_bytes, planner, upwards=upwards), model, n_bytes
            ),
        ),
    )
    register(
        collective,
        Algorithm(
            "ring",
            "long blocks: least bytes, one flow per interface",
            f"the ring of MPI libraries, in cluster order and without its steps{tail}",
            lambda model, n_bytes, root: _simulated(_ring(model, n_bytes, planner), model, n_bytes),
        ),
    )


register_lanes_and_ring("allgather", plan_allgather, "")


@algorithm(
    "allgather",
    "leaders",
    "tiny blocks of many ranks: fewest messages",
    "004 §2.2, with an exchange in place of its gather and broadcast",
)
def _leaders(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return plans in which coordinators collect, exchange and distribute, without segments."""
    grid = model.grid
    if grid.n_ranks == 1 or n_bytes * grid.n_ranks > MOST_COLLECTED_BYTES:
        return []
    found = []
    for shape in ("binomial", "flat"):
        label = f"collected and exchanged by leaders, handed out {shape}"

        def build_blocks(sizes: Sequence[int], shape: str = shape, label: str = label) -> Plan:
            return plan_leaders(grid, sizes, shape, f"leaders: {label}")

        predicted_s = price_leaders(model, n_bytes, shape)
        found.append(candidate("leaders", label, predicted_s, grid.n_ranks, build_blocks))
    return found


alias("allgather", "coordinators", "leaders")
