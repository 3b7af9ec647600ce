from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gridcoll.errors import FileError, UsageError
from gridcoll.study.total_exchange_command import Sites, command, hindrance_for

SITES = Sites(n_first=20, n_second=20)


def run(*arguments: str):
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_flows_and_their_contention() -> None:
    """Paper 001, §4.2: 2 max(n1, n2) messages against 2 n1 n2, half of them in each direction."""
    uneven = Sites(n_first=20, n_second=40, hindrance=2.0)
    assert (uneven.n_flows("lg"), uneven.n_flows("direct")) == (40, 800)
    assert uneven.flow_contention(40) == 1.0
    assert uneven.flow_contention(800) == pytest.approx(1 + 2 * (800 / uneven.free_flows - 1))
    assert replace(uneven, hindrance=0.0).flow_contention(800) == 1.0


def test_direct_wins_without_contention_and_lg_with_enough() -> None:
    assert SITES.gain(1 << 16) < 1
    needed = hindrance_for(SITES, 1 << 16, 2.5)
    assert needed is not None
    assert replace(SITES, hindrance=needed).gain(1 << 16) == pytest.approx(2.5, rel=0.01)
    assert replace(SITES, hindrance=needed / 2).gain(1 << 16) < 2.5


def test_no_contention_helps_lg_where_few_flows_cross() -> None:
    few = Sites(n_first=2, n_second=4)
    assert hindrance_for(few, 1 << 16, 2.5) is None


def test_the_fit_and_a_figure(tmp_path: Path) -> None:
    files = ["--output", str(tmp_path / "rows.csv"), "--plot", str(tmp_path / "figure.svg")]
    rows = json.loads(run("--figure", "5", "--sizes", "64K", "--json", *files).output)
    assert [row["n_hosts"] for row in rows] == [4, 10, 20, 30, 40, 50, 60]
    assert all(row["direct_over_lg"] < 1 for row in rows)
    assert "Figure 5" in (tmp_path / "figure.svg").read_text()
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 8


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="hindrance"):
        Sites(hindrance=-1)
    with pytest.raises(UsageError, match="window_bytes"):
        Sites(window_bytes=0)


@pytest.mark.long
def test_measured_rows_stand_beside_the_figure_of_their_hosts(tmp_path: Path) -> None:
    """Fifty times as slow, the grid's name says; 20 + 40 hosts are in Figures 4 and 6."""
    path = tmp_path / "lg-20x40-mpich.json"
    shared = {"bytes": 65536, "grid": "nancy-rennes-x50"}
    times = {"native": 50.0, "gridcoll:direct": 20.0, "gridcoll:lg": 10.0, "gridcoll": 5.0}
    path.write_text(json.dumps([{**shared, "variant": v, "median_s": s} for v, s in times.items()]))
    for figure, beside in ((4, True), (5, False), (6, True)):
        arguments = ["--figure", str(figure), "--sizes", "64K", "--measured", str(path)]
        plot = tmp_path / f"{figure}.svg"
        rows = json.loads(run(*arguments, "--json", "--plot", str(plot)).output)
        known = [row for row in rows if "mpi_s" in row]
        assert bool(known) == beside
        assert ("LG, 64 KiB, measured" in plot.read_text()) == (figure == 6)
        for row in known:
            assert (row["mpi_s"], row["direct_s"], row["lg_s"]) == (1.0, 0.4, 0.2)
            assert (row["mpi_over_lg"], row["direct_over_lg"]) == (5.0, 2.0)


@pytest.mark.parametrize(("name", "text"), [("lg.json", "[]"), ("lg-2x2.json", "[{}]")])
def test_rows_that_say_too_little(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((UsageError, FileError), match="measured"):
        run("--sizes", "64K", "--measured", str(tmp_path / name))
