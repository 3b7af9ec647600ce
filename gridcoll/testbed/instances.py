"""Which testbeds are up: one small file each, removed once the testbed's process has ended."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from gridcoll.errors import TestbedError
from gridcoll.testbed.layout import RUN_DIR


class Instance(Struct, frozen=True, kw_only=True):
    """A testbed that is, or was, up.

    ``started`` is the start time of process ``pid``: a later process may get the same number.
    ``owner_pid`` and ``owner_started`` are the same for the process that the testbed ends with;
    ``owner_pid`` is 0 if it stays up until taken down.
    """

    id: str
    grid: str
    text: str
    place: str
    pid: int
    started: str
    owner_pid: int
    owner_started: str
    namespaces: dict[str, dict[str, int]]

    @property
    def path(self) -> Path:
        return Path(RUN_DIR, f"{self.id}.json")

    def is_alive(self) -> bool:
        return start_time(self.pid) == self.started

    def is_orphaned(self) -> bool:
        """Whether the process that it should end with has ended."""
        return self.owner_pid != 0 and start_time(self.owner_pid) != self.owner_started

    def save(self) -> None:
        Path(RUN_DIR).mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(self))
        part.replace(self.path)

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def start_time(pid: int) -> str:
    """Return when process ``pid`` started, in the kernel's ticks, or "" if it is not alive."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def list_instances() -> list[Instance]:
    """Return the testbeds that are up, sorted by id. Files left by killed ones are removed."""
    alive = []
    for path in sorted(Path(RUN_DIR).glob("*.json")):
        try:
            instance = msgspec.json.decode(path.read_bytes(), type=Instance)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError):
            path.unlink(missing_ok=True)
            continue
        if instance.is_alive():
            alive.append(instance)
        else:
            instance.forget()
    return alive


def find_instance(instance_id: str | None) -> Instance:
    """Return the testbed called ``instance_id``, or the only one up. Raises `TestbedError`."""
    alive = list_instances()
    if instance_id is None and len(alive) == 1:
        return alive[0]
    known = ", ".join(instance.id for instance in alive) or "none"
    if instance_id is None:
        rule = f"say which with --id; up: {known}" if alive else "none is up"
        raise TestbedError(f"testbed: {rule}")
    for instance in alive:
        if instance.id == instance_id:
            return instance
    raise TestbedError(f"testbed: none is called {instance_id!r}; up: {known}")
