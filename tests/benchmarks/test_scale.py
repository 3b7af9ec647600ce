"""Choices among dozens to thousands of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest


def test_a_row_says_how_far_from_the_limit(
    script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    scale = script("scale")
    scale.main(["--grids", "3x4", "--calls", "bcast:8,allreduce:64K", "--json", "--check"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["collective"], row["bytes"]) for row in rows] == [
        ("bcast", 8),
        ("allreduce", 64 << 10),
    ]
    for row in rows:
        assert row["ratio"] == row["predicted_s"] / row["limit_s"] >= 1.0
        assert row["walked_s"] == pytest.approx(row["predicted_s"], rel=0.1)
        assert 0 < row["n_messages"] <= row["n_ops"]


@pytest.mark.parametrize(("name", "n_ranks"), [("table-3", 88), ("12x8-shared", 96)])
def test_grids_are_what_their_names_say(
    script: Callable[[str], ModuleType], name: str, n_ranks: int
) -> None:
    model, wires = script("scale").build(name)
    assert model.grid.n_ranks == wires.grid.n_ranks == n_ranks


def test_latencies_lie_between_1_and_50_ms(script: Callable[[str], ModuleType]) -> None:
    scale = script("scale")
    for name, place in scale.GRIDS.items():
        latency_s = place().latency_s
        if name != "5x5x4x20":  # clusters of a site are nearer
            assert latency_s[latency_s > 0].min() >= 1e-3, name
        assert latency_s.max() <= 50e-3 * (1 + 1e-9), name
        assert (latency_s == latency_s.T).all(), name
