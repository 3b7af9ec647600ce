"""Broadcast down several trees: full bandwidth in logarithmic depth, also on thousands of ranks."""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.segments import segments_label
from gridcoll.plan.multi_tree import plan_bcast_down
from gridcoll.plan.multi_tree_cost import PricedTrees, best_trees
from gridcoll.plan.pacing import thin_links
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.plan.trees import SMALLEST_SEGMENT

MULTI_TREE = "multi-tree"
GOOD_FOR = "many ranks: full bandwidth in logarithmic depth"
SOURCE = "Sanders, Speck and Träff 2009, with more trees; between clusters gridcoll"


def label_of(found: PricedTrees, n_bytes: int) -> str:
    """Describe the number of trees, their shape, and the transfers between clusters."""
    trees = found.trees
    label = f"{trees.n_trees} trees, " if trees.n_trees > 1 else ""
    label += f"{trees.shape} inside"
    if trees.transfers:
        senders = [sender for sender, _ in trees.transfers]
        label += f", each cluster serves up to {max(map(senders.count, senders))} others"
    if trees.in_turn:
        label += f", {len(trees.over_clusters)} trees over clusters in turn"
    if len(trees.tops) > 1:
        label += f", {len(trees.tops)} groups of clusters exchange"
    return f"{label}; {segments_label(n_bytes, found.segment_bytes)}"


def is_offered(model: GridModel, n_bytes: int) -> bool:
    """Whether several trees are worth trying.

    Nothing paces their flows, so over thin links they are offered only for messages that are too
    short for a second segment.
    """
    return model.grid.n_ranks > 1 and (
        n_bytes < 2 * SMALLEST_SEGMENT or not thin_links(model).any()
    )


@algorithm("bcast", MULTI_TREE, GOOD_FOR, SOURCE)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if not is_offered(model, n_bytes):
        return []
    found = best_trees(model, n_bytes, model.grid.cluster_of[root], root)
    label, segment = label_of(found, n_bytes), found.segment_bytes

    def build(n_units: int) -> Plan:
        return plan_bcast_down(found.trees, n_units, segment, f"{MULTI_TREE}: {label}")

    return [Candidate(MULTI_TREE, label, found.total_s, build, segment_bytes=segment)]
