"""Programs in C under MPI, natively and with gridcoll in front. Every test asks how many plans ran.

They launch jobs of their own. What is run is compiled here, with the headers that come with wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gridcoll.launch.preload import LIBRARY
from gridcoll.launch.programs import find_libpython, find_program, preload_problem
from gridcoll.plan.traces import read_trace
from tests.launch.programs import (
    Done,
    Toolchain,
    has_compiler,
    planned_of,
    toolchain,
    write_grid,
)

HERE = Path(__file__).parent
MPIS = ("mpich", "openmpi", "impi")
TWO_MPIS = ("mpich", pytest.param("openmpi", marks=pytest.mark.long))

LEAKING = """
#include <mpi.h>
#include <stdlib.h>
char *volatile lost;
int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    lost = malloc(12345);
    lost = NULL;
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Finalize();
}
"""

NAMESAKES = """
#include <mpi.h>
#include <stdio.h>
int mpi = 1, python = 1, inside = 1, n_called;
void start(void) { n_called++; }
void finish(void) { n_called++; }
void *find_comm(void) { n_called++; return NULL; }
int main(int argc, char **argv)
{
    int rank, data = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    data = rank ? 0 : 7;
    MPI_Bcast(&data, 1, MPI_INT, 0, MPI_COMM_WORLD);
    printf("%d %d\\n", data, mpi + python + inside);
    MPI_Finalize();
    return n_called;
}
"""
"""A program whose functions and variables have the names of some of the library's own."""

# Without the library, of which a compiler was to make one, they fail.
pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def tools_of(mpi: str) -> Toolchain:
    tools = toolchain(mpi)
    if not tools.python.exists() or not tools.include.exists():
        pytest.skip(f"needs the environment of {mpi}, with its headers")
    return tools


@pytest.fixture
def build(folder: Path) -> Callable[..., Path]:
    """Build a file beside this one, once per MPI."""

    def build_one(tools: Toolchain, name: str) -> Path:
        path = folder / f"{name}-{tools.mpi}"
        return (
            path
            if path.exists()
            else tools.build((HERE / f"{name}.c").read_text(), folder, path.name)
        )

    return build_one


def good(done: Done | None) -> Done:
    assert done is not None, "the job does not end"
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-4000:])
    return done


