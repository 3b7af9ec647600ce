"""What libgridcoll.so asks: about communicators, and about calls of kinds that it does not know.

A known kind of call runs in C. What comes here comes once per kind, or is a call that only the
methods of `GridComm` can read.
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
    """Calls of one communicator that C makes and stamps, handed to what it learns.

    C makes calls of kinds whose decision stands; the first call of a kind, and trials, go through
    Python. Both are counted: C counts down to the agreed point, the same call on all ranks, and
    Python says anew after each of its own calls how many are left.
    """

    def __init__(self, context: Context, learning: Learning) -> None:
        self._learning = learning
        self._calls = _Calls()
        self._last = np.frombuffer(self._calls.last, np.int64).reshape(MOST_STAMPED, 3)
        self._kinds: list[object] = []
        context.changed = self._mark_stale
        self.count_down()

    @property
    def address(self) -> int:
        return ctypes.addressof(self._calls)

    def _mark_stale(self) -> None:
        self._calls.stale = 1

    def tag(self, call: object) -> int:
        """A number for calls like ``call``, of `Learning.standing`, as long as decisions stand."""
        self._kinds.append(call)
        return len(self._kinds) - 1

    def forget_tags(self) -> None:
        """C has forgotten what it knew."""
        self.take()
        self._kinds.clear()

    def count_down(self) -> None:
        """Tell C how many calls are left until the next agreed point."""
        self._calls.left = self._learning.agreed.n_left

    def take(self) -> None:
        """Enter the calls that ended; none of them is an agreed point."""
        self._enter(self._stamps())

    def learn(self) -> None:
        """Enter them, and learn: the last one is an agreed point. Collective."""
        began_s = time.monotonic()
        calls, stamps = self._calls, self._stamps()
        last = stamps.pop()
        calls.n_calls -= 1
        _, entry_ns, exit_ns = self._last[calls.n_calls % MOST_STAMPED].tolist()
        calls.total_ns -= exit_ns - entry_ns
        self._enter(stamps)
        self._learning.agreed.spend(time.monotonic() - began_s)
        try:
            self._learning.end(last.tag, last.entry_s, last.exit_s)
        finally:
            self.count_down()

    def _stamps(self) -> list[Stamp]:
        """Of the last calls, the oldest first."""
        n_calls = self._calls.n_calls
        order = np.arange(max(n_calls - MOST_STAMPED, 0), n_calls) % MOST_STAMPED
        rows = self._last[order].tolist()
        return [Stamp(self._kinds[tag], 1e-9 * entry, 1e-9 * end) for tag, entry, end in rows]

    def _enter(self, stamps: list[Stamp]) -> None:
        calls = self._calls
        self._learning.agreed.take(stamps, calls.n_calls, 1e-9 * calls.total_ns)
        calls.n_calls = calls.total_ns = 0


_INTERFACE = 5

_BEGIN = ctypes.CFUNCTYPE(ctypes.c_int64)
_ASKED = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(Question))
_LEARN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_OF_COMM = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_CALLED = ctypes.CFUNCTYPE(None)


class _Half(ctypes.Structure):
    _fields_ = [
        ("interface", ctypes.c_int64),
        ("begin", _BEGIN),
        *((name, _ASKED) for name in ("open", "decide", "perform")),
        ("learn", _LEARN),
        *((name, _OF_COMM) for name in ("clear", "forget")),
        *((name, _CALLED) for name in ("look", "finish")),
        ("errors_return", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("operations", "run_begin", "run", "run_end")),
        ("wait", ctypes.c_void_p),
    ]


class _Comm:
    """A communicator of the application's, and what is decided for its calls."""

    def __init__(self, context: Context) -> None:
        self.context = context
        learning = context.learning
        self.stamped = None if learning is None else StampedCalls(context, learning)
        self.prepared: list[Prepared] = []
        self._view: GridComm | None = None

    @property
    def view(self) -> GridComm:
        """It as a `GridComm`."""
        if self._view is None:
            self._view = GridComm.__new__(GridComm, self.context.comm)
            self._view._take_context(self.context)
        return self._view


