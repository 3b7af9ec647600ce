from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gridcoll.errors import UsageError
from gridcoll.study import STUDIES
from gridcoll.study.faces_command import bisect, count_faces, cube_mesh
from gridcoll.study.faces_command import command as faces_command
from gridcoll.study.placement_command import (
    CASE_KINDS,
    LATENCIES,
    command,
    find_kind,
    run_cases,
    tree_latencies,
)
from gridcoll.study.placement_meshes_command import command as meshes_command
from tests.study.drawing import expected_fail_permille

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "placement"


def draws(name: str, n: int):  # type: ignore[no-untyped-def]
    kind = CASE_KINDS[name]
    return [kind.draw(np.random.default_rng(case), kind.n_elements) for case in range(n)]


def test_registered() -> None:
    assert "placement" in STUDIES
    assert "placement-meshes" in STUDIES


def test_heterogeneous_as_described() -> None:
    for cost in draws("heterogeneous", 50):
        grid = cost.resources
        assert grid.n_clusters == 12
        assert len(set(grid.regions)) == 2
        assert all(grid.sites.count(site) == 2 for site in grid.sites)
        assert grid.n_hosts.min() >= 16
        assert grid.n_hosts.max() <= 64
        assert len(set(cost.host_power.tolist())) == 12


def test_very_heterogeneous_as_described() -> None:
    costs = draws("very-heterogeneous", 300)
    sizes = [cost.n_clusters for cost in costs]
    assert min(sizes) <= 2
    assert max(sizes) == 120
    hosts = np.concatenate([cost.resources.n_hosts for cost in costs])
    assert (hosts.min(), hosts.max()) == (8, 128)
    assert {len(set(cost.resources.regions)) for cost in costs} == {1, 2, 3, 4}


def test_close_to_homogeneous_as_described() -> None:
    for cost in draws("close-to-homogeneous", 20):
        grid = cost.resources
        assert sorted(grid.sites.count(site) for site in set(grid.sites)) == [4, 4]
        assert set(grid.regions) == {"country0"}
        assert set(grid.n_hosts.tolist()) <= {64, 128}
        assert len(set(cost.host_power.tolist())) == 1


def test_latencies_by_innermost_branch() -> None:
    places = [(i, j) for i in range(3) for j in range(4) for _ in range(3)]
    country, city = np.array(places).T
    for seed in range(20):
        latency_s = tree_latencies(np.random.default_rng(seed), places)
        assert (latency_s == latency_s.T).all()
        same_country = country[:, None] == country
        same_city = same_country & (city[:, None] == city)
        other = ~np.eye(len(places), dtype=bool)
        for where, low, high in (
            (~same_country, 0.05, 0.1),
            (same_country & ~same_city, 0.01, 0.05),
            (same_city & other, 0.001, 0.005),
        ):
            assert latency_s[where].min() >= low
            assert latency_s[where].max() <= high
        detours = latency_s[:, :, None] + latency_s[None, :, :]
        assert (latency_s[:, None, :] <= detours + 1e-12).all()


def test_cases_are_seeded_and_do_not_lean_on_one_another() -> None:
    kind = CASE_KINDS["heterogeneous"]

    def results(n_cases: int, seed: int):  # type: ignore[no-untyped-def]
        return [(row.search, row.error_percent) for row in run_cases(kind, n_cases, seed)]

    assert results(3, 1) == results(3, 1)
    assert results(3, 1) != results(3, 2)


def test_orderings_of_table_1() -> None:
    rows = {row.search: row for row in run_cases(CASE_KINDS["heterogeneous"], 30)}
    assert rows["exhaustive"].fail_permille == 0
    assert rows["branch-and-bound"].fail_permille == 0
    assert rows["grouping"].fail_permille == 0
    assert rows["random"].fail_permille == 1000
    assert rows["random-1k"].fail_permille > 500
    assert rows["annealing"].fail_permille > 300
    assert rows["annealing-grouping"].fail_permille == 0


@pytest.mark.long
def test_orderings_of_table_3() -> None:
    rows = {row.search: row for row in run_cases(CASE_KINDS["close-to-homogeneous"], 40)}
    fails = {name: row.fail_permille for name, row in rows.items()}
    assert fails["exhaustive"] == fails["branch-and-bound"] == 0
    assert fails["grouping"] <= fails["random-1k"] < fails["greedy"] < fails["annealing"]
    assert fails["annealing-grouping"] == 0


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="unknown test case 'flat'; known are heterogeneous"):
        find_kind("flat")
    with pytest.raises(UsageError, match="cases: must be at least 1, got 0"):
        run_cases(CASE_KINDS["heterogeneous"], 0)


