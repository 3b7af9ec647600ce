"""The engine in C, called by ctypes: each declaration has its counterpart in compiled.c.

It is built when gridcoll is installed where a C compiler is at hand; without it, or with
``GRIDCOLL_ENGINE=python``, `Executor` does the same. Ranks of one job may differ in that.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

import numpy as np
from mpi4py import MPI

from gridcoll.constants import RECEIVES_POSTED
from gridcoll.engine.counting import CountingTransport
from gridcoll.engine.executor import Memory, Transport
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    SPIN_S,
    WAITS_PER_PAUSE,
    Hold,
    polls_at_once,
)
from gridcoll.engine.watch import watch
from gridcoll.errors import UsageError
from gridcoll.plan.dataflow import Dataflow

_log = logging.getLogger("gridcoll")

LIBRARY = Path(__file__).with_name("_compiled.so")

_INTERFACE = 8
_NO_MEMORY = -1

PATIENCE_S = 10e-3
"""A run in C returns after so long, for Python to handle signals."""

_LONGEST_MESSAGE_BYTES = (1 << 31) - 1  # MPI counts are ints

_INT = ctypes.c_int64


class _MPI(ctypes.Structure):
    _functions = ("isend", "irecv", "testsome", "get_count", "test", "reduce_local")
    _numbers = (
        *("byte_type", "null_request", "handle_bytes", "status_bytes", "undefined", "truncated"),
    )
    _fields_ = [(name, ctypes.c_void_p) for name in _functions] + [(n, _INT) for n in _numbers]


class _Call(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("comm", "first_tag", "n_tags", "window")),
        ("buffers", ctypes.c_void_p * 3),
        *((name, ctypes.c_void_p) for name in ("places", "types", "ranks", "n_sent", "bytes_sent")),
        *((name, _INT) for name in ("unit_bytes", "datatype", "operation")),
    ]


class _Wait(ctypes.Structure):
    _names = (
        *("spin_ns", "first_pause_ns", "longest_pause_ns", "waits_per_pause"),
        *("n_polls", "watch", "trust", "n_missed"),
    )
    _fields_ = [(name, _INT) for name in _names]


class _Library:
    """The functions of compiled.c, and what they need to know of MPI."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:  # built for another machine, where sites share the installation
            raise UsageError(f"{path}: {error}; install gridcoll again") from None
        if library.gridcoll_interface() != _INTERFACE:
            raise UsageError(f"{path}: was built from another version; install gridcoll again")
        pointer = ctypes.c_void_p
        self.begin = library.gridcoll_begin
        self.begin.argtypes, self.begin.restype = [pointer] * 3, pointer
        self.run = library.gridcoll_run
        self.run.argtypes, self.run.restype = [pointer, pointer, _INT], ctypes.c_int
        self.advance = library.gridcoll_advance
        self.advance.argtypes, self.advance.restype = [pointer], ctypes.c_int
        self.end = library.gridcoll_end
        self.end.argtypes, self.end.restype = [pointer], _INT
        self.use_python = library.gridcoll_use_python
        self.use_python.argtypes = [pointer]
        self.forget = library.gridcoll_forget
        self.forget.argtypes = [pointer]
        self.repeat = ctypes.cast(library.gridcoll_repeat, pointer)
        self.n_left = library.gridcoll_n_left
        self.n_left.argtypes, self.n_left.restype = [pointer], _INT
        self.mpi = _MPI(
            *(ctypes.cast(each, pointer) for each in _mpi_functions()),
            *(MPI._handleof(MPI.BYTE), MPI._handleof(MPI.REQUEST_NULL)),
            *(MPI._sizeof(MPI.Request), MPI._sizeof(MPI.Status), MPI.UNDEFINED, MPI.ERR_TRUNCATE),
        )
        self.wait = _Wait(
            *(int(seconds * 1e9) for seconds in (SPIN_S, FIRST_PAUSE_S, LONGEST_PAUSE_S)),
            *(WAITS_PER_PAUSE, polls_at_once(), watch().descriptor, 0, 0),
        )


_prefix = ""
"""Of names of MPI's functions: "P" for those that no profiler sees."""


def _mpi_functions() -> list[ctypes._FuncPointer]:
    """Functions of the MPI library that mpi4py uses, found through mpi4py's module.

    Globally loaded ones come first, as those of a profiler that was preloaded, unless skipped.
    """
    names = [f"{_prefix}MPI_{name.capitalize()}" for name in _MPI._functions]
    everybodys = ctypes.CDLL(None)
    library = everybodys if hasattr(everybodys, names[0]) else ctypes.CDLL(MPI.__file__)
    return [getattr(library, name) for name in names]


def skip_profilers() -> None:
    """From now on use the functions of MPI itself. To be called before any other function here."""
    global _prefix
    _prefix = "P"


