from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gridcoll.errors import TestbedError, UsageError
from gridcoll.testbed.launchers import (
    LAUNCHERS,
    find_environment,
    find_mpi,
    launch_environment,
    launch_line,
    launcher,
)
from gridcoll.topology.hostfile import FORMATS


@pytest.fixture
def venvs(tmp_path: Path) -> Path:
    """Virtual environments, as far as a launcher looks at them."""
    for name, telltale in (("mpich", "mpichversion"), ("openmpi", "prterun")):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        (folder / "mpiexec").touch()
        (folder / telltale).touch()
    return tmp_path


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_is_complete(name: str) -> None:
    entry = LAUNCHERS[name]
    assert entry.name == name
    assert entry.hostfile in FORMATS
    line = launch_line(entry, Path("/v"), "HOSTS", 7, True, ["python", "app.py"])
    assert "/v/bin/mpiexec" in line
    assert line[-2:] == ["python", "app.py"]
    assert "HOSTS" in line
    assert line[line.index("-n") + 1] == "7"


def test_an_unknown_mpi_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"'lam'; known are mpich, openmpi, impi"):
        launcher("lam")


def test_environments_are_looked_up_where_told(
    venvs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_VENVS", str(venvs))
    assert find_environment("openmpi") == venvs / "openmpi"
    with pytest.raises(TestbedError, match=r"no Intel MPI's mpiexec in .*impi/bin"):
        find_environment("impi")


def test_environments_are_looked_up_beside_the_current(
    venvs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRIDCOLL_VENVS", raising=False)
    monkeypatch.setattr(sys, "prefix", str(venvs / "mpich"))
    assert find_environment(None) == venvs / "mpich"
    assert find_environment("openmpi") == venvs / "openmpi"
    (venvs / "mpich").rename(venvs / "somewhere")
    monkeypatch.setattr(sys, "prefix", str(venvs / "somewhere"))
    assert find_environment("mpich") == venvs / "somewhere"


def test_another_mpi_under_the_right_name_is_not_taken(
    venvs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_VENVS", str(venvs))
    (venvs / "mpich").rename(venvs / "impi")
    with pytest.raises(TestbedError, match="Intel MPI"):
        find_environment("impi")


def test_the_kind_of_an_environment_shows(venvs: Path) -> None:
    assert find_mpi(venvs / "openmpi") == "openmpi"
    (venvs / "openmpi" / "bin" / "prterun").unlink()
    with pytest.raises(TestbedError, match="cannot tell which MPI"):
        find_mpi(venvs / "openmpi")


def test_commands_find_their_environment_first_and_the_user_has_the_last_word() -> None:
    given = {"PATH": "/usr/bin", "UCX_TLS": "all", "GRIDCOLL_GRID": "x", "PYTHONHOME": "/old"}
    environment = launch_environment(LAUNCHERS["mpich"], Path("/v"), given)
    assert environment["PATH"] == "/v/bin:/usr/bin"
    assert environment["UCX_TLS"] == "all"
    assert environment["UCX_NET_DEVICES"] == "eth0"
    assert environment["GRIDCOLL_GRID"] == "x"
    assert "PYTHONHOME" not in environment
