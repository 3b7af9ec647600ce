"""Answer questions of libgridcoll.so: about communicators, and about calls of unknown kinds.

A call of a known kind runs in C. A question comes once per kind, or for a call whose arguments only
the methods of `GridComm` can read.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time
import traceback
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from gridcoll.comm.channel import group_of
from gridcoll.comm.communicator import GridComm
from gridcoll.comm.context import Context
from gridcoll.comm.learning import Learning
from gridcoll.comm.tracing import watch as trace
from gridcoll.engine.compiled import Prepared, c_functions, skip_profilers
from gridcoll.engine.watch import watch
from gridcoll.errors import GridcollError
from gridcoll.launch.preload.kinds import (
    Action,
    Question,
    answer_plan,
    decide_kind,
    handle,
    kind_of,
)
from gridcoll.launch.preload.words import perform
from gridcoll.measure.learning.agreed import MOST_STAMPED, Stamp

_INT = ctypes.c_int64


class _Calls(ctypes.Structure):
    """See stamped_calls in gridcoll.h."""

    _fields_ = [
        *((name, _INT) for name in ("left", "stale", "n_calls", "total_ns")),
        ("last", _INT * (3 * MOST_STAMPED)),
    ]


class StampedCalls:
    """Calls of one communicator that C executes and stamps, passed to `Learning`.

    C executes calls of kinds whose decision is settled; the first call of a kind, and trials, go
    through Python. Both are counted: C counts down to the agreed point, which is the same call on
    all ranks, and after each of its own calls Python sets how many are left.
    """

    def __init__(self, context: Context, learning: Learning) -> None:
        self._learning = learning
        self._calls = _Calls()
        self._last = np.frombuffer(self._calls.last, np.int64).reshape(MOST_STAMPED, 3)
        self._kinds: list[object] = []
        context.on_change = self._mark_stale
        self.count_down()

    @property
    def address(self) -> int:
        return ctypes.addressof(self._calls)

    def _mark_stale(self) -> None:
        self._calls.stale = 1

    def tag(self, call: object) -> int:
        """Return a number for calls like ``call`` of `Learning.repeatable_call`.

        It is valid until decisions change.
        """
        self._kinds.append(call)
        return len(self._kinds) - 1

    def forget_tags(self) -> None:
        """Forget all tags, because C has forgotten the calls that it knew."""
        self.flush()
        self._kinds.clear()

    def count_down(self) -> None:
        """Tell C how many calls are left until the next agreed point."""
        self._calls.left = self._learning.agreed.n_left

    def flush(self) -> None:
        """Record the calls that ended; none of them is an agreed point."""
        self._record(self._stamps())

    def learn(self) -> None:
        """Record the calls that ended, and learn: the last one is an agreed point. Collective."""
        began_s = time.monotonic()
        calls, stamps = self._calls, self._stamps()
        last = stamps.pop()
        calls.n_calls -= 1
        _, entry_ns, exit_ns = self._last[calls.n_calls % MOST_STAMPED].tolist()
        calls.total_ns -= exit_ns - entry_ns
        self._record(stamps)
        self._learning.agreed.spend(time.monotonic() - began_s)
        try:
            self._learning.end(last.tag, last.entry_s, last.exit_s)
        finally:
            self.count_down()

    def _stamps(self) -> list[Stamp]:
        """Return the stamps of the last calls, the oldest first."""
        n_calls = self._calls.n_calls
        order = np.arange(max(n_calls - MOST_STAMPED, 0), n_calls) % MOST_STAMPED
        rows = self._last[order].tolist()
        return [Stamp(self._kinds[tag], 1e-9 * entry, 1e-9 * end) for tag, entry, end in rows]

    def _record(self, stamps: list[Stamp]) -> None:
        calls = self._calls
        self._learning.agreed.take(stamps, calls.n_calls, 1e-9 * calls.total_ns)
        calls.n_calls = calls.total_ns = 0


_INTERFACE = 5

_BEGIN = ctypes.CFUNCTYPE(ctypes.c_int64)
_ANSWER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(Question))
_LEARN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_FORGET = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_NOTIFY = ctypes.CFUNCTYPE(None)


class _PythonHalf(ctypes.Structure):
    """See python_half in gridcoll.h."""

    _fields_ = [
        ("interface", ctypes.c_int64),
        ("begin", _BEGIN),
        *((name, _ANSWER) for name in ("open", "decide", "perform")),
        ("learn", _LEARN),
        *((name, _FORGET) for name in ("clear", "forget")),
        *((name, _NOTIFY) for name in ("look", "finish")),
        ("errors_return", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("operations", "run_begin", "run", "run_end")),
        ("wait", ctypes.c_void_p),
    ]


class _Comm:
    """A communicator of the application, and the decisions for its calls."""

    def __init__(self, context: Context) -> None:
        self.context = context
        learning = context.learning
        self.stamped = None if learning is None else StampedCalls(context, learning)
        self.prepared: list[Prepared] = []
        self._view: GridComm | None = None

    @property
    def view(self) -> GridComm:
        """The communicator as a `GridComm`."""
        if self._view is None:
            self._view = GridComm.__new__(GridComm, self.context.comm)
            self._view._set_context(self.context)
        return self._view


class _Bridge:
    """The functions that C calls. There is one object per process."""

    def __init__(self, is_embedded: bool) -> None:
        self._is_embedded = is_embedded
        self._world: Context | None = None
        self._world_group = MPI.GROUP_NULL
        self._comms: dict[int, _Comm] = {}

    def begin(self) -> int:
        """Find the grid, and return whether there is one. Collective, the same on all ranks."""
        world = MPI.COMM_WORLD
        try:
            if isinstance(world, GridComm):  # it was replaced, and handles the calls of mpi4py
                original = world._require_context()
                context = original.duplicate(
                    original.comm, original.channel.place_for_child(may_wait=True)
                )
                trace(context)
            else:
                context = GridComm(world)._require_context()
        except GridcollError as error:
            if world.Get_rank() == 0:
                warn_user(f"{type(error).__name__}: {error}; all ranks run without gridcoll")
            return 0
        self._world = context
        self._world_group = MPI.COMM_WORLD.Get_group()
        self._comms[handle(MPI._handleof(MPI.COMM_WORLD))] = _Comm(context)
        return 1

    def open(self, question: Question) -> int:
        """Add a communicator, and return whether anything can be gained on it. Local."""
        if self._world is None:
            return 0
        key = handle(question.comm)
        known = self._comms.get(key)
        if known is None:
            comm = MPI.Intracomm(MPI.Comm.fromhandle(handle(question.comm)))
            ranks = self._ranks_of(comm)
            if ranks is None:
                return 0  # it has processes that were started later
            # Make no private communicator for it: programs may have hundreds of communicators.
            place = self._world.channel.place_in_group()
            context = self._world.restrict(comm, place, ranks)
            if context.native_only:
                context.free()  # C will not ask again, nor report that the communicator was freed
                return 0
            trace(context)
            known = self._comms[key] = _Comm(context)
        if known.stamped is not None:
            question.stamped = known.stamped.address
        return int(not known.context.native_only)

    def _ranks_of(self, comm: MPI.Intracomm) -> list[int] | None:
        group = group_of(comm)
        try:
            everybody = list(range(group.Get_size()))
            ranks = MPI.Group.Translate_ranks(group, everybody, self._world_group)
        finally:
            group.Free()
        return None if MPI.UNDEFINED in ranks else list(ranks)

    def decide(self, question: Question) -> int:
        """Return what calls of this kind do, from now on."""
        comm = self._comms[handle(question.comm)]
        kind = kind_of(question.key)
        learning = comm.context.learning
        if comm.stamped is not None:
            comm.stamped.flush()
        with comm.context.without_trials():  # C repeats the call, so it must not be a trial
            action, flow = decide_kind(comm.context, kind)
        if action == Action.PYTHON:
            return action
        repeatable = None if learning is None else learning.repeatable_call()
        if repeatable is not None and comm.stamped is not None:
            call, may_repeat = repeatable
            if not may_repeat:
                return Action.ONCE
            question.tag = comm.stamped.tag(call)
        if flow is not None:
            comm.context.channel.open()
            prepared = answer_plan(question, comm.context, kind, flow)
            if prepared is None:
                return Action.PYTHON
            comm.prepared.append(prepared)
        return action

    def perform(self, question: Question) -> int:
        """Execute one call."""
        comm = self._comms[handle(question.comm)]
        if comm.stamped is not None:
            comm.stamped.flush()
        try:
            perform(comm.view, question)
        except MPI.Exception as error:
            question.error = error.Get_error_code()
        except GridcollError as error:
            if question.rank == 0:
                warn_user(f"{type(error).__name__}: {error}")
            question.error = MPI.ERR_OTHER
        finally:
            if comm.stamped is not None:
                comm.stamped.count_down()
        return 0

    def learn(self, comm: int) -> int:
        """Learn from the calls that C stamped. Collective: C counts the same calls on all ranks."""
        stamped = self._comms[handle(comm)].stamped
        if stamped is not None:
            stamped.learn()
        return 0

    def clear(self, comm: int) -> None:
        """Forget the calls that were prepared for a communicator."""
        known = self._comms[handle(comm)]
        known.prepared.clear()
        if known.stamped is not None:
            known.stamped.forget_tags()

    def forget(self, comm: int) -> None:
        """Forget a communicator that is being freed. Collective."""
        freed = self._comms.pop(handle(comm), None)
        if freed is not None:
            freed.context.free()

    def finish(self) -> None:
        """Run exit functions when MPI ends, because an embedded Python may never be finalized."""
        if self._is_embedded:
            atexit._run_exitfuncs()
            print(end="", flush=True)  # flush what the program may have written


def warn_user(text: str) -> None:
    """Print a line for the user."""
    sys.stderr.write(f"gridcoll: {text}\n")
    sys.stderr.flush()


def _guarded(answer: Callable[..., int | None], otherwise: int) -> Callable[..., int | None]:
    """Return ``answer`` for C: on an exception, it prints it and returns ``otherwise``."""

    def answered(*args: object) -> int | None:
        try:
            given = [a.contents if hasattr(a, "contents") else a for a in args]
            return answer(*given)
        except BaseException:
            traceback.print_exc()
            if args and hasattr(args[0], "contents"):
                args[0].contents.error = MPI.ERR_OTHER
            return otherwise

    return answered


_references: list[object] = []
"""Objects that C uses, which must not be freed."""


def attach(library: str, is_embedded: int, has_profiler: int) -> None:
    """Pass our functions to the library.

    ``is_embedded`` tells whether the library has started this Python, and ``has_profiler`` whether
    a profiler is in front of it, which must not see our messages.
    """
    if has_profiler:
        skip_profilers()
    bridge = _Bridge(bool(is_embedded))
    operations = _operations()
    functions = c_functions()
    half = _PythonHalf(
        _INTERFACE,
        _BEGIN(_guarded(bridge.begin, 0)),
        _ANSWER(_guarded(bridge.open, 0)),
        _ANSWER(_guarded(bridge.decide, Action.NATIVE)),
        _ANSWER(_guarded(bridge.perform, 0)),
        _LEARN(_guarded(bridge.learn, MPI.ERR_OTHER)),
        _FORGET(_guarded(bridge.clear, 0)),
        _FORGET(_guarded(bridge.forget, 0)),
        _NOTIFY(_guarded(watch().look, 0)),
        _NOTIFY(_guarded(bridge.finish, 0)),
        MPI._handleof(MPI.ERRORS_RETURN),
        ctypes.addressof(operations),
        *functions,
    )
    _references.extend((bridge, operations, half))
    ours = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    ours.gridcoll_attach(ctypes.byref(half))
    atexit.register(ours.gridcoll_end)


def _operations() -> ctypes.Array[ctypes.c_int64]:
    """Return the handles of MPI's predefined operations, followed by 0."""
    own = (
        *(MPI.MAX, MPI.MIN, MPI.SUM, MPI.PROD, MPI.LAND, MPI.BAND, MPI.LOR, MPI.BOR, MPI.LXOR),
        *(MPI.BXOR, MPI.MAXLOC, MPI.MINLOC, MPI.REPLACE, MPI.NO_OP),
    )
    words = [ctypes.c_int64(MPI._handleof(op)).value for op in own]
    return (ctypes.c_int64 * (len(words) + 1))(*words, 0)
