"""Which testbeds are up: one small file each, dropped when the testbed's process is gone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gridcoll.errors import TestbedError
from gridcoll.testbed.layout import RUN_DIR


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A testbed that is, or was, up.

    ``started`` tells its process from a later one of equal ``pid``; ``owner_pid`` and
    ``owner_started`` the same for the process it ends with (0 when it stays up until taken down).
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
        """Whether it is up though the process it should have ended with is gone."""
        return self.owner_pid != 0 and start_time(self.owner_pid) != self.owner_started

    def save(self) -> None:
        Path(RUN_DIR).mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(self))
        part.replace(self.path)

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def start_time(pid: int) -> str:
    """When process ``pid`` started, in the kernel's ticks; empty when there is none alive."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def list_instances() -> list[Instance]:
    """The testbeds that are up, by id. Files left by killed ones are removed on the way."""
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
    """The testbed called ``instance_id``, or the only one that is up. Raises `TestbedError`."""
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
