"""The price of several trees at once, each carrying its share of the segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gridcoll.model.plogp import FloatArray
from gridcoll.plan.gridtree import GridTree
from gridcoll.plan.lines import crossings_of
from gridcoll.plan.predict import SegmentCosts, TreePrice, price_tree
from gridcoll.schedule.trees import degrees
from gridcoll.topology.grid import Grid


@dataclass(frozen=True)
class Load:
    """What one segment, averaged over trees, asks of the busiest resource of each kind.

    Attributes
    ----------
    interfaces : (C,) array
        Sends per segment of the busiest interface of each cluster, or what it takes in if that is
        more, as where ranks share one; at least 1, what each rank receives.
    flows, links : dict of (int, int) to float
        Transfers per segment between clusters: of the busiest pair of ranks, and of all.
    """

    interfaces: FloatArray
    flows: dict[tuple[int, int], float]
    links: dict[tuple[int, int], float]


def load_of(trees: Sequence[GridTree], grid: Grid) -> Load:
    """The load of ``trees`` that take turns segment by segment, some more often than others."""
    sends = [np.zeros(len(cluster)) for cluster in grid.clusters]
    pairs: Counter[tuple[int, int]] = Counter()
    for tree, n_turns in Counter(trees).items():
        share = n_turns / len(trees)
        served = Counter(sender for sender, _ in tree.transfers)
        for cluster, of_members in enumerate(sends):
            n_fixed = int(cluster == grid.cluster_of[tree.root])  # the root leads all lines
            own = share * degrees(tree.shapes[cluster], len(of_members))
            own[tree.relays[cluster]] += share * served[cluster]
            of_members[:n_fixed] += own[:n_fixed]
            _add_turned(of_members[n_fixed:], own[n_fixed:], tree.lane)
        for sender, receiver in tree.transfers:
            ends = tree.rank_at(grid, sender, tree.relays[sender]), tree.rank_at(grid, receiver, 0)
            pairs[ends] += n_turns
    interfaces = np.array([max(1.0, float(of_members.max())) for of_members in sends])
    for c in range(len(grid.clusters)):
        if grid.clusters[c].shares_nodes:
            interfaces[c] = _busiest_host(trees, grid, c)
    flows: dict[tuple[int, int], float] = {}
    links: dict[tuple[int, int], float] = {}
    for (sender, receiver), count in pairs.items():
        link, share = (grid.cluster_of[sender], grid.cluster_of[receiver]), count / len(trees)
        flows[link] = max(flows.get(link, 0.0), share)
        links[link] = links.get(link, 0.0) + share
    return Load(interfaces, flows, links)


def _busiest_host(trees: Sequence[GridTree], grid: Grid, cluster: int) -> float:
    """What the busiest host of ``cluster`` sends or takes in per segment."""
    host = np.array(grid.host_of)
    hosts = np.unique(host[list(grid.clusters[cluster].ranks)], return_inverse=True)
    number = dict(zip(grid.clusters[cluster].ranks, hosts[1].tolist(), strict=True))
    out, into = np.zeros((2, len(hosts[0])))
    for tree, n_turns in Counter(trees).items():
        line = np.array([number[rank] for rank in tree.line(grid, cluster)])
        sent, taken = crossings_of(tree.shapes[cluster], line, len(out))
        sent[line[tree.relays[cluster]]] += len(tree.outgoing[cluster])
        taken[line[0]] += cluster != grid.cluster_of[tree.root]
        out += n_turns / len(trees) * sent
        into += n_turns / len(trees) * taken
    return float(max(out.max(), into.max(), 1.0))


def _add_turned(total: FloatArray, line: FloatArray, places: int) -> None:
    """Add ``line`` to ``total``, turned by ``places``; `numpy.roll` would take most of choosing."""
    at = places % max(len(line), 1)
    total[at:] += line[: len(line) - at]
    total[:at] += line[len(line) - at :]


def price_several(costs: SegmentCosts, trees: Sequence[GridTree], load: Load) -> TreePrice:
    """Price ``trees`` together at every segment size of ``costs``.

    The first segments go down all trees as if each were alone; from then on the busiest interface
    sets the pace for all, and the busiest flow or link of a tree for that tree.
    """
    interfaces_s = (load.interfaces[:, None] * costs.port_s).max(axis=0)
    pace_s = _pace_between(costs, load)
    rest = np.maximum(costs.n_segments - 1, 0)
    first, period, total = np.zeros((3, len(rest)))
    for tree in {(t.transfers, t.shapes, t.relays): t for t in trees}.values():
        alone = price_tree(costs, tree.transfers, tree.shapes, tree.relays)
        own = np.max([interfaces_s, *(pace_s[link] for link in tree.transfers)], axis=0)
        first, period = np.maximum(first, alone.first_s), np.maximum(period, own)
        total = np.maximum(total, alone.first_s + rest * own)
    return TreePrice(first, period, total)


def _pace_between(costs: SegmentCosts, load: Load) -> dict[tuple[int, int], FloatArray]:
    """Seconds per segment of the message that every link, or its busiest flow, is busy, (S,)."""
    segment = np.minimum(costs.segment_bytes, costs.n_bytes).astype(float)
    gaps, _ = costs.between(list(load.flows))
    return {
        link: np.maximum(
            load.flows[link] * gap, load.links[link] * segment / costs.model.link_bytes_per_s[link]
        )
        for link, gap in zip(load.flows, gaps, strict=True)
    }
