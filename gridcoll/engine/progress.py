"""Programs that run in the background of the application, in one thread per process.

The request of a call is a synchronous send from the process to itself. The thread receives it when
the program is done, and so completes the request. As a request of the MPI library itself, it works
with `MPI.Request.Waitall` and similar functions. (A generalized request, MPI-4.1 section 13.2,
cannot be persistent, and MPICH 5.0.2 ends the job if one is pending in a Waitall with others.)
Starting a persistent request, also by `MPI.Prequest.Startall`, starts its send, which the thread
finds.

Arguments were checked before, so a failure here is unexpected. It ends the job with a traceback,
because a send cannot report an error.
"""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Literal

from mpi4py import MPI
from msgspec import Struct

from gridcoll.engine.executor import Run, Transport
from gridcoll.engine.transport import n_tags
from gridcoll.engine.waiting import EXIT_PATIENCE_S, PoliteWait, polls_at_once

IDLE_PAUSE_S = 2e-3
"""How often to look for persistent requests that were started without our methods."""

_WAIT_S = 10e-3  # between two polls; the thread wakes the waiter earlier when a program ends
_NOTHING = (memoryview(bytearray(0)), MPI.BYTE)


class Job(Struct, frozen=True, eq=False):
    """A program to run for a request."""

    transport: Transport
    """Runs over one transport execute one after another, in the order in which they were started.
    The order must be the same on all ranks."""
    begin: Callable[[], tuple[Run, Callable[[], None]]]
    """Called in the thread at each start. Returns the run, and a function to call at its end."""


class _Run(Struct, eq=False):
    job: Job
    complete: Callable[[], None]
    begun: tuple[Run, Callable[[], None]] | None = None

    def advance(self) -> bool:
        """Begin or advance the run; return whether anything happened."""
        if self.begun is None:
            self.begun = self.job.begin()
            return True
        return self.begun[0].advance()

    def end(self) -> bool:
        """Finish the run if it is done; return whether it was."""
        if self.begun is None or not self.begun[0].done:
            return False
        self.begun[0].check()
        self.begun[1]()
        return True


class GridRequest(MPI.Request):
    """The request of a non-blocking call. It waits politely."""

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """As `mpi4py.MPI.Request.Wait`."""
        progress().wait_until(lambda: self.Test(status))
        return True

    def wait(self, status: MPI.Status | None = None) -> None:
        """As `mpi4py.MPI.Request.wait`."""
        self.Wait(status)

    def Cancel(self) -> None:
        """Raise `MPI.Exception`: MPI does not allow to cancel a collective.

        The send that represents the call could be cancelled, but `Wait` would then never return.
        """
        raise MPI.Exception(MPI.ERR_REQUEST)

    def cancel(self) -> None:
        """Like `Cancel`."""
        self.Cancel()


class GridPrequest(GridRequest, MPI.Prequest):
    """The request of a persistent call. It waits politely and starts without delay."""

    _free: Callable[[], None] | None = None

    def Start(self) -> None:
        """As `mpi4py.MPI.Prequest.Start`."""
        super().Start()
        progress().look()

    def Free(self) -> None:
        """As `mpi4py.MPI.Request.Free`."""
        super().Free()
        free, self._free = self._free, None
        if free:
            free()

    def free(self) -> None:
        """As `mpi4py.MPI.Request.free`: `Free`, unless null."""
        if self != MPI.REQUEST_NULL:
            self.Free()


