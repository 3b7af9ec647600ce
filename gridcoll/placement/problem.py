"""The application: what one iteration computes and exchanges, and the file that describes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from gridcoll.errors import FileError, UsageError
from gridcoll.files import decode_toml, read_text
from gridcoll.topology.units import parse_size_bytes

FORMAT_VERSION = 1


class Phase(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One computation phase; all hosts wait for the slowest before the next one starts.

    ``alpha_s`` is seconds per element on one host, for every cluster alike or by cluster name.
    ``overlaps_update`` is the number (from 1) of the UPDATE this phase can hide behind, if any.
    """

    name: str
    alpha_s: float | dict[str, float]
    overlaps_update: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.alpha_s, Mapping):
            for cluster, alpha_s in self.alpha_s.items():
                _positive(f"phase {self.name!r}: alpha_s of cluster {cluster!r}", alpha_s)
        else:
            _positive(f"phase {self.name!r}: alpha_s", self.alpha_s)


class Update(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The UPDATEs of an iteration (paper 004, equation 1); the defaults are the paper's.

    ``face_bytes`` is its s_U, ``beta_host`` and ``beta_cluster`` its β_H and β_C, ``count`` its
    n_U. TCP in both directions at once gets ``bandwidth_factor`` of the bandwidths given.
    """

    count: int = 2
    mode: Literal["blocking", "overlapped"] = "blocking"
    face_bytes: float = 48.0
    beta_host: float = 5.0
    beta_cluster: float = 1.0
    bandwidth_factor: float = 0.5

    def __post_init__(self) -> None:
        _not_negative("update: count", self.count)
        for field in ("face_bytes", "beta_host", "beta_cluster"):
            _not_negative(f"update: {field}", getattr(self, field))
        if not 0 < self.bandwidth_factor <= 1:
            raise UsageError(
                f"update: bandwidth_factor: must be above 0 and at most 1, "
                f"got {self.bandwidth_factor}"
            )


class Allreduce(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ALLREDUCEs of an iteration. ``form`` is a name of `placement.allreduce.FORMS`."""

    count: int = 4
    form: str = "latency"

    def __post_init__(self) -> None:
        _not_negative("allreduce: count", self.count)


class Memory(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Memory: ``element_bytes`` for each element, of ``host`` (``"4 GiB"``, or by cluster name)."""

    element_bytes: float
    host: str | dict[str, str]

    def __post_init__(self) -> None:
        _positive("memory: element_bytes", self.element_bytes)
        sizes = self.host if isinstance(self.host, Mapping) else {"": self.host}
        for cluster, text in sizes.items():
            field = f"memory: host of cluster {cluster!r}" if cluster else "memory: host"
            try:
                n_bytes = parse_size_bytes(text)
            except UsageError as error:
                raise UsageError(f"{field}: {error}") from None
            _positive(field, n_bytes)


class Problem(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mesh and the iteration that is run on it. Validated when made; raises `UsageError`."""

    n_elements: int
    phases: list[Phase]
    name: str = ""
    description: str = ""
    update: Update = msgspec.field(default_factory=Update)
    allreduce: Allreduce = msgspec.field(default_factory=Allreduce)
    memory: Memory | None = None

    def __post_init__(self) -> None:
        _positive("n_elements", self.n_elements)
        if not self.phases:
            raise UsageError("phases: needs at least one")
        for phase in self.phases:
            number = phase.overlaps_update
            if number is not None and not 1 <= number <= self.update.count:
                raise UsageError(
                    f"phase {phase.name!r}: overlaps_update: must be 1 to {self.update.count} "
                    f"(update.count), got {number}"
                )


class ProblemFile(Struct, frozen=True):
    """A problem file: the problem, and the path of its grid file if it names one."""

    problem: Problem
    grid: Path | None


class _Document(Problem, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int
    grid: str | None = None


def _positive(field: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise UsageError(f"{field}: must be positive, got {value}")


def _not_negative(field: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise UsageError(f"{field}: must not be negative, got {value}")


def parse_problem(text: str, place: str = "<text>") -> ProblemFile:
    """Read a problem from ``text`` (TOML); ``place`` names it in errors. Raises `FileError`."""
    document = decode_toml(text, _Document, "problem file", place)
    if document.version != FORMAT_VERSION:
        raise FileError(
            f"problem file {place}: version: must be {FORMAT_VERSION}, got {document.version}"
        )
    fields = {field: getattr(document, field) for field in Problem.__struct_fields__}
    grid = None if document.grid is None else Path(place).parent / document.grid
    return ProblemFile(Problem(**fields), grid)


def read_problem(path: str | Path) -> ProblemFile:
    """Read the problem file at ``path``. Raises `FileError`."""
    return parse_problem(read_text(path, "problem file"), str(path))
