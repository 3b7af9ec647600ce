from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.model import TimesBySize, write_model
from gridcoll.plan import choose
from gridcoll.plan.cost import price_plan

GRID = """
version = 1
name = "duo"
clusters = [{ name = "a", hosts = 3, nic = "100 Mbit/s" }, { name = "b", hosts = 2 }]
links = [{ between = ["a", "b"], latency = "7 ms", rate = "50 Mbit/s" }]
"""


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "duo.toml"
    path.write_text(GRID)
    return str(path)


def test_json_is_the_choice(grid, gridcoll):
    said = json.loads(gridcoll("explain", "bcast", "--grid", grid, "--sizes", "64K", "--json").out)
    choice = choose("bcast", load_model(grid), 65536, 0)
    assert said == choice.to_dict()
    assert said["winner"] == choice.winner.name
    assert [c["won"] for c in said["candidates"]].count(True) == 1
    assert said["candidates"][-1]["name"] == "native"
    assert said["candidates"][-1]["predicted_s"] is None
    times = [c["predicted_s"] for c in said["candidates"][:-1]]
    assert times == sorted(times)
    assert any(c["store_and_forward_s"] for c in said["candidates"])


def test_the_table_merges_what_comes_to_the_same(grid, gridcoll):
    merged = gridcoll("explain", "bcast", "--grid", grid, "--sizes", "1K").out
    everything = gridcoll("explain", "bcast", "--grid", grid, "--sizes", "1K", "--all").out
    assert merged.startswith("bcast of 1 KiB, root 0: ")
    assert "fef, ecef" in merged
    assert "fef, ecef" not in everything
    assert len(everything.splitlines()) > len(merged.splitlines())
    assert "not measured" in merged


def test_text_of_a_choice(grid):
    choice = choose("bcast", load_model(grid), 1024, 2)
    lines = str(choice).splitlines()
    assert lines[0] == f"bcast of 1 KiB, root 2: {choice.winner.name}, {choice.reason}"
    assert [line.startswith("*") for line in lines].count(True) == 1
    won = next(line for line in lines if line.startswith("*"))
    assert choice.winner.name in won
    assert choice.winner.label in won


def test_native_takes_part_where_it_was_measured(grid, gridcoll, tmp_path):
    native = {"bcast": TimesBySize((8, 1 << 20), (1e-6, 2e-6))}
    write_model(replace(load_model(grid), native=native), tmp_path / "m.json")
    said = json.loads(
        gridcoll(
            "explain", "bcast", "--grid", str(tmp_path / "m.json"), "--sizes", "8", "--json"
        ).out
    )
    assert said["winner"] == "native"
    assert said["candidates"][0]["predicted_s"] == pytest.approx(1e-6)


def test_a_variant_takes_part_where_it_was_measured(grid, gridcoll, tmp_path):
    model = replace(
        load_model(grid),
        native={"bcast": TimesBySize((8,), (1e-6,))},
        native_variants={"bcast": {"native-nonblocking": TimesBySize((8,), (5e-7,))}},
    )
    write_model(model, tmp_path / "m.json")
    ask = ("explain", "bcast", "--grid", str(tmp_path / "m.json"), "--sizes", "8")
    said = json.loads(gridcoll(*ask, "--json").out)
    assert said["winner"] == "native-nonblocking"
    assert [c["name"] for c in said["candidates"][:2]] == ["native-nonblocking", "native"]
    assert "measured more than 5% faster than native" in said["reason"]
    assert "non-blocking" in gridcoll(*ask).out
    said = json.loads(gridcoll(*ask, "--json", "--algorithm", "native").out)
    assert said["winner"] == "native"


def test_several_sizes_are_a_table(grid, gridcoll):
    arguments = ("explain", "bcast", "--grid", grid, "--sizes", "8,1M")
    said = json.loads(gridcoll(*arguments, "--json").out)
    assert [choice["n_bytes"] for choice in said] == [8, 1 << 20]
    out = gridcoll(*arguments).out
    assert "8 B" in out
    assert "1 MiB" in out
    assert gridcoll(*arguments, "--gantt").code == 2


