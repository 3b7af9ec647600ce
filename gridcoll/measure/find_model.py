"""Find the model of a communicator's grid: remembered, read, taken from the cache, or measured."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from mpi4py import MPI
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.engine.agreement import from_root, require_equal, tell_all, together
from gridcoll.errors import FileError, UsageError
from gridcoll.gridfiles import find_gridfile
from gridcoll.measure.cache.entries import AnyEntry, decode_bundle, encode_bundle
from gridcoll.measure.cache.folder import NOWHERE, Cache, Places
from gridcoll.measure.cache.knowledge import MEASURED_NOW, Knowledge
from gridcoll.measure.cache.learning import can_be_kept, learn_model
from gridcoll.measure.cache.start import Start, start_from
from gridcoll.measure.clusters import machine_id
from gridcoll.measure.quick import quick_model
from gridcoll.measure.report import Report
from gridcoll.model import GridModel, declared_model, digest, format_model, parse_model, read_model
from gridcoll.topology.clustering import DEFAULT_TOLERANCE
from gridcoll.topology.gridfile import read_gridfile

MOST_MODELS = 32
"""Number of models kept, each for a different set of processes. The least recently used one is
dropped."""


class Remembered(Struct, frozen=True):
    """A model, and the processes that it describes."""

    processes: tuple[int, ...]
    """World rank of each process, by its rank in the model."""
    model: GridModel
    source: str
    """Where the model came from. Equal sources give equal models."""


_known: OrderedDict[str, Remembered] = OrderedDict()


def processes_of(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Return the world ranks of ``comm``'s processes; empty if some are not in the world."""
    theirs, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        ranks = MPI.Group.Translate_ranks(theirs, list(range(comm.Get_size())), world)
    finally:
        theirs.Free()
        world.Free()
    return () if MPI.UNDEFINED in ranks else tuple(ranks)


def remember(processes: tuple[int, ...], model: GridModel, source: str) -> None:
    """Keep the ``model`` of ``processes`` for later communicators."""
    if not processes:
        return
    key = f"{digest(model)} {' '.join(map(str, processes))}"
    _known.pop(key, None)
    _known[key] = Remembered(processes, model, source)
    if len(_known) > MOST_MODELS:
        _known.popitem(last=False)


def forget_all() -> None:
    """Forget all models, for tests."""
    _known.clear()


def remembered(source: str) -> dict[str, Remembered]:
    """Return all models remembered from ``source`` by key, newest first.

    The result is a copy: other threads may add and evict models, but a rank must keep those that it
    told the others about.
    """
    return {key: each for key, each in reversed(list(_known.items())) if each.source == source}


def covering(processes: tuple[int, ...], known: Mapping[str, Remembered]) -> list[str]:
    """Return the keys of ``known`` models that contain all of ``processes``."""
    wanted = set(processes)
    return [key for key, each in known.items() if processes and wanted <= set(each.processes)]


def restricted(found: Remembered, processes: tuple[int, ...]) -> GridModel:
    """Return the model of ``processes``, a subset of the processes of ``found``."""
    if found.processes == processes:
        return found.model
    rank_of = {process: rank for rank, process in enumerate(found.processes)}
    return found.model.restrict([rank_of[process] for process in processes])


QUICK_LOSS = "5 %"
"""By how much, in the median, calls are slower after a quick measurement than after a discovery.
Single calls took up to 1.4 times as long (benchmarks/first_calls.py)."""


HelloRow: TypeAlias = tuple[str, str, list[str], list[str]]
"""Host, machine, keys of the remembered models, and keys of those that contain all processes."""


class Hello(Struct, frozen=True):
    """What a rank tells the others at the start."""

    source: str
    """Where a model would come from."""
    processes: tuple[int, ...]
    """See `processes_of`."""
    own: dict[str, Remembered]
    """Models that this rank remembers from that source; ``row`` lists their keys."""
    row: HelloRow
    """What is sent to the other ranks."""


class _Hellos(Struct, frozen=True):
    """What all ranks told each other."""

    hello: Hello
    """This rank's own."""
    nodes: tuple[tuple[str, str], ...]
    """Host name and `machine_id` of each rank."""
    keys: tuple[frozenset[str], ...]
    """Keys of the models that each rank remembers."""
    covering: str
    """Key of a model that all ranks remember and that contains all of them; empty if there is none.
    """
    hostnames_are_unique: bool
    """Whether hosts of the same name are the same machine."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host name of each rank."""
        return tuple(host for host, _ in self.nodes)

    @classmethod
    def of(cls, hello: Hello, rows: Sequence[HelloRow]) -> _Hellos:
        """Combine this rank's ``hello`` with the ``rows`` of all ranks."""
        known_to_all = set.intersection(*(set(row[3]) for row in rows))
        machines = {row[:2] for row in rows}
        return cls(
            hello,
            tuple(row[:2] for row in rows),
            tuple(frozenset(row[2]) for row in rows),
            next((key for key in rows[0][3] if key in known_to_all), ""),
            len(machines) == len({host for host, _ in machines}),
        )


