"""Time whole runs of unmodified third-party programs, natively and by ``gridcoll run``.

``python benchmarks/applications.py --theirs DIR`` runs them. docs/benchmarks.md describes DIR.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from compileall import compile_dir
from pathlib import Path
from typing import Any

from msgspec import Struct
from on_grids import RESULTS, ROOT, Row, read_rows

from gridcoll.files import write_atomically
from gridcoll.testbed.job import Job
from gridcoll.testbed.run import interruptible
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.gridfile import read_gridfile


class Program(Struct, frozen=True):
    """A third-party program.

    In its arguments, ``{there}`` is the folder that has it and ``{half}`` is half the number of
    ranks.
    """

    project: str
    does: str
    imports: str
    arguments: str  # after "python"


PROGRAMS = {
    "cgls": Program(
        "PyLops-MPI", "least squares, 15 iterations", "pylops_mpi", "{there}/examples/plot_cgls.py"
    ),
    "dns": Program(
        "mpi4py-fft",
        "Navier-Stokes by spectra, 64³",
        "mpi4py_fft",
        "{there}/spectral_dns_solver.py",
    ),
    "ocean": Program(
        "Veros",
        "ocean model, 31 days",
        "veros.veros, scipy.sparse.linalg",
        "{there}/bin/veros-run {there}/veros/setups/acc_basic/acc_basic.py -n 2 {half} "
        "-s runlen 2678400 --diskless-mode",
    ),
    "farmer": Program(
        "mpi-sppy",
        "progressive hedging, 100 iterations",
        "mpisppy.generic_cylinders, highspy",
        "-m mpisppy.generic_cylinders --module-name mpisppy.tests.examples.farmer --num-scens 24 "
        "--solver-name appsi_highs --max-iterations 100 --default-rho 1 "
        "--linearize-proximal-terms",
    ),
}

WAYS = ("native", "gridcoll")
TURNS = ("start", "first", *WAYS)
"""``start`` only imports the same modules and ends. ``first`` is a first run by gridcoll. Then both
ways run in turn."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

_TIMES = re.compile(r"(?im)^.*(\btime\b|current iteration).*$\n?|^\[ *[\d.]+\] ")
"""Lines that contain times, and time stamps at the beginning of lines."""

_GRACE_S = 20.0

Run = Callable[[Sequence[str]], "tuple[float, str] | None"]
"""Runs a command on all ranks. Returns the seconds from the launcher's start to its end and the
output, or None if the command exceeded its time limit."""


def ended_within(process: subprocess.Popen[Any], limit_s: float) -> bool:
    """Return whether ``process`` ended within ``limit_s``. If it did not, it is terminated."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return False
    return True


def run_here(n_ranks: int, limit_s: float) -> Run:
    """Return a function that runs commands on this machine."""
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def start(command: Sequence[str], stdout: Any) -> subprocess.Popen[Any]:
        mpiexec = [str(programs / "mpiexec"), "-n", str(n_ranks)]
        return subprocess.Popen([*mpiexec, *command], env=environment, stdout=stdout)

    return lambda command: _timed(start, command, limit_s)


def run_on(grid: Path, mpi: str, limit_s: float) -> Run:
    """Return a function that runs commands on the emulated ``grid``.

    The grid is built anew for each run, outside the measured time.
    """

    def run(command: Sequence[str]) -> tuple[float, str] | None:
        with interruptible(), Testbed.up(grid) as testbed:
            job = Job(testbed, mpi)
            return _timed(lambda line, out: job.start(line, stdout=out), command, limit_s)

    return run


def _timed(
    start: Callable[[Sequence[str], Any], subprocess.Popen[Any]],
    command: Sequence[str],
    limit_s: float,
) -> tuple[float, str] | None:
    """Run and time a command as `Run` does, in a folder where programs may write.

    Exits with an error if the command fails.
    """
    with tempfile.TemporaryDirectory() as folder, Path(folder, "printed").open("w+") as printed:
        began = time.monotonic()
        process = start(["env", "-C", folder, *command], printed)
        if not ended_within(process, limit_s):
            return None
        took_s = time.monotonic() - began
        printed.seek(0)
        text = printed.read()
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{text[-4000:]}")
    return took_s, text


def time_them(
    names: Sequence[str],
    there: Path,
    *,
    grid: Path,
    mpi: str,
    local_ranks: int | None,
    n_runs: int,
    limit_s: float,
    keep: Callable[[Row], None],
) -> None:
    """Call ``keep`` with a row for each program. Exits with an error if results differ.

    Nothing is declared: a first run by gridcoll finds an empty cache and measures. Its time is
    reported separately, and so is the time for starting and importing on as many ranks. Then both
    ways take turns ``n_runs`` times. A way that exceeds ``limit_s`` is not tried again.
    """
    compile_dir(ROOT / "gridcoll", quiet=1)  # an installed package is compiled as well
    n_ranks = local_ranks or len(read_gridfile(grid).rank_hosts())
    run = run_here(local_ranks, limit_s) if local_ranks else run_on(grid, mpi, limit_s)
    for name in names:
        with tempfile.TemporaryDirectory() as cache:
            commands = _commands(PROGRAMS[name], there.resolve(), n_ranks, Path(cache, "known"))
            took_s: dict[str, list[float]] = {turn: [] for turn in TURNS}
            printed: dict[str, str] = {}
            ended: set[str] = set()
            for turn in ("start", "first", *WAYS * n_runs):
                way = "gridcoll" if turn == "first" else turn
                if way in ended:
                    continue
                outcome = run(commands[way])
                if outcome is None:
                    ended.add(way)
                    print(f"{name}, {turn}: ended after {limit_s:g} s", flush=True)
                    continue
                took_s[turn].append(outcome[0])
                print(f"{name}, {turn}: {outcome[0]:.1f} s", flush=True)
                if way in WAYS:
                    _compare(name, printed, way, outcome[1])
        medians = {f"{turn}_s": statistics.median(s) if s else None for turn, s in took_s.items()}
        each = {f"{way}_each_s": [round(s, 3) for s in took_s[way]] for way in WAYS}
        row = {"grid": grid.stem, "mpi": mpi, "local_ranks": local_ranks, "what": name}
        keep({**row, **medians, **each, "ended_after_s": limit_s if ended else None})


def _commands(program: Program, there: Path, n_ranks: int, cache: Path) -> dict[str, list[str]]:
    variables = {
        "PYTHONPATH": f"{there}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
        "MPLBACKEND": "Agg",
        "GRIDCOLL_CACHE": str(cache),
        "GRIDCOLL_QUIET": "0",
        **ONE_THREAD,
    }
    python = ["env", *(f"{name}={value}" for name, value in variables.items()), "python"]
    arguments = program.arguments.format(there=there, half=n_ranks // 2).split()
    return {
        "start": [*python, "-c", f"from mpi4py import MPI; import {program.imports}"],
        "native": [*python, *arguments],
        "gridcoll": [*python, "-m", "gridcoll", "run", *arguments],
    }


def _compare(name: str, printed: dict[str, str], way: str, text: str) -> None:
    """Record the output of ``way``. Exits with an error if the other way's results differ."""
    printed[way] = results(text)
    if len(printed) == len(WAYS) and not same_results(*printed.values()):
        sys.exit(f"{name}: results differ\n" + "\n---\n".join(printed.values()))


