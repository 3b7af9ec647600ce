"""Combines local and incoming contributions in a fixed order."""

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
"""Terms of a reduction whose bits must be equal stand at multiples of this in memory: a vectorised
operation may treat elements of other alignments otherwise."""


def align(n_units: int) -> int:
    """``n_units`` rounded up to whole `ALIGNED_UNITS`."""
    return -(-n_units // ALIGNED_UNITS) * ALIGNED_UNITS


class Slots:
    """Hands out scratch from ``first`` on; ``aligned`` slots begin `ALIGNED_UNITS` apart."""

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

    From the right, ``t0 (op) (t1 (op) t2)``, because MPI_Reduce_local puts its result on the right.
    All receives are posted before anything is combined. ``slots(n)`` gives scratch for a term.
    """
    ordered = [term for _, term in sorted(terms, key=lambda item: item[0])]
    *earlier, last = ordered
    here: list[Chunk] = []
    for term in earlier:
        if isinstance(term, Incoming):
            slot = slots(into.size)
            ops.append(Recv(term.peer, slot, term.tag, term.stream))
            here.append(slot)
        else:
            here.append(term)
    if isinstance(last, Incoming):
        ops.append(Recv(last.peer, into, last.tag, last.stream))
    else:
        ops.append(Copy(last, into))
    ops += [Reduce(chunk, into) for chunk in reversed(here)]


def fold_and_meet(
    ops: list[Op],
    terms: Sequence[tuple[int, Term]],
    meeting: Sequence[int],
    rank: int,
    tag: int,
    stream: int,
    into: Chunk,
    slots: Slots,
) -> None:
    """`fold`, then what all ranks of a ``meeting`` have, if there is one: they exchange it.

    All of them fold alike, from ``slots`` that are aligned then, and get the same bits.
    """
    if len(meeting) < 2:
        fold(ops, terms, into, slots)
        return
    own = meeting.index(rank)
    zone = [slots(into.size) for _ in meeting]
    fold(ops, terms, zone[own], slots)
    turned = [*range(own + 1, len(meeting)), *range(own)]
    ops += [Send(meeting[at], zone[own], tag) for at in turned]
    ops += [Recv(meeting[at], zone[at], tag, stream) for at in turned]
    total = slots(into.size)
    fold(ops, list(enumerate(zone)), total, slots)
    ops.append(Copy(total, into))


def no_slots(n_units: int) -> Chunk:
    """Scratch for a fold that needs none."""
    raise PlanError(f"{n_units} units of scratch for a fold of terms that are all here")


def n_fold_slots(own: int, incoming: Iterable[int]) -> int:
    """How many slots `fold` takes for one term here, with key ``own``, and ``incoming`` keys."""
    others = list(incoming)
    return sum(key < max([own, *others]) for key in others)
