from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gridcoll.cli.select_command import command
from gridcoll.errors import FileError, GridcollError, UsageError
from gridcoll.model import declared_model, write_model
from gridcoll.plan import choose
from gridcoll.topology import read_gridfile

GRID = """
version = 1
name = "trio"
rank_order = "interleaved"
[[clusters]]
name = "near"
hosts = 2
slots = 2
[[clusters]]
name = "far"
hosts = 2
[[clusters]]
name = "next"
hosts = ["n1", "n2", "n3"]
[[links]]
between = ["near", "next"]
latency = "1 ms"
[[links]]
between = ["near", "far"]
latency = "1 s"
[[links]]
between = ["next", "far"]
latency = "1 s"
"""

PROBLEM = """
version = 1
name = "p"
grid = "grid.toml"
n_elements = 100000
[[phases]]
name = "all"
alpha_s = 1e-5
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    (tmp_path / "grid.toml").write_text(GRID)
    path = tmp_path / "problem.toml"
    path.write_text(PROBLEM)
    return path


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_json(problem: Path) -> None:
    data = json.loads(invoke(problem, "--json").stdout)
    assert data["best"]["clusters"] == ["near", "next"]
    assert data["proven"] is True
    assert data["best"]["n_hosts"] == 5
    parts = data["best"]
    assert parts["iteration_s"] == pytest.approx(
        parts["compute_s"] + 2 * parts["update_s"] + 4 * parts["allreduce_s"]
    )
    assert parts["compute_s"] == pytest.approx(sum(phase["s"] for phase in parts["phases_s"]))
    assert data["runner_up"]["clusters"] == ["near"]  # four processes on two hosts
    assert {change["cluster"]: change["kind"] for change in data["changes"]} == {
        "near": "drop", "far": "add", "next": "drop",
    }  # fmt: skip
    assert list(data["other_allreduce_forms"]) == ["two-level"]


def test_tables(problem: Path) -> None:
    text = invoke(problem).stdout
    for words in ("near, next", "2 of 3 clusters", "proven optimal", "runner-up", "two-level"):
        assert words in text
    assert "UPDATEs" in text
    assert "add far" in text


def test_the_problem_can_be_changed_from_outside(problem: Path, tmp_path: Path) -> None:
    data = json.loads(invoke(problem, "--json", "--elements", "10").stdout)
    assert data["n_elements"] == 10
    assert data["best"]["clusters"] == ["near"]  # 10 elements need no second cluster
    data = json.loads(invoke(problem, "--json", "--allreduce", "two-level").stdout)
    assert data["best"]["allreduce_s"] > 1e-3
    other = tmp_path / "other.toml"
    other.write_text(GRID.replace('"1 ms"', '"1 s"').replace("trio", "scattered"))
    data = json.loads(invoke(problem, "--json", "--grid", other).stdout)
    assert data["grid"] == "scattered"
    assert data["best"]["clusters"] == ["near"]


def test_allreduce_priced_by_our_own_plan(problem: Path) -> None:
    data = json.loads(invoke(problem, "--json", "--allreduce", "plan").stdout)
    assert list(data["other_allreduce_forms"]) == ["latency", "two-level"]
    paper = data["other_allreduce_forms"]["latency"]
    assert data["best"]["clusters"] == paper["clusters"] == ["near", "next"]
    spec = read_gridfile(problem.parent / "grid.toml")
    hosts = [host for host in spec.host_order() if not host.startswith("far")]
    choice = choose("allreduce", declared_model(spec, hosts), 56, 0, grid_only=True)
    assert data["best"]["allreduce_s"] == pytest.approx(choice.winner.predicted_s)
    assert data["best"]["allreduce_s"] > paper["allreduce_s"]


def test_a_plan_for_one_rank(problem: Path) -> None:
    """A cluster of one host needs no allreduce; it must not stop the others being priced."""
    (problem.parent / "grid.toml").write_text(GRID.replace('["n1", "n2", "n3"]', "1"))
    data = json.loads(invoke(problem, "--json", "--allreduce", "plan").stdout)
    assert data["best"]["clusters"] == ["near", "next"]
    data = json.loads(
        invoke(problem, "--json", "--allreduce", "plan", "--search", "exhaustive").stdout
    )
    assert data["best"]["clusters"] == ["near", "next"]


def test_measured_model_for_a_grid(problem: Path, tmp_path: Path) -> None:
    spec = read_gridfile(problem.parent / "grid.toml")
    path, hosts = tmp_path / "model.json", tmp_path / "hosts"
    write_model(declared_model(spec, spec.rank_hosts()), path)
    arguments = ["--grid", path, "--allreduce", "plan", "--hostfile", hosts, "--mpi", "mpich"]
    data = json.loads(invoke(problem, "--json", *arguments).stdout)
    assert sorted(data["best"]["clusters"]) == ["near", "next"]
    assert hosts.read_text() == "near-0:2\nn1:1\nnear-1:2\nn2:1\nn3:1\n"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("openmpi", "near-0 slots=2\nn1 slots=1\nnear-1 slots=2\nn2 slots=1\nn3 slots=1\n"),
        ("mpich", "near-0:2\nn1:1\nnear-1:2\nn2:1\nn3:1\n"),
        ("impi", "near-0:2\nn1:1\nnear-1:2\nn2:1\nn3:1\n"),
        ("slurm", "near-0\nnear-0\nn1\nnear-1\nnear-1\nn2\nn3\n"),
    ],
)
def test_hostfiles_have_the_chosen_hosts_only(
    problem: Path, tmp_path: Path, kind: str, text: str
) -> None:
    path = tmp_path / "hosts"
    result = invoke(problem, "--json", "--hostfile", path, "--mpi", kind)
    assert path.read_text() == text
    assert f"{path}" in result.stderr
    assert "-n 7" in result.stderr
    json.loads(result.stdout)


def test_plot(problem: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    invoke(problem, "--plot", tmp_path / "around.png")
    assert (tmp_path / "around.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--search", "tabu"], "unknown search 'tabu'; known are exhaustive"),
        (["--elements", "0"], "n_elements: must be positive, got 0"),
        (["--elements", "-5"], "n_elements: must be positive, got -5"),
        (["--allreduce", "tree"], "allreduce: form: 'tree' is unknown"),
        (["--grid", "no-such-grid"], "grid 'no-such-grid': no such file"),
        (["--hostfile", "x"], "--hostfile and --mpi: give both or neither"),
        (["--mpi", "mpich"], "--hostfile and --mpi: give both or neither"),
        (["--mpi", "lam", "--hostfile", "x"], "--mpi 'lam': unknown; known are openmpi"),
        (["--mpi", "mpich", "--hostfile", "/nowhere/x"], "cannot write /nowhere/x: No such"),
        (["--plot", "x.gif"], "picture x.gif: must be png or svg"),
    ],
)
def test_mistakes(problem: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(GridcollError) as caught:
        invoke(problem, *arguments)
    assert message in str(caught.value)


def test_unknown_cluster(problem: Path) -> None:
    problem.write_text(PROBLEM.replace("1e-5", "{near = 1e-5, next = 1e-5, far = 1e-5, lyon = 1}"))
    with pytest.raises(UsageError, match="phase 'all': alpha_s: cluster 'lyon' is unknown"):
        invoke(problem)


def test_no_grid(problem: Path) -> None:
    problem.write_text(PROBLEM.replace('grid = "grid.toml"', ""))
    with pytest.raises(UsageError, match="grid: not given; name one with --grid"):
        invoke(problem)


def test_grid_without_hosts(problem: Path) -> None:
    (problem.parent / "grid.toml").write_text(
        'version = 1\nname = "r"\n[[clusters]]\nname = "a"\nranks = 3\n'
    )
    with pytest.raises(UsageError, match="cluster 'a': hosts: placement chooses hosts"):
        invoke(problem)


def test_bad_problem_file(problem: Path) -> None:
    problem.write_text(PROBLEM.replace("100000", "0"))
    with pytest.raises(FileError, match=r"problem.toml: n_elements: must be positive, got 0"):
        invoke(problem)
