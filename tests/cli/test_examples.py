"""The shell examples of README and docs that need no MPI are run, each in a folder of its own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gridcoll.cli.group import group
from gridcoll.gridfiles import find_gridfile
from tests.examples import DOCUMENTS, blocks
from tests.traces import trace_in

pytest.importorskip("matplotlib")

UNDER_MPI = {"run", "doctor", "discover", "bench", "testbed", "preload"}
"""Commands that start or need MPI, or prepare a shell for it; tests of their own run these."""

BY_HELP = {"study"}
"""Commands that take minutes as they are: what is run is their --help, of that very study."""


def examples() -> list[tuple[str, list[str]]]:
    """Document and words of each line with a command of ours, those of continued lines together."""
    found = []
    for path in DOCUMENTS:
        for block in blocks(path.read_text(encoding="utf-8"), "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                # What stands in $(…) is a command, too.
                inner = re.search(r"\$\((?:\w+=\S+ )*(gridcoll [^)]*)\)", line)
                words = shlex.split(inner[1] if inner else line, comments=True)
                if "gridcoll" in words:
                    found.append((path.name, words[words.index("gridcoll") + 1 :]))
    return found


RUNS = [(document, words) for document, words in examples() if words and words[0] not in UNDER_MPI]
FILES = ("--output", "-o", "--html", "--plot")


def test_every_command_is_run_or_needs_mpi() -> None:
    asked = {words[0] for _, words in examples() if words}
    assert asked & UNDER_MPI == UNDER_MPI
    assert asked - UNDER_MPI >= {
        *("explain", "list", "export", "show", "report", "hostfile", "cache", "study")
    }


@pytest.mark.parametrize(("document", "words"), RUNS, ids=[" ".join(words) for _, words in RUNS])
def test_it_runs(
    document: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRIDCOLL_CACHE", str(tmp_path / "cache"))
    if words[0] == "cache":  # somebody has jobs behind him
        grid = str(find_gridfile("three-sites"))
        assert CliRunner().invoke(group, ["cache", "import", grid]).exit_code == 0
    if words[:2] == ["report", "traced"]:  # the line above it there runs such a job
        Path("traced").mkdir()
        trace_in(Path("traced"))
    asked = [*words, "--help"] if words[0] in BY_HELP else words
    done = CliRunner().invoke(group, asked, catch_exceptions=False)
    assert done.exit_code == 0, (document, done.output)
    made = [words[at + 1] for at, word in enumerate(words) if word in FILES]
    if words[0] not in BY_HELP:
        assert all(Path(name).exists() for name in made)
    assert done.output.strip() or made


@pytest.mark.parametrize(
    "line", ["explain bcats --grid three-sites --sizes 1M", "show four-sites", "report nothing"]
)
def test_an_example_that_does_not_work_is_seen(line: str) -> None:
    assert CliRunner().invoke(group, line.split()).exit_code != 0
