"""`Plan`: what every rank does in one collective call, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar, overload

from gridcoll.plan.ops import Chunk, Op, reads, writes

Program: TypeAlias = tuple[Op, ...]
"""One rank's ops. Their order is a priority: an op runs as soon as its data is there."""


V = TypeVar("V")


class ByRank(Sequence[V]):
    """A sequence by rank; each item is made when it is first asked for.

    A rank runs only its own program, and planning for thousands of ranks must not write them all.
    """

    def __init__(self, n_ranks: int, of_rank: Callable[[int], V]) -> None:
        self._of_rank = of_rank
        self._written: dict[int, V] = {}
        self._n_ranks = n_ranks

    def __len__(self) -> int:
        return self._n_ranks

    @overload
    def __getitem__(self, rank: int) -> V: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[V]: ...
    def __getitem__(self, rank: int | slice) -> V | Sequence[V]:
        if isinstance(rank, slice):
            return [self[r] for r in range(*rank.indices(len(self)))]
        if not 0 <= rank < self._n_ranks:
            raise IndexError(rank)
        if rank not in self._written:
            self._written[rank] = self._of_rank(rank)
        return self._written[rank]

    def __iter__(self) -> Iterator[V]:
        return (self[rank] for rank in range(self._n_ranks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


Programs: TypeAlias = ByRank[Program]


def scratch_of(program: Program) -> int:
    """As much scratch as ``program`` touches."""
    chunks = (chunk for op in program for chunk in (*reads(op), *writes(op)))
    return max((chunk.stop for chunk in chunks if chunk.buffer == "scratch"), default=0)


def scaled(program: Program, n_units: int) -> Program:
    """``program`` with ``n_units`` in place of each unit: none of these is ever cut."""
    return tuple(replace(op, **_scaled_chunks(op, n_units)) for op in program)


def _scaled_chunks(op: Op, n_units: int) -> dict[str, Any]:
    values = {each.name: getattr(op, each.name) for each in fields(op)}
    return {
        name: Chunk(chunk.buffer, chunk.start * n_units, chunk.stop * n_units)
        for name, chunk in values.items()
        if isinstance(chunk, Chunk)
    }


@dataclass(frozen=True)
class Plan:
    """One collective call."""

    collective: str
    """Name of the before/after statement the plan fulfils, as ``"bcast"``."""
    label: str
    """Description: ``"ecef, chain inside, 16 KiB segments"``."""
    n_units: int
    """Size of the message in units of ``unit_bytes``, or of a block, as the collective defines."""
    root: int
    """The root rank, or -1 where there is none."""
    programs: Sequence[Program]
    """``programs[rank]``."""
    scratch_units: Sequence[int] = field(default=())
    """Scratch space of each rank; empty if none needs any."""
    blocks: tuple[int, ...] = field(default=())
    """Each rank's block size where they differ; empty if all have ``n_units``."""

    @property
    def n_ranks(self) -> int:
        return len(self.programs)

    @property
    def block_units(self) -> tuple[int, ...]:
        """The size of every rank's block, in a collective that has a block per rank."""
        return self.blocks or (self.n_units,) * self.n_ranks

    def scratch_of(self, rank: int) -> int:
        return self.scratch_units[rank] if self.scratch_units else 0
