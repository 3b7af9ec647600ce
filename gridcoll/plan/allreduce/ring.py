"""Allreduce around a ring of all ranks: least bytes through every network interface."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from gridcoll.errors import PlanError
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.allreduce.costs import costs_of, price_ring, segment_units
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.plan.trees import SMALLEST_SEGMENT, cut_segments
from gridcoll.schedule.paths import shortest_path
from gridcoll.topology.units import format_size


def plan_ring(
    ring: Sequence[int],
    n_units: int,
    segment_units: int,
    label: str = "",
    hosts: Sequence[int] = (),
) -> Plan:
    """Return an allreduce of ``n_units`` elements around ``ring``, with a block per host.

    A block starts at its host's first rank, is combined at every further rank, and goes around once
    more. Its segments are sent on as soon as they are combined. On the host of the last rank,
    results go back along the ring instead, so that they need not enter that host again. Each block
    is combined once, so all ranks have the same bits. The order of combination is that of the ring,
    with a different start for each block.

    ``ring`` has all ranks; each sends to the next, in segments of up to ``segment_units``.
    ``hosts`` are the numbers of ranks of the hosts, in the order of the ring; by default 1 each.
    """
    n, sizes = len(ring), list(hosts) or [1] * len(ring)
    if sorted(ring) != list(range(n)):
        raise PlanError(f"ring: must visit every rank once, got {list(ring)}")
    if sum(sizes) != n or min(sizes) < 1:
        raise PlanError(f"ring: hosts must have its {n} ranks, got {sizes}")
    # For each block: its start in the ring, the number of ranks of the host before, and its
    # segments. Tags number a channel's messages, those of the first round, then of the second.
    blocks: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    n_tags = 0
    for host, first in enumerate(accumulate([0, *sizes[:-1]])):
        start, stop = (k * n_units // len(sizes) for k in (host, host + 1))
        bounds = cut_segments(stop - start, segment_units)
        segments = [(n_tags + k, start + a, start + b) for k, (a, b) in enumerate(bounds)]
        blocks.append((first, sizes[host - 1], segments))
        n_tags += len(bounds)

    def program_of(rank: int) -> Program:
        if n == 1:
            return (Copy(Chunk("input", 0, n_units), Chunk("output", 0, n_units)),)
        at = ring.index(rank)
        before, after = ring[at - 1], ring[(at + 1) % n]
        # Blocks arrive in the order of their distance in steps from their start.
        arrivals = sorted(((at - first) % n, last, segments) for first, last, segments in blocks)
        ops: list[Op] = []
        for step, last, segments in arrivals:
            for tag, start, stop in segments:
                ours, result = Chunk("input", start, stop), Chunk("output", start, stop)
                if step:
                    ops += [Recv(before, result, tag), Reduce(ours, result)]
                if step < n - 1:
                    ops.append(Send(after, result if step else ours, tag))
                    continue
                ops += [Send(after, result, tag + n_tags)] * (last < n)
                ops += [Send(before, result, tag + n_tags)] * (last > 1)
        for _, step, last, segments in sorted(
            (step if step < n - last else n - 2 - step, step, last, segments)
            for step, last, segments in arrivals
            if step < n - 1
        ):
            forwards = step < n - last
            source, target = (before, after) if forwards else (after, before)
            ends = step in (n - last - 1, n - last)
            for tag, start, stop in segments:
                result = Chunk("output", start, stop)
                ops.append(Recv(source, result, tag + n_tags))
                ops += [] if ends else [Send(target, result, tag + n_tags)]
        return tuple(ops)

    return Plan("allreduce", label, n_units, -1, Programs(n, program_of))


@algorithm("allreduce", "ring", "long messages: least bytes, one flow per interface", "gridcoll")
def _ring(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return the ring over all ranks, cluster by cluster."""
    n = model.grid.n_ranks
    if n < 3 or n_bytes < SMALLEST_SEGMENT:
        return []
    order = shortest_path(model.latency_s, 0)
    ring = [rank for c in order for rank in model.grid.clusters[c].line]
    hosts = [size for c in order for size in model.grid.clusters[c].node_sizes]
    costs = costs_of(model, n_bytes, n_bytes // len(hosts))
    totals = price_ring(costs, order)
    best = int(np.argmin(totals))
    segment = int(costs.segment_bytes[best])
    label = f"all ranks in cluster order; {format_size(segment)} segments"

    def build(n_units: int) -> Plan:
        longest = segment_units(n_units, segment, n_bytes)
        return plan_ring(ring, n_units, longest, f"ring: {label}", hosts)

    return [Candidate("ring", label, float(totals[best]), build, None, segment)]
