"""Running a command on a testbed under an MPI, and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gridcoll.testbed.launchers import (
    find_environment,
    find_mpi,
    launch_environment,
    launch_line,
    launcher,
)
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.hostfile import format_hostfile

_GRACE_S = 3.0


class Interrupted(BaseException):
    """A signal asked this process to end. Not an `Exception`: nothing but cleaning up stops it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


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
    """An MPI job on a testbed: ``command`` on the first ``n_ranks`` slots, under one MPI."""

    def __init__(self, testbed: Testbed, mpi: str | None, n_ranks: int | None = None) -> None:
        self.testbed = testbed
        self.venv: Path = find_environment(mpi)
        self.launcher = launcher(mpi or find_mpi(self.venv))
        hosts = testbed.spec.rank_hosts()
        text = format_hostfile(testbed.spec, self.launcher.hostfile, n_ranks)
        self.n_ranks = n_ranks or len(hosts)
        self.first_host = hosts[0]
        self._one_per_host = all(cluster.slots == 1 for cluster in testbed.spec.clusters)
        written, self._hostfile = testbed.shared_file(f"hostfile-{uuid.uuid4().hex[:8]}")
        written.write_text(text)

    def start(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: int
    ) -> subprocess.Popen[bytes]:
        line = launch_line(
            self.launcher,
            self.venv,
            self._hostfile,
            self.n_ranks,
            self._one_per_host,
            command,
        )
        environment = launch_environment(
            self.launcher, self.venv, os.environ if env is None else env
        )
        return self.testbed.popen(self.first_host, line, environment, **options)


def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for ``process``; the code a shell would give for it."""
    code = process.wait()
    return 128 - code if code < 0 else code


def run_job(job: Job, command: Sequence[str]) -> int:
    """Run ``command`` under the job's MPI; its exit code. On a signal the launcher may tidy up."""
    process = job.start(command)
    try:
        return exit_code(process)
    except Interrupted:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
