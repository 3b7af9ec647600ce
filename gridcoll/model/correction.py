"""Correction of a model's predictions for an algorithm, as a factor by message size."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from gridcoll.errors import UsageError


class Correction(Struct, frozen=True, forbid_unknown_fields=True):
    """Measured time over predicted time at some sizes; interpolated between, constant beyond."""

    sizes_bytes: tuple[int, ...]
    """Ascending, positive."""
    factors: tuple[float, ...]
    """Positive; 1 where the model was right."""

    def __post_init__(self) -> None:
        sizes = list(self.sizes_bytes)
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise UsageError(f"correction: sizes must ascend from 1 byte on, got {sizes}")
        if len(self.factors) != len(sizes) or not min(self.factors) > 0:
            raise UsageError(
                f"correction: need a positive factor for each of {len(sizes)} sizes, "
                f"got {self.factors}"
            )

    def at(self, n_bytes: int) -> float:
        """Return the factor for ``n_bytes``, interpolated over the logarithm of size."""
        return float(np.interp(np.log2(max(n_bytes, 1)), np.log2(self.sizes_bytes), self.factors))

    def updated(self, n_bytes: int, factor: float) -> Correction:
        """Return a copy with ``factor`` at ``n_bytes``; an old value there is replaced."""
        by_size = {**dict(zip(self.sizes_bytes, self.factors, strict=True)), n_bytes: factor}
        sizes = sorted(by_size)
        return Correction(tuple(sizes), tuple(by_size[size] for size in sizes))
