"""Of which basic types a buffer argument consists: MPI wants the same on all ranks of a call."""

from __future__ import annotations

from math import gcd
from typing import Any

from mpi4py import MPI

from gridcoll.comm.arguments.elements import datatype_of


def signature(spec: Any) -> str:
    """The basic types of ``spec`` and their shares, as ``"f8"``, or ``"f8:2 i4:1"`` by bytes.

    Layouts, counts and the order of types do not show: equal signatures of MPI give equal texts,
    and so do some unequal ones. Empty for what may go with any, as MPI.PACKED or an argument that
    is left out, and for what mpi4py does not take.
    """
    if spec is None or spec is MPI.IN_PLACE:
        return ""
    try:
        datatype = datatype_of(spec)
    except Exception:
        return ""
    if datatype == MPI.PACKED:
        return ""
    by_type = _bytes_by_type(datatype)
    if len(by_type) == 1:
        return next(iter(by_type))
    unit = gcd(*by_type.values())
    return " ".join(f"{name}:{n_bytes // unit}" for name, n_bytes in sorted(by_type.items()))


def _bytes_by_type(datatype: MPI.Datatype) -> dict[str, int]:
    """Bytes of every basic type in one element of ``datatype``."""
    if datatype.is_predefined:
        return {datatype.typestr: datatype.Get_size()}
    base, combiner, parameters = datatype.decode()
    if combiner != "STRUCT":
        parts, counts = [base], [1]
    else:
        parts, counts = parameters["datatypes"], parameters["blocklengths"]
    found: dict[str, int] = {}
    for part, count in zip(parts, counts, strict=True):
        for name, n_bytes in _bytes_by_type(part).items():
            found[name] = found.get(name, 0) + count * n_bytes
        if not part.is_predefined:
            part.Free()  # what it was made of came as new handles
    # Of one base, however often, only how much there is differs.
    times = datatype.Get_size() // max(sum(found.values()), 1)
    return {name: times * n_bytes for name, n_bytes in found.items() if times * n_bytes}
