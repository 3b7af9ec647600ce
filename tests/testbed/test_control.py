"""Changes of a testbed: when they are made, and what they do to a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gridcoll.cli.testbed_command import command
from gridcoll.errors import TestbedError, UsageError
from gridcoll.testbed import probe
from gridcoll.testbed.control import Controller, Network, Order, send_order
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology import parse_gridfile
from gridcoll.topology.changes import Change, ChangeSpec

WriteGrid = Callable[..., Path]

GRID = """
version = 1
name = "g"
[[clusters]]
name = "a"
hosts = 1
nic = "80 Mbit/s"
[[clusters]]
name = "b"
hosts = 1
[default_link]
latency = "20 ms"
[[events]]
at = "2 s"
link = ["a", "b"]
loss = "1 %"
[[events]]
at = "4 s"
link = ["a", "b"]
cut = "3 s"
"""


class Recorder:
    """A clock that stands still, and what was done to the network at which time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.done: list[tuple[object, ...]] = []
        network = Network(self.change_link, self.set_host_rate, self.set_host_up)
        self.controller = Controller(parse_gridfile(GRID), network, lambda: self.now_s)

    def change_link(self, source: int, target: int, change: Change) -> None:
        if source < target:
            self.done.append((self.now_s - 100, change.loss, change.rate_bytes_per_s, change.reset))
        else:
            assert self.done[-1][1] == change.loss, "both directions change"

    def set_host_rate(self, host: str, rate: float) -> None:
        self.done.append((self.now_s - 100, host, rate))

    def set_host_up(self, host: str, up: bool) -> None:
        self.done.append((self.now_s - 100, host, up))

    def until(self, end_s: float) -> None:
        while True:
            pause_s = self.controller.run_due()
            if pause_s is None or self.now_s + pause_s > 100 + end_s:
                break
            self.now_s += pause_s
        self.now_s = 100 + end_s


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_events_happen_at_their_times_and_cuts_end(recorder: Recorder) -> None:
    recorder.until(50)
    assert not recorder.done, "nothing happens before the start"
    recorder.controller.start()
    recorder.until(100)
    assert recorder.done == [
        (52, 0.01, None, False),
        (54, None, None, False),
        (54, 1.0, None, False),
        (57, 0.01, None, False),  # what was lost before the cut is lost after it
    ]


def test_a_later_cut_ends_later(recorder: Recorder) -> None:
    cut = Change(pairs=[(0, 1)], cut_s=5)
    recorder.controller.change(cut)
    recorder.until(3)
    recorder.controller.change(cut)
    recorder.until(20)
    assert [at for at, loss, *_ in recorder.done if loss == 0.0] == [8]


def test_a_reset_ends_a_cut_at_once(recorder: Recorder) -> None:
    recorder.controller.change(Change(pairs=[(0, 1)], cut_s=5))
    recorder.until(1)
    recorder.controller.change(Change(pairs=[(0, 1)], reset=True))
    recorder.until(20)
    assert recorder.done[-1] == (1, None, None, True)


def test_hosts(recorder: Recorder) -> None:
    recorder.controller.change(Change(host="a-0", rate_bytes_per_s=5.0, cut_s=2))
    recorder.until(4)
    recorder.controller.change(Change(host="a-0", reset=True))
    assert recorder.done == [
        (0, "a-0", 5.0),
        (0, "a-0", False),
        (2, "a-0", True),
        (4, "a-0", True),
        (4, "a-0", 1e7),
    ]


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="testbed t: cannot be changed"):
        send_order(tmp_path / "control", Order(start=True), "t")


@pytest.mark.testbed
class TestReal:
    def test_a_link_changes_and_comes_back(self, write_grid: WriteGrid) -> None:
        with Testbed.up(write_grid()) as testbed:
            spec = testbed.spec

            def change(**given: str) -> None:
                testbed.change(spec.change(ChangeSpec(link=("left", "right"), **given)))  # type: ignore[arg-type]

            change(latency="60 ms", rate="4 Mbit/s")
            slow = probe.measure_rate(testbed, "left-0", "right-0", 200_000)
            assert slow <= 5e5 * 1.05
            change()
            assert probe.measure_rate(testbed, "left-0", "right-0", 1_000_000) > 2 * slow
            probe.prove(testbed)

    def test_by_command(self, write_grid: WriteGrid) -> None:
        with Testbed.up(write_grid()) as testbed:

            def change(*arguments: str) -> Result:
                return CliRunner().invoke(command, ["set", "--id", testbed.instance.id, *arguments])

            assert change("left:right", "latency=60ms", "rate=4Mbit/s").exit_code == 0
            assert probe.measure_round_trip_s(testbed, "left-0", "right-0", 3) > 0.12
            assert change("left:right").exit_code == 0
            probe.prove(testbed)
            for wrong, said in (
                (("left:right", "speed=1"), "speed=1"),
                (("left:right:left",), "expected HOST or A:B"),
                (("left-7", "rate=1Mbit/s"), "known are left-0"),
            ):
                error = change(*wrong).exception
                assert isinstance(error, UsageError)
                assert said in str(error)

    def test_a_host_changes(self, write_grid: WriteGrid) -> None:
        with Testbed.up(write_grid()) as testbed:
            testbed.change(testbed.spec.change(ChangeSpec(host="left-0", rate="8 Mbit/s")))
            assert probe.measure_rate(testbed, "left-0", "left-1", 400_000) <= 1e6 * 1.05
            assert probe.measure_rate(testbed, "left-1", "left-0", 400_000) <= 1e6 * 1.05

    def test_what_cannot_be_done_is_said(self, write_grid: WriteGrid) -> None:
        with Testbed.up(write_grid()) as testbed:
            with pytest.raises(TestbedError, match="KeyError"):
                testbed.change(Change(host="nobody", rate_bytes_per_s=1.0))
            probe.prove(testbed)
