"""Grid models as files: JSON with a version, validated when read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from gridcoll.errors import FileError, UsageError
from gridcoll.files import unfit, write_atomically
from gridcoll.model.correction import Correction
from gridcoll.model.gridmodel import GridModel, SlowHosts, TimesBySize
from gridcoll.model.plogp import PLogP
from gridcoll.topology.grid import Cluster, Grid, Process

FORMAT = "gridcoll-model"
FORMAT_VERSION = 7
"""The first version that a release can read; earlier versions were never released."""

NotNegative = Annotated[float, msgspec.Meta(ge=0)]

_COPIED_FIELDS = (
    *("origin", "tolerance", "relay_gap", "aggregate_bytes_per_s", "start_s", "contention", "mpi"),
    *("native_priors", "stages", "sources", "uplink_bytes_per_s"),
)
"""Fields that are the same in a file and in a model."""


class _Cluster(Struct, forbid_unknown_fields=True):
    name: str
    site: str
    region: str
    ranks: list[int]
    hosts: list[str]


class _Link(Struct, forbid_unknown_fields=True):
    sender: int
    receiver: int
    latency_s: NotNegative
    sizes_bytes: tuple[int, ...]
    gap_s: tuple[NotNegative, ...]
    send_s: tuple[NotNegative, ...]
    recv_s: tuple[NotNegative, ...]
    one_way_s: tuple[NotNegative, ...]


_LINK_FIELDS = PLogP.__struct_fields__


class _Runs(Struct, forbid_unknown_fields=True):
    sizes_bytes: tuple[int, ...]
    n_runs: tuple[int, ...]


class _Document(Struct, forbid_unknown_fields=True):
    format: str
    version: int
    name: str
    origin: Literal["measured", "declared"]
    tolerance: float
    clusters: list[_Cluster]
    links: list[_Link]
    native: dict[str, TimesBySize]
    relay_gap: TimesBySize | None
    aggregate_bytes_per_s: tuple[tuple[float, ...], ...]
    start_s: NotNegative
    contention: tuple[NotNegative, ...] = ()
    corrections: dict[str, dict[str, Correction]] = {}
    native_variants: dict[str, dict[str, TimesBySize]] = {}
    mpi: str = ""
    native_priors: tuple[str, ...] = ()
    native_runs: dict[str, dict[str, _Runs]] = {}
    stages: tuple[str, ...] = ()
    sources: tuple[tuple[str, ...], ...] = ()
    uplink_bytes_per_s: tuple[NotNegative, ...] = ()
    slow_hosts: tuple[SlowHosts, ...] | msgspec.UnsetType = msgspec.UNSET


def format_model(model: GridModel) -> bytes:
    """Return ``model`` as JSON. `parse_model` is the inverse."""
    document = _Document(
        format=FORMAT,
        version=FORMAT_VERSION,
        name=model.grid.name,
        clusters=[
            _Cluster(c.name, c.site, c.region, list(c.ranks), [p.host for p in c.processes])
            for c in model.grid.clusters
        ],
        links=[
            _Link(i, j, *(getattr(link, name) for name in _LINK_FIELDS))
            for i, row in enumerate(model.links)
            for j, link in enumerate(row)
            if link is not None
        ],
        native=dict(model.native),
        corrections={name: dict(families) for name, families in model.corrections.items()},
        native_variants={name: dict(times) for name, times in model.native_variants.items()},
        native_runs={
            collective: {
                name: _Runs(tuple(runs), tuple(runs.values())) for name, runs in natives.items()
            }
            for collective, natives in model.native_runs.items()
        },
        slow_hosts=model.slow_hosts or msgspec.UNSET,
        **{name: getattr(model, name) for name in _COPIED_FIELDS},
    )
    encoded = msgspec.json.encode(document, order="deterministic")
    return msgspec.json.format(encoded, indent=1)


def parse_model(data: bytes, place: str = "<bytes>") -> GridModel:
    """Return the model in ``data``; ``place`` names it in errors. Raises `FileError`."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.DecodeError as error:
        raise unfit("model file", place, data, str(error)) from None
    if document.format != FORMAT:
        raise FileError(f"model file {place}: format: expected {FORMAT!r}, got {document.format!r}")
    if document.version != FORMAT_VERSION:
        raise FileError(
            f"model file {place}: version {document.version}: this gridcoll reads "
            f"{FORMAT_VERSION}; measure again with gridcoll discover"
        )
    try:
        return _build(document)
    except (UsageError, IndexError, ValueError) as error:
        raise FileError(f"model file {place}: {error}") from None


def _build(document: _Document) -> GridModel:
    clusters = tuple(
        Cluster(
            c.name,
            tuple(Process(rank, host) for rank, host in zip(c.ranks, c.hosts, strict=True)),
            c.site,
            c.region,
        )
        for c in document.clusters
    )
    n = len(clusters)
    links: list[list[PLogP | None]] = [[None] * n for _ in range(n)]
    for link in document.links:
        if not (0 <= link.sender < n and 0 <= link.receiver < n):
            raise UsageError(f"link {link.sender} to {link.receiver}: there are {n} clusters")
        if links[link.sender][link.receiver] is not None:
            raise UsageError(f"link {link.sender} to {link.receiver}: given twice")
        links[link.sender][link.receiver] = PLogP(*(getattr(link, name) for name in _LINK_FIELDS))
    return GridModel(
        Grid(clusters, document.name),
        tuple(tuple(row) for row in links),
        native=document.native,
        corrections=document.corrections,
        native_variants=document.native_variants,
        native_runs={
            collective: {
                name: dict(zip(runs.sizes_bytes, runs.n_runs, strict=True))
                for name, runs in natives.items()
            }
            for collective, natives in document.native_runs.items()
        },
        slow_hosts=document.slow_hosts or (),
        **{name: getattr(document, name) for name in _COPIED_FIELDS},
    )


def write_model(model: GridModel, path: str | Path) -> None:
    """Write ``model`` to ``path``, atomically. Raises `FileError`."""
    write_atomically(path, format_model(model))


def read_model(path: str | Path) -> GridModel:
    """Return the model in the file at ``path``. Raises `FileError`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"model file {path}: {error.strerror or error}") from None
    return parse_model(data, str(path))


def digest(model: GridModel) -> str:
    """Return a hash of everything in ``model``. Models with equal digests give equal choices."""
    return hashlib.sha256(format_model(model)).hexdigest()
