"""Ways to reduce over a grid: every way to broadcast, run backwards."""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.choose import REGISTRIES, Algorithm, Candidate, register
from gridcoll.plan.collectives import (  # noqa: F401 - they fill what is mirrored
    bcast_candidates,
    bcast_several,
)
from gridcoll.plan.collectives.bcast_strategies import PREFIX
from gridcoll.plan.collectives.reduce import plan_reduce
from gridcoll.plan.plan import Plan


def _mirrored(algorithm: Algorithm, model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """The algorithm's broadcasts backwards: links are taken as equal in both directions."""

    def mirror(candidate: Candidate) -> Candidate:
        build = candidate.build

        def build_reduce(n_units: int) -> Plan:
            if build is None:
                raise TypeError(f"{candidate.name} has no plan")
            # Segments for the size class; the reduction stretches them to its elements.
            return plan_reduce(build(max(n_bytes, 1)), n_units, f"{candidate.name}: backwards")

        return Candidate(
            candidate.name,
            f"{candidate.label}; backwards",
            candidate.predicted_s,
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


for _algorithm in REGISTRIES["bcast"].values():
    if not _algorithm.name.startswith(PREFIX):  # those are there to compare broadcasts
        _register_mirrored(_algorithm)
