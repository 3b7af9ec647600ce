"""What discovery may run: buffers for thousands of ranks are not what it fills hosts with."""

from __future__ import annotations

import pytest

from gridcoll.measure.discover import NATIVE_SIZES, native_sizes
from gridcoll.measure.natives import CALLS, SETTLED_BYTES
from gridcoll.measure.trials import (
    LARGEST_BYTES,
    MOST_HELD_BYTES,
    PER_RANK,
    TRIAL_SIZES,
    affordable,
)


def held_bytes(collective: str, n_ranks: int, n_bytes: int) -> int:
    """By the largest buffer of a call, as it is really made."""
    _method, args = CALLS[collective](n_ranks, n_bytes)
    return max((arg.nbytes for arg in args if hasattr(arg, "nbytes")), default=0)


@pytest.mark.parametrize("n_ranks", [2, 12, 100, 1000, 5000])
@pytest.mark.parametrize("collective", CALLS)
def test_no_buffer_is_larger(collective: str, n_ranks: int) -> None:
    sizes = affordable(collective, n_ranks, NATIVE_SIZES)
    assert sizes == NATIVE_SIZES[: len(sizes)]
    assert sizes[0] == 8
    assert held_bytes(collective, n_ranks, sizes[-1]) <= MOST_HELD_BYTES
    if len(sizes) < len(NATIVE_SIZES):
        following = NATIVE_SIZES[len(sizes)]
        too_large = following > LARGEST_BYTES.get(collective, following)
        assert too_large or held_bytes(collective, n_ranks, following) > MOST_HELD_BYTES


def test_a_dozen_ranks_run_all() -> None:
    for collective, sizes in TRIAL_SIZES.items():
        assert affordable(collective, 12, sizes) == sizes


def test_of_short_messages_natives_are_timed_where_plans_are_tried() -> None:
    """Where a queue overflows in between, what lies between two sizes says nothing."""
    for collective, tried in TRIAL_SIZES.items():
        timed = native_sizes(collective)
        assert list(timed) == sorted({*NATIVE_SIZES, *(n for n in tried if n < SETTLED_BYTES)})
    assert native_sizes("alltoall")[:4] == (8, 128, 1024, 4096)
    assert native_sizes("gather") == NATIVE_SIZES


def test_one_size_is_always_run() -> None:
    for collective in PER_RANK:
        assert affordable(collective, 1 << 30, (8, 1024)) == (8,)
