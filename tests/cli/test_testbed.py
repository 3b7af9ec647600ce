"""``gridcoll testbed`` where no network is needed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gridcoll.cli import testbed_command


def test_ids_are_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given to ``--id``, so none may be cut to fit."""
    row = {"id": "a-grid-of-a-long-name-12345", "grid": "a-grid-of-a-long-name", "hosts": {}}
    row |= {"pid": 12345, "owner_pid": 54321}
    monkeypatch.setattr("gridcoll.testbed.instances.list_instances", lambda: [None])
    monkeypatch.setattr(testbed_command, "_describe", lambda _: row)
    ran = CliRunner().invoke(testbed_command.command, ["status"], env={"COLUMNS": "60"})
    assert row["id"] in ran.output
