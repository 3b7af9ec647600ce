from __future__ import annotations

from collections.abc import Iterator

import pytest

from gridcoll.plan.statements import STATEMENTS, Contribution, Statement
from tests.plan.handmade import SUM


@pytest.fixture
def sum_everywhere() -> Iterator[None]:
    """A collective with contributions: every rank's input, summed in every rank's output."""
    STATEMENTS[SUM] = Statement(
        SUM,
        before=lambda plan, rank: {"input": [(plan.n_units, (Contribution(rank, 0),))]},
        after=lambda plan, _: {
            "output": [(plan.n_units, tuple(Contribution(r, 0) for r in range(plan.n_ranks)))]
        },
    )
    yield
    del STATEMENTS[SUM]
