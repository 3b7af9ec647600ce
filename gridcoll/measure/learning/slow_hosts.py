"""Tell which hosts of a cluster are slow, if a pair of them is slower than by the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gridcoll.measure.learning.changes import (
    CHANGED,
    MESSAGE_BYTES,
    Ends,
    LinkFactors,
    Pair,
    Route,
    slows_coordinator,
)
from gridcoll.model import GridModel


def hosts_limit_calls(model: GridModel, cluster: int, found: LinkFactors) -> bool:
    """Whether hosts of ``cluster`` are slower than a link that leaves it, now or by the model."""
    slowest_s = model.link(cluster, cluster).gap(MESSAGE_BYTES) * max(found.gap, 1.0)
    others = [c for c in range(model.n_clusters) if c != cluster]
    return slowest_s >= min((model.link(cluster, c).gap(MESSAGE_BYTES) for c in others), default=0)


class _Hosts:
    """Measured pairs of hosts of cluster ``c``, one rank of each, and which are not slow."""

    def __init__(self, model: GridModel, c: int) -> None:
        self._model, self._c = model, c
        self._gaps: dict[Ends, float] = {}
        self._fast: set[int] = set()

    def enter(self, pair: Pair, ends: Ends, gap: float) -> None:
        """Enter what was measured between two hosts, or between one and another cluster."""
        if pair == (self._c, self._c):
            ends = min(ends), max(ends)
            self._gaps[ends] = max(gap, self._gaps.get(ends, 0.0))
        elif gap * self._message_s(pair) * CHANGED < self._slow_s:
            self._fast.add(ends[pair.index(self._c)])

    def _message_s(self, pair: Pair) -> float:
        return self._model.link(*pair).gap(MESSAGE_BYTES)

    @property
    def _slow_s(self) -> float:
        return max(self._gaps.values()) * self._message_s((self._c, self._c))

    @property
    def _ranks(self) -> list[int]:
        return sorted({rank for pair in self._gaps for rank in pair})

    @property
    def _fine(self) -> list[int]:
        pairs = (pair for pair, gap in self._gaps.items() if gap <= CHANGED)
        return sorted(self._fast.union(*pairs))

    def first_route(self) -> Route | None:
        """Return what to measure if no host is known to be fine: two others, or one elsewhere."""
        c, ranks = self._c, self._ranks
        if self._fine:
            return None
        if len(ranks) > 2:
            return (c, c), (ranks[1], ranks[-1])
        others = (d for d in range(self._model.n_clusters) if d != c)
        nearest = min(others, key=lambda d: self._message_s((c, d)))
        peer = self._model.grid.clusters[nearest].coordinator
        return (c, nearest), (ranks[1], peer)

    def other_routes(self) -> list[tuple[int, Route]]:
        """Return, with the numbers of their rounds, routes from unknown hosts to fine ones."""
        fine = self._fine
        known = {rank for pair in self._gaps if set(pair) & set(fine) for rank in pair}
        unknown = [rank for rank in self._ranks if rank not in known]
        at = (divmod(k, len(fine)) for k in range(len(unknown) if fine else 0))
        return [
            (turn, ((self._c, self._c), (rank, fine[k])))
            for rank, (turn, k) in zip(unknown, at, strict=False)
        ]

    def found(self) -> LinkFactors | None:
        """Return what slows some of the hosts; None if no host is known to be fine."""
        fine = self._fine
        mixed = [pair for pair in self._gaps if len(set(pair) & set(fine)) == 1]
        if not mixed:
            return LinkFactors(1.0, 1.0) if fine else None
        worst = max(mixed, key=self._gaps.__getitem__)
        hosts = tuple(self._model.grid.hosts[rank] for rank in self._ranks if rank not in fine)
        return LinkFactors(1.0, self._gaps[worst], worst, slow_hosts=hosts)


def find_slow_hosts(
    model: GridModel,
    by_route: Mapping[Route, LinkFactors],
    clusters: Iterable[int],
    compare: Callable[[Sequence[Sequence[Route]]], Mapping[Route, LinkFactors]],
) -> dict[int, LinkFactors]:
    """Return what slows each of ``clusters`` in which some hosts are slow and some are not.

    ``by_route`` has pairs of their hosts, and of coordinators. ``compare`` measures more, in rounds
    of disjoint pairs; it is called on all ranks or on none. A host is not slow if it is in a
    pair that is not, or if a flow to another cluster is faster than the slowest pair. Each host
    without such evidence is measured with one that is not slow.
    """
    hosts = {c: _Hosts(model, c) for c in clusters}

    def enter(measured: Mapping[Route, LinkFactors]) -> None:
        for (pair, ends), each in sorted(measured.items(), key=lambda way: len(set(way[0][0]))):
            for c in hosts.keys() & set(pair):
                hosts[c].enter(pair, ends, each.gap)

    def measure(rounds: Sequence[Sequence[Route]]) -> None:
        if rounds:
            enter(compare(rounds))

    enter(by_route)
    measure([[route] for each in hosts.values() if (route := each.first_route())])
    rounds: dict[int, list[Route]] = {}
    for each in hosts.values():
        for turn, route in each.other_routes():
            rounds.setdefault(turn, []).append(route)
    measure(list(rounds.values()))
    return {c: found for c, each in hosts.items() if (found := each.found())}


def explained_links(
    model: GridModel, c: int, found: Mapping[Pair, LinkFactors]
) -> dict[Pair, LinkFactors]:
    """Return links of cluster ``c`` that only a slow host of its coordinator made look slower.

    They are as they were, for flows between other hosts.
    """
    if not (found[c, c].slow_hosts and slows_coordinator(model, c, found[c, c])):
        return {}
    slow_s = found[c, c].gap * model.link(c, c).gap(MESSAGE_BYTES)
    return {
        pair: LinkFactors(each.latency, 1.0)
        for pair, each in found.items()
        if (pair[0] == c) != (pair[1] == c)
        and 1.0 < each.gap <= CHANGED * slow_s / model.link(*pair).gap(MESSAGE_BYTES)
    }
