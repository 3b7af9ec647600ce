"""``gridcoll discover`` under mpiexec."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gridcoll.cli.discover_command import _check_output, _finish, _tolerance, measured_line
from gridcoll.errors import FileError, UsageError
from gridcoll.model import declared_model, parse_model, read_model
from gridcoll.topology import parse_gridfile

pytestmark = pytest.mark.long

GRID = """
version = 1
name = "duo"
clusters = [{ name = "a", ranks = 2 }, { name = "b", ranks = 1 }]
links = [{ between = ["a", "b"], latency = "7 ms" }]
"""


def test_it_measures_shows_and_keeps(launch, tmp_path):
    done = launch(3, "-m", "gridcoll", "discover", "-o", "m.json", "--name", "here", "--no-native")
    assert done.returncode == 0, done.stderr
    model = read_model(tmp_path / "m.json")
    assert (model.grid.name, model.origin, model.grid.n_ranks) == ("here", "measured", 3)
    assert model.native == {}
    assert "1 pLogP measurement for 1 cluster; at most C(C-1)/2 + C = 1" in done.stdout
    assert done.stdout.count("here") == 1  # one rank speaks
    assert done.stderr.count("latency between nodes") == 1


def test_json_is_the_model_itself(capsys, tmp_path):
    model = declared_model(parse_gridfile(GRID), ["host"] * 3)
    _finish(model, 2, False, True, str(tmp_path / "m.json"), as_json=True)
    assert parse_model(capsys.readouterr().out.encode()) == model
    assert read_model(tmp_path / "m.json") == model


def test_a_mistake_is_said_once(launch):
    done = launch(3, "-m", "gridcoll", "discover", "--tolerance", "77")
    assert done.returncode == 2
    said = "gridcoll: UsageError: --tolerance: must be in [0, 10), got 77.0\n"
    assert done.stderr.startswith(said)  # Open MPI's launcher adds a word of its own
    assert done.stderr.count("gridcoll:") == 1
    assert done.stdout == ""


INTERRUPTED_ALONE = """
from mpi4py import MPI
from gridcoll.cli.voice import one_voice
with one_voice(MPI.COMM_WORLD):
    if MPI.COMM_WORLD.Get_rank() == 0:
        raise KeyboardInterrupt
    MPI.COMM_WORLD.Barrier()
"""


def test_ctrl_c_ends_ranks_that_wait_in_mpi(launch):
    done = launch(3, "-c", INTERRUPTED_ALONE)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_tolerance_that_is_no_number(monkeypatch):
    with pytest.raises(UsageError, match="--tolerance: must be a number, got 'much'"):
        _tolerance("much")
    monkeypatch.setenv("GRIDCOLL_TOLERANCE", "0.4")
    assert (_tolerance(""), _tolerance("0.2")) == (0.4, 0.2)


def test_an_output_that_cannot_be_written_fails_before_measuring(tmp_path):
    with pytest.raises(FileError, match=r"cannot write .*nowhere/m\.json"):
        _check_output(str(tmp_path / "nowhere" / "m.json"))
    with pytest.raises(UsageError, match="toml"):
        _check_output(str(tmp_path / "m.toml"))
    _check_output(str(tmp_path / "m.json"))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((6, 18, False), "18 pLogP measurements for 6 clusters; at most C(C-1)/2 + C = 21 are"),
        ((2, 4, True), "4 pLogP measurements for 2 clusters; at most C(C-1) + C = 4 are"),
    ],
)
def test_the_count_of_measurements(arguments, line):
    assert measured_line(*arguments).startswith(line)


def test_a_budget(launch, tmp_path):
    """A quick look comes first; on one host nothing is left after the links."""
    done = launch(3, "-m", "gridcoll", "discover", "-o", "m.json", "--budget", "60s")
    assert done.returncode == 0, done.stderr
    assert read_model(tmp_path / "m.json").stages == ("links",)
    assert "out of budget" not in done.stdout
    done = launch(3, "-m", "gridcoll", "discover", "--budget", "soon")
    assert done.returncode == 2
    assert "expected a number and one of the units" in done.stderr


def test_what_is_left_is_said(capsys, tmp_path):
    model = declared_model(parse_gridfile(GRID), ["here", "here", "there"])
    model = replace(model, stages=("links", "flows"))
    _finish(model, 2, False, True, str(tmp_path / "m.json"), as_json=False)
    said = capsys.readouterr().out
    assert "out of budget before: engine, native bcast" in said.replace("\n", " ")
