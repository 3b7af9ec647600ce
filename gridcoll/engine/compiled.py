"""The engine in C, called through ctypes. Each declaration has its counterpart in compiled.c.

It is built if a C compiler is available when gridcoll is installed. Without it, or with
``GRIDCOLL_ENGINE=python``, `Executor` does the same. Ranks of one job may use different engines.
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
"""A run in C returns after waiting this long, so that Python can handle signals."""

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
    """The functions of compiled.c, and the MPI functions and constants that they need."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:  # sites may share an installation that was built on one of them
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
"""Prefix of the names of MPI functions: "P" for those that profilers do not intercept."""


def _mpi_functions() -> list[ctypes._FuncPointer]:
    """Return functions of the MPI library that mpi4py uses, found through mpi4py's module.

    Globally loaded functions come first, for example those of a preloaded profiler, unless
    `skip_profilers` was called.
    """
    names = [f"{_prefix}MPI_{name.capitalize()}" for name in _MPI._functions]
    global_symbols = ctypes.CDLL(None)
    library = global_symbols if hasattr(global_symbols, names[0]) else ctypes.CDLL(MPI.__file__)
    return [getattr(library, name) for name in names]


def skip_profilers() -> None:
    """Use the functions of MPI itself from now on. Call this before any other function here."""
    global _prefix
    _prefix = "P"


@cache
def _library() -> _Library | None:
    """Return the library; None if it is switched off, was not built, or does not work (logged).

    Raises `UsageError` instead if ``GRIDCOLL_ENGINE`` asks for it.
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
    """Raise `UsageError` if ``GRIDCOLL_ENGINE`` asks for an engine that is not available."""
    _library()


def c_functions() -> tuple[int | None, ...]:
    """Return the addresses of the begin, run and end functions in C and of the wait settings.

    All are None without the library.
    """
    library = _library()
    if library is None:
        return None, None, None, None
    pointer = ctypes.c_void_p
    functions = (library.begin, library.run, library.end)
    wait = ctypes.addressof(library.wait)
    return *(ctypes.cast(each, pointer).value for each in functions), wait


class Prepared:
    """A program and the addresses of its buffers: all that a run needs. One run at a time.

    Made by `prepare`. It can be reused for other buffers of the same sizes: see `repeat`.
    """

    def __init__(self, library: _Library, flow: Dataflow, call: _Call, *keep_alive: object) -> None:
        self.c_library = library
        flat = flow.flat  # two threads may each make one, and the flow keeps only the last
        self._call = call
        self._keep_alive = (flat, call, *keep_alive)  # C holds addresses of these
        self.pointers = MPI.Get_address(flat), ctypes.addressof(library.mpi), ctypes.addressof(call)
        self._n_ops = len(flow.program)

    def move(self, *begins: int) -> None:
        """Set new addresses of input and output. The caller keeps these buffers alive."""
        self._call.buffers[: len(begins)] = begins

    def begin(self, *keep_alive: object) -> CompiledRun:
        """Start a run; ``keep_alive`` are buffers that must outlive it."""
        run = self.c_library.begin(*self.pointers)
        if not run:
            raise MemoryError(f"a run of {self._n_ops} ops")
        return CompiledRun(self, run, *keep_alive)

    def run(self) -> None:
        """Run it once, to the end."""
        run = self.begin()
        run.run()
        run.check()


class CompiledRun:
    """Like `Executor`, in C. Made by `Prepared.begin`."""

    def __init__(self, prepared: Prepared, run: int, *keep_alive: object) -> None:
        self._prepared, self._library = prepared, prepared.c_library
        self._run: int | None = run
        self._keep_alive = keep_alive

    @property
    def done(self) -> bool:
        return not self._library.n_left(self._run)

    def advance(self) -> bool:
        return bool(self._library.advance(self._run))

    def run(self) -> None:
        """Run to the end, waiting politely. Exceptions of signal handlers are raised after that."""
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
    """Return a program over ``memory``; None if `Executor` has to run it."""
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
    """Return the addresses of the counts of messages and bytes; None if they are not counted."""
    if not isinstance(transport, CountingTransport):
        return None, None
    return MPI.Get_address(transport.sent.messages), MPI.Get_address(transport.sent.n_bytes)


def begin_compiled(
    flow: Dataflow, transport: Transport, memory: Memory, window: int = RECEIVES_POSTED
) -> CompiledRun | None:
    """Start a program; None if `Executor` has to run it."""
    prepared = prepare(flow, transport, memory, window)
    return prepared.begin() if prepared else None
