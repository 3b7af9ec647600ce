"""Learning from calls on simulated networks."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.measure.learning.beliefs import Arm, Belief
from gridcoll.measure.learning.elimination import CONFIDENCE, Race
from gridcoll.measure.learning.learner import (
    REGRET_BUDGET,
    Kind,
    Learner,
    Observation,
)
from tests.measure.learning.simulated import Network, arms_of, play

BCAST = Kind("bcast", 1 << 20)


def one_kind(true_s: list[float], predicted_s: list[float], seed: int = 1) -> Network:
    return Network({BCAST: true_s}, {BCAST: arms_of(predicted_s)}, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_fastest_arm_that_was_predicted_to_be_slower(seed: int) -> None:
    network = one_kind([1.0, 0.7, 1.2], [0.9, 0.95, 1.1], seed)
    played = play(network, Learner(), [BCAST] * 400)
    assert played.last[200:].count(1) > 190
    assert [change.after.name for change in played.changes] == ["arm1"]


def test_plans_that_take_much_longer_than_predicted_are_a_surprise() -> None:
    """By what they take beyond twice that; not in their first call, which opens connections."""
    learner, arms = Learner(), [Arm(name, name, 1.0, 0.25) for name in ("chain", "native")]
    learner.next_arm(BCAST, lambda: arms)
    for arm, seconds, surprise_s in ((0, 9.0, 0.0), (0, 1.9, 0.0), (0, 3.5, 1.5), (1, 9.0, 1.5)):
        learner.learn([Observation(BCAST, arm, seconds, 0.0)] * (1 + arm), seconds)
        assert learner.surprise_s == pytest.approx(surprise_s)


def test_single_late_calls_are_no_surprise_in_the_end() -> None:
    """Calls as fast as predicted are deducted, but only from the surprise of their own kind."""
    learner, other = Learner(), BCAST._replace(n_bytes=2 * BCAST.n_bytes)
    for kind in (BCAST, other):
        learner.next_arm(kind, lambda: [Arm("chain", "chain", 1.0, 0.25)])
        learner.learn([Observation(kind, 0, 1.0, 0.0)], 1.0)
    for kind, seconds, surprise_s in (
        *((BCAST, 5.0, 3.0), (other, 1.0, 3.0), (BCAST, 1.0, 2.0)),
        *((other, 4.0, 4.0), (BCAST, 1.0, 3.0), (BCAST, 1.0, 2.0), (BCAST, 1.0, 2.0)),
    ):
        learner.learn([Observation(kind, 0, seconds, 0.0)], seconds)
        assert learner.surprise_s == pytest.approx(surprise_s)


def test_what_is_right_already_is_not_changed() -> None:
    network = one_kind([1.0, 1.3, 2.0], [1.0, 1.3, 2.0])
    played = play(network, Learner(), [BCAST] * 400)
    assert not played.changes
    assert played.last.count(2) == 0, "an arm that is predicted far behind was tried"


def test_how_often_the_best_arm_is_found() -> None:
    """At least as often as the confidence says, where the best is ahead by more than noise."""
    found = 0
    for seed in range(60):
        luck = random.Random(seed)
        predicted = sorted(luck.uniform(1.0, 1.3) for _ in range(4))
        true = [each * math.exp(luck.gauss(0, 0.2)) for each in predicted]
        played = play(one_kind(true, predicted, seed), Learner(), [BCAST] * 600)
        found += true[played.last[-1]] <= 1.03 * min(true)
    assert found >= 60 * CONFIDENCE - 3


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.01, 10.0), min_size=2, max_size=6),
    st.lists(st.floats(-0.7, 0.7), min_size=6, max_size=6),
    st.integers(0, 1000),
)
def test_regret_stays_within_the_budget(
    predicted: list[float], errors: list[float], seed: int
) -> None:
    """But for the trial that was under way when an arm turned out worse than expected."""
    predicted = sorted(predicted)
    true = [each * math.exp(error) for each, error in zip(predicted, errors, strict=False)]
    learner = Learner()
    play(one_kind(true, predicted, seed), learner, [BCAST] * 400)
    one_trial = 2 * max(true) * 1.2
    assert learner.regret_s <= REGRET_BUDGET * learner.total_s + one_trial


def test_an_arm_that_may_take_for_ever_waits_for_the_budget() -> None:
    native = Arm("native", "native", 1.0, 1.5)
    network = Network({BCAST: [1.0, 30.0]}, {BCAST: [arms_of([1.0])[0], native]})
    played = play(network, Learner(), [BCAST] * 60)
    assert played.last.count(1) == 0
    played = play(network, Learner(), [BCAST] * 2000)
    assert played.last.count(1) <= 2


def test_plans_are_built_where_that_pays() -> None:
    """Building one takes three calls' time, and other plans gain little."""
    kinds = [Kind("bcast", 1 << k) for k in range(0, 24, 3)]

    def n_built(n_calls: int, build_s: float) -> int:
        network = Network(
            {kind: [1.0] * 4 for kind in kinds}, {k: arms_of([1.0] * 4) for k in kinds}
        )
        learner, built, new = Learner(), set[tuple[Kind, int]](), 0
        for _ in range(n_calls):
            records = []
            for kind in kinds:
                arm = learner.next_arm(kind, lambda kind=kind: network.arms[kind])  # type: ignore[misc]
                new += arm > 0 and (kind, arm) not in built
                built.add((kind, arm))
                records.append(Observation(kind, arm, network.seconds(kind, arm), 0.0))
            learner.learn(records, sum(each.seconds for each in records), new * build_s)
            new = 0
        n_plans = sum(arm > 0 for _, arm in built)
        assert n_plans * build_s <= learner.regret_s
        assert learner.regret_s <= REGRET_BUDGET * learner.total_s + 2 * build_s + 2
        return n_plans

    assert n_built(30, 3.0) < n_built(30, 0.0) / 2
    assert n_built(300, 3.0) > n_built(30, 3.0), "they pay in the end"


