"""At which sizes discovery may run a collective: its buffers must not fill the hosts."""

from __future__ import annotations

from collections.abc import Sequence

PER_RANK = frozenset(("alltoall", "gather", "scatter", "allgather", "reduce_scatter"))
"""Collectives whose size is that of a block, of which a buffer has one for every rank."""

LARGEST_BYTES = {
    **dict.fromkeys(("gather", "scatter", "allgather", "reduce_scatter"), 1 << 16),
    **dict.fromkeys(("alltoall", "reduce"), 1 << 19),
    "barrier": 8,
}
"""Beyond, time grows in proportion; and barriers have no size."""

MOST_HELD_BYTES = 1 << 24
"""In one buffer of one rank. A host of many cores has as many ranks, with two buffers each."""


def affordable(collective: str, n_ranks: int, sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """Those of ``sizes_bytes``, ascending, that ``n_ranks`` can run; the first one always."""
    largest = LARGEST_BYTES.get(collective, sizes_bytes[-1])
    if collective in PER_RANK:
        largest = min(largest, MOST_HELD_BYTES // n_ranks)
    return tuple(n for n in sizes_bytes if n <= max(largest, sizes_bytes[0]))