def test_command(tmp_path: Path) -> None:
    arguments = ["--case", "close-to-homogeneous", "--cases", "3", "--output", str(tmp_path)]
    text = CliRunner().invoke(command, arguments, catch_exceptions=False).stdout
    assert "Table 3" in text
    assert "127" in text  # the paper's failures of greedy
    with (tmp_path / "placement-table-3.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["search"] for row in rows] == list(CASE_KINDS["close-to-homogeneous"].searches)
    result = CliRunner().invoke(command, [*arguments[:4], "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)[0]["table"] == 3


def test_bigger_meshes_choose_more_clusters() -> None:
    """Table 5's trend on a grid of 25 clusters."""
    arguments = [str(BENCHMARKS / "grid5000-25.toml"), "--alone", "orsay", "--json"]
    result = CliRunner().invoke(meshes_command, arguments, catch_exceptions=False)
    rows = json.loads(result.stdout)
    counts = [row["n_clusters"] for row in rows]
    assert counts == sorted(counts)
    assert counts[0] < counts[1] < counts[-1] == 25
    assert all(row["proven"] for row in rows)
    assert all(row["iteration_s"] <= row["alone_iteration_s"] for row in rows)


def test_meshes_table_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "figure-2.svg"
    arguments = [
        str(BENCHMARKS / "cem-five-588k.toml"), "--elements", "588000,2480674", "--plot", str(plot),
    ]  # fmt: skip
    text = CliRunner().invoke(meshes_command, arguments, catch_exceptions=False).stdout
    assert "588,000" in text
    assert "all" in text
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alone", "atlantis"], "--alone 'atlantis': unknown site; the grid has bordeaux"),
        (["--elements", "1,many"], "--elements '1,many': must be whole numbers"),
        (["--elements", "0"], "n_elements: must be positive, got 0"),
    ],
)
def test_meshes_mistakes(arguments: list[str], message: str) -> None:
    path = str(BENCHMARKS / "grid5000-25.toml")
    result = CliRunner().invoke(meshes_command, [path, *arguments])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_latencies_by_branch() -> None:
    """Of every reading: symmetric, and two clusters of one city nearer than those of two."""
    places = [(i, j) for i in range(2) for j in range(2) for _ in range(2)]
    for name, draw in LATENCIES.items():
        latency_s = draw(np.random.default_rng(1), places)
        assert (latency_s == latency_s.T).all(), name
        assert latency_s[0, 1] < latency_s[0, 2] < latency_s[0, 4], name
        assert latency_s[0, 0] == 44e-6
    longest, together = (
        LATENCIES[name](np.random.default_rng(1), places)
        for name in ("longest-branch", "sum-of-branches")
    )
    outside = ~np.eye(len(places), dtype=bool)
    assert (longest < together)[outside].all()
    assert (together <= 6 * longest).all()


@pytest.mark.long
def test_random_failures_are_those_of_even_drawing() -> None:
    """Paper 004's Table 1 and 3 for a thousand tries; its 688 for one try contradicts them."""
    assert expected_fail_permille(12, 1000) == pytest.approx(782, abs=2)
    assert expected_fail_permille(8, 1000) == pytest.approx(15, abs=6)
    assert expected_fail_permille(8, 1) == pytest.approx(996, abs=0.2)
    rows = {row.search: row for row in run_cases(CASE_KINDS["close-to-homogeneous"], 60)}
    assert rows["random"].fail_permille > 900


def test_faces_of_a_cube() -> None:
    """Figure 1 of paper 004: halves of a cube share one side's faces, two per cell."""
    mesh = cube_mesh(6 * 8**3)
    assert mesh.n_elements == 6 * 8**3
    inner = 4 * mesh.n_elements - 6 * 2 * 8**2  # each face of two, less the surface's
    assert len(mesh.faces) == inner / 2
    halves = count_faces(mesh, bisect(mesh, 2))
    assert halves.most == halves.mean == 2 * 8**2
    parts = bisect(mesh, 7)
    assert set(np.bincount(parts)) <= {len(parts) // 7, len(parts) // 7 + 1}
    with pytest.raises(UsageError, match="elements"):
        cube_mesh(0)


def test_faces_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        faces_command,
        ["--elements", "5000", "--hosts", "2,8", "--json", "--plot", str(tmp_path / "f.svg")],
        catch_exceptions=False,
    )
    assert [row["n_parts"] for row in json.loads(result.output)] == [2, 8]
    assert "Figure 1" in (tmp_path / "f.svg").read_text()
    for hosts in ("1", "x", "9000"):
        with pytest.raises(UsageError, match="hosts"):
            CliRunner().invoke(
                faces_command, ["--elements", "5000", "--hosts", hosts], catch_exceptions=False
            )