def test_late_ranks_spoil_nothing() -> None:
    network = one_kind([1.0, 0.8], [0.9, 0.95])
    late = dict.fromkeys(range(0, 400, 3), 3.0)
    played = play(network, Learner(), [BCAST] * 400, late)
    assert played.last[-1] == 1
    assert played.suspected_at is None


def test_a_rank_that_is_always_late_leaves_calls_comparable() -> None:
    network = one_kind([1.0, 0.8], [0.9, 0.95])
    played = play(network, Learner(), [BCAST] * 400, dict.fromkeys(range(400), 3.0))
    assert played.last[-1] == 1


def test_neighbouring_sizes_inform_each_other() -> None:
    """What one size taught spares the next one its trials."""
    sizes = [Kind("bcast", 1 << k) for k in (20, 21)]
    arms = {kind: arms_of([0.97, 1.0]) for kind in sizes}
    true = {kind: [1.25, 1.0] for kind in sizes}
    learner = Learner()
    network = Network(true, arms)
    first = play(network, learner, [sizes[0]] * 100)
    second = play(network, learner, [sizes[1]] * 100)
    alone = play(Network(true, arms, seed=2), Learner(), [sizes[1]] * 100)
    assert second.took_s <= alone.took_s * 1.02
    assert first.last[-1] == second.last[-1] == 1


def test_ranks_that_are_told_the_same_decide_the_same() -> None:
    roots = [(k, root) for k in (3, 20) for root in (0, 1)]
    kinds = [Kind(name, 1 << k, root) for name in ("bcast", "reduce") for k, root in roots]
    luck = random.Random(3)
    arms = {kind: arms_of(sorted(luck.uniform(0.5, 1) for _ in range(5))) for kind in kinds}
    true = {kind: [a.predicted_s * luck.uniform(0.7, 1.4) for a in arms[kind]] for kind in kinds}
    calls = [luck.choice(kinds) for _ in range(1000)]
    played = [play(Network(true, arms), Learner(), calls) for _ in range(2)]
    assert played[0].last == played[1].last
    assert len(set(played[0].last)) > 2, "nothing was tried, so that nothing was tested"


