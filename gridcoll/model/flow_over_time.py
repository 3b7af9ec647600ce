"""How soon a message can arrive at another cluster over all paths at once.

The path with the highest bandwidth may be long, and the shortest one may be slow. By time ``T``, a
path of latency ``L`` has carried data for ``T - L``. The maximum flow over time (Ford and Fulkerson
1958) repeats the flows that are found on successive shortest paths.
"""

from __future__ import annotations

from collections import deque
from itertools import product

from msgspec import Struct

from gridcoll.model.plogp import FloatArray
from gridcoll.model.wires import Wires

MOST_PATHS = 64
"""The search ends after this many paths; the length of the last one is then the lower bound."""


class _Arc(Struct):
    """An arc of the residual network; ``reverse`` is the index of the opposite arc."""

    end: int
    residual: float
    length_s: float
    reverse: int


class _Network:
    """The residual network of clusters. A cluster has a node each for itself, its exit, its entry.

    Arcs are uplinks, from a cluster to its exit and from its entry to it, and links between. They
    carry ``exits`` and ``entries``, both (C,), in bytes per second.
    """

    def __init__(self, wires: Wires, exits: FloatArray, entries: FloatArray) -> None:
        n = len(wires.grid.clusters)
        self.n = n
        self.arcs: list[_Arc] = []
        self.arcs_from: list[list[int]] = [[] for _ in range(3 * n)]
        for c in range(n):
            self._join(c, n + c, float(exits[c]), 0.0)
            self._join(2 * n + c, c, float(entries[c]), 0.0)
            for d in range(n):
                if c != d:
                    rate, length_s = wires.rate_bytes_per_s[c, d], wires.latency_s[c, d]
                    self._join(n + c, 2 * n + d, float(rate), float(length_s))

    def _join(self, start: int, end: int, rate: float, length_s: float) -> None:
        k = len(self.arcs)
        self.arcs += [_Arc(end, rate, length_s, k + 1), _Arc(start, 0.0, -length_s, k)]
        self.arcs_from[start].append(k)
        self.arcs_from[end].append(k + 1)

    def shortest(self, source: int, target: int) -> tuple[float, list[int]]:
        """Return length and arcs of the shortest path with capacity left; infinite if none."""
        distance_s = [float("inf")] * (3 * self.n)
        arc_to = [-1] * (3 * self.n)
        distance_s[source] = 0.0
        queue, queued = deque([source]), {source}
        while queue:
            here = queue.popleft()
            queued.discard(here)
            for k in self.arcs_from[here]:
                arc = self.arcs[k]
                there_s = distance_s[here] + arc.length_s
                if arc.residual > 0 and there_s < distance_s[arc.end] - 1e-12:
                    distance_s[arc.end], arc_to[arc.end] = there_s, k
                    if arc.end not in queued:
                        queued.add(arc.end)
                        queue.append(arc.end)
        path: list[int] = []
        end = target
        while end != source and arc_to[end] >= 0:
            path.append(arc_to[end])
            end = self.arcs[self.arcs[arc_to[end]].reverse].end
        return distance_s[target], path


def over_all_paths_s(wires: Wires, source: int, target: int, n_bytes: float) -> float:
    """No ``n_bytes`` of a host arrive at a host of another cluster sooner, over any paths.

    Interfaces of relays are left out. Those of the two hosts also let a burst pass at once; so the
    bound with an interface is for that much less data. Infinite if there is no path.
    """
    latest_s = 0.0
    for with_exit, with_entry in product((False, True), repeat=2):
        exits, entries = (wires.uplink_bytes_per_s.astype(float) for _ in range(2))
        if with_exit:
            exits[source] = min(exits[source], wires.nic_bytes_per_s[source])
        if with_entry:
            entries[target] = min(entries[target], wires.nic_bytes_per_s[target])
        left = n_bytes - (with_exit + with_entry) * wires.burst_bytes
        if left >= 0:
            network = _Network(wires, exits, entries)
            latest_s = max(latest_s, _soonest_s(network, source, target, left))
    return latest_s


def _soonest_s(network: _Network, source: int, target: int, n_bytes: float) -> float:
    """Return when ``n_bytes`` can have arrived over all paths of ``network`` together."""
    rate = delayed = 0.0  # of all paths so far: their rate, and the sum of rate times length
    length_s, soonest_s = 0.0, float("inf")
    for _ in range(MOST_PATHS):
        length_s, path = network.shortest(source, target)
        if length_s >= soonest_s:
            return soonest_s
        more = min(network.arcs[k].residual for k in path)
        if more == float("inf"):
            return length_s
        for k in path:
            network.arcs[k].residual -= more
            network.arcs[network.arcs[k].reverse].residual += more
        rate, delayed = rate + more, delayed + more * length_s
        soonest_s = (n_bytes + delayed) / rate
    return length_s
