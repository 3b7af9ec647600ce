"""Rows of programs in C, as their output has them, and the table that is made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]

PRINTED = """
# Benchmarking Bcast
# #processes = 12
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            8            3         0.40     12310.60      6000.50
      1048576            3       400.00    103000.00     90000.00

# Benchmarking Alltoall
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            8            3     12000.00     13000.00     12500.00
"""


def test_imbs_rows_are_those_of_the_slowest_rank(script: Script) -> None:
    assert script("programs").rows_of(PRINTED) == {
        ("Bcast", 8): 12310.6,
        ("Bcast", 1 << 20): 103000.0,
        ("Alltoall", 8): 13000.0,
    }


OSU = """
# OSU MPI All-to-All Personalized Exchange Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
16384                2329.47           1929.88           2729.06           3
"""


def test_osus_rows_are_those_of_the_slowest_rank(script: Script) -> None:
    rows_of = script("programs").rows_of
    assert rows_of(OSU) == {("Alltoall", 16384): 2729.06}
    for title, name in {"Broadcast": "Bcast", "Allreduce": "Allreduce"}.items():
        text = OSU.replace("All-to-All Personalized Exchange", title)
        assert rows_of(text) == {(name, 16384): 2729.06}


def test_commands(script: Script, tmp_path: Path) -> None:
    """IMB takes all calls and sizes at once, a program of OSU's one."""
    commands_of = script("programs").commands_of
    names = ["Bcast", "Alltoall"]
    (imb,) = commands_of(tmp_path / "IMB-MPI1", names, "8,64", 3, tmp_path)
    assert imb[1:3] == names
    assert (tmp_path / "sizes").read_text() == "8\n64\n"
    osu = commands_of(tmp_path, names, "8,64", 3, tmp_path)
    assert [(Path(each[0]).name, each[-1]) for each in osu] == [
        ("osu_bcast", "8:8"),
        ("osu_bcast", "64:64"),
        ("osu_alltoall", "8:8"),
        ("osu_alltoall", "64:64"),
    ]


def test_lines_of_the_python_program(script: Script) -> None:
    programs = script("programs")
    text = "Bcast 8 12.50\ngridcoll: MPI_Bcast: 3 planned\nAlltoall 1024 7.00\nSaid 8 1.0\n"
    assert programs.lines_of(text) == {("Bcast", 8): 12.5, ("Alltoall", 1024): 7.0}
    assert programs.rows_of(text) == {}
    assert programs.lines_of(PRINTED) == {}


def test_the_table(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = script("programs")
    row = {"bytes": 1 << 20, "native_s": 0.3, "preloaded_s": 0.11, "mpi4py_s": 0.1}
    kept = {
        "programs-bcast": [{**row, "grid": "g", "mpi": "mpich"}, {**row, "grid": "h", "mpi": "x"}]
    }
    monkeypatch.setattr(programs, "read_rows", lambda prefix: kept.get(prefix, []))
    programs.main(["markdown", "--grids", "g", "--mpis", "mpich"])
    *_, last = capsys.readouterr().out.splitlines()
    assert (
        last == "| Bcast | g | mpich | 1 MiB | 300.0 ms | 110.0 ms | 2.73 x | 100.0 ms | 1.10 x |"
    )


RUNS = {"native": ("sum 2.000000 at 7 s", "12.0"), "preloaded": ("sum 2.000001 at 3 s", "6.0")}


def test_an_application(
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Its rows; results that differ, and calls none of which was a plan, are no rows."""
    programs = script("programs")
    printed = dict(RUNS)
    n_planned = 5

    def run(command: list[str]) -> tuple[float, str]:
        way = "preloaded" if "gridcoll" in command else "native"
        text = "{}\nits time: {}\n".format(*printed[way])
        counts = f"gridcoll: all: {n_planned} planned, 1 native, 0 through Python\n"
        return 20.0 if way == "native" else 10.0, text + counts * (way == "preloaded")

    monkeypatch.setattr(programs, "RESULTS", tmp_path)
    monkeypatch.setattr(programs, "run_on", lambda *_: run)
    monkeypatch.setattr(programs, "model_on", lambda *_: tmp_path / "model.json")
    monkeypatch.setattr(programs, "compile_dir", lambda *_, **__: None)
    words = ["application", "g", "--label", "App", "--same", "^sum [0-9.]+", "--own", "time: (.*)"]
    programs.main([*words, "--", "./app"])
    kept = [{**row, "grid": "g", "mpi": "mpich"} for row in read(tmp_path / "whole-g-mpich.json")]
    monkeypatch.setattr(programs, "read_rows", lambda prefix: kept if prefix == "whole" else [])
    programs.main(["markdown", "--of", "whole", "--grids", "g", "--mpis", "mpich"])
    *_, last = capsys.readouterr().out.splitlines()
    assert last == (
        "| App | g | mpich | 20.0 s (20.0 – 20.0) | 10.0 s (10.0 – 10.0) | 2.00 x "
        "| 12.0 s, 6.0 s | 2.00 x |"
    )
    n_planned = 0
    with pytest.raises(SystemExit, match="no call of App was a plan"):
        programs.main([*words, "--", "./app"])
    n_planned = 5
    printed["preloaded"] = ("sum 3.0 at 3 s", "6.0")
    with pytest.raises(SystemExit, match="results differ"):
        programs.main([*words, "--", "./app"])


def read(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(path.read_text())
    return rows
