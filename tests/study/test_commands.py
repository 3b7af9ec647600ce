from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gridcoll.cli.study_command import command
from gridcoll.errors import FileError, UsageError
from gridcoll.study import STUDIES
from gridcoll.study.options import parse_counts, parse_seconds, write_csv
from gridcoll.study.plots import Figure, draw_figure

SMALL = ["--clusters", "2-3,12", "--iterations", "20", "--references", "2"]


def run(*arguments: str):
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_command(name) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert STUDIES[name].name == name


def test_the_group_lists_the_studies_and_loads_none() -> None:
    result = run("--help")
    for name in STUDIES:
        assert name in result.output
    code = (
        "import sys, gridcoll.cli.study_command\n"
        "print(any(name in sys.modules for name in ('numpy', 'matplotlib', 'mpi4py', 'numba')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_heuristics_prints_tables() -> None:
    result = run("heuristics", *SMALL)
    assert "Mean makespan (ms)" in result.output
    assert "Hit rate (%)" in result.output
    assert "ECEF-LAT" in result.output


@pytest.mark.parametrize("parameters", ["table2", "adaptive"])
def test_heuristics_writes_numbers_and_figures(parameters, tmp_path: Path) -> None:
    result = run(
        "heuristics", *SMALL, "--parameters", parameters, "--output", str(tmp_path), "--json"
    )
    rows = json.loads(result.output)
    assert rows == json.loads((tmp_path / f"{parameters}.json").read_text())
    with (tmp_path / f"{parameters}.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["mean_s"]) for row in table] == [row["mean_s"] for row in rows]
    assert len(rows) == 3 * 8
    expected = (
        {f"paper-000-figure-{k}.svg" for k in range(1, 5)}
        if parameters == "table2"
        else {"paper-002-figure-4a.svg", "paper-002-figure-4b.svg"}
    )
    assert {path.name for path in tmp_path.glob("*.svg")} == expected


@pytest.mark.long
def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        run("heuristics", *SMALL, "--output", str(tmp_path / name))
        files = sorted((tmp_path / name).iterdir())
        texts.append([(path.name, path.read_bytes()) for path in files])
    assert texts[0] == texts[1]
    run("heuristics", *SMALL, "--seed", "2", "--output", str(tmp_path / "c"))
    assert (tmp_path / "c" / "table2.csv").read_bytes() != (tmp_path / "a/table2.csv").read_bytes()


def test_grid5000_writes_the_figure(tmp_path: Path) -> None:
    result = run("grid5000", "--points", "2", "--output", str(tmp_path), "--plots", "png")
    assert "Binomial" in result.output
    assert (tmp_path / "paper-000-figure-5.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads((tmp_path / "grid5000.json").read_text())
    assert [row["megabytes"] for row in rows] == [2.0, 4.0]
    assert rows[1]["Flat Tree"] > rows[1]["Binomial, grid-unaware"] > rows[1]["ECEF"]


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("heuristics", "gridcoll.study.heuristics_command.compare"),
        ("grid5000", "gridcoll.study.grid5000_command.grid_instance"),
    ],
)
def test_no_pictures_is_found_before_computing(name, work, tmp_path: Path, monkeypatch) -> None:
    def compute(*_arguments: object) -> None:
        pytest.fail("hours of work, for nothing")

    monkeypatch.setattr(work, compute)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"matplotlib is not installed; pip install matplotlib"):
        run(name, "--output", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_placement_writes_tables(tmp_path: Path) -> None:
    arguments = ["--case", "close-to-homogeneous", "--cases", "2", "--elements", "500000"]
    result = run("placement", *arguments, "--output", str(tmp_path), "--json")
    rows = json.loads(result.output)
    (table,) = {row["table"] for row in rows}
    files = {path.suffix: path.read_text() for path in tmp_path.iterdir()}
    assert json.loads(files[".json"]) == rows
    assert [row["search"] for row in csv.DictReader(files[".csv"].splitlines())] == [
        row["search"] for row in rows
    ]
    stems = {path.stem for path in tmp_path.iterdir()}
    assert stems == {f"placement-table-{table}", f"paper-004-table-{table}"}  # the latter's picture


def test_optimum_prints_gaps() -> None:
    result = run(
        "optimum", "--clusters", "5", "--instances", "2", "--budgets", "5", "--exact", "--plain",
        "--json",
    )  # fmt: skip
    methods = {row["method"]: row for row in json.loads(result.output)}
    assert methods["best"]["gap"] == methods["optimal"]["gap"] == 0
    assert methods["optimal"]["proven"] == 1


def parse(parser, text: str):
    return parser(click.Context(command), click.Option(["--x"]), text)


def test_counts() -> None:
    assert parse(parse_counts, "2-5,20-40:10,7,4") == (2, 3, 4, 5, 20, 30, 40, 7)
    for text in ("", "1-3", "x", "5-2", "2-4:0"):
        with pytest.raises(click.BadParameter):
            parse(parse_counts, text)


def test_seconds() -> None:
    assert parse(parse_seconds, "0.01,2") == (0.01, 2.0)
    for text in ("", "0", "-1", "x", "nan"):
        with pytest.raises(click.BadParameter):
            parse(parse_seconds, text)


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    figure = Figure("t", "x", "y", {"a": ([1, 2], [1, 2])})
    with pytest.raises(FileError):
        draw_figure(figure, tmp_path / "file" / "plot.svg")
    with pytest.raises(FileError):
        write_csv(tmp_path / "file" / "table.csv", [{"a": 1}])
    with pytest.raises(UsageError):
        write_csv(tmp_path / "table.csv", [])
