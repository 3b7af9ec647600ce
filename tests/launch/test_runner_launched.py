"""``gridcoll run`` under mpiexec: the swapped world, aborts, and grids that cannot be had.

These launch jobs of their own, since it is the job's end that matters.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gridcoll.plan.traces import read_trace

GRID = """
version = 1
name = "three"
clusters = [{ name = "a", ranks = 2 }, { name = "b", ranks = 1 }]
links = [{ between = ["a", "b"], latency = "5 ms", rate = "10 Mbit/s" }]
"""

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def run(launch: Callable[..., Done], tmp_path: Path) -> Callable[..., Done]:
    """Run ``source`` on three ranks under ``gridcoll run``."""
    (tmp_path / "grid.toml").write_text(GRID)

    def run_source(source: str, *options: str, application: Sequence[str] = ()) -> Done:
        (tmp_path / "app.py").write_text(source)
        return launch(3, "-m", "gridcoll", "run", *options, "app.py", *application)

    return run_source


SWAPPED = """
import copy, pickle, sys
import mpi4py
assert "mpi4py.MPI" not in sys.modules
mpi4py.rc.thread_level = "single"
from mpi4py.MPI import COMM_WORLD
from mpi4py import MPI
import gridcoll
world = MPI.COMM_WORLD
assert world is COMM_WORLD and isinstance(world, gridcoll.GridComm)
assert type(world).__module__ == type(MPI.COMM_SELF).__module__ == MPI.__name__
assert MPI.Query_thread() == MPI.THREAD_SINGLE
for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    assert pickle.loads(pickle.dumps([world], protocol))[0] is world
assert copy.copy(world) is world and copy.deepcopy({1: world})[1] is world
world.free()
assert world != MPI.COMM_NULL and world.size == 3 and world.bcast(world.rank, 2) == 2
assert [len(cluster) for cluster in world.grid.clusters] == [2, 1]
assert world.explain("bcast", nbytes=9).winner.name == "chain"
try:
    world.Free()
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_COMM
else:
    raise SystemExit("a world was freed")
assert world.bcast("still there", 1) == "still there"
assert pickle.loads(pickle.dumps(MPI.COMM_SELF)) is MPI.COMM_SELF
from gridcoll.launch.world import _ORIGINAL  # what a library may have kept from before
assert _ORIGINAL is not world and pickle.loads(pickle.dumps(_ORIGINAL)) is world
child = world.Dup()
assert isinstance(child, gridcoll.GridComm)
try:
    pickle.dumps(child)
except Exception:
    child.Free()
else:
    raise SystemExit("a duplicate was pickled as if it were the world")
assert child == MPI.COMM_NULL
sys.stdout.write("fine\\n")
"""


def test_the_swapped_world(run: Callable[..., Done]) -> None:
    done = run(SWAPPED, "--grid", "grid.toml", "--check", "--bcast=chain")
    assert (done.stdout.split(), done.stderr, done.returncode) == (["fine"] * 3, "", 0)


def test_a_setting_that_is_misspelt_is_said_once(
    run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_BCST", "flat")
    done = run("from mpi4py import MPI; MPI.COMM_WORLD.barrier()", "--grid", "grid.toml")
    assert (done.stderr, done.returncode) == (
        "gridcoll: GRIDCOLL_BCST is no setting; GRIDCOLL_BCAST is\n",
        0,
    )


LATE = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
import gridcoll
assert not MPI.Is_initialized()
world = MPI.COMM_WORLD
MPI.Init_thread(MPI.THREAD_SERIALIZED)
assert world is MPI.COMM_WORLD and len(world.grid.clusters) == 2
assert world.bcast(world.rank, 1) == 1
MPI.Finalize()
"""


def test_an_application_that_starts_mpi_itself(run: Callable[..., Done]) -> None:
    done = run(LATE, "--grid", "grid.toml")
    assert (done.stderr, done.returncode) == ("", 0)


BELOW = """
import ctypes, glob, os, re, sys
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
if "with mpi4py" in sys.argv:
    from mpi4py import MPI
maps = open("/proc/self/maps").read()
found = re.findall(r"/\\S*/libmpi\\w*\\.so\\S*", maps)  # mpi4py's, if it is there
path = found[0] if found else sorted(glob.glob(os.path.join(sys.prefix, "lib", "libmpi.so.*")))[0]
library = ctypes.CDLL(path)
if "idle" not in sys.argv:
    assert library.MPI_Init(None, None) == 0
    if "with mpi4py" in sys.argv:
        assert MPI.COMM_WORLD.allreduce(1) == 3
    assert library.MPI_Finalize() == 0
"""


