"""The model of a grid named on the command line, without MPI."""

from __future__ import annotations

from collections.abc import Sequence

from gridcoll.gridfiles import find_gridfile
from gridcoll.model import GridModel, declared_model, read_model
from gridcoll.model.wires import Wires, wires_from_model, wires_from_spec
from gridcoll.topology.gridfile import GridSpec, read_gridfile


def load_model(name: str) -> GridModel:
    """Return the model in the file at path ``name``, or of the grid called ``name``.

    All slots of a declared grid (``.toml``) are filled. Raises `UsageError`, `FileError`.
    """
    path = find_gridfile(name)
    if path.suffix != ".toml":
        return read_model(path)
    spec = read_gridfile(path)
    return declared_model(spec, _hosts(spec))


def load_wires(name: str) -> tuple[Wires, int | None]:
    """Return the wires between the hosts of that grid, and the declared TCP window in bytes.

    The wires of a measured model are those that single flows show; its window is None.
    """
    path = find_gridfile(name)
    if path.suffix != ".toml":
        return wires_from_model(read_model(path)), None
    spec = read_gridfile(path)
    return wires_from_spec(spec, _hosts(spec)), spec.window_bytes


def _hosts(spec: GridSpec) -> Sequence[str]:
    if not spec.by_rank:
        return spec.rank_hosts()
    counts = [c.ranks if isinstance(c.ranks, int) else len(c.ranks or ()) for c in spec.clusters]
    return [f"host{rank}" for rank in range(sum(counts))]
