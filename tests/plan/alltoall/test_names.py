"""Names that algorithms had before: settings may go on using them, with a note."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from gridcoll.errors import UsageError
from gridcoll.model import Correction
from gridcoll.plan import choose, registry
from gridcoll.plan.registry import ALIASES, canonical_name, check_forced
from tests.plan.grids import model_of, thin_grid

OLD = {
    "far-first": "farthest-first",
    "paced": "matching",
    "in-turn": "rate-paced",
    "coordinator": "leaders",
}


def test_every_old_name_stands_for_one_that_is_registered() -> None:
    assert ALIASES["alltoall"] == OLD
    assert set(OLD.values()) <= set(registry.REGISTRIES["alltoall"])
    assert canonical_name("alltoall", "lg") == "lg"
    assert canonical_name("bcast", "in-turn") == "in-turn"


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_forces_what_the_new_one_does(old: str) -> None:
    model = thin_grid([0] * 3 + [1] * 3)
    size = 1 << 16 if old != "coordinator" else 8
    found = choose("alltoall", model, size, 0, forced=old)
    assert found.to_dict() == choose("alltoall", model, size, 0, forced=OLD[old]).to_dict()
    assert found.winner.name == OLD[old]


def test_it_is_noted_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_warned", set())
    with caplog.at_level(logging.WARNING, "gridcoll"):
        assert check_forced("alltoall", "rate-paced") == "rate-paced"
        assert not caplog.records
        for _ in range(3):
            assert check_forced("alltoall", "in-turn") == "rate-paced"
    assert [record.name for record in caplog.records] == ["gridcoll"]
    assert "'rate-paced'" in caplog.text


def test_a_deleted_algorithm_is_unknown() -> None:
    with pytest.raises(UsageError, match="lg-packed"):
        check_forced("alltoall", "lg-packed")


def test_what_was_learned_under_the_old_name_holds() -> None:
    model = model_of([0] * 3 + [1] * 3)
    times = [
        choose(
            "alltoall",
            replace(model, corrections={"alltoall": {name: Correction((8,), (3.0,))}}),
            8,
            0,
            forced="leaders",
        ).winner.predicted_s
        for name in ("coordinator", "leaders")
    ]
    plain_s = choose("alltoall", model, 8, 0, forced="leaders").winner.predicted_s
    assert times[0] == times[1] == pytest.approx(3.0 * (plain_s or 0.0))
