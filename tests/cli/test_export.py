"""``gridcoll export``, and the replay of what it writes where SimGrid is installed."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from gridcoll.bench.simgrid import Folder, find_simgrid
from gridcoll.cli.models import load_model, load_wires
from gridcoll.errors import UsageError
from gridcoll.plan import choose
from gridcoll.plan.exports import goal_lines, smpi_lines

ASK = ("--grid", "three-sites", "--sizes", "64K")


def test_a_goal_schedule_is_printed_or_written(gridcoll, tmp_path):
    said = gridcoll("export", "bcast", *ASK, "--format", "goal").out
    assert said.startswith("num_ranks 12\n")
    assert said.count("send ") == said.count("recv ") > 0
    gridcoll("export", "bcast", *ASK, "--format", "goal", "--output", str(tmp_path / "b.goal"))
    assert (tmp_path / "b.goal").read_text() == said


def test_an_algorithm_can_be_asked_for(gridcoll):
    said = gridcoll(
        "export", "bcast", *ASK, "--algorithm", "plain-binomial", "--format", "goal"
    ).out
    fastest = gridcoll("export", "bcast", *ASK, "--format", "goal").out
    build = choose(
        "bcast", load_model("three-sites"), 1 << 16, 0, forced="plain-binomial"
    ).winner.build
    assert said == "".join(goal_lines(build(1 << 16)))
    assert said != fastest


def test_traces_have_a_platform_and_hosts(gridcoll, tmp_path):
    folder = tmp_path / "there"
    said = gridcoll("export", "bcast", *ASK, "--format", "smpi", "--output", str(folder)).out
    assert "smpirun" in said
    assert "-np 12" in said
    assert sorted(path.name for path in folder.iterdir()) == [
        "hosts.txt", "platform.xml", "trace.txt", "traces.txt",
    ]  # fmt: skip
    trace = (folder / "trace.txt").read_text()
    assert trace.count(" isend ") == trace.count(" irecv ") > 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--format", "smpi"), "--output"),
        (("--format", "goal", "--algorithm", "native"), "no plan"),
        (("--format", "goal", "--sizes", "8,64"), "one size"),
    ],
)
def test_what_cannot_be_exported(arguments, told, gridcoll):
    said = gridcoll("export", "bcast", *ASK, *arguments)
    assert said.code == 2
    assert told in said.err


def test_simgrid_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="libsimgrid-dev"):
        find_simgrid(str(tmp_path / "smpirun"))


@pytest.fixture
def smpirun() -> Path:
    if shutil.which("smpirun") is None:
        warnings.warn("SimGrid is not on the PATH: plans are not replayed here", stacklevel=1)
        pytest.skip("SimGrid is not on the PATH (Debian: libsimgrid-dev)")
    return find_simgrid()


@pytest.mark.parametrize(
    ("collective", "n_bytes"), [("bcast", 1 << 16), ("allreduce", 8), ("alltoall", 1024)]
)
def test_simgrid_finds_about_what_we_predict(collective, n_bytes, smpirun, tmp_path):
    model = load_model("three-sites")
    winner = choose(collective, model, n_bytes, 0).winner
    folder = Folder.write(tmp_path / "there", *load_wires("three-sites"))
    folder.write_trace(smpi_lines(winner.build(n_bytes), model))
    took_s = folder.replay_s(smpirun, timeout_s=60)
    assert took_s == pytest.approx(winner.predicted_s, rel=0.15)


def test_a_replay_that_fails_says_so(tmp_path):
    broken = tmp_path / "smpirun"
    broken.write_text("#!/bin/sh\necho no such platform >&2; exit 3\n")
    broken.chmod(0o755)
    folder = Folder.write(tmp_path / "there", *load_wires("three-sites"))
    with pytest.raises(Exception, match="code 3: no such platform"):
        folder.replay_s(broken, timeout_s=60)
