"""Other projects' own tests on communicators of ours, under mpiexec: mpi4py's and mpi4py-fft's.

``suite.py DIRECTORY [--plain] MODULE …``, by `make test-mpi4py` and `make test-fft`: the modules
come from source distributions and are no part of this repository. COMM_WORLD and COMM_SELF are
replaced before they are imported, COMM_WORLD by two clusters whose plans are forced, unless
``--plain`` is said. A test that takes longer than ``--limit`` ends the job, which says where it is.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import io
import os
import sys
import unittest
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


def swap() -> list[int]:
    """Put ours in the place of theirs; the list's one number is how many plans this rank ran."""
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


def limited(limit_s: float) -> type[unittest.TextTestResult]:
    """Results of tests of which none may take longer than ``limit_s``."""

    class Limited(unittest.TextTestResult):
        def startTest(self, test: unittest.TestCase) -> None:
            faulthandler.dump_traceback_later(limit_s, exit=True)
            super().startTest(test)

        def stopTest(self, test: unittest.TestCase) -> None:
            super().stopTest(test)
            faulthandler.cancel_dump_traceback_later()

    return Limited


def run(directory: Path, modules: list[str], plain: bool, limit_s: float) -> int:
    """Rank 0 reports what failed on any rank; the result is how many tests did."""
    everybody = MPI.COMM_WORLD.Dup()
    leads = everybody.Get_rank() == 0
    sys.modules.update(dict.fromkeys(DEVICES))  # type: ignore[arg-type]
    sys.path.insert(0, str(directory.resolve()))
    n_planned = [0] if plain else swap()
    suites = {name: load(name) for name in modules}
    empty = {f"{name}: no tests" for name, tests in suites.items() if not tests.countTestCases()}
    stream = sys.stderr if leads else io.StringIO()
    runner = unittest.TextTestRunner(stream, verbosity=0, resultclass=limited(limit_s))
    result = runner.run(unittest.TestSuite(suites.values()))
    failed = empty | {test.id() for test, _ in (*result.failures, *result.errors)}
    everywhere = sorted(set().union(*everybody.allgather(failed)))
    n_plans = everybody.allreduce(n_planned[0])
    if leads:
        sys.stdout.write("".join(f"FAILED {name}\n" for name in everywhere))
        sys.stdout.write(
            f"{modules[0]} …: {len(everywhere)} of {result.testsRun} failed, "
            f"{len(result.skipped)} skipped, {n_plans} plans run on {everybody.Get_size()} ranks\n"
        )
    return len(everywhere) or int(not (plain or n_plans))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run other projects' tests on our communicators.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("modules", nargs="+", metavar="MODULE")
    parser.add_argument("--plain", action="store_true", help="on their own communicators")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a test may take")
    options = parser.parse_args()
    return run(options.directory, options.modules, options.plain, options.limit)


if __name__ == "__main__":
    sys.exit(main() and 1)
