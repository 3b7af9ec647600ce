"""One pytest per rank, one voice: rank 0 reports, and what failed on any rank fails on all.

After each phase of each test all ranks compare verdicts. A rank that the others do not follow
within a limit (one fails while the rest wait in a collective) reports alone and aborts the job.

The option `--with-mpi`, the marker `mpi` and `mpi_tmp_path` are those of pytest-mpi, by which alone
every rank would report for itself. ``max_size`` is ours; and what so many ranks cannot do is not
skipped, but deselected: that is nothing anybody should look after.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

    from gridcoll import GridComm

PATIENCE_S = float(os.environ.get("GRIDCOLL_TEST_PATIENCE_S", "20"))
"""How long a rank whose test failed waits for the others to come to the test's end."""


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Without mpiexec nothing here is even imported: importing would start MPI."""
    return None if config.getoption("--with-mpi") else True


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--with-mpi"):
        config.option.timeout_method = "thread"  # a signal does not end a wait inside MPI
        config.pluginmanager.register(_Ranks(config), "gridcoll-ranks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what so many ranks cannot do; the summary counts it as deselected.

    That is what asks for more ranks, or fewer, and layouts of clusters that they do not form.
    """
    ranks = config.pluginmanager.get_plugin("gridcoll-ranks")
    if ranks is None:
        return
    unfit = [item for item in items if not _fits(item, ranks.size)]
    if unfit:
        config.hook.pytest_deselected(items=unfit)
        items[:] = [item for item in items if _fits(item, ranks.size)]


def _fits(item: pytest.Item, size: int) -> bool:
    return all(
        mark.kwargs.get("min_size", 1) <= size <= mark.kwargs.get("max_size", size)
        for mark in item.iter_markers("mpi")
    ) and _has_layout(item, size)


def _has_layout(item: pytest.Item, size: int) -> bool:
    """Whether ``size`` ranks can form the layout that a test's parameter ``layout`` names.

    They cannot either if it is one of the others with them.
    """
    name = item.callspec.params.get("layout") if hasattr(item, "callspec") else None
    if name is None:
        return True
    from tests.mpi.support import SHARED, layouts

    return name.removesuffix(SHARED) in layouts(size)


