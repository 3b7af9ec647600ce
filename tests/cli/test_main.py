from __future__ import annotations

import importlib

import click
import pytest

from gridcoll.cli.group import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_line_of_help(name, gridcoll):
    command = importlib.import_module(f"gridcoll.cli.{name}_command").command
    assert isinstance(command, click.Command)
    assert len(command.get_short_help_str(200)) > 20
    ran = gridcoll(name, "--help")
    assert ran.code == 0
    assert "Usage" in ran.out


def test_help_lists_every_command(gridcoll):
    ran = gridcoll("--help")
    assert ran.code == 0
    listed = ran.out.split("Commands:")[1].split()
    assert [name for name in COMMANDS if name not in listed] == []


def test_an_unknown_command_is_refused(gridcoll):
    assert gridcoll("nonsense").code == 2


def test_a_users_mistake_is_a_line_and_not_a_traceback(gridcoll):
    ran = gridcoll("show", "no-such-grid")
    assert ran.code == 2
    assert ran.err.startswith("gridcoll: UsageError: grid 'no-such-grid': no such file")
    assert ran.err.count("\n") == 1


def test_debug_gives_the_traceback(gridcoll, monkeypatch):
    monkeypatch.setenv("GRIDCOLL_DEBUG", "1")
    from gridcoll.errors import UsageError

    with pytest.raises(UsageError):
        gridcoll("show", "no-such-grid")