def test_charts(grid, gridcoll, tmp_path):
    png, svg = tmp_path / "g.png", tmp_path / "g.svg"
    arguments = ("explain", "bcast", "--grid", grid, "--sizes", "64K", "--algorithm", "chain")
    ran = gridcoll(*arguments, "--gantt", "--plot", str(png), "--plot", str(svg))
    model = load_model(grid)
    made = choose("bcast", model, 65536, 0, forced="chain").winner
    makespan_s = price_plan(made.build(65536), model).makespan_s
    assert f"{1e3 * makespan_s:.3g} ms simulated" in ran.out
    assert len([line for line in ran.out.splitlines() if "░" in line]) >= 5
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "sends to another cluster" in svg.read_text()
    said = json.loads(gridcoll(*arguments, "--simulate", "--json").out)
    (simulated,) = [c["simulated_s"] for c in said["candidates"] if c["won"]]
    assert simulated == makespan_s


def test_every_plan_is_simulated_beside_its_prediction(grid, gridcoll):
    arguments = ("explain", "bcast", "--grid", grid, "--sizes", "64K", "--simulate")
    assert "simulated" in gridcoll(*arguments).out
    for candidate in json.loads(gridcoll(*arguments, "--json").out)["candidates"]:
        if candidate["name"] != "native":
            assert candidate["simulated_s"] == pytest.approx(candidate["predicted_s"], rel=0.05)
        else:
            assert "simulated_s" not in candidate
    several = gridcoll("explain", "bcast", "--grid", grid, "--sizes", "8,1K", "--simulate")
    assert "simulated" in several.out
    assert several.err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bcst", "--sizes", "8"], "collective 'bcst': known are "),
        (["bcast", "--sizes", "8x"], "size '8x'"),
        (["bcast", "--sizes", "8", "--root", "5"], "root: must be in 0..4, got 5"),
        (["bcast", "--sizes", "8", "--algorithm", "x"], "bcast algorithm 'x': known are native"),
        (["bcast", "--sizes", "8", "--algorithm", "native", "--gantt"], "only the native one"),
    ],
)
def test_mistakes(grid, gridcoll, arguments, says):
    ran = gridcoll("explain", *arguments, "--grid", grid)
    assert ran.code == 2
    assert says in ran.err


COUNTS = """
0 9000 9000 90000 9000
9000, 0, 9000, 90000, 9000
9000 9000 0 90000 9000
1 1 1 0 1
0 0 0 0 0
"""


def test_unequal_blocks_are_explained_by_their_counts(grid, gridcoll, tmp_path):
    path = tmp_path / "counts.txt"
    path.write_text(COUNTS)
    said = gridcoll("explain", "alltoallv", "--grid", grid, "--counts", str(path), "--simulate").out
    assert said.startswith("alltoallv of ")
    assert "direct" in said
    forced = "explain", "alltoallv", "--grid", grid, "--counts", str(path), "--algorithm", "lg"
    assert json.loads(gridcoll(*forced, "--json").out)["winner"].startswith("lg")


@pytest.mark.parametrize("text", ["1 2\n3\n", "1 2 3", "a", "", "-1 " * 25])
def test_counts_that_are_no_matrix_of_the_grid_are_refused(grid, gridcoll, tmp_path, text):
    path = tmp_path / "counts.txt"
    path.write_text(text)
    ran = gridcoll("explain", "alltoallv", "--grid", grid, "--counts", str(path))
    assert ran.code
    assert "counts" in ran.err


def test_counts_are_for_alltoallv_and_sizes_for_others(grid, gridcoll):
    for call in (
        ("alltoallv", "--sizes", "1K"),
        ("bcast", "--counts", "x"),
        ("alltoallv", "--sizes", "1K", "--counts", "x"),
        ("bcast",),
    ):
        ran = gridcoll("explain", *call, "--grid", grid)
        assert ran.code
        assert "--counts FILE" in ran.err


def test_a_barrier_has_no_size(grid, gridcoll):
    ran = gridcoll("explain", "barrier", "--grid", grid)
    assert ran.code == 0
    choice = choose("barrier", load_model(grid), 1, 0)
    assert ran.out.startswith(f"barrier: {choice.winner.name}, {choice.reason}\n")
