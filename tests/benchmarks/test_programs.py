"""Rows of programs in C, as their output has them, and the table that is made of them."""

from __future__ import annotations

from collections.abc import Callable
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
