"""Elements and types of buffer arguments, for reductions and for checks that ranks agree."""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np
from mpi4py import MPI
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.comm.arguments.buffers import (
    bytes_at,
    bytes_of,
    copy_typed,
    read_message,
    unpack,
)
from gridcoll.engine.memory import aligned_bytes

MOST_GAPS = 2
"""Elements may span so many times the bytes of their data. Pairs of a value and its place, such as
MPI.DOUBLE_INT, span at most 8/5. For a column of a matrix, a plan would send the whole matrix."""

_NATIVE_ORDER = "@=<" if sys.byteorder == "little" else "@=>!"


class Elements(Struct, frozen=True):
    """``n_units`` elements of ``datatype``, of ``unit_bytes`` each, one after another in ``view``.

    ``view`` is the user's own memory, or a copy if the CPU cannot reach that or elements have gaps,
    which MPI must leave as they are. ``store`` copies a result back to the user's memory.
    """

    view: memoryview
    n_units: int
    datatype: MPI.Datatype
    unit_bytes: int
    copied: bool = False
    store: Callable[[], None] | None = None


def read_elements(spec: Any, *, writable: bool) -> Elements | None:
    """Return the elements of ``spec``, in any form mpi4py accepts.

    None for datatypes whose elements overlap, begin elsewhere than at their address, or consist
    mostly of gaps, which a plan would send, too. MPI requires equal datatypes on all ranks of a
    reduction, so either all ranks get None or no rank does.

    Raises some exception for a ``spec`` that mpi4py does not accept.
    """
    buffer, count, displacement, _ = unpack(spec)
    datatype = datatype_of(spec)
    data_bytes, (lower, unit_bytes) = datatype.Get_size(), datatype.Get_extent()
    begin, spanned = datatype.Get_true_extent()
    if lower or begin < 0 or begin + spanned > unit_bytes or unit_bytes > MOST_GAPS * data_bytes:
        return None
    has_gaps = unit_bytes > data_bytes
    no_buffer = buffer is None or buffer is MPI.BOTTOM
    try:
        view = memoryview(b"") if no_buffer else bytes_of(buffer)
    except BufferError:
        message = read_message(spec, writable=writable)
        n_units = len(message.view) // max(data_bytes, 1)
        found = Elements(message.view, n_units, datatype, unit_bytes, True, message.store)
        return _with_own_gaps(found, [message.view, MPI.PACKED]) if has_gaps else found
    if writable and view.readonly and not no_buffer:
        raise BufferError("read-only")
    offset = operator.index(displacement or 0) * unit_bytes
    if count is None:
        count, rest = divmod(len(view) - offset, unit_bytes)
        if rest:
            raise ValueError("no whole number of elements")
    n_bytes = operator.index(count) * unit_bytes
    if n_bytes < 0 or offset < 0 or offset > len(view) or (no_buffer and n_bytes):
        raise ValueError("out of bounds")
    if offset + n_bytes <= len(view):
        found = Elements(view[offset : offset + n_bytes], count, datatype, unit_bytes)
    else:  # like mpi4py, trust the application's count: its memory may extend beyond the object
        address = MPI.Get_address(view) + offset
        memory = bytes_at(address, n_bytes, readonly=view.readonly)
        found = Elements(memory, count, datatype, unit_bytes)
    if not has_gaps:
        return found
    return _with_own_gaps(found, [found.view, count, datatype], writable=writable)


def _with_own_gaps(elements: Elements, spec: Any, *, writable: bool = True) -> Elements:
    """Return a copy of ``elements`` with gaps that may be overwritten; MPI copies from ``spec``."""
    view = aligned_bytes(elements.n_units * elements.unit_bytes)
    ours = [view, elements.n_units, elements.datatype]
    copy_typed(spec, ours)

    def store() -> None:
        copy_typed(ours, spec)
        if elements.store:
            elements.store()

    return replace(elements, view=view, copied=True, store=store if writable else None)


def datatype_of(spec: Any) -> MPI.Datatype:
    """Return the type of the elements of ``spec``, also if it has counts for each rank.

    Raises some exception for a ``spec`` that mpi4py does not accept.
    """
    buffer, last = (spec[0], spec[-1]) if type(spec) in (list, tuple) else (spec, None)
    if isinstance(last, MPI.Datatype):
        return last
    return MPI.Datatype.fromcode(last if isinstance(last, str) else _type_code(buffer))


def _type_code(buffer: Any) -> str:
    """Return the type code of the items of ``buffer``, as mpi4py would determine it."""
    try:
        code = memoryview(buffer).format
    except TypeError:
        interface = getattr(buffer, "__cuda_array_interface__", None)
        return np.dtype(interface["typestr"]).char if interface else _dlpack_code(buffer)
    return code[1:] if len(code) > 1 and code[0] in _NATIVE_ORDER else code


_DLPACK_KINDS = {(0, 1): "i", (1, 1): "u", (2, 1): "f", (2, 2): "c", (5, 1): "c", (6, 1): "b"}
"""NumPy's kinds by DLPack's type code and number of lanes."""

_DLPACK_DTYPE_OFFSET = 20  # in struct DLTensor: after a pointer, two ints of the device, and ndim


def _dlpack_code(buffer: Any) -> str:
    """Return the type code by DLPack; `numpy.from_dlpack` would not accept long double."""
    capsule = buffer.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = pointer(capsule, b"dltensor") + _DLPACK_DTYPE_OFFSET
    code, bits = (ctypes.c_uint8 * 2).from_address(address)
    lanes = ctypes.c_uint16.from_address(address + 2).value
    kind = _DLPACK_KINDS.get((code, lanes))
    return np.dtype(f"{kind}{bits * lanes // 8}").char if kind else "B"


def format_of(datatype: MPI.Datatype) -> str | None:
    """Return ``datatype`` as a `memoryview.format`; None if Python has no such number type."""
    code = datatype.typechar
    if code in "FD":
        return f"Z{code.lower()}"
    return code if code in "?bBhHiIlLqQfd" else None


def is_whole(datatype: MPI.Datatype) -> bool:
    """Whether the values are integers, so that every sum and product is exact."""
    try:
        return np.dtype(datatype.typechar).kind in "biu"
    except TypeError:
        return False  # pairs of value and index, and other types that NumPy does not have


def copy_view(view: memoryview) -> memoryview:
    """Return a copy of the bytes of ``view``."""
    copied = aligned_bytes(len(view))
    copied[:] = view
    return copied


def overlap(a: memoryview, b: memoryview) -> bool:
    """Whether two contiguous views share bytes."""
    if not len(a) or not len(b):
        return False
    first, second = (np.frombuffer(view, np.uint8) for view in (a, b))
    return bool(np.shares_memory(first, second))


def signature(spec: Any) -> str:
    """Return the basic types of ``spec`` with their shares of bytes: ``"f8"`` or ``"f8:2 i4:1"``.

    Layouts, counts and the order of types are not included: equal type signatures in MPI give equal
    texts, but so do some unequal ones. Empty if it is compatible with any type, such as MPI.PACKED
    or an argument that is left out, and if mpi4py does not accept ``spec``.
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
    """Return the bytes of every basic type in one element of ``datatype``."""
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
            part.Free()  # `decode` returned new handles of derived types
    # A combiner with one base type repeats it: only the number of bytes differs.
    times = datatype.Get_size() // max(sum(found.values()), 1)
    return {name: times * n_bytes for name, n_bytes in found.items() if times * n_bytes}