class Progress:
    """The background thread and its queues. Needs ``MPI.THREAD_MULTIPLE``."""

    def __init__(self) -> None:
        self._once_comm, self._persistent_comm = (MPI.COMM_SELF.Dup() for _ in range(2))
        self._changed = threading.Condition()
        self._queues: dict[Transport, deque[_Run]] = {}
        self._prepared: dict[int, Job] = {}
        self._n_tags = n_tags()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._ends_at_s: float | None = None

    def start(self, job: Job) -> MPI.Request:
        """Run ``job`` once."""
        tag = next(self._numbers) % self._n_tags
        request = GridRequest(self._once_comm.Issend(_NOTHING, 0, tag))
        self._enter(_Run(job, lambda: self._once_comm.Recv(_NOTHING, 0, tag)))
        self.look()
        return request

    def prepare(self, job: Job, free: Callable[[], None]) -> MPI.Prequest:
        """Run ``job`` whenever the request is started; call ``free`` when the request is freed."""
        with self._changed:
            tag = next(self._numbers) % self._n_tags
            while tag in self._prepared:  # numbers wrapped around, and this tag is still in use
                tag = next(self._numbers) % self._n_tags
            self._prepared[tag] = job
        request = GridPrequest(self._persistent_comm.Ssend_init(_NOTHING, 0, tag))

        def forget() -> None:
            with self._changed:
                del self._prepared[tag]
            free()

        request._free = forget
        self.look()
        return request

    def look(self) -> None:
        """Wake the thread, so that it looks for work at once."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._ends_at_s = None
                # A daemon, because an exit handler ends it, and Python joins all other threads
                # before it calls exit handlers.
                self._thread = threading.Thread(target=self._work, name="gridcoll", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_until(self, poll: Callable[[], bool]) -> None:
        """Call ``poll`` whenever a run ends, and at intervals, until it returns true."""
        with self._changed:
            while not poll():
                self._changed.wait(_WAIT_S)

    def drain(self, transports: Collection[Transport]) -> None:
        """Wait until all runs over ``transports`` have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not any(each in self._queues for each in transports))

    def stop(self, *_: object) -> None:
        """End the thread when its work is done, or after `EXIT_PATIENCE_S`."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        with self._changed:
            self._ends_at_s = time.monotonic() + EXIT_PATIENCE_S
            self._changed.notify_all()
        thread.join()

    def _enter(self, run: _Run) -> None:
        with self._changed:
            self._queues.setdefault(run.job.transport, deque()).append(run)

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            MPI.COMM_WORLD.Abort(1)

    def _serve(self) -> None:
        wait = PoliteWait()
        while self._wait_for_work():
            progressed = self._enqueue_started()
            with self._changed:
                heads = [queue[0] for queue in self._queues.values()]
            for run in heads:
                progressed |= self._advance(run)
            if progressed:
                wait.reset()
            else:
                wait()

    def _wait_for_work(self) -> bool:
        """Sleep while there is no work; return false when the thread has to end."""
        with self._changed:
            if self._ends_at_s is not None:
                return bool(self._queues) and time.monotonic() < self._ends_at_s
            if not self._queues:
                self._changed.wait(IDLE_PAUSE_S if self._prepared else None)
            return True

    def _enqueue_started(self) -> bool:
        """Enqueue a run for each persistent request that was started; return whether any was."""
        found = False
        status = MPI.Status()
        while self._prepared and (message := self._persistent_comm.Improbe(0, MPI.ANY_TAG, status)):
            job = self._prepared[status.tag]
            self._enter(_Run(job, partial(message.Recv, _NOTHING)))
            found = True
        return found

    def _advance(self, run: _Run) -> bool:
        """Advance ``run`` and complete it if it is done; return whether anything happened."""
        progressed = any(run.advance() for _ in range(polls_at_once()))
        if not run.end():
            return progressed
        with self._changed:
            queue = self._queues[run.job.transport]
            queue.popleft()
            if not queue:
                del self._queues[run.job.transport]
            run.complete()
            self._changed.notify_all()
        return True


_progress: list[Progress] = []


def open_progress() -> None:
    """Prepare `progress`. Call this while no other thread runs; later calls do nothing."""
    if _progress or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return
    opened = Progress()
    _progress.append(opened)
    # At exit, MPI ends after Python's exit handlers. An explicit Finalize calls `delete_fn`.
    atexit.register(opened.stop)
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=opened.stop), True)


def progress() -> Progress:
    """Return this process's `Progress`. Needs `open_progress` and ``MPI.THREAD_MULTIPLE``."""
    return _progress[0]
