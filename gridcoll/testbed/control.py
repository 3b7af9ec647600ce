"""Changing a testbed while it is up: a thread beside the WAN takes changes and makes them.

Protocol, on a stream socket in the testbed's shared directory: one JSON line (`Order`), answered by
one (`Answer`). ``start`` starts the events of the grid file, whose times count from then.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from gridcoll.errors import TestbedError
from gridcoll.testbed.layout import RUN_DIR
from gridcoll.topology.changes import Change
from gridcoll.topology.gridfile import GridSpec

SOCKET = "control"
_MOST_BYTES = 1 << 16


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A change to be made now, or the start of the grid file's events."""

    change: Change | None = None
    start: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong; empty: nothing."""

    error: str = ""


@dataclass(frozen=True)
class Network:
    """What can be changed, as calls."""

    change_link: Callable[[int, int, Change], None]
    """Source and target cluster and a change; for packets from now on."""
    set_host_rate: Callable[[str, float], None]
    set_host_up: Callable[[str, bool], None]
    """The interface of a host."""


@dataclass
class Controller:
    """Makes changes, and undoes cuts when their time is over. Times are of ``clock``."""

    spec: GridSpec
    network: Network
    clock: Callable[[], float] = time.monotonic
    _later: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _n_later: int = 0
    _loss: dict[tuple[int, int], float] = field(default_factory=dict)
    _cuts: dict[object, int] = field(default_factory=dict)

    def start(self) -> None:
        """Let the events of the grid file happen from now on."""
        began_s = self.clock()
        for event in self.spec.events:
            self._at(began_s + event.at_s, partial(self.change, event))

    def change(self, change: Change) -> None:
        """Make ``change`` now."""
        if change.host:
            self._change_host(change)
        for a, b in change.pairs:
            if change.reset:
                self._loss.pop((a, b), None)
                self._cuts.pop((a, b), None)
            if change.loss is not None:
                self._loss[a, b] = change.loss
            self._set_link(a, b, change)
            if change.cut_s:
                self._set_link(a, b, Change(loss=1.0))
                self._end_of_cut((a, b), change.cut_s, partial(self._mend, a, b))

    def _set_link(self, a: int, b: int, change: Change) -> None:
        self.network.change_link(a, b, change)
        self.network.change_link(b, a, change)

    def _mend(self, a: int, b: int) -> None:
        self._set_link(a, b, Change(loss=self._loss.get((a, b), 0.0)))

    def _change_host(self, change: Change) -> None:
        host = change.host
        if change.reset:
            self._cuts.pop(host, None)
            self.network.set_host_up(host, True)
        rate = change.rate_bytes_per_s
        if change.reset:
            rate = float(self.spec.nic_bytes_per_s[self.spec.cluster_of_host[host]])
        if rate is not None:
            self.network.set_host_rate(host, rate)
        if change.cut_s:
            self.network.set_host_up(host, False)
            self._end_of_cut(host, change.cut_s, partial(self.network.set_host_up, host, True))

    def _end_of_cut(self, what: object, cut_s: float, mend: Callable[[], None]) -> None:
        """A later cut, or a reset, of the same makes an earlier one's end mean nothing."""
        number = self._cuts[what] = self._n_later

        def end() -> None:
            if self._cuts.get(what) == number:
                del self._cuts[what]
                mend()

        self._at(self.clock() + cut_s, end)

    def _at(self, at_s: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._later, (at_s, self._n_later, step))
        self._n_later += 1

    def run_due(self) -> float | None:
        """Do what is due; seconds until the next thing is, None if there is none."""
        while self._later and self._later[0][0] <= self.clock():
            heapq.heappop(self._later)[2]()
        return max(0.0, self._later[0][0] - self.clock()) if self._later else None


def start_control(controller: Controller) -> None:
    """Take orders in a thread of this process, as long as it lives."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(Path(RUN_DIR, SOCKET)))
    listener.listen()
    threading.Thread(target=_serve, args=(listener, controller), daemon=True).start()


def _serve(listener: socket.socket, controller: Controller) -> None:
    while True:
        pause_s = controller.run_due()
        if select.select([listener], [], [], pause_s)[0]:
            connection, _ = listener.accept()
            # The client may be gone; others may come.
            with connection, contextlib.suppress(OSError):
                connection.settimeout(1.0)
                connection.sendall(msgspec.json.encode(_obey(connection, controller)) + b"\n")


def _obey(connection: socket.socket, controller: Controller) -> Answer:
    try:
        order = msgspec.json.decode(_read_line(connection), type=Order)
        if order.start:
            controller.start()
        if order.change is not None:
            controller.change(order.change)
    except Exception as error:
        return Answer(error=f"{type(error).__name__}: {error}")
    return Answer()


def _read_line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _MOST_BYTES:
        part = connection.recv(_MOST_BYTES)
        if not part:
            break
        data += part
    return data


def send_order(socket_path: Path, order: Order, who: str, timeout_s: float = 10.0) -> None:
    """Have the testbed whose socket is at ``socket_path`` obey. Raises `TestbedError`."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(socket_path))
            connection.sendall(msgspec.json.encode(order) + b"\n")
            answer = msgspec.json.decode(_read_line(connection), type=Answer)
    except (OSError, msgspec.DecodeError) as error:
        raise TestbedError(f"testbed {who}: cannot be changed: {error}") from None
    if answer.error:
        raise TestbedError(f"testbed {who}: {answer.error}")