def say_hello(comm: MPI.Intracomm, tolerance: float, file: str = "") -> Hello:
    """Return this rank's `Hello`. Local.

    ``file`` names the file, and its version, that a model comes from; empty if there is none.
    """
    source, processes = file or f"tolerance {tolerance}", processes_of(comm)
    own = remembered(source)
    row = MPI.Get_processor_name(), machine_id(), list(own), covering(processes, own)
    return Hello(source, processes, own, row)


def find_model(
    comm: MPI.Intracomm,
    given: GridModel | None,
    *,
    grid_file: str = "",
    places: Places = NOWHERE,
    tolerance: float = DEFAULT_TOLERANCE,
    greeting: tuple[Hello, Sequence[HelloRow]] | None = None,
) -> GridModel:
    """Return the model of ``comm``'s grid, the same on all ranks. Collective.

    The model is the first of these that exists: ``given``; the model of another communicator of
    this job that contains all these processes; the one in ``grid_file``; the one that the cache in
    ``places`` knows, checked and completed. Otherwise it is measured. ``greeting`` holds the result
    of `say_hello` and the rows of all ranks, if they have been exchanged already.

    Raises `FileError`, `UsageError` or `DisagreementError`, the same on all ranks.
    """
    if given is not None:
        model = together(comm, lambda: _checked_model(given, comm.Get_size()))
        require_equal(comm, "model", digest(model))
        return model
    if greeting is None or grid_file:
        # Only rank 0 opens the file. A file that was rewritten counts as another source.
        file = ""
        if grid_file:
            file = comm.bcast(_file_version(grid_file) if comm.Get_rank() == 0 else "", 0)
        hello = say_hello(comm, tolerance, file)
        greeting = hello, tell_all(comm, hello.row)
    hello, rows = greeting
    hellos = _Hellos.of(hello, rows)
    if hellos.covering:
        return restricted(hello.own[hellos.covering], hello.processes)
    if grid_file:
        model = load_model(comm, grid_file)
    else:
        model = _find_or_measure(comm, hellos, places, tolerance)
    remember(hello.processes, model, hello.source)
    return model


def _file_version(path: str) -> str:
    """Return a text that names the file at ``path`` and its present version."""
    try:
        found = Path(path).stat()
    except OSError:
        return f"file {path}"
    return f"file {path} {found.st_mtime_ns} {found.st_size} {found.st_ino}"


def _find_or_measure(
    comm: MPI.Intracomm, hellos: _Hellos, places: Places, tolerance: float
) -> GridModel:
    rank, hosts = comm.Get_rank(), hellos.hosts
    n_hosts, began_s = len(set(hosts)), time.monotonic()
    report = Report(rank == 0 and n_hosts > 1)
    cache = Cache(places, tolerance) if rank == 0 else None
    known, is_certain = _gather_known(comm, hellos, cache)
    start = None
    with report.progress() as progress:
        if hellos.hostnames_are_unique:
            start = start_from(
                comm, known, hosts, tolerance, is_certain=is_certain, progress=progress
            )
        if start:
            model = start.model
        else:
            model = _marked_measured_now(
                quick_model(comm, tolerance, progress, known_nodes=hellos.nodes)
            )
    took_s = time.monotonic() - began_s
    if cache is not None:
        if hellos.hostnames_are_unique:
            _keep(cache, known, start, model)
        report.warn(cache.warning())
        if start is None:
            report.say(
                f"new network, measured in {took_s:.1f} s; run `gridcoll discover` once for the "
                f"last {QUICK_LOSS}"
            )
        else:
            report.say(_summary_line(known, start, took_s))
    return model


def _marked_measured_now(model: GridModel) -> GridModel:
    row = (MEASURED_NOW,) * model.n_clusters
    return replace(model, sources=(row,) * model.n_clusters)


