"""Programs in C launched by a shell's settings, behind profilers, and below or around Python.

They launch jobs of their own. Tests that launch one ask how many plans ran.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gridcoll.launch.preload import LIBRARY
from gridcoll.launch.programs import find_libpython, find_program
from tests.launch.programs import TWO_MPIS, good, needs_compiler, planned_of, tools_of, write_grid

pytestmark = needs_compiler

PROFILER = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
static int n, is_ready;
int MPI_Init(int *argc, char ***argv)
{
    int error = PMPI_Init(argc, argv);
    is_ready = 1;
    return error;
}
int MPI_Initialized(int *flag)
{
    if (!is_ready)
        abort();
    return PMPI_Initialized(flag);
}
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler)
{
    if (!is_ready)
        abort();
    return PMPI_Comm_set_errhandler(comm, handler);
}
int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    puts("profiled a message");
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    n++;
    return PMPI_Bcast(data, count, type, root, comm);
}
int MPI_Finalize(void)
{
    printf("profiled %d\\n", n);
    fflush(stdout);
    return PMPI_Finalize();
}
"""

OWN_PYTHON = """
#include <mpi.h>
#include <stdio.h>
#include <string.h>
extern void Py_Initialize(void), Py_Finalize(void);
extern int Py_IsInitialized(void), PyRun_SimpleString(const char *);
extern int PyImport_AppendInittab(const char *, void *);
int main(int argc, char **argv)
{
    int rank, before = !strcmp(argv[1], "before"), is_user;
    if (before)
        Py_Initialize();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    is_user = !rank || strcmp(argv[1], "one rank");
    MPI_Barrier(MPI_COMM_WORLD);
#ifdef MODULES
    PyImport_AppendInittab("unused", NULL);
#endif
    if (is_user && !before)
        Py_Initialize();
    if (is_user && PyRun_SimpleString("print('right')"))
        return 1;
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_user)
        Py_Finalize();
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Finalize() || (!strcmp(argv[1], "alone") && Py_IsInitialized());
}
"""

BELOW = """
#include <mpi.h>
long total(long mine)
{
    long sum = -1;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}
void begin(void) { MPI_Init(0, 0); }
void end(void) { MPI_Finalize(); }
"""

WITHOUT_MPI4PY = """
import ctypes
below = ctypes.CDLL({library!r})
below.total.argtypes, below.total.restype = [ctypes.c_long], ctypes.c_long
below.begin()
for _ in range(5):
    assert below.total(2) == 6
below.end()
"""

ABOVE = """
import ctypes
from mpi4py import MPI
import numpy as np
from gridcoll import GridComm
from gridcoll.engine.compiled import _library
world = MPI.COMM_WORLD
assert isinstance(world, GridComm)
below = ctypes.CDLL({library!r})
below.total.argtypes, below.total.restype = [ctypes.c_long], ctypes.c_long
for _ in range(5):
    assert below.total(world.rank + 1) == 6
    sums = np.zeros(1)
    world.Allreduce(np.ones(1), sums)
    assert sums[0] == 3
waits = _library().wait
assert waits.longest_pause_ns > waits.first_pause_ns
MPI.Win.Allocate(4, comm=world).Free()  # others may wait for a rank that looks too rarely
assert waits.longest_pause_ns == waits.first_pause_ns
if world.rank == 0:
    print("right")
"""


