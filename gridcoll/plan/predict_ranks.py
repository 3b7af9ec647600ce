"""The steady-state price of a tree that was laid over ranks without regard to clusters."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gridcoll.model.costs import REQUEST_BYTES
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.collectives.bcast import RankTree
from gridcoll.plan.predict import SegmentCosts, TreePrice


def price_ranks(costs: SegmentCosts, tree: RankTree) -> TreePrice:
    """Price ``tree`` at every segment size of ``costs``, rank by rank.

    As `predict.price_tree`, but the tree may cross between clusters wherever it likes; what crosses
    on several edges shares the link.
    """
    cluster_of = costs.model.grid.cluster_of
    first = np.zeros((len(tree.children), len(costs.segment_bytes)))
    pace = np.zeros_like(first)
    flows: Counter[tuple[int, int]] = Counter()
    frontier = [tree.root]
    for rank in frontier:
        port_s = costs.port_s[cluster_of[rank]]
        slowest = np.maximum(pace[rank], len(tree.children[rank]) * port_s)
        for position, child in enumerate(tree.children[rank]):
            link = cluster_of[rank], cluster_of[child]
            first[child] = first[rank] + position * port_s + costs.alone_s[link]
            pace[child] = np.maximum(slowest, costs.gap_s[link])
            flows[link] += 1
        frontier.extend(tree.children[rank])
    segment = np.minimum(costs.segment_bytes, costs.n_bytes).astype(float)
    for (i, j), count in flows.items():
        if i != j:
            shared_s = count * segment / costs.model.link_bytes_per_s[i, j]
            np.maximum(pace, np.where(pace > 0, shared_s, 0.0), out=pace)
    return TreePrice(
        first_s=first.max(axis=0),
        period_s=pace.max(axis=0),
        total_s=(first + (costs.n_segments - 1) * pace).max(axis=0),
    )


def price_rendezvous(model: GridModel, tree: RankTree, n_bytes: int) -> float:
    """Seconds of a broadcast in one piece that asks on every edge of ``tree`` before it sends.

    A rank asks all its children one after the other, and sends to them in the order of their
    answers.
    """
    sizes = np.array([REQUEST_BYTES, n_bytes], dtype=float)
    (ask_s, send_s), (asked_s, sent_s) = (
        np.moveaxis(t, 2, 0) for t in model.gap_and_alone_s(sizes)
    )
    cluster_of = model.grid.cluster_of
    have = [0.0] * len(tree.children)
    frontier = [tree.root]
    for rank in frontier:
        mine, children = cluster_of[rank], tree.children[rank]
        free = have[rank] + len(children) * ask_s[mine, mine]
        answers = []
        for position, child in enumerate(children):
            theirs = cluster_of[child]
            asked = have[rank] + position * ask_s[mine, mine]
            answers.append((asked + asked_s[mine, theirs] + asked_s[theirs, mine], position, child))
        for answered, _, child in sorted(answers):
            start = max(free, answered)
            have[child] = start + float(sent_s[mine, cluster_of[child]])
            free = start + send_s[mine, mine]
        frontier.extend(children)
    return max(have)
