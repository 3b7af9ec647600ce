"""Turn what was learned into corrections of a model, kept for later jobs of the same shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from msgspec.structs import replace

from gridcoll.errors import FileError
from gridcoll.measure.cache.folder import Cache
from gridcoll.measure.cache.learning import can_be_kept, learn_outcomes
from gridcoll.measure.learning.learner import Learner
from gridcoll.model import Correction, GridModel, TimesBySize
from gridcoll.plan.natives import NATIVE, NATIVES

FEWEST_CALLS = 3
"""Observations of an arm that are needed to keep its median."""

V = TypeVar("V")


def learned_model(model: GridModel, learner: Learner) -> GridModel | None:
    """Return ``model`` with only observed corrections and times of natives; None if there are none.

    If there are several roots, the one with most calls counts.
    """
    plans: dict[str, dict[str, dict[int, tuple[int, float]]]] = {}
    natives: dict[str, dict[str, dict[int, tuple[int, float]]]] = {}
    for each in learner.observed():
        if each.n_calls < FEWEST_CALLS:
            continue
        collective, n_bytes = each.kind.collective, each.kind.n_bytes
        if each.family in NATIVES:
            found, value = natives, each.observed_s
        else:
            before = model.corrections.get(collective, {}).get(each.family)
            factor = before.at(n_bytes) if before else 1.0
            found, value = plans, factor * math.exp(each.log)
        by_size = found.setdefault(collective, {}).setdefault(each.family, {})
        by_size[n_bytes] = max(by_size.get(n_bytes, (0, 0.0)), (each.n_calls, value))
    if not (plans or natives):
        return None
    times = {
        collective: {name: TimesBySize(*_columns(by)) for name, by in named.items()}
        for collective, named in natives.items()
    }
    return replace(
        model,
        corrections={
            collective: {family: Correction(*_columns(by)) for family, by in families.items()}
            for collective, families in plans.items()
        },
        native={name: each[NATIVE] for name, each in times.items() if NATIVE in each},
        native_variants={name: _without(each, NATIVE) for name, each in times.items()},
        native_priors=(),
    )


def _columns(by_size: Mapping[int, tuple[int, float]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    sizes = tuple(sorted(by_size))
    return sizes, tuple(by_size[n_bytes][1] for n_bytes in sizes)


def _without(named: Mapping[str, V], name: str) -> dict[str, V]:
    return {each: value for each, value in named.items() if each != name}


def keep_outcomes(cache: Cache, model: GridModel, learner: Learner) -> int:
    """Write what was learned into the cache, and return the number of entries.

    To be called on one rank. Errors are ignored, so that the job continues.
    """
    if cache.own is None or not can_be_kept(model):
        return 0
    learned = learned_model(model, learner)
    if learned is None:
        return 0
    try:
        return cache.own.update(lambda known: learn_outcomes(known, learned))
    except FileError:
        return 0
