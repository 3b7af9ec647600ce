"""Changes of an emulated network while it runs: the ``[[events]]`` of a grid file."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.topology.units import parse_duration_s, parse_rate_bytes_per_s

_PERCENT = re.compile(r"\s*([0-9.]+)\s*%\s*")


class ChangeSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A change as written in a file: of a link (both directions) or of a host's interface.

    Values that are not given do not change. ``cut`` is how long nothing passes; it may be combined
    with other values.
    """

    link: tuple[str, str] | None = None
    host: str | None = None
    rate: str | None = None
    latency: str | None = None  # one way
    loss: str | None = None  # the share of lost frames, as "1 %"
    cut: str | None = None

    def __str__(self) -> str:
        return f"link {'-'.join(map(repr, self.link))}" if self.link else f"host {self.host!r}"


class EventSpec(ChangeSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[events]]`` table: a change, and its time from the start of the command."""

    at: str


class Change(Struct, frozen=True, kw_only=True):
    """A change in numbers, in times and rates of the (dilated) grid."""

    pairs: list[tuple[int, int]] = []
    """The pairs of clusters that the link connects, each once; empty if a host changes."""
    host: str = ""
    """The host that changes; empty if a link changes."""
    rate_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    latency_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    loss: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Rate, latency and loss are None if they do not change."""
    cut_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long nothing passes; 0: no cut."""
    reset: bool = False
    """Whether to restore the values of the grid file first."""
    at_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """When, from the start."""


def parse_loss(text: str) -> float:
    """Return the fraction in ``text``: 0.01 for ``"1 %"``. Raises `UsageError`."""
    match = _PERCENT.fullmatch(text)
    try:
        loss = float(match[1]) / 100 if match else -1.0
    except ValueError:
        loss = -1.0
    if not 0 <= loss <= 1:
        raise UsageError(f"loss {text!r}: expected a percentage from 0 to 100, as '1 %'")
    return loss


def parse_change(
    spec: ChangeSpec, pairs: list[tuple[int, int]], dilation: float, at: str = "0 s"
) -> Change:
    """Return ``spec`` in numbers; its link connects ``pairs`` of clusters. Raises `UsageError`."""
    if (spec.link is None) == (spec.host is None):
        raise UsageError("give either link or host")
    if spec.host is not None and (spec.latency is not None or spec.loss is not None):
        raise UsageError("a host has a rate and may be cut; latency and loss are a link's")
    rate = None if spec.rate is None else parse_rate_bytes_per_s(spec.rate) / dilation
    if rate == 0:
        raise UsageError(f"rate {spec.rate!r}: must be positive; 'cut' stops everything")
    return Change(
        pairs=pairs,
        host=spec.host or "",
        rate_bytes_per_s=rate,
        latency_s=None if spec.latency is None else parse_duration_s(spec.latency) * dilation,
        loss=None if spec.loss is None else parse_loss(spec.loss),
        cut_s=0.0 if spec.cut is None else parse_duration_s(spec.cut) * dilation,
        reset=all(each is None for each in (spec.rate, spec.latency, spec.loss, spec.cut)),
        at_s=parse_duration_s(at) * dilation,
    )