def _gather_known(
    comm: MPI.Intracomm, hellos: _Hellos, cache: Cache | None
) -> tuple[Knowledge, bool]:
    """Return what is known about this job, equal on all ranks, and whether this job measured all.

    It comes from the cache, which rank 0 reads, and from models that ranks remember of other
    communicators.
    """
    models = _gather_remembered(comm, hellos)

    def gather() -> bytes:
        known = cache.read() if cache and hellos.hostnames_are_unique else Knowledge()
        hosts = set(hellos.hosts)
        for model in models:
            if can_be_kept(model):
                learn_model(known, model)
                hosts -= set(model.grid.hosts)
        about = known.about(hellos.hosts, MPI.get_vendor()[0], comm.Get_size())
        return bytes([not hosts]) + encode_bundle(about)

    data = from_root(comm, gather)
    return Knowledge(decode_bundle(data[1:])), bool(data[0])


def _gather_remembered(comm: MPI.Intracomm, hellos: _Hellos) -> list[GridModel]:
    """Return, on rank 0, the models that any rank remembers. Collective.

    Nothing is sent if no rank remembers any.
    """
    holders: dict[str, int] = {}
    for rank, keys in enumerate(hellos.keys):
        for key in sorted(keys):
            holders.setdefault(key, rank)
    if not holders:
        return []
    mine = [
        format_model(hellos.hello.own[key].model)
        for key, rank in holders.items()
        if rank == comm.Get_rank()
    ]
    rows = comm.gather(mine, 0)
    return [parse_model(data) for row in rows or () for data in row]


def _keep(cache: Cache, known: Knowledge, start: Start | None, model: GridModel) -> None:
    """Write new entries to the cache. If there are none, no file is opened."""
    if not can_be_kept(model):
        return

    def learn(here: Knowledge) -> list[AnyEntry]:
        return start.learn(here) if start else learn_model(here, model)

    if start is None or learn(Knowledge(known)):
        cache.update(learn)


def keep_model(model: GridModel, places: Places) -> str:
    """Write the ``model`` of a discovery into the cache, and return what went wrong, if anything.

    To be called on one rank.
    """
    cache = Cache(places, model.tolerance)
    _keep(cache, Knowledge(), None, model)
    return cache.warning()


def _summary_line(known: Knowledge, start: Start, took_s: float) -> str:
    grid = start.model.grid
    n_hosts, n = len(set(grid.host_of)), len(grid.clusters)
    since = known.since()
    parts = [
        f"{n_hosts} hosts in {n} cluster{'s' if n > 1 else ''}",
        *([f"known since {since:%Y-%m-%d}"] if since else []),
    ]
    if start.check_s:
        parts.append(f"links checked in {start.check_s:.1f} s")
    if start.n_placed:
        parts.append(f"{start.n_placed} new host{'s' if start.n_placed > 1 else ''} placed")
    if start.measured:
        changed = f", {start.n_changed} of them changed" if start.n_changed else ""
        n_links = len({tuple(sorted(pair)) for pair in start.measured})
        links = f"{n_links} link{'s' if n_links > 1 else ''}"
        parts.append(f"{links} measured{changed} ({took_s:.1f} s in all)")
    return ", ".join(parts)


def load_model(comm: MPI.Intracomm, path: str) -> GridModel:
    """Return the model in the file at ``path``, or of the grid of that name. Collective.

    Rank 0 reads the file. The suffix ``.toml`` means a declared grid, any other suffix a measured
    model. A ``path`` without a suffix is the name of a grid or a file. Raises `FileError` or
    `UsageError`, the same on all ranks.
    """
    hosts = tell_all(comm, MPI.Get_processor_name())

    def read() -> bytes:
        # A path with a suffix is never the name of a grid: if it is missing, that is a `FileError`.
        file = Path(path) if Path(path).suffix else find_gridfile(path)
        if file.suffix == ".toml":
            return format_model(declared_model(read_gridfile(file), hosts))
        model = read_model(file)
        check_fit(model, hosts, path)
        return format_model(model)

    return parse_model(from_root(comm, read), path)


def check_fit(model: GridModel, hosts: list[str], place: str) -> None:
    """Raise `FileError` unless ``model`` describes a job whose rank ``i`` runs on ``hosts[i]``.

    A model measured under another MPI library does not fit: its natives and times differ.
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


def _checked_model(model: GridModel, n_ranks: int) -> GridModel:
    if not isinstance(model, GridModel):  # a likely mistake is to pass a file name
        raise UsageError(
            f"model: must be a GridModel, got {model!r}; read_model reads one from a file"
        )
    if model.grid.n_ranks != n_ranks:
        raise UsageError(f"model: it describes {model.grid.n_ranks} ranks, not {n_ranks}")
    return model
