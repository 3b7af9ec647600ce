"""MPICH's own tests of collectives and communicators with plans forced, natively if they fail.

``python -m tests.launch.mpich_suite SOURCE --mpi mpich --folder BUILT``; SOURCE is an unpacked
source tree of MPICH, as ``apt-get source mpich`` leaves it. A program that fails with plans and not
natively is an error, and so is a run in which no call was a plan. Fortran's (``--language f08``)
need an MPI of Debian's: see `toolchain`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct, field

from tests.launch.programs import Built, Toolchain, toolchain

CONFIGURED = """
#define HAVE_STDLIB_H 1
#define HAVE_STRING_H 1
#define HAVE_UNISTD_H 1
#define HAVE_STDARG_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_SYS_RESOURCE_H 1
#define HAVE_INTTYPES_H 1
#define HAVE_STDINT_H 1
#define HAVE_LONG_DOUBLE 1
#define HAVE_LONG_LONG 1
#define HAVE_LONG_LONG_INT 1
#define HAVE_FLOAT__COMPLEX 1
#define HAVE_DOUBLE__COMPLEX 1
#define HAVE_LONG_DOUBLE__COMPLEX 1
#define HAVE__BOOL 1
#define HAVE_PTHREAD_H 1
#define THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX
#define THREAD_PACKAGE_POSIX 1
#define THREAD_PACKAGE_NONE 0
#define THREAD_PACKAGE_WIN 2
#define THREAD_PACKAGE_ARGOBOTS 3
#define HAVE_INT8_T 1
#define HAVE_INT16_T 1
#define HAVE_INT32_T 1
#define HAVE_INT64_T 1
#define HAVE_UINT8_T 1
#define HAVE_UINT16_T 1
#define HAVE_UINT32_T 1
#define HAVE_UINT64_T 1
#define HAVE_MPI_WIN_CREATE 1
#define USE_STRICT_MPI 1
"""

ALL = slice(None)

PASSED = re.compile(r"No Errors", re.IGNORECASE)
PLANNED = re.compile(r"gridcoll: all: (\d+) planned, (\d+) native, (\d+) through Python")


class Verdict(Struct):
    """Of one program; ``native`` is of a run that only a failure asks for."""

    name: str
    ours: str
    native: str = ""
    n_planned: int = 0

    @property
    def is_worse(self) -> bool:
        return self.native == "passes" and self.ours != "passes"


class Summary(Struct):
    """Of all programs of a suite."""

    verdicts: list[Verdict] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What must not be; empty if all is well."""
        found = [
            f"{v.name}: natively passes, with plans {v.ours}" for v in self.verdicts if v.is_worse
        ]
        if not any(v.ours == "passes" for v in self.verdicts):
            found.append("no program passes")
        if not sum(v.n_planned for v in self.verdicts):
            found.append("no call was a plan")
        return found


def programs_of(listing: str) -> dict[str, list[str]]:
    """Name and arguments of every program in a ``testlist``, once."""
    found: dict[str, list[str]] = {}
    for line in listing.splitlines():
        words = line.split("#")[0].split()
        if not words or words[0].startswith(("@", "#")) or len(words) < 2:
            continue
        args = [w.removeprefix("arg=") for w in words[2:] if w.startswith("arg=")]
        found.setdefault(words[0], args)
    return found


DIRECTORIES = ("coll", "comm", "topo", "errhan")

LEFT_OUT = {
    "ctxalloc": "takes more than half a minute natively",
    "ctxsplit": "takes more than half a minute natively",
    "comm_idup_nb": "does not always end natively under Open MPI",
    "comm_idup_isend": "does not always end natively under Open MPI",
    "ic2": "wants more ranks",
    "errfatal": "is to end with an error",
}


