"""Examine a job: each rank its host, then pairs of ranks the links between them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.engine.agreement import together
from gridcoll.measure.clock import ask_time, tell_time
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
from gridcoll.measure.pairs import measure_between
from gridcoll.measure.probe import Channel, measure_latency
from gridcoll.topology.grid import Grid

PIECE_BYTES = 64 << 10
FIRST_PIECES = 8
MOST_PIECES = 1024
LONG_ENOUGH_S = 0.25
"""A train that takes this much longer than the round trip has opened TCP's window, and shows the
rate."""

N_CLOCK_READINGS = 5


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
    """Examine the job that ``comm`` spans. Collective; the result is the same on all ranks.

    It takes a few seconds: short messages between all nodes, and long ones for fractions of a
    second between clusters. All go over ``comm``, a private duplicate.

    ``gridcoll`` and ``engine`` are those of this rank, as in `RankFacts`, and so are the sockets
    that the process had ``inherited`` before MPI started. ``kept`` returns what the cache knows
    about some hosts. It is called on rank 0, whose ``faults`` count.
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
        yields_when_idle=_yields_when_idle(),
    )


def _yields_when_idle() -> bool | None:
    """Return the field of `RankFacts`. Open MPI also yields if there are more ranks than slots."""
    try:
        set_yield = ctypes.CDLL(MPI.__file__).opal_progress_set_yield_when_idle
    except (OSError, AttributeError):  # another library, or another release
        return None
    set_yield.argtypes, set_yield.restype = (ctypes.c_bool,), ctypes.c_bool
    before = bool(set_yield(True))
    set_yield(before)
    return before


def _wall_offset(comm: MPI.Intracomm) -> float:
    """Return this host's clock minus that of rank 0's, by a few round trips. Collective.

    The quickest round trip counts.
    """
    if comm.Get_rank() == 0:
        for peer in range(1, comm.Get_size()):
            tell_time(comm, peer, 0.0, N_CLOCK_READINGS, wall=True)
        return 0.0
    return -ask_time(comm, 0, N_CLOCK_READINGS, wall=True)[1]


def measure_rates(comm: MPI.Intracomm, grid: Grid, progress: Progress = silent) -> list[LinkFacts]:
    """Measure latency and rate inside each cluster and between every two, both ways. Collective.

    They are those of one connection between representatives. Pairs that share no cluster are
    measured at the same time.
    """
    n = len(grid.clusters)
    pairs = [
        (a, b) for a in range(n) for b in range(a, n) if a != b or len(grid.clusters[a].nodes) > 1
    ]
    found = measure_between(comm, grid, pairs, _latency_and_rate, progress, "links")
    back = [(b, a) for a, b in pairs if a != b]
    found |= measure_between(comm, grid, back, _latency_and_rate, progress, "links")
    return [LinkFacts(*pair, *found[pair]) for pair in sorted(found)]


def _latency_and_rate(channel: Channel) -> tuple[float, float] | None:
    """Return seconds and bytes per second on the active end, None on the other."""
    latency_s, _ = measure_latency(channel)
    n_pieces, growing = FIRST_PIECES, 1
    while growing:
        took_s = channel.train_s(PIECE_BYTES, n_pieces) - 2 * latency_s
        growing = channel.agree(int(took_s < LONG_ENOUGH_S and n_pieces < MOST_PIECES))
        if growing:
            n_pieces *= 2
    if not channel.active:
        return None
    return latency_s, n_pieces * PIECE_BYTES / max(took_s, 1e-9)
