"""A start from what is known: read by rank 0, checked, completed, kept; and once per process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.errors import GridcollError, UsageError
from gridcoll.measure import find_model as finding
from gridcoll.measure.cache import check, start
from gridcoll.measure.cache.entries import decode_entry, encode_entry
from gridcoll.measure.cache.folder import Folder
from gridcoll.measure.find_model import forget_all
from gridcoll.model import GridModel, digest, linear_plogp, write_model
from gridcoll.topology import Grid
from tests.mpi.support import grid_model, works


@pytest.fixture
def place(mpi_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for all ranks, in which nothing is yet."""
    path = mpi_tmp_path / "cache"
    for name in ("GRIDCOLL_GRID", "GRIDCOLL_TOLERANCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRIDCOLL_CACHE", str(path))
    return path


class Measured:
    """What was measured on this rank: whole models, and pairs of clusters."""

    def __init__(self) -> None:
        self.models = 0
        self.pairs: list[tuple[str, str]] = []
        self.checks = 0


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, str]], None]:
    """``sites({rank: "north-0"})``: which host each rank is on; all share one machine, really."""

    def name(host_of: dict[int, str]) -> None:
        host = host_of[MPI.COMM_WORLD.Get_rank()]
        monkeypatch.setattr(finding.MPI, "Get_processor_name", lambda: host)

    return name


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Nothing is measured, but counted: clusters are what hosts' names say before their dash."""
    counted = Measured()

    def quick_model(
        comm: MPI.Intracomm, tolerance: float, progress: Any, *, known_nodes: Any
    ) -> GridModel:
        counted.models += 1
        assert len(known_nodes) == comm.Get_size()
        hosts = comm.allgather(finding.MPI.Get_processor_name())
        labels = [host.split("-")[0] for host in hosts]
        grid = Grid.from_labels(labels, hosts)
        n = len(grid.clusters)
        links = tuple(
            tuple(
                None if i == j and len(grid.clusters[i]) == 1 else linear_plogp(
                    50e-6 if i == j else 5e-3, 12.5e6
                )
                for j in range(n)
            )
            for i in range(n)
        )  # fmt: skip
        return GridModel(grid, links, "measured", tolerance, mpi=MPI.get_vendor()[0])

    def measure_pairs(
        comm: MPI.Intracomm, grid: Grid, pairs: list[tuple[int, int]], progress: Any
    ) -> dict[tuple[int, int], Any]:
        names = [cluster.name for cluster in grid.clusters]
        counted.pairs += [(names[a], names[b]) for a, b in pairs]
        return {(a, b): linear_plogp(50e-6 if a == b else 7e-3, 12.5e6) for a, b in pairs}

    def check_grid(*_args: Any, **_keywords: Any) -> check.CheckResult:
        counted.checks += 1
        return check.CheckResult()

    def place_hosts(
        comm: MPI.Intracomm, hosts: tuple[str, ...], labels: tuple[str, ...], *_rest: Any
    ) -> tuple[str, ...]:
        return tuple(host.split("-")[0] for host in hosts)

    monkeypatch.setattr(finding, "quick_model", quick_model)
    monkeypatch.setattr(start, "place_hosts", place_hosts)
    monkeypatch.setattr(start, "measure_pairs", measure_pairs)
    monkeypatch.setattr(start, "check_grid", check_grid)
    return counted


def next_job(world: MPI.Intracomm) -> None:
    """What a job remembers ends with it."""
    world.Barrier()
    forget_all()


def hosts_of(world: MPI.Intracomm, turned: int = 0) -> dict[int, str]:
    """Two sites, ranks in blocks; ``turned`` by some."""
    n = world.Get_size()
    names = [f"{'north' if k < (n + 1) // 2 else 'south'}-{k}" for k in range(n)]
    return {rank: names[(rank + turned) % n] for rank in range(n)}


def test_known_hosts_are_checked_and_not_measured(
    world: MPI.Intracomm, place: Path, sites: Any, measured: Measured
) -> None:
    for turned in (0, 0, 1):
        sites(hosts_of(world, turned))
        comm = GridComm(world)
        works(comm)
        assert len(set(world.allgather(digest(comm.model)))) == 1
        comm.Free()
        next_job(world)
    assert (measured.models, measured.pairs, measured.checks) == (1, [], 2)


def test_a_part_of_the_hosts_and_another_order(
    world: MPI.Intracomm, place: Path, sites: Any, measured: Measured
) -> None:
    sites(hosts_of(world))
    GridComm(world).Free()
    next_job(world)
    part = MPI.Intracomm(world.Split(world.Get_rank() % 2, -world.Get_rank()))
    comm = GridComm(part)
    works(comm)
    comm.Free()
    part.Free()
    assert measured.models == 1


