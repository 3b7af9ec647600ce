"""A direct exchange paced at the rate of links between clusters, or of uplinks, if these limit it.

If all blocks are sent at once, dozens of flows fill the queue before such a link, and segments are
lost. Here all ranks of a cluster send a piece of every block in turn, no faster than the link, and
then the next pieces. Each flow needs a small part of the link, which it gets even with a small
window. All links are used at once, and no piece needs a rendezvous. If windows limit the flows, not
the link, pacing never prevents a window from being filled.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter

import numpy as np

from gridcoll.constants import (
    BUSY_INTERFACE,
    EAGER_PIECES_BYTES,
    INTERFACE_SLACK,
    MOST_RATE_PACED_PIECES,
    PACE,
    QUEUE_BYTES,
    SHORTEST_RATE_PACED_BYTES,
    WINDOWS_LIMIT,
)
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.alltoall.cost import MOST_PACED_RANKS
from gridcoll.plan.alltoall.exchange import exchange_plan, keep_own, pieces_of
from gridcoll.plan.ops import Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm, alias
from gridcoll.topology.units import format_size


def due_times_s(model: GridModel, source: int, target: int, n_bytes: int) -> list[float]:
    """Return when the pieces of a block leave, in seconds after the start.

    The ranks of a cluster have time slots on each of its links. A slot is as long as a piece takes
    on the link. Blocks inside the cluster are spread evenly over the same time: a full interface
    queue would delay acknowledgements, and so the flows that wait for them.
    """
    grid = model.grid
    home, there = grid.cluster_of[source], grid.cluster_of[target]
    inside = home == there
    place, n_home = grid.clusters[home].places[source], len(grid.clusters[home])
    at, n_targets = grid.clusters[there].places[target], len(grid.clusters[there]) - inside
    at -= inside and at > place
    n_pieces = -(-n_bytes // _piece_bytes(n_bytes))
    links_s = _links_s(model, home, n_bytes)
    lasts_s = links_s.max() if inside else links_s[there]
    slot_s = float(lasts_s) / max(n_home * n_targets * n_pieces, 1)
    first = n_home / 2 if inside else place
    turn = (at - place) % n_targets
    return [(first + (turn + k * n_targets) * n_home) * slot_s for k in range(n_pieces)]


def _links_s(model: GridModel, home: int, n_bytes: int) -> np.ndarray:
    """Return the time over which blocks from ``home`` to each cluster are sent, (C,).

    It is at least the time of the interfaces. Blocks are sent slightly faster than the link, as
    long as its queue can hold the excess.
    """
    sizes = np.array(model.grid.ranks_per_cluster, float)
    ahead = QUEUE_BYTES / np.maximum(len(model.grid.clusters[home]) * sizes * n_bytes, 1.0)
    pace = np.where(model.windows_limit[home], PACE, np.maximum(PACE, 1.0 - ahead))
    of_links_s = pace * _busy_s(model, n_bytes)[home]
    return np.asarray(np.maximum(of_links_s, _interfaces_s(model, n_bytes)[home]))


def _busy_s(model: GridModel, n_bytes: int) -> np.ndarray:
    """Return the time of links between clusters for all blocks, (C, C); 0 inside clusters.

    It is at least the time of the sender's uplink for all blocks that leave the cluster, and of the
    receiver's uplink for all that enter.
    """
    sizes = np.array(model.grid.ranks_per_cluster, float)
    uplinks_s = sizes * (sizes.sum() - sizes) * n_bytes / model.uplinks
    links_s = np.outer(sizes, sizes) * n_bytes / model.link_bytes_per_s
    busy_s = np.maximum(links_s, np.maximum.outer(uplinks_s, uplinks_s))
    np.fill_diagonal(busy_s, 0.0)
    return np.asarray(busy_s)


def _interfaces_s(model: GridModel, n_bytes: int) -> np.ndarray:
    """Return the time of an interface for all blocks of its host, with slack, (C,)."""
    most = [max(map(len, cluster.nodes)) for cluster in model.grid.clusters]
    n_blocks = np.array([n_here * (model.grid.n_ranks - n_here) for n_here in most])
    return np.asarray(INTERFACE_SLACK * n_blocks * np.diagonal(model.gap_s(n_bytes)))


def plan_rate_paced(model: GridModel, n_units: int, label: str = "rate-paced") -> Plan:
    """Return a plan that sends every piece of blocks of ``n_units`` bytes in its time slot."""
    n_ranks, piece = model.grid.n_ranks, _piece_bytes(n_units)

    def program_of(rank: int) -> Program:
        others = [other for other in range(n_ranks) if other != rank]
        timed_receives, timed_sends = [], []
        for other in others:
            chunks = pieces_of("output", other, n_units, piece)
            due_times = zip(due_times_s(model, other, rank, n_units), chunks, strict=True)
            timed_receives += [
                (due_s, Recv(other, chunk, k)) for k, (due_s, chunk) in enumerate(due_times)
            ]
            chunks = pieces_of("input", other, n_units, piece)
            due_times = zip(due_times_s(model, rank, other, n_units), chunks, strict=True)
            timed_sends += [
                (due_s, Send(other, chunk, k, due_us=int(due_s * 1e6)))
                for k, (due_s, chunk) in enumerate(due_times)
            ]
        receives = [op for _, op in sorted(timed_receives, key=itemgetter(0))]
        sends = [op for _, op in sorted(timed_sends, key=itemgetter(0))]
        return (*receives, *sends, keep_own(rank, n_units))

    return exchange_plan(label, n_units, Programs(n_ranks, program_of))


def _piece_bytes(n_bytes: int) -> int:
    return max(EAGER_PIECES_BYTES[0], -(-n_bytes // MOST_RATE_PACED_PIECES))


def _links_limit(model: GridModel, n_bytes: int) -> bool:
    """Whether a link is busy longer than any interface.

    If windows limit its flows, being busy nearly as long is enough.
    """
    factor = np.where(model.windows_limit, BUSY_INTERFACE, 1.0)
    return bool((_busy_s(model, n_bytes) > factor * _interfaces_s(model, n_bytes).max()).any())


def _predicted_s(model: GridModel, n_bytes: int) -> float:
    """Return when the last piece leaves plus its one-way time, in seconds.

    It is at least the one-way time of a whole block, as TCP windows limit a flow. If windows limit
    flows below the rates of interfaces, the first window of each flow needs no wait, which saves a
    round trip.
    """
    piece = min(_piece_bytes(n_bytes), n_bytes)
    _, one_way_s = model.gap_and_one_way_s(np.array([piece, n_bytes], float))
    rates = model.flow_bytes_per_s.diagonal()
    below_rates = np.minimum.outer(rates, rates) > WINDOWS_LIMIT * model.flow_bytes_per_s
    saved_s = np.where(model.windows_limit & below_rates, 2 * model.latency_s, 0.0)
    links_s = _busy_s(model, n_bytes) - saved_s
    sent_s = np.maximum(links_s, _interfaces_s(model, n_bytes)[:, None])
    return float(np.maximum(sent_s + one_way_s[..., 0], one_way_s[..., 1]).max())


@algorithm(
    "alltoall",
    "rate-paced",
    "long blocks where links between clusters, or their flows' windows, limit",
    "gridcoll; a direct exchange by the clock",
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return none if links are no bottleneck, since pacing would not help."""
    if (
        model.n_clusters == 1
        or model.grid.n_ranks > MOST_PACED_RANKS
        or n_bytes < SHORTEST_RATE_PACED_BYTES
        or not _links_limit(model, n_bytes)
    ):
        return []
    piece = _piece_bytes(n_bytes)
    label = f"{format_size(min(piece, n_bytes))} at a time over every link"
    plan, segment = partial(plan_rate_paced, model), min(piece, n_bytes)
    predicted_s = _predicted_s(model, n_bytes)
    return [Candidate.planned("rate-paced", label, predicted_s, plan, segment_bytes=segment)]


alias("alltoall", "in-turn", "rate-paced")
