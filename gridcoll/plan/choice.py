"""A choice: what was chosen for a call, among what, and why; for people and for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gridcoll.model import GridModel
from gridcoll.model.summary import format_sources
from gridcoll.plan.registry import Candidate
from gridcoll.schedule.greedy import SEVEN
from gridcoll.topology.units import format_duration, format_size


@dataclass(frozen=True)
class Choice:
    """What was chosen for a call, among what, and why. Candidates are ordered fastest first.

    ``sources``: where the numbers come from; ``own``: what says `own_operations`.
    """

    collective: str
    n_bytes: int
    root: int
    winner: Candidate
    candidates: tuple[Candidate, ...]
    reason: str
    sources: tuple[str, ...] = ()
    own: Callable[[], str] = field(default=str, repr=False, compare=False)

    def __str__(self) -> str:
        """What was chosen and why, then a line per candidate."""
        return format_choice(self)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return choice_data(self)

    @cached_property
    def own_operations(self) -> str:
        """For a planned reduction, the plan for a commutative operation of the user's own, and
        whether it keeps rank order. Plans in rank order are priced only now: it takes as long as
        all others.
        """
        return self.own()


ROOTED = ("bcast", "reduce", "gather", "gatherv", "scatter", "scatterv")


@dataclass(frozen=True)
class Row:
    """One line about a candidate. ``names`` are all algorithms that give the same plan.

    ``index`` is the place of the first of them in the choice's candidates.
    """

    index: int
    names: tuple[str, ...]
    label: str
    predicted: str
    stored: str
    table: str
    observed: str
    won: bool


def headline(choice: Choice) -> str:
    """``bcast of 64 KiB, root 0: chain, predicted fastest``."""
    root = f", root {choice.root}" if choice.collective in ROOTED else ""
    size = "" if choice.collective == "barrier" else f" of {format_size(choice.n_bytes)}"
    return f"{choice.collective}{size}{root}: {choice.winner.name}, {choice.reason}"


def rows_of(choice: Choice, *, merged: bool = True) -> list[Row]:
    """The candidates, fastest first; ``merged``: one row for those that give the same plan."""
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
        predicted=_said(group[0].predicted_s, "not measured"),
        stored=_said(group[0].store_and_forward_s, ""),
        table=_said(group[0].closed_form_s, ""),
        observed=_observed(group[0]),
        won=any(candidate is choice.winner for candidate in group),
    )


def _said(seconds: float | None, instead: str) -> str:
    return instead if seconds is None else format_duration(seconds)


def times_of(candidate: Candidate) -> str:
    """``predicted 20 ms, observed 21 ms in 3 calls``: what is known of both."""
    times = {"predicted": _said(candidate.predicted_s, ""), "observed": _observed(candidate)}
    return ", ".join(f"{name} {time}" for name, time in times.items() if time)


def _observed(candidate: Candidate) -> str:
    if candidate.observed_s is None:
        return ""
    calls = "1 call" if candidate.n_calls == 1 else f"{candidate.n_calls} calls"
    return f"{format_duration(candidate.observed_s)} in {calls}"


def format_choice(choice: Choice) -> str:
    """Several lines: what was chosen and why, then the candidates, fastest first."""
    rows = rows_of(choice)
    names = [", ".join(row.names) for row in rows]
    width = min(max(map(len, names)), 40)
    lines = [headline(choice)]
    for row, name in zip(rows, names, strict=True):
        stored = f" (store and forward: {row.stored})" if row.stored else ""
        stored += f" (closed form: {row.table})" if row.table else ""
        stored += f" (observed: {row.observed})" if row.observed else ""
        mark = "*" if row.won else " "
        lines.append(f"{mark} {row.predicted:>12}  {name:<{width}}  {row.label}{stored}")
    lines += [gain] if (gain := gain_of_best(choice)) else []
    if choice.own_operations:
        lines.append(f"operations of your own that commute: {choice.own_operations}")
    lines += choice.sources
    return "\n".join(lines)


def gain_of_best(choice: Choice) -> str:
    """Gain of ``best`` over the papers' seven, stored and forwarded; empty if unknown."""
    stored = {
        c.name: c.store_and_forward_s
        for c in choice.candidates
        if c.store_and_forward_s is not None
    }
    seven = {name: time_s for name, time_s in stored.items() if name in SEVEN}
    if "best" not in stored or not seven:
        return ""
    name, time_s = min(seven.items(), key=lambda item: item[1])
    gain = 1 - stored["best"] / time_s if time_s else 0.0
    return (
        f"stored and forwarded, best takes {format_duration(stored['best'])}, "
        f"{gain:.1%} less than {name}, the best of the papers' seven"
    )


def choice_data(choice: Choice) -> dict[str, Any]:
    """The choice as plain data for JSON; times in seconds, None where unknown."""
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
    """One line each for links, natives, and measured runs of plans."""
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
