"""Everything that mpi4py takes for a buffer, and derived types, over integers to be looked at."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

Fill = Callable[[int], np.ndarray]
Made = tuple[Any, Callable[[], bytes]]
"""What to pass, and how to read all memory behind it."""

FORMS: dict[str, Callable[[np.ndarray], Made]] = {}
"""From 60 integers of four bytes to a buffer argument over them; the same on all ranks."""


def form(make: Callable[[np.ndarray], Made]) -> Callable[[np.ndarray], Made]:
    FORMS[make.__name__] = make
    return make


def of(data: np.ndarray, spec: Any) -> Made:
    return spec, data.tobytes


@form
def an_array(data: np.ndarray) -> Made:
    return of(data, data)


@form
def two_dimensions(data: np.ndarray) -> Made:
    return of(data, data.reshape(6, 10))


@form
def fortran_order(data: np.ndarray) -> Made:
    return of(data, data.reshape((6, 10), order="F"))


@form
def zero_dimensions(data: np.ndarray) -> Made:
    return of(data, data[3:4].reshape(()))


@form
def part_of_an_array(data: np.ndarray) -> Made:
    return of(data, data[10:50])


@form
def buffer_and_type(data: np.ndarray) -> Made:
    return of(data, [data, MPI.INT])


@form
def buffer_and_code(data: np.ndarray) -> Made:
    return of(data, [data, "i"])


@form
def buffer_and_count(data: np.ndarray) -> Made:
    return of(data, [data, 17])


@form
def count_and_type(data: np.ndarray) -> Made:
    return of(data, (data, 17, MPI.INT))


@form
def count_displacement_type(data: np.ndarray) -> Made:
    return of(data, [data, (17, 5), MPI.INT])


@form
def four_items(data: np.ndarray) -> Made:
    return of(data, [data, 17, 5, MPI.INT])


@form
def no_count(data: np.ndarray) -> Made:
    return of(data, [data, None, MPI.INT])


@form
def as_bytes(data: np.ndarray) -> Made:
    return of(data, [data, MPI.BYTE])


@form
def as_doubles(data: np.ndarray) -> Made:
    return of(data, [data, MPI.DOUBLE])


@form
def nothing(data: np.ndarray) -> Made:
    return of(data, [None, 0, MPI.INT])


@form
def no_elements(data: np.ndarray) -> Made:
    return of(data, data[:0])


@form
def of_count_zero(data: np.ndarray) -> Made:
    return of(data, [data, 0, MPI.INT])


@form
def a_bytearray(data: np.ndarray) -> Made:
    buffer = bytearray(data.tobytes())
    return buffer, lambda: bytes(buffer)


@form
def a_memoryview(data: np.ndarray) -> Made:
    return of(data, memoryview(data))


@form
def a_memoryview_of_two_dimensions(data: np.ndarray) -> Made:
    return of(data, memoryview(data.reshape(6, 10)))


@form
def an_array_array(data: np.ndarray) -> Made:
    buffer = array.array("i", data.tolist())
    return buffer, buffer.tobytes


@form
def a_map(data: np.ndarray) -> Made:
    buffer = mmap.mmap(-1, data.nbytes)
    buffer[:] = data.tobytes()
    return buffer, lambda: buffer[:]


@form
def a_ctypes_array(data: np.ndarray) -> Made:
    buffer = (ctypes.c_int * len(data))(*data.tolist())
    return buffer, lambda: bytes(buffer)


@form
def memory_of_mpi(data: np.ndarray) -> Made:
    memory = MPI.Alloc_mem(data.nbytes)
    memory[:] = data.tobytes()
    _ALLOCATED.append(memory)
    return memory, lambda: bytes(memory)


_ALLOCATED: list[MPI.buffer] = []


def free_allocated() -> None:
    """Give back what forms took from MPI."""
    while _ALLOCATED:
        MPI.Free_mem(_ALLOCATED.pop())


@form
def one_structure(data: np.ndarray) -> Made:
    kind = np.dtype([("a", "i4"), ("b", "i4")])
    return of(data, [data.view(kind), MPI.INT])


class _DLPack:
    """Memory that says what it is by DLPack only."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data

    def __dlpack__(self, **keywords: Any) -> Any:
        keywords.pop("stream", None)
        return self._data.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._data.__dlpack_device__()


@form
def by_dlpack(data: np.ndarray) -> Made:
    return of(data, _DLPack(data))


@form
def by_dlpack_and_type(data: np.ndarray) -> Made:
    return of(data, [_DLPack(data), MPI.INT])


class _CudaArray:
    """Memory that says what it is by the CUDA array interface only."""

    def __init__(self, data: np.ndarray) -> None:
        self.__cuda_array_interface__ = {**data.__array_interface__, "version": 3}


@form
def by_cuda_array_interface(data: np.ndarray) -> Made:
    return of(data, _CudaArray(data))


for _code in "bBhHlLqQfdg?FD":

    def _typed(data: np.ndarray, code: str = _code) -> Made:
        kind = np.dtype(code)
        n = data.nbytes // kind.itemsize
        typed = (data.view("u1")[: n * kind.itemsize].view("u1") & 1).view("u1")
        values = typed[:n].astype(code)
        return values, lambda: repr(values.tolist()).encode()  # long doubles have padding

    FORMS[f"numpy type {_code}"] = _typed


# Derived types over the same 60 integers. Gaps must come out untouched.
def _vector() -> tuple[MPI.Datatype, int]:
    return MPI.INT.Create_vector(4, 2, 5), 1


def _two_vectors() -> tuple[MPI.Datatype, int]:
    return MPI.INT.Create_vector(3, 2, 4), 2


def _indexed() -> tuple[MPI.Datatype, int]:
    return MPI.INT.Create_indexed([3, 1, 2], [20, 2, 9]), 1


def _subarray() -> tuple[MPI.Datatype, int]:
    return MPI.INT.Create_subarray([6, 10], [3, 4], [2, 5]), 1


def _structure() -> tuple[MPI.Datatype, int]:
    kinds = [MPI.INT, MPI.CHAR, MPI.DOUBLE]
    return MPI.Datatype.Create_struct([2, 3, 1], [0, 12, 24], kinds), 3


def _resized() -> tuple[MPI.Datatype, int]:
    """Columns that overlap: each starts one integer after the one before."""
    column = MPI.INT.Create_vector(6, 1, 10)
    try:
        return column.Create_resized(0, 4), 3
    finally:
        column.Free()


def _contiguous() -> tuple[MPI.Datatype, int]:
    return MPI.INT.Create_contiguous(7), 3


DERIVED = (_vector, _two_vectors, _indexed, _subarray, _structure, _resized, _contiguous)
