"""From a communicator to a model of its grid: read from a file, or measured."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

from gridcoll.engine.agreement import require_equal, together
from gridcoll.errors import FileError, UsageError
from gridcoll.files import check_writable, make_directory
from gridcoll.model import (
    GridModel,
    declared_model,
    digest,
    format_model,
    parse_model,
    read_model,
    write_model,
)
from gridcoll.model.storage import FORMAT_VERSION
from gridcoll.topology.clustering import DEFAULT_TOLERANCE
from gridcoll.topology.gridfile import read_gridfile

_log = logging.getLogger("gridcoll")


def find_model(
    comm: MPI.Intracomm,
    given: GridModel | None,
    *,
    grid_file: str = "",
    keep: str = "",
    tolerance: float = DEFAULT_TOLERANCE,
    tolerance_is_set: bool = False,
) -> GridModel:
    """The model of ``comm``'s grid, the same on all ranks. Collective.

    ``given`` if there is one, else what ``grid_file`` says, else what was kept in
    ``keep`` (for these hosts, if that is a directory), else measured, and kept there.

    Raises `FileError`, `UsageError` or `DisagreementError`, the same on all ranks.
    """
    if given is not None:
        model = together(comm, lambda: _fit(given, comm.Get_size()))
        require_equal(comm, "model", digest(model))
        return model
    if grid_file:
        return load_model(comm, grid_file)
    if not keep:
        return _measure(comm, tolerance)
    path, is_kept = _look_for_kept(comm, keep, tolerance)
    if not is_kept:
        return _measure(comm, tolerance, path)
    return load_model(comm, path, tolerance if tolerance_is_set else None)


def _look_for_kept(comm: MPI.Intracomm, place: str, tolerance: float) -> tuple[str, bool]:
    """The file of this job at ``place``, and whether it is there, as rank 0 sees it. Collective.

    In a directory every job has its own, and so has every ``tolerance``; a place that is not there
    yet and has no suffix becomes one. Raises `FileError` on all ranks if there is no file and none
    can be put there.
    """
    hosts = comm.gather(MPI.Get_processor_name(), 0)

    def look() -> tuple[str, bool]:
        if hosts is None:
            return "", False
        path = Path(place)
        if not (path.exists() or path.suffix):
            make_directory(path)
        if path.is_dir():
            path /= _name_of_job(hosts, tolerance)
        is_kept = path.exists()
        if not is_kept:
            check_writable(path)
        return str(path), is_kept

    path, is_kept = comm.bcast(together(comm, look), 0)
    return str(path), bool(is_kept)


def _name_of_job(hosts: Sequence[str], tolerance: float) -> str:
    """A file name that the same ranks on the same hosts under the same MPI library give again.

    Another version of the format has another, too: what it lacks was not measured.
    """
    measured = f"version {FORMAT_VERSION}, tolerance {tolerance}"
    job = "\n".join([MPI.Get_library_version(), measured, *hosts])
    return f"{len(hosts)}-ranks-{hashlib.sha256(job.encode()).hexdigest()[:16]}.json"


def _measure(comm: MPI.Intracomm, tolerance: float, keep: str = "") -> GridModel:
    """The model that measuring gives, kept in the file ``keep`` if one is named. Collective.

    Over a network that takes minutes, in which an application seems to hang: rank 0 says so.
    """
    from gridcoll.measure.discover import discover  # the prober is not needed to read a file

    n_hosts = len(set(comm.allgather(MPI.Get_processor_name())))
    speaks, began_s = comm.Get_rank() == 0, time.monotonic()
    if speaks and n_hosts > 1:
        _log.warning(
            "gridcoll: measuring the network between %d hosts, which takes minutes%s",
            n_hosts,
            "" if keep else "; GRIDCOLL_KEEP=FILE.json or =DIR keeps it for the next run",
        )
    model = discover(comm, tolerance)
    if keep:
        together(comm, lambda: write_model(model, keep) if speaks else None)
    if speaks and n_hosts > 1:
        _log.warning(
            "gridcoll: measured in %.0f s%s",
            time.monotonic() - began_s,
            f"; the model is in {keep}" if keep else "",
        )
    return model


def load_model(comm: MPI.Intracomm, path: str, tolerance: float | None = None) -> GridModel:
    """The model in the file at ``path``, read by rank 0 and shared. Collective.

    ``.toml`` is a declared grid, anything else a measured model. Raises `FileError`, the same on
    all ranks; also where it was measured with another ``tolerance``, if one is given.
    """
    hosts = comm.allgather(MPI.Get_processor_name())

    def read() -> bytes:
        if comm.Get_rank() != 0:
            return b""
        if Path(path).suffix == ".toml":
            return format_model(declared_model(read_gridfile(path), hosts))
        model = read_model(path)
        check_fit(model, hosts, path)
        if tolerance is not None and model.origin == "measured" and model.tolerance != tolerance:
            raise FileError(
                f"model file {path}: it was measured with tolerance {model.tolerance}, "
                f"GRIDCOLL_TOLERANCE is {tolerance}; remove it to measure again"
            )
        return format_model(model)

    data = together(comm, read)
    return parse_model(comm.bcast(data, 0), path)


def check_fit(model: GridModel, hosts: list[str], place: str) -> None:
    """Raise `FileError` unless ``model`` describes a job whose rank ``i`` runs on ``hosts[i]``.

    Another MPI library than the one it was measured under has other natives, and other times.
    """
    mpi, _ = MPI.get_vendor()
    if model.mpi and model.mpi != mpi:
        raise FileError(
            f"model file {place}: it was measured under {model.mpi}, this is {mpi}; measure again "
            "with gridcoll discover"
        )
    if model.grid.n_ranks != len(hosts):
        raise FileError(
            f"model file {place}: it describes {model.grid.n_ranks} ranks, the job has "
            f"{len(hosts)}; measure again with gridcoll discover"
        )
    for rank, (known, actual) in enumerate(zip(model.grid.hosts, hosts, strict=True)):
        if known != actual:
            raise FileError(
                f"model file {place}: rank {rank} was measured on {known!r} and now runs on "
                f"{actual!r}; keep the rank order or measure again with gridcoll discover"
            )


def _fit(model: GridModel, n_ranks: int) -> GridModel:
    if not isinstance(model, GridModel):  # who has a file's name thinks of handing that over
        raise UsageError(
            f"model: must be a GridModel, got {model!r}; read_model reads one from a file"
        )
    if model.grid.n_ranks != n_ranks:
        raise UsageError(f"model: it describes {model.grid.n_ranks} ranks, not {n_ranks}")
    return model
