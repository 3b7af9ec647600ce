"""Jobs while the network changes: nothing hangs, data are right, decisions follow and return."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gridcoll.testbed.job import Job
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.changes import ChangeSpec

pytestmark = [pytest.mark.testbed, pytest.mark.long]

APP = Path(__file__).with_name("following_app.py")
IDLE_APP = Path(__file__).with_name("idle_app.py")

ENOUGH_CALLS = 12
"""Broadcasts that all ranks know of before something happens: then they know what is usual."""

HANGS_S = 120.0


class Running:
    """A job that makes calls while its testbed changes."""

    def __init__(self, testbed: Testbed, mpi: str, folder: Path) -> None:
        self.testbed, self._folder = testbed, folder
        self._log = folder / "log"
        env = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "GRIDCOLL_LOG": "decisions",
            "GRIDCOLL_CACHE": "off",
        }
        with self._log.open("wb") as log:
            self.process = Job(testbed, mpi).start(
                ["python", str(APP), str(folder)], env=env, stdout=subprocess.PIPE, stderr=log
            )

    def n_calls(self) -> int:
        path = self._folder / "calls"
        return int(path.read_text()) if path.exists() else 0

    def told(self) -> str:
        return self._log.read_text()

    def until(self, true: Callable[[], bool]) -> None:
        """Fails if the job ends, or if it takes so long that it hangs."""
        limit_s = time.monotonic() + HANGS_S
        while not true():
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < limit_s, self.told()
            time.sleep(0.1)

    def goes_on(self, n: int = ENOUGH_CALLS) -> None:
        before = self.n_calls()
        self.until(lambda: not before <= self.n_calls() < before + n)

    def change(self, **what: str | tuple[str, str]) -> None:
        self.testbed.change(self.testbed.spec.change(ChangeSpec(**what)))  # type: ignore[arg-type]

    def finish(self) -> None:
        (self._folder / "enough").touch()
        out, _ = self.process.communicate(timeout=HANGS_S)
        assert (self.process.returncode, out) == (0, b"right\n"), self.told()


@pytest.fixture
def running(
    write_grid: Callable[..., Path], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Running]:
    with Testbed.up(write_grid()) as testbed:
        job = Running(testbed, getattr(request, "param", "mpich"), tmp_path)
        job.until(lambda: job.n_calls() >= ENOUGH_CALLS)
        yield job


LINK = ("left", "right")


@pytest.mark.parametrize(
    ("running", "change", "said"),
    [
        ("mpich", {"latency": "30 ms"}, "times the latency"),
        ("openmpi", {"rate": "4 Mbit/s"}, "times the gap"),
    ],
    indirect=["running"],
)
def test_a_link_that_changes_and_is_back(
    running: Running, change: dict[str, str], said: str
) -> None:
    running.change(link=LINK, **change)
    running.until(lambda: said in running.told())
    before = len(running.told())
    running.goes_on()
    running.change(link=LINK)

    def is_back() -> bool:
        told = running.told()[before:]
        return "links count as they did" in told or said in told

    running.until(is_back)
    running.goes_on()
    running.finish()


@contextmanager
def lasting(mpi: str, grid: Path, folder: Path) -> Iterator[Running]:
    """A job whose data are right to the end, and one beside it whose connections are idle."""
    with Testbed.up(grid) as testbed:
        job = Running(testbed, mpi, folder)
        job.until(lambda: job.n_calls() >= ENOUGH_CALLS)
        # MPICH's probes of what is idle are said to follow one another sooner: else whether they
        # end within the longest cut depends on when the last one before it was.
        env = {**os.environ, "UCX_TCP_KEEPINTVL": "1s"}
        idle = Job(testbed, mpi).start(
            ["python", str(IDLE_APP), str(folder)], env=env, stdout=subprocess.PIPE
        )
        job.until((folder / "met").exists)
        yield job
        job.finish()
        out, _ = idle.communicate(timeout=HANGS_S)
        assert (idle.returncode, out) == (0, b"met again\n")


@pytest.fixture(scope="module")
def lasting_jobs(
    write_grid: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Running]]:
    """Under each MPI, through all of what follows. Together: most of it is waiting."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(lasting(mpi, write_grid(), tmp_path_factory.mktemp(mpi)))
            for mpi in ("mpich", "openmpi")
        ]


@pytest.mark.parametrize(
    "change",
    [
        {"link": LINK, "cut": "5 s"},
        {"link": LINK, "cut": "20 s"},
        {"link": LINK, "loss": "1 %"},
        {"host": "right-1", "rate": "27 Mbit/s"},
    ],
)
def test_jobs_go_on_with_right_data(
    lasting_jobs: list[Running], change: dict[str, str | tuple[str, str]]
) -> None:
    for job in lasting_jobs:
        job.change(**change)
    for job in lasting_jobs:
        job.goes_on()
        job.change(**{name: change[name] for name in change if name in ("link", "host")})
        job.goes_on()
