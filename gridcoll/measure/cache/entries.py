"""Entries of the cache: what is known about one host, cluster, link or library, as readable JSON.

Every entry has the times when it was first and last seen, how often it was seen, and the mean and
the spread of measured quantities. Each entry is one file; `file_name` gives its name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Annotated, ClassVar, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from gridcoll.errors import FileError, GridcollError, UsageError
from gridcoll.files import unfit
from gridcoll.model import PLogP, TimesBySize

T = TypeVar("T")

FORMAT = "gridcoll-cache"
VERSION = 1

LONGEST_NAME = 120
"""Longest file name. A longer one is cut, and a digest makes it unique."""

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Time = Annotated[datetime, msgspec.Meta(tz=True)]
Origin = Literal["measured", "declared"]
Key = tuple[str, ...]
"""Folder of an entry, and the names of what it describes."""


class NewerVersionError(GridcollError):
    """A file was written by a later version of gridcoll."""


class Statistic(Struct, frozen=True, forbid_unknown_fields=True):
    """Mean and spread (standard deviation) of a quantity that was measured ``count`` times."""

    mean: NotNegative
    spread: NotNegative = 0.0
    count: Count = 1

    def added(self, value: float) -> Statistic:
        """Return the statistic with one more value (Welford's update)."""
        n = self.count + 1
        mean = self.mean + (value - self.mean) / n
        squares = self.count * self.spread**2 + (value - self.mean) * (value - mean)
        return Statistic(max(mean, 0.0), math.sqrt(max(squares, 0.0) / n), n)

    def is_off(self, value: float, tolerance: float) -> bool:
        """Whether ``value`` differs from the mean by more than three spreads.

        It also has to differ by ``tolerance`` of the smaller of both, because the spread of few
        values is inaccurate.
        """
        least = min(self.mean, value) * tolerance
        return abs(value - self.mean) > max(least, 3 * self.spread)


class Entry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part that all entries have."""

    folder: ClassVar[str] = ""
    first: Time
    last: Time
    count: Count = 1
    origin: Origin = "measured"

    def parts(self) -> Key:
        """Return the names of what the entry describes."""
        raise NotImplementedError

    @property
    def key(self) -> Key:
        return (self.folder, *self.parts())


class Host(Entry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="host"):
    """A host: its cluster, and the rate of its interface (0: not known)."""

    folder: ClassVar[str] = "hosts"
    name: str
    cluster: str
    rate_bytes_per_s: NotNegative = 0.0

    def parts(self) -> Key:
        return (self.name,)


class ClusterEntry(Entry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cluster"):
    """A cluster.

    ``inside`` is the pLogP between two of its hosts, ``within_host`` between two processes of one.
    ``same_as`` is the name of another cluster that turned out to be the same one.
    ``uplink_bytes_per_s`` is the rate to all other clusters together; 0 if no limit is known.
    """

    folder: ClassVar[str] = "clusters"
    name: str
    site: str = ""
    region: str = ""
    same_as: str = ""
    inside: PLogP | None = None
    within_host: PLogP | None = None
    latency_s: Statistic | None = None
    rate_bytes_per_s: Statistic | None = None
    contention: NotNegative = 1.0
    uplink_bytes_per_s: NotNegative = 0.0
    mpi: str = ""

    def parts(self) -> Key:
        return (self.name,)


class LinkEntry(Entry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="link"):
    """The link from one cluster to another. The other direction is another entry."""

    folder: ClassVar[str] = "links"
    sender: str
    receiver: str
    plogp: PLogP
    aggregate_bytes_per_s: NotNegative = 0.0
    latency_s: Statistic
    rate_bytes_per_s: Statistic
    mpi: str = ""

    def parts(self) -> Key:
        return (self.sender, self.receiver)


class Library(Entry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="library"):
    """An MPI library with some number of ranks per host.

    ``start_s`` is the time that the shortest plan takes beyond its links, ``engine`` the time that
    a segment in a chain takes beyond the gap inside clusters. ``eager_bytes`` is the largest
    measured size that is sent without a handshake, ``copy_bytes_per_s`` the rate of copies in
    memory.
    """

    folder: ClassVar[str] = "libraries"
    mpi: str
    ranks_per_host: Count
    start_s: Statistic
    engine: TimesBySize | None = None
    eager_bytes: int = 0
    copy_bytes_per_s: NotNegative = 0.0

    def parts(self) -> Key:
        return (self.mpi, str(self.ranks_per_host))


class SizeClass(Struct, frozen=True, forbid_unknown_fields=True):
    """An outcome at one size: measured over predicted time of a plan, or seconds of a native."""

    n_bytes: Count
    value: Statistic


class Outcome(Entry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="outcome"):
    """Results of one algorithm of one collective, in jobs of one shape under one library.

    The values of a plan are factors over its predicted time, for any clusters. Those of a native
    are seconds, and hold only for these ``clusters`` in this order.
    """

    folder: ClassVar[str] = "outcomes"
    collective: str
    algorithm: str
    is_native: bool
    shape: str
    mpi: str
    clusters: list[str] = []
    sizes: list[SizeClass]

    def parts(self) -> Key:
        return (self.shape, self.mpi, self.collective, self.algorithm, *self.clusters)

    def __post_init__(self) -> None:
        sizes = [each.n_bytes for each in self.sizes]
        if not sizes or sizes != sorted(set(sizes)):
            raise UsageError(f"sizes: must ascend, got {sizes}")


AnyEntry = Host | ClusterEntry | LinkEntry | Library | Outcome
KINDS = (Host, ClusterEntry, LinkEntry, Library, Outcome)
FOLDERS = tuple(kind.folder for kind in KINDS)


class _Head(Struct):
    format: str
    version: int


class _Document(Struct, forbid_unknown_fields=True):
    format: str
    version: int
    entry: AnyEntry


class _Bundle(Struct, forbid_unknown_fields=True):
    format: str
    version: int
    entries: list[AnyEntry]


def encode_entry(entry: AnyEntry) -> bytes:
    """Return ``entry`` as the text of a file. `decode_entry` is the inverse."""
    encoded = msgspec.json.encode(_Document(FORMAT, VERSION, entry))
    return msgspec.json.format(encoded, indent=1)


def decode_entry(data: bytes, place: str) -> AnyEntry:
    """Return the entry in the text of a file. Raises `FileError` or `NewerVersionError`."""
    return _decode(data, _Document, place).entry


def encode_bundle(entries: Iterable[AnyEntry]) -> bytes:
    """Return many entries as one text. `decode_bundle` is the inverse."""
    return msgspec.json.encode(_Bundle(FORMAT, VERSION, list(entries)))


def decode_bundle(data: bytes, place: str = "<bytes>") -> list[AnyEntry]:
    """Return the entries in such a text. Raises `FileError` or `NewerVersionError`."""
    return _decode(data, _Bundle, place).entries


def _decode(data: bytes, kind: type[T], place: str) -> T:
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format == FORMAT and head.version > VERSION:
            raise NewerVersionError(
                f"cache file {place}: version {head.version}: this gridcoll reads {VERSION}"
            )
        if (head.format, head.version) != (FORMAT, VERSION):
            raise FileError(f"cache file {place}: it is no {FORMAT} of version {VERSION}")
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        if kind is _Document:  # a file of the cache itself
            raise FileError(f"cache file {place}: {error}") from None
        raise unfit("cache file", place, data, str(error)) from None


def file_name(key: Key) -> str:
    """Return the path of an entry below the cache's directory."""
    folder, *parts = key
    name = "--".join(quote(part, safe=" +,@=") for part in parts).replace(" ", "_")
    if len(name) > LONGEST_NAME or name.startswith("."):
        digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:16]
        name = f"{name.lstrip('.')[: LONGEST_NAME - 17]}-{digest}"
    return f"{folder}/{name}.json"


def now() -> datetime:
    """Return the present time, to the second. Entries are compared by it."""
    return datetime.now(timezone.utc).replace(microsecond=0)
