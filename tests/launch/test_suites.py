"""Others' programs, natively and with plans forced: none may fail that native does not.

What is not in a wheel is looked for where variables say: ``GRIDCOLL_TEST_MPICH_SOURCE`` names an
unpacked source tree of MPICH, ``GRIDCOLL_TEST_DEBIAN`` a folder in which Debian's packages of
MPICH, Open MPI, gfortran, hpcc and ScaLAPACK's tests are unpacked. ``make test-programs`` has both.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.launch.mpich_suite import (
    DIALECTS,
    Summary,
    Verdict,
    build_c,
    build_fortran,
    programs_of,
    run_suite,
)
from tests.launch.programs import VENVS, fortran_of, needs_compiler, planned_of, toolchain

pytestmark = needs_compiler

HERE = Path(__file__).parent
SOURCE = Path(os.environ.get("GRIDCOLL_TEST_MPICH_SOURCE", "/nowhere"))
DEBIAN = os.environ.get("GRIDCOLL_TEST_DEBIAN", "")
IMB = VENVS / "impi" / "bin" / "IMB-MPI1"
EVERY_PROGRAM = bool(os.environ.get("GRIDCOLL_TEST_EVERY_PROGRAM"))
N_RANKS = 4
LIMIT_S = 60.0

needs_source = pytest.mark.skipif(
    not SOURCE.exists(), reason="GRIDCOLL_TEST_MPICH_SOURCE names no source tree of MPICH"
)
needs_debian = pytest.mark.skipif(
    not DEBIAN or fortran_of(Path(DEBIAN)) is None,
    reason="GRIDCOLL_TEST_DEBIAN names no folder with Debian's MPIs and gfortran",
)


N_SHARES = 12
"""Each program takes seconds to start with plans: one share of them per MPI is what fits."""


def share_of(mpi: str) -> slice:
    """Every twelfth program, others on MPICH than on Open MPI; all on both if asked for."""
    if EVERY_PROGRAM:
        return slice(None)
    return slice(N_SHARES // 2 if mpi.endswith("openmpi") else 0, None, N_SHARES)


class TestTheChecker:
    def test_what_it_rejects(self) -> None:
        good = Verdict("a", "passes", n_planned=3)
        assert not Summary([good]).problems()
        assert not Summary([good, Verdict("b", "ends with 1", "ends with 1")]).problems()
        assert Summary([good, Verdict("b", "does not end", "passes", 2)]).problems()
        assert Summary([Verdict("b", "passes")]).problems() == ["no call was a plan"]
        assert Summary([Verdict("b", "ends with 1", "ends with 1", 1)]).problems()

    def test_shares(self) -> None:
        programs = list(range(178))  # as many as MPICH has in C
        of_mpich, of_openmpi = programs[share_of("mpich")], programs[share_of("openmpi")]
        assert of_mpich == programs if EVERY_PROGRAM else not {*of_mpich} & {*of_openmpi}
        assert len(of_mpich) > 10
        assert share_of("debian-openmpi") == share_of("openmpi")

    def test_lists_of_programs(self) -> None:
        text = "# a comment\nallred 4 arg=-count=10\nallred 7\n@maybe@ 4\nbcast 4 # two\n\n"
        assert programs_of(text) == {"allred": ["-count=10"], "bcast": []}


@pytest.mark.long
@needs_source
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_mpichs_own_in_c(mpi: str, tmp_path: Path) -> None:
    tools = toolchain(mpi)
    programs = build_c(SOURCE, tools, tmp_path, share_of(mpi))
    summary = run_suite(programs, tools, N_RANKS, LIMIT_S)
    assert not summary.problems()


@pytest.mark.long
@needs_source
@needs_debian
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mpi", ["debian-mpich", "debian-openmpi"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_mpichs_own_in_fortran(dialect: str, mpi: str, tmp_path: Path) -> None:
    tools = toolchain(mpi)
    programs = build_fortran(SOURCE, tools, tmp_path, dialect, share_of(mpi))
    assert not run_suite(programs, tools, N_RANKS, LIMIT_S).problems()


@pytest.mark.long
@needs_debian
@pytest.mark.parametrize("mpi", ["debian-mpich", "debian-openmpi"])
@pytest.mark.parametrize("interface", ["MPIF_H", "USE_MPI", "USE_F08"])
def test_fortran(interface: str, mpi: str, tmp_path: Path) -> None:
    tools, program = toolchain(mpi), tmp_path / "fortran"
    code = [f"-D{interface}", "-cpp", str(HERE / "fortran.F90"), "-o", str(program)]
    built = tools.link_fortran(code)
    assert built.returncode == 0, built.stderr
    done = tools.run(N_RANKS, program, forced=True)
    assert done is not None
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert planned_of(done)["Bcast"][0] >= N_RANKS


@pytest.mark.long
@needs_debian
@pytest.mark.skipif(not IMB.exists(), reason="needs Intel's wheel")
def test_fortran_on_intel_mpi(tmp_path: Path) -> None:
    """Built with Debian's MPICH, which has the same binary interface but for mpi_f08."""
    debian, intel, program = toolchain("debian-mpich"), toolchain("impi"), tmp_path / "fortran"
    code = ["-DUSE_MPI", "-cpp", str(HERE / "fortran.F90"), "-o", str(program)]
    code += [f"-L{debian.lib_dir}", "-l:libmpifort.so.12", "-lgfortran"]
    built = intel.link([*debian.fortran_options(), *code])
    assert built.returncode == 0, built.stderr
    libraries = f"{intel.lib_dir}:{debian.lib_dir}"
    done = intel.run(N_RANKS, program, forced=True, variables={"LD_LIBRARY_PATH": libraries})
    assert done is not None
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert planned_of(done)["Bcast"][0] >= N_RANKS


