"""Ways to reduce over a grid: every way to broadcast, run backwards."""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.strategies import PREFIX
from gridcoll.plan.plan import Plan
from gridcoll.plan.reduce.mirror import plan_reduce
from gridcoll.plan.registry import Algorithm, Candidate, load, register

SEVERAL_TREES = ("lanes", "stars", "split")
"""Algorithms that send segments down different trees."""

HELD_BACK = 1 / 3
"""What several trees cost a reduction, of the time that the message keeps an interface.

Whoever is a leaf of some trees has all of its share ready from the start, and what others wait for
queues behind it: 27 % to 36 % measured at 1 and 4 MB on three sites, 3 % to 75 % by simulation,
where an interface takes turns between messages and not between packets.
"""


def _held_back_s(candidate: Candidate, model: GridModel, n_bytes: int) -> float:
    segment = float(min(candidate.segment_bytes or n_bytes, max(n_bytes, 1)))
    port_s = float(model.gap_s(segment).diagonal().max())
    return HELD_BACK * port_s * n_bytes / segment


def _mirrored(algorithm: Algorithm, model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """The algorithm's broadcasts backwards: links are taken as equal in both directions."""
    several = algorithm.name in SEVERAL_TREES

    def mirror(candidate: Candidate) -> Candidate:
        build, predicted_s = candidate.build, candidate.predicted_s
        if several and predicted_s is not None:
            predicted_s += _held_back_s(candidate, model, n_bytes)

        def build_reduce(n_units: int) -> Plan:
            if build is None:
                raise TypeError(f"{candidate.name} has no plan")
            # Segments for the size class; the reduction stretches them to its elements.
            return plan_reduce(build(max(n_bytes, 1)), n_units, f"{candidate.name}: backwards")

        return Candidate(
            candidate.name,
            f"{candidate.label}; backwards",
            predicted_s,
            build_reduce,
            candidate.stored_s,
            candidate.segment_bytes,
        )

    return [mirror(candidate) for candidate in algorithm.candidates(model, n_bytes, root)]


def _register_mirrored(algorithm: Algorithm) -> None:
    register(
        "reduce",
        Algorithm(
            algorithm.name,
            algorithm.good_for,
            f"{algorithm.source}; backwards",
            lambda model, n_bytes, root: _mirrored(algorithm, model, n_bytes, root),
            algorithm.most_clusters,
        ),
    )


for _algorithm in load("bcast").values():
    if not _algorithm.name.startswith(PREFIX):  # those are there to compare broadcasts
        _register_mirrored(_algorithm)
