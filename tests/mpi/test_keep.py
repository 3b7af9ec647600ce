"""GRIDCOLL_KEEP: measured once, read from then on."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.errors import FileError, GridcollError, UsageError
from gridcoll.measure import discover as measuring
from gridcoll.measure import find_model as discovery
from gridcoll.model import GridModel, read_model, write_model
from gridcoll.topology import Grid
from tests.mpi.support import grid_model, works

pytestmark = pytest.mark.long


@pytest.fixture
def path(mpi_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One place for all ranks; it is in GRIDCOLL_KEEP, and nothing is there yet."""
    path = mpi_tmp_path / "grid.json"
    monkeypatch.delenv("GRIDCOLL_GRID", raising=False)
    monkeypatch.delenv("GRIDCOLL_TOLERANCE", raising=False)
    monkeypatch.setenv("GRIDCOLL_KEEP", str(path))
    return path


@pytest.fixture
def measured(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> list[GridModel]:
    """What was measured, in order; really, and counted."""
    found: list[GridModel] = []

    def discover(comm: MPI.Intracomm, tolerance: float) -> GridModel:
        found.append(real(comm, tolerance))
        return found[-1]

    real = measuring.discover
    monkeypatch.setattr(measuring, "discover", discover)
    return found


def refused(world: MPI.Intracomm, kind: type[GridcollError], part: str) -> None:
    """Every rank raises ``kind``, with one text."""
    with pytest.raises(kind) as caught:
        GridComm(world)
    texts = world.allgather(str(caught.value))
    assert texts == texts[:1] * len(texts)
    assert part in texts[0]


def test_measured_once(world: MPI.Intracomm, path: Path, measured: list[GridModel]) -> None:
    for _ in range(3):
        comm = GridComm(world)
        works(comm)
        assert comm.model == measured[0]
        comm.Free()
        world.Barrier()
    assert len(measured) == 1
    if world.Get_rank() == 0:
        assert read_model(path) == measured[0]


def test_a_directory_has_a_file_per_job(
    world: MPI.Intracomm,
    path: Path,
    measured: list[GridModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other hosts, fewer ranks or another library: another file, and none is replaced."""
    path = path.parent / "grids"  # is made
    monkeypatch.setenv("GRIDCOLL_KEEP", str(path))
    jobs = [("one", "MPI"), ("other", "MPI"), ("one", "another MPI"), ("one", "MPI")]
    for host, library in jobs:
        monkeypatch.setattr(discovery.MPI, "Get_processor_name", lambda host=host: host)
        monkeypatch.setattr(discovery.MPI, "Get_library_version", lambda library=library: library)
        GridComm(world).Free()
        world.Barrier()
    assert len(measured) == 3
    fewer = world.Split(int(world.Get_rank() == 0), 0)
    GridComm(MPI.Intracomm(fewer)).Free()
    fewer.Free()
    if world.Get_rank() == 0:
        kept = [file.name for file in path.iterdir()]
        assert len(kept) == 3 + (world.Get_size() > 1)
        assert all(name.startswith((f"{world.Get_size()}-ranks-", "1-ranks-")) for name in kept)


def test_a_directory_has_a_file_per_tolerance_and_format(
    world: MPI.Intracomm,
    path: Path,
    measured: list[GridModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is the default is the same as what says so."""
    path = path.parent / "grids"
    monkeypatch.setenv("GRIDCOLL_KEEP", str(path))
    for tolerance, n_measured in (("", 1), ("0.30", 1), ("0.5", 2), ("0.5", 2), ("", 2)):
        if tolerance:
            monkeypatch.setenv("GRIDCOLL_TOLERANCE", tolerance)
        else:
            monkeypatch.delenv("GRIDCOLL_TOLERANCE", raising=False)
        comm = GridComm(world)
        assert comm.model.tolerance == float(tolerance or 0.3)
        comm.Free()
        world.Barrier()
        assert len(measured) == n_measured
    monkeypatch.setattr(discovery, "FORMAT_VERSION", discovery.FORMAT_VERSION + 1)
    GridComm(world).Free()
    assert len(measured) == 3


def test_another_tolerance_is_an_error_where_there_is_one_file(
    world: MPI.Intracomm,
    path: Path,
    measured: list[GridModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the environment asks for it; and a declared model has none."""
    model = grid_model([0] * world.Get_size(), hosts=[MPI.Get_processor_name()] * world.Get_size())
    asked = [(0.5, "", True), (0.5, "0.5", True), (0.5, "0.3", False), (0.3, "0.5", False)]
    for kept, tolerance, fits in asked:
        for origin in ("measured", "declared"):
            if world.Get_rank() == 0:
                write_model(replace(model, origin=origin, tolerance=kept, mpi=""), path)
            if tolerance:
                monkeypatch.setenv("GRIDCOLL_TOLERANCE", tolerance)
            if fits or origin == "declared":
                GridComm(world).Free()
            else:
                said = f"measured with tolerance {kept}, GRIDCOLL_TOLERANCE is {tolerance}; remove"
                refused(world, FileError, said)
                refused(world, FileError, str(path))
    assert not measured


@pytest.mark.parametrize("content", [b"", b"\xff\x00{", b'{"format": "gridcoll-model"'])
def test_a_damaged_file_is_named(
    world: MPI.Intracomm,
    path: Path,
    measured: list[GridModel],
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
) -> None:
    """In a directory, where users do not know which is theirs."""
    path = path.parent / "grids"
    monkeypatch.setenv("GRIDCOLL_KEEP", str(path))
    GridComm(world).Free()
    world.Barrier()
    (kept,) = world.bcast(list(path.iterdir()), 0)
    if world.Get_rank() == 0:
        kept.write_bytes(content)
    refused(world, FileError, f"model file {kept}: ")
    assert len(measured) == 1


def test_only_rank_0_needs_the_file(
    world: MPI.Intracomm,
    tmp_path: Path,
    path: Path,
    measured: list[GridModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hosts need not share a file system; every rank has a directory of its own here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRIDCOLL_KEEP", "own.json")
    for _ in range(2):
        GridComm(world).Free()
    assert len(measured) == 1
    assert Path("own.json").exists() == (world.Get_rank() == 0)


def test_one_of_another_job_is_not_replaced(
    world: MPI.Intracomm, path: Path, measured: list[GridModel]
) -> None:
    other = grid_model([0] * (world.Get_size() + 1))
    if world.Get_rank() == 0:
        write_model(other, path)
    refused(world, FileError, "measure again")
    assert not measured
    if world.Get_rank() == 0:
        assert read_model(path) == other


@pytest.mark.parametrize("variable", ["GRIDCOLL_GRID", "GRIDCOLL_KEEP"])
def test_one_of_another_mpi_library_is_refused(
    world: MPI.Intracomm,
    path: Path,
    measured: list[GridModel],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    """Its hosts are right, and what nobody noted a library of is taken."""
    grid = Grid.from_labels([0] * world.Get_size(), world.allgather(MPI.Get_processor_name()))
    model = replace(grid_model([0] * world.Get_size()), grid=grid)
    monkeypatch.delenv("GRIDCOLL_KEEP")
    monkeypatch.setenv(variable, str(path))
    this = MPI.get_vendor()[0]
    for mpi in ("Another MPI", "", this):
        if world.Get_rank() == 0:
            write_model(replace(model, mpi=mpi), path)
        world.Barrier()
        if mpi == "Another MPI":
            refused(world, FileError, f"it was measured under Another MPI, this is {this}; ")
        else:
            GridComm(world).Free()
        world.Barrier()
    assert not measured


@pytest.mark.parametrize("place", ["place.json", "place"])
def test_no_place_to_keep_it_is_an_error_before_measuring(
    world: MPI.Intracomm,
    path: Path,
    measured: list[GridModel],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """Neither a file nor a directory can be made where there is none above it."""
    monkeypatch.setenv("GRIDCOLL_KEEP", str(path.parent / "no" / "such" / place))
    refused(world, FileError, "cannot write")
    assert not measured


def test_not_beside_a_grid_nor_a_declared_one(
    world: MPI.Intracomm, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_GRID", "other.json")
    refused(world, UsageError, "GRIDCOLL_KEEP: not beside GRIDCOLL_GRID")
    monkeypatch.delenv("GRIDCOLL_GRID")
    monkeypatch.setenv("GRIDCOLL_KEEP", "grid.toml")
    refused(world, UsageError, "GRIDCOLL_KEEP: .toml files are declared grids")


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("keep", [True, False])
def test_minutes_of_silence_are_announced(
    world: MPI.Intracomm,
    path: Path,
    keep: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By rank 0 alone, before and after; on one machine there is nothing to say."""
    if not keep:
        monkeypatch.delenv("GRIDCOLL_KEEP")
    model = grid_model([0] * world.Get_size())
    monkeypatch.setattr(measuring, "discover", lambda *_args: model)
    caplog.set_level(logging.INFO, "gridcoll")
    for host, n_lines in (("here", 0), (f"host{world.Get_rank()}", 2)):
        monkeypatch.setattr(discovery.MPI, "Get_processor_name", lambda host=host: host)
        caplog.clear()
        GridComm(world).Free()
        if world.Get_rank() == 0 and keep:
            path.unlink()
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == (n_lines if world.Get_rank() == 0 else 0)
        if said:
            assert f"between {world.Get_size()} hosts" in said[0]
            assert ("GRIDCOLL_KEEP=" in said[0]) != keep
            assert (str(path) in said[1]) == keep
