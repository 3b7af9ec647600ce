from __future__ import annotations

import pytest

from gridcoll.cli import voice
from gridcoll.cli.progress import Stages
from gridcoll.errors import UsageError


class Request:
    def __init__(self, ends: bool) -> None:
        self.Test = lambda: ends


class Comm:
    """A rank that the others follow, or do not."""

    def __init__(self, rank: int, others_come: bool = True) -> None:
        self.Get_rank = lambda: rank
        self.Ibarrier = lambda: Request(others_come)

    def Abort(self, code: int) -> None:
        raise RuntimeError(f"abort {code}")


@pytest.mark.parametrize(("rank", "said"), [(0, "gridcoll: UsageError: x: wrong\n"), (3, "")])
def test_rank_0_speaks_for_all(rank, said, capsys):
    with pytest.raises(SystemExit) as end, voice.one_voice(Comm(rank)):
        raise UsageError("x: wrong")
    assert end.value.code == 2
    assert capsys.readouterr().err == said


def test_a_rank_that_fails_alone_speaks_and_ends_the_job(capsys, monkeypatch):
    monkeypatch.setattr(voice, "PATIENCE_S", -1.0)
    with pytest.raises(RuntimeError, match="abort 2"):
        voice.end_together(UsageError("x: wrong"), Comm(3, others_come=False))
    assert capsys.readouterr().err == "gridcoll: UsageError: x: wrong\n"


def test_stages_are_lines_where_there_is_no_terminal(capsys):
    with Stages() as stages:
        for done in range(3):
            stages("first", done, 2)
        stages("second", 0, 0)
    assert capsys.readouterr().err == "gridcoll: first …\ngridcoll: second …\n"
    assert stages.counts == {"first": 2, "second": 0}


def test_silent_stages_only_count(capsys):
    with Stages(silent=True) as stages:
        stages("first", 2, 2)
    assert capsys.readouterr() == ("", "")
    assert stages.counts == {"first": 2}
