"""The configurations around a choice, in the paper's order (004, §4.2), and their plot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from gridcoll.draw.figures import new_figure, write_picture
from gridcoll.placement.cost import IterationCost, predict


def configurations(cost: IterationCost, best: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return subsets around ``best``: without its slowest clusters, then with the fastest others.

    Subsets are in growing order. A cluster is faster if it has more computing power; ties go to the
    lowest index.
    """
    by_power = sorted(range(cost.n_clusters), key=lambda i: (-cost.power[i], i))
    order = [i for i in by_power if i in best] + [i for i in by_power if i not in best]
    return tuple(tuple(sorted(order[:k])) for k in range(1, len(order) + 1))


def draw_configurations(
    costs: Sequence[tuple[IterationCost, tuple[int, ...]]], path: str | Path
) -> None:
    """Draw predicted times by configuration, with a star on the best, in a panel for each problem.

    This is Figure 2 of paper 004 without its measurements. ``path`` ends in .png or .svg. Raises
    `FileError` if it cannot be written, `UsageError` for another ending or without matplotlib
    (extra ``plot``).
    """
    figure = new_figure(6.0 * len(costs), 4.5)
    figure.set_layout_engine("constrained")
    for axes, (cost, best) in zip(
        figure.subplots(1, len(costs), squeeze=False)[0], costs, strict=True
    ):
        sets = configurations(cost, best)
        times = [predict(cost, clusters) for clusters in sets]
        ticks = range(len(sets))
        compute_ms = [1e3 * time.compute_s for time in times]
        rest_ms = [1e3 * time.communication_s for time in times]
        axes.bar(ticks, compute_ms, label="computation")
        axes.bar(ticks, rest_ms, bottom=compute_ms, label="communication")
        star = sets.index(tuple(sorted(best)))
        axes.annotate(
            "★", (star, 1e3 * times[star].iteration_s), (0, 4), textcoords="offset points",
            ha="center", fontsize=16,
        )  # fmt: skip
        axes.margins(y=0.12)
        axes.set_xticks(ticks, _labels(cost, sets), rotation=45, ha="right", fontsize=8)
        axes.set_ylabel("predicted time of an iteration (ms)")
        axes.set_title(f"{cost.problem.n_elements:,} elements (star: chosen)")
        axes.legend()
    write_picture(figure, path)


def _labels(cost: IterationCost, sets: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the clusters of the first set, then those that each set adds."""
    names = cost.resources.names
    labels = [" + ".join(names[i] for i in sets[0])]
    for before, now in itertools.pairwise(sets):
        labels.append("+ " + " + ".join(names[i] for i in now if i not in before))
    return labels
