"""Chooses the method for an all-to-all of unequal blocks, once all ranks know all counts.

The direct exchange is used unless another method is predicted to be faster by the margin. Counts
must be exchanged first; whether that can pay depends only on the grid (`can_gain`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gridcoll.constants import DETOUR_GAIN, LINK_PACE, MARGIN, QUEUE_BYTES, THIN_LINK
from gridcoll.errors import UsageError
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.model.routing import find_routes
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.direct import far_order, farthest_first_peers
from gridcoll.plan.alltoall.exchange import has_both
from gridcoll.plan.alltoall.messages import messages_of, rows_table
from gridcoll.plan.alltoall.unequal import (
    Counts,
    adapted_bundles,
    bundles_messages,
    bundles_program,
    cut_by_shares,
    direct_shares,
    link_loads,
    most_stored,
    numbered_bundles,
    parts_messages,
    parts_program,
    stored_bytes,
    unequal_plan,
)
from gridcoll.plan.alltoall.vector import vector_program
from gridcoll.plan.blocks import LARGEST_MESSAGE
from gridcoll.plan.choice import Choice
from gridcoll.plan.natives import NATIVE, NATIVES, ONE_HOST
from gridcoll.plan.pacing import thin_links
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate
from gridcoll.topology.units import format_size

MOST_RANKS = 64
"""Limit of ranks, since every rank looks at all blocks."""

MOST_STORED = 2
"""A rank stores for others at most this times what the busiest rank sends or receives."""

DIRECT_ABOVE_BYTES = (1 << 10, 8 << 10)
"""Adapted LG is tried with each of these limits, beyond which blocks go directly."""

UNEQUAL_METHODS = {
    **dict.fromkeys(("lg", "lg-adaptive", "lg-steps"), "lg"),
    "relayed": "relayed",
    "rate-paced": "paced",
}
"""The method for unequal blocks by the name of an all-to-all algorithm; others mean direct."""


def unequal_method(forced: str) -> str:
    """Return the method for the ``forced`` algorithm of `Alltoall`; empty if none is forced."""
    return UNEQUAL_METHODS.get(forced, "direct") if forced else ""


def can_gain(model: GridModel) -> bool:
    """Whether, on this grid, another method could be faster than the direct one for some counts.

    Relays or pacing can be faster if a link between clusters has less bandwidth than an interface,
    or than all interfaces of both ends. LG can be faster if a message between clusters costs more
    than one inside.
    """
    grid = model.grid
    if model.n_clusters == 1 or not 2 < grid.n_ranks <= MOST_RANKS:
        return False
    return bool(_narrow(model).any()) or (has_both(grid) and _messages_cost(model))


def _narrow(model: GridModel) -> np.ndarray:
    """Return which links carry less than the interfaces at their ends could, (C, C)."""
    hosts = _interfaces(model)
    narrow = model.link_bytes_per_s < THIN_LINK * np.minimum(hosts[:, None], hosts[None])
    np.fill_diagonal(narrow, False)
    return np.asarray(narrow)


def _messages_cost(model: GridModel) -> bool:
    """Whether an empty message between clusters costs more than two inside, so collecting pays."""
    gap_s, _ = model.gap_and_one_way_s(np.zeros(1))
    inside = np.diagonal(gap_s[..., 0])
    across = np.where(np.eye(model.n_clusters, dtype=bool), 0.0, gap_s[..., 0]).max(axis=1)
    return bool((across > 2 * inside).any())


def _interfaces(model: GridModel) -> FloatArray:
    n_hosts = np.array(model.grid.hosts_per_cluster, float)
    return np.asarray(n_hosts * np.diagonal(model.flow_bytes_per_s))


def choose_unequal(model: GridModel, counts: Counts, forced: str = "") -> Choice:
    """Return the choice of the method that is predicted fastest for ``counts``.

    It is a pure function of what all ranks know. ``counts`` are bytes by source and target, (P, P).
    ``forced`` is a method, as returned by `unequal_method`.

    Raises `UsageError` if ``counts`` has another shape or a negative count.
    """
    n = model.grid.n_ranks
    if counts.shape != (n, n) or (counts < 0).any():
        raise UsageError(f"counts: must be {n} times {n}, none negative, got {counts.shape}")
    n_bytes = int(counts.mean())
    if model.grid.is_one_host and not forced:  # reached only if a choice is asked for before a call
        native = Candidate(NATIVE, NATIVES[NATIVE].label, None)
        return Choice("alltoallv", n_bytes, 0, native, (native,), ONE_HOST)
    direct = _direct(model, counts)
    found = [direct]
    fits = model.n_clusters > 1 and n <= MOST_RANKS and 0 < counts.max() <= LARGEST_MESSAGE
    if forced != "direct" and fits:
        found += _with_parts(model, counts, forced)
        found += _with_collectors(model, counts, forced)
    by_time = tuple(sorted(found, key=_predicted_s))
    named = [candidate for candidate in by_time if candidate.name in (forced, f"{forced}-adaptive")]
    if forced:
        winner, reason = (named or [direct])[0], "asked for" if named else "no other way fits"
    elif _predicted_s(by_time[0]) < (1 - MARGIN) * _predicted_s(direct):
        winner, reason = by_time[0], "predicted fastest"
    else:
        winner, reason = direct, f"no other way is predicted more than {MARGIN:.0%} faster"
    return Choice("alltoallv", n_bytes, 0, winner, by_time, reason)


def _predicted_s(candidate: Candidate) -> float:
    return candidate.predicted_s or 0.0


def _candidate(
    model: GridModel,
    counts: Counts,
    name: str,
    label: str,
    predicted_s: float,
    program_of: Callable[[int], Program],
) -> Candidate:
    def build(_n_units: int) -> Plan:
        programs = Programs(model.grid.n_ranks, program_of)
        return unequal_plan(f"{name}: {label}", counts, programs)

    return Candidate(name, label, predicted_s, build)


def _direct(model: GridModel, counts: Counts) -> Candidate:
    clusters = [cluster.ranks for cluster in model.grid.clusters]
    order = far_order(model)
    peers = [farthest_first_peers(clusters, order, rank) for rank in range(model.grid.n_ranks)]

    def program_of(rank: int) -> Program:
        return vector_program(rank, counts[rank].tolist(), counts[:, rank].tolist(), peers[rank])

    rows = [
        (rank, peer, float(counts[rank, peer]), 1, 1, 1)
        for rank, others in enumerate(peers)
        for peer in others
        if counts[rank, peer]
    ]
    label = "every block to its receiver, those with the longest way first"
    predicted_s = price_messages_s(model, messages_of([rows_table(rows)]), 1)
    return _candidate(model, counts, "direct", label, predicted_s, program_of)


def _with_parts(model: GridModel, counts: Counts, forced: str) -> list[Candidate]:
    """Return relays if they relieve the busiest link, and pacing if a thin link would overflow."""
    if forced == "lg":
        return []
    grid, found = model.grid, []
    label_of = np.array(grid.cluster_of)
    member = np.eye(model.n_clusters)[label_of]
    demand = member.T @ counts @ member
    np.fill_diagonal(demand, 0.0)
    if not demand.any():
        return []
    direct_parts = cut_by_shares(grid, counts, direct_shares(model.n_clusters))
    thin = thin_links(model)
    busy_s = demand / model.link_bytes_per_s
    overflows = bool((thin & (demand > QUEUE_BYTES)).any())
    if forced != "relayed" and (overflows or forced == "paced"):
        # The time of the busiest link by the clock, and that of interfaces.
        clock_s = LINK_PACE * float(np.where(thin, busy_s + model.latency_s, 0.0).max())
        priced_s = price_messages_s(model, parts_messages(grid, counts, direct_parts), 1)
        label = f"over thin links no faster than they carry, {len(direct_parts)} parts"
        program_of = partial(parts_program, model, counts, direct_parts)
        found.append(_candidate(model, counts, "paced", label, max(clock_s, priced_s), program_of))
    if forced == "paced" or model.n_clusters < 3 or not (_narrow(model) | (forced != "")).any():
        return found
    routes = find_routes(demand, model.link_bytes_per_s, _interfaces(model), 0.05)
    if routes.gain < (1.0 if forced else DETOUR_GAIN):
        return found
    parts = cut_by_shares(grid, counts, routes.shares)
    largest = max(counts.sum(axis=0).max(), counts.sum(axis=1).max())
    if max(stored_bytes(parts, grid.n_ranks)) > MOST_STORED * largest:
        return found
    predicted_s = price_messages_s(model, parts_messages(grid, counts, parts), 1)
    n_relayed = int(link_loads(grid, parts).sum() - demand.sum())
    label = f"{routes.gain:.2g} times the direct way's throughput, {format_size(n_relayed)} relayed"
    program_of = partial(parts_program, model, counts, parts)
    found.append(_candidate(model, counts, "relayed", label, predicted_s, program_of))
    return found


def _with_collectors(model: GridModel, counts: Counts, forced: str) -> list[Candidate]:
    """Return LG with the paper's numbering, and LG adapted to the counts."""
    grid = model.grid
    if forced not in ("", "lg") or not has_both(grid):
        return []
    if not forced and not _messages_cost(model):
        return []
    found = []
    largest = max(counts.sum(axis=0).max(), counts.sum(axis=1).max())
    methods = [("lg", "by the paper's numbering", numbered_bundles(grid, counts))]
    for longest in (*DIRECT_ABOVE_BYTES, int(counts.max())):
        how = f"collectors busy alike, blocks over {format_size(longest)} directly"
        methods.append(("lg-adaptive", how, adapted_bundles(grid, counts, longest)))
    for name, label, bundles in methods:
        if most_stored(counts, bundles) > MOST_STORED * largest and not forced:
            continue
        predicted_s = price_messages_s(model, bundles_messages(grid, counts, bundles), 1)
        program_of = partial(bundles_program, grid, counts, bundles)
        found.append(_candidate(model, counts, name, label, predicted_s, program_of))
    return found
