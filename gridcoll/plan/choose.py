"""Build candidates, predict their times and pick one. From equal input, all ranks pick the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

from msgspec.structs import replace

from gridcoll.constants import (
    EXTRAPOLATED_FACTOR,
    MARGIN,
    MOST_ORDER_SLOWDOWN,
    PRIOR_FACTOR,
    SHORT_IN_ORDER_BYTES,
    START_MARGIN,
)
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
"""Limit for all blocks together: the displacements of some MPIs are 32-bit integers."""


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
    """Return the choice of the candidate predicted fastest; ties go to the one registered first.

    This is a pure function of its arguments, which are equal on all ranks. Reproducible plans of
    reductions are candidates only where the order or the exact bits matter. In other calls, the
    best other plan was predicted to take at most 1 % longer, and a plan in rank order took 38 %
    longer than predicted.

    Raises `UsageError` for an unknown collective or algorithm, or a root out of range.

    Parameters
    ----------
    forced : str
        Take this algorithm whatever it costs; ``"native"`` for the MPI library's own. A native
        variant that does not exist for this call counts as ``"native"``.
    grid_only : bool
        Leave out the native collective.
    rank_order : bool
        Consider only reductions that keep rank order. The native collective does. Its variants are
        left out, because they were timed with a commutative operation only.
    prefer_order : bool
        Prefer plans that keep rank order where that costs little (see `_in_rank_order`). This is
        for users' operations: some are declared commutative and yet depend on the order, such as an
        ``argmax`` that takes the first of equal values.
    reproducible : bool
        Consider only plans of reductions that all give the same result, bit for bit. ``forced`` is
        ignored unless it names one of these. The native collective is left out.
    bitwise_equal : bool
        All ranks must get the same bits. Inside one cluster the native collective is trusted to do
        that; between clusters, some MPIs combine in different orders on different ranks.
    no_variants : bool
        The call has no native variants, for example because it passes Python objects.
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
    # A model of links says nothing about shared memory, so there only requested plans are priced.
    native_only = model.grid.is_one_host and not (forced or grid_only or reproducible)

    def price(algorithm: Algorithm) -> list[Candidate]:
        return [
            _corrected(candidate, model, collective, n_bytes)
            for candidate in algorithm.candidates(model, n_bytes, root)
            if candidate.rank_order or not rank_order
        ]

    algorithms = [
        algorithm
        for algorithm in REGISTRIES[collective].values()
        if (algorithm.reproducible or not reproducible)
        and (
            algorithm.name == forced
            or ((not forced or reproducible) and not native_only and algorithm.suits(model.grid))
        )
    ]
    found = [
        candidate
        for algorithm in algorithms
        if order_counts or not algorithm.reproducible or algorithm.name == forced
        for candidate in price(algorithm)
    ]
    if reproducible:
        requested = [candidate for candidate in found if candidate.name == forced]
        found, forced = requested or found, forced if requested else ""
    fastest_first = _sorted([*found, *natives])
    left_out = "as asked" if grid_only else ""
    if reproducible:
        left_out = "because its result may be another one"
    elif bitwise_equal and model.n_clusters > 1:
        left_out = "because ranks may get different bits from it"
    winner, reason = _pick(
        model, fastest_first, natives, forced, left_out, _how_known(model, collective, n_bytes)
    )
    if native_only:
        winner, reason = natives[0], ONE_HOST
    if collective == "allreduce" and winner.build is None and not (forced or bitwise_equal):
        reason += _for_equal_bits(model, fastest_first)
    fastest = winner

    def describe_own_operations() -> str:
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
            own = describe_own_operations
    return Choice(
        *(collective, n_bytes, root, winner, fastest_first, reason),
        sources_of(model, collective),
        own,
    )


