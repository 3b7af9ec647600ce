"""The choice for a call: the winner, all candidates and the reason, as text and as plain data."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from msgspec import Struct

from gridcoll.model import GridModel
from gridcoll.model.summary import format_sources
from gridcoll.plan.registry import Candidate
from gridcoll.schedule.greedy import SEVEN
from gridcoll.topology.units import format_duration, format_size


class Choice(Struct, frozen=True, eq=False, dict=True):
    """The candidate chosen for a call, all candidates (fastest first), and the reason.

    ``sources`` says where the numbers come from. ``own`` returns the text of `own_operations`.
    """

    collective: str
    n_bytes: int
    root: int
    winner: Candidate
    candidates: tuple[Candidate, ...]
    reason: str
    sources: tuple[str, ...] = ()
    own: Callable[[], str] = str

    def __str__(self) -> str:
        """Return the winner and the reason, then a line per candidate."""
        return format_choice(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as plain data, for JSON."""
        return choice_data(self)

    @cached_property
    def own_operations(self) -> str:
        """For a planned reduction, the plan used for user-defined commutative operations, and
        whether it keeps rank order. Plans in rank order are priced on first access only, because
        that takes as long as pricing all others.
        """
        return self.own()


ROOTED = ("bcast", "reduce", "gather", "gatherv", "scatter", "scatterv")


class Row(Struct, frozen=True):
    """One line about a candidate. ``names`` are all algorithms that give the same plan.

    ``index`` is the index of the first of them in the choice's candidates.
    """

    index: int
    names: tuple[str, ...]
    label: str
    predicted: str
    store_and_forward: str
    closed_form: str
    observed: str
    won: bool


def headline(choice: Choice) -> str:
    """``bcast of 64 KiB, root 0: chain, predicted fastest``."""
    root = f", root {choice.root}" if choice.collective in ROOTED else ""
    size = "" if choice.collective == "barrier" else f" of {format_size(choice.n_bytes)}"
    return f"{choice.collective}{size}{root}: {choice.winner.name}, {choice.reason}"


def rows_of(choice: Choice, *, merged: bool = True) -> list[Row]:
    """Return a row per candidate, fastest first; if ``merged``, one row per different plan."""
    groups: dict[object, list[int]] = {}
    for index, candidate in enumerate(choice.candidates):
        same = (candidate.label, candidate.predicted_s) if merged else index
        groups.setdefault(same, []).append(index)
    return [_row(choice, indices) for indices in groups.values()]


def _row(choice: Choice, indices: list[int]) -> Row:
    group = [choice.candidates[index] for index in indices]
    return Row(
        index=indices[0],
        names=tuple(dict.fromkeys(candidate.name for candidate in group)),
        label=group[0].label,
        predicted=_duration(group[0].predicted_s, "not measured"),
        store_and_forward=_duration(group[0].store_and_forward_s, ""),
        closed_form=_duration(group[0].closed_form_s, ""),
        observed=_observed(group[0]),
        won=any(candidate is choice.winner for candidate in group),
    )


def _duration(seconds: float | None, if_none: str) -> str:
    return if_none if seconds is None else format_duration(seconds)


def times_of(candidate: Candidate) -> str:
    """Return the known times, as in ``predicted 20 ms, observed 21 ms in 3 calls``."""
    times = {"predicted": _duration(candidate.predicted_s, ""), "observed": _observed(candidate)}
    return ", ".join(f"{name} {time}" for name, time in times.items() if time)


def _observed(candidate: Candidate) -> str:
    if candidate.observed_s is None:
        return ""
    calls = "1 call" if candidate.n_calls == 1 else f"{candidate.n_calls} calls"
    return f"{format_duration(candidate.observed_s)} in {calls}"


def format_choice(choice: Choice) -> str:
    """Return several lines: the winner and the reason, then the candidates, fastest first."""
    rows = rows_of(choice)
    names = [", ".join(row.names) for row in rows]
    width = min(max(map(len, names)), 40)
    lines = [headline(choice)]
    for row, name in zip(rows, names, strict=True):
        other_times = (
            f" (store and forward: {row.store_and_forward})" if row.store_and_forward else ""
        )
        other_times += f" (closed form: {row.closed_form})" if row.closed_form else ""
        other_times += f" (observed: {row.observed})" if row.observed else ""
        mark = "*" if row.won else " "
        lines.append(f"{mark} {row.predicted:>12}  {name:<{width}}  {row.label}{other_times}")
    lines += [gain] if (gain := gain_of_best(choice)) else []
    if choice.own_operations:
        lines.append(f"operations of your own that commute: {choice.own_operations}")
    lines += choice.sources
    return "\n".join(lines)


def gain_of_best(choice: Choice) -> str:
    """Say what ``best`` gains over the papers' seven heuristics, by store-and-forward times.

    Empty if these are unknown.
    """
    store_and_forward_s = {
        c.name: c.store_and_forward_s
        for c in choice.candidates
        if c.store_and_forward_s is not None
    }
    seven = {name: time_s for name, time_s in store_and_forward_s.items() if name in SEVEN}
    if "best" not in store_and_forward_s or not seven:
        return ""
    name, time_s = min(seven.items(), key=lambda item: item[1])
    gain = 1 - store_and_forward_s["best"] / time_s if time_s else 0.0
    return (
        f"stored and forwarded, best takes {format_duration(store_and_forward_s['best'])}, "
        f"{gain:.1%} less than {name}, the best of the papers' seven"
    )


def choice_data(choice: Choice) -> dict[str, Any]:
    """Return the choice as plain data for JSON; times are in seconds, None where unknown."""
    return {
        "collective": choice.collective,
        "n_bytes": choice.n_bytes,
        "root": choice.root,
        "winner": choice.winner.name,
        "reason": choice.reason,
        "own_operations": choice.own_operations,
        "sources": list(choice.sources),
        "candidates": [
            {
                "name": candidate.name,
                "label": candidate.label,
                "predicted_s": candidate.predicted_s,
                "store_and_forward_s": candidate.store_and_forward_s,
                "closed_form_s": candidate.closed_form_s,
                "segment_bytes": candidate.segment_bytes,
                "observed_s": candidate.observed_s,
                "n_calls": candidate.n_calls,
                "won": candidate is choice.winner,
            }
            for candidate in choice.candidates
        ],
    }


def sources_of(model: GridModel, collective: str) -> tuple[str, ...]:
    """Say where numbers come from: a line each for links, natives and corrections of plans."""
    lines = [f"links: {format_sources(model)}"]
    if collective in model.native_priors:
        lines.append("native: reckoned from the library's known algorithms, not timed")
    elif collective in model.native:
        lines.append("native: observed" + _runs(model, collective))
    families = model.corrections.get(collective, {})
    if families:
        lines.append(f"plans: corrected by what {', '.join(sorted(families))} took before")
    else:
        lines.append("plans: as the model says; none was tried before")
    return tuple(lines)


def _runs(model: GridModel, collective: str) -> str:
    runs = [
        n for by_size in model.native_runs.get(collective, {}).values() for n in by_size.values()
    ]
    return f" in {sum(runs)} runs" if runs else ""
