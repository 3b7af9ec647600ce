"""Grid models as files: JSON, versioned, validated on the way in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gridcoll.errors import FileError, UsageError
from gridcoll.files import write_atomically
from gridcoll.model.correction import Correction
from gridcoll.model.gridmodel import GridModel, TimesBySize
from gridcoll.model.plogp import PLogP
from gridcoll.topology.grid import Cluster, Grid, Process

FORMAT = "gridcoll-model"
FORMAT_VERSION = 7
READABLE_VERSIONS = range(1, FORMAT_VERSION + 1)
"""What an older one does not have counts as not measured."""

RENAMED_VERSIONS = range(1, 5)
_OLD_KEYS = {"together_bytes_per_s": "aggregate_bytes_per_s", "pace": "relay_gap"}
_OLD_LINK_KEYS = {"alone_s": "one_way_s"}
"""What versions before 5 called it; later ones have other keys only."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _Cluster(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    site: str
    region: str
    ranks: list[int]
    hosts: list[str]


class _Link(msgspec.Struct, forbid_unknown_fields=True):
    sender: int
    receiver: int
    latency_s: Seconds
    sizes_bytes: list[int]
    gap_s: list[Seconds]
    send_s: list[Seconds]
    recv_s: list[Seconds]
    one_way_s: list[Seconds]


class _Times(msgspec.Struct, forbid_unknown_fields=True):
    sizes_bytes: list[int]
    seconds: list[Seconds]


class _Correction(msgspec.Struct, forbid_unknown_fields=True):
    sizes_bytes: list[int]
    factors: list[float]


class _Runs(msgspec.Struct, forbid_unknown_fields=True):
    sizes_bytes: list[int]
    n_runs: list[int]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    name: str
    origin: Literal["measured", "declared"]
    tolerance: float
    clusters: list[_Cluster]
    links: list[_Link]
    native: dict[str, _Times]
    relay_gap: _Times | None
    aggregate_bytes_per_s: list[list[float]]
    start_s: Seconds
    contention: list[Annotated[float, msgspec.Meta(ge=0)]] = []
    corrections: dict[str, dict[str, _Correction]] = {}
    native_variants: dict[str, dict[str, _Times]] = {}
    mpi: str = ""
    native_priors: list[str] = []
    native_runs: dict[str, dict[str, _Runs]] = {}
    stages: list[str] = []
    sources: list[list[str]] = []
    uplink_bytes_per_s: list[Annotated[float, msgspec.Meta(ge=0)]] = []