def test_a_network_that_changes_is_noticed_within_a_few_calls() -> None:
    network, learner = one_kind([1.0, 1.1], [1.0, 1.1]), Learner()
    assert play(network, learner, [BCAST] * 200).suspected_at is None
    network.true_s[BCAST] = [4.0, 1.2]
    played = play(network, learner, [BCAST] * 40)
    assert played.suspected_at is not None
    assert played.suspected_at < 16
    assert learner.drift.suspicion == 1
    learner.forget()
    played = play(network, learner, [BCAST] * 100)
    assert played.last[-1] == 1, "the decision did not follow"
    network.true_s[BCAST] = [1.0, 0.3]
    play(network, learner, [BCAST] * 40)
    assert learner.drift.suspicion == -1


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_is_no_change(seed: int) -> None:
    network = one_kind([1.0, 1.1], [1.0, 1.1], seed)
    network.noise = 0.15
    assert play(network, Learner(), [BCAST] * 1000).suspected_at is None


def test_what_was_learned_of_families_outlives_the_model() -> None:
    network, learner = one_kind([1.0, 0.7], [0.9, 0.95]), Learner()
    play(network, learner, [BCAST] * 100)
    learner.restart()
    assert not learner.kinds()
    learner.next_arm(BCAST, lambda: network.arms[BCAST])
    for _ in range(5):
        learner.learn([Observation(BCAST, 0, 1.0, 0.0)], 1.0)
    assert learner.next_arm(BCAST, lambda: network.arms[BCAST]) == 1


def test_a_race_needs_its_leader_observed_first() -> None:
    race = Race(arms_of([1.0, 1.0]))
    assert race.plan_trial(100.0) == 0.0
    assert race.trial is None


def test_a_belief_moves_from_the_prediction_to_what_is_observed() -> None:
    belief = Belief(Arm("a", "a", 1.0, 0.2))
    before, unsure = belief.posterior(0.1)
    assert before == 0.0
    for _ in range(20):
        belief.observe(2.0)
    after, sure = belief.posterior(0.1)
    assert after == pytest.approx(math.log(2.0), abs=0.02)
    assert sure < 0.2 * unsure


def test_two_costly_calls_are_enough() -> None:
    """Of any kind; one is a lost segment or a link that was cut for a while."""
    kinds = [Kind("bcast", 1 << 20), Kind("allreduce", 1 << 20)]
    network = Network({kind: [0.2] for kind in kinds}, {kind: arms_of([0.2]) for kind in kinds})
    learner = Learner()
    play(network, learner, kinds * 40)
    for seconds, suspicion in ((5.0, 0), (0.2, 0), (0.9, 0), (0.9, 1)):
        kinds.reverse()
        learner.learn([Observation(kinds[0], 0, seconds, 0.0)], seconds)
        assert learner.drift.suspicion == suspicion


@pytest.mark.parametrize(
    ("usual_s", "slow_s", "one_kind", "n_calls"),
    [
        (0.2, 0.3, False, 4),  # 0.1 s each: a look takes about a second
        (0.2, 0.3, True, 3),
        (0.02, 0.05, False, None),  # they never lose a quarter of a second together
        (0.05, 0.13, True, 4),
        (0.02, 0.03, True, 5),  # little, but too often for an accident
    ],
)
def test_a_look_is_worth_it_if_enough_was_lost(
    usual_s: float, slow_s: float, one_kind: bool, n_calls: int | None
) -> None:
    kinds = [Kind("bcast", 1 << k) for k in range(12)]
    network = Network({kind: [usual_s] for kind in kinds}, {kind: arms_of([1.0]) for kind in kinds})
    learner = Learner()
    play(network, learner, kinds * 40)
    for k in range(12):
        kind = kinds[0] if one_kind else kinds[k]
        learner.learn([Observation(kind, 0, slow_s, 0.0)], slow_s)
        assert learner.drift.suspicion == (n_calls is not None and k + 1 >= n_calls), k


def late(learner: Learner, seconds: float, skew_s: float) -> bool:
    """Whether a call that a rank enters late leaves doubt."""
    learner.learn([Observation(BCAST, 0, seconds, skew_s)], seconds)
    return learner.drift.doubt


