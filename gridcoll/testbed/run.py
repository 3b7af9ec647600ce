"""Running a command on a testbed under an MPI, and taking everything down afterwards."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gridcoll.errors import TestbedError
from gridcoll.testbed.job import Job
from gridcoll.testbed.launchers import find_environment
from gridcoll.testbed.preflight import check_transport
from gridcoll.testbed.probe import prove
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.hostfile import first_hosts

_GRACE_S = 3.0


class Interrupted(SystemExit):
    """A signal asked this process to end. It ends with the shell's code, once all is down."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Interrupted`, so that testbeds are taken down."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # cleaning up must not be interrupted again
        raise Interrupted(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in signals}
    try:
        for each in signals:
            signal.signal(each, handle)
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait for ``process`` and return the exit code that a shell would give.

    Raises `Interrupted` if this process is asked to end; ``process`` then gets time to clean up.
    """
    try:
        code = process.wait()
    except Interrupted:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return 128 - code if code < 0 else code


def run_on_grid(
    path: Path,
    command: Sequence[str],
    *,
    mpi: str | None = None,
    n_ranks: int | None = None,
    check: bool = True,
) -> int:
    """Bring the grid at ``path`` up, run ``command`` under ``mpi``, and take the grid down.

    Return the exit code. With ``check``, first verify that the grid and the MPI behave as the file
    says. Raises `TestbedError`, `FileError`, `UsageError`.
    """
    find_environment(mpi)  # a missing MPI should not cost building a grid
    with Testbed.up(path) as testbed:
        hosts = first_hosts(testbed.spec, n_ranks)
        if check:
            prove(testbed)
            check_transport(testbed, mpi)
        job = Job(testbed, mpi, hosts).start(command)
        testbed.start_events()
        code = wait_for(job)
        if code == 128 + signal.SIGKILL and testbed.ends_within(_GRACE_S):
            raise TestbedError(
                f"testbed {testbed.instance.id}: its process {testbed.instance.pid} ended while "
                "the command ran"
            )
    return code
