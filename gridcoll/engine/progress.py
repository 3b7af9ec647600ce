"""Programs that run beside the application, in one thread per process.

The request of a call is a synchronous send to ourselves, which the thread receives when the program
is done: that completes it. It is the MPI library's own request, and as good as any other in
`MPI.Request.Waitall` and the like. (A generalized request, MPI-4.1 section 13.2, would be less: it
cannot be persistent, and MPICH 5.0.2 ends the job when one is pending among others in a Waitall.)
Whatever starts a persistent request, `MPI.Prequest.Startall` included, starts its send, which the
thread finds.

Arguments were checked before, so a failure here is unexpected. It ends the job with a traceback,
since a send cannot report an error.
"""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mpi4py import MPI

from gridcoll.engine.executor import Run, Transport
from gridcoll.engine.transport import n_tags
from gridcoll.engine.waiting import PoliteWait, polls_at_once

IDLE_PAUSE_S = 2e-3
"""How often to look for starts of persistent requests that were not made through our methods."""

EXIT_PATIENCE_S = 1.0
"""How long the end of a job waits for programs under way, in case another rank is no more."""

_WAIT_S = 10e-3  # between two polls; the thread wakes us when something ended
_NOTHING = (memoryview(bytearray(0)), MPI.BYTE)


@dataclass(frozen=True, eq=False)
class Job:
    """A program to run for a request."""

    transport: Transport
    """Runs over one transport take turns in the order in which they were started; it must be the
    same order on all ranks."""
    begin: Callable[[], tuple[Run, Callable[[], None]]]
    """Called in the thread at each start; returns the run, and a function to call at its end."""


@dataclass(eq=False)
class _Run:
    job: Job
    complete: Callable[[], None]
    begun: tuple[Run, Callable[[], None]] | None = None

    def advance(self) -> bool:
        """Whether anything happened."""
        if self.begun is None:
            self.begun = self.job.begin()
            return True
        return self.begun[0].advance()

    def end(self) -> bool:
        """Finish the run, if it is done; returns whether it was."""
        if self.begun is None or not self.begun[0].done:
            return False
        self.begun[0].check()
        self.begun[1]()
        return True


class GridRequest(MPI.Request):
    """The request of a non-blocking call; waits politely."""

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """As `mpi4py.MPI.Request.Wait`."""
        progress().wait_until(lambda: self.Test(status))
        return True

    def wait(self, status: MPI.Status | None = None) -> None:
        """As `mpi4py.MPI.Request.wait`."""
        self.Wait(status)

    def Cancel(self) -> None:
        """As `mpi4py.MPI.Request.Cancel` of a collective, which MPI does not cancel: raises.

        The send that stands for the collective could be cancelled, but `Wait` would never return.
        """
        raise MPI.Exception(MPI.ERR_REQUEST)

    def cancel(self) -> None:
        """As `Cancel`."""
        self.Cancel()


class GridPrequest(GridRequest, MPI.Prequest):
    """The request of a persistent call; waits politely and starts without delay."""

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
    """The thread and what it works on. Needs ``MPI.THREAD_MULTIPLE``."""

    def __init__(self) -> None:
        self._once_comm, self._again_comm = (MPI.COMM_SELF.Dup() for _ in range(2))
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
        """Run ``job`` whenever the request is started; call ``free`` when that is freed."""
        with self._changed:
            tag = next(self._numbers) % self._n_tags
            while tag in self._prepared:  # still used since numbers wrapped around
                tag = next(self._numbers) % self._n_tags
            self._prepared[tag] = job
        request = GridPrequest(self._again_comm.Ssend_init(_NOTHING, 0, tag))

        def forget() -> None:
            with self._changed:
                del self._prepared[tag]
            free()

        request._free = forget
        self.look()
        return request

    def look(self) -> None:
        """Have the thread look for something to do, at once."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._ends_at_s = None
                # A daemon: Python joins other threads before the exit handlers, one of which ends
                # this one.
                self._thread = threading.Thread(target=self._work, name="gridcoll", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_until(self, poll: Callable[[], bool]) -> None:
        """Call ``poll`` whenever something completed, and at intervals, until it returns true."""
        with self._changed:
            while not poll():
                self._changed.wait(_WAIT_S)

    def drain(self, transports: Collection[Transport]) -> None:
        """Wait for all runs over ``transports``."""
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
        while self._awaits_work():
            progressed = self._find_started()
            with self._changed:
                heads = [queue[0] for queue in self._queues.values()]
            for run in heads:
                progressed |= self._advance(run)
            if progressed:
                wait.reset()
            else:
                wait()

    def _awaits_work(self) -> bool:
        """Sleep while there is nothing to do; returns false when the thread has to end."""
        with self._changed:
            if self._ends_at_s is not None:
                return bool(self._queues) and time.monotonic() < self._ends_at_s
            if not self._queues:
                self._changed.wait(IDLE_PAUSE_S if self._prepared else None)
            return True

    def _find_started(self) -> bool:
        """Enter a run for each persistent request that was started."""
        found = False
        status = MPI.Status()
        while self._prepared and (message := self._again_comm.Improbe(0, MPI.ANY_TAG, status)):
            job = self._prepared[status.tag]
            self._enter(_Run(job, partial(message.Recv, _NOTHING)))
            found = True
        return found

    def _advance(self, run: _Run) -> bool:
        """Whether anything happened."""
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
    """Get ready for `progress`. Call while no other thread runs; the first call counts."""
    if _progress or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return
    opened = Progress()
    _progress.append(opened)
    # If MPI ends at exit, it does so after Python; after an explicit Finalize it calls back.
    atexit.register(opened.stop)
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=opened.stop), True)


def progress() -> Progress:
    """This process's, after `open_progress` under ``MPI.THREAD_MULTIPLE``."""
    return _progress[0]
