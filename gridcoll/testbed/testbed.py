"""A testbed that is up: bring it up, run things on its hosts, take it down."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gridcoll.errors import TestbedError
from gridcoll.files import read_text
from gridcoll.testbed import linux
from gridcoll.testbed.control import SOCKET, Order, send_order
from gridcoll.testbed.instances import Instance, list_instances, start_time
from gridcoll.testbed.keeper import Order as BuildOrder
from gridcoll.testbed.keeper import Report
from gridcoll.testbed.layout import RUN_DIR, Host, lay_out
from gridcoll.topology import GridSpec, parse_gridfile
from gridcoll.topology.changes import Change

_BUILD_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0


class Testbed:
    """An emulated grid, built by `Testbed.up`. As a context manager it is taken down at the end."""

    __test__ = False

    def __init__(self, instance: Instance, keeper: subprocess.Popen[bytes] | None = None) -> None:
        self.instance = instance
        self.spec: GridSpec = parse_gridfile(instance.text, instance.place)
        self.hosts: dict[str, Host] = lay_out(self.spec)
        """By name, in rank order."""
        self._keeper = keeper
        self._children: list[subprocess.Popen[bytes]] = []

    @classmethod
    def up(cls, path: str | Path, *, detached: bool = False) -> Testbed:
        """Build the grid that the file at ``path`` declares.

        It ends with this process or, if ``detached``, when `down` is called. Raises `FileError` if
        the file is wrong, `TestbedError` if this machine cannot build the grid.
        """
        text = read_text(path, "grid file")
        spec = parse_gridfile(text, str(path))
        lay_out(spec)
        linux.check_privileges()
        clear_up()
        Path(RUN_DIR).mkdir(parents=True, exist_ok=True)
        order = BuildOrder(text=text, place=str(path), detached=detached)
        keeper, report = _start_keeper(order)
        instance = Instance(
            id=f"{spec.name}-{report.pid}",
            grid=spec.name,
            text=text,
            place=str(path),
            pid=report.pid,
            started=start_time(report.pid),
            owner_pid=0 if detached else os.getpid(),
            owner_started="" if detached else start_time(os.getpid()),
            namespaces=report.namespaces,
        )
        testbed = cls(instance, keeper)
        try:
            instance.save()
        except BaseException:
            testbed.down()
            raise
        return testbed

    def __enter__(self) -> Testbed:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """End every process on the hosts and remove the network. Does nothing if it is down."""
        if self.instance.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.instance.pid, signal.SIGKILL)
            for child in self._children:
                child.wait()  # pid 1 of a pid namespace cannot end before all in it are reaped
            if not self.ends_within(_END_TIMEOUT_S):
                raise TestbedError(
                    f"testbed {self.instance.id}: process {self.instance.pid} does not end"
                )
        self.instance.forget()
        self.let_go()

    def ends_within(self, timeout_s: float) -> bool:
        """Whether the testbed ends within ``timeout_s``, or has ended before."""
        try:
            pidfd = os.pidfd_open(self.instance.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.instance.is_alive():
                return True
            return bool(select.select([pidfd], [], [], timeout_s)[0])
        finally:
            os.close(pidfd)

    def let_go(self) -> None:
        """Close the pipe to the testbed's process. A detached testbed stays up, others end."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper = None

    def host(self, name: str) -> Host:
        """Return the host called ``name``. Raises `TestbedError` if there is none."""
        if name not in self.hosts:
            raise TestbedError(
                f"testbed {self.instance.id}: no host is called {name!r}; "
                f"there are {', '.join(self.hosts)}"
            )
        return self.hosts[name]

    def descriptor(self, host: str, kind: str) -> int:
        """Return a descriptor in this process, open on the namespace of ``kind`` of ``host``."""
        fd = self.instance.namespaces[self.host(host).name][kind]
        try:
            return os.open(f"/proc/{self.instance.pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise self._gone() from None

    def popen(
        self, host: str, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start ``argv`` on ``host``, in this directory; it dies with the testbed."""
        pid = self.instance.pid
        options_of_nsenter = linux.nsenter_options(
            self.instance.namespaces[self.host(host).name], pid
        )
        enter = ["nsenter", *options_of_nsenter, f"--wdns={Path.cwd()}", "--"]
        if not self.instance.is_alive():
            raise self._gone()
        pid_namespace = linux.open_namespace("pid", pid)
        try:
            with linux.inside({"pid": pid_namespace}):
                child = subprocess.Popen([*enter, *argv], env=env, **options)
        finally:
            os.close(pid_namespace)
        self._children.append(child)
        return child

    def shared_file(self, name: str) -> tuple[Path, str]:
        """Return the path of a file that all hosts see: here for writing, and on the hosts."""
        inside = f"{RUN_DIR}/{name}"
        return Path(f"/proc/{self.instance.pid}/root{inside}"), inside

    def change(self, change: Change) -> None:
        """Make ``change`` (see `GridSpec.change`) now. Raises `TestbedError` if that fails."""
        self._order(Order(change=change))

    def start_events(self) -> None:
        """Start the events of the grid file. Their times count from now."""
        if self.spec.events:
            self._order(Order(start=True))

    def _order(self, order: Order) -> None:
        if not self.instance.is_alive():
            raise self._gone()
        send_order(self.shared_file(SOCKET)[0], order, self.instance.id)

    def _gone(self) -> TestbedError:
        return TestbedError(f"testbed {self.instance.id}: is down")


def clear_up() -> list[str]:
    """Remove what killed testbeds left, and return the ids of those that were still up."""
    orphans = [instance for instance in list_instances() if instance.is_orphaned()]
    for instance in orphans:
        Testbed(instance).down()
    return [instance.id for instance in orphans]


def _start_keeper(order: BuildOrder) -> tuple[subprocess.Popen[bytes], Report]:
    keeper = subprocess.Popen(
        [sys.executable, "-m", "gridcoll.testbed.keeper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        return keeper, _await_report(keeper, order)
    except BaseException:
        if keeper.stdin is not None:
            keeper.stdin.close()  # the keeper ends when its input does
        raise


def _await_report(keeper: subprocess.Popen[bytes], order: BuildOrder) -> Report:
    if keeper.stdin is None or keeper.stdout is None:
        raise TestbedError("testbed: no pipes to the process that builds the network")
    keeper.stdin.write(msgspec.json.encode(order) + b"\n")
    keeper.stdin.flush()
    with keeper.stdout:
        readable, _, _ = select.select([keeper.stdout], [], [], _BUILD_TIMEOUT_S)
        line = keeper.stdout.readline() if readable else b""
    if not line:
        what = "ended" if readable else f"said nothing for {_BUILD_TIMEOUT_S:g} s"
        raise TestbedError(f"testbed: the process that builds the network {what}")
    keeper.wait()  # its child goes on as the testbed, see keeper._become_init
    report = msgspec.json.decode(line, type=Report)
    if report.error:
        raise TestbedError(f"testbed: {report.error}")
    return report
