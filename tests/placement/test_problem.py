from __future__ import annotations

from pathlib import Path

import pytest

from gridcoll.errors import FileError, UsageError
from gridcoll.placement import IterationCost, Phase, Problem, Resources, parse_problem, read_problem
from gridcoll.topology import read_gridfile

EXAMPLES = sorted((Path(__file__).parents[2] / "benchmarks" / "placement").glob("*.toml"))

MINIMAL = """
version = 1
n_elements = 5000
[[phases]]
name = "all"
alpha_s = 1e-5
"""


def test_defaults_are_the_papers() -> None:
    problem = parse_problem(MINIMAL).problem
    update = problem.update
    assert (update.count, update.mode, update.face_bytes) == (2, "blocking", 48)
    assert (update.beta_host, update.beta_cluster, update.bandwidth_factor) == (5, 1, 0.5)
    assert (problem.allreduce.count, problem.allreduce.form) == (4, "latency")
    assert problem.memory is None


def test_everything_said() -> None:
    text = """
        version = 1
        name = "x"
        description = "y"
        grid = "../g.toml"
        n_elements = 7
        [[phases]]
        name = "p"
        overlaps_update = 3
        [phases.alpha_s]
        a = 1e-5
        b = 2e-5
        [update]
        count = 3
        mode = "overlapped"
        face_bytes = 8
        beta_host = 1.5
        beta_cluster = 0
        bandwidth_factor = 1.0
        [allreduce]
        count = 0
        form = "two-level"
        [memory]
        element_bytes = 600
        host = {a = "1 GiB", b = "2 GiB"}
    """
    stated = parse_problem(text, "/some/where/p.toml")
    problem = stated.problem
    assert stated.grid == Path("/some/where/../g.toml")
    assert problem.phases[0].alpha_s == {"a": 1e-5, "b": 2e-5}
    assert problem.phases[0].overlaps_update == 3
    assert (problem.update.mode, problem.update.beta_cluster) == ("overlapped", 0)
    assert problem.memory is not None
    assert problem.memory.host == {"a": "1 GiB", "b": "2 GiB"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL.replace("5000", "0"), "n_elements: must be positive, got 0"),
        (MINIMAL.replace("5000", "-3"), "n_elements: must be positive, got -3"),
        (MINIMAL.replace("5000", '"many"'), "n_elements: Expected `int`"),
        (MINIMAL.replace("n_elements = 5000\n", ""), "Object missing required field `n_elements`"),
        (MINIMAL.replace("1e-5", "0.0"), "phase 'all': alpha_s: must be positive, got 0.0"),
        (MINIMAL.replace("1e-5", "-1"), "phase 'all': alpha_s: must be positive, got -1"),
        (MINIMAL.replace("1e-5", "nan"), "phase 'all': alpha_s: must be positive, got nan"),
        (MINIMAL.replace("1e-5", "inf"), "phase 'all': alpha_s: must be positive, got inf"),
        (MINIMAL.replace("1e-5", "{a = 0}"), "phase 'all': alpha_s of cluster 'a'.*got 0"),
        (MINIMAL.replace("alpha_s = 1e-5", ""), r"phases\[0\]: Object missing.*`alpha_s`"),
        (MINIMAL + "speed = 3\n", r"phases\[0\]: Object contains unknown field `speed`"),
        (MINIMAL + "overlaps_update = 3\n", r"phase 'all': overlaps_update: must be 1 to 2.*got 3"),
        (MINIMAL + "overlaps_update = 0\n", r"phase 'all': overlaps_update: must be 1 to 2.*got 0"),
        (MINIMAL + "[update]\ncount = -1\n", "update: count: must not be negative, got -1"),
        (MINIMAL + "[update]\nmode = 'lazy'\n", "update.mode: Invalid enum value 'lazy'"),
        (MINIMAL + "[update]\nbeta_host = -5\n", "update: beta_host: must not be negative"),
        (MINIMAL + "[update]\nbandwidth_factor = 0\n", "update: bandwidth_factor: must be above 0"),
        (MINIMAL + "[update]\nbandwidth_factor = 1.5\n", "update: bandwidth_factor:.*got 1.5"),
        (MINIMAL + "[allreduce]\ncount = -1\n", "allreduce: count: must not be negative"),
        (
            MINIMAL + "[memory]\nelement_bytes = 0\nhost = '1 GiB'\n",
            "memory: element_bytes: must be positive",
        ),
        (
            MINIMAL + "[memory]\nelement_bytes = 600\nhost = '1 parsec'\n",
            "memory: host: size '1 parsec': expected a number",
        ),
        (
            MINIMAL + "[memory]\nelement_bytes = 600\nhost = {a = '0'}\n",
            "memory: host of cluster 'a': must be positive",
        ),
        ("version = 1\nn_elements = 5\nphases = []\n", "phases: needs at least one"),
        (MINIMAL.replace("version = 1", "version = 2"), "version: must be 1, got 2"),
        ("[[", "not TOML"),
    ],
)
def test_bad_files_name_the_field(text: str, message: str) -> None:
    with pytest.raises(FileError, match=f"problem file p.toml: {message}"):
        parse_problem(text, "p.toml")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"problem file .*nowhere\.toml"):
        read_problem(tmp_path / "nowhere.toml")


def test_the_same_rules_hold_without_a_file() -> None:
    with pytest.raises(UsageError, match="n_elements: must be positive"):
        Problem(n_elements=0, phases=[Phase(name="p", alpha_s=1.0)])
    with pytest.raises(UsageError, match="alpha_s: must be positive"):
        Phase(name="p", alpha_s=0.0)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_their_grids(path: Path) -> None:
    stated = read_problem(path)
    assert stated.grid is not None
    IterationCost(stated.problem, Resources.from_spec(read_gridfile(stated.grid)))
