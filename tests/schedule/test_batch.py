from __future__ import annotations

import numpy as np
import pytest

from gridcoll.schedule import HEURISTICS, Accounting, Batch
from tests.schedule import readable

ACCOUNTINGS = [Accounting(), Accounting("gap+latency", "from-arrival")]


def draw(n: int, whole: bool, accounting: Accounting, n_instances: int = 30) -> Batch:
    rng = np.random.default_rng([n, whole])
    b = n_instances
    if whole:
        latency, gap = (rng.integers(0, 3, (b, n, n)).astype(float) for _ in range(2))
        internal = rng.integers(0, 4, (b, n)).astype(float)
    else:
        latency, gap = rng.uniform(1, 15, (b, n, n)), rng.uniform(100, 600, (b, n, n))
        internal = rng.uniform(20, 3000, (b, n))
    for matrix in (latency, gap):
        matrix[:, np.arange(n), np.arange(n)] = 0
    return Batch(latency, gap, internal, n // 2, accounting)


@pytest.mark.parametrize("accounting", ACCOUNTINGS, ids=str)
@pytest.mark.parametrize("whole", [True, False], ids=["ties", "distinct"])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 13])
@pytest.mark.parametrize("name", HEURISTICS)
def test_batches_choose_as_single_instances_do(name, n, whole, accounting) -> None:
    slow = name in ("optimal", "best")
    batch = draw(n, whole, accounting, 3 if slow else 30)
    found = HEURISTICS[name].pick_batch(batch)
    for k in range(batch.n_instances):
        alone = HEURISTICS[name].pick(batch.instance(k))
        assert found.schedule(k) == alone
        if name in readable.FORMS or name == "mixed":
            assert alone.transfers == readable.transfers_of(name, batch.instance(k))
