"""Blocks that tell whose they are, and the forms in which buffers of them come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

LAYOUTS = ("one cluster", "two", "three", "interleaved", "lonely root", "all alone")
"""Names in `tests.mpi.support.layouts`."""


def block(rank: int, n: int) -> np.ndarray:
    """``n`` integers of ``rank``: no two ranks' and no two places are alike."""
    return (np.arange(n) % 89 + 97 * (rank + 1)).astype("i4")


def blocks(sizes: Sequence[int]) -> np.ndarray:
    """Those of all ranks, one after another."""
    return np.concatenate([block(rank, n) for rank, n in enumerate(sizes)])


def keep_only(mine: np.ndarray, memory: np.ndarray) -> None:
    """Forget what others sent to ``memory``: an in-place call finds what is ``mine`` alone."""
    memory[~np.isin(memory, mine)] = -1


def uneven(size: int) -> list[int]:
    """Sizes of ``size`` blocks, some of them none."""
    return [(3 * rank) % 7 * 100 + rank % 2 for rank in range(size)]


FORMS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "array": lambda memory, n: memory[: 6 * n],
    "list with type": lambda memory, n: [memory[: 6 * n], MPI.INT],
    "tuple with count": lambda memory, n: (memory, 6, MPI.INT),
    "count and displacement": lambda memory, n: [memory, (6, 4), MPI.INT],
    "four items": lambda memory, n: [memory, 6, 4, MPI.INT],
    "no count": lambda memory, n: [memory[: 6 * n], None, "i"],
    "bytes": lambda memory, n: [memory[: 6 * n].view("u1"), MPI.BYTE],
}
"""``n`` blocks of 6 integers over memory of four bytes each."""

PAIRS = tuple(zip(FORMS, [*list(FORMS)[3:], *list(FORMS)[:3]], strict=True))
"""Every form once to send from and once to receive into."""


def spread(sizes: Sequence[int]) -> list[int]:
    """Places for blocks of ``sizes``, the last first, with room between."""
    return [sum(sizes[rank + 1 :]) + 5 * (len(sizes) - rank) for rank in range(len(sizes))]


def uneven_forms(sizes: Sequence[int]) -> dict[str, Callable[[np.ndarray], Any]]:
    """Blocks of ``sizes`` integers over memory for them and a little more."""
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    apart = spread(sizes)
    forms: dict[str, Callable[[np.ndarray], Any]] = {
        "counts": lambda memory: [memory, list(sizes)],
        "counts and type": lambda memory: [memory, list(sizes), MPI.INT],
        "counts and places": lambda memory: [memory, (list(sizes), starts)],
        "four items": lambda memory: [memory, list(sizes), starts, MPI.INT],
        "arrays": lambda memory: [memory, (np.array(sizes), np.array(apart)), "i"],
        "apart": lambda memory: [memory, list(sizes), apart, MPI.INT],
    }
    if MPI.Get_version() >= (4, 0):  # before that, displacements are C ints: too short for these
        forms["addresses"] = lambda memory: [
            MPI.BOTTOM,
            [4 * n for n in sizes],
            [MPI.Get_address(memory) + 4 * place for place in apart],
            MPI.BYTE,
        ]
    return forms


def room_for(sizes: Sequence[int]) -> int:
    """Integers that memory for `uneven_forms` must have."""
    return sum(sizes) + 5 * len(sizes) + 5


def columns() -> MPI.Datatype:
    """Three integers 16 apart; the next item begins one further, so that 16 of them fit."""
    return MPI.INT.Create_vector(3, 1, 16).Create_resized(0, 4)


def struct() -> MPI.Datatype:
    """Three integers with a gap after the first and behind the last."""
    return MPI.Datatype.Create_struct([1, 2], [0, 8], [MPI.INT, MPI.INT]).Create_resized(0, 20)


def thing(rank: int, much: int) -> Any:
    """An object of ``rank`` whose pickle grows with it."""
    return {"from": rank, "much": "x" * (much * (rank + 1)), "big": 10**50 + rank}


def outcome(call: Callable[..., object], *args: Any) -> tuple[object, ...]:
    """The kind of error, and MPI's class where MPI raised it."""
    try:
        return "no error", call(*args)
    except MPI.Exception as error:
        return "MPI", type(error), error.Get_error_class()
    except Exception as error:
        return "Python", type(error)
