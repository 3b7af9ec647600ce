"""Programs in C under MPI, natively and with gridcoll in front. Every test asks how many plans ran.

They launch jobs of their own. What is run is compiled here, with the headers that come with wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gridcoll.launch.preload import LIBRARY
from gridcoll.launch.programs import preload_problem
from gridcoll.plan.traces import read_trace
from tests.launch.programs import (
    MPIS,
    TWO_MPIS,
    good,
    needs_compiler,
    planned_of,
    tools_of,
    write_grid,
)

HERE = Path(__file__).parent

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

pytestmark = needs_compiler

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
