"""How soon a message can be at another cluster over all ways at once.

The widest way may be long and the shortest one thin. By time ``T``, ways of length ``L`` have
carried what they carry in ``T - L``: the maximum flow over time (Ford and Fulkerson 1958), which
repeats the flows that successive shortest ways find.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gridcoll.model.wires import Wires

MOST_WAYS = 64
"""More are not looked for: so long as the next one would be it takes at least."""


@dataclass
class _Arc:
    """Its ``back`` way gives back what goes over it."""

    end: int
    left: float
    length_s: float
    back: int


class _Network:
    """Clusters, what enters them and what leaves them; links between, uplinks on either side."""

    def __init__(self, wires: Wires) -> None:
        n = len(wires.grid.clusters)
        self.n = n
        self.arcs: list[_Arc] = []
        self.at: list[list[int]] = [[] for _ in range(3 * n)]
        for c in range(n):
            uplink = float(wires.uplink_bytes_per_s[c])
            self._join(c, n + c, uplink, 0.0)  # leaves
            self._join(2 * n + c, c, uplink, 0.0)  # enters
            for d in range(n):
                if c != d:
                    rate, length_s = wires.rate_bytes_per_s[c, d], wires.latency_s[c, d]
                    self._join(n + c, 2 * n + d, float(rate), float(length_s))

    def _join(self, start: int, end: int, rate: float, length_s: float) -> None:
        k = len(self.arcs)
        self.arcs += [_Arc(end, rate, length_s, k + 1), _Arc(start, 0.0, -length_s, k)]
        self.at[start].append(k)
        self.at[end].append(k + 1)

    def shortest(self, source: int, target: int) -> tuple[float, list[int]]:
        """Length and arcs of the shortest way that is not full; infinite where there is none."""
        away = [float("inf")] * (3 * self.n)
        by = [-1] * (3 * self.n)
        away[source] = 0.0
        waiting, inside = deque([source]), {source}
        while waiting:
            here = waiting.popleft()
            inside.discard(here)
            for k in self.at[here]:
                arc = self.arcs[k]
                there_s = away[here] + arc.length_s
                if arc.left > 0 and there_s < away[arc.end] - 1e-12:
                    away[arc.end], by[arc.end] = there_s, k
                    if arc.end not in inside:
                        inside.add(arc.end)
                        waiting.append(arc.end)
        way: list[int] = []
        end = target
        while end != source and by[end] >= 0:
            way.append(by[end])
            end = self.arcs[self.arcs[by[end]].back].end
        return away[target], way


def over_all_ways_s(wires: Wires, source: int, target: int, n_bytes: float) -> float:
    """No ``n_bytes`` get from one cluster to another sooner, whatever passes them on.

    Interfaces are left out. Infinite where there is no way.
    """
    network = _Network(wires)
    rate = delayed = 0.0  # of all ways so far, and the sum of rate times length
    length_s, soonest_s = 0.0, float("inf")
    for _ in range(MOST_WAYS):
        length_s, way = network.shortest(source, target)
        if length_s >= soonest_s:
            return soonest_s
        more = min(network.arcs[k].left for k in way)
        if more == float("inf"):
            return length_s
        for k in way:
            network.arcs[k].left -= more
            network.arcs[network.arcs[k].back].left += more
        rate, delayed = rate + more, delayed + more * length_s
        soonest_s = (n_bytes + delayed) / rate
    return length_s
