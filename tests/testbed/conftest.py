"""Grids for the tests, and who may skip them: nobody in CI, unless told so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridcoll.errors import TestbedError
from gridcoll.testbed.instances import Instance, start_time
from gridcoll.testbed.launchers import LAUNCHERS, find_environment
from gridcoll.testbed.linux import check_privileges
from gridcoll.testbed.testbed import Testbed

SMALL = """
version = 1
name = "small"
rank_order = "interleaved"
[[clusters]]
name = "left"
hosts = 2
nic = "100 Mbit/s"
[[clusters]]
name = "right"
hosts = 2
nic = "80 Mbit/s"
[[links]]
between = ["left", "right"]
latency = "6 ms"
rate = "40 Mbit/s"
"""

CONGESTION_FILES = [
    Path("/proc/sys/net/ipv4", f"tcp_{what}congestion_control") for what in ("", "allowed_")
]


def why_not() -> str:
    """What keeps testbeds from being built here; empty when nothing does."""
    try:
        check_privileges()
    except TestbedError as error:
        return str(error)
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("testbed") is None:
        return
    reason = why_not()
    if not reason:
        return
    if os.environ.get("CI") == "true" and os.environ.get("GRIDCOLL_ALLOW_NO_TESTBED") != "1":
        pytest.fail(f"CI must run the testbed's tests (GRIDCOLL_ALLOW_NO_TESTBED=1: not): {reason}")
    pytest.skip(reason)


@pytest.fixture(autouse=True, scope="session")
def machine_is_left_as_it_was() -> Iterator[None]:
    before = [path.read_text() for path in CONGESTION_FILES if path.exists()]
    yield
    assert [path.read_text() for path in CONGESTION_FILES if path.exists()] == before


@pytest.fixture(scope="session")
def write_grid(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``write_grid(old, new, …)`` is the path of `SMALL` with each ``old`` replaced."""

    def write(*replacements: str) -> Path:
        text = SMALL
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        path = tmp_path_factory.mktemp("grid") / "small.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def small(write_grid: Callable[..., Path]) -> Iterator[Testbed]:
    """A testbed that tests of a module share: they must not change it."""
    with Testbed.up(write_grid()) as testbed:
        yield testbed


@pytest.fixture(params=list(LAUNCHERS))
def mpi(request: pytest.FixtureRequest) -> str:
    """Each MPI that is installed."""
    name: str = request.param
    try:
        find_environment(name)
    except TestbedError as error:
        pytest.skip(str(error))
    return name


def _identity(path: Path) -> str:
    """``net:[4026532180]``: which namespace a link under /proc is open on; or whatever else."""
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _users_of(namespaces: set[str]) -> list[int]:
    """The other processes alive in one of ``namespaces``, or holding one open."""
    users = []
    for process in Path("/proc").glob("[0-9]*"):
        links = [process / "ns" / "pid", process / "ns" / "net"]
        with contextlib.suppress(OSError):
            links += (process / "fd").iterdir()
        pid = int(process.name)
        if pid == os.getpid() or not start_time(pid):
            continue
        if any(_identity(link) in namespaces for link in links):
            users.append(pid)
    return users


class Watch:
    """Notes testbeds that are up; later says whether anything is left of them.

    It holds their namespaces open: else the kernel gives the same numbers to others' testbeds.
    """

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self._held: list[int] = []

    def note(self, instance: Instance) -> None:
        self.instances.append(instance)
        process = Path("/proc", str(instance.pid))
        paths = [process / "ns" / "pid", process / "ns" / "net"]
        paths += [process / "fd" / str(kinds["net"]) for kinds in instance.namespaces.values()]
        self._held += [os.open(path, os.O_RDONLY) for path in paths]
        assert instance.pid in self._users()

    def _users(self) -> list[int]:
        return _users_of({_identity(Path("/proc/self/fd", str(fd))) for fd in self._held})

    def assert_gone(self) -> None:
        users = self._users()
        for fd in self._held:
            os.close(fd)
        assert users == []
        for instance in self.instances:
            assert not instance.is_alive()
            assert not instance.path.exists()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """For a test to note its testbeds on: when it is over nothing may be left of them."""
    noted = Watch()
    yield noted
    assert noted.instances, "the test noted no testbed"
    noted.assert_gone()
