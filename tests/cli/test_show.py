from __future__ import annotations

import json

import pytest

from gridcoll.cli.gridmap import format_ranks
from gridcoll.cli.models import load_model
from gridcoll.model import write_model

GRID = """
version = 1
name = "trio"
clusters = [
    { name = "a", site = "north", hosts = 2, slots = 2, nic = "100 Mbit/s" },
    { name = "b", site = "north", hosts = 1, nic = "100 Mbit/s" },
    { name = "c", hosts = 12, nic = "1 Gbit/s", latency = "80 us" },
]
links = [
    { between = ["a", "b"], latency = "1 ms" },
    { between = ["north", "c"], latency = "7 ms", rate = "20 Mbit/s" },
]
"""


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "trio.toml"
    path.write_text(GRID)
    return str(path)


def test_the_map_names_who_and_what_lies_between(grid, gridcoll):
    ran = gridcoll("show", grid)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].strip() == "trio  17 ranks on 15 hosts, 3 clusters, declared"
    assert any("site north" in line for line in lines)
    assert any("a-0  ranks 0-1  coordinator 0" in line for line in lines)
    assert any("c-11  rank 16" in line for line in lines)
    assert not any("c-5 " in line for line in lines)  # twelve hosts are too many to list
    assert any("8 more hosts" in line for line in lines)
    assert any("80 us, 1 Gbit/s inside" in line for line in lines)
    row = next(k for k, line in enumerate(lines) if line.startswith("│ a "))
    assert "1\N{NO-BREAK SPACE}ms" in lines[row]
    assert "7\N{NO-BREAK SPACE}ms" in lines[row]
    assert "100\N{NO-BREAK SPACE}Mbit/s" in lines[row + 1]
    assert "20\N{NO-BREAK SPACE}Mbit/s" in lines[row + 1]


def test_json_says_the_same_as_data(grid, gridcoll):
    said = json.loads(gridcoll("show", grid, "--json").out)
    assert (said["name"], said["origin"], said["n_ranks"]) == ("trio", "declared", 17)
    assert [cluster["coordinator"] for cluster in said["clusters"]] == [0, 4, 5]
    assert said["clusters"][0]["hosts"] == ["a-0", "a-0", "a-1", "a-1"]
    link = next(x for x in said["links"] if (x["sender"], x["receiver"]) == (2, 0))
    assert link["latency_s"] == pytest.approx(7e-3)
    assert link["rate_bytes_per_s"] == pytest.approx(2.5e6)
    assert len(said["links"]) == 9  # of b, which has one process, what its interface carries


def test_a_measured_model_is_read_as_well(grid, gridcoll, tmp_path):
    path = tmp_path / "model.json"
    write_model(load_model(grid), path)
    assert json.loads(gridcoll("show", str(path), "--json").out) == json.loads(
        gridcoll("show", grid, "--json").out
    )


def test_a_broken_model_file_is_an_error(gridcoll, tmp_path):
    (tmp_path / "model.json").write_text("{}")
    ran = gridcoll("show", str(tmp_path / "model.json"))
    assert ran.code == 2
    assert "FileError: model file" in ran.err


def test_pictures_are_written_and_repeat(grid, gridcoll, tmp_path):
    png, svg = tmp_path / "map.png", tmp_path / "map.svg"
    assert gridcoll("show", grid, "--plot", str(png), "--plot", str(svg)).code == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    first = svg.read_text()
    for text in ("trio", "north", ">a<", ">b<", ">c<", "7 ms", "20 Mbit/s", "12 ranks"):
        assert text in first
    gridcoll("show", grid, "--plot", str(svg))
    assert svg.read_text() == first


def test_a_picture_that_cannot_be_written_is_an_error(grid, gridcoll, tmp_path):
    ran = gridcoll("show", grid, "--plot", str(tmp_path / "none" / "map.png"))
    assert ran.code == 2
    assert "cannot write" in ran.err


def test_a_grid_declared_by_ranks_needs_no_hosts(gridcoll, tmp_path):
    path = tmp_path / "ranks.toml"
    path.write_text(
        'version = 1\nname = "r"\nclusters = [{ name = "a", ranks = [0, 2] },'
        ' { name = "b", ranks = [1] }]\ndefault_link = { latency = "1 ms" }\n'
    )
    said = json.loads(gridcoll("show", str(path), "--json").out)
    assert [cluster["ranks"] for cluster in said["clusters"]] == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 9], "0, 2-3, 9")]
)
def test_format_ranks(ranks, text):
    assert format_ranks(ranks) == text


def test_many_clusters_are_drawn_by_site(gridcoll, tmp_path):
    names = [f"c{k}" for k in range(12)]
    clusters = "".join(
        f'{{ name = "{name}", site = "s{k // 4}", hosts = {k + 1} }},'
        for k, name in enumerate(names)
    )
    links = 'default_link = { latency = "3 ms" }'
    path, svg = tmp_path / "many.toml", tmp_path / "many.svg"
    path.write_text(f'version = 1\nname = "many"\nclusters = [{clusters}]\n{links}\n')
    assert gridcoll("show", str(path), "--plot", str(svg)).code == 0
    text = svg.read_text()
    for word in (*names, "s0", "s1", "s2"):
        assert f">{word}<" in text
    assert text.count(">3 ms<") == 2  # three sites, two links of their spanning tree
