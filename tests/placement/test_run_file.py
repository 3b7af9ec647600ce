from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gridcoll.cli.select_command import command
from gridcoll.errors import FileError, UsageError
from gridcoll.placement import IterationCost, Resources, predict, read_problem
from gridcoll.placement.correction import Run, correct_by_run, read_run
from gridcoll.topology import read_gridfile

PROBLEM = Path(__file__).parents[2] / "benchmarks" / "placement" / "three-sites.toml"


def stated():  # type: ignore[no-untyped-def]
    file = read_problem(PROBLEM)
    assert file.grid is not None
    return file.problem, Resources.from_spec(read_gridfile(file.grid))


def test_measured_times_scale_both_betas_until_the_prediction_fits() -> None:
    problem, resources = stated()
    names = list(resources.names[:2])
    before = IterationCost(problem, resources).time_s((0, 1))
    for factor in (0.999, 1.3, 4.0):
        run = Run(clusters=names, iteration_s=[before, before * factor, before * factor * 2])
        found = correct_by_run(problem, resources, run)
        assert found.predicted_s == pytest.approx(before)
        assert found.measured_s == pytest.approx(sorted(run.iteration_s)[1])
        assert found.corrected_s == pytest.approx(found.measured_s, rel=1e-6)
        ratio = problem.update.beta_host / problem.update.beta_cluster
        update = found.problem.update
        assert update.beta_host / update.beta_cluster == pytest.approx(ratio)


def test_a_run_faster_than_computing_leaves_no_exchange() -> None:
    problem, resources = stated()
    run = Run(clusters=list(resources.names[:2]), iteration_s=[1e-6])
    found = correct_by_run(problem, resources, run)
    assert found.problem.update.beta_host == found.problem.update.beta_cluster == 0
    assert found.corrected_s > 1e-6


def test_counted_faces_give_the_betas() -> None:
    problem, resources = stated()
    run = Run(clusters=list(resources.names[:2]), host_faces=100.0, cluster_faces=50.0)
    update = correct_by_run(problem, resources, run).problem.update
    best = predict(IterationCost(problem, resources), (0, 1))
    per_host = (problem.n_elements / best.n_hosts) ** (2 / 3)
    assert update.beta_host == pytest.approx(100 / per_host)
    assert update.beta_cluster == pytest.approx(50 / (problem.n_elements / 2) ** (2 / 3))


def test_no_beta_explains_a_run_where_nothing_is_exchanged() -> None:
    problem, resources = stated()
    silent = msgspec.structs.replace(problem.update, beta_host=0.0, beta_cluster=0.0)
    problem = msgspec.structs.replace(problem, update=silent)
    with pytest.raises(UsageError, match="no beta"):
        correct_by_run(problem, resources, Run(clusters=[resources.names[0]], iteration_s=[99.0]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "clusters"),
        ('{"clusters": []}', "at least one"),
        ('{"clusters": ["a"]}', "needs iteration_s"),
        ('{"clusters": ["a"], "iteration_s": [0]}', "positive"),
        ('{"clusters": ["a"], "host_faces": 1}', "both or neither"),
        ('{"clusters": ["a"], "iteration_s": [1], "x": 1}', "x"),
        ("nonsense", "run file"),
    ],
)
def test_bad_files_say_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(FileError, match=said):
        read_run(path)


def test_select_takes_a_run(tmp_path: Path) -> None:
    _, resources = stated()
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"clusters": list(resources.names), "iteration_s": [1.0]}))
    plain, corrected = (
        json.loads(CliRunner().invoke(command, [str(PROBLEM), "--json", *more]).stdout)
        for more in ([], ["--correct", str(path)])
    )
    assert plain != corrected
    path.write_text(json.dumps({"clusters": ["nowhere"], "iteration_s": [1.0]}))
    with pytest.raises(UsageError, match="nowhere"):
        CliRunner().invoke(command, [str(PROBLEM), "--correct", str(path)], catch_exceptions=False)
