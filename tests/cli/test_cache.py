"""``gridcoll cache`` and what `gridcoll show` says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridcoll.measure.cache.folder import Folder
from gridcoll.measure.cache.learning import learn_model
from gridcoll.model import GridModel, linear_plogp, write_model
from gridcoll.topology import Grid

GRID = """
version = 1
name = "mine"
clusters = [{ name = "north", hosts = 2 }, { name = "west", hosts = 2 }]
links = [{ between = ["north", "west"], latency = "7 ms" }]
"""

Run = Callable[..., Any]


def measured() -> GridModel:
    hosts = ["north-0", "north-1", "south-0", "south-1"]
    near, far = linear_plogp(50e-6, 12.5e6), linear_plogp(5e-3, 12.5e6)
    grid = Grid.from_labels(["north", "north", "south", "south"], hosts)
    return GridModel(grid, ((near, far), (far, near)), "measured", mpi="MPICH")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("GRIDCOLL_CACHE", str(path))
    Folder(path / "v1").update(lambda here: learn_model(here, measured()))
    return path


def test_path(place: Path, gridcoll: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gridcoll("cache", "path").out.strip() == str(place)
    monkeypatch.setenv("GRIDCOLL_CACHE", "off")
    assert gridcoll("cache", "path").out.strip() == "off"
    ran = gridcoll("cache", "forget", "north")
    assert ran.code == 2
    assert "the cache is off" in ran.err


def test_path_says_that_the_sites_cannot_be_read(
    place: Path, gridcoll: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_SITE_CACHE", "/nowhere")
    ran = gridcoll("cache", "path")
    assert ran.out.strip() == str(place)
    assert "GRIDCOLL_SITE_CACHE: cannot read /nowhere: No such file" in ran.err
    monkeypatch.setenv("GRIDCOLL_SITE_CACHE", str(place))
    assert gridcoll("cache", "path").err == ""


def test_list(place: Path, gridcoll: Run) -> None:
    lines = gridcoll("cache", "list").out.splitlines()
    assert any(line.split()[:2] == ["hosts", "north-0"] for line in lines)
    rows = json.loads(gridcoll("cache", "list", "--json").out)
    assert {row["kind"] for row in rows} >= {"hosts", "clusters", "links", "libraries"}
    assert all(row["count"] == 1 for row in rows)


@pytest.mark.parametrize("command", [("cache", "show"), ("show",)])
def test_show(place: Path, gridcoll: Run, command: tuple[str, ...]) -> None:
    assert "measured" in gridcoll(*command).out
    rows = json.loads(gridcoll(*command, "--json").out)
    (link,) = [row for row in rows if (row["sender"], row["receiver"]) == ("north", "south")]
    assert link["latency_s"] == 5e-3
    inside = next(row for row in rows if row["receiver"] == row["sender"] == "north")
    assert inside["latency_s"] == 50e-6
    assert (link["origin"], link["count"], link["mpi"]) == ("measured", 1, "MPICH")


@pytest.mark.parametrize(
    ("what", "hosts", "links"),
    [
        ("north", {"south-0", "south-1"}, 0),
        ("north-0", {"north-1", "south-0", "south-1"}, 2),
        ("south--north", {"north-0", "north-1", "south-0", "south-1"}, 0),
    ],
)
def test_forget(place: Path, gridcoll: Run, what: str, hosts: set[str], links: int) -> None:
    assert gridcoll("cache", "forget", what).code == 0
    rows = json.loads(gridcoll("cache", "list", "--json").out)
    assert {row["name"] for row in rows if row["kind"] == "hosts"} == hosts
    assert len([row for row in rows if row["kind"] == "links"]) == links


def test_forgetting_what_is_not_there_is_an_error(place: Path, gridcoll: Run) -> None:
    ran = gridcoll("cache", "forget", "nowhere")
    assert ran.code == 2
    assert "'nowhere'" in ran.err


def test_what_is_declared_is_forgotten_with_its_grid(
    place: Path, gridcoll: Run, tmp_path: Path
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GRID)
    assert gridcoll("cache", "import", str(file)).code == 0
    ran = gridcoll("cache", "forget", "west")
    assert ran.code == 2
    assert "declared" in ran.err
    assert "mine" in ran.err
    assert gridcoll("cache", "forget", "mine").code == 0
    rows = json.loads(gridcoll("cache", "list", "--json").out)
    assert {row["origin"] for row in rows} == {"measured"}


def test_what_an_administrator_measured_is_not_forgotten(
    place: Path, gridcoll: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_SITE_CACHE", str(place))
    monkeypatch.setenv("GRIDCOLL_CACHE", str(tmp_path / "other"))
    ran = gridcoll("cache", "forget", "north")
    assert ran.code == 2
    assert "GRIDCOLL_SITE_CACHE" in ran.err


def test_export_and_import(
    place: Path, gridcoll: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "all.json")
    assert gridcoll("cache", "export", file).code == 0
    before = gridcoll("cache", "list", "--json").out
    monkeypatch.setenv("GRIDCOLL_CACHE", str(tmp_path / "other"))
    assert gridcoll("cache", "list", "--json").out.strip() == "[]"
    assert gridcoll("cache", "import", file).code == 0
    assert gridcoll("cache", "list", "--json").out == before


def test_a_measured_model_is_taken(
    gridcoll: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_CACHE", str(tmp_path / "other"))
    file = tmp_path / "grid.json"
    write_model(measured(), file)
    assert gridcoll("cache", "import", str(file)).code == 0
    assert "north-0" in gridcoll("cache", "list").out


@pytest.mark.parametrize("content", ["", "{}", '{"format": "gridcoll-cache", "version": 1}'])
def test_a_file_that_is_none_is_an_error(
    place: Path, gridcoll: Run, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    ran = gridcoll("cache", "import", str(file))
    assert ran.code == 2
    assert "bad.json" in ran.err
    assert gridcoll("cache", "import", str(tmp_path / "none.json")).code == 2


def test_declared_and_measured_beside_each_other(
    place: Path, gridcoll: Run, tmp_path: Path
) -> None:
    """Declared where nobody measured; `show` says which is which, of the cache and of a file."""
    file = tmp_path / "mine.toml"
    file.write_text(GRID)
    said = gridcoll("show", str(file)).out
    assert any("west" in line and "declared" in line for line in said.splitlines())
    assert any("inside" in line and "measured" in line for line in said.splitlines())
    assert gridcoll("cache", "import", str(file)).code == 0
    rows = json.loads(gridcoll("cache", "show", "--json").out)
    origins = {(row["sender"], row["receiver"]): row["origin"] for row in rows}
    assert origins["north", "west"] == "declared"
    assert origins["north", "south"] == origins["north", "north"] == "measured"


def test_a_damaged_entry_is_said(place: Path, gridcoll: Run) -> None:
    (place / "v1" / "hosts" / "north-0.json").write_text("{")
    ran = gridcoll("cache", "list")
    assert ran.code == 0
    assert "north-0.json" in ran.err
