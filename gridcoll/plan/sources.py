"""Text about where the numbers behind a choice come from."""

from __future__ import annotations

from gridcoll.model import GridModel
from gridcoll.model.summary import sources_said


def sources_of(model: GridModel, collective: str) -> tuple[str, ...]:
    """One line each for links, natives, and measured runs of plans."""
    lines = [f"links: {sources_said(model)}"]
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