@cache
def _library() -> _Library | None:
    """The library; None where it is switched off, was not built, or does not work here (logged).

    Raises `UsageError` if it was asked for by name.
    """
    wanted = os.environ.get("GRIDCOLL_ENGINE", "")
    if wanted not in ("", "python", "compiled"):
        raise UsageError(f"GRIDCOLL_ENGINE: must be python or compiled, got {wanted!r}")
    if wanted == "python" or (not LIBRARY.exists() and not wanted):
        return None
    if not LIBRARY.exists():
        raise UsageError("GRIDCOLL_ENGINE=compiled: gridcoll was installed without a C compiler")
    try:
        return _Library(LIBRARY)
    except UsageError as error:
        if wanted:
            raise
        _log.warning("gridcoll: plans run in Python: %s", error)
        return None


def require_engine() -> None:
    """Raise `UsageError` where ``GRIDCOLL_ENGINE`` asks for an engine that is not available."""
    _library()


def c_functions() -> tuple[int | None, ...]:
    """Addresses of what begins, runs and ends a run in C, and of how it waits; None without it."""
    library = _library()
    if library is None:
        return None, None, None, None
    pointer = ctypes.c_void_p
    functions = (library.begin, library.run, library.end)
    wait = ctypes.addressof(library.wait)
    return *(ctypes.cast(each, pointer).value for each in functions), wait


class Prepared:
    """A program and the addresses of its buffers: all that a run needs. One run at a time.

    Made by `prepare`. Runs over other buffers of the same sizes need no other: see `repeat`.
    """

    def __init__(self, library: _Library, flow: Dataflow, call: _Call, *kept: object) -> None:
        self.c_library = library
        flat = flow.flat  # two threads may each have made one; the flow keeps the last
        self._call = call
        self._kept = (flat, call, *kept)  # buffers must outlive the run
        self.pointers = MPI.Get_address(flat), ctypes.addressof(library.mpi), ctypes.addressof(call)
        self._n_ops = len(flow.program)

    def move(self, *begins: int) -> None:
        """Input and output begin at other addresses now; the caller keeps what is there."""
        self._call.buffers[: len(begins)] = begins

    def begin(self, *kept: object) -> CompiledRun:
        """Start a run; ``kept`` are buffers that must outlive it."""
        run = self.c_library.begin(*self.pointers)
        if not run:
            raise MemoryError(f"a run of {self._n_ops} ops")
        return CompiledRun(self, run, *kept)

    def run(self) -> None:
        """Run it once, to its end."""
        run = self.begin()
        run.run()
        run.check()


class CompiledRun:
    """As `Executor`, in C. Made by `Prepared.begin`."""

    def __init__(self, prepared: Prepared, run: int, *kept: object) -> None:
        self._prepared, self._library = prepared, prepared.c_library
        self._run: int | None = run
        self._kept = kept

    @property
    def done(self) -> bool:
        return not self._library.n_left(self._run)

    def advance(self) -> bool:
        return bool(self._library.advance(self._run))

    def run(self) -> None:
        """Run to the end, waiting politely; what a signal's handler raises is raised after that."""
        wait, patience_ns = ctypes.addressof(self._library.wait), int(PATIENCE_S * 1e9)
        hold = Hold(self)
        while not hold.back(self._library.run, self._run, wait, patience_ns):
            pass
        if self._library.wait.n_missed:
            self._library.wait.n_missed = 0
            watch().look()
        hold.release()

    def check(self) -> None:
        run, self._run = self._run, None
        error = self._library.end(run)
        if error == _NO_MEMORY:
            raise MemoryError("a reduction's intermediate result")
        if error:
            raise MPI.Exception(error)

    def __del__(self) -> None:
        if self._run:
            self._library.end(self._run)


def prepare(
    flow: Dataflow, transport: Transport, memory: Memory, window: int = RECEIVES_POSTED
) -> Prepared | None:
    """A program over ``memory``; None where that is left to `Executor`."""
    library = _library()
    wire = transport.carrier if isinstance(transport, CountingTransport) else transport
    if library is None or not isinstance(wire, MPITransport):
        return None
    placement = memory.place(flow)
    if placement is None or flow.longest * placement.unit_bytes > _LONGEST_MESSAGE_BYTES:
        return None
    if flow.reduces and not placement.operation:
        return None
    by_op: list[np.ndarray | None] = [placement.places, placement.types, wire.ranks]
    call = _Call(
        *(wire.handle, wire.first_tag, wire.n_tags, window),
        placement.buffers,
        *(None if each is None else MPI.Get_address(each) for each in by_op),
        *_counters(transport),
        *(placement.unit_bytes, placement.datatype, placement.operation),
    )
    return Prepared(library, flow, call, memory, by_op, wire, transport)


def _counters(transport: Transport) -> tuple[int | None, int | None]:
    if not isinstance(transport, CountingTransport):
        return None, None
    return MPI.Get_address(transport.sent.messages), MPI.Get_address(transport.sent.n_bytes)


def begin_compiled(
    flow: Dataflow, transport: Transport, memory: Memory, window: int = RECEIVES_POSTED
) -> CompiledRun | None:
    """Start a program; None where that is left to `Executor`."""
    prepared = prepare(flow, transport, memory, window)
    return prepared.begin() if prepared else None
