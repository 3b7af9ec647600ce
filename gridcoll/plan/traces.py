"""Files that a job writes with ``GRIDCOLL_TRACE=DIR``: one per rank, and the model it used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from gridcoll.errors import FileError
from gridcoll.files import write_atomically
from gridcoll.model import GridModel, read_model
from gridcoll.plan.choice import Choice
from gridcoll.plan.registry import Candidate
from gridcoll.topology.grid import Grid

MODEL = "model.json"


class StoredCandidate(Struct):
    """A candidate as stored in a trace, without what builds its plan."""

    name: str
    label: str
    predicted_s: float | None = None
    observed_s: float | None = None
    n_calls: int = 0


class Decided(Struct):
    """A decision as stored in a trace; ``winner`` is an index into ``candidates``."""

    collective: str
    n_bytes: int
    root: int
    n_ranks: int
    winner: int
    reason: str
    candidates: list[StoredCandidate]


class Sent(Struct):
    """What a rank sent in plans from its cluster to another one; clusters are given by name."""

    sender: str
    receiver: str
    messages: int
    n_bytes: int


class RankTrace(Struct, forbid_unknown_fields=True):
    """The file of one rank. Only rank 0's has decisions."""

    version: int
    rank: int
    n_ranks: int
    sent: list[Sent]
    decided: list[Decided] = []


class JobTrace(Struct, frozen=True):
    """All files of a job. ``choices`` are pairs of a choice and the number of ranks in the call."""

    model: GridModel
    n_ranks: int
    n_files: int
    choices: tuple[tuple[Choice, int], ...]
    sent: tuple[Sent, ...]


def decided_of(choice: Choice, n_ranks: int) -> Decided:
    """Return ``choice``, made on a communicator of ``n_ranks``, in the form stored in a trace."""
    candidates = list(choice.candidates)
    names = [(each.name, each.label) for each in candidates]
    name = choice.winner.name, choice.winner.label
    if name not in names:  # a requested algorithm need not be among the candidates
        candidates.append(choice.winner)
        names.append(name)
    stored = [
        StoredCandidate(each.name, each.label, each.predicted_s, each.observed_s, each.n_calls)
        for each in candidates
    ]
    winner = names.index(name)
    call = choice.collective, choice.n_bytes, choice.root
    return Decided(*call, n_ranks, winner, choice.reason, stored)


def write_trace(trace: RankTrace, folder: Path) -> None:
    """Write the file of one rank into ``folder``. Raises `FileError` if that fails."""
    encoded = msgspec.json.format(msgspec.json.encode(trace), indent=1)
    write_atomically(folder / f"rank-{trace.rank}.json", encoded)


def read_trace(folder: Path) -> JobTrace:
    """Read the trace of a job from ``folder``.

    Ranks that share no files with rank 0 may be missing.

    Raises `FileError` for files of another kind, or of different jobs.
    """
    ranks = [_read_rank(path) for path in sorted(folder.glob("rank-*.json"))]
    first = next((trace for trace in ranks if trace.rank == 0), None)
    if first is None:
        raise FileError(f"{folder}: no rank-0.json, as jobs leave with GRIDCOLL_TRACE={folder}")
    ranks = [trace for trace in ranks if trace.rank < first.n_ranks]
    if others := [trace.rank for trace in ranks if trace.n_ranks != first.n_ranks]:
        raise FileError(f"{folder}: rank-{others[0]}.json is of another job")
    model = read_model(folder / MODEL)
    choices = tuple((_choice_of(each), each.n_ranks) for each in first.decided)
    return JobTrace(model, first.n_ranks, len(ranks), choices, _total_sent(ranks))


def _read_rank(path: Path) -> RankTrace:
    try:
        trace = msgspec.json.decode(path.read_bytes(), type=RankTrace)
    except (OSError, msgspec.DecodeError) as error:
        raise FileError(f"{path}: {error}") from None
    if trace.version != 1:
        raise FileError(f"{path}: version must be 1, got {trace.version}")
    for each in trace.decided:
        if not 0 <= each.winner < len(each.candidates):
            raise FileError(f"{path}: winner {each.winner} of {len(each.candidates)} candidates")
    return trace


def _choice_of(decided: Decided) -> Choice:
    candidates = tuple(
        Candidate(
            each.name,
            each.label,
            each.predicted_s,
            observed_s=each.observed_s,
            n_calls=each.n_calls,
        )
        for each in decided.candidates
    )
    call = decided.collective, decided.n_bytes, decided.root
    return Choice(*call, candidates[decided.winner], candidates, decided.reason)


def _total_sent(ranks: Sequence[RankTrace]) -> tuple[Sent, ...]:
    """Add up what all ``ranks`` sent, by sender's and receiver's cluster."""
    messages: Counter[tuple[str, str]] = Counter()
    n_bytes: Counter[tuple[str, str]] = Counter()
    for trace in ranks:
        for sent in trace.sent:
            messages[sent.sender, sent.receiver] += sent.messages
            n_bytes[sent.sender, sent.receiver] += sent.n_bytes
    return tuple(Sent(*link, messages[link], n_bytes[link]) for link in sorted(messages))


Link = tuple[int, int]


class Traffic(Struct, frozen=True):
    """Messages and units, by sender's and receiver's cluster."""

    messages: Mapping[Link, int] = field(default_factory=Counter)
    units: Mapping[Link, int] = field(default_factory=Counter)
    """Keys are pairs of clusters; the two are equal for messages inside a cluster. Units are those
    of the plan, or bytes if messages were counted when they were sent."""

    @property
    def n_inter_messages(self) -> int:
        """Messages between different clusters."""
        return sum(count for (i, j), count in self.messages.items() if i != j)

    @property
    def n_inter_units(self) -> int:
        """Units that cross between different clusters."""
        return sum(count for (i, j), count in self.units.items() if i != j)

    def since(self, earlier: Traffic) -> Traffic:
        """Return what was added since ``earlier``."""
        return Traffic(
            Counter(self.messages) - Counter(earlier.messages),
            Counter(self.units) - Counter(earlier.units),
        )


def traffic_of(grid: Grid, sent: Iterable[tuple[int, int, int, int]]) -> Traffic:
    """Add up ``(sender, receiver, messages, units)`` between ranks by the clusters of ``grid``."""
    messages: Counter[Link] = Counter()
    units: Counter[Link] = Counter()
    for sender, receiver, n_messages, n_units in sent:
        link = grid.cluster_of[sender], grid.cluster_of[receiver]
        messages[link] += n_messages
        units[link] += n_units
    return Traffic(messages, units)
