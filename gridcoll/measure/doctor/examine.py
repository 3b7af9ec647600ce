"""Looking at a job: every rank at its host, then pairs of ranks at what lies between."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from gridcoll.engine.agreement import together
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clusters import Progress, find_grid, silent
from gridcoll.measure.doctor.facts import (
    JobFacts,
    Kept,
    LinkFacts,
    RankFacts,
    has_fast_network,
    look_around,
    own_connections,
)
from gridcoll.measure.probe import Channel, measure_latency
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import rounds_of_pairs

PIECE_BYTES = 64 << 10
FIRST_PIECES = 8
MOST_PIECES = 1024
LONG_ENOUGH_S = 0.25
"""A train this much longer than the round trip has opened TCP's window and shows the rate."""

N_CLOCK_READINGS = 5
_TAG = 3


def examine(
    comm: MPI.Intracomm,
    tolerance: float,
    *,
    gridcoll: str,
    engine: str,
    progress: Progress = silent,
    kept: Callable[[list[str]], Kept] = lambda hosts: Kept(),
    faults: tuple[str, ...] = (),
    inherited: frozenset[str] = frozenset(),
) -> JobFacts:
    """Look at the job that ``comm`` spans. Collective; the result is the same on all ranks.

    Takes a few seconds: short messages between all nodes, long ones for fractions of a second
    between clusters. All go over ``comm``, a private duplicate.

    Of this rank are ``gridcoll`` and ``engine``, as in `RankFacts`, and the sockets that the
    process had ``inherited`` before MPI started. ``kept`` says what is known of these hosts; it is
    called on rank 0, whose ``faults`` count.
    """
    progress("hosts", 0, 1)
    tolerance, faults = comm.bcast((tolerance, faults), 0)
    grid = find_grid(comm, tolerance, progress)
    links = measure_rates(comm, grid, progress)
    progress("hosts", 1, 1)
    mine = replace(
        _own_facts(comm, gridcoll, engine),
        wall_offset_s=_wall_offset(comm),
        connections=tuple(own_connections(inherited)),
        fast_network=has_fast_network(),
    )
    ranks = tuple(comm.allgather(mine))
    hosts = list(dict.fromkeys(facts.host.host for facts in ranks))
    known = together(comm, lambda: kept(hosts) if comm.Get_rank() == 0 else Kept())
    return JobFacts(ranks, grid, tuple(links), faults, *comm.bcast(known, 0))


def _own_facts(comm: MPI.Intracomm, gridcoll: str, engine: str) -> RankFacts:
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    node = int(shared.bcast(comm.Get_rank(), 0))
    shared.Free()
    return RankFacts(
        host=look_around(MPI.Get_processor_name()),
        mpi_version=" ".join(MPI.Get_library_version().split("\n")[0].strip("\0 ").split()),
        vendor=MPI.get_vendor()[0],
        gridcoll=gridcoll,
        engine=engine,
        node=node,
        threads=MPI.Query_thread() >= MPI.THREAD_MULTIPLE,
        gives_way=_gives_way(),
    )


def _gives_way() -> bool | None:
    """As in `RankFacts`. Open MPI has other reasons than settings: more ranks than slots."""
    try:
        set_yield = ctypes.CDLL(MPI.__file__).opal_progress_set_yield_when_idle
    except (OSError, AttributeError):  # another library, or another release
        return None
    set_yield.argtypes, set_yield.restype = (ctypes.c_bool,), ctypes.c_bool
    before = bool(set_yield(True))
    set_yield(before)
    return before


def _wall_offset(comm: MPI.Intracomm) -> float:
    """This host's clock less that of rank 0's, by the quickest of a few round trips. Collective."""
    if comm.Get_rank() == 0:
        stamp = np.zeros(1)
        for peer in range(1, comm.Get_size()):
            for _ in range(N_CLOCK_READINGS):
                comm.Recv(stamp, peer, _TAG)
                stamp[0] = time.time()
                comm.Send(stamp, peer, _TAG)
        return 0.0
    stamp, samples = np.zeros(1), []
    for _ in range(N_CLOCK_READINGS):
        began = time.time()
        comm.Send(stamp, 0, _TAG)
        comm.Recv(stamp, 0, _TAG)
        ended = time.time()
        samples.append((ended - began, (began + ended) / 2 - float(stamp[0])))
    return min(samples)[1]


def measure_rates(comm: MPI.Intracomm, grid: Grid, progress: Progress = silent) -> list[LinkFacts]:
    """Latency and rate inside each cluster and between every two, both ways. Collective.

    Of one connection, between the coordinators; pairs that share no cluster at the same time.
    """
    n = len(grid.clusters)
    inside = [(c, c) for c in range(n) if len(grid.clusters[c].nodes) > 1]
    steps = [inside] if inside else []
    for pairs in rounds_of_pairs(n):
        steps += [pairs, [(b, a) for a, b in pairs]]
    mine: list[LinkFacts] = []
    for done, pairs in enumerate(steps):
        progress("links", done, len(steps))
        for a, b in pairs:
            nodes = grid.clusters[a].nodes
            sender = grid.clusters[a].coordinator
            receiver = nodes[1][0].rank if a == b else grid.clusters[b].coordinator
            if comm.Get_rank() in (sender, receiver):
                active = comm.Get_rank() == sender
                channel = Channel(comm, receiver if active else sender, active)
                latency_s, rate = _latency_and_rate(channel)
                if active:
                    mine.append(LinkFacts(a, b, latency_s, rate))
        wait_for_all(comm)
    progress("links", len(steps), len(steps))
    return sorted(
        (link for found in comm.allgather(mine) for link in found),
        key=lambda link: (link.sender, link.receiver),
    )


def _latency_and_rate(channel: Channel) -> tuple[float, float]:
    latency_s, _ = measure_latency(channel)
    n_pieces, growing = FIRST_PIECES, 1
    while growing:
        took_s = channel.train_s(PIECE_BYTES, n_pieces) - 2 * latency_s
        growing = channel.agree(int(took_s < LONG_ENOUGH_S and n_pieces < MOST_PIECES))
        if growing:
            n_pieces *= 2
    return latency_s, n_pieces * PIECE_BYTES / max(took_s, 1e-9)
