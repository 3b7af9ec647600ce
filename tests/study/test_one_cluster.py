from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gridcoll.errors import FileError, UsageError
from gridcoll.model.closed_forms import ALLTOALL_BOUNDS, with_contention_s
from gridcoll.study.one_cluster_command import (
    FIGURES,
    alltoall_rows,
    best_closed_form,
    broadcast_rows,
    command,
    one_cluster,
    scatter_rows,
    stand_in_link,
)

LINK = stand_in_link()


def run(*arguments: str):
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_table_1_formulas_are_the_plans_where_they_are_exact() -> None:
    """Among 16, a power of two; a rendezvous' exception is in its line."""
    for row in broadcast_rows(LINK, 16, 1 << 16):
        assert row.plan_s is not None
        if row.holds.startswith("exact") and not row.strategy.endswith("rendezvous"):
            assert row.plan_s <= row.formula_s * 1.001, row.strategy
            assert row.plan_s >= row.formula_s * 0.97, row.strategy  # hill climbing may gain


def test_table_2_formulas_are_the_plans_among_a_power_of_two() -> None:
    for row in scatter_rows(LINK, 8, 4096):
        assert row.plan_s == pytest.approx(row.formula_s, rel=1e-9), row.strategy
    assert any("no power of two" in row.holds for row in scatter_rows(LINK, 24, 4096))


def test_table_3_and_why_the_upper_bounds_differ() -> None:
    """Ours leaves ``or`` out: sending and receiving go on side by side."""
    rows = {row.strategy: row.formula_s for row in alltoall_rows(LINK, 24, 1 << 16)}
    extra_s = 23 * LINK.recv_overhead(1 << 16)
    assert rows["paper-upper"] - rows["upper"] == pytest.approx(extra_s)
    assert rows["lower"] <= rows["paper-lower"] <= rows["paper-predicted"] <= rows["paper-upper"]
    assert rows["paper-predicted"] == pytest.approx(
        with_contention_s(rows["paper-lower"], rows["paper-upper"], 2 / 3)
    )
    assert all(bound.cost_s(LINK, 1, 8) == 0 for bound in ALLTOALL_BOUNDS.values())


def test_the_segmented_chain_wins_for_long_messages_among_16() -> None:
    """Figure 5: the best of the three, far ahead of flat."""
    times = {
        name: best_closed_form(name, LINK, 16, 1 << 20)[0]
        for name in ("flat", "binomial", "segmented-chain")
    }
    assert times["segmented-chain"] < times["binomial"] < times["flat"]


def test_segments_gain_nothing_in_flat_and_binomial_trees() -> None:
    """§3.1 plans to look there for the anomaly: the models know no delay of acknowledgements."""
    for name in ("flat", "binomial"):
        whole = best_closed_form(name, LINK, 16, 1 << 16)[0]
        assert best_closed_form(f"segmented-{name}", LINK, 16, 1 << 16)[0] == pytest.approx(whole)


@pytest.mark.parametrize(
    "number", [1, *(pytest.param(figure, marks=pytest.mark.long) for figure in FIGURES)]
)
def test_every_figure_is_drawn(number: int, tmp_path: Path) -> None:
    files = ["--output", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "figure.svg")]
    result = run("--figure", str(number), "--sizes", "1K,64K", "--json", *files)
    rows = json.loads(result.output)
    assert rows == json.loads((tmp_path / "rows.json").read_text())
    assert f"Figure {number}" in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize("table", ["1", "2", "3"])
def test_every_table_is_printed(table: str, tmp_path: Path) -> None:
    rows = json.loads(run("--table", table, "--sizes", "1K", "--json").output)
    assert {row["table"] for row in rows} == {table}
    assert f"Table {table}" in run("--table", table, "--sizes", "1K").output


def test_measured_rows_stand_beside_the_model(tmp_path: Path) -> None:
    rows = [
        {"collective": "bcast", "variant": "gridcoll:plain-flat", "bytes": 1024, "median_s": 0.5}
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    printed = json.loads(
        run("--figure", "5", "--sizes", "1K", "--json", "--measured", str(path)).output
    )
    (beside,) = [row for row in printed if row["measured_s"]]
    assert beside["curve"] == "flat, measured"
    assert beside["model_s"] == pytest.approx(best_closed_form("flat", LINK, 16, 1024)[0])
    path.write_text("[{}]")
    with pytest.raises(FileError, match="not rows of gridcoll bench"):
        run("--figure", "5", "--measured", str(path))


def test_rows_measured_with_fewer_processes_have_their_own_curve(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    shared = {"collective": "bcast", "variant": "gridcoll:plain-flat", "bytes": 1024}
    rows = [{**shared, "median_s": n * 1e-3, "n_ranks": n} for n in (4, 8, 5)]
    path.write_text(json.dumps(rows))
    printed = json.loads(
        run("--figure", "4", "--sizes", "1K", "--json", "--measured", str(path)).output
    )
    beside = {row["curve"]: row for row in printed if row["measured_s"]}
    assert set(beside) == {"flat, 4, measured", "flat, 8, measured"}
    four = beside["flat, 4, measured"]
    assert four["measured_s"] == 4e-3
    assert four["model_s"] == pytest.approx(best_closed_form("flat", LINK, 4, 1024)[0])


def test_a_table_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "table.svg"
    run("--table", "2", "--sizes", "1K", "--plot", str(path))
    assert "our plan" in path.read_text()


def test_mistakes() -> None:
    for arguments in ([], ["--table", "1", "--figure", "2"]):
        with pytest.raises(UsageError, match="give one of them"):
            run(*arguments)
    with pytest.raises(UsageError, match="ranks"):
        one_cluster(LINK, 1)
