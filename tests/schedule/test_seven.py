from __future__ import annotations

import numpy as np
import pytest

from gridcoll.schedule import Accounting, Instance
from gridcoll.schedule.accelerate import Runner
from gridcoll.schedule.greedy import SEVEN, run_seven
from tests.schedule.readable import transfers_of


@pytest.mark.parametrize("whole", [True, False], ids=["ties", "distinct"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 14])
def test_the_kernel_chooses_as_the_readable_forms(n, whole) -> None:
    rng = np.random.default_rng([n, whole])
    run = Runner(compiled=False)
    for _ in range(20):
        if whole:
            times = [rng.integers(0, 3, shape).astype(float) for shape in ((n, n), (n, n), (n,))]
        else:
            times = [rng.uniform(0, 1, shape) for shape in ((n, n), (n, n), (n,))]
        instance = Instance(*times, int(rng.integers(n)), Accounting())
        found = dict(run_seven(run, run.problem(instance)))
        assert tuple(found) == SEVEN
        for name, transfers in found.items():
            assert tuple(transfers) == transfers_of(name, instance), name