def test_a_link_that_only_shows_between_calls_is_worth_a_look() -> None:
    """Ranks wait for one another in the call before, so that calls take as long as ever."""
    learner = Learner()
    learner.next_arm(BCAST, lambda: arms_of([1.0]))
    assert not any(late(learner, 0.01, 0.005) for _ in range(20))
    assert [late(learner, 0.01, 0.03) for _ in range(4)] == [False, False, False, True]
    assert learner.drift.suspicion == 0
    assert learner.drift.take_doubt()
    assert not any(late(learner, 0.01, 0.03) for _ in range(20)), "it is usual now"


@pytest.mark.parametrize("seed", range(10))
def test_an_application_that_works_unevenly_leaves_no_doubt(seed: int) -> None:
    learner, luck = Learner(), random.Random(seed)
    learner.next_arm(BCAST, lambda: arms_of([1.0]))
    assert not any(late(learner, 0.01, luck.uniform(0.01, 0.03)) for _ in range(500))


def test_a_slow_host_that_makes_ranks_late_is_noticed() -> None:
    """Before, no rank was late; what the others wait for it is no lateness of theirs."""
    network, learner = one_kind([1.0], [1.0]), Learner()
    play(network, learner, [BCAST] * 40)
    for seconds, skew_s, suspicion in ((0.2, 2.0, 0), (0.9, 2.0, 0), (1.6, 2.0, 1)):
        for _ in range(4):
            late(learner, seconds, skew_s)
        assert learner.drift.suspicion == suspicion


def test_what_was_known_of_a_network_counts_when_it_is_back() -> None:
    """But for the calls that showed that it was gone."""
    network, learner = one_kind([1.0, 0.7], [0.9, 0.95]), Learner()
    play(network, learner, [BCAST] * 200)
    before = learner.rows(BCAST)
    for _ in range(6):
        learner.learn([Observation(BCAST, learner.leader(BCAST), 9.0, 0.0)], 9.0)
    assert learner.drift.suspicion == 1
    known = learner.restart()
    assert not learner.rows(BCAST)
    learner.resume(known)
    assert learner.leader(BCAST) == 1
    after = learner.rows(BCAST)[1].observed_s
    assert after == pytest.approx(before[1].observed_s, rel=0.05)
    assert 9.0 not in [math.exp(log) for log in known[BCAST][0].beliefs[1].logs]


@pytest.mark.parametrize(("took_s", "leads"), [(1e-5, 0), (0.4, 1)])
def test_a_late_receiver_that_finds_its_data_shows_nothing(took_s: float, leads: int) -> None:
    """The time from its entry to the last exit is next to nothing, whatever the arm is."""
    learner = Learner()
    assert learner.next_arm(BCAST, lambda: arms_of([1.0, 1.1])) == 0
    usual = [Observation(BCAST, 0, 0.9, 2.0)] * 4
    learner.learn([*usual, Observation(BCAST, 1, took_s, 2.0)], 5.0)
    assert learner.leader(BCAST) == leads


def test_a_broadcast_counts_from_when_its_root_came() -> None:
    """Others that came later, but before their data, leave less time until the end, by chance."""
    learner = Learner()
    assert learner.next_arm(BCAST, lambda: arms_of([1.0, 1.1])) == 0
    luck = random.Random(1)

    def call(arm: int, whole_s: float) -> Observation:
        late_s = luck.uniform(0.1, 0.8) * whole_s
        return Observation(BCAST, arm, whole_s - late_s, late_s, whole_s)

    learner.learn([call(0, 1.0) for _ in range(4)] + [call(1, 1.1) for _ in range(4)], 8.0)
    assert [row.observed_s for row in learner.rows(BCAST)] == pytest.approx([1.0, 1.1])
    assert learner.leader(BCAST) == 0


@pytest.mark.parametrize(("n_late", "decide"), [(4, False), (5, True)])
def test_calls_with_a_late_rank_decide_where_nearly_all_are_such_ones(
    n_late: int, decide: bool
) -> None:
    learner = Learner()
    learner.next_arm(BCAST, lambda: arms_of([1.0, 1.1]))
    late = Observation(BCAST, 0, 0.3, 0.7)
    learner.learn([Observation(BCAST, 0, 1.0, 0.0), *[late] * n_late], 9.0)
    assert learner.rows(BCAST)[0].observed_s == pytest.approx(0.3 if decide else 1.0)