PAIRS = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank;
    struct { double value; int place, gap; } mine = {0, 0, 0}, least = {0, 0, 7};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    mine.value = rank ? rank : -1, mine.place = rank;
    for (int k = 0; k < 4; k++)
        MPI_Allreduce(&mine, &least, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
    if (!rank)
        printf("%g %d %d\\n", least.value, least.place, least.gap);
    return MPI_Finalize();
}
"""


class TestCollectives:
    @pytest.mark.long
    @pytest.mark.parametrize("mpi", MPIS)
    @pytest.mark.parametrize("n_ranks", [2, 3, 4])
    def test_all_of_them(self, build, mpi, n_ranks) -> None:
        tools = tools_of(mpi)
        done = good(tools.run(n_ranks, build(tools, "everything"), forced=True, limit_s=120))
        assert done.stdout == "right\n"
        counts = planned_of(done)
        for name in ("Bcast", "Reduce", "Allreduce", "Gather", "Scatter", "Allgather", "Alltoall"):
            assert counts[name][0] > 0, name
        for name in (
            "Gatherv",
            "Scatterv",
            "Allgatherv",
            "Alltoallv",
            "Alltoallw",
            "Reduce_scatter",
        ):
            assert counts[name][2] > 0, name

    def test_all_of_them_once(self, build) -> None:
        tools = tools_of("mpich")
        done = good(tools.run(3, build(tools, "everything"), forced=True, limit_s=120))
        assert done.stdout == "right\n"
        counts = planned_of(done)
        assert counts["all"][0] > 0
        # Types with gaps as well, but for MPI_BOTTOM and where there is something to be said.
        assert counts["Bcast"][0] > counts["Bcast"][2] == 2

    def test_pairs_with_gaps_run_through_python(self, folder) -> None:
        """MPI_DOUBLE_INT has one behind its place, which must stay as it is."""
        tools = tools_of("mpich")
        path, source = folder / "pairs", folder / "pairs.c"
        source.write_text(PAIRS)
        assert not tools.link([str(source), "-o", str(path)]).returncode
        done = good(tools.run(3, path, forced=True))
        assert done.stdout == "-1 0 7\n"
        assert planned_of(done)["Allreduce"] == (0, 0, 4)

    @pytest.mark.long
    def test_compared_between_ranks(self, build, tmp_path) -> None:
        """With GRIDCOLL_CHECK every call goes through Python."""
        tools = tools_of("mpich")
        options = ["--stats", "--check", "--force", "grid", "--grid", write_grid(tmp_path, 3)]
        done = good(tools.run(3, build(tools, "everything"), options=options, limit_s=200))
        assert done.stdout == "right\n"
        planned, _, through_python = planned_of(done)["all"]
        assert planned == 0
        assert through_python > 100

    def test_without_a_grid_to_gain_on_all_is_native(self, build, tmp_path) -> None:
        tools = tools_of("mpich")
        options = ["--stats", "--force", "native", "--grid", write_grid(tmp_path, 2)]
        done = good(tools.run(2, build(tools, "everything"), options=options))
        assert done.stdout == "right\n"
        planned, native, through_python = planned_of(done)["all"]
        assert (planned, through_python) == (0, 0)
        assert native > 100


class TestLifetime:
    @pytest.mark.long
    def test_a_checker_of_memory_starts_and_finds_nothing(self, folder) -> None:
        tools = tools_of("mpich")
        path = folder / "checked"
        options = ["-fsanitize=address", str(HERE / "everything.c"), "-o", str(path)]
        if tools.link(options).returncode:
            pytest.skip("needs AddressSanitizer")
        done = good(tools.run(2, path, forced=True, limit_s=120))  # natively there is no leak, too
        assert done.stdout == "right\n"
        assert planned_of(done)["all"][0] > 100

    @pytest.mark.long
    def test_a_checker_of_memory_finds_what_the_program_does_not_free(self, folder) -> None:
        tools = tools_of("mpich")
        path, source = folder / "leaking", folder / "leaking.c"
        source.write_text(LEAKING)
        if tools.link(["-fsanitize=address", str(source), "-o", str(path)]).returncode:
            pytest.skip("needs AddressSanitizer")
        done = tools.run(2, path, forced=True)
        assert done is not None
        assert done.returncode
        assert planned_of(done)["all"][0] == 1
        assert "12345 byte(s) leaked in 1 allocation" in done.stderr

    @pytest.mark.long
    def test_a_hundred_thousand_calls_take_no_memory(self, build) -> None:
        tools = tools_of("mpich")
        done = good(tools.run(2, build(tools, "lifetime"), ["calls"], forced=True, limit_s=200))
        assert planned_of(done)["Bcast"][0] >= 100_000
        grown_kb = int(done.stdout.split()[-1])
        assert grown_kb < 2000

    @pytest.mark.long
    @pytest.mark.parametrize("mpi", TWO_MPIS)
    def test_many_communicators(self, build, mpi) -> None:
        tools = tools_of(mpi)
        done = good(tools.run(3, build(tools, "lifetime"), ["comms"], forced=True, limit_s=200))
        assert done.stdout.startswith("right")
        assert planned_of(done)["Allreduce"][0] >= 300

    @pytest.mark.parametrize("mpi", TWO_MPIS)
    def test_what_is_freed_is_forgotten_however_that_is_done(self, build, mpi) -> None:
        tools = tools_of(mpi)
        done = good(tools.run(3, build(tools, "lifetime"), ["frees"], forced=True, limit_s=60))
        assert done.stdout.startswith("right"), done.stderr
        assert planned_of(done)["Allreduce"][0] > 0

    def test_kinds_beyond_what_is_kept(self, build) -> None:
        tools = tools_of("mpich")
        done = good(tools.run(2, build(tools, "lifetime"), ["kinds"], forced=True, limit_s=100))
        assert done.stdout.startswith("right")
        assert planned_of(done)["Bcast"][0] >= 600

    @pytest.mark.parametrize("mpi", TWO_MPIS)
    def test_threads(self, build, mpi) -> None:
        tools = tools_of(mpi)
        done = good(tools.run(2, build(tools, "lifetime"), ["threads"], forced=True, limit_s=100))
        assert done.stdout.startswith("right")
        assert planned_of(done)["Allreduce"][0] >= 400

    @pytest.mark.parametrize("mpi", TWO_MPIS)
    def test_the_applications_handler_of_errors_is_called_once(self, build, mpi) -> None:
        tools = tools_of(mpi)
        done = good(tools.run(2, build(tools, "lifetime"), ["errors"], forced=True, limit_s=60))
        assert done.stdout.startswith("right")
        assert planned_of(done)["Bcast"][0] > 0

    @pytest.mark.parametrize("mpi", TWO_MPIS)
    def test_handlers_that_do_not_return(self, build, mpi) -> None:
        """All ranks go on as before, though one has left MPI by a jump."""
        tools = tools_of(mpi)
        done = good(tools.run(2, build(tools, "lifetime"), ["jumps"], forced=True, limit_s=60))
        assert done.stdout.startswith("right")
        assert planned_of(done)["Allreduce"][0] >= 200

    @pytest.mark.parametrize("mpi", TWO_MPIS)
    @pytest.mark.parametrize("kind", ["windows", "shared windows"])
    def test_others_reach_the_windows_of_a_rank_that_waits(self, build, mpi, kind) -> None:
        """It looks often: MPI may need to be called for what others do there."""
        tools = tools_of(mpi)
        done = good(tools.run(2, build(tools, "lifetime"), [kind], forced=True, limit_s=60))
        assert done.stdout.startswith("right"), done.stderr
        assert planned_of(done)["Barrier"][0] >= 2

    def test_it_leaves_its_trace(self, build, tmp_path) -> None:
        """For the report: what was decided and sent, on communicators that were freed as well."""
        tools = tools_of("mpich")
        options = ["--stats", "--force", "grid", "--grid", write_grid(tmp_path, 3)]
        options += ["--trace", str(tmp_path / "traced")]
        done = good(tools.run(3, build(tools, "lifetime"), ["threads"], options=options))
        assert planned_of(done)["Allreduce"][0] >= 400
        trace = read_trace(tmp_path / "traced")
        assert (trace.n_ranks, trace.n_files) == (3, 3)
        assert {"bcast", "allreduce"} <= {choice.collective for choice, _ in trace.choices}
        crossed = {(each.sender, each.receiver): each.n_bytes for each in trace.sent}
        assert min(crossed["a", "b"], crossed["b", "a"]) >= 400 * 8

    def test_what_it_leaves_alone(self, build, monkeypatch) -> None:
        """Intercommunicators, Scan, locale and handlers of signals, environment."""
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        tools = tools_of("mpich")
        done = good(tools.run(3, build(tools, "lifetime"), ["alone"], forced=True, limit_s=60))
        assert done.stdout.startswith("right")
        assert planned_of(done)["Bcast"][0] > 0


BREAKS = {
    "no library of Python": ("GRIDCOLL_LIBPYTHON=/nowhere", "no Python library"),
    "a library that is none": ("GRIDCOLL_LIBPYTHON=libc.so.6", "no Python library that"),
    "not told where": ("GRIDCOLL_LIBPYTHON=", "GRIDCOLL_LIBPYTHON is not set"),
    "a Python without packages": ("GRIDCOLL_PYTHON=/nowhere", "cannot be loaded"),
    "another setting": ("GRIDCOLL_FORCE=native", "DisagreementError"),
}


class TestNeverWorse:
    @pytest.mark.parametrize("mpi", TWO_MPIS)
    @pytest.mark.parametrize("how", BREAKS)
    def test_one_rank_that_cannot(self, build, tmp_path, how, mpi) -> None:
        if mpi == "openmpi" and how not in ("no library of Python", "a Python without packages"):
            pytest.skip("the same in every MPI")
        tools = tools_of(mpi)
        setting, says = BREAKS[how]
        wrapper = tmp_path / "wrapper.sh"
        wrapper.write_text(
            "#!/bin/sh\n"
            "rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}}\n"
            f"[ $rank = 1 ] && export {setting}\n"
            'exec "$@"\n'
        )
        wrapper.chmod(0o755)
        program = build(tools, "lifetime")
        options = ["--stats", "--force", "grid", "--grid", write_grid(tmp_path, 3)]
        done = good(tools.run(3, wrapper, [str(program), "calm"], options=options))
        assert done.stdout.startswith("right")
        lines = [line for line in done.stderr.splitlines() if "without gridcoll" in line]
        assert len(lines) == 1, done.stderr
        assert says in lines[0]
        assert planned_of(done)["all"][0] == 0
        assert planned_of(done)["all"][1] > 0

    def test_one_rank_starts_no_interpreter(self, build, tmp_path) -> None:
        """As processes that are spawned one by one; a Python that cannot be used is not missed."""
        tools = tools_of("mpich")
        wrapper = tmp_path / "wrapper.sh"
        wrapper.write_text('#!/bin/sh\nexport GRIDCOLL_PYTHON=/nowhere\nexec "$@"\n')
        wrapper.chmod(0o755)
        program = build(tools, "lifetime")
        done = good(tools.run(1, wrapper, [str(program), "calm"], options=["--stats"]))
        assert done.stdout.startswith("right")
        assert "without gridcoll" not in done.stderr
        planned, native, through_python = planned_of(done)["all"]
        assert (planned, through_python) == (0, 0)
        assert native > 0

    def test_a_program_without_mpi(self, tmp_path) -> None:
        tools = tools_of("mpich")
        command = [str(tools.python), "-m", "gridcoll", "run", "--stats", "true"]
        done = subprocess.run(
            command,
            env=tools.environment({}),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    @pytest.mark.parametrize("given", ["./named", "named"])
    def test_a_program_has_the_name_it_was_given(self, tmp_path, given) -> None:
        """One that starts itself again needs it; given without a folder it is on the path."""
        source, target = tmp_path / "named.c", tmp_path / "named"
        source.write_text(
            "#include <stdio.h>\nint main(int n, char **a) { return n != 2 || !puts(a[0]); }\n"
        )
        subprocess.run(["gcc", str(source), "-o", str(target)], check=True)
        tools = tools_of("mpich")
        folder = tmp_path if given == "./named" else tmp_path.parent
        done = subprocess.run(
            [str(tools.python), "-m", "gridcoll", "run", given, "word"],
            env=tools.environment({"PATH": f"{tmp_path}:{os.environ['PATH']}"}),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, f"{given}\n")

    def test_a_program_whose_names_are_ours(self, tmp_path) -> None:
        """Other libraries see the names of a program that is linked with -rdynamic."""
        tools = tools_of("mpich")
        source, target = tmp_path / "namesakes.c", tmp_path / "namesakes"
        source.write_text(NAMESAKES)
        built = tools.link(["-rdynamic", str(source), "-o", str(target)])
        assert not built.returncode, built.stderr
        done = good(tools.run(2, target, forced=True))
        assert done.stdout == 2 * "7 3\n"
        assert planned_of(done)["Bcast"][0] == 1

    def test_the_library_has_no_names_that_others_may_have(self) -> None:
        names = subprocess.run(
            ["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True
        )
        defined = [line.split()[-1] for line in names.stdout.splitlines()]
        assert "MPI_Bcast" in defined
        own = ("MPI_", "PMPI_", "Py_", "gridcoll_")
        assert [name for name in defined if not name.startswith(own)] == []

    def test_a_static_program(self, tmp_path) -> None:
        source, target = tmp_path / "a.c", tmp_path / "a"
        source.write_text("int main(void) { return 7; }\n")
        built = subprocess.run(
            ["gcc", "-static", str(source), "-o", str(target)], capture_output=True, check=False
        )
        if built.returncode:
            pytest.skip("no static C library")
        tools = tools_of("mpich")
        command = [str(tools.python), "-m", "gridcoll", "run", str(target)]
        done = subprocess.run(
            command,
            env=tools.environment({}),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 7
        assert done.stderr.count("\n") == 1
        assert "statically linked" in done.stderr

    def test_a_program_with_mpi_inside(self, tmp_path) -> None:
        """Told from one that wraps MPI's functions, in front of which gridcoll can be."""
        inside = "int PMPI_Init(void) { return 0; }\n"
        outside = "__attribute__((weak)) extern int PMPI_Init(void);\n"
        for name, text in {"inside": inside, "outside": outside}.items():
            source = tmp_path / f"{name}.c"
            source.write_text(
                f"{text}int MPI_Init(void) {{ return PMPI_Init(); }}\n"
                "int main(int argc, char **argv) { return argc > 9 ? MPI_Init() : 0; }\n"
            )
            subprocess.run(["gcc", str(source), "-o", str(tmp_path / name)], check=True)
        assert "MPI library inside" in preload_problem(tmp_path / "inside")
        assert preload_problem(tmp_path / "outside") == ""

    def test_an_mpi_that_nobody_knows(self, tmp_path) -> None:
        """The first rank says so, and all is native."""
        for name, text in {"mpi": UNKNOWN_MPI, "app": OF_UNKNOWN_MPI}.items():
            (tmp_path / f"{name}.c").write_text(text)
        library, program = tmp_path / "libmpi-unknown.so", tmp_path / "app"
        for command in (
            ["gcc", "-shared", "-fPIC", str(tmp_path / "mpi.c"), "-o", str(library)],
            ["gcc", str(tmp_path / "app.c"), str(library), "-o", str(program)],
        ):
            subprocess.run(command, check=True)
        tools = tools_of("mpich")
        for rank, n_lines in (("0", 1), ("1", 0)):
            done = subprocess.run(
                [str(tools.python), "-m", "gridcoll", "run", "--stats", str(program)],
                env=tools.environment({"PMI_RANK": rank}),
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert (done.returncode, done.stdout) == (0, "right\n")
            assert done.stderr.count("does not know; it runs without gridcoll") == n_lines
            assert planned_of(done)["Barrier"] == (0, 1, 0)

    def test_a_set_uid_program(self, tmp_path) -> None:
        path = Path(shutil.copy(shutil.which("true") or "", tmp_path))
        path.chmod(0o4755)
        assert "set-uid" in preload_problem(path)


class TestLaunching:
    def test_what_is_a_program(self, tmp_path, monkeypatch) -> None:
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

    def test_settings_for_a_shell(self, build, tmp_path) -> None:
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
    def test_a_profiler_in_front(self, build, tmp_path, mpi) -> None:
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
    def test_below_python(self, tmp_path, mpi, has_mpi4py) -> None:
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
    def test_a_python_of_the_programs_own(self, tmp_path, how) -> None:
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
    def test_a_python_that_a_plug_in_brings(self, build, how, level) -> None:
        """A Python that is loaded after MPI was started is the one that gridcoll started. To the
        program it is not started yet; when it starts it, it holds its lock, at any thread level."""
        tools = tools_of("mpich")
        library = {"LIBRARY": str(find_libpython())}
        done = good(
            tools.run(3, build(tools, "plugged"), [how, str(level)], forced=True, variables=library)
        )
        assert done.stdout == "right\n"
        assert planned_of(done)["Barrier"][:2] == (3, 0)

    def test_python_with_the_library_alone(self, tmp_path) -> None:
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


UNKNOWN_MPI = """
#define BOTH(name, parameters) \\
    int MPI_##name parameters { return 0; } int PMPI_##name parameters { return 0; }
BOTH(Init, (void *a, void *b))
BOTH(Finalize, (void))
BOTH(Barrier, (void *comm))
"""

OF_UNKNOWN_MPI = """
#include <stdio.h>
extern int MPI_Init(void *, void *), MPI_Finalize(void), MPI_Barrier(void *);
int main(void)
{
    if (MPI_Init(NULL, NULL) || MPI_Barrier(NULL))
        return 1;
    puts("right");
    return MPI_Finalize();
}
"""

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
