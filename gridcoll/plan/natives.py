"""The MPI library's own collectives: the call of that name, and equivalent calls (variants)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

NATIVE = "native"
NONBLOCKING = "native-nonblocking"
VECTOR = "native-v"

ONE_HOST = "one host: nothing goes over a network"
"""The reason why the native collective is taken on one host, where no plan is priced."""


class Native(Struct, frozen=True):
    """A native collective or a variant of it.

    ``collectives`` are those that have this variant; empty for the plain native, which all have.
    """

    name: str
    label: str
    good_for: str
    collectives: tuple[str, ...] = ()
    source: str = "the MPI library"


TIMED = (
    *("bcast", "allreduce", "reduce", "alltoall", "gather", "scatter", "allgather"),
    *("reduce_scatter", "barrier"),
)
"""Collectives whose native times `gridcoll discover` measures."""

NATIVES: Mapping[str, Native] = {
    entry.name: entry
    for entry in (
        Native(
            NATIVE,
            "the MPI library's own",
            "where no plan is faster by prediction; times measured by gridcoll discover",
        ),
        Native(
            NONBLOCKING,
            "the MPI library's non-blocking one, waited for politely",
            "where the library uses faster algorithms for it, or waiting ranks disturb others",
            TIMED,
        ),
        Native(
            VECTOR,
            "the MPI library's Alltoallv, with equal counts",
            "short blocks where the library's Alltoall relays them and its Alltoallv does not",
            ("alltoall",),
        ),
    )
}
"""All natives by name, the plain one first."""


def variants_of(collective: str) -> tuple[str, ...]:
    """Return the names of the natives of ``collective`` besides the plain one."""
    return tuple(entry.name for entry in NATIVES.values() if collective in entry.collectives)


def natives_of(collective: str) -> tuple[str, ...]:
    """Return the names of all natives of ``collective``, the plain one first."""
    return (NATIVE, *variants_of(collective))
