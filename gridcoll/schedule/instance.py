"""The parameters of a broadcast between clusters, and how its time is counted."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import force_setattr

from gridcoll.errors import UsageError

Floats = npt.NDArray[np.float64]


class Accounting(Struct, frozen=True):
    """How a schedule's time is counted.

    By default, a sender is busy for the gap. The message arrives at start + gap + latency, and the
    receiver may relay it from then on. A cluster, also the root, starts its internal broadcast
    after the gap of its last send, or at its arrival if it sends nothing. The makespan is the
    latest end.

    The alternatives allow to study the effect of these choices.
    """

    busy: Literal["gap", "gap+latency"] = "gap"
    """How long a send keeps its sender busy: as in one-port LogP, or Bhat's whole transfer."""
    internal: Literal["after-last-send", "from-arrival"] = "after-last-send"
    """When the internal broadcast starts. With ``from-arrival`` it overlaps the cluster's sends."""

    def __post_init__(self) -> None:
        if self.busy not in ("gap", "gap+latency"):
            raise UsageError(f"accounting: busy must be gap or gap+latency, got {self.busy!r}")
        if self.internal not in ("after-last-send", "from-arrival"):
            raise UsageError(
                "accounting: internal must be after-last-send or from-arrival, "
                f"got {self.internal!r}"
            )


class Instance(Struct, frozen=True, eq=False, dict=True):
    """A broadcast to schedule between ``n`` clusters. Arrays are copies; do not write to them.

    Raises `UsageError`, which names the field, for a wrong shape or a negative or infinite entry.
    """

    latency_s: Floats
    gap_s: Floats
    """(n, n) arrays, from sender (row) to receiver (column). The diagonals are ignored."""
    internal_s: Floats
    """(n,) array. How long each cluster's internal broadcast takes."""
    root: int = 0
    """The cluster that has the message."""
    accounting: Accounting = field(default_factory=Accounting)

    def __post_init__(self) -> None:
        internal = np.array(self.internal_s, dtype=np.float64)
        if internal.ndim != 1 or not len(internal):
            raise UsageError(
                f"internal_s: must hold one time per cluster, got shape {internal.shape}"
            )
        n = len(internal)
        _check_times("internal_s", internal)
        force_setattr(self, "internal_s", internal)
        for name in ("latency_s", "gap_s"):
            matrix = np.array(getattr(self, name), dtype=np.float64)
            if matrix.shape != (n, n):
                raise UsageError(
                    f"{name}: must be {n} x {n} for {n} clusters, got shape {matrix.shape}"
                )
            np.fill_diagonal(matrix, 0.0)
            _check_times(name, matrix)
            force_setattr(self, name, matrix)
        if not 0 <= self.root < n:
            raise UsageError(f"root: must be one of clusters 0..{n - 1}, got {self.root}")
        force_setattr(self, "root", int(self.root))

    @property
    def n_clusters(self) -> int:
        return len(self.internal_s)

    @cached_property
    def cost_s(self) -> Floats:
        """``gap_s + latency_s``: time from the start of a send to its arrival."""
        return self.gap_s + self.latency_s

    @cached_property
    def busy_s(self) -> Floats:
        """How long each send keeps its sender busy, (n, n)."""
        return self.gap_s if self.accounting.busy == "gap" else self.cost_s

    @cached_property
    def cost_rows(self) -> list[list[float]]:
        """`cost_s` as lists: plain Python reads lists several times faster than arrays."""
        return [list(map(float, row)) for row in self.cost_s]

    @cached_property
    def busy_rows(self) -> list[list[float]]:
        """`busy_s` as lists."""
        return [list(map(float, row)) for row in self.busy_s]

    @cached_property
    def internals(self) -> list[float]:
        """`internal_s` as a list."""
        return list(map(float, self.internal_s))


def _check_times(name: str, values: Floats) -> None:
    bad = np.argwhere(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        place = tuple(int(k) for k in bad[0])
        raise UsageError(
            f"{name}{list(place)}: times must be finite and not negative, got {values[place]}"
        )
