from __future__ import annotations

import pytest

from gridcoll.errors import UsageError
from gridcoll.schedule import Schedule, Transfer, children, parents

CHAIN = (Transfer(1, 0), Transfer(0, 2), Transfer(1, 3))


def test_tree_readings() -> None:
    schedule = Schedule(4, 1, CHAIN, 1.0)
    assert children(schedule) == ((2,), (0, 3), (), ())
    assert parents(schedule) == (1, None, 0, 1)


@pytest.mark.parametrize(
    "transfers",
    [
        (Transfer(0, 2), Transfer(1, 0), Transfer(1, 3)),  # 0 sends before it has the message
        (Transfer(1, 0), Transfer(0, 1), Transfer(1, 2)),  # to the root
        (Transfer(1, 0), Transfer(1, 2), Transfer(0, 2)),  # twice
        (Transfer(1, 0), Transfer(1, 2)),  # 3 is forgotten
        (Transfer(1, 0), Transfer(1, 2), Transfer(1, 4)),  # 4 is not there
    ],
)
def test_every_cluster_receives_once_from_a_holder(transfers) -> None:
    with pytest.raises(UsageError):
        Schedule(4, 1, transfers, 1.0)


@pytest.mark.parametrize("extra", [Transfer(0, 2), Transfer(0, 1)])
def test_nobody_receives_what_he_has(extra) -> None:
    """To a cluster that was reached before, or to the root; all are reached without it."""
    reaching = (Transfer(1, 0), Transfer(1, 2))
    assert Schedule(3, 1, reaching, 1.0)
    with pytest.raises(UsageError, match="the receiver must not"):
        Schedule(3, 1, (*reaching, extra), 1.0)


def test_is_optimal_when_the_bound_is_met() -> None:
    assert Schedule(1, 0, (), 2.0, 2.0).is_optimal
    assert not Schedule(1, 0, (), 2.0, 1.99).is_optimal
    assert not Schedule(1, 0, (), 2.0).is_optimal
