"""Plans that send no faster than thin links carry: what they send arrives, in time or late."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from gridcoll.plan import Send
from tests.mpi.bodies import check_allreduce, check_bcast, check_reduce
from tests.mpi.support import thin_comm

CHECKS = {"bcast": check_bcast, "allreduce": check_allreduce, "reduce": check_reduce}
UNITS = {"bcast": (4, 1), "allreduce": (8, 8), "reduce": (8, 8)}
"""Bytes of an element, and of a plan's unit."""


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", ["interleaved", "three"])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        *(("bcast", "chain"), ("bcast", "split")),
        *(("allreduce", name) for name in ("leaders", "lanes", "shares", "rank-order")),
        ("reduce", "rank-order"),
    ],
)
def test_what_waits_until_it_is_due_arrives(
    world: MPI.Intracomm, collective: str, algorithm: str, layout: str, n_planned: list[int]
) -> None:
    """Some waits: not all that is sent to others fits on a link at once."""
    element, unit = UNITS[collective]
    with thin_comm(world, layout) as comm:
        forced = comm.forced(collective, algorithm)
        n_ran = 0
        for n in (101, 150_001):
            winner = forced.explain(collective, n * element).winner
            if winner.build is None:
                continue
            n_ran += 1
            for root in {0, world.Get_size() - 1} if collective != "allreduce" else {0}:
                CHECKS[collective](forced, n, root)
            program = winner.build(n * element // unit).programs[world.Get_rank()]
            waits = any(op.due_us for op in program if isinstance(op, Send))
            # Lanes of one rank each send the message as it is.
            if (algorithm, world.Get_size()) != ("lanes", 3):
                assert world.allreduce(waits, MPI.LOR) == (n > 101)
    # Splits and shares are for three clusters.
    assert (n_ran > 0) == (layout == "three" or algorithm not in ("split", "shares"))
    assert (n_planned[0] > 0) == (n_ran > 0)
