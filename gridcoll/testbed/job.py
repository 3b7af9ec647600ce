"""Starting commands on a testbed under one MPI."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gridcoll.testbed.launchers import (
    find_environment,
    find_mpi,
    launch_environment,
    launch_line,
    launcher,
)
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.hostfile import FORMATS


class Job:
    """Starts commands under one MPI, with rank ``i`` on ``hosts[i]`` (default: all slots)."""

    def __init__(
        self, testbed: Testbed, mpi: str | None = None, hosts: Sequence[str] | None = None
    ) -> None:
        self.testbed = testbed
        self.venv: Path = find_environment(mpi)
        self.launcher = launcher(mpi or find_mpi(self.venv))
        self.hosts = tuple(testbed.spec.rank_hosts() if hosts is None else hosts)
        text = FORMATS[self.launcher.hostfile].format_hosts(self.hosts)
        path, self._hostfile = testbed.shared_file(f"hostfile-{uuid.uuid4().hex[:8]}")
        path.write_text(text)

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


_CHUNK_BYTES = 65536


def quiet_stderr(noise: re.Pattern[bytes], target: int = 2) -> int:
    """Return a descriptor to write to: all but what matches ``noise`` is copied to ``target``.

    A thread copies until every writer has closed its end; the caller must close its own. Python
    waits for that thread before it exits, so nothing is lost.
    """
    source, sink = os.pipe()
    threading.Thread(target=_copy, args=(source, target, noise), name="stderr").start()
    return sink


def _copy(source: int, target: int, noise: re.Pattern[bytes]) -> None:
    with os.fdopen(source, "rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            rest = memoryview(noise.sub(b"", chunk))
            while rest:
                rest = rest[os.write(target, rest) :]
