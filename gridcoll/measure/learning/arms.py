"""Select the candidates of a choice that compete, with a first belief about each."""

from __future__ import annotations

from collections.abc import Sequence

from gridcoll.measure.learning.beliefs import Arm
from gridcoll.measure.priors import native_prior_s
from gridcoll.model import GridModel
from gridcoll.model.bounds import LIMITED, limit_s
from gridcoll.model.wires import wires_from_model
from gridcoll.plan import Choice
from gridcoll.plan.natives import NATIVES, TIMED
from gridcoll.plan.registry import Candidate, family_of

PREDICTION_ERROR = 0.25
"""Error of predictions if no plan was measured, as a standard deviation of the logarithm. Errors
are 10 to 20 % on most grids, and a half on some."""

TUNED_ERROR = 0.12
"""The same if plans and natives were timed at discovery."""

UNTIMED_NATIVE_ERROR = 0.7
"""The same for natives that were not timed: they may take a tenth of the time, or ten times as
long."""

MOST_PLANS = 5
"""Most plans that compete for one kind of calls. They are the best ones of their families."""


def competitors(
    choice: Choice, natives: bool = True, keep_order: bool = False
) -> tuple[Candidate, ...]:
    """Return the winner, the best plan of each family, and the natives if ``natives`` is true.

    With ``keep_order``, plans that do not keep rank order compete only if the winner does not keep
    it either.
    """
    found = [choice.winner]
    families = {family_of(choice.collective, choice.winner.name)} if choice.winner.build else set()
    labels = {(choice.winner.label, choice.winner.predicted_s)}
    n_plans = len(families)
    for candidate in choice.candidates:
        if candidate is choice.winner or (candidate.label, candidate.predicted_s) in labels:
            continue
        if candidate.build is None:
            found += [candidate] if natives else []
            continue
        if keep_order and choice.winner.rank_order and not candidate.rank_order:
            continue
        family = family_of(choice.collective, candidate.name)
        if n_plans < MOST_PLANS and family not in families:
            families.add(family)
            labels.add((candidate.label, candidate.predicted_s))
            found.append(candidate)
            n_plans += 1
    return tuple(found)


MOST_CLUSTERS = 4
"""No limit is computed for more clusters, because that takes longer than a choice."""


def limit_of_calls(collective: str, model: GridModel, n_bytes: int, root: int) -> float:
    """Return a lower bound of the seconds of a call, by the links of ``model``; 0 if not known.

    It is rounded, so that all ranks have the same value.
    """
    is_known = collective in LIMITED and bool(model.aggregate_bytes_per_s)
    if not is_known or model.n_clusters > MOST_CLUSTERS:
        return 0.0
    return float(f"{limit_s(collective, wires_from_model(model), n_bytes, root):.3g}")


def arms_of(
    collective: str, candidates: Sequence[Candidate], model: GridModel, n_bytes: int = 0
) -> list[Arm]:
    """Return ``candidates`` as arms, with their predicted times and the errors of these.

    If ``n_bytes`` is given, natives that were not timed are expected to take the time of their
    known algorithms: a trial that may cost several times the best plan should promise a gain.
    """
    was_tried = bool(model.corrections.get(collective))
    timed = [each.predicted_s for each in candidates if each.predicted_s is not None]
    best_s = min(timed, default=1.0)
    arms = []
    for each in candidates:
        is_native = each.name in NATIVES
        family = each.name if is_native else family_of(collective, each.name)
        spread = TUNED_ERROR if was_tried else PREDICTION_ERROR
        if is_native:
            is_prior = collective in model.native_priors
            spread = UNTIMED_NATIVE_ERROR if is_prior else TUNED_ERROR
        predicted_s = each.predicted_s
        if predicted_s is None:
            known = n_bytes and collective in TIMED
            prior_s = native_prior_s(collective, model, n_bytes) if known else 0.0
            predicted_s, spread = max(best_s, prior_s), UNTIMED_NATIVE_ERROR
        arms.append(Arm(each.name, family, predicted_s, spread, each.label))
    return arms
