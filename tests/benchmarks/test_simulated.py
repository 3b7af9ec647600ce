"""The outside judge: what it says of rows, and that it says so where SimGrid is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gridcoll.errors import UsageError
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan import Chunk, Copy, Op, Recv, Reduce, Send
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import parse_gridfile
from tests.plan.handmade import SUM, chain, out, plan

GRID = """
version = 1
name = "trio"
clusters = [
  { name = "a", hosts = 1, nic = "100 Mbit/s", slots = 2 },
  { name = "b", hosts = 1, nic = "100 Mbit/s" },
]
default_link = { latency = "7 ms", rate = "50 Mbit/s" }
"""


def row(simulated: ModuleType, predicted_s: float, simulated_s: float | None) -> object:
    return simulated.Row(
        *(88, "bcast", 8, "fef", 0.9, predicted_s, predicted_s, simulated_s, None, 87),
        *({"ompi": 3.0, "mpich": 2.0, "impi": None}, 1.0),
    )


def test_without_simgrid_it_says_what_is_missing(
    script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="libsimgrid-dev"):
        script("simulated").main(["--smpirun", str(tmp_path / "smpirun")])


@pytest.mark.parametrize(
    ("simulated_s", "told"),
    [
        ([1.0, 1.1, 1.3], "median 10% off (bar 15%), worst 30% (bar 40%): held"),
        ([1.0, 1.2, 1.3], "median 20% off (bar 15%), worst 30% (bar 40%): NOT held"),
        ([1.0, 1.0, 1.5], "median 0% off (bar 15%), worst 50% (bar 40%): NOT held"),
        ([None], "nothing was simulated"),
    ],
)
def test_the_verdict_is_by_median_and_worst(
    script: Callable[[str], ModuleType], simulated_s: list[float | None], told: str
) -> None:
    simulated = script("simulated")
    assert simulated.verdict([row(simulated, 1.0, s) for s in simulated_s]).endswith(told)


def test_kept_rows_are_shown_and_drawn(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = script("simulated")
    kept = tmp_path / "rows.jsonl"
    kept.write_text(json.dumps(simulated.asdict(row(simulated, 1.0, 1.25))) + "\n")
    simulated.main(["--rows", str(kept), "--plot", str(tmp_path / "x.svg")])
    said = capsys.readouterr().out
    assert "+25%" in said
    assert "1.6" in said  # the best selector, over ours
    assert (tmp_path / "x.svg").stat().st_size > 0


def there_and_back() -> list[list[Op]]:
    """Rank 1 adds what rank 0 sends to its own, and sends the sum back, after five microseconds."""
    mine, theirs = Chunk("input", 0, 8), Chunk("scratch", 0, 8)
    return [
        [Send(1, mine, 0), Recv(1, out(0, 8), 0)],
        [
            Copy(mine, out(0, 8)),
            Recv(0, theirs, 0),
            Reduce(theirs, out(0, 8), source_first=True),
            Send(0, out(0, 8), 0, due_us=5),
        ],
    ]


@pytest.mark.parametrize(
    ("programs", "told"),
    [
        pytest.param(
            {"programs": chain()},
            [
                "4",
                "0 1 4 0.0 0.0 0",  # on one host
                "0 1 4 0.0 0.0 1 -1",  # the same connection: once the first has left
                "1 2 4 0.007 0.0 1 0",  # once the first has arrived
                "1 2 4 0.007 0.0 2 -3 1",
            ],
            id="chain",
        ),
        pytest.param(
            {"programs": [*there_and_back(), []], "collective": SUM, "scratch_units": (0, 8, 0)},
            ["2", "0 1 8 0.0 0.0 0", "1 0 8 0.0 5e-06 1 0"],
            id="copies and reductions take no time",
        ),
    ],
)
def test_messages_come_with_what_they_need(
    script: Callable[[str], ModuleType], programs: dict[str, object], told: list[str]
) -> None:
    spec = parse_gridfile(GRID)
    hosts = spec.rank_hosts()
    made = plan(**programs)  # type: ignore[arg-type]
    timeline = price_plan(made, declared_model(spec, hosts))
    lines = script("simulated").message_lines(made, timeline, wires_from_spec(spec, hosts))
    assert "".join(lines).splitlines() == told
