"""Ops that combine local and incoming contributions in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from gridcoll.errors import PlanError
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send


class Incoming(NamedTuple):
    """A term that another rank sends."""

    peer: int
    tag: int
    stream: int


Term: TypeAlias = Chunk | Incoming

ALIGNED_UNITS = 64
"""Where ranks must get equal bits, terms of a reduction start at multiples of this in memory, since
a vectorised operation may treat elements differently depending on their alignment."""


def align(n_units: int) -> int:
    """Return ``n_units`` rounded up to a multiple of `ALIGNED_UNITS`."""
    return -(-n_units // ALIGNED_UNITS) * ALIGNED_UNITS


class Slots:
    """Allocates scratch from ``first`` on; ``aligned`` slots take multiples of `ALIGNED_UNITS`."""

    def __init__(self, first: int, *, aligned: bool = False) -> None:
        self._next = first
        self._aligned = aligned

    def __call__(self, n_units: int) -> Chunk:
        start = self._next
        self._next += align(n_units) if self._aligned else n_units
        return Chunk("scratch", start, start + n_units)


def fold(
    ops: list[Op], terms: Sequence[tuple[int, Term]], into: Chunk, slots: Callable[[int], Chunk]
) -> None:
    """Append the ops that leave ``t0 (op) t1 (op) …`` in ``into``, ``terms`` ordered by key.

    Terms are combined from the right, ``t0 (op) (t1 (op) t2)``, because MPI_Reduce_local puts its
    result in the right operand. All receives are posted before anything is combined. ``slots(n)``
    returns scratch for a term.
    """
    ordered = [term for _, term in sorted(terms, key=lambda item: item[0])]
    *earlier, last = ordered
    chunks: list[Chunk] = []
    for term in earlier:
        if isinstance(term, Incoming):
            slot = slots(into.size)
            ops.append(Recv(term.peer, slot, term.tag, term.stream))
            chunks.append(slot)
        else:
            chunks.append(term)
    if isinstance(last, Incoming):
        ops.append(Recv(last.peer, into, last.tag, last.stream))
    else:
        ops.append(Copy(last, into))
    ops += [Reduce(chunk, into) for chunk in reversed(chunks)]


def fold_and_meet(
    ops: list[Op],
    terms: Sequence[tuple[int, Term]],
    meeting: Sequence[int],
    rank: int,
    tag: int,
    stream: int,
    into: Chunk,
    slots: Slots,
    due_us: int = 0,
) -> None:
    """Append the ops of `fold`, and of an exchange of the results if ``meeting`` has several ranks.

    Results do not leave before ``due_us``. All ranks of a meeting fold the results in the same
    order and get the same bits, which requires that ``slots`` are aligned.
    """
    if len(meeting) < 2:
        fold(ops, terms, into, slots)
        return
    own = meeting.index(rank)
    results = [slots(into.size) for _ in meeting]
    fold(ops, terms, results[own], slots)
    others = [*range(own + 1, len(meeting)), *range(own)]
    ops += [Send(meeting[at], results[own], tag, due_us=due_us) for at in others]
    ops += [Recv(meeting[at], results[at], tag, stream) for at in others]
    total = slots(into.size)
    fold(ops, list(enumerate(results)), total, slots)
    ops.append(Copy(total, into))


def no_slots(n_units: int) -> Chunk:
    """Raise `PlanError`: the ``slots`` of a fold that must not need scratch."""
    raise PlanError(f"{n_units} units of scratch for a fold of terms that are all here")


def n_fold_slots(own: int, incoming: Iterable[int]) -> int:
    """Return how many slots `fold` takes for a local term of key ``own`` and incoming ones."""
    others = list(incoming)
    return sum(key < max([own, *others]) for key in others)
