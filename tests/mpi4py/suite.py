"""mpi4py's own tests of collectives on communicators of ours, by `make test-mpi4py` under mpiexec.

``suite.py DIRECTORY [plain]``: their modules come from the source distribution of the mpi4py that
is installed, and are no part of this repository. COMM_WORLD and COMM_SELF are replaced before they
are imported, COMM_WORLD by two clusters whose plans are forced, unless ``plain`` is said.
"""

from __future__ import annotations

import io
import os
import sys
import unittest
from pathlib import Path
from typing import Any

os.environ["GRIDCOLL_FORCE"] = "grid"

from mpi4py import MPI

from gridcoll.comm.context import Context
from gridcoll.comm.world import World
from tests.mpi.support import grid_model, layouts

MODULES = ("buf", "obj", "vec", "nb_buf", "pr_buf")
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


def main(directory: str, *options: str) -> int:
    """Rank 0 reports what failed on any rank; the result is how many tests did."""
    everybody = MPI.COMM_WORLD.Dup()
    leads = everybody.Get_rank() == 0
    sys.modules.update(dict.fromkeys(DEVICES))  # type: ignore[arg-type]
    sys.unraisablehook = lambda _: None  # their DLPack capsules mind being looked at twice
    sys.path.insert(0, str(Path(directory).resolve()))
    n_planned = [0] if "plain" in options else swap()
    suite = unittest.TestLoader().loadTestsFromNames([f"test_cco_{name}" for name in MODULES])
    stream = sys.stderr if leads else io.StringIO()
    result = unittest.TextTestRunner(stream, verbosity=0).run(suite)
    failed = {test.id() for test, _ in (*result.failures, *result.errors)}
    everywhere = sorted(set().union(*everybody.allgather(failed)))
    n_planned = everybody.allreduce(n_planned[0])
    if leads:
        sys.stdout.write("".join(f"FAILED {name}\n" for name in everywhere))
        sys.stdout.write(
            f"mpi4py {len(everywhere)} of {result.testsRun} failed, {len(result.skipped)} skipped, "
            f"{n_planned} plans run on {everybody.Get_size()} ranks\n"
        )
    return len(everywhere) or int("plain" not in options and not n_planned)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) and 1)
