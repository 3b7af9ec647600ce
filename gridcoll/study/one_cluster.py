"""Paper 003's figures and the tables of 002 and 003, from the pLogP of one cluster.

The paper's cluster, icluster-2, had 100 machines on Gigabit Ethernet. Its pLogP is in a picture
(Figure 1) that the text does not give, so the default here is a stand-in: 50 µs of latency,
1 Gbit/s, 20 µs per message. Any measured model can take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gridcoll.errors import UsageError
from gridcoll.model.closed_forms import (
    ALLTOALL_BOUNDS,
    CLOSED_FORMS,
    SCATTER_COSTS,
    Call,
    between_s,
)
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import PLogP
from gridcoll.plan.choose import choose
from gridcoll.plan.registry import REGISTRIES
from gridcoll.topology.grid import Cluster, Grid, Process

SEGMENT_BYTES_AT_LEAST = 1
DEGREES = (2, 3, 4, 6, 8)
LONG_BYTES = 1 << 20


def stand_in_link(
    latency_s: float = 50e-6, bytes_per_s: float = 125e6, message_s: float = 20e-6
) -> PLogP:
    """A pLogP in which the processor is free while the wire is busy: os, or below g."""
    wire_s = LONG_BYTES / bytes_per_s
    return PLogP(
        latency_s=latency_s,
        sizes_bytes=(0, LONG_BYTES),
        gap_s=(message_s, message_s + wire_s),
        send_s=(message_s / 2, message_s / 2 + wire_s / 3),
        recv_s=(message_s / 2, message_s / 2 + wire_s / 3),
    )


def one_cluster(link: PLogP, n_ranks: int) -> GridModel:
    """``n_ranks`` hosts of one cluster."""
    if n_ranks < 2:
        raise UsageError(f"ranks: must be at least 2, got {n_ranks}")
    processes = tuple(Process(rank, f"host{rank}") for rank in range(n_ranks))
    return GridModel(Grid((Cluster("cluster", processes),), "one cluster"), ((link,),))


@dataclass(frozen=True)
class FormRow:
    """A line of a table at one size: the paper's formula beside the plan that does it.

    ``plan_s`` is what our price of the plan says; None where no plan is of this name.
    """

    table: str
    strategy: str
    formula: str
    n_ranks: int
    n_bytes: int
    segment_bytes: int
    formula_s: float
    plan_s: float | None
    holds: str


def halved(n_bytes: int) -> list[int]:
    """Segments of ``m / 2^i`` bytes, i from 0 to log2 m (paper 003, §3)."""
    sizes = [max(n_bytes, 1)]
    while sizes[-1] > SEGMENT_BYTES_AT_LEAST:
        sizes.append(sizes[-1] // 2)
    return sizes


def best_closed_form(name: str, link: PLogP, n_ranks: int, n_bytes: int) -> tuple[float, int]:
    """Seconds and segment of ``name`` at its best m / 2^i, and its best degree."""
    form = CLOSED_FORMS[name]
    segmented = "s)" in form.formula
    return min(
        (form.cost_s(Call(link, n_ranks, n_bytes, segment, degree)), segment)
        for segment in (halved(n_bytes) if segmented else [max(n_bytes, 1)])
        for degree in (DEGREES if name == "k-chain" else (2,))
    )


def broadcast_rows(link: PLogP, n_ranks: int, n_bytes: int) -> list[FormRow]:
    """Table 1 of papers 002 and 003."""
    model = one_cluster(link, n_ranks)
    found = []
    for name, form in CLOSED_FORMS.items():
        formula_s, segment = best_closed_form(name, link, n_ranks, n_bytes)
        plan_s = _plan_s("bcast", f"plain-{name}", model, n_bytes)
        found.append(
            FormRow(
                "1", name, form.formula, n_ranks, n_bytes, segment, formula_s, plan_s, form.good_for
            )
        )
    return found


def scatter_rows(link: PLogP, n_ranks: int, n_bytes: int) -> list[FormRow]:
    """Table 2 of paper 003."""
    model = one_cluster(link, n_ranks)
    found = []
    for name, cost in SCATTER_COSTS.items():
        exact = cost.exact_for(n_ranks)
        found.append(
            FormRow(
                "2", name, cost.formula, n_ranks, n_bytes, n_bytes,
                cost.seconds(link, n_ranks, n_bytes), _plan_s("scatter", name, model, n_bytes),
                "exact for this P" if exact else "P is no power of two: the plan takes more",
            )
        )  # fmt: skip
    return found


def alltoall_rows(link: PLogP, n_ranks: int, n_bytes: int) -> list[FormRow]:
    """Table 3 of paper 003, the paper's prediction between its bounds, and ours."""
    model = one_cluster(link, n_ranks)
    plan_s = _plan_s("alltoall", "direct", model, n_bytes)
    costs = {name: bound.cost_s(link, n_ranks, n_bytes) for name, bound in ALLTOALL_BOUNDS.items()}
    remarks = {
        "paper-upper": "adds receiving to sending: up to twice ours",
        "paper-lower": "as ours where os + or < g",
        "upper": "sends and receives side by side; what a plan is priced at with γ = 1",
        "lower": "what a plan is priced at with γ = 0",
    }
    found = [
        FormRow(
            "3", name, bound.formula, n_ranks, n_bytes, n_bytes, costs[name],
            plan_s if name == "upper" else None, remarks[name],
        )
        for name, bound in ALLTOALL_BOUNDS.items()
    ]  # fmt: skip
    predicted = between_s(costs["paper-lower"], costs["paper-upper"])
    found.append(
        FormRow(
            "3", "paper-predicted", "Lower + (Upper - Lower) γ, γ = 2/3", n_ranks, n_bytes,
            n_bytes, predicted, None, "γ is of the paper's network; ours measures its own",
        )
    )  # fmt: skip
    return found


