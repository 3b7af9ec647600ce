"""Discovery: clusters, then pLogP of representative pairs and what else a choice rests on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from gridcoll.engine.memory import ByteMemory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clock import CommonClock, Series, find_clock, run_together
from gridcoll.measure.clusters import Progress, find_grid, silent
from gridcoll.measure.contention import measure_contention
from gridcoll.measure.flows import MESSAGE_BYTES, measure_together
from gridcoll.measure.natives import CALLS, SETTLED_BYTES, time_native
from gridcoll.measure.probe import Channel, measure_plogp
from gridcoll.measure.trials import RUNS, TRIAL_SIZES, step_of
from gridcoll.measure.tuner import play_off, try_plans
from gridcoll.model import GridModel, PLogP, TimesBySize
from gridcoll.plan import choose, dataflow
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.trees import RankTree
from gridcoll.schedule.trees import find_shape
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import rounds_of_pairs

PACE_SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16)

MOST_IN_CHAIN = 64
"""Ranks of a cluster that show the pace of all."""

NATIVE_SIZES = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22)


def discover(
    comm: MPI.Intracomm,
    tolerance: float,
    *,
    both_directions: bool = False,
    native: bool = True,
    collectives: Collection[str] = tuple(CALLS),
    progress: Progress = silent,
    name: str = "",
) -> GridModel:
    """Measure the grid that ``comm`` spans. Collective; the result is the same on all ranks.

    At most C(C-1)/2 + C pLogP measurements for C clusters, twice the first term with
    ``both_directions``.

    Parameters
    ----------
    comm : MPI.Intracomm
        Used for all messages; a private duplicate.
    tolerance : float
        ρ of the clustering.
    both_directions : bool
        Measure links from both ends; otherwise they count as symmetric.
    native : bool
        Time the MPI library's own collectives as well.
    collectives : collection of str
        Those whose plans are tried and whose natives are timed.
    progress : callable
    name : str
        Name of the grid in files.
    """
    grid = find_grid(comm, tolerance, progress, name)
    links = measure_links(comm, grid, both_directions, progress)
    model = GridModel(grid, links, "measured", tolerance, mpi=MPI.get_vendor()[0])
    if len(set(grid.host_of)) == 1:
        return model  # shared memory: no plan of ours is meant for it
    clock = find_clock(comm, grid)
    one_flow_bytes_per_s = MESSAGE_BYTES / np.maximum(model.gap_s(MESSAGE_BYTES), 1e-12)
    model = replace(
        model,
        pace=measure_pace(comm, grid, clock),
        together_bytes_per_s=measure_together(
            comm, grid, one_flow_bytes_per_s, progress, both_directions
        ),
    )
    model = replace(model, start_s=measure_start(comm, model, clock))
    model = replace(model, contention=measure_contention(comm, model))
    tried = [name for name in RUNS if name in collectives]
    model = try_plans(comm, model, progress, tried)
    if native:
        times = {
            name: time_native(comm, model, name, native_sizes(name), progress)
            for name in CALLS
            if name in collectives
        }
        model = replace(
            model,
            native={name: found.plain for name, found in times.items()},
            native_variants={name: found.variants for name, found in times.items()},
        )
        n_runs = {name: found.n_runs for name, found in times.items()}
        model = play_off(comm, model, progress, tried, n_runs)
    return model


def native_sizes(collective: str) -> tuple[int, ...]:
    """At which sizes natives are timed, in bytes: of short messages also where plans are tried."""
    short = (n_bytes for n_bytes in TRIAL_SIZES.get(collective, ()) if n_bytes < SETTLED_BYTES)
    return tuple(sorted({*NATIVE_SIZES, *short}))


def measure_links(
    comm: MPI.Intracomm, grid: Grid, both_directions: bool = False, progress: Progress = silent
) -> tuple[tuple[PLogP | None, ...], ...]:
    """One pLogP measurement per cluster and per cluster pair, clusters in disjoint pairs.

    Collective; the result is the same on all ranks.
    """
    n = len(grid.clusters)
    steps: list[list[tuple[int, int]]] = [[(c, c) for c in range(n) if len(grid.clusters[c]) > 1]]
    for pairs in rounds_of_pairs(n):
        steps.append(pairs)
        if both_directions:
            steps.append([(b, a) for a, b in pairs])
    n_links = sum(len(pairs) for pairs in steps)
    mine: list[tuple[int, int, PLogP]] = []
    done = 0
    for pairs in steps:
        progress("pLogP of links", done, n_links)
        for a, b in pairs:
            sender, receiver = representatives(grid, a, b)
            if comm.Get_rank() in (sender, receiver):
                active = comm.Get_rank() == sender
                peer = receiver if active else sender
                measured = measure_plogp(Channel(comm, peer, active))
                if measured is not None:
                    mine.append((a, b, measured))
        done += len(pairs)
        wait_for_all(comm)  # the next round's pairs must not find a link still busy
    progress("pLogP of links", n_links, n_links)
    links: list[list[PLogP | None]] = [[None] * n for _ in range(n)]
    for a, b, link in (entry for entries in comm.allgather(mine) for entry in entries):
        links[a][b] = link
        if not both_directions:
            links[b][a] = link
    return tuple(tuple(row) for row in links)


def representatives(grid: Grid, a: int, b: int) -> tuple[int, int]:
    """The ranks that measure for a cluster pair: coordinators; inside, two on different nodes."""
    first = grid.clusters[a].coordinator
    if a != b:
        return first, grid.clusters[b].coordinator
    nodes = grid.clusters[a].nodes
    return first, (nodes[1][0].rank if len(nodes) > 1 else grid.clusters[a].ranks[1])


def measure_pace(
    comm: MPI.Intracomm, grid: Grid, clock: CommonClock, n_segments: int = 48
) -> TimesBySize | None:
    """Seconds per segment while every cluster passes segments down a chain at once. Collective.

    The gaps inside clusters are in it; what it has above them is our engine's cost, and that of
    ranks which share cores. Links between clusters have no part in it, nor have more ranks of a
    cluster than `MOST_IN_CHAIN`. None where no cluster has two ranks.
    """
    if max(len(cluster) for cluster in grid.clusters) == 1:
        return None
    rank = comm.Get_rank()
    cluster = grid.clusters[grid.cluster_of[rank]]
    takes_part = rank in cluster.spread(MOST_IN_CHAIN)
    colour = grid.cluster_of[rank] if takes_part else MPI.UNDEFINED
    inside = MPI.Intracomm(comm.Split(colour, cluster.places[rank]))

    def step(segment: int, n: int) -> Callable[[], object]:
        if inside == MPI.COMM_NULL:
            return lambda: None
        tree = RankTree(0, find_shape("chain").children(inside.Get_size()))
        program = plan_bcast([tree], n * segment, segment).programs[inside.Get_rank()]
        flow, transport = dataflow(program), MPITransport(inside)
        memory = ByteMemory(memoryview(bytearray(n * segment)))
        return lambda: run_program(flow, transport, memory)

    def run(segment: int, n: int) -> float:
        return run_together(clock, step(segment, n))

    seconds: list[float] = []
    for segment in PACE_SIZES:
        run(segment, n_segments)
        long_s = min(run(segment, 3 * n_segments) for _ in range(2))
        short_s = min(run(segment, n_segments) for _ in range(2))
        seconds.append(max((long_s - short_s) / (2 * n_segments), 0.0))
    if inside != MPI.COMM_NULL:
        inside.Free()
    return TimesBySize(PACE_SIZES, tuple(seconds))


def measure_start(
    comm: MPI.Intracomm, model: GridModel, clock: CommonClock, n_runs: int = 7
) -> float:
    """Seconds by which the shortest broadcast exceeds its prediction. Collective."""
    winner = choose("bcast", model, 8, 0, grid_only=True).winner
    if winner.build is None or winner.predicted_s is None:
        return 0.0
    flow = dataflow(winner.build(8).programs[comm.Get_rank()])
    step, series = step_of(comm, flow, ByteMemory(memoryview(bytearray(8)))), Series(clock)
    took = [series.run(step) for _ in range(n_runs)]
    return max(float(np.median(took)) - winner.predicted_s, 0.0)