def test_what_is_a_program(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "app.py": "print()",
        "tool": "#!/usr/bin/env python3\n",
        "job.sh": "#!/bin/sh\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    assert find_program("app.py") is None
    assert find_program("tool") is None
    assert find_program("job.sh") == Path("job.sh")
    assert find_program("gcc") == Path(shutil.which("gcc") or "")
    assert find_program("no-such-program") is None
    assert find_program("./gcc") is None


def test_settings_for_a_shell(build, tmp_path) -> None:
    tools = tools_of("mpich")
    done = subprocess.run(
        [str(tools.python), "-m", "gridcoll", "preload"],
        env=tools.environment({"LD_PRELOAD": ""}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"LD_PRELOAD={LIBRARY}" in done.stdout
    assert "UCX_TCP_KEEPIDLE=inf" in done.stdout
    script = tmp_path / "job.sh"
    program = build(tools, "lifetime")
    script.write_text(f"#!/bin/sh\n{done.stdout}\nexec {program} calm\n")
    script.chmod(0o755)
    variables = {
        "GRIDCOLL_STATS": "1",
        "GRIDCOLL_FORCE": "grid",
        "GRIDCOLL_GRID": write_grid(tmp_path, 2),
    }
    ran = good(tools.run(2, script, variables=variables))
    assert planned_of(ran)["all"][0] > 0


@pytest.mark.parametrize("mpi", TWO_MPIS)
def test_a_profiler_in_front(build, tmp_path, mpi) -> None:
    """It sees the application's calls alone, once it is ready; what it passes on are ours."""
    tools = tools_of(mpi)
    source, library = tmp_path / "profiler.c", tmp_path / "libprofiler.so"
    source.write_text(PROFILER)
    built = tools.compile(["-shared", "-fPIC", str(source), "-o", str(library)])
    assert built.returncode == 0, built.stderr
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD={library}:$LD_PRELOAD exec "$@"\n')
    wrapper.chmod(0o755)
    program = build(tools, "lifetime")
    options = ["--stats", "--force", "grid", "--grid", write_grid(tmp_path, 2)]
    done = good(tools.run(2, wrapper, [str(program), "calm"], options=options))
    assert planned_of(done)["Bcast"] == (1, 0, 0)
    assert "message" not in done.stdout
    assert done.stdout.count("profiled 1\n") == 2  # lines of two ranks may run together


@pytest.mark.parametrize("mpi", TWO_MPIS)
@pytest.mark.parametrize("has_mpi4py", [True, False])
def test_below_python(tmp_path, mpi, has_mpi4py) -> None:
    """A C library's calls are ours, mpi4py's are not handled twice; it may start MPI itself."""
    tools = tools_of(mpi)
    source = tmp_path / "below.c"
    source.write_text(BELOW)
    library = tmp_path / "libbelow.so"
    built = tools.link(["-shared", "-fPIC", str(source), "-o", str(library)])
    assert built.returncode == 0, built.stderr
    app = tmp_path / "app.py"
    above = ABOVE if has_mpi4py else WITHOUT_MPI4PY
    app.write_text(above.format(library=str(library)))
    options = ["--stats", "--force", "grid", "--grid", write_grid(tmp_path, 3)]
    ours = ["-m", "gridcoll", "run", "--preload", *options, str(app)]
    done = good(tools.run(3, tools.python, ours))
    assert done.stdout == ("right\n" if has_mpi4py else "")
    planned, native, through_python = planned_of(done)["Allreduce"]
    assert planned + through_python == 5
    assert native == 0


@pytest.mark.parametrize("how", ["before", "after", "one rank", "with modules", "alone"])
def test_a_python_of_the_programs_own(tmp_path, how) -> None:
    """Started before MPI it serves as long as it lasts; one yet to start, as long as MPI does,
    whether or not all ranks use it; not where the program is to set it up."""
    tools, library = tools_of("mpich"), find_libpython()
    source, program = tmp_path / "own.c", tmp_path / "own"
    source.write_text(OWN_PYTHON)
    linked = [str(source), "-o", str(program), str(library), f"-Wl,-rpath,{library.parent}"]
    built = tools.link([*linked, *(["-DMODULES"] if how == "with modules" else [])])
    assert built.returncode == 0, built.stderr
    path = {"PATH": f"{tools.python.parent}{os.pathsep}{os.environ['PATH']}"}
    n_ranks = 1 if how == "alone" else 3
    expected = {"before": (2, 1), "with modules": (0, 3), "alone": (0, 3)}.get(how, (3, 0))
    done = good(tools.run(n_ranks, program, [how], forced=True, variables=path))
    assert done.stdout.count("right") == (1 if how == "one rank" else n_ranks)
    assert planned_of(done)["Barrier"][:2] == expected
    assert "Error" not in done.stderr
    assert ("a Python of its own" in done.stderr) == (how == "with modules")


@pytest.mark.parametrize("how", ["plain", "by settings"])
@pytest.mark.parametrize("level", [0, 3])
def test_a_python_that_a_plug_in_brings(build, how, level) -> None:
    """A Python that is loaded after MPI was started is the one that gridcoll started. To the
    program it is not started yet; when it starts it, it holds its lock, at any thread level."""
    tools = tools_of("mpich")
    library = {"LIBRARY": str(find_libpython())}
    done = good(
        tools.run(3, build(tools, "plugged"), [how, str(level)], forced=True, variables=library)
    )
    assert done.stdout == "right\n"
    assert planned_of(done)["Barrier"][:2] == (3, 0)


def test_python_with_the_library_alone(tmp_path) -> None:
    """mpi4py's calls are calls like others where the world was not swapped."""
    tools = tools_of("mpich")
    app = tmp_path / "app.py"
    app.write_text(
        "from mpi4py import MPI\nimport numpy as np\n"
        "data = np.full(4, MPI.COMM_WORLD.rank)\n"
        "MPI.COMM_WORLD.Bcast(data, 1)\nassert (data == 1).all()\n"
        "assert MPI.COMM_WORLD.allreduce(2) == 6\n"
        "assert not [name for name in globals() if 'gridcoll' in name]\n"
    )
    program = tmp_path / "job.sh"
    program.write_text(f"#!/bin/sh\nexec {tools.python} {app}\n")
    program.chmod(0o755)
    done = good(tools.run(3, program, forced=True))
    assert planned_of(done)["Bcast"][0] > 0