def rerooted(choice: Choice, model: GridModel, root: int) -> Choice:
    """Return ``choice``, made for the root ``model.grid.first_alike[root]``, moved to ``root``.

    Predicted times are the same for both roots, unless rank order matters. So nothing is priced
    here. The algorithm of a plan is priced when that plan is written, which raises `UsageError` if
    there is no plan for ``root``.
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
    """Return a function that writes ``candidate``'s plan for ``root``, or the best plan if none.

    Raises `UsageError` if there is no plan.
    """
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
    """Return the plan for a user-defined commutative operation, and a text about its rank order.

    The plan is the fastest one in rank order if the message is short or that plan is little slower
    than ``fastest``; otherwise it is ``fastest``.
    """
    if fastest.rank_order:
        return fastest, "in rank order"
    plans = (each for each in fastest_first if each.build is not None and each.rank_order)
    ordered = next(plans, None)
    if ordered is None:
        return fastest, "not in rank order: no plan keeps it"
    slowdown = ordered.expected_s / max(fastest.expected_s, 1e-12) - 1
    if n_bytes <= SHORT_IN_ORDER_BYTES or slowdown <= MOST_ORDER_SLOWDOWN:
        return ordered, f"in rank order, which takes {slowdown:.0%} more than {fastest.name}"
    return fastest, f"not in rank order, which would take {slowdown:.0%} more"


def _natives(
    collective: str, model: GridModel, n_bytes: int, forced: str, *, only_plain: bool
) -> list[Candidate]:
    """Return the native collective and its variants: those timed at this size or requested."""
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
    """Return the seconds of a variant; None beyond the size at which its timing was given up."""
    if variant is None or native is None:
        return None
    was_given_up = variant.sizes_bytes[-1] < native.sizes_bytes[-1]
    if was_given_up and n_bytes > variant.sizes_bytes[-1]:
        return None
    return variant.predict(n_bytes)


def _for_equal_bits(model: GridModel, fastest_first: Sequence[Candidate]) -> str:
    """Say which plan replaces the native collective where all ranks must get the same bits."""
    plan = next((candidate for candidate in fastest_first if candidate.build is not None), None)
    if plan is None or model.n_clusters == 1:
        return ""
    return f"; where rounding depends on order, as for sums of floats: {plan.name}"


def _corrected(candidate: Candidate, model: GridModel, collective: str, n_bytes: int) -> Candidate:
    """Return ``candidate`` with its prediction corrected by measured runs of its family.

    A family that was never run gets the smallest correction among those that were, but at least 1.
    """
    # A stored model may use a family's old name.
    measured = {
        canonical_name(collective, name): correction
        for name, correction in model.corrections.get(collective, {}).items()
    }
    family = family_of(collective, candidate.name)
    factor = 1.0
    if family in measured:
        factor = measured[family].at(n_bytes)
    elif measured:
        factor = max(1.0, min(correction.at(n_bytes) for correction in measured.values()))
    predicted_s = (candidate.expected_s + model.start_s) * factor
    return replace(candidate, predicted_s=predicted_s)


_HowKnown = Literal["measured", "estimated", "extrapolated"]


def _how_known(model: GridModel, collective: str, n_bytes: int) -> _HowKnown:
    """Return where the native's time comes from; inside one cluster, trust it in any case."""
    if model.n_clusters == 1 or collective not in model.native:
        return "measured"
    if collective in model.native_priors:
        return "estimated"
    longest_bytes = model.native[collective].sizes_bytes[-1]
    return "extrapolated" if n_bytes > EXTRAPOLATED_FACTOR * longest_bytes else "measured"


def _pick(
    model: GridModel,
    fastest_first: tuple[Candidate, ...],
    natives: list[Candidate],
    forced: str,
    left_out: str,
    how_known: _HowKnown,
) -> tuple[Candidate, str]:
    """Return the winner and the reason. ``how_known`` says where the native's time comes from.

    ``left_out`` says why the native collective must not be taken; empty if it may.
    """
    if forced in NATIVES:
        requested = (candidate for candidate in natives if candidate.name == forced)
        return next(requested, natives[0]), "asked for"
    native, about_native = _best_native(natives)
    plans = [candidate for candidate in fastest_first if candidate.build is not None]
    if not plans:
        return native, f"{about_native}no plan fits this call"
    if forced:
        return plans[0], "asked for"
    if left_out:
        return plans[0], f"the fastest plan; native was left out {left_out}"
    if native.predicted_s is None:
        if model.n_clusters == 1:
            return native, "one cluster, and native was not measured"
        return plans[0], "the fastest plan; native was not measured"
    if how_known == "estimated":
        return _against_prior(native, native.predicted_s, plans[0])
    if how_known == "extrapolated":
        return _against_extrapolated(native, about_native, plans[0])
    gain_s = native.predicted_s - plans[0].expected_s
    if gain_s <= native.predicted_s * MARGIN:
        return native, f"{about_native}no plan is predicted more than {MARGIN:.0%} faster"
    if gain_s <= START_MARGIN * model.start_s:
        gain = f"no plan is predicted to gain more than {1e3 * gain_s:.2f} ms"
        return native, f"{about_native}{gain}, less than it may lose at its start"
    return plans[0], "predicted fastest"


def _against_prior(native: Candidate, prior_s: float, plan: Candidate) -> tuple[Candidate, str]:
    """Return the winner and the reason where the native's time ``prior_s`` is only estimated."""
    if plan.expected_s <= PRIOR_FACTOR * prior_s:
        return plan, "the fastest plan; native was estimated, not measured"
    return native, f"estimated, not measured, more than {PRIOR_FACTOR:g} times as fast as any plan"


def _against_extrapolated(
    native: Candidate, about_native: str, plan: Candidate
) -> tuple[Candidate, str]:
    """Return the winner and the reason where the native was timed with far shorter messages only.

    The native must win by `MARGIN`: how its time grows with the message is not known.
    """
    if native.expected_s < plan.expected_s * (1 - MARGIN):
        gain = f"predicted more than {MARGIN:.0%} faster than any plan"
        return native, f"{about_native}{gain}, from shorter messages"
    return plan, "the fastest plan; native was measured with shorter messages only"


def _best_native(natives: list[Candidate]) -> tuple[Candidate, str]:
    """Return the plain native, or a variant faster by more than `MARGIN` and a text saying so."""
    plain, best = natives[0], min(natives, key=lambda each: each.expected_s)
    if best is plain or best.expected_s >= plain.expected_s * (1 - MARGIN):
        return plain, ""
    return best, f"measured more than {MARGIN:.0%} faster than {NATIVE}; "
