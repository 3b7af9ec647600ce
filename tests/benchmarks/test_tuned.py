"""Settings of natives are the library's own, and what is behind them says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]

PREFIX = {"mpich": "MPIR_CVAR_", "openmpi": "OMPI_MCA_coll_", "impi": "I_MPI_ADJUST_"}


@pytest.mark.parametrize("mpi", PREFIX)
@pytest.mark.parametrize("collective", ["bcast", "allreduce", "alltoall"])
def test_settings_are_of_that_library_and_that_call(
    script: Script, mpi: str, collective: str
) -> None:
    found = script("tuned").settings_of(mpi, collective)
    assert found.pop("as it comes") == {}
    assert len(found) >= 5
    for name, variables in found.items():
        assert all(variable.startswith(PREFIX[mpi]) for variable in variables), name
    assert len({tuple(each.items()) for each in found.values()}) == len(found)


def test_segments_are_swept(script: Script) -> None:
    for mpi, part in (("openmpi", "_segmentsize"), ("mpich", "_CHUNK_SIZE")):
        sizes = {
            value
            for variables in script("tuned").settings_of(mpi, "bcast").values()
            for variable, value in variables.items()
            if variable.endswith(part)
        }
        assert len(sizes) >= 3


def test_a_selection_file_keeps_the_rules_of_other_collectives(script: Script) -> None:
    """The library stops a program whose collective has no rule."""
    tuned = script("tuned")
    library = Path(sys.prefix, tuned.MPICH_LIBRARY)
    if not library.exists():
        pytest.skip("needs an environment with the mpich wheel")
    found = tuned.settings_of("mpich", "bcast")
    chain = "pipelined kary tree of degree 1, 8 KiB segments"
    best = {1 << 20: found[chain], 8: found["binomial"], 64: found["non-blocking tsp_ring"]}
    rules = json.loads(tuned.selection_file(library, "bcast", best))
    before = json.loads(tuned.selection_file(library, "bcast", {}))
    assert len(before) > 40
    changed = {"collective=bcast", "collective=ibcast"}
    assert {name for name in rules if rules[name] != before[name]} == changed
    blocking = rules["collective=bcast"]["comm_type=intra"]
    assert [*blocking] == ["avg_msg_size<=8", "avg_msg_size<=1048576", "avg_msg_size=any"]
    (parameters,) = blocking["avg_msg_size<=1048576"].values()
    assert {"tree_type=0", "k=1", "chunk_size=8192"} < parameters.keys()
    (algorithm,) = rules["collective=ibcast"]["comm_type=intra"]["avg_msg_size=any"]
    assert algorithm == "algorithm=MPIR_Ibcast_intra_tsp_ring"


@pytest.mark.parametrize(("tuned_s", "said"), [(0.094, True), (0.096, False), (0.2, False)])
def test_what_is_behind_says_so(
    script: Script, tuned_s: float, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"collective": "bcast", "grid": "g", "mpi": "mpich", "bytes": 1 << 20, "native_s": 0.5,
           "tuned_s": tuned_s, "gridcoll_s": 0.1, "setting": "chain",
           "n_tried": 8, "n_settings": 16}  # fmt: skip
    assert ("behind" in script("tuned").verdict(row)) is said
    script("tuned").print_markdown([row])
    printed = capsys.readouterr().out
    assert "| 1 MiB | 500.0 ms |" in printed
    assert "| chain | 8 of 16 |" in printed
    assert ("behind" in printed) is said
