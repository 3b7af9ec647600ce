"""Ways to exchange everything with everybody, with what the model says of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gridcoll.model.gridmodel import GridModel, Sample
from gridcoll.plan.alltoall.bruck import plan_bruck
from gridcoll.plan.alltoall.cost import far_order, price_messages_s
from gridcoll.plan.alltoall.exchange import (
    N_PAIRWISE_SLOTS,
    plan_direct,
    plan_far_first,
    plan_pairwise,
)
from gridcoll.plan.alltoall.hub import hub_blocks, plan_hub
from gridcoll.plan.alltoall.leaders import coordinator_blocks, plan_coordinator
from gridcoll.plan.alltoall.messages import (
    Messages,
    Weights,
    bruck_messages,
    coordinator_messages,
    direct_messages,
    far_first_messages,
    hub_messages,
    paced_messages,
    pairwise_messages,
)
from gridcoll.plan.alltoall.rounds import Rounds, plan_paced, rounds_far_first
from gridcoll.plan.pacing import Pace, pace_of
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.schedule.paths import find_hub
from gridcoll.topology.grid import Grid
from gridcoll.topology.units import format_size

MOST_COORDINATOR_BYTES = 1 << 20
"""Coordinators keep all that crosses; beyond this much scratch they are not offered."""

MOST_PACED_RANKS = 32
"""Finding rounds takes time in proportion to the cube of the number of ranks."""

MOST_HUB_BLOCKS = 1 << 15
"""One rank sorts them one by one: with more, the others wait for it."""

PIECES_BYTES = (1 << 14, 1 << 15)
"""Messages that no MPI known here keeps back until the receiver has answered."""

MOST_PIECES = 8
"""More of a block than this wait in queues of the MPI, which copies them: 705 ms instead of 511 for
512 KiB under Open MPI."""

LEAST_SAVED = 0.05
"""Pieces are offered where they are predicted to save this part: each costs a call, too."""


def _far_first(model: GridModel, n_units: int, label: str, piece_units: int = 0) -> Plan:
    clusters = [cluster.ranks for cluster in model.grid.clusters]
    return plan_far_first(clusters, far_order(model), n_units, label, piece_units)


def _direct(model: GridModel, n_units: int, label: str, piece_units: int = 0) -> Plan:
    order = [rank for cluster in model.grid.clusters for rank in cluster.ranks]
    return plan_direct(order, n_units, label, piece_units)


def _rounds(model: GridModel) -> Rounds:
    between_s = tuple(tuple(map(float, row)) for row in model.latency_s)
    return rounds_far_first(tuple(model.grid.cluster_of), between_s)


def _paced(model: GridModel, n_units: int, label: str, piece_units: int = 0) -> Plan:
    def pace(rank: int) -> Pace:
        return pace_of(model, rank, n_units, all_send=True) or Pace(0.0)

    return plan_paced(_rounds(model), pace, n_units, label, piece_units)


_PLANS: dict[str, Callable[[GridModel, int, str], Plan]] = {
    "direct": _direct,
    "far-first": _far_first,
    "paced": _paced,
    "pairwise": lambda model, n, label: plan_pairwise(model.grid.n_ranks, n, label),
    "bruck": lambda model, n, label: plan_bruck(model.grid.n_ranks, n, label),
    "coordinator": lambda model, n, label: plan_coordinator(model.grid, n, label),
    "nodes": lambda model, n, label: plan_coordinator(by_host(model.grid), n, label),
}


def _builder(name: str, label: str, model: GridModel) -> Callable[[int], Plan]:
    return lambda n_units: _PLANS[name](model, n_units, f"{name}: {label}")


def of_grid(messages_of: Callable[[Grid, Weights], Messages]) -> Callable[[Sample], Messages]:
    """``messages_of`` a grid and its weights, as a function of the sample that has both."""
    return lambda some: messages_of(some.model.grid, some.weights)


def priced_s(
    model: GridModel,
    messages_of: Callable[[Sample], Messages],
    n_bytes: int,
    piece_bytes: int = 0,
) -> float:
    """Seconds for blocks of ``n_bytes``, from the messages of a sample of the ranks."""
    some = model.sample
    messages = messages_of(some)
    return price_messages_s(some.model, messages, n_bytes, piece_bytes, some.host_weights)


def _candidate(
    name: str,
    label: str,
    model: GridModel,
    messages_of: Callable[[Sample], Messages],
    n_bytes: int,
) -> Candidate:
    predicted_s = priced_s(model, messages_of, n_bytes)
    return Candidate(name, label, predicted_s, _builder(name, label, model))


def _with_pieces(
    whole: Candidate,
    plan: Callable[[GridModel, int, str, int], Plan],
    model: GridModel,
    messages_of: Callable[[Sample], Messages],
    n_bytes: int,
) -> list[Candidate]:
    """``whole``, and the same in pieces where a long message waits for its receiver to answer."""
    found, whole_s = [whole], whole.predicted_s or 0.0
    for piece in PIECES_BYTES:
        if not piece < n_bytes <= MOST_PIECES * piece:
            continue
        predicted_s = priced_s(model, messages_of, n_bytes, piece)
        if predicted_s < (1 - LEAST_SAVED) * whole_s:
            label = f"{whole.label}, in pieces of {format_size(piece)}"
            build = partial(_in_pieces, plan, model, f"{whole.name}: {label}", piece)
            found.append(Candidate(whole.name, label, predicted_s, build, segment_bytes=piece))
    return found


def _in_pieces(
    plan: Callable[[GridModel, int, str, int], Plan],
    model: GridModel,
    label: str,
    piece: int,
    n_units: int,
) -> Plan:
    return plan(model, n_units, label, piece)


def _direct_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if model.grid.n_ranks == 1:
        return []
    label = "every block to its receiver, all at once"
    messages_of = of_grid(direct_messages)
    whole = _candidate("direct", label, model, messages_of, n_bytes)
    return _with_pieces(whole, _direct, model, messages_of, n_bytes)


def _far_first_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """The messages of a direct exchange in another order: only when the last arrives differs."""
    if model.n_clusters == 1:
        return []
    label = "every block to its receiver, those with the longest way first"

    def messages_of(some: Sample) -> Messages:
        return far_first_messages(some.model.grid, far_order(some.model), some.weights)

    whole = _candidate("far-first", label, model, messages_of, n_bytes)
    return _with_pieces(whole, _far_first, model, messages_of, n_bytes)


def _paced_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Where there are many ranks, their blocks outlast the longest way in any order."""
    n_ranks = model.grid.n_ranks
    if not 1 < n_ranks <= MOST_PACED_RANKS or pace_of(model, 0, n_bytes) is None:
        return []
    label = "a block at a time, those with the longest way first"

    def messages_of(some: Sample) -> Messages:
        return paced_messages(_rounds(some.model))

    whole = _candidate("paced", label, model, messages_of, n_bytes)
    return _with_pieces(whole, _paced, model, messages_of, n_bytes)


