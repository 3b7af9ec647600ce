"""Compiles programs in C and Fortran by hand, and runs them under an MPI with and without gridcoll.

MPI's headers and libraries come with the wheels in the virtual environments. Where a wheel has no
headers, those of an MPI with the same binary interface serve.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import Struct

MPIS = ("mpich", "openmpi", "impi")
TWO_MPIS = ("mpich", pytest.param("openmpi", marks=pytest.mark.long))

COLLECTIVES = (
    *("Bcast", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Gather"),
    *("Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv"),
    *("Alltoallw", "Barrier"),
)

VENVS = Path(os.environ.get("GRIDCOLL_VENVS", Path(__file__).parents[2] / ".venvs"))
ROOT = Path(__file__).parents[2]

_LAUNCH = {
    "mpich": ("mpiexec", "-n"),
    "impi": ("mpiexec", "-n"),
    "openmpi": (
        "mpirun",
        "--oversubscribe",
        "--bind-to",
        "none",
        "--mca",
        "mpi_yield_when_idle",
        "1",
        "-n",
    ),
}
_ENVIRONMENT = {
    "mpich": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "16"},
    "openmpi": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    "impi": {
        **{"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "3", "I_MPI_THREAD_SLEEP": "100"},
        "FI_PROVIDER": "tcp",
    },
}

GRID = """
version = 1
name = "declared"
clusters = [{{ name = "a", ranks = {first} }}, {{ name = "b", ranks = {second} }}]
links = [{{ between = ["a", "b"], latency = "5 ms", rate = "10 Mbit/s" }}]
"""

Done = subprocess.CompletedProcess[str]


class Built(NamedTuple):
    """A program, or what the compiler says."""

    path: Path
    problem: str = ""


class Toolchain(Struct, frozen=True):
    """How programs are compiled for one MPI, and run under it."""

    mpi: str
    include: Path
    lib_dir: Path
    debian: Path | None = None
    """Where packages of Debian's MPI are unpacked, if it is that."""

    @property
    def family(self) -> str:
        """The environment whose mpi4py serves."""
        return self.mpi.removeprefix("debian-")

    @property
    def python(self) -> Path:
        return VENVS / self.family / "bin" / "python"

    @property
    def libraries(self) -> list[str]:
        """For the linker."""
        if self.debian is None:
            return ["-lmpi"]
        return ["-lmpich"] if self.family == "mpich" else ["-l:libmpi.so.40"]

    def fortran_options(self) -> list[str]:
        """For programs in Fortran: Debian's MPIs have what they need."""
        if self.debian is None:
            raise RuntimeError("no Fortran in the wheels")
        modules = self.lib_dir / "fortran" / "gfortran-mod-15" / self.family
        flags = ["-fallow-argument-mismatch", f"-I{modules}", f"-I{self.include}"]
        # gfortran, where it is unpacked, does not find what gcc has installed; gcc finds f951.
        compiler = fortran_of(self.debian)
        return [*flags, f"-B{compiler}/", f"-L{compiler}"]

    def link_fortran(self, arguments: Sequence[str]) -> Done:
        """A program in Fortran."""
        of_mpi = {
            "mpich": ["-lmpichfort"],
            "openmpi": ["-lmpi_usempif08", "-lmpi_usempi_ignore_tkr", "-lmpi_mpifh"],
        }
        libraries = [*of_mpi[self.family], "-lgfortran"]
        return self.link([*self.fortran_options(), *arguments, *libraries])

    def compile(self, arguments: Sequence[str], compiler: str = "gcc") -> Done:
        command = [compiler, "-w", "-O1", f"-I{self.include}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def link(self, arguments: Sequence[str], compiler: str = "gcc") -> Done:
        libraries = [f"-L{self.lib_dir}", f"-Wl,-rpath,{self.lib_dir}", "-Wl,--disable-new-dtags"]
        return self.compile([*libraries, *arguments, *self.libraries, "-lm"], compiler)

    def build(self, code: str, folder: Path, name: str = "program") -> Path:
        """A program of one file in C."""
        source, target = folder / f"{name}.c", folder / name
        source.write_text(code)
        done = self.link([str(source), "-o", str(target)])
        if done.returncode:
            raise RuntimeError(done.stderr)
        return target

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Without what a user's shell says about running applications."""
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("GRIDCOLL_", "PMI", "OMPI_"))
        }
        kept.pop("LD_PRELOAD", None)
        kept |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        kept |= {"LD_LIBRARY_PATH": str(self.lib_dir), "OMP_NUM_THREADS": "1"}
        if self.debian is not None and self.family == "openmpi":
            kept |= {
                "OPAL_PREFIX": str(self.lib_dir / "openmpi"),
                "OPAL_LIBDIR": str(self.lib_dir / "openmpi" / "lib"),
                "OPAL_BINDIR": str(self.debian / "usr" / "bin"),
                "OPAL_DATADIR": str(self.debian / "usr" / "share"),
                "OPAL_PKGDATADIR": str(self.debian / "usr" / "share" / "openmpi"),
                "OPAL_SYSCONFDIR": str(self.debian / "etc"),
                "OMPI_MCA_plm": "isolated",
                "OMPI_MCA_mca_base_component_show_load_errors": "0",
                "PMIX_INSTALL_PREFIX": str(self.lib_dir / "pmix2"),
                "LD_LIBRARY_PATH": ":".join(
                    str(self.lib_dir / name) for name in ("", "openmpi/lib", "blas", "lapack")
                ),
            }
        return kept | _ENVIRONMENT[self.family] | dict(variables)

    def launcher(self, n_ranks: int) -> list[str]:
        name, *options = _LAUNCH[self.family]
        if self.debian is not None:
            name = "mpiexec.hydra" if self.family == "mpich" else "orterun"
            return [str(self.debian / "usr" / "bin" / name), *options, str(n_ranks)]
        return [str(VENVS / self.mpi / "bin" / name), *options, str(n_ranks)]

    def run(
        self,
        n_ranks: int,
        program: Path,
        arguments: Sequence[str] = (),
        *,
        limit_s: float = 60,
        forced: bool = False,
        options: Sequence[str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Done | None:
        """Run it natively, or by ``gridcoll run`` with ``options``; None if it does not end."""
        with tempfile.TemporaryDirectory() as folder:
            if forced:
                options = [
                    "--stats",
                    "--force",
                    "grid",
                    "--grid",
                    write_grid(Path(folder), n_ranks),
                ]
            ours = []
            if options is not None:
                ours = [str(self.python), "-m", "gridcoll", "run", *options]
            command = [*self.launcher(n_ranks), *ours, str(program), *arguments]
            return run_job(command, self.environment(variables or {}), limit_s)


def write_grid(folder: Path, n_ranks: int) -> str:
    """The file of a grid of two clusters."""
    path = folder / "declared.toml"
    first = (n_ranks + 1) // 2
    path.write_text(GRID.format(first=first, second=max(n_ranks - first, 1)))
    return str(path)


def run_job(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> Done | None:
    """None for a job that does not end, all of whose processes are ended then."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        job = subprocess.Popen(
            command,
            env=environment,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = job.wait(limit_s)
        except subprocess.TimeoutExpired:
            job.terminate()  # launchers end their ranks
            try:
                job.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
            return None
        for file in (out, err):
            file.seek(0)
        return Done(command, code, out.read(), err.read())


def toolchain(mpi: str) -> Toolchain:
    """Of the wheel in the environment ``mpi``, or ``debian-mpich``, ``debian-openmpi``.

    Intel's wheel comes without headers: MPICH's have the same binary interface. Debian's packages
    are unpacked in ``GRIDCOLL_TEST_DEBIAN``, of which the machine need not know.
    """
    if mpi.startswith("debian-"):
        root = Path(os.environ.get("GRIDCOLL_TEST_DEBIAN", "/"))
        library = root / "usr" / "lib" / "x86_64-linux-gnu"
        include = root / "usr" / "include" / "x86_64-linux-gnu" / "mpich"
        if mpi == "debian-openmpi":
            include = library / "openmpi" / "include"
        return Toolchain(mpi, include, library, root)
    headers = "mpich" if mpi == "impi" else mpi
    return Toolchain(mpi, VENVS / headers / "include", VENVS / mpi / "lib")


def fortran_of(root: Path) -> Path | None:
    """Where gcc's Fortran compiler is among packages unpacked in ``root``."""
    found = next((root / "usr" / "lib" / "gcc").glob("*/*/f951"), None)
    return found.parent if found else None


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


_COUNTS = re.compile(
    r"^gridcoll: (?:MPI_)?(\w+): (\d+) planned, (\d+) native, (\d+) through Python", re.MULTILINE
)


def planned_of(done: Done) -> dict[str, tuple[int, int, int]]:
    """By collective, and of ``all``: calls that were plans, native, and through Python."""
    found = _COUNTS.findall(done.stderr)
    assert found, f"no counts: {done.stderr}"
    none = dict.fromkeys(COLLECTIVES, (0, 0, 0))
    return none | {name: (int(a), int(b), int(c)) for name, a, b, c in found}


def tools_of(mpi: str) -> Toolchain:
    """Return the tools of ``mpi``, or skip the test."""
    tools = toolchain(mpi)
    if not tools.python.exists() or not tools.include.exists():
        pytest.skip(f"needs the environment of {mpi}, with its headers")
    return tools


def good(done: Done | None) -> Done:
    """Return ``done``, a job that must have ended well."""
    assert done is not None, "the job does not end"
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-4000:])
    return done


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")
"""Without the library, of which a compiler was to make one, programs fail."""
