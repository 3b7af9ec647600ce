"""What was found of links, relative to a model, and the model that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gridcoll.constants import WINDOWS_SURELY_LIMIT
from gridcoll.model import GridModel, PLogP, SlowHosts
from gridcoll.model.gridmodel import CHANGED_SOURCE
from gridcoll.model.plogp import LONG_BYTES

Pair = tuple[int, int]
"""Numbers of two clusters: sender and receiver. Equal numbers mean the links between its hosts."""

Ends = tuple[int, int]
"""Two ranks: sender and receiver."""

Route = tuple[Pair, Ends]
"""Two clusters, and the ranks that measure between them."""

CHANGED = 1.25
"""A link has changed if its latency or its gap is at least this many times as large or as small as
before. Measured again on the same network, both are within 10 %, beside other traffic within
20 %."""

MESSAGE_BYTES = 32 << 10
"""Bytes of a message whose gap is compared."""


class LinkFactors(Struct, frozen=True):
    """A measured link relative to the model: factors of latency and gap, and its ends if known."""

    latency: float
    gap: float
    ends: Ends | None = None
    together_bytes_per_s: float = 0.0
    """Rate of several flows at once; infinite if they do not slow each other, 0 if not measured."""
    open_gap: float = 0.0
    """Factor of the gap of one flow that carries as much as several; 0 if not measured. 1 for a
    longer link whose window is still opening; several flows are not measured there."""
    slow_hosts: tuple[str, ...] = ()
    """Inside a cluster, the hosts that the gap belongs to; empty if it belongs to all of them."""

    @property
    def changed(self) -> bool:
        """Whether the link changed."""
        return any(map(differs, (self.latency, self.gap)))

    def nearer(self, other: LinkFactors) -> LinkFactors:
        """Return the values nearer to the model, of this look and an ``other`` one."""
        latency, gap = (
            min(pair, key=lambda factor: abs(math.log(max(factor, 1e-9))))
            for pair in ((self.latency, other.latency), (self.gap, other.gap))
        )
        open_gap = self.open_gap or other.open_gap
        return LinkFactors(latency, gap, open_gap=open_gap)

    @property
    def waits(self) -> bool:
        """Whether one flow waits for its own TCP window, because several carry much more."""
        return 0 < self.open_gap * WINDOWS_SURELY_LIMIT < self.gap

    def opened(self) -> LinkFactors:
        """Return the link as it will be when use has opened the windows that flows wait for."""
        return replace(self, gap=max(self.open_gap, 1.0)) if self.waits else self

    def risen(self) -> LinkFactors:
        """Return the same for a link that was worse at the previous look.

        Its slowest flow hides the others. Until the next look, all flows together are taken to
        carry what they did in the first model.
        """
        return replace(self, together_bytes_per_s=math.inf)

    def is_like(self, other: LinkFactors) -> bool:
        """Whether both describe the same link, up to the differences between two looks."""
        mine, others = (
            (each.latency, each.gap, each.together_bytes_per_s) for each in (self, other)
        )
        return self.slow_hosts == other.slow_hosts and all(
            a == b or not differs(a / max(b, 1e-9)) for a, b in zip(mine, others, strict=True)
        )


def found_of(model: GridModel, before: GridModel) -> dict[Pair, LinkFactors]:
    """Return the links of ``model`` that differ from those of ``before``, relative to these."""
    n = range(model.n_clusters)
    found = {
        (a, b): found_link(link, old)
        for a in n
        for b in n
        if (link := model.link(a, b)) != (old := before.link(a, b))
    }
    for each in model.slow_hosts:
        found[each.cluster, each.cluster] = LinkFactors(
            1.0, each.factor, _ends_of(model, each), slow_hosts=each.hosts
        )
    return found


def _ends_of(model: GridModel, slow: SlowHosts) -> Ends | None:
    """Return a rank on a slow host and a rank on another one of its cluster; None if all are."""
    ranks = [node[0] for node in model.grid.clusters[slow.cluster].nodes]
    first = next(each.rank for each in ranks if each.host in slow.hosts)
    others = [each.rank for each in ranks if each.host not in slow.hosts]
    return (first, others[0]) if others else None


def found_link(link: PLogP, old: PLogP) -> LinkFactors:
    """Return ``link`` relative to ``old``."""
    return LinkFactors(
        link.latency_s / max(old.latency_s, 1e-9),
        link.gap(MESSAGE_BYTES) / max(old.gap(MESSAGE_BYTES), 1e-9),
    )


def changed_model(model: GridModel, found: Mapping[Pair, LinkFactors]) -> GridModel | None:
    """Return ``model`` with the changed links; None if no link changed.

    Measured times of natives are dropped, because they belong to another network.
    """
    changed = {pair: each for pair, each in found.items() if each.changed}
    if not changed:
        return None
    slow = [SlowHosts(c, each.slow_hosts, each.gap) for (c, _), each in changed.items()]
    slow = [each for each in slow if each.hosts]
    links = [pair for pair, each in changed.items() if not each.slow_hosts]
    new = {pair: scaled(model.link(*pair), changed[pair]) for pair in links}
    together = {pair: carried_together(model, pair, changed) for pair in links}
    return with_links(model, new, together, slow)


def with_links(
    model: GridModel,
    new: Mapping[Pair, PLogP],
    together_bytes_per_s: Mapping[Pair, float],
    slow_hosts: Iterable[SlowHosts] = (),
) -> GridModel:
    """Return ``model`` with ``new`` links, rates of flows together over them, and slow hosts."""
    links = tuple(
        tuple(new.get((i, j), link) for j, link in enumerate(row))
        for i, row in enumerate(model.links)
    )
    together = tuple(
        tuple(together_bytes_per_s.get((i, j), rate) for j, rate in enumerate(row))
        for i, row in enumerate(model.aggregate_bytes_per_s)
    )
    sources = tuple(
        tuple(
            CHANGED_SOURCE if (i, j) in new else model.source(i, j) for j in range(model.n_clusters)
        )
        for i in range(model.n_clusters)
    )
    return replace(
        model,
        links=links,
        aggregate_bytes_per_s=together,
        native={},
        native_variants={},
        sources=sources,
        slow_hosts=tuple(slow_hosts),
    )


def carried_together(model: GridModel, pair: Pair, found: Mapping[Pair, LinkFactors]) -> float:
    """Return what all flows carry between the clusters of ``pair``, at most the rate in ``model``.

    A longer latency or a slower interface slows each flow by itself. If one flow is slower for
    another reason, and several were not measured, the link is taken to carry only what one flow
    carries.
    """
    before_bytes_per_s = float(model.link_bytes_per_s[pair])
    each = found[pair]
    if each.together_bytes_per_s and each.gap > CHANGED:
        return min(before_bytes_per_s, each.together_bytes_per_s)
    if is_thinner(model, pair, found):
        return LONG_BYTES / scaled(model.link(*pair), each).gap(float(LONG_BYTES))
    return before_bytes_per_s / each.gap


def is_thinner(model: GridModel, pair: Pair, found: Mapping[Pair, LinkFactors]) -> bool:
    """Whether one flow is slower by more than a longer latency or a slower interface explains.

    The flow is between coordinators, so another host's interface explains nothing.
    """
    each = found[pair]
    alone = max(each.latency, 1.0)
    for c in pair:
        inside = found.get((c, c))
        if inside and slows_coordinator(model, c, inside):
            alone = max(alone, inside.gap)
    return each.gap > CHANGED * alone


def slows_coordinator(model: GridModel, c: int, inside: LinkFactors) -> bool:
    """Whether what was found ``inside`` cluster ``c`` may be its coordinator's interface."""
    coordinator = model.grid.clusters[c].coordinator
    if inside.slow_hosts:
        return model.grid.hosts[coordinator] in inside.slow_hosts
    return not inside.ends or coordinator in inside.ends


def scaled(link: PLogP, found: LinkFactors) -> PLogP:
    """Return ``link`` with the latency and rate that were ``found``.

    The gap of an empty message stays the same.
    """
    latency_s = link.latency_s * (found.latency if differs(found.latency) else 1.0)
    factor = found.gap if differs(found.gap) else 1.0
    gaps = tuple(link.gap_s[0] + (each - link.gap_s[0]) * factor for each in link.gap_s)
    more_s = latency_s - link.latency_s
    one_way = tuple(
        each + more_s + new - old
        for each, new, old in zip(link.one_way_s, gaps, link.gap_s, strict=False)
    )
    return replace(link, latency_s=latency_s, gap_s=gaps, one_way_s=one_way)


def differs(factor: float) -> bool:
    """Whether ``factor``, of a latency or a gap, means that the link changed."""
    return not 1 / CHANGED < factor < CHANGED
