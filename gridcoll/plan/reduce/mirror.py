"""Reduce: a broadcast run backwards. A rank receives from its children and combines the data."""

from __future__ import annotations

from gridcoll.constants import SEVERAL_TREES_DELAY
from gridcoll.errors import PlanError
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.multi_tree import MULTI_TREE
from gridcoll.plan.bcast.packed_trees import PACKED_TREES
from gridcoll.plan.bcast.strategies import PREFIX
from gridcoll.plan.folding import Incoming, Term, fold, no_slots
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs, scratch_of_each
from gridcoll.plan.registry import Algorithm, Candidate, load, register
from gridcoll.plan.statements import Contribution, Statement, moved, state

state(
    Statement(
        "reduce",
        before=lambda plan, rank: {"input": [(plan.n_units, moved(rank))]},
        after=lambda plan, rank: (
            {
                "output": [
                    (plan.n_units, tuple(Contribution(other, 0) for other in range(plan.n_ranks)))
                ]
            }
            if rank == plan.root
            else {}
        ),
    )
)


def plan_reduce(broadcast: Plan, n_units: int, label: str = "") -> Plan:
    """Reduce ``n_units`` elements to the root of ``broadcast``, along its trees and segments.

    The message of the broadcast may have any length: its segments are scaled. Raises `PlanError`
    for a plan of another collective.
    """
    if broadcast.collective != "bcast":
        raise PlanError(f"plan to run backwards: must be a bcast, got {broadcast.collective}")

    def program_of(rank: int) -> Program:
        return _backwards(broadcast, rank, n_units)

    programs = Programs(broadcast.n_ranks, program_of)
    scratch = scratch_of_each(programs)
    return Plan("reduce", label, n_units, broadcast.root, programs, scratch)


def _by_tag(broadcast: Plan, rank: int) -> dict[int, tuple[Chunk, int, int, list[int]]]:
    """Return chunk, parent (-1 for the root), stream and children of ``rank``, by segment."""
    found: dict[int, tuple[Chunk, int, int, list[int]]] = {}
    for op in broadcast.programs[rank]:
        match op:
            case Recv(peer=peer, chunk=chunk, tag=tag, stream=stream):
                found[tag] = (chunk, peer, stream, [])
            case Send(peer=peer, chunk=chunk, tag=tag):
                found.setdefault(tag, (chunk, -1, 0, []))[3].append(peer)
    return found


def _backwards(broadcast: Plan, rank: int, n_units: int) -> Program:
    ops: list[Op] = []
    length = max(broadcast.n_units, 1)
    root = rank == broadcast.root
    parts = _by_tag(broadcast, rank)
    if root and not any(children for *_, children in parts.values()):
        fold(ops, [(rank, Chunk("input", 0, n_units))], Chunk("output", 0, n_units), no_slots)
        return tuple(ops)
    for tag, (chunk, parent, stream, children) in parts.items():
        start, stop = chunk.start * n_units // length, chunk.stop * n_units // length
        if start == stop:
            continue
        ours = Chunk("input", start, stop)
        if children:
            into = Chunk("output" if root else "scratch", start, stop)
            terms: list[tuple[int, Term]] = [(rank, ours)]
            terms += [(child, Incoming(child, tag, stream)) for child in children]
            first = 0 if root else 1
            slots = iter(
                Chunk("scratch", (first + k) * n_units + start, (first + k) * n_units + stop)
                for k in range(len(children))
            )
            fold(ops, terms, into, lambda _, slots=slots: next(slots))  # type: ignore[misc]
            ours = into
        if not root:
            ops.append(Send(parent, ours, tag))
    return tuple(ops)


SEVERAL_TREES = ("lanes", "stars", "split")
"""Algorithms that send segments down different trees."""


def _delay_s(candidate: Candidate, model: GridModel, n_bytes: int) -> float:
    """Return what several trees cost a reduction; see `SEVERAL_TREES_DELAY`."""
    segment = float(min(candidate.segment_bytes or n_bytes, max(n_bytes, 1)))
    port_s = float(model.gap_s(segment).diagonal().max())
    return SEVERAL_TREES_DELAY * port_s * n_bytes / segment


def _mirrored(algorithm: Algorithm, model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return the algorithm's broadcasts backwards, assuming that links are equal both ways."""
    several = algorithm.name in SEVERAL_TREES

    def mirror(candidate: Candidate) -> Candidate:
        build, predicted_s = candidate.build, candidate.predicted_s
        if several and predicted_s is not None:
            predicted_s += _delay_s(candidate, model, n_bytes)

        def build_reduce(n_units: int) -> Plan:
            if build is None:
                raise TypeError(f"{candidate.name} has no plan")
            # Segments are those of the size class; the reduction scales them to its elements.
            return plan_reduce(build(max(n_bytes, 1)), n_units, f"{candidate.name}: backwards")

        return Candidate(
            candidate.name,
            f"{candidate.label}; backwards",
            predicted_s,
            build_reduce,
            candidate.store_and_forward_s,
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
            algorithm.max_clusters,
        ),
    )


for _algorithm in load("bcast").values():
    # The strategies only serve to compare broadcasts; multi- and packed trees have own reductions.
    if not _algorithm.name.startswith((PREFIX, MULTI_TREE, PACKED_TREES)):
        _register_mirrored(_algorithm)
