"""Build candidates, predict their times, pick one: all ranks alike, from the same input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from gridcoll.constants import MARGIN, ORDER_PART, PRIOR_SHORT, SHORT_IN_ORDER_BYTES, START_PART
from gridcoll.errors import UsageError
from gridcoll.model.gridmodel import GridModel, TimesBySize
from gridcoll.plan.choice import Choice, sources_of
from gridcoll.plan.natives import NATIVE, NATIVES, ONE_HOST, VECTOR, variants_of
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import (
    REGISTRIES,
    Algorithm,
    Candidate,
    canonical_name,
    check_collective,
    check_forced,
    family_of,
)

REDUCTIONS = ("allreduce", "reduce", "reduce_scatter")

MOST_VECTOR_BYTES = (1 << 31) - 1
"""Of all blocks together: the displacements of some MPIs are 32-bit integers."""


def choose(
    collective: str,
    model: GridModel,
    n_bytes: int,
    root: int,
    *,
    forced: str = "",
    grid_only: bool = False,
    rank_order: bool = False,
    prefer_order: bool = False,
    reproducible: bool = False,
    bitwise_equal: bool = False,
    no_variants: bool = False,
) -> Choice:
    """The fastest candidate by prediction; ties go to the one registered first.

    A pure function of its arguments, which every rank knows alike. Reproducible plans of reductions
    are candidates only where order or bits count. Elsewhere the best other plan was predicted to
    take at most a hundredth longer, and one in rank order took 38 % longer than predicted.

    Raises `UsageError` for an unknown collective or algorithm, or a root out of range.

    Parameters
    ----------
    forced : str
        Take this algorithm whatever it costs; ``"native"`` for the MPI library's own. A native
        variant that does not exist for this call counts as ``"native"``.
    grid_only : bool
        Leave the native collective out.
    rank_order : bool
        Only reductions that keep rank order. The native collective does. Its variants are left out:
        they were timed with a commutative operation only.
    prefer_order : bool
        Prefer plans that keep rank order where that costs little (see `_in_rank_order`). For users'
        operations: some are declared commutative and yet depend on the order, as an ``argmax`` that
        takes the first of equal values.
    reproducible : bool
        Only plans of reductions that all give the same result, bit for bit. ``forced`` counts only
        among these; the native collective is left out.
    bitwise_equal : bool
        All ranks must get the same bits. Inside one cluster the native collective is trusted to do
        that; between clusters, some MPIs combine in different orders on different ranks.
    no_variants : bool
        The call has no native variants; calls with Python objects have none.
    """
    check_collective(collective)
    if not 0 <= root < model.grid.n_ranks:
        raise UsageError(f"root: must be in 0..{model.grid.n_ranks - 1}, got {root}")
    if forced:
        forced = check_forced(collective, forced)
    natives = _natives(
        collective, model, n_bytes, forced, only_plain=no_variants or (rank_order and not forced)
    )
    order_counts = rank_order or prefer_order or reproducible
    # Of memory that ranks share a model of links knows nothing: only what is asked for is priced.
    native_only = model.grid.is_one_host and not (forced or grid_only or reproducible)

    def price(algorithm: Algorithm) -> list[Candidate]:
        return [
            _corrected(candidate, model, collective, n_bytes)
            for candidate in algorithm.candidates(model, n_bytes, root)
            if (candidate.rank_order or not rank_order)
            and (candidate.reproducible or not reproducible)
        ]

    algorithms = [
        algorithm
        for algorithm in REGISTRIES[collective].values()
        if algorithm.name == forced
        or ((not forced or reproducible) and not native_only and algorithm.suits(model.grid))
    ]
    found = [
        candidate
        for algorithm in algorithms
        if order_counts or not algorithm.reproducible or algorithm.name == forced
        for candidate in price(algorithm)
    ]
    if reproducible:
        asked_for = [candidate for candidate in found if candidate.name == forced]
        found, forced = asked_for or found, forced if asked_for else ""
    fastest_first = _sorted([*found, *natives])
    left_out = "as asked" if grid_only else ""
    if reproducible:
        left_out = "because its result may be another one"
    elif bitwise_equal and model.n_clusters > 1:
        left_out = "because ranks may get different bits from it"
    winner, reason = _pick(
        model, fastest_first, natives, forced, left_out, collective in model.native_priors
    )
    if native_only:
        winner, reason = natives[0], ONE_HOST
    if collective == "allreduce" and winner.build is None and not (forced or bitwise_equal):
        reason += _otherwise(model, fastest_first)
    fastest = winner

    def say_own() -> str:
        ordered = [each for each in algorithms if each.reproducible and not order_counts]
        more = [candidate for algorithm in ordered for candidate in price(algorithm)]
        in_order, how = _in_rank_order(_sorted([*fastest_first, *more]), fastest, n_bytes)
        return f"{in_order.name}, {how}"

    own: Callable[[], str] = str
    if collective in REDUCTIONS and winner.build is not None and not (forced or rank_order):
        if prefer_order:
            winner, how = _in_rank_order(fastest_first, winner, n_bytes)
            reason = f"{reason}; {how}"
        else:
            own = say_own
    return Choice(
        *(collective, n_bytes, root, winner, fastest_first, reason),
        sources_of(model, collective),
        own,
    )


def rerooted(choice: Choice, model: GridModel, root: int) -> Choice:
    """``choice``, which was made for the root ``model.grid.first_alike[root]``, for ``root``.

    Predicted times are the same for both, unless rank order counts. So no algorithm is priced here;
    that of a plan is when the plan is written. That raises `UsageError` if there is no plan at all.
    """

    def moved(candidate: Candidate) -> Candidate:
        if candidate.build is None:
            return candidate

        @cache
        def writer() -> Callable[[int], Plan]:
            return _writer(choice, candidate, model, root)

        return replace(candidate, build=lambda n_units: writer()(n_units))

    candidates = tuple(map(moved, choice.candidates))
    winner = candidates[choice.candidates.index(choice.winner)]
    return replace(choice, root=root, winner=winner, candidates=candidates)


def _writer(
    choice: Choice, candidate: Candidate, model: GridModel, root: int
) -> Callable[[int], Plan]:
    """Writes the plan of ``candidate`` for ``root``; the best plan where there is none such."""
    collective, n_bytes = choice.collective, choice.n_bytes
    found = REGISTRIES[collective][candidate.name].candidates(model, n_bytes, root)
    found = found or [choose(collective, model, n_bytes, root, grid_only=True).winner]
    best = min(found, key=lambda each: (each.label != candidate.label, each.expected_s))
    if best.build is None:
        raise UsageError(f"{collective}: no plan for root {root}")
    return best.build


def _sorted(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda each: each.expected_s))


def _in_rank_order(
    fastest_first: Sequence[Candidate], fastest: Candidate, n_bytes: int
) -> tuple[Candidate, str]:
    """The plan for a commutative operation of the user's, and a text about its rank order.

    It is the fastest plan in rank order if the message is short or that plan is hardly slower than
    ``fastest``.
    """
    if fastest.rank_order:
        return fastest, "in rank order"
    plans = (each for each in fastest_first if each.build is not None and each.rank_order)
    ordered = next(plans, None)
    if ordered is None:
        return fastest, "not in rank order: no plan keeps it"
    more = ordered.expected_s / max(fastest.expected_s, 1e-12) - 1
    if n_bytes <= SHORT_IN_ORDER_BYTES or more <= ORDER_PART:
        return ordered, f"in rank order, which takes {more:.0%} more than {fastest.name}"
    return fastest, f"not in rank order, which would take {more:.0%} more"


def _natives(
    collective: str, model: GridModel, n_bytes: int, forced: str, *, only_plain: bool
) -> list[Candidate]:
    """The native collective, then its variants: those timed at this size, and the one asked for."""
    measured = model.native.get(collective)
    label = NATIVES[NATIVE].label + (", estimated" if collective in model.native_priors else "")
    native = Candidate(NATIVE, label, measured.predict(n_bytes) if measured else None)
    timed = model.native_variants.get(collective, {})
    found = [native]
    for name in () if only_plain else variants_of(collective):
        if name == VECTOR and n_bytes * model.grid.n_ranks > MOST_VECTOR_BYTES:
            continue
        measured_s = _variant_s(timed.get(name), measured, n_bytes)
        if measured_s is not None or name == forced:
            found.append(Candidate(name, NATIVES[name].label, measured_s))
    return found


def _variant_s(
    variant: TimesBySize | None, native: TimesBySize | None, n_bytes: int
) -> float | None:
    """Seconds; None for sizes beyond the largest one at which the variant was timed."""
    if variant is None or native is None:
        return None
    given_up = variant.sizes_bytes[-1] < native.sizes_bytes[-1]
    if given_up and n_bytes > variant.sizes_bytes[-1]:
        return None
    return variant.predict(n_bytes)


def _otherwise(model: GridModel, fastest_first: Sequence[Candidate]) -> str:
    """What runs in place of the native collective where all ranks must get the same bits."""
    plan = next((candidate for candidate in fastest_first if candidate.build is not None), None)
    if plan is None or model.n_clusters == 1:
        return ""
    return f"; where rounding depends on order, as for sums of floats: {plan.name}"


def _corrected(candidate: Candidate, model: GridModel, collective: str, n_bytes: int) -> Candidate:
    """``candidate`` with its prediction corrected by measured runs of its family.

    A family that never ran gets the correction of the best one that did.
    """
    # A stored model may use a family's old name.
    tried = {
        canonical_name(collective, name): correction
        for name, correction in model.corrections.get(collective, {}).items()
    }
    family = family_of(collective, candidate.name)
    factor = 1.0
    if family in tried:
        factor = tried[family].at(n_bytes)
    elif tried:
        factor = max(1.0, min(correction.at(n_bytes) for correction in tried.values()))
    predicted_s = (candidate.expected_s + model.start_s) * factor
    return replace(candidate, predicted_s=predicted_s)


def _pick(
    model: GridModel,
    fastest_first: tuple[Candidate, ...],
    natives: list[Candidate],
    forced: str,
    left_out: str,
    is_prior: bool,
) -> tuple[Candidate, str]:
    if forced in NATIVES:
        asked_for = (candidate for candidate in natives if candidate.name == forced)
        return next(asked_for, natives[0]), "asked for"
    native, measured = _best_native(natives)
    plans = [candidate for candidate in fastest_first if candidate.build is not None]
    if not plans:
        return native, f"{measured}no plan fits this call"
    if forced:
        return plans[0], "asked for"
    if left_out:
        return plans[0], f"the fastest plan; native was left out {left_out}"
    if native.predicted_s is None:
        if model.n_clusters == 1:
            return native, "one cluster, and native was not measured"
        return plans[0], "the fastest plan; native was not measured"
    if is_prior and model.n_clusters > 1:
        return _against_prior(native, native.predicted_s, plans[0])
    gain_s = native.predicted_s - plans[0].expected_s
    if gain_s <= native.predicted_s * MARGIN:
        return native, f"{measured}no plan is predicted more than {MARGIN:.0%} faster"
    if gain_s <= START_PART * model.start_s:
        gained = f"no plan is predicted to gain more than {1e3 * gain_s:.2f} ms"
        return native, f"{measured}{gained}, less than it may lose at its start"
    return plans[0], "predicted fastest"


def _against_prior(native: Candidate, prior_s: float, plan: Candidate) -> tuple[Candidate, str]:
    if plan.expected_s <= PRIOR_SHORT * prior_s:
        return plan, "the fastest plan; native was estimated, not measured"
    return native, f"estimated, not measured, more than {PRIOR_SHORT:g} times as fast as any plan"


def _best_native(natives: list[Candidate]) -> tuple[Candidate, str]:
    """The plain native, or a variant that is faster by `MARGIN`; and a text that says so."""
    plain, best = natives[0], min(natives, key=lambda each: each.expected_s)
    if best is plain or best.expected_s >= plain.expected_s * (1 - MARGIN):
        return plain, ""
    return best, f"measured more than {MARGIN:.0%} faster than {NATIVE}; "
