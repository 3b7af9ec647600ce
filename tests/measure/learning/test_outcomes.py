"""What was learned goes to the cache, and later jobs of the same shape start with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gridcoll.measure.cache.folder import Cache, Places
from gridcoll.measure.cache.knowledge import shape_of
from gridcoll.measure.learning.beliefs import Arm
from gridcoll.measure.learning.learner import Kind, Learner, Observation
from gridcoll.measure.learning.outcomes import keep_outcomes, learned_model
from gridcoll.model import Correction, GridModel
from gridcoll.topology import Grid
from tests.plan.grids import model_of

BCAST = Kind("bcast", 1 << 20)
ARMS = [Arm("chain", "chain", 1.0, 0.25), Arm("native", "native", 2.0, 0.7)]


@pytest.fixture
def model() -> GridModel:
    labels = [0, 0, 1, 1]
    grid = Grid.from_labels(labels, [f"host-{k}" for k in range(4)])
    return replace(model_of(labels), grid=grid, origin="measured", mpi="MPICH")


@pytest.fixture
def learner() -> Learner:
    learner = Learner()
    learner.next_arm(BCAST, lambda: ARMS)
    seen = [Observation(BCAST, 0, 1.3, 0.0)] * 5 + [Observation(BCAST, 1, 1.1, 0.0)] * 4
    learner.learn(seen, 10.0)
    return learner


def test_the_next_job_starts_with_what_was_learned(
    tmp_path: Path, model: GridModel, learner: Learner
) -> None:
    places = Places(tmp_path / "cache", is_named=True)
    assert keep_outcomes(Cache(places), model, learner) == 2
    found = Cache(places).read().outcomes(shape_of(model.grid), "MPICH")
    values = {each.algorithm: each.sizes[0].value.mean for each in found}
    assert values == {"chain": pytest.approx(1.3), "native": pytest.approx(1.1)}


def test_a_factor_is_on_top_of_the_correction_that_predicted(
    model: GridModel, learner: Learner
) -> None:
    corrected = replace(model, corrections={"bcast": {"chain": Correction((1 << 20,), (1.5,))}})
    learned = learned_model(corrected, learner)
    assert learned is not None
    assert learned.corrections["bcast"]["chain"].at(1 << 20) == pytest.approx(1.3 * 1.5)
    assert learned.native["bcast"].predict(1 << 20) == pytest.approx(1.1)


def test_nothing_learned_or_nowhere_to_keep_it(
    tmp_path: Path, model: GridModel, learner: Learner
) -> None:
    assert keep_outcomes(Cache(Places(tmp_path / "cache")), model, Learner()) == 0
    assert keep_outcomes(Cache(Places(None)), model, learner) == 0
    declared = replace(model, origin="declared")
    assert keep_outcomes(Cache(Places(tmp_path / "cache")), declared, learner) == 0
    assert not (tmp_path / "cache").exists()
