"""Settings by keyword and hint, the context manager, patch and the public names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gridcoll
from gridcoll import GridComm
from gridcoll.comm.settings import NAMES, read_settings
from gridcoll.measure.cache.folder import Places
from gridcoll.model.storage import write_model
from gridcoll.plan import REGISTRIES


def test_keywords_are_this_communicators(world: MPI.Intracomm) -> None:
    with GridComm(world, reproducible=True, algorithms={"bcast": "chain"}) as comm:
        assert comm._require_context().settings.reproducible
        assert comm._require_context().settings.algorithms == {"bcast": "chain"}
        child = comm.Dup()
        assert child._require_context().settings.reproducible  # type: ignore[attr-defined]
        child.Free()
        with GridComm(world) as other:
            assert not other._require_context().settings.reproducible
    assert comm == MPI.COMM_NULL
    assert world != MPI.COMM_NULL


def test_hints(world: MPI.Intracomm) -> None:
    info = MPI.Info.Create()
    info.Set("gridcoll_check", "1")
    info.Set("gridcoll_force", "native")
    info.Set("cb_nodes", "4")
    with GridComm(world, info=info, force="grid") as comm:
        assert comm._require_context().settings.check
        assert comm._require_context().settings.force == "grid"
        data = np.arange(5.0) if comm.rank == 0 else np.empty(5)
        comm.Bcast(data)
        assert data[4] == 4
    info.Free()


OF_HINTS: dict[str, tuple[str, str, object, str]] = {
    "check": ("1", "check", True, "0"),
    "force": ("grid", "force", "grid", "native"),
    "tolerance": ("0.2", "tolerance", 0.2, "0.4"),
    "reproducible": ("1", "reproducible", True, "0"),
    "learn": ("off", "learn", False, "on"),
    "log": ("decisions", "log_decisions", True, ""),
}
"""By setting: a hint, what it decides, how that reads, and what the environment says meanwhile.

Those that name files are added by the test.
"""


@pytest.mark.parametrize("name", [*NAMES, *REGISTRIES])
def test_each_setting_as_a_hint(
    world: MPI.Intracomm, name: str, mpi_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real `MPI.Info`, against the environment; what is made from it has it, too."""
    value: str
    other: str
    expected: Any
    if name in REGISTRIES:
        first, second = [*REGISTRIES[name], "native"][:2]
        value, field, expected, other = first, "algorithms", {name: first}, second
    elif name == "grid":
        path = mpi_tmp_path / "grid.json"
        with GridComm(world) as known:
            if world.rank == 0:
                write_model(known.model, path)
        value, field, expected, other = str(path), "grid_file", str(path), "/nowhere.json"
    elif name in ("cache", "keep"):
        value, field, other = str(mpi_tmp_path), "places", "off"
        expected = Places(mpi_tmp_path, None, True)
    else:
        value, field, expected, other = OF_HINTS[name]
    variable = f"GRIDCOLL_{name.upper()}"
    monkeypatch.setenv(variable, other)
    info = MPI.Info.Create()
    info.Set(f"gridcoll_{name}", value)
    with GridComm(world, info=info) as comm:
        assert getattr(comm._require_context().settings, field) == expected
        child = comm.Dup()
        assert getattr(child._require_context().settings, field) == expected  # type: ignore[attr-defined]
        child.Free()
    info.Free()
    # The environment alone says something else.
    assert getattr(read_settings(), field) != expected


@pytest.mark.mpi(min_size=2)
def test_ranks_that_say_different_things_all_raise(world: MPI.Intracomm) -> None:
    with pytest.raises(gridcoll.DisagreementError, match="tolerance"):
        GridComm(world, tolerance=0.1 if world.rank == 0 else 0.2)
    with pytest.raises(gridcoll.UsageError, match="unknown keyword"):
        GridComm(world, **({"speed": 1} if world.rank == 0 else {}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("force", "sometimes", "force: must be grid or native, got 'sometimes'"),
        ("check", 2, "check: must be True or False, got 2"),
        ("algorithms", {"bcast": "chian"}, "algorithms: bcast algorithm 'chian'"),
    ],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_all_ranks_name_the_keyword(
    world: MPI.Intracomm, keyword: str, value: object, message: str, everywhere: bool
) -> None:
    wrong: Any = {keyword: value} if everywhere or world.rank == 0 else {}
    with pytest.raises(gridcoll.UsageError) as raised:
        GridComm(world, **wrong)
    assert message in str(raised.value)
    assert "GRIDCOLL_" not in str(raised.value)


def test_an_error_in_a_block_is_raised_by_whoever_has_it(world: MPI.Intracomm) -> None:
    comm = GridComm(world)
    try:
        with comm:
            if world.rank == 0:
                raise RuntimeError("mine")
            raise KeyError("ours")
    except (RuntimeError, KeyError):
        pass
    assert comm != MPI.COMM_NULL
    comm.Free()


def test_patch(world: MPI.Intracomm) -> None:
    original = MPI.COMM_WORLD
    try:
        with pytest.raises(gridcoll.UsageError):
            gridcoll.patch(force="sometimes")
        assert MPI.COMM_WORLD is original
        gridcoll.patch(algorithms={"bcast": "chain"})
        patched = MPI.COMM_WORLD
        assert isinstance(patched, GridComm)
        assert patched.bcast("said" if patched.rank == 0 else None) == "said"
        gridcoll.patch()
        assert MPI.COMM_WORLD is patched
    finally:
        setattr(MPI, "COMM_WORLD", original)  # noqa: B010


def test_public_names() -> None:
    for name in gridcoll.__all__:
        assert getattr(gridcoll, name) is not None
    assert set(dir(gridcoll)) == set(gridcoll.__all__)
    with pytest.raises(AttributeError):
        _ = gridcoll.nothing
