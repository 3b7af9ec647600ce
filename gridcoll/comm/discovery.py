"""From a communicator to a model of its grid: read from a file, or measured."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from mpi4py import MPI

from gridcoll.comm.agreement import require_equal, together
from gridcoll.comm.settings import Settings
from gridcoll.errors import FileError, UsageError
from gridcoll.files import check_writable
from gridcoll.model import (
    GridModel,
    declared_model,
    digest,
    format_model,
    parse_model,
    read_model,
    write_model,
)
from gridcoll.topology.gridfile import read_gridfile

_log = logging.getLogger("gridcoll")


def find_model(comm: MPI.Intracomm, settings: Settings, given: GridModel | None) -> GridModel:
    """The model of ``comm``'s grid, the same on all ranks. Collective.

    ``given`` if there is one, else what ``settings.grid_file`` says, else what was kept in
    ``settings.keep_file``, else measured, and kept there.

    Raises `FileError`, `UsageError` or `DisagreementError`, the same on all ranks.
    """
    if given is not None:
        model = together(comm, lambda: _fit(given, comm.Get_size()))
        require_equal(comm, "model", digest(model))
        return model
    if settings.grid_file:
        return load_model(comm, settings.grid_file)
    if settings.keep_file and _is_kept(comm, settings.keep_file):
        return load_model(comm, settings.keep_file)
    return _measure(comm, settings)


def _is_kept(comm: MPI.Intracomm, path: str) -> bool:
    """Whether there is a file at ``path``, as rank 0 sees it. Collective.

    Raises `FileError` on all ranks if there is none and none can be put there.
    """

    def look() -> bool:
        if comm.Get_rank() == 0 and not Path(path).exists():
            check_writable(path)
            return False
        return True

    return bool(comm.bcast(together(comm, look), 0))


def _measure(comm: MPI.Intracomm, settings: Settings) -> GridModel:
    """The model that measuring gives, kept where ``settings`` say. Collective.

    Over a network that takes minutes, in which an application seems to hang: rank 0 says so.
    """
    from gridcoll.comm.measuring import discover  # the prober is not needed to read a file

    n_hosts, keep = len(set(comm.allgather(MPI.Get_processor_name()))), settings.keep_file
    speaks, began_s = comm.Get_rank() == 0, time.monotonic()
    if speaks and n_hosts > 1:
        _log.warning(
            "gridcoll: measuring the network between %d hosts, which takes minutes%s",
            n_hosts,
            "" if keep else "; GRIDCOLL_KEEP=FILE.json keeps what is found for the next run",
        )
    model = discover(comm, settings.tolerance)
    if keep:
        together(comm, lambda: write_model(model, keep) if speaks else None)
    if speaks and n_hosts > 1:
        _log.warning(
            "gridcoll: measured in %.0f s%s",
            time.monotonic() - began_s,
            f"; the model is in {keep}" if keep else "",
        )
    return model


def load_model(comm: MPI.Intracomm, path: str) -> GridModel:
    """The model in the file at ``path``, read by rank 0 and shared. Collective.

    ``.toml`` is a declared grid, anything else a measured model.
    """
    hosts = comm.allgather(MPI.Get_processor_name())

    def read() -> bytes:
        if comm.Get_rank() != 0:
            return b""
        if Path(path).suffix == ".toml":
            return format_model(declared_model(read_gridfile(path), hosts))
        model = read_model(path)
        check_fit(model, hosts, path)
        return format_model(model)

    data = together(comm, read)
    return parse_model(comm.bcast(data, 0), path)


def check_fit(model: GridModel, hosts: list[str], place: str) -> None:
    """Raise `FileError` unless ``model`` describes a job whose rank ``i`` runs on ``hosts[i]``."""
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
