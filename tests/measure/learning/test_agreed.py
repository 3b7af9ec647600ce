"""When ranks exchange what calls took, by call numbers; on a job of one rank."""

from __future__ import annotations

from mpi4py import MPI

from gridcoll.measure.learning.agreed import COMPARE_EVERY_S, OVERHEAD_PART, Agreed
from gridcoll.measure.learning.offsets import Offset


def test_a_clock_is_saved_for() -> None:
    """Exchanges teach nothing without one, and do not use up what it costs."""
    call_s, exchange_s = 0.07, 0.004
    agreed = Agreed(MPI.COMM_SELF, latency_s=0.012)
    needed_s = (agreed.clock_cost_s + 2 * exchange_s) / OVERHEAD_PART
    while not agreed.may_compare_clocks:
        if agreed.end("call", agreed.n_calls * call_s, (agreed.n_calls + 1) * call_s):
            agreed.spend(exchange_s)
        assert agreed.n_calls * call_s < 3 * needed_s


def test_a_clock_that_is_old_is_compared_again() -> None:
    """It is saved for, too: exchanges alone would use up all that they may cost."""
    call_s, exchange_s = 0.07, 0.004
    agreed = Agreed(MPI.COMM_SELF, latency_s=0.012, offset=Offset())
    for _ in range(2):
        began_s = agreed.n_calls * call_s
        while not agreed.is_clock_due:
            if agreed.end("call", agreed.n_calls * call_s, (agreed.n_calls + 1) * call_s):
                agreed.spend(exchange_s)
            assert agreed.n_calls * call_s < began_s + 2 * COMPARE_EVERY_S
        assert agreed.n_calls * call_s > began_s + COMPARE_EVERY_S
        agreed.offset = Offset()
        agreed.spend(agreed.clock_cost_s)


def test_times_before_there_was_a_clock_are_none_of_it() -> None:
    """A host that is up for long has a monotonic clock far ahead of the common one."""
    ahead_s, call_s = 1e6, 0.07
    agreed = Agreed(MPI.COMM_SELF, latency_s=0.012)

    def call() -> None:
        began_s = ahead_s + agreed.n_calls * call_s
        agreed.end("call", began_s, began_s + call_s)

    while not agreed.is_clock_due:
        call()
    agreed.offset = Offset(-ahead_s)
    n_calls = agreed.n_calls
    while not agreed.is_clock_due:
        call()
        assert (agreed.n_calls - n_calls) * call_s < 2 * COMPARE_EVERY_S
