from __future__ import annotations

from types import SimpleNamespace

import pytest

from gridcoll.cli import progress, voice
from gridcoll.cli.progress import Stages
from gridcoll.errors import UsageError


class Request:
    def __init__(self, ends: bool) -> None:
        self.Test = lambda: ends


class Comm:
    """A rank that the others follow, or do not."""

    def __init__(self, rank: int, others_come: bool = True, size: int = 4) -> None:
        self.Get_rank = lambda: rank
        self.Get_size = lambda: size
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
    monkeypatch.setattr(voice, "ALL_FAIL_TIMEOUT_S", -1.0)
    with pytest.raises(RuntimeError, match="abort 2"):
        voice.end_together(UsageError("x: wrong"), Comm(3, others_come=False))
    assert capsys.readouterr().err == "gridcoll: UsageError: x: wrong\n"


def test_an_interrupt_on_some_ranks_ends_the_job(monkeypatch):
    """The others may wait in MPI, where they see no Ctrl-C; and this rank would wait for them."""
    monkeypatch.setattr(voice, "OUTPUT_WAIT_S", 0.0)
    with pytest.raises(RuntimeError, match="abort 130"), voice.one_voice(Comm(1)):
        raise KeyboardInterrupt


def test_an_interrupt_of_one_rank_is_pythons_own():
    with pytest.raises(KeyboardInterrupt), voice.one_voice(Comm(0, size=1)):
        raise KeyboardInterrupt


def test_stages_are_lines_where_there_is_no_terminal(capsys):
    with Stages() as stages:
        for done in range(3):
            stages("first", done, 2)
        stages("second", 0, 0)
    assert capsys.readouterr().err == "gridcoll: first …\ngridcoll: second …\n"
    assert stages.counts == {"first": 2, "second": 0}


def test_later_stages_say_when_they_began(capsys, monkeypatch):
    now = iter([100.0, 100.4, 134.2])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with Stages() as stages:
        stages("first", 0, 1)
        stages("second", 0, 1)
    assert capsys.readouterr().err == "gridcoll: first …\ngridcoll: second … (after 34 s)\n"


def test_silent_stages_only_count(capsys):
    with Stages(silent=True) as stages:
        stages("first", 2, 2)
    assert capsys.readouterr() == ("", "")
    assert stages.counts == {"first": 2}