def test_one_disturbed_call_does_not_spoil_the_trust_in_predictions() -> None:
    def trust_after(took_s: float) -> float:
        learner = Learner()
        kinds = [Kind("bcast", 1 << k) for k in (10, 11, 12)]
        for kind in kinds:
            learner.next_arm(kind, lambda: arms_of([1.0, 1.1]))
        seen = [Observation(kind, 0, 1.0, 0.0) for kind in kinds]
        learner.learn([*seen, Observation(kinds[0], 1, took_s, 0.0)], 9.0)
        kind = Kind("bcast", 1 << 22)
        learner.next_arm(kind, lambda: arms_of([1.0, 1.1]))
        return learner._races[kind][0].beliefs[1].trust

    assert trust_after(1000.0) == pytest.approx(trust_after(10.0))
    assert trust_after(1000.0) > trust_after(1.1)


def race_after(seconds: list[tuple[int, float]], limit_s: float = 0.0, spread: float = 0.2) -> Race:
    """Of two arms that are predicted to take 1.0 and 1.05 s, after calls by arm."""
    race = Race(arms_of([1.0, 1.05], spread), limit_s)
    for arm, each in seconds:
        race.observe(arm, each, skewed=False)
    race.settle()
    return race


def test_a_trial_ends_with_the_arm_that_lost() -> None:
    """What the first of two calls showed spares the second."""
    race = race_after([(0, 1.0)] * 20)
    assert race.plan_trial(math.inf)
    assert race.next_arm() == 1
    race.observe(1, 3.0, skewed=False)
    race.settle()
    assert race.next_arm() == 0


@pytest.mark.parametrize(("n_calls", "is_tried"), [(3, False), (300, True)])
def test_a_trial_must_be_worth_it(n_calls: int, is_tried: bool) -> None:
    """An arm that may take half the time, or three times as long."""
    race = Race([arms_of([1.0])[0], Arm("native", "native", 1.8, 0.7)])
    for _ in range(n_calls):
        race.observe(0, 1.0, skewed=False)
    race.settle()
    assert bool(race.plan_trial(math.inf)) == is_tried


def test_nothing_is_tried_at_the_limit() -> None:
    assert race_after([(0, 1.0)] * 50).alive == {0, 1}
    assert race_after([(0, 1.0)] * 50, limit_s=0.99).alive == {0}
    assert race_after([(0, 1.0)] * 50, limit_s=0.5).alive == {0, 1}


def test_a_limit_that_calls_keep_below_is_wrong() -> None:
    race = race_after([(0, 1.0)] * 50, limit_s=1.2)
    assert race.limit_s == 0.0
    assert race.alive == {0, 1}


def test_a_limit_near_the_leader_leaves_little_to_gain() -> None:
    """An arm that is a tenth slower by prediction is not tried to gain 3 % at most."""
    race = Race([arms_of([1.0])[0], Arm("arm1", "arm1", 1.1, 0.1)], 0.97)
    for _ in range(50):
        race.observe(0, 1.0, skewed=False)
    race.settle()
    assert not race.plan_trial(math.inf)
    race.limit_s = 0.0
    race.settle()
    assert race.plan_trial(math.inf)


@pytest.mark.parametrize("common", [0.0, 1.0])
@pytest.mark.parametrize("error", [0.0, 0.7])
def test_predictions_are_trusted_as_far_as_they_were_right(error: float, common: float) -> None:
    """About the difference between plans: what all are off by, as on busy hosts, does not count."""
    learner, predicted_s = Learner(), [1.0, 1.1]
    kinds = [Kind("bcast", 1 << k) for k in range(10, 22)]
    for kind in kinds:
        learner.next_arm(kind, lambda: arms_of(predicted_s))
        for arm, log in enumerate((common + error / 2, common - error / 2)):
            seen = Observation(kind, arm, predicted_s[arm] * math.exp(log), 0.0)
            learner.learn([seen] * 4, 9.0)
    kind = Kind("bcast", 1 << 22)
    learner.next_arm(kind, lambda: arms_of(predicted_s))
    trust = learner._races[kind][0].beliefs[1].trust
    assert trust < 0.7 if not error else trust > 1.3