def build_c(
    source: Path, tools: Toolchain, folder: Path, share: slice = ALL
) -> Iterator[tuple[str, list[str], Built]]:
    """Every C program of `DIRECTORIES` that can be built, or a share of them."""
    tests = source / "test" / "mpi"
    (folder / "mpitestconf.h").write_text(CONFIGURED)
    include = [f"-I{tests / 'include'}", f"-I{folder}", f"-I{tests / 'dtpools' / 'include'}"]
    objects = []
    for name in ("mtest", "mtest_common", "mtest_single", "dtypes"):
        target = folder / f"{name}.o"
        done = tools.compile(["-c", *include, str(tests / "util" / f"{name}.c"), "-o", str(target)])
        if done.returncode == 0:
            objects.append(str(target))
    programs: dict[str, list[str]] = {}
    sources: dict[str, Path] = {}
    for directory in DIRECTORIES:
        listing = tests / directory / "testlist.in"
        listing = listing if listing.exists() else listing.with_suffix("")
        for name, args in programs_of(listing.read_text()).items():
            code = tests / directory / f"{name}.c"
            if code.exists() and name not in LEFT_OUT:
                programs.setdefault(name, args)
                sources.setdefault(name, code)

    def build(name: str) -> Built:
        target = folder / name
        files = [str(sources[name]), *objects, "-o", str(target)]
        done = tools.link([*include, *files, "-lm", "-lpthread"])
        return Built(target, done.stderr if done.returncode else "")

    names = list(programs)[share]
    with ThreadPoolExecutor(2) as pool:
        for name, built in zip(names, pool.map(build, names), strict=True):
            yield name, programs[name], built


DIALECTS = {"f77": ("f", ""), "f90": ("f90", "f90"), "f08": ("f90", "f08")}
"""Of Fortran: how files end, and programs' names."""


def build_fortran(
    source: Path, tools: Toolchain, folder: Path, dialect: str, share: slice = ALL
) -> Iterator[tuple[str, list[str], Built]]:
    """Every program of test/mpi/DIALECT/coll that can be built, or a share of them."""
    tests = source / "test" / "mpi"
    ending, _ = DIALECTS[dialect]
    helper = tests / "util" / f"mtest_{dialect}.{ending}"
    own = folder / dialect
    own.mkdir(exist_ok=True)
    programs = programs_of((tests / dialect / "coll" / "testlist").read_text())
    (own / "attr1aints.h").write_text("")
    for name, args in list(programs.items())[share]:
        code, target = tests / dialect / "coll" / f"{name}.{ending}", own / name
        if not code.exists():
            continue
        done = tools.link_fortran([f"-J{own}", str(helper), str(code), "-o", str(target)])
        yield name, args, Built(target, done.stderr if done.returncode else "")


def judge(done: subprocess.CompletedProcess[str] | None) -> str:
    """``passes``, or what is wrong."""
    if done is None:
        return "does not end"
    if done.returncode:
        return f"ends with {done.returncode}"
    return "passes" if PASSED.search(done.stdout) else "reports errors"


def planned_in(done: subprocess.CompletedProcess[str] | None) -> int:
    """Calls of rank 0 that were plans, in C or through Python."""
    found = PLANNED.search(done.stderr) if done else None
    return int(found.group(1)) + int(found.group(3)) if found else 0


def run_suite(
    programs: Iterable[tuple[str, list[str], Built]],
    tools: Toolchain,
    n_ranks: int,
    limit_s: float,
    only: Sequence[str] = (),
) -> Summary:
    """Run everything that could be built with plans forced, and natively what fails then."""
    summary = Summary()
    for name, args, built in programs:
        if only and name not in only:
            continue
        if built.problem:
            print(f"{name}: not built: {built.problem.splitlines()[0]}", flush=True)
            continue
        ours = tools.run(n_ranks, built.path, args, limit_s=2 * limit_s, forced=True)
        verdict = Verdict(name, judge(ours), n_planned=planned_in(ours))
        if verdict.ours != "passes":
            verdict.native = judge(tools.run(n_ranks, built.path, args, limit_s=limit_s))
        summary.verdicts.append(verdict)
        natively = f", natively {verdict.native}" if verdict.native else ""
        print(f"{name}: {verdict.ours}{natively}, {verdict.n_planned} planned", flush=True)
        if verdict.is_worse and ours:
            print(ours.stdout[-600:], ours.stderr[-1500:], flush=True)
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--mpi", default="mpich")
    parser.add_argument("--language", choices=["c", *DIALECTS], default="c")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit-s", type=float, default=60)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=())
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    tools = toolchain(given.mpi)
    if given.language == "c":
        programs = build_c(given.source, tools, given.folder)
    else:
        programs = build_fortran(given.source, tools, given.folder, given.language)
    summary = run_suite(programs, tools, given.ranks, given.limit_s, given.only)
    n = len(summary.verdicts)
    passed = sum(v.ours == "passes" for v in summary.verdicts)
    worse = sum(v.is_worse for v in summary.verdicts)
    planned = sum(v.n_planned for v in summary.verdicts)
    print(f"{given.mpi}, {given.language}: {n} programs, {passed} pass, {worse} natively alone")
    print(f"{planned} planned calls")
    for problem in summary.problems():
        print(problem)
    return bool(summary.problems())


if __name__ == "__main__":
    sys.exit(main())