@pytest.mark.long
@pytest.mark.skipif(not IMB.exists(), reason="needs IMB-MPI1 of Intel's wheel")
@pytest.mark.parametrize("mpi", ["mpich", "impi"])
def test_intels_benchmarks(mpi: str, tmp_path: Path) -> None:
    tools = toolchain(mpi)
    lengths = tmp_path / "lengths"
    lengths.write_text("0\n8\n1000\n70000\n")
    names = ["Bcast", "Allreduce", "Alltoall", "Reduce", "Gather", "Scatter", "Allgather"]
    names += ["Reduce_scatter", "Gatherv", "Scatterv", "Allgatherv", "Alltoallv", "Barrier"]
    options = ["-npmin", str(N_RANKS), "-iter", "5", "-msglen", str(lengths)]
    done = tools.run(N_RANKS, IMB, [*names, *options], forced=True, limit_s=200)
    assert done is not None
    assert done.returncode == 0, done.stderr
    assert re.findall(r"# Benchmarking (\w+)", done.stdout) == names
    counts = planned_of(done)
    for name in ("Bcast", "Allreduce", "Alltoall", "Reduce", "Gather", "Scatter", "Allgather"):
        assert counts[name][0] > 0, name


@pytest.mark.long
@needs_debian
def test_hpcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's, on Debian's Open MPI: passes what it passes natively."""
    tools = toolchain("debian-openmpi")
    program = Path(DEBIAN) / "usr" / "bin" / "hpcc"
    if not program.exists():
        pytest.skip("no hpcc among Debian's packages")
    example = next(Path(DEBIAN).glob("usr/share/**/*hpccinf.txt*"), None)
    if example is None:
        pytest.skip("hpcc comes without an example of its input")
    monkeypatch.chdir(tmp_path)
    tests: list[list[str]] = []
    for forced in (False, True):
        shutil.copy(example, tmp_path / "hpccinf.txt")
        done = tools.run(N_RANKS, program, forced=forced, limit_s=250)
        assert done is not None
        assert done.returncode == 0, done.stderr
        output = (tmp_path / "hpccoutf.txt").read_text()
        tests.append(re.findall(r"^.*(?:PASSED|FAILED).*$", output, re.MULTILINE))
        (tmp_path / "hpccoutf.txt").unlink()
    failed = [sum("FAILED" in line for line in lines) for lines in tests]
    assert len(tests[0]) == len(tests[1]) > 0
    assert failed[1] <= failed[0]
    assert planned_of(done)["all"][0] > 0


SYSTEMS = """'Linear systems of equations'
'MPI'
'LU.out'  output file
6         standard output as well
2         number of sizes
10 31     values of M
12 50     values of N
1         number of widths of blocks
3         values of NB
1         number of right hand sides
3         values of NRHS
1         number of their widths
5         values of NBRHS
1         number of process grids
2         values of P
2         values of Q
1.0       threshold
T         condition estimation and refinement
"""


@pytest.mark.long
@needs_debian
def test_scalapack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's test of LU factorisation, in Fortran, on Debian's MPICH."""
    tools = toolchain("debian-mpich")
    program = tools.lib_dir / "scalapack" / "mpich-tests" / "xdlu"
    if not program.exists():
        pytest.skip("no tests of ScaLAPACK among Debian's packages")
    (tmp_path / "LU.dat").write_text(SYSTEMS)
    monkeypatch.chdir(tmp_path)
    libraries = ":".join(str(tools.lib_dir / each) for each in ("", "blas", "lapack"))
    done = tools.run(
        N_RANKS, program, forced=True, limit_s=100, variables={"LD_LIBRARY_PATH": libraries}
    )
    assert done is not None
    assert done.returncode == 0, done.stderr
    assert "2 tests completed and passed residual checks" in done.stdout
    counts = planned_of(done)
    assert counts["Reduce"][0] > 0
    assert counts["Allreduce"][0] > 0
    assert counts["Bcast"][0] > counts["Bcast"][2] == 0  # matrices' parts, by types with gaps