def results(text: str) -> str:
    """Return the output of a program without times, with its lines sorted.

    The order of lines would depend on which rank is faster.
    """
    return "\n".join(sorted(_TIMES.sub("", text).splitlines()))


def same_results(left: str, right: str) -> bool:
    """Whether both outputs are the same, except for the rounding of sums in another order."""
    words = [text.split() for text in (left, right)]
    return len(words[0]) == len(words[1]) and all(map(_words_match, *words))


def _words_match(left: str, right: str) -> bool:
    try:
        return math.isclose(float(left), float(right), rel_tol=1e-3, abs_tol=1e-9)
    except ValueError:
        return left == right


def keep_in(path: Path) -> Callable[[Row], None]:
    """Return a function that saves a row at ``path``, replacing that of the same program."""

    def keep(new: Row) -> None:
        old: list[Row] = json.loads(path.read_text()) if path.exists() else []
        rows = [*(row for row in old if row["what"] != new["what"]), new]
        rows.sort(key=lambda row: [*PROGRAMS].index(row["what"]))
        write_atomically(path, json.dumps(rows, indent=1) + "\n")

    return keep


def print_markdown(folder: Path = RESULTS) -> None:
    """Print a Markdown line per program, grid and MPI, from the rows kept."""
    print("\n| project | program | grid | MPI | start | native | gridcoll | faster | first time |")
    print("|---|---|---|---|--:|--:|--:|--:|--:|")
    rows = read_rows("theirs", folder)
    for name, program in PROGRAMS.items():
        for row in rows:
            if row["what"] == name:
                times = [_seconds_cell(row, turn) for turn in TURNS]
                print(
                    f"| {program.project} | {program.does} | {row['grid']} | {row['mpi']} "
                    f"| {times[0]} | {times[2]} | {times[3]} | {_speedup_cell(row)} | {times[1]} |"
                )


def _seconds_cell(row: Row, turn: str) -> str:
    """Return the seconds as text, with the minimum and maximum of several runs."""
    took_s, each_s = row[f"{turn}_s"], row.get(f"{turn}_each_s", [])
    if took_s is None:
        return f"ended after {row['ended_after_s']:g} s"
    spread = f" ({min(each_s):.1f} – {max(each_s):.1f})" if len(each_s) > 1 else ""
    return f"{took_s:.1f} s{spread}"


def _speedup_cell(row: Row) -> str:
    if row["native_s"] is None or row["gridcoll_s"] is None:
        return "-"
    return f"{row['native_s'] / row['gridcoll_s']:.2f} x"
