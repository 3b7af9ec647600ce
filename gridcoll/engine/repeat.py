"""Short calls that were made before, run again from one function in C.

In Python, reading arguments, placing buffers and starting a run takes longer than a short call
itself. So the engine in C has a function for repeated calls, called like a built-in: it checks the
buffers and runs. See the end of compiled.c.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from mpi4py import MPI

from gridcoll.engine import compiled
from gridcoll.engine.compiled import CompiledRun, Prepared

SHORT_BYTES = 16 << 10
"""Most bytes in all buffers of a call that is kept prepared: longer calls would gain nothing."""

_FASTCALL = 0x80

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _Python(ctypes.Structure):
    _functions = (
        *("PyObject_GetBuffer", "PyBuffer_Release", "PyErr_Clear", "PyEval_SaveThread"),
        *("PyEval_RestoreThread", "PyCapsule_GetPointer", "PyObject_Vectorcall", "Py_IncRef"),
    )
    _fields_ = [(name, _POINTER) for name in (*_functions, "none")]


class _Form(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("place", "n_bytes", "n_blocks")),
        ("format", ctypes.c_char * 8),
    ]


class _Repeat(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("flat", "mpi", "call", "wait")),
        ("patience_ns", _INT),
        *(("given", _Form), ("output", _Form)),
        ("writes", _INT),
        *((name, _POINTER) for name in ("in_place", "own", "read", "finish", "memory", "run")),
    ]


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", _POINTER),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


@dataclass(frozen=True)
class Form:
    """What a buffer argument must be like, besides contiguous."""

    place: int
    """Where it stands among the arguments; the communicator is argument 0."""
    n_bytes: int
    """Its length."""
    format: str = ""
    """The elements, as `memoryview.format` has them; empty for any number as this machine has
    it."""
    n_blocks: int = 1
    """Its elements can be divided into so many."""


_NO_BUFFER = Form(0, 0)


class Repeat:
    """Makes `function`, which does a call of one kind from its raw arguments.

    ``given`` and ``output`` are the plan's input and output, ``own`` is where ``output`` is copied
    to and sent from with ``MPI.IN_PLACE``. ``read`` is called with all arguments if they have
    another form.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        given: Form | None = None,
        output: Form | None = None,
        writes: bool = True,
        own: memoryview | None = None,
        read: Callable[..., None],
    ) -> None:
        flat, mpi, call = prepared.pointers
        library = prepared.c_library
        self._prepared, self._library = prepared, library
        self._kept = own, read, self._finish
        self._state = _Repeat(
            *(flat, mpi, call, ctypes.addressof(library.wait)),
            int(compiled.PATIENCE_S * 1e9),
            *(_form(given or _NO_BUFFER), _form(output or _NO_BUFFER)),
            int(writes),
            id(MPI.IN_PLACE),
            None if own is None else MPI.Get_address(own),
            *map(id, self._kept[1:]),
        )

    def _finish(self, *args: object) -> None:
        """Finish a run that C hands over: after a long wait, an error, or for new sockets."""
        pointer, self._state.run = self._state.run, None
        run = CompiledRun(self._prepared, pointer, *args)
        run.run()
        run.check()

    def __del__(self) -> None:
        self._library.forget(ctypes.addressof(self._state))

    @property
    def function(self) -> Callable[..., None]:
        """To be called with the communicator and what the method takes."""
        return _new_function(self._library, self, ctypes.addressof(self._state))


def _form(form: Form) -> _Form:
    return _Form(form.place, form.n_bytes, form.n_blocks, form.format.encode())


def can_repeat() -> bool:
    """Whether this Python can do that."""
    return hasattr(ctypes, "pythonapi") and sys.implementation.name == "cpython"


@cache
def _method(library: compiled._Library) -> tuple[_MethodDef, _Python]:
    """How Python is to call the function in C, and the fallback in Python."""
    functions = [
        ctypes.cast(getattr(ctypes.pythonapi, name), _POINTER) for name in _Python._functions
    ]
    python = _Python(*functions, id(None))
    library.use_python(ctypes.addressof(python))
    return _MethodDef(b"repeat", library.repeat, _FASTCALL, None), python


def _new_function(library: compiled._Library, keeper: object, state: int) -> Callable[..., None]:
    """A built-in function; ``keeper`` takes the place of its module, and lives as long."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.argtypes, new.restype = [_POINTER, ctypes.py_object, ctypes.py_object], ctypes.py_object
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.argtypes, capsule.restype = [_POINTER, _POINTER, _POINTER], ctypes.py_object
    made: Callable[..., None] = new(
        ctypes.addressof(_method(library)[0]), capsule(state, None, None), keeper
    )
    return made
