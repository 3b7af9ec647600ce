"""`Plan`: what every rank does in one collective call, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, overload

from msgspec import Struct
from msgspec.structs import asdict, replace

from gridcoll.plan.ops import Chunk, Op, reads, writes

Program: TypeAlias = tuple[Op, ...]
"""One rank's ops. Their order is only a priority: an op runs as soon as its data is there."""


V = TypeVar("V")


class ByRank(Sequence[V]):
    """A sequence indexed by rank. Each item is made when it is first accessed.

    A rank runs only its own program, so planning for thousands of ranks must not write all of them.
    """

    def __init__(self, n_ranks: int, make_item: Callable[[int], V]) -> None:
        self._make_item = make_item
        self._items: dict[int, V] = {}
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
        if rank not in self._items:
            self._items[rank] = self._make_item(rank)
        return self._items[rank]

    def __iter__(self) -> Iterator[V]:
        return (self[rank] for rank in range(self._n_ranks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


Programs: TypeAlias = ByRank[Program]


def scratch_of(program: Program) -> int:
    """Return the units of scratch that ``program`` needs."""
    chunks = (chunk for op in program for chunk in (*reads(op), *writes(op)))
    return max((chunk.stop for chunk in chunks if chunk.buffer == "scratch"), default=0)


def scratch_of_each(programs: Programs) -> ByRank[int]:
    """Return the units of scratch that each program needs. A program is written when asked for."""
    return ByRank(len(programs), lambda rank: scratch_of(programs[rank]))


def scaled(program: Program, n_units: int) -> Program:
    """Return ``program`` with each unit replaced by ``n_units`` units, which stay together."""
    return tuple(replace(op, **_scaled_chunks(op, n_units)) for op in program)


def _scaled_chunks(op: Op, n_units: int) -> dict[str, Any]:
    return {
        name: Chunk(chunk.buffer, chunk.start * n_units, chunk.stop * n_units)
        for name, chunk in asdict(op).items()
        if isinstance(chunk, Chunk)
    }


class Plan(Struct, frozen=True):
    """One collective call."""

    collective: str
    """Name of the before/after statement that the plan fulfils, such as ``"bcast"``."""
    label: str
    """Description, such as ``"ecef, chain inside, 16 KiB segments"``."""
    n_units: int
    """Size of the message, or of a block where the collective has blocks, in units of
    ``unit_bytes``."""
    root: int
    """The root rank, or -1 if the collective has none."""
    programs: Sequence[Program]
    """``programs[rank]``."""
    scratch_units: Sequence[int] = ()
    """Scratch units of each rank; empty if no rank needs any."""
    blocks: tuple[int, ...] = ()
    """Block size of each rank if sizes differ; empty if every block has ``n_units``."""

    @property
    def n_ranks(self) -> int:
        return len(self.programs)

    @property
    def block_units(self) -> tuple[int, ...]:
        """The block size of every rank, for a collective with one block per rank."""
        return self.blocks or (self.n_units,) * self.n_ranks

    def scratch_of(self, rank: int) -> int:
        return self.scratch_units[rank] if self.scratch_units else 0