def _pairwise_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """A slot is taken until its message is handed over, which is when the next could leave."""
    if model.grid.n_ranks == 1:
        return []
    label = f"{N_PAIRWISE_SLOTS} sends at a time"
    return [_candidate("pairwise", label, model, of_grid(pairwise_messages), n_bytes)]


def _bruck_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    n_ranks = model.grid.n_ranks
    if n_ranks == 1:
        return []
    label = f"{(n_ranks - 1).bit_length()} steps"
    predicted_s = price_messages_s(model, bruck_messages(n_ranks), n_bytes)
    return [Candidate("bruck", label, predicted_s, _builder("bruck", label, model))]


def has_both(grid: Grid) -> bool:
    """Whether there is anything to do inside a cluster and anything between two."""
    return len(grid.clusters) > 1 and len(grid.clusters) < grid.n_ranks


def _coordinator_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if not has_both(grid) or coordinator_blocks(grid) * n_bytes > MOST_COORDINATOR_BYTES:
        return []
    n_messages = model.n_clusters * (model.n_clusters - 1)
    label = f"{n_messages} messages between clusters, through coordinators"
    found = [_candidate("coordinator", label, model, of_grid(coordinator_messages), n_bytes)]
    if model.n_clusters > 2:
        found += _hub_candidates(model, n_bytes)
    return found


def _hub_candidates(model: GridModel, n_bytes: int) -> list[Candidate]:
    grid, hub = model.grid, find_hub(model.latency_s)
    if hub_blocks(grid, hub) > min(MOST_HUB_BLOCKS, MOST_COORDINATOR_BYTES // max(n_bytes, 1)):
        return []
    label = f"{2 * (model.n_clusters - 1)} messages between clusters, coordinators meet at "
    label += grid.clusters[hub].name

    def messages_of(some: Sample) -> Messages:
        part = some.model
        return hub_messages(part.grid, find_hub(part.latency_s), some.weights)

    predicted_s = priced_s(model, messages_of, n_bytes)

    def build(n_units: int) -> Plan:
        return plan_hub(grid, hub, n_units, f"coordinator: {label}")

    return [Candidate("coordinator", label, predicted_s, build)]


def by_host(grid: Grid) -> Grid:
    """The grid whose clusters are the hosts of ``grid``."""
    return grid.regroup(grid.host_of)


def _node_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    hosts = by_host(model.grid)
    if not has_both(hosts) or coordinator_blocks(hosts) * n_bytes > MOST_COORDINATOR_BYTES:
        return []
    n_messages = len(hosts.clusters) * (len(hosts.clusters) - 1)
    label = f"{n_messages} messages between hosts, through a rank of each"

    def messages_of(some: Sample) -> Messages:
        of_hosts, cluster_of = by_host(some.model.grid), some.model.grid.cluster_of
        weights = (some.weights[cluster_of[host.ranks[0]]] for host in of_hosts.clusters)
        return coordinator_messages(of_hosts, tuple(weights))

    return [_candidate("nodes", label, model, messages_of, n_bytes)]


register(
    "alltoall",
    Algorithm(
        "direct",
        "long blocks: interfaces pass nothing twice",
        "003 section 5, direct exchange, rotated",
        _direct_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "far-first",
        "long blocks between clusters: latency passes while interfaces send to neighbours",
        "gridcoll; direct exchange ordered by the model's latencies",
        _far_first_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "paced",
        "middle sizes between clusters: no receiver idles while another has a queue",
        "gridcoll; a direct exchange in perfect matchings (König 1916), kept by the clock",
        _paced_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "pairwise",
        "long blocks where many flows at once hinder one another",
        "MPICH and Open MPI's pairwise exchange, without its steps",
        _pairwise_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "bruck",
        "tiny blocks among many ranks of one cluster",
        "Bruck et al. 1997",
        _bruck_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "coordinator",
        "tiny blocks where messages between clusters cost most",
        "PACX and MagPIe, as 001 section 4.1 tells of them",
        _coordinator_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "nodes",
        "tiny blocks where several ranks share a host",
        "gridcoll; the coordinators of 001 section 4.1, a host each",
        _node_candidates,
    ),
)
