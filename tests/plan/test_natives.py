"""The MPI library's own collectives among the candidates: the plain ones, and other calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from gridcoll.constants import MARGIN
from gridcoll.errors import UsageError
from gridcoll.model import GridModel, TimesBySize
from gridcoll.plan import REGISTRIES, choose
from gridcoll.plan.choose import MOST_VECTOR_BYTES
from gridcoll.plan.natives import (
    NATIVE,
    NATIVES,
    NONBLOCKING,
    TIMED,
    VECTOR,
    natives_of,
    variants_of,
)
from gridcoll.plan.registry import check_forced
from tests.plan.grids import model_of

APART, TOGETHER = [0, 1, 0, 1], [0, 0, 0, 0]


def measured(
    collective: str,
    native_s: float,
    variants_s: Mapping[str, float],
    labels: list[int] | None = None,
    sizes: tuple[int, ...] = (8,),
    variant_sizes: tuple[int, ...] = (8,),
) -> GridModel:
    """A model in which ``collective`` takes so long at all ``sizes``, and so long by variants."""

    def flat(sizes: tuple[int, ...], seconds: float) -> TimesBySize:
        return TimesBySize(sizes, (seconds,) * len(sizes))

    return replace(
        model_of(labels or APART),
        native={collective: flat(sizes, native_s)},
        native_variants={
            collective: {name: flat(variant_sizes, s) for name, s in variants_s.items()}
        },
    )


def winner(model: GridModel, collective: str = "bcast", n_bytes: int = 8, **asked: Any) -> str:
    return choose(collective, model, n_bytes, 0, **asked).winner.name


def test_every_collective_that_is_timed_has_a_non_blocking_form() -> None:
    assert set(TIMED) <= set(REGISTRIES)
    assert next(iter(NATIVES)) == NATIVE
    for collective in REGISTRIES:
        assert (NONBLOCKING in variants_of(collective)) == (collective in TIMED)
        assert (VECTOR in variants_of(collective)) == (collective == "alltoall")
        assert natives_of(collective) == (NATIVE, *variants_of(collective))


@pytest.mark.parametrize(
    ("variant_s", "wins"), [(1.0 - MARGIN, False), (1.0 - MARGIN - 1e-9, True), (1.2, False)]
)
def test_a_variant_must_beat_the_plain_one_by_a_margin(variant_s: float, wins: bool) -> None:
    quick = 1e-7  # so that no plan is ahead
    model = measured("bcast", quick, {NONBLOCKING: variant_s * quick})
    choice = choose("bcast", model, 8, 0)
    assert choice.winner.name == (NONBLOCKING if wins else NATIVE)
    assert choice.winner.build is None
    assert {c.name for c in choice.candidates if c.build is None} == {NATIVE, NONBLOCKING}
    said = "no plan is predicted more than 5% faster"
    assert choice.reason == ("measured more than 5% faster than native; " if wins else "") + said


def test_the_fastest_of_several_is_taken() -> None:
    times = {NONBLOCKING: 6e-8, VECTOR: 5e-8}
    assert winner(measured("alltoall", 1e-7, times), "alltoall") == VECTOR
    assert winner(measured("alltoall", 1e-7, {**times, VECTOR: 7e-8}), "alltoall") == NONBLOCKING


def test_a_plan_must_beat_the_best_of_them_by_the_margin() -> None:
    plan_s = choose("bcast", model_of(APART), 8, 0, grid_only=True).winner.predicted_s
    assert plan_s is not None
    slow = 10 * plan_s
    for variant_s, planned in ((plan_s, False), (plan_s / (1 - MARGIN) * 1.001, True)):
        choice = choose("bcast", measured("bcast", slow, {NONBLOCKING: variant_s}), 8, 0)
        assert (choice.winner.build is not None) == planned
        assert choice.reason.endswith("predicted fastest" if planned else "5% faster")


def test_without_times_there_is_none() -> None:
    model = measured("bcast", 1e-7, {})
    names = [c.name for c in choose("bcast", model, 8, 0).candidates if c.build is None]
    assert names == [NATIVE]
    # Of another collective, or where nobody timed the plain one, they say nothing.
    other = {"reduce": {NONBLOCKING: TimesBySize((8,), (1e-9,))}}
    assert winner(replace(model, native_variants=other)) == NATIVE
    alone = replace(measured("bcast", 1.0, {NONBLOCKING: 1e-9}), native={})
    assert choose("bcast", alone, 8, 0).winner.build is not None


def test_beyond_the_size_at_which_it_was_given_up_there_is_none() -> None:
    model = measured(
        "bcast", 1e-7, {NONBLOCKING: 1e-9}, sizes=(8, 1000, 2000), variant_sizes=(8, 1000)
    )
    assert winner(model, n_bytes=512) == NONBLOCKING
    assert winner(model, n_bytes=1000) == NONBLOCKING
    assert winner(model, n_bytes=1001) == NATIVE
    assert winner(model, n_bytes=1 << 20) != NONBLOCKING
    to_the_end = measured(
        "bcast", 1e-7, {NONBLOCKING: 1e-9}, sizes=(8, 1000), variant_sizes=(8, 1000)
    )
    assert winner(to_the_end, n_bytes=1 << 20) == NONBLOCKING


def test_one_cluster_has_them_too() -> None:
    model = measured("bcast", 1e-7, {NONBLOCKING: 1e-9}, TOGETHER)
    assert winner(model) == NONBLOCKING


def test_what_is_asked_for_need_not_have_been_timed() -> None:
    for collective in TIMED:
        for name in natives_of(collective):
            check_forced(collective, name)
            choice = choose(collective, model_of(APART), 8, 0, forced=name)
            assert (choice.winner.name, choice.reason) == (name, "asked for")
            assert {c.name for c in choice.candidates} == {NATIVE, name}


def test_what_is_asked_for_comes_before_force_and_before_equal_bits() -> None:
    for asked in ({"grid_only": True}, {"bitwise_equal": True}, {"rank_order": True}):
        assert winner(model_of(APART), "allreduce", forced=NONBLOCKING, **asked) == NONBLOCKING


def test_unknown_names_list_those_of_the_collective() -> None:
    known = "known are native, native-nonblocking, native-v, "
    with pytest.raises(UsageError, match=known):
        check_forced("alltoall", "native-w")
    with pytest.raises(UsageError, match="'native-v': known are native, native-nonblocking, "):
        check_forced("bcast", VECTOR)
    with pytest.raises(UsageError, match="known are native, flat"):
        check_forced("gatherv", NONBLOCKING)


@pytest.mark.parametrize("forced", ["", NONBLOCKING])
def test_calls_that_have_no_variant_get_the_plain_one(forced: str) -> None:
    model = measured("alltoall", 1e-7, {NONBLOCKING: 1e-9, VECTOR: 1e-9})
    assert winner(model, "alltoall", no_variants=True, forced=forced) == NATIVE
    assert winner(model, "alltoall", no_variants=False, forced=forced) == NONBLOCKING


def test_a_slow_plain_one_gives_way_to_a_plan_where_a_call_has_no_variant() -> None:
    model = measured("alltoall", 10.0, {VECTOR: 1e-9})
    assert winner(model, "alltoall") == VECTOR
    assert choose("alltoall", model, 8, 0, no_variants=True).winner.build is not None


def test_rank_order_is_only_asked_of_the_plain_one() -> None:
    model = measured("reduce", 1e-7, {NONBLOCKING: 1e-9})
    assert winner(model, "reduce") == NONBLOCKING
    assert winner(model, "reduce", rank_order=True) == NATIVE


def test_equal_bits_are_left_to_none_of_them_between_clusters() -> None:
    times = ("allreduce", 1e-7, {NONBLOCKING: 1e-9})
    apart = choose("allreduce", measured(*times), 8, 0)
    floats = choose("allreduce", measured(*times), 8, 0, bitwise_equal=True).winner
    assert apart.winner.name == NONBLOCKING
    assert floats.build is not None
    assert apart.reason.endswith(f"as for sums of floats: {floats.name}")
    assert winner(measured(*times, TOGETHER), "allreduce", bitwise_equal=True) == NONBLOCKING
    found = choose(
        "allreduce", measured(*times, TOGETHER), 8, 0, reproducible=True, forced=NONBLOCKING
    )
    assert found.winner.build is not None


def test_blocks_beyond_what_every_mpi_can_address_are_no_vector() -> None:
    model = measured("alltoall", 1e-12, {VECTOR: 1e-15})
    most = MOST_VECTOR_BYTES // 4
    assert winner(model, "alltoall", n_bytes=most) == VECTOR
    assert winner(model, "alltoall", n_bytes=most + 1) == NATIVE
    assert winner(model, "alltoall", n_bytes=most + 1, forced=VECTOR) == NATIVE
