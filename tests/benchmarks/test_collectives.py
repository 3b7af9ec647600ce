"""Tables of kept rows: times beside the limit as people reckon it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

ROWS = [
    {
        **{"grid": "three-sites", "mpi": "mpich", "bytes": (1 << 20) + (16 << 10), "variant": name},
        **{"median_s": median_s, "limit_s": 0.09},
    }
    for name, median_s in (("native", 0.4), ("native-nonblocking", 0.3), ("gridcoll", 0.1))
]
"""What the burst of an interface passes at once is not counted: a megabyte at 12.5 MB/s."""

PLAIN_S = (1 << 20) / 12.5e6 + 12.2e-3


@pytest.mark.parametrize("dilation", [1, 4])
def test_of_plain_limit(script: Callable[[str], ModuleType], dilation: float) -> None:
    """A grid in slow motion has a limit that many times as far off."""
    ours = ROWS[-1]
    ratio = float(script("collectives").of_plain_limit("bcast", ours, dilation))
    assert ratio == pytest.approx(0.1 / PLAIN_S / dilation, abs=0.006)


def test_markdown(script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    script("collectives").print_markdown("bcast", ROWS, 1)
    line = capsys.readouterr().out.splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        *("three-sites", "mpich", "1.016 MiB", "300.0 ms", "100.0 ms", "3.00 x", "90.0 ms"),
        *("1.11 x", f"{0.1 / PLAIN_S:.2f} x"),
    ]