@pytest.mark.mpi(min_size=3)
def test_a_link_nobody_knows_is_measured_alone(
    world: MPI.Intracomm, place: Path, sites: Any, measured: Measured
) -> None:
    """Two jobs knew two sites each; a third one spans all."""
    n = world.Get_size()
    names = {rank: f"{('north', 'south', 'west')[min(rank, 2)]}-{rank}" for rank in range(n)}
    sites(names)
    for without in (2, 0):
        colour = MPI.UNDEFINED if min(world.Get_rank(), 2) == without else 0
        part = world.Split(colour, 0)
        if part != MPI.COMM_NULL:
            GridComm(MPI.Intracomm(part)).Free()
            part.Free()
        next_job(world)
    measured.models, measured.pairs = 0, []
    comm = GridComm(world)
    assert measured.models == 0
    assert {tuple(sorted(pair)) for pair in measured.pairs if pair[0] != pair[1]} == {
        ("north", "west")
    }
    assert sorted(c.name for c in comm.grid.clusters) == ["north", "south", "west"]
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_what_is_off_is_measured_again_and_kept(
    world: MPI.Intracomm,
    place: Path,
    sites: Any,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites(hosts_of(world))
    GridComm(world).Free()
    next_job(world)
    looks = check.CheckResult(changed=frozenset({(0, 1)}))
    monkeypatch.setattr(start, "check_grid", lambda *_args, **_keywords: looks)
    comm = GridComm(world)
    assert measured.pairs == [("north", "south")]
    assert comm.model.link(0, 1).latency_s == 7e-3
    comm.Free()
    next_job(world)
    monkeypatch.setattr(start, "check_grid", lambda *_args, **_keywords: check.CheckResult())
    comm = GridComm(world)
    assert comm.model.link(1, 0).latency_s == 7e-3
    comm.Free()
    assert len(measured.pairs) == 1


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b'{"format": "gridcoll-cache", "version": 9}']
)
def test_a_damaged_file_is_one_warning_on_rank_0(
    world: MPI.Intracomm,
    place: Path,
    sites: Any,
    measured: Measured,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
) -> None:
    sites(hosts_of(world))
    GridComm(world).Free()
    next_job(world)
    if world.Get_rank() == 0:
        for path in (place / "v1" / "clusters").iterdir():
            path.write_bytes(content)
    world.Barrier()
    caplog.clear()
    comm = GridComm(world)
    works(comm)
    comm.Free()
    warned = [r for r in caplog.records if r.levelno >= logging.WARNING]
    several = len(set(hosts_of(world).values())) > 1
    assert len(warned) == (world.Get_rank() == 0 and several)
    assert measured.models == 2
    next_job(world)
    caplog.clear()
    GridComm(world).Free()
    assert measured.models == 2
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_off_no_home_and_nowhere_to_write(
    world: MPI.Intracomm,
    place: Path,
    sites: Any,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites(hosts_of(world))
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    blocked = place.parent / "blocked"
    if world.Get_rank() == 0:
        blocked.write_text("a file")
    world.Barrier()
    for k, value in enumerate(("off", "", str(blocked / "below"))):
        monkeypatch.setenv("GRIDCOLL_CACHE", value)
        GridComm(world).Free()
        next_job(world)
        assert measured.models == k + 1
    assert not place.exists()


def test_a_site_cache_that_is_not_there_is_one_warning_on_rank_0(
    world: MPI.Intracomm,
    place: Path,
    sites: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites(hosts_of(world))
    monkeypatch.setenv("GRIDCOLL_SITE_CACHE", "/nowhere")
    comm = GridComm(world)
    works(comm)
    comm.Free()
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    several = len(set(hosts_of(world).values())) > 1
    assert len(warned) == (world.Get_rank() == 0 and several)
    assert all("GRIDCOLL_SITE_CACHE: cannot read /nowhere" in text for text in warned)


def test_a_file_is_no_cache(
    world: MPI.Intracomm, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_CACHE", "grid.json")
    with pytest.raises(UsageError, match="must be a directory or off"):
        GridComm(world)


def test_a_grid_file_means_exactly_that_file(
    world: MPI.Intracomm,
    place: Path,
    sites: Any,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = hosts_of(world)
    sites(hosts)
    GridComm(world).Free()
    model = grid_model([0] * world.Get_size(), hosts=[hosts[k] for k in sorted(hosts)])
    path = place.parent / "grid.json"
    if world.Get_rank() == 0:
        write_model(model, path)
    world.Barrier()
    monkeypatch.setenv("GRIDCOLL_GRID", str(path))
    comm = GridComm(world)
    assert comm.model == model
    comm.Free()


class TestOneProcess:
    """No cache here: what communicators of this job know is enough."""

    @pytest.fixture(autouse=True)
    def no_cache(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRIDCOLL_CACHE", "off")

    def test_duplicates_and_parts_measure_nothing(
        self, world: MPI.Intracomm, sites: Any, measured: Measured
    ) -> None:
        sites(hosts_of(world))
        first = GridComm(world)
        for _ in range(3):
            plain = MPI.Intracomm.Dup(world)
            comm = GridComm(plain)
            assert comm.model is first.model
            comm.Free()
            plain.Free()
        first.Free()
        part = MPI.Intracomm(world.Split(world.Get_rank() % 2, -world.Get_rank()))
        comm = GridComm(part)
        works(comm)
        members = part.allgather(world.Get_rank())
        assert comm.model == first_model(world, members, measured)
        comm.Free()
        part.Free()
        assert (measured.models, measured.pairs, measured.checks) == (1, [], 0)

    @pytest.mark.mpi(min_size=3)
    def test_one_that_spans_two_known_ones(
        self, world: MPI.Intracomm, sites: Any, measured: Measured
    ) -> None:
        """Each of both is known to some of its ranks only."""
        n, rank = world.Get_size(), world.Get_rank()
        sites({k: f"{('north', 'south', 'west')[min(k, 2)]}-{k}" for k in range(n)})
        for members in ([0, 1], list(range(1, n))):
            part = world.Split(0 if rank in members else MPI.UNDEFINED, 0)
            if part != MPI.COMM_NULL:
                GridComm(MPI.Intracomm(part)).Free()
                part.Free()
            world.Barrier()
        measured.models, measured.checks, measured.pairs = 0, 0, []
        comm = GridComm(world)
        works(comm)
        assert len(set(world.allgather(digest(comm.model)))) == 1
        assert (measured.models, measured.checks) == (0, 0)
        assert {tuple(sorted(pair)) for pair in measured.pairs} == {("north", "west")}
        comm.Free()

    def test_a_model_that_was_given_is_for_that_communicator(
        self, world: MPI.Intracomm, sites: Any, measured: Measured
    ) -> None:
        sites(hosts_of(world))
        GridComm(world, model=grid_model([0] * world.Get_size())).Free()
        GridComm(world).Free()
        assert measured.models == 1

    def test_hosts_of_one_name_are_measured_each_time(
        self,
        world: MPI.Intracomm,
        sites: Any,
        measured: Measured,
        place: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        sites(dict.fromkeys(range(world.Get_size()), "n0"))
        monkeypatch.setenv("GRIDCOLL_CACHE", str(place))
        monkeypatch.setattr(finding, "machine_id", lambda: f"machine {world.Get_rank()}")
        for _ in range(2):
            GridComm(world).Free()
            next_job(world)
        assert measured.models == (2 if world.Get_size() > 1 else 1)
        assert place.exists() == (world.Get_size() == 1)


def first_model(world: MPI.Intracomm, members: list[int], measured: Measured) -> GridModel:
    """What the world's model says of ``members``."""
    from gridcoll.measure import find_model

    (found,) = [
        each for each in find_model._known.values() if len(each.processes) == world.Get_size()
    ]
    return found.model.restrict(members) if len(members) < world.Get_size() else found.model


@pytest.mark.mpi(min_size=2)
def test_a_check_of_links_that_are_as_they_were_and_of_one_that_is_not(
    world: MPI.Intracomm,
) -> None:
    """Really, over whatever is between ranks here: what is expected of it decides."""
    n = world.Get_size()
    grid = Grid.from_labels([int(rank >= n // 2) for rank in range(n)])
    far = check.Expected(linear_plogp(1.0, 1e9))
    slow = check.Expected(linear_plogp(0.0, 1e12), latency_spread_s=1e3)
    found = check.check_grid(world, grid, {(0, 1): far, (1, 0): far}, [(0, 1)], 0.3)
    assert found.changed == {(0, 1)}
    loose = check.Expected(linear_plogp(0.0, 1e12), latency_spread_s=1e3, is_of_this_mpi=False)
    found = check.check_grid(world, grid, {(0, 1): loose, (1, 0): loose}, [(0, 1)], 1e6)
    assert not found.changed
    assert set(found.unchanged) == {(0, 1), (1, 0)}
    assert slow.latency_is_off(1.0, 0.3) is False


def test_ranks_share_an_error_of_rank_0(
    world: MPI.Intracomm,
    place: Path,
    sites: Any,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites(hosts_of(world))

    def fails(_self: Folder) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Folder, "read", fails)
    with pytest.raises(GridcollError, match="rank 0: RuntimeError: a bug"):
        GridComm(world)


def test_entries_are_text(
    world: MPI.Intracomm, place: Path, sites: Any, measured: Measured
) -> None:
    sites(hosts_of(world))
    GridComm(world).Free()
    world.Barrier()
    if world.Get_rank() == 0:
        paths = list((place / "v1").rglob("*.json"))
        assert {path.parent.name for path in paths} >= {"hosts", "clusters", "libraries"}
        for path in paths:
            data = path.read_bytes()
            assert encode_entry(decode_entry(data, str(path))) == data