class _Bridge:
    """The answers. One per process."""

    def __init__(self, is_embedded: bool) -> None:
        self._is_embedded = is_embedded
        self._world: Context | None = None
        self._world_group = MPI.GROUP_NULL
        self._comms: dict[int, _Comm] = {}

    def begin(self) -> int:
        """Find the grid. Collective, and the same on all ranks; whether there is one."""
        world = MPI.COMM_WORLD
        try:
            if isinstance(world, GridComm):  # it was swapped, and mpi4py's calls are its affair
                theirs = world._need()
                context = theirs.duplicate(
                    theirs.comm, theirs.channel.place_for_child(may_wait=True)
                )
                trace(context)
            else:
                context = GridComm(world)._need()
        except GridcollError as error:
            if world.Get_rank() == 0:
                say(f"{type(error).__name__}: {error}; all ranks run without gridcoll")
            return 0
        self._world = context
        self._world_group = MPI.COMM_WORLD.Get_group()
        self._comms[handle(MPI._handleof(MPI.COMM_WORLD))] = _Comm(context)
        return 1

    def open(self, question: Question) -> int:
        """Meet a communicator. Local; whether anything can be gained on it."""
        if self._world is None:
            return 0
        key = handle(question.comm)
        known = self._comms.get(key)
        if known is None:
            users = MPI.Intracomm(MPI.Comm.fromhandle(handle(question.comm)))
            ranks = self._ranks_of(users)
            if ranks is None:
                return 0  # of processes that were started later
            # No communicator is made for it: programs may have hundreds.
            place = self._world.channel.place_in_group()
            context = self._world.restrict(users, place, ranks)
            if context.native_only:
                context.free()  # C does not ask again, nor say when the communicator ends
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
        """What calls of this kind do, from now on."""
        comm = self._comms[handle(question.comm)]
        kind = kind_of(question.key)
        learning = comm.context.learning
        if comm.stamped is not None:
            comm.stamped.take()
        with comm.context.steadily():  # C does it again and again: it is no trial
            action, flow = decide_kind(comm.context, kind)
        if action == Action.PYTHON:
            return action
        standing = None if learning is None else learning.standing()
        if standing is not None and comm.stamped is not None:
            call, may_be_made = standing
            if not may_be_made:
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
        """Do one call."""
        comm = self._comms[handle(question.comm)]
        if comm.stamped is not None:
            comm.stamped.take()
        try:
            perform(comm.view, question)
        except MPI.Exception as error:
            question.error = error.Get_error_code()
        except GridcollError as error:
            if question.rank == 0:
                say(f"{type(error).__name__}: {error}")
            question.error = MPI.ERR_OTHER
        finally:
            if comm.stamped is not None:
                comm.stamped.count_down()
        return 0

    def learn(self, comm: int) -> int:
        """Learn from the calls that C stamped. Collective: C counts them alike on all ranks."""
        stamped = self._comms[handle(comm)].stamped
        if stamped is not None:
            stamped.learn()
        return 0

    def clear(self, comm: int) -> None:
        """Forget what was prepared for a communicator."""
        known = self._comms[handle(comm)]
        known.prepared.clear()
        if known.stamped is not None:
            known.stamped.forget_tags()

    def forget(self, comm: int) -> None:
        """A communicator ends. Collective."""
        ending = self._comms.pop(handle(comm), None)
        if ending is not None:
            ending.context.free()

    def finish(self) -> None:
        """MPI ends: so does what Python would end, for its end may never come."""
        if self._is_embedded:
            atexit._run_exitfuncs()
            print(end="", flush=True)  # the program may have written


def say(text: str) -> None:
    """A line for the user."""
    sys.stderr.write(f"gridcoll: {text}\n")
    sys.stderr.flush()


def _answering(answer: Callable[..., int | None], otherwise: int) -> Callable[..., int | None]:
    """No exception may get into C."""

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


_kept: list[object] = []


def attach(library: str, is_embedded: int, is_behind: int) -> None:
    """Tell the library where our answers are; whether it has started this Python, and whether a
    profiler is in front of it, which is not to see our messages.
    """
    if is_behind:
        skip_profilers()
    bridge = _Bridge(bool(is_embedded))
    operations = _operations()
    functions = c_functions()
    half = _Half(
        _INTERFACE,
        _BEGIN(_answering(bridge.begin, 0)),
        _ASKED(_answering(bridge.open, 0)),
        _ASKED(_answering(bridge.decide, Action.NATIVE)),
        _ASKED(_answering(bridge.perform, 0)),
        _LEARN(_answering(bridge.learn, MPI.ERR_OTHER)),
        _OF_COMM(_answering(bridge.clear, 0)),
        _OF_COMM(_answering(bridge.forget, 0)),
        _CALLED(_answering(watch().look, 0)),
        _CALLED(_answering(bridge.finish, 0)),
        MPI._handleof(MPI.ERRORS_RETURN),
        ctypes.addressof(operations),
        *functions,
    )
    _kept.extend((bridge, operations, half))
    ours = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    ours.gridcoll_attach(ctypes.byref(half))
    atexit.register(ours.gridcoll_end)


def _operations() -> ctypes.Array[ctypes.c_int64]:
    """Handles of MPI's own operations, then 0."""
    own = (
        *(MPI.MAX, MPI.MIN, MPI.SUM, MPI.PROD, MPI.LAND, MPI.BAND, MPI.LOR, MPI.BOR, MPI.LXOR),
        *(MPI.BXOR, MPI.MAXLOC, MPI.MINLOC, MPI.REPLACE, MPI.NO_OP),
    )
    words = [ctypes.c_int64(MPI._handleof(op)).value for op in own]
    return (ctypes.c_int64 * (len(words) + 1))(*words, 0)