class _Ranks:
    """Makes the pytests of all ranks act as one."""

    def __init__(self, config: pytest.Config) -> None:
        from mpi4py import MPI  # not before: importing it starts MPI

        self._config = config
        self._mpi: Any = MPI
        self._comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._hidden: io.StringIO | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        if self.rank:
            self._hidden = io.StringIO()
            self._reporter._tw._file = self._hidden

    @property
    def _reporter(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        failed = bytearray(self.size)
        failed[self.rank] = report.outcome == "failed"
        request = self._comm.Iallgather(self._mpi.IN_PLACE, [failed, self._mpi.BYTE])
        if not self._all_came(request, report):
            self._alone(report)
        if any(failed):
            self._share(report, [rank for rank in range(self.size) if failed[rank]])
        return report

    def _all_came(self, request: MPI.Request, report: pytest.TestReport) -> bool:
        # A rank that passed waits as long as pytest-timeout lets it.
        limit_s = PATIENCE_S if report.outcome == "failed" else float("inf")
        since, pause_s = time.monotonic(), 1e-5
        while not request.Test():
            if time.monotonic() - since > limit_s:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 2e-4)
        return True

    def _share(self, report: pytest.TestReport, failed: list[int]) -> None:
        texts = self._comm.allgather(report.longreprtext if self.rank in failed else "")
        if self.rank not in failed:
            report.longrepr = "\n".join(
                f"rank {rank} of {self.size} failed:\n{texts[rank]}" for rank in failed[:1]
            )
            report.outcome = "failed"
        report.sections.append(("Ranks", f"failed on {failed} of {self.size} ranks"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that one rank cannot load is no test that others could run."""
        if report.failed and self.size > 1:
            self._alone(report)

    def _alone(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Say what failed here, close as pytest does, and end the job."""
        time.sleep(0.3 * self.rank)  # let the lowest failing rank speak for all
        out = sys.__stdout__ or sys.stdout
        out.write(f"\nrank {self.rank} of {self.size} failed, the others wait: {report.nodeid}\n")
        out.write(f"{report.longreprtext}\n")
        reporter = self._reporter
        reporter._tw._file = out
        kind = "failed" if report.when == "call" else "error"
        reporter.stats.setdefault(kind, []).append(report)
        reporter.short_test_summary()
        reporter.summary_stats()
        out.flush()
        self._comm.Abort(1)
        os._exit(1)

    def pytest_terminal_summary(self) -> None:
        """Add how many passed to the file that `make test-mpi` sums up."""
        tally = os.environ.get("GRIDCOLL_TEST_TALLY")
        if tally and self.rank == 0:
            with Path(tally).open("a", encoding="ascii") as file:
                file.write(f"{len(self._reporter.stats.get('passed', ()))}\n")

    def pytest_unconfigure(self) -> None:
        self._comm.Free()


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    """What one test's communicators know is not for the next test's."""
    from gridcoll.measure.find_model import forget_all

    forget_all()


@pytest.fixture
def world() -> Generator[MPI.Intracomm, None, None]:
    """A duplicate of COMM_WORLD for one test."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    yield comm
    if comm != MPI.COMM_NULL:
        comm.Free()


@pytest.fixture
def n_planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many plans this rank ran."""
    from gridcoll.comm.context import Context  # an import that fails must fail a test

    count = count_repeated(monkeypatch)

    def counting(run: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: object) -> None:
            count[0] += 1
            run(*args)

        return counted

    monkeypatch.setattr(Context, "run", counting(Context.run))
    return count


@pytest.fixture
def n_repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of this rank's calls were known to be plans, and ran unread."""
    return count_repeated(monkeypatch)


def count_repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls entered into a fast path from now on ran by it."""
    from gridcoll.engine.repeat import Repeat

    count = [0]
    plain = Repeat.function.fget
    assert plain is not None

    def counted(self: Repeat) -> Callable[..., None]:
        read = self._keep_alive[1]

        def missed(*args: object) -> None:
            count[0] -= 1
            read(*args)

        self._state.read = id(missed)
        again = plain(self)

        def counting(*args: object) -> None:
            count[0] += 1
            again(*args)

        counting.kept = missed  # type: ignore[attr-defined]
        return counting

    monkeypatch.setattr(Repeat, "function", property(counted))
    return count


@pytest.fixture
def n_beside(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many plans this rank started to run beside the application."""
    from gridcoll.comm.channel import Bands

    count = [0]
    start = Bands.start

    def counting(self: Bands, *args: Any) -> MPI.Request:
        count[0] += 1
        return start(self, *args)

    monkeypatch.setattr(Bands, "start", counting)
    return count


@pytest.fixture
def n_prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many persistent requests of this rank are ours."""
    from gridcoll.comm.channel import Bands

    count = [0]
    prepare = Bands.prepare

    def counting(self: Bands, *args: Any) -> MPI.Prequest:
        count[0] += 1
        return prepare(self, *args)

    monkeypatch.setattr(Bands, "prepare", counting)
    return count


@pytest.fixture(scope="module")
def grids() -> Generator[Callable[[str], GridComm], None, None]:
    """Ours over all ranks, by name of layout, made at the first test of a module that asks.

    After a name may follow `support.SHARED`.
    """
    from mpi4py import MPI

    from tests.mpi.support import SHARED, grid_comm, layouts, shared_hosts

    labels = layouts(MPI.COMM_WORLD.Get_size())
    made: dict[str, GridComm] = {}
    with ExitStack() as stack:

        def find(layout: str) -> GridComm:
            if layout not in made:
                clusters = labels[layout.removesuffix(SHARED)]
                hosts = shared_hosts(clusters) if layout.endswith(SHARED) else ()
                comm = grid_comm(MPI.COMM_WORLD, clusters, hosts=hosts)
                made[layout] = stack.enter_context(comm)
            return made[layout]

        yield find


@pytest.fixture(params=[True, False], ids=["packed", "by type"])
def packs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether `Alltoallv` packs blocks with gaps, whatever suits this library."""
    from gridcoll.comm.methods import alltoallv

    monkeypatch.setattr(alltoallv, "PACKS", request.param)
    return bool(request.param)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of plain mpi4py's methods ran on behalf of variants, on this rank."""
    from mpi4py import MPI

    from gridcoll.engine import natives as variants

    names: list[str] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            plain = getattr(MPI.Intracomm, name)
            return lambda *args: names.append(name) or plain(*args)

    monkeypatch.setattr(variants, "MPI", SimpleNamespace(Intracomm=Recorder(), BYTE=MPI.BYTE))
    return names
