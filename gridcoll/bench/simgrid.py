"""Running SimGrid's SMPI, where it is installed: replays of traces, and calls of its own MPI."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridcoll.errors import FileError, UsageError
from gridcoll.files import make_directory, write_atomically
from gridcoll.model.platform import host_lines, platform_lines, smpi_settings
from gridcoll.model.wires import Wires

PLATFORM, HOSTS, TRACE, LIST = "platform.xml", "hosts.txt", "trace.txt", "traces.txt"
REPLAYED = re.compile(r"Simulation time (\S+)")


def find_simgrid(place: str = "") -> Path:
    """Where ``smpirun`` is: ``place``, or on the PATH. Raises `UsageError` where it is not."""
    found = shutil.which(place or "smpirun")
    if found is None:
        raise UsageError(
            f"{place or 'smpirun'}: not found; SimGrid is to be had from Debian (apt-get install "
            "libsimgrid-dev) or simgrid.org"
        )
    return Path(found).resolve()


@dataclass(frozen=True)
class Folder:
    """A platform, and what runs on it, as files."""

    path: Path
    n_ranks: int
    settings: tuple[str, ...]
    """Options of ``smpirun``."""

    @classmethod
    def write(cls, path: Path, wires: Wires, window_bytes: int | None) -> Folder:
        """Make the directory ``path`` and put platform and hosts there. Raises `FileError`."""
        make_directory(path)
        write_atomically(path / PLATFORM, "".join(platform_lines(wires)))
        write_atomically(path / HOSTS, "".join(host_lines(wires)))
        return cls(path, wires.grid.n_ranks, smpi_settings(window_bytes))

    def write_trace(self, lines: Iterable[str]) -> None:
        """One trace for all ranks."""
        write_atomically(self.path / TRACE, "".join(lines))
        write_atomically(self.path / LIST, f"{TRACE}\n")

    def replay_command(self, smpirun: str | Path = "smpirun") -> list[str]:
        """The command that replays the trace; it is to be started in the folder."""
        return [*self._start(smpirun), "-replay", LIST, *self.settings]

    def replay_s(self, smpirun: Path, timeout_s: float) -> float:
        """How long the trace takes there, to the microsecond. Raises `FileError`, `UsageError`."""
        return _seconds(self._run(self.replay_command(smpirun), timeout_s), REPLAYED)

    def run(
        self, smpirun: Path, program: Sequence[str], options: Sequence[str], timeout_s: float
    ) -> str:
        """What ``program``, made with ``smpicc``, prints when it runs there."""
        return self._run([*self._start(smpirun), *self.settings, *options, *program], timeout_s)

    def _start(self, smpirun: str | Path) -> list[str]:
        return [
            *(str(smpirun), "-quiet", "-np", str(self.n_ranks)),
            *("-platform", PLATFORM, "-hostfile", HOSTS),
        ]

    def _run(self, command: Sequence[str], timeout_s: float) -> str:
        try:
            done = subprocess.run(
                command, cwd=self.path, timeout=timeout_s, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"{command[0]}: not over after {timeout_s:g} s") from None
        said = done.stdout + done.stderr
        if done.returncode:
            raise FileError(f"{command[0]}: code {done.returncode}: {_last(said)}")
        return said


def _seconds(said: str, pattern: re.Pattern[str]) -> float:
    match = pattern.search(said)
    if match is None:
        raise FileError(f"smpirun: no time in what it says: {_last(said)}")
    return float(match[1])


def _last(said: str) -> str:
    told = [line for line in said.splitlines() if "Configuration change" not in line]
    return " / ".join(told[-3:])