@pytest.mark.parametrize("application", [(), ("with mpi4py",)])
def test_mpi_that_a_library_starts_is_native_and_said_to_be(
    run: Callable[..., Done], application: tuple[str, ...]
) -> None:
    done = run(BELOW, "--grid", "grid.toml", application=application)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("all collectives ran natively; gridcoll run --preload serves") == 1


def test_an_mpi_library_that_nobody_starts_is_no_matter(run: Callable[..., Done]) -> None:
    done = run(BELOW, "--grid", "grid.toml", application=["idle"])
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("grid", "why"),
    [
        ("three-sits", "no such file, and no named grid; known are three-sites, three-sites-8"),
        ("export.json", "it is an export of a cache, for gridcoll cache import"),
    ],
)
def test_a_grid_that_cannot_be_had_is_all_that_is_said(
    run: Callable[..., Done], tmp_path: Path, grid: str, why: str
) -> None:
    (tmp_path / "export.json").write_text('{"format":"gridcoll-cache","version":1,"entries":[]}')
    done = run("from mpi4py import MPI", "--grid", grid)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("gridcoll: ")
    assert line.endswith(f"{grid}: {why}") or line.endswith(f"{grid}': {why}")


TRACED = """
from mpi4py import MPI
import numpy as np
half = MPI.COMM_WORLD.Dup()
for _ in range(3):
    MPI.COMM_WORLD.Bcast(np.ones(5000), 1)
    half.Allreduce(MPI.IN_PLACE, np.ones(7))
half.Free()
"""


def test_a_job_leaves_its_trace(run: Callable[..., Done], tmp_path: Path) -> None:
    """Of all communicators, also of those that are freed; bytes are those that a plan sends."""
    done = run(TRACED, "--grid", "grid.toml", "--trace", "traced", "--force", "grid")
    assert (done.stderr, done.returncode) == ("", 0)
    trace = read_trace(tmp_path / "traced")
    assert (trace.n_ranks, trace.n_files) == (3, 3)
    assert trace.model.grid.cluster_of == (0, 0, 1)
    decided = {choice.collective: choice for choice, n_ranks in trace.choices if n_ranks == 3}
    assert {"bcast", "allreduce"} <= decided.keys()
    assert decided["bcast"].root == 1
    crossed = {(each.sender, each.receiver): each.n_bytes for each in trace.sent}
    assert crossed["a", "b"] >= 3 * 40_000
    assert crossed["b", "a"] >= 3 * 56


def test_where_no_trace_can_be_left_is_said_before_the_job(run: Callable[..., Done]) -> None:
    done = run(TRACED, "--grid", "grid.toml", "--trace", "app.py")
    assert done.returncode
    assert done.stderr.count("GRIDCOLL_TRACE: cannot write") == 1


FAILING = """
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    {failing}
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize(
    ("failing", "code", "says"),
    [("raise LookupError('gone')", 1, "LookupError: gone"), ("raise SystemExit(7)", 7, "")],
)
def test_a_failing_rank_ends_the_job(
    run: Callable[..., Done], failing: str, code: int, says: str
) -> None:
    done = run(FAILING.format(failing=failing), "--grid", "grid.toml")
    assert done.returncode == code
    assert done.stderr.count("Traceback") == (1 if says else 0)
    assert says in done.stderr
    assert "gridcoll" not in done.stderr  # the traceback begins in the application


STUBBORN = """
try:
    from mpi4py import MPI
except Exception:
    MPI = None
print("went on without it")
"""


def test_a_grid_that_does_not_fit_is_said_once(run: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "large.toml").write_text(GRID.replace("ranks = 2", "ranks = 5"))
    done = run(STUBBORN, "--grid", "large.toml")
    assert done.returncode == 2
    assert done.stderr.count("gridcoll: FileError: grid file") == 1
    assert "it describes ranks 0..5, the job has 3 ranks" in done.stderr
    assert done.stdout == ""


KEEPING = """
import os, sys
os.chdir(os.path.dirname(os.__file__))
from mpi4py import MPI
sys.stdout.write(f"{MPI.COMM_WORLD.model.origin}\\n")  # whole, whoever else prints
"""


@pytest.mark.long
def test_what_the_first_run_measured_the_second_one_reads(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    """Wherever the application goes before it imports MPI, by either name of the option."""
    written = []
    for option in ("--cache", "--keep"):
        done = run(KEEPING, option, "kept")
        assert (done.stderr, done.returncode) == ("", 0)
        assert done.stdout.splitlines() == ["measured"] * 3
        (cluster,) = (tmp_path / "kept" / "v1" / "clusters").iterdir()
        written.append(cluster.stat().st_mtime_ns)
    assert written[0] == written[1]
