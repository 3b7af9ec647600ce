"""The model of a grid named on the command line, without MPI."""

from __future__ import annotations

from gridcoll.cli.gridfiles import find_gridfile
from gridcoll.model import GridModel, declared_model, read_model
from gridcoll.topology.gridfile import read_gridfile


def load_model(name: str) -> GridModel:
    """The model in the file at path ``name``, or of the named grid.

    A declared grid (``.toml``) has all its slots filled. Raises `UsageError`, `FileError`.
    """
    path = find_gridfile(name)
    if path.suffix != ".toml":
        return read_model(path)
    spec = read_gridfile(path)
    if not spec.by_rank:
        return declared_model(spec, spec.rank_hosts())
    counts = [c.ranks if isinstance(c.ranks, int) else len(c.ranks or ()) for c in spec.clusters]
    return declared_model(spec, [f"host{rank}" for rank in range(sum(counts))])
