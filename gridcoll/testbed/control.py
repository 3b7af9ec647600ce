"""Changes of a testbed that is up: a thread beside the WAN receives orders and makes the changes.

Protocol, on a stream socket in the testbed's shared directory: one JSON line (`Order`), answered by
one (`Answer`). ``start`` starts the events of the grid file; their times count from then.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct, field

from gridcoll.errors import TestbedError
from gridcoll.testbed.layout import RUN_DIR
from gridcoll.topology.changes import Change
from gridcoll.topology.gridfile import GridSpec

SOCKET = "control"
_MAX_LINE_BYTES = 1 << 16


class Order(Struct, frozen=True, kw_only=True):
    """A change to be made now, or the start of the grid file's events."""

    change: Change | None = None
    start: bool = False


class Answer(Struct, frozen=True, kw_only=True):
    """The answer to an order; ``error`` is empty if nothing went wrong."""

    error: str = ""


class Network(Struct, frozen=True):
    """The functions that change the network."""

    change_link: Callable[[int, int, Change], None]
    """Change the link from a source to a target cluster, for packets from now on."""
    set_host_rate: Callable[[str, float], None]
    """Set the rate of a host's interface, in bytes per second."""
    set_host_up: Callable[[str, bool], None]
    """Set the interface of a host up or down."""


class Controller(Struct):
    """Makes changes, and ends cuts when their time is over. Times are read from ``clock``."""

    spec: GridSpec
    network: Network
    clock: Callable[[], float] = time.monotonic
    _scheduled: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _n_scheduled: int = 0
    _loss: dict[tuple[int, int], float] = field(default_factory=dict)
    _cuts: dict[object, int] = field(default_factory=dict)

    def start(self) -> None:
        """Start the events of the grid file. Their times count from now."""
        began_s = self.clock()
        for event in self.spec.events:
            self._schedule(began_s + event.at_s, partial(self.change, event))

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
                self._schedule_end_of_cut((a, b), change.cut_s, partial(self._end_link_cut, a, b))

    def _set_link(self, a: int, b: int, change: Change) -> None:
        self.network.change_link(a, b, change)
        self.network.change_link(b, a, change)

    def _end_link_cut(self, a: int, b: int) -> None:
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
            self._schedule_end_of_cut(
                host, change.cut_s, partial(self.network.set_host_up, host, True)
            )

    def _schedule_end_of_cut(self, what: object, cut_s: float, end_cut: Callable[[], None]) -> None:
        """Call ``end_cut`` after ``cut_s``, unless ``what`` is cut again or reset before then."""
        number = self._cuts[what] = self._n_scheduled

        def end() -> None:
            if self._cuts.get(what) == number:
                del self._cuts[what]
                end_cut()

        self._schedule(self.clock() + cut_s, end)

    def _schedule(self, at_s: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._scheduled, (at_s, self._n_scheduled, step))
        self._n_scheduled += 1

    def run_due(self) -> float | None:
        """Do what is due. Return the seconds until the next step is due, or None without one."""
        while self._scheduled and self._scheduled[0][0] <= self.clock():
            heapq.heappop(self._scheduled)[2]()
        return max(0.0, self._scheduled[0][0] - self.clock()) if self._scheduled else None


def start_control(controller: Controller) -> None:
    """Take orders in a thread of this process, until the process ends."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(Path(RUN_DIR, SOCKET)))
    listener.listen()
    threading.Thread(target=_serve, args=(listener, controller), daemon=True).start()


def _serve(listener: socket.socket, controller: Controller) -> None:
    while True:
        pause_s = controller.run_due()
        if select.select([listener], [], [], pause_s)[0]:
            connection, _ = listener.accept()
            # The client may be gone; keep serving others.
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
    while not data.endswith(b"\n") and len(data) < _MAX_LINE_BYTES:
        part = connection.recv(_MAX_LINE_BYTES)
        if not part:
            break
        data += part
    return data


def send_order(socket_path: Path, order: Order, who: str, timeout_s: float = 10.0) -> None:
    """Send ``order`` to the testbed whose socket is at ``socket_path``. Raises `TestbedError`."""
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
