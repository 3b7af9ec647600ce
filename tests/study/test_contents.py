"""Every figure and table of the papers: its command runs as it stands, and draws."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gridcoll.cli.group import group
from gridcoll.study.contents import CONTENTS

ROOT = Path(__file__).parents[2]

COMMANDS = tuple(dict.fromkeys(item.command for item in CONTENTS if item.command))

QUICK = {
    "heuristics": ("--iterations", "20", "--clusters", "2-3,10"),
    "fillings": ("--iterations", "20", "--clusters", "3,10,50"),
    "placement": ("--cases", "2", "--elements", "500000"),
    "placement-faces": ("--elements", "6000", "--hosts", "2,8"),
}
"""What makes a study's command short: fewer of what is drawn, the same otherwise."""

DRAWN_BY_ANOTHER = {"discover": "needs ranks; gridcoll show draws its model"}


def command_of(words: list[str]) -> click.Command:
    found: click.Command = group
    for word in words[: 2 if words[0] == "study" else 1]:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None, words
        found = inner
    return found


@pytest.mark.long
@pytest.mark.parametrize("text", COMMANDS)
def test_the_command_prints_and_draws(text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(text)
    if words[0] in DRAWN_BY_ANOTHER:
        pytest.skip(DRAWN_BY_ANOTHER[words[0]])
    options = {name for each in command_of(words).params for name in each.opts}
    where = ("--plot", tmp_path / "drawn.svg") if "--plot" in options else ("--output", tmp_path)
    quick = QUICK.get(words[1], ())
    result = CliRunner().invoke(group, [*words, *quick, *map(str, where)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.output.strip()
    pictures = list(tmp_path.glob("*.svg"))
    assert pictures, result.output
    assert all(b"<svg" in path.read_bytes()[:600] for path in pictures)


def test_every_item_of_the_help_is_run() -> None:
    """None but those with a reason is without a command."""
    assert all(item.remark for item in CONTENTS if not item.command)
    assert len(COMMANDS) > 25
