"""Other projects' own tests on communicators of ours, under mpiexec: mpi4py's and mpi4py-fft's.

``suite.py DIRECTORY [--plain] MODULE …``, by `make test-mpi4py` and `make test-fft`: the modules
come from source distributions and are no part of this repository. Started by ``gridcoll run`` it
takes the world as that has it. Otherwise COMM_WORLD and COMM_SELF are replaced before the modules
are imported, COMM_WORLD by two clusters whose plans are forced, unless ``--plain`` is said. A test
that takes longer than ``--limit`` ends the job, which says where it is.

``--differences FILE`` pins what fails: a line of the file is a test and, after a ``#``, the reason.
A test that fails and is not there is a failure; so is one that is there and passes.

``--apart MODULE,…`` names modules whose tests send nothing. Each of their tests runs on one rank
only, and so does each test on COMM_SELF. They are dealt out to the ranks, which run them at the
same time, before all other tests.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import io
import os
import sys
import time
import unittest
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

os.environ["GRIDCOLL_FORCE"] = "grid"

from mpi4py import MPI

from gridcoll.comm.context import Context
from gridcoll.launch.world import World
from tests.mpi.support import grid_model, layouts

DEVICES = ("cupy", "numba")
"""Arrays on devices that are not here: found installed, they would be tried."""

N_LONGEST = 12
"""Modules whose times are said at the end."""


def swap() -> list[int]:
    """Put ours in the place of theirs, if that was not done.

    The list's one number is how many plans this rank ran.
    """
    if not isinstance(MPI.COMM_WORLD, World):
        size = MPI.COMM_WORLD.Get_size()
        labels = layouts(size).get("two", [0] * size)
        world = World(MPI.COMM_WORLD, model=grid_model(labels))
        own = World(MPI.COMM_SELF, model=grid_model([0]))
        setattr(MPI, "COMM_WORLD", world)  # noqa: B010 - declared final
        setattr(MPI, "COMM_SELF", own)  # noqa: B010
    count = [0]
    run = Context.run

    def counting(self: Context, *arguments: Any) -> None:
        count[0] += 1
        run(self, *arguments)

    Context.run = counting  # type: ignore[method-assign]
    return count


def load(name: str) -> unittest.TestSuite:
    """The tests of a module: its test cases, and functions as pytest would find them."""
    module = importlib.import_module(name)
    functions = [
        unittest.FunctionTestCase(item)
        for name, item in vars(module).items()
        if isinstance(item, FunctionType) and name.startswith("test_")
    ]
    cases = unittest.defaultTestLoader.loadTestsFromModule(module)
    return unittest.TestSuite([cases, *functions])


def each_test(tests: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Yield the tests of a suite and of the suites in it, in order."""
    for item in tests:
        if isinstance(item, unittest.TestSuite):
            yield from each_test(item)
        else:
            yield item


def limited(limit_s: float, took_s: dict[str, float]) -> type[unittest.TextTestResult]:
    """Results of tests of which none may take longer than ``limit_s``.

    ``took_s`` adds up the seconds of the tests of each module.
    """

    class Limited(unittest.TextTestResult):
        def startTest(self, test: unittest.TestCase) -> None:
            faulthandler.dump_traceback_later(limit_s, exit=True)
            self.began_s = time.monotonic()
            super().startTest(test)

        def stopTest(self, test: unittest.TestCase) -> None:
            super().stopTest(test)
            faulthandler.cancel_dump_traceback_later()
            took_s[test.id().split(".")[0]] += time.monotonic() - self.began_s

    return Limited


def read_differences(path: Path) -> set[str]:
    """The tests in the file at ``path``; each must have a reason."""
    lines = [line.partition("#") for line in path.read_text(encoding="utf-8").splitlines()]
    tests = {name.strip(): reason.strip() for name, _, reason in lines if name.strip()}
    if without := [name for name, reason in tests.items() if not reason]:
        sys.exit(f"{path}: no reason is given for {', '.join(without)}")
    return set(tests)


def meet(comm: MPI.Intracomm) -> None:
    """Wait for the others, and leave them the cores."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


def run(
    directory: Path,
    modules: list[str],
    plain: bool,
    limit_s: float,
    pinned: set[str],
    apart: list[str],
) -> int:
    """Rank 0 reports what failed on any rank and is not pinned; the result is how many tests did.

    So it does with what is pinned and passed everywhere.
    """
    everybody = MPI.COMM_WORLD.Dup()
    leads = everybody.Get_rank() == 0
    sys.modules.update(dict.fromkeys(DEVICES))  # type: ignore[arg-type]
    sys.path.insert(0, str(directory.resolve()))
    n_planned = [0] if plain else swap()
    suites = {name: load(name) for name in modules}
    empty = {f"{name}: no tests" for name, tests in suites.items() if not tests.countTestCases()}
    stream = sys.stderr if leads else io.StringIO()
    took_s: dict[str, float] = defaultdict(float)
    runner = unittest.TextTestRunner(stream, verbosity=0, resultclass=limited(limit_s, took_s))
    dealt_out = [test for name in apart for test in each_test(suites.pop(name))]
    together = []
    for test in each_test(unittest.TestSuite(suites.values())):
        is_alone = getattr(test, "COMM", None) is MPI.COMM_SELF
        (dealt_out if is_alone else together).append(test)
    own = dealt_out[everybody.Get_rank() :: everybody.Get_size()]
    alone = runner.run(unittest.TestSuite(own))
    meet(everybody)
    result = runner.run(unittest.TestSuite(together))
    faults = [*alone.failures, *alone.errors, *result.failures, *result.errors]
    # The parameters of a part of a test stand behind a space.
    failed = empty | {test.id().split(" (")[0] for test, _ in faults}
    differ = set().union(*everybody.allgather(failed))
    everywhere, passed = sorted(differ - pinned), sorted(pinned - differ)
    n_plans = everybody.allreduce(n_planned[0])
    n_run = everybody.allreduce(alone.testsRun) + result.testsRun
    n_skipped = everybody.allreduce(len(alone.skipped)) + len(result.skipped)
    if leads:
        sys.stdout.write("".join(f"FAILED {name}\n" for name in everywhere))
        longest_first = sorted(took_s.items(), key=lambda item: -item[1])[:N_LONGEST]
        longest = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in longest_first)
        sys.stdout.write(f"longest: {longest}\n")
        sys.stdout.write("".join(f"PASSED though pinned {name}\n" for name in passed))
        sys.stdout.write(
            f"{modules[0]} …: {len(everywhere)} of {n_run} failed, "
            f"{len(pinned)} differ as pinned, "
            f"{n_skipped} skipped, {n_plans} plans run on {everybody.Get_size()} ranks\n"
        )
    return len(everywhere) + len(passed) or int(not (plain or n_plans))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run other projects' tests on our communicators.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("modules", nargs="+", metavar="MODULE")
    parser.add_argument("--plain", action="store_true", help="on their own communicators")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a test may take")
    parser.add_argument("--differences", type=Path, help="tests that fail, with reasons")
    parser.add_argument("--apart", type=lambda names: names.split(","), default=[])
    options = parser.parse_args()
    pinned = read_differences(options.differences) if options.differences else set[str]()
    return run(
        options.directory, options.modules, options.plain, options.limit, pinned, options.apart
    )


if __name__ == "__main__":
    sys.exit(main() and 1)
