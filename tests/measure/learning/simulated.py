"""A network without messages: arms have true times, calls scatter around them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from random import Random

from msgspec import Struct, field

from gridcoll.measure.learning.beliefs import Arm
from gridcoll.measure.learning.learner import Change, Kind, Learner, Observation

EVERY = 8
"""Calls from one agreed point to the next."""


def arms_of(predicted_s: Sequence[float], spread: float = 0.2) -> list[Arm]:
    return [Arm(f"arm{k}", f"arm{k}", each, spread) for k, each in enumerate(predicted_s)]


class Network(Struct, dict=True):
    """True seconds by kind of call and arm."""

    true_s: dict[Kind, list[float]]
    arms: Mapping[Kind, Sequence[Arm]]
    noise: float = 0.05
    seed: int = 1

    @cached_property
    def random(self) -> Random:
        return Random(self.seed)

    def seconds(self, kind: Kind, arm: int) -> float:
        return self.true_s[kind][arm] * math.exp(self.random.gauss(0, self.noise))


class Played(Struct):
    took_s: float = 0.0
    best_s: float = 0.0
    last: list[int] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    suspected_at: int | None = None


def play(
    network: Network, learner: Learner, calls: Sequence[Kind], late_s: Mapping[int, float] = {}
) -> Played:
    """Make ``calls``; a rank is late by ``late_s`` at some of them."""
    played = Played()
    records: list[Observation] = []
    for number, kind in enumerate(calls):
        arm = learner.next_arm(kind, lambda kind=kind: network.arms[kind])  # type: ignore[misc]
        seconds = network.seconds(kind, arm)
        skew_s = late_s.get(number, 0.0)
        # Who comes last finds that others did their share already.
        records.append(Observation(kind, arm, seconds * (0.2 if skew_s else 1.0), skew_s))
        played.took_s += seconds
        played.best_s += min(network.true_s[kind])
        played.last.append(arm)
        if len(records) == EVERY:
            played.changes += learner.learn(records, sum(each.seconds for each in records))
            records = []
        if learner.drift.suspicion and played.suspected_at is None:
            played.suspected_at = number
    return played
