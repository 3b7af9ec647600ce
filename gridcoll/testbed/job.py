"""How commands start on a testbed under one MPI."""

from __future__ import annotations

import os
import subprocess
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
from gridcoll.testbed.noise import quiet_stderr
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.hostfile import FORMATS


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