def _plan_s(collective: str, name: str, model: GridModel, n_bytes: int) -> float | None:
    """The price of the plan of that name, without what was learned of it."""
    if not any(algorithm == name for algorithm in REGISTRIES[collective]):
        return None
    winner = choose(collective, model, n_bytes, 0, forced=name).winner
    return winner.predicted_s if winner.name == name else None


Curve = Callable[[PLogP, int, int], float]
"""Seconds of a link, ranks and bytes."""


def _broadcast(name: str) -> Curve:
    return lambda link, n_ranks, n_bytes: best_closed_form(name, link, n_ranks, n_bytes)[0]


def _bound(name: str) -> Curve:
    return ALLTOALL_BOUNDS[name].cost_s


def _paper_alltoall(link: PLogP, n_ranks: int, n_bytes: int) -> float:
    lower, upper = (_bound(name)(link, n_ranks, n_bytes) for name in ("paper-lower", "paper-upper"))
    return between_s(lower, upper)


@dataclass(frozen=True)
class FigureOf003:
    """A figure: what is drawn over message size, for which numbers of processes.

    ``curves`` maps a label to the model and to (collective, algorithm) as `gridcoll bench` writes
    it, for what was measured; ``most_bytes`` ends the axis.
    """

    number: int
    title: str
    ranks: tuple[int, ...]
    curves: Mapping[str, tuple[Curve, tuple[str, str]]]
    most_bytes: int = 1 << 20


_FLAT = (_broadcast("flat"), ("bcast", "plain-flat"))
_BINOMIAL = (_broadcast("binomial"), ("bcast", "plain-binomial"))
_PIPELINE = (_broadcast("segmented-chain"), ("bcast", "plain-segmented-chain"))
_SEGMENTED_FLAT = (_broadcast("segmented-flat"), ("bcast", "plain-segmented-flat"))
_SEGMENTED_BINOMIAL = (_broadcast("segmented-binomial"), ("bcast", "plain-segmented-binomial"))
_FLAT_SCATTER = (SCATTER_COSTS["flat"].seconds, ("scatter", "flat"))
_BINOMIAL_SCATTER = (SCATTER_COSTS["binomial"].seconds, ("scatter", "binomial"))
_MANY = (2, 4, 8, 16, 24)

FIGURES: dict[int, FigureOf003] = {
    figure.number: figure
    for figure in (
        FigureOf003(2, "segmented chain broadcast", _MANY, {"segmented chain": _PIPELINE}),
        FigureOf003(3, "binomial broadcast", _MANY, {"binomial": _BINOMIAL}),
        FigureOf003(4, "flat broadcast", _MANY, {"flat": _FLAT}),
        FigureOf003(
            5, "broadcasts among 16", (16,),
            {"flat": _FLAT, "binomial": _BINOMIAL, "segmented chain": _PIPELINE},
        ),
        FigureOf003(
            6, "small messages among 16, with the segmented variants of §3.1", (16,),
            {"flat": _FLAT, "binomial": _BINOMIAL, "segmented chain": _PIPELINE,
             "segmented flat": _SEGMENTED_FLAT, "segmented binomial": _SEGMENTED_BINOMIAL},
            1 << 14,
        ),
        FigureOf003(7, "binomial scatter", _MANY, {"binomial": _BINOMIAL_SCATTER}),
        FigureOf003(8, "flat scatter", _MANY, {"flat": _FLAT_SCATTER}),
        FigureOf003(
            9, "scatters among 24", (24,), {"flat": _FLAT_SCATTER, "binomial": _BINOMIAL_SCATTER}
        ),
        FigureOf003(
            10, "all-to-all among 24 and its bounds", (24,),
            {"paper's upper bound": (_bound("paper-upper"), ("", "")),
             "paper's lower bound": (_bound("paper-lower"), ("", "")),
             "paper, γ = 2/3": (_paper_alltoall, ("alltoall", "direct")),
             "ours, γ = 1": (_bound("upper"), ("", ""))},
        ),
        FigureOf003(
            11, "rotated and unrotated direct exchange among 24", (24,),
            {"rotated": (_bound("upper"), ("alltoall", "direct")),
             "unrotated": (_bound("upper"), ("alltoall", "direct-unrotated"))},
        ),
    )
}  # fmt: skip
"""Figure 1, the pLogP itself, is drawn apart."""


def sizes_to(most_bytes: int) -> list[int]:
    """Powers of two."""
    return [1 << k for k in range(40) if 64 <= 1 << k <= most_bytes]


def points(
    figure: FigureOf003, link: PLogP, sizes: Sequence[int]
) -> dict[tuple[str, int], list[float]]:
    """Seconds at ``sizes`` by label and number of processes, by the model."""
    return {
        (label, n_ranks): [curve(link, n_ranks, size) for size in sizes]
        for label, (curve, _) in figure.curves.items()
        for n_ranks in figure.ranks
    }
