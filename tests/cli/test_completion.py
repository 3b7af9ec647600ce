"""Shells complete commands and options."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from gridcoll.cli.group import group
from gridcoll.cli.run_options import SETTING_OPTIONS
from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import natives_of


def said(shell: str, words: str = "", at: int = 1) -> str:
    """By a process of its own, which has loaded nothing yet."""
    program = "from gridcoll.cli import main; import sys; sys.argv[:] = ['gridcoll']; main()"
    environment = {**os.environ, "_GRIDCOLL_COMPLETE": shell, "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(at)
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts(shell: str) -> None:
    assert "_GRIDCOLL_COMPLETE" in said(f"{shell}_source")


def test_commands_and_options() -> None:
    assert said("bash_complete", "gridcoll d").split() == ["plain,discover", "plain,doctor"]
    assert "plain,--budget" in said("bash_complete", "gridcoll discover --b", 2).split()


Offered = Callable[..., list[str]]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Offered:
    """What bash is offered for the last of the words after ``gridcoll``, asked in this process."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", shlex.join(["gridcoll", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        lines = BashComplete(group, {}, "gridcoll", "_GRIDCOLL_COMPLETE").complete().splitlines()
        return [line.partition(",")[2] if not line.startswith(("file", "dir"))
                else line.split(",")[0] for line in lines]  # fmt: skip

    return ask


def test_a_fresh_process_knows_the_algorithms() -> None:
    chains = said("bash_complete", "gridcoll run --bcast chain", 3).splitlines()
    assert "plain,chain" in chains
    assert all(line.startswith("plain,chain") for line in chains)


def test_options_of_run(offered: Offered) -> None:
    """All that `gridcoll run --help` names: it reads them itself."""
    found = offered("run", "--")
    assert {*found} == {
        *SETTING_OPTIONS,
        "--preload",
        "--help",
        *(f"--{name}" for name in REGISTRIES),
    }
    assert offered("run", "--gr") == ["--grid"]
    assert offered("run", "--grid", "g.toml", "--che") == ["--check"]
    assert offered("run", "--check", "--allr") == ["--allreduce"]


def test_values_of_options_of_run(offered: Offered) -> None:
    assert offered("run", "--force", "") == ["grid", "native"]
    assert offered("run", "--learn", "of") == ["off"]
    assert offered("run", "--grid", "") == ["file"]
    assert offered("run", "--trace", "") == ["dir"]
    assert offered("run", "--cache", "") == ["off", "dir"]
    assert {*offered("run", "--alltoall", "")} >= {*REGISTRIES["alltoall"], "native", "native-v"}


def test_what_is_the_applications_is_files(offered: Offered) -> None:
    assert offered("run", "app") == ["file"]
    assert offered("run", "--check", "app") == ["file"]
    assert offered("run", "app.py", "--gr") == ["file"]
    assert offered("run", "--force", "grid", "app.py", "--gr") == ["file"]
    assert offered("run", "app.py", "--force", "") == ["file"]


def test_algorithms(offered: Offered) -> None:
    bcast = offered("explain", "bcast", "--grid", "three-sites", "--algorithm", "")
    assert {*bcast} == {*REGISTRIES["bcast"], *natives_of("bcast")}
    assert "lg" in offered("export", "alltoall", "--algorithm", "l")
    assert "lg" not in offered("explain", "bcast", "--algorithm", "l")
    assert "flat,ecef" in offered("bench", "bcast:8", "--algorithm", "flat,ec")
    every = {name for registry in REGISTRIES.values() for name in registry}
    assert {*offered("explain", "--algorithm", "")} >= every


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_itself() -> None:
    """The script of settings.md, in a real bash."""
    program = Path(sys.executable).with_name("gridcoll")
    if not program.exists():
        pytest.skip("gridcoll is not installed as a command here")
    script = """
    eval "$(_GRIDCOLL_COMPLETE=bash_source gridcoll)" || exit 1
    complete -p gridcoll | grep -q _gridcoll_completion || exit 2
    COMP_WORDS=(gridcoll run --rep) COMP_CWORD=2
    _gridcoll_completion gridcoll
    echo "${COMPREPLY[@]}"
    COMPREPLY=() COMP_WORDS=(gridcoll explain bcast --algorithm ecef-la-max) COMP_CWORD=4
    _gridcoll_completion gridcoll
    echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert done.returncode == 0
    assert first == "--reproducible"
    assert all(name.startswith("ecef-la-max") for name in second.split())
    assert "ecef-la-max-t" in second.split()
