"""From a communicator to a model of its grid: read from a file, or measured."""

from __future__ import annotations

from pathlib import Path

from mpi4py import MPI

from gridcoll.comm.agreement import require_equal, together
from gridcoll.comm.settings import Settings
from gridcoll.errors import FileError, UsageError
from gridcoll.model import (
    GridModel,
    declared_model,
    digest,
    format_model,
    parse_model,
    read_model,
)
from gridcoll.topology.gridfile import read_gridfile


def find_model(comm: MPI.Intracomm, settings: Settings, given: GridModel | None) -> GridModel:
    """The model of ``comm``'s grid, the same on all ranks. Collective.

    ``given`` if there is one, else what ``settings.grid_file`` says, else measured.

    Raises `FileError`, `UsageError` or `DisagreementError`, the same on all ranks.
    """
    if given is not None:
        model = together(comm, lambda: _fit(given, comm.Get_size()))
        require_equal(comm, "model", digest(model))
        return model
    if settings.grid_file:
        return load_model(comm, settings.grid_file)
    from gridcoll.comm.measuring import discover  # the prober is not needed to read a file

    return discover(comm, settings.tolerance)


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