def format_model(model: GridModel) -> bytes:
    """``model`` as JSON. `parse_model` is its reverse."""
    document = _Document(
        format=FORMAT,
        version=FORMAT_VERSION,
        name=model.grid.name,
        origin=model.origin,
        tolerance=model.tolerance,
        clusters=[
            _Cluster(c.name, c.site, c.region, list(c.ranks), [p.host for p in c.processes])
            for c in model.grid.clusters
        ],
        links=[
            _Link(
                i,
                j,
                link.latency_s,
                list(link.sizes_bytes),
                list(link.gap_s),
                list(link.send_s),
                list(link.recv_s),
                list(link.one_way_s),
            )
            for i, row in enumerate(model.links)
            for j, link in enumerate(row)
            if link is not None
        ],
        native={name: _write_times(times) for name, times in sorted(model.native.items())},
        relay_gap=_write_times(model.relay_gap) if model.relay_gap else None,
        aggregate_bytes_per_s=[list(row) for row in model.aggregate_bytes_per_s],
        start_s=model.start_s,
        contention=list(model.contention),
        corrections={
            collective: {
                family: _Correction(list(found.sizes_bytes), list(found.factors))
                for family, found in sorted(families.items())
            }
            for collective, families in sorted(model.corrections.items())
        },
        native_variants={
            collective: {name: _write_times(times) for name, times in sorted(variants.items())}
            for collective, variants in sorted(model.native_variants.items())
        },
        mpi=model.mpi,
        native_priors=list(model.native_priors),
        native_runs={
            collective: {
                name: _Runs(list(runs), list(runs.values()))
                for name, runs in sorted(natives.items())
            }
            for collective, natives in sorted(model.native_runs.items())
        },
        stages=list(model.stages),
        sources=[list(row) for row in model.sources],
        uplink_bytes_per_s=list(model.uplink_bytes_per_s),
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def parse_model(data: bytes, place: str = "<bytes>") -> GridModel:
    """The model that ``data`` holds; ``place`` names it in errors. Raises `FileError`."""
    try:
        document = msgspec.convert(_with_new_keys(msgspec.json.decode(data)), _Document)
    except msgspec.DecodeError as error:
        raise FileError(f"model file {place}: {error}") from None
    if document.format != FORMAT:
        raise FileError(f"model file {place}: format: expected {FORMAT!r}, got {document.format!r}")
    if document.version not in READABLE_VERSIONS:
        raise FileError(
            f"model file {place}: version {document.version}: this gridcoll reads "
            f"{READABLE_VERSIONS[0]} to {READABLE_VERSIONS[-1]}"
        )
    try:
        return _build(document)
    except (UsageError, IndexError, ValueError) as error:
        raise FileError(f"model file {place}: {error}") from None


def _with_new_keys(document: Any) -> Any:
    """``document`` of an older version under the keys of today's, not yet checked."""
    if not isinstance(document, dict) or document.get("version") not in RENAMED_VERSIONS:
        return document
    links = document.get("links")
    if isinstance(links, list):
        document["links"] = [
            _renamed(link, _OLD_LINK_KEYS) if isinstance(link, dict) else link for link in links
        ]
    return _renamed(document, _OLD_KEYS)


def _renamed(fields: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in fields.items()}


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
        links[link.sender][link.receiver] = PLogP(
            link.latency_s,
            tuple(link.sizes_bytes),
            tuple(link.gap_s),
            tuple(link.send_s),
            tuple(link.recv_s),
            tuple(link.one_way_s),
        )
    return GridModel(
        Grid(clusters, document.name),
        tuple(tuple(row) for row in links),
        document.origin,
        document.tolerance,
        {name: _read_times(native) for name, native in document.native.items()},
        _read_times(document.relay_gap) if document.relay_gap else None,
        tuple(tuple(row) for row in document.aggregate_bytes_per_s),
        document.start_s,
        tuple(document.contention),
        {
            collective: {
                family: Correction(tuple(found.sizes_bytes), tuple(found.factors))
                for family, found in families.items()
            }
            for collective, families in document.corrections.items()
        },
        {
            collective: {name: _read_times(times) for name, times in variants.items()}
            for collective, variants in document.native_variants.items()
        },
        document.mpi,
        tuple(document.native_priors),
        {
            collective: {
                name: dict(zip(runs.sizes_bytes, runs.n_runs, strict=True))
                for name, runs in natives.items()
            }
            for collective, natives in document.native_runs.items()
        },
        tuple(document.stages),
        tuple(tuple(row) for row in document.sources),
        tuple(document.uplink_bytes_per_s),
    )


def _write_times(times: TimesBySize) -> _Times:
    return _Times(list(times.sizes_bytes), list(times.seconds))


def _read_times(times: _Times) -> TimesBySize:
    return TimesBySize(tuple(times.sizes_bytes), tuple(times.seconds))


def write_model(model: GridModel, path: str | Path) -> None:
    """Write ``model`` to ``path``, atomically. Raises `FileError`."""
    write_atomically(path, format_model(model))


def read_model(path: str | Path) -> GridModel:
    """The model in the file at ``path``. Raises `FileError`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"model file {path}: {error}") from None
    return parse_model(data, str(path))


def digest(model: GridModel) -> str:
    """A fingerprint of everything in ``model``: equal digests, equal choices."""
    return hashlib.sha256(format_model(model)).hexdigest()
