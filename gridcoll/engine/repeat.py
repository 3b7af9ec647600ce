"""Repeats short calls by one function in C.

In Python, reading arguments, placing buffers and starting a run takes longer than a short call
itself. So the engine in C has a function for repeated calls, called like a built-in: it checks the
buffers and runs the program. See the end of compiled.c.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

from mpi4py import MPI
from msgspec import Struct

from gridcoll.engine import compiled
from gridcoll.engine.compiled import CompiledRun, Prepared

SHORT_BYTES = 16 << 10
"""Calls with more bytes than this in all buffers are not prepared: they would gain nothing."""

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


class Form(Struct, frozen=True):
    """Requirements for a buffer argument, which must also be contiguous."""

    place: int
    """Its position among the arguments; the communicator is argument 0."""
    n_bytes: int
    """Its length."""
    format: str = ""
    """The format of its elements, as in `memoryview.format`; empty for any native number."""
    n_blocks: int = 1
    """Its number of elements must be a multiple of this."""


_NO_BUFFER = Form(0, 0)


class Repeat:
    """Makes `function`, which repeats a call of one kind from its raw arguments.

    ``given`` and ``output`` are the plan's input and output. With ``MPI.IN_PLACE``, ``output`` is
    copied to ``own`` and sent from there. ``read`` is called with all arguments if they do not have
    the required form.
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
        self._keep_alive = own, read, self._finish
        self._state = _Repeat(
            *(flat, mpi, call, ctypes.addressof(library.wait)),
            int(compiled.PATIENCE_S * 1e9),
            *(_form(given or _NO_BUFFER), _form(output or _NO_BUFFER)),
            int(writes),
            id(MPI.IN_PLACE),
            None if own is None else MPI.Get_address(own),
            *map(id, self._keep_alive[1:]),
        )

    def _finish(self, *args: object) -> None:
        """Finish a run that C hands over: after a long wait, after an error, or for new sockets."""
        pointer, self._state.run = self._state.run, None
        run = CompiledRun(self._prepared, pointer, *args)
        run.run()
        run.check()

    def __del__(self) -> None:
        self._library.forget(ctypes.addressof(self._state))

    @property
    def function(self) -> Callable[..., None]:
        """The function to call with the communicator and the arguments of the method."""
        return _new_function(self._library, self, ctypes.addressof(self._state))


def _form(form: Form) -> _Form:
    return _Form(form.place, form.n_bytes, form.n_blocks, form.format.encode())


def can_repeat() -> bool:
    """Whether this Python supports repeated calls in C."""
    return hasattr(ctypes, "pythonapi") and sys.implementation.name == "cpython"


@cache
def _method(library: compiled._Library) -> tuple[_MethodDef, _Python]:
    """Return the method definition of the function in C, and the Python functions it needs."""
    functions = [
        ctypes.cast(getattr(ctypes.pythonapi, name), _POINTER) for name in _Python._functions
    ]
    python = _Python(*functions, id(None))
    library.use_python(ctypes.addressof(python))
    return _MethodDef(b"repeat", library.repeat, _FASTCALL, None), python


def _new_function(library: compiled._Library, keeper: object, state: int) -> Callable[..., None]:
    """Return a built-in function. ``keeper`` is stored as its module and so lives as long."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.argtypes, new.restype = [_POINTER, ctypes.py_object, ctypes.py_object], ctypes.py_object
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.argtypes, capsule.restype = [_POINTER, _POINTER, _POINTER], ctypes.py_object
    made: Callable[..., None] = new(
        ctypes.addressof(_method(library)[0]), capsule(state, None, None), keeper
    )
    return made
