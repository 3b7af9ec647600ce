"""`Plan`: what every rank does in one collective call, as data that cannot talk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, overload

from gridcoll.plan.ops import Op

Program: TypeAlias = tuple[Op, ...]
"""One rank's ops. Order is priority, not time: an op runs when the data it needs is there."""


class Programs(Sequence[Program]):
    """The programs of ranks ``0..n_ranks-1``, each written when first asked for.

    A rank runs only its own program, and planning for thousands of ranks must not write them all.
    """

    def __init__(self, n_ranks: int, program_of: Callable[[int], Program]) -> None:
        self._program_of = program_of
        self._written: dict[int, Program] = {}
        self._n_ranks = n_ranks

    def __len__(self) -> int:
        return self._n_ranks

    @overload
    def __getitem__(self, rank: int) -> Program: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[Program]: ...
    def __getitem__(self, rank: int | slice) -> Program | Sequence[Program]:
        if isinstance(rank, slice):
            return [self[r] for r in range(*rank.indices(len(self)))]
        if not 0 <= rank < self._n_ranks:
            raise IndexError(rank)
        if rank not in self._written:
            self._written[rank] = self._program_of(rank)
        return self._written[rank]

    def __iter__(self) -> Iterator[Program]:
        return (self[rank] for rank in range(self._n_ranks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Plan:
    """One collective call.

    Attributes
    ----------
    collective : str
        Name of the before/after statement the plan fulfils, as ``"bcast"``.
    label : str
        How, for people: ``"ecef, chain inside, 16 KiB segments"``.
    n_units : int
        Size of the message in units of ``unit_bytes``; what it means per rank is the collective's.
    root : int
        The root rank, or -1 where there is none.
    programs : sequence of tuple of Op
        ``programs[rank]``.
    scratch_units : tuple of int
        Scratch space of each rank; empty if none needs any.
    """

    collective: str
    label: str
    n_units: int
    root: int
    programs: Sequence[Program]
    scratch_units: tuple[int, ...] = field(default=())

    @property
    def n_ranks(self) -> int:
        return len(self.programs)

    def scratch_of(self, rank: int) -> int:
        return self.scratch_units[rank] if self.scratch_units else 0
