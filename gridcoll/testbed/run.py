"""Running a command on a testbed under an MPI, and leaving nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from gridcoll.errors import TestbedError
from gridcoll.testbed.launchers import (
    find_environment,
    find_mpi,
    launch_environment,
    launch_line,
    launcher,
)
from gridcoll.testbed.noise import quiet_stderr
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.hostfile import FORMATS, first_hosts

_GRACE_S = 3.0


class Interrupted(SystemExit):
    """A signal asked this process to end; it does, with the shell's code, once all is down."""

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


class Job:
    """How commands start under one MPI, rank ``i`` on ``hosts[i]`` (default: all slots)."""

    def __init__(
        self, testbed: Testbed, mpi: str | None = None, hosts: Sequence[str] | None = None
    ) -> None:
        self.testbed = testbed
        self.venv: Path = find_environment(mpi)
        self.launcher = launcher(mpi or find_mpi(self.venv))
        self.hosts = tuple(testbed.spec.rank_hosts() if hosts is None else hosts)
        text = FORMATS[self.launcher.hostfile].format_hosts(self.hosts)
        written, self._hostfile = testbed.shared_file(f"hostfile-{uuid.uuid4().hex[:8]}")
        written.write_text(text)

    def start(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        line = launch_line(
            self.launcher,
            self.venv,
            self._hostfile,
            len(self.hosts),
            len(set(self.hosts)) == len(self.hosts),
            command,
        )
        environment = launch_environment(
            self.launcher, self.venv, os.environ if env is None else env
        )
        if self.launcher.noise is None or "stderr" in options:
            return self.testbed.popen(self.hosts[0], line, environment, **options)
        stderr = quiet_stderr(self.launcher.noise)
        try:
            return self.testbed.popen(self.hosts[0], line, environment, stderr=stderr, **options)
        finally:
            os.close(stderr)


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait for ``process``; the code a shell would give for it. On a signal it may tidy up first.

    Raises `Interrupted` when this process is asked to end.
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
    """Bring the grid at ``path`` up, run ``command`` under ``mpi``, take it down; the exit code.

    With ``check`` the grid and the MPI prove first that they are what the file says. Raises
    `TestbedError`, `FileError`, `UsageError`.
    """
    from gridcoll.testbed.preflight import check_transport
    from gridcoll.testbed.probe import prove

    find_environment(mpi)  # a missing MPI should not cost building a grid
    with Testbed.up(path) as testbed:
        hosts = first_hosts(testbed.spec, n_ranks)
        if check:
            prove(testbed)
            check_transport(testbed, mpi)
        code = wait_for(Job(testbed, mpi, hosts).start(command))
        if code == 128 + signal.SIGKILL and testbed.ends_within(_GRACE_S):
            raise TestbedError(
                f"testbed {testbed.instance.id}: its process {testbed.instance.pid} ended while "
                "the command ran"
            )
    return code
