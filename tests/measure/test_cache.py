"""The cache: entries, what a directory survives, and models put together from it."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gridcoll.errors import FileError, UsageError
from gridcoll.measure.cache.entries import (
    FORMAT,
    VERSION,
    ClusterEntry,
    Host,
    LinkEntry,
    NewerVersionError,
    Statistic,
    decode_bundle,
    decode_entry,
    encode_bundle,
    encode_entry,
    file_name,
)
from gridcoll.measure.cache.folder import ASIDE, Cache, Folder, Places, find_places
from gridcoll.measure.cache.knowledge import (
    Knowledge,
    build_model,
    grid_of,
    known_links,
    labels_of,
    missing_links,
    n_ranks_of_shape,
    shape_of,
)
from gridcoll.measure.cache.learning import can_be_kept, learn_check, learn_model, model_entries
from gridcoll.model import Correction, GridModel, TimesBySize, linear_plogp
from gridcoll.topology import Grid
from gridcoll.topology.grid import Cluster, Process

WHEN = datetime(2026, 11, 20, 8, 0, tzinfo=timezone.utc)
LATENCY_S = {("north", "south"): 5e-3, ("east", "north"): 9e-3, ("east", "south"): 12e-3}


def model_on(hosts: list[str], mpi: str = "MPICH") -> GridModel:
    """Hosts called ``SITE-K``, in a measured model."""
    groups: dict[str, list[Process]] = {}
    for rank, host in enumerate(hosts):
        groups.setdefault(host.split("-")[0], []).append(Process(rank, host))
    clusters = tuple(Cluster(name, tuple(members)) for name, members in groups.items())
    links = tuple(
        tuple(
            linear_plogp(
                100e-6 if a is b else LATENCY_S[min(a.name, b.name), max(a.name, b.name)], 12.5e6
            )
            if a is not b or len(a) > 1
            else None
            for b in clusters
        )
        for a in clusters
    )
    n = len(clusters)
    return GridModel(
        Grid(clusters),
        links,
        "measured",
        native={"bcast": TimesBySize((8, 1 << 20), (0.02, 0.2))},
        corrections={"bcast": {"chain": Correction((8, 1 << 20), (1.1, 0.9))}},
        relay_gap=TimesBySize((1 << 10, 1 << 16), (200e-6, 6e-3)),
        aggregate_bytes_per_s=((3e7,) * n,) * n,
        start_s=50e-6,
        contention=(0.5,) * n,
        mpi=mpi,
    )


THREE = [f"{site}-{k}" for site in ("north", "south", "east") for k in range(3)]


def model_from(known: Knowledge, hosts: list[str], mpi: str = "MPICH") -> GridModel:
    grid = grid_of(known, labels_of(known, hosts), hosts)
    links = known_links(known, grid)
    assert missing_links(grid, links) == []
    return build_model(known, grid, links, {}, mpi, 0.3)


@pytest.fixture
def known() -> Knowledge:
    found = Knowledge()
    learn_model(found, model_on(THREE), when=WHEN)
    return found


@pytest.fixture
def folder(tmp_path: Path, known: Knowledge) -> Folder:
    found = Folder(tmp_path / "cache" / "v1")
    found.update(lambda _here: known)
    return found


def link(sender: str = "a", receiver: str = "b", **changes: object) -> LinkEntry:
    entry = LinkEntry(
        sender=sender,
        receiver=receiver,
        plogp=linear_plogp(5e-3, 1e7),
        latency_s=Statistic(5e-3),
        rate_bytes_per_s=Statistic(1e7),
        first=WHEN,
        last=WHEN,
    )
    return msgspec.structs.replace(entry, **changes)


class TestModels:
    def test_the_same_job_has_the_model_that_was_measured(self, known: Knowledge) -> None:
        model = model_from(known, THREE)
        measured = model_on(THREE)
        assert (model.grid, model.links) == (measured.grid, measured.links)
        assert (model.native, model.corrections) == (measured.native, measured.corrections)
        assert model.contention == measured.contention
        assert model.start_s == measured.start_s
        assert model.relay_gap is not None
        assert measured.relay_gap is not None
        assert model.relay_gap.seconds == pytest.approx(measured.relay_gap.seconds)

    def test_it_says_where_links_come_from(self, known: Knowledge) -> None:
        known.replace(link("north", "south", origin="declared"))
        known.replace(link("south", "east", count=3))
        grid = grid_of(known, labels_of(known, THREE), THREE)
        links = known_links(known, grid)
        model = build_model(known, grid, links, {}, "MPICH", 0.3, {(0, 2), (2, 0)})
        assert [c.name for c in grid.clusters] == ["north", "south", "east"]
        day = f"{WHEN:%Y-%m-%d}"
        assert model.source(0, 1) == "declared"
        assert model.source(1, 2) == f"measured {day}, seen 3 times"
        assert model.source(0, 2) == model.source(2, 0) == "measured at the start of this job"
        assert model.source(1, 1) == f"measured {day}"

    def test_another_order_and_fewer_hosts_have_its_part(self, known: Knowledge) -> None:
        hosts = ["east-2", "north-0", "east-1", "north-1"]
        model = model_from(known, hosts)
        assert [c.name for c in model.grid.clusters] == ["east", "north"]
        assert [c.ranks for c in model.grid.clusters] == [(0, 2), (1, 3)]
        assert model.link(0, 1).latency_s == LATENCY_S["east", "north"]
        assert model.native == {}  # of other ranks
        assert model.aggregate_bytes_per_s[0][1] == 3e7

    def test_several_ranks_of_one_host_need_what_is_inside_it(self, known: Knowledge) -> None:
        hosts = ["north-0", "north-0", "south-0"]
        grid = grid_of(known, labels_of(known, hosts), hosts)
        assert missing_links(grid, known_links(known, grid)) == [(0, 0)]

    def test_another_library_has_no_natives_of_this_one(self, known: Knowledge) -> None:
        model = model_from(known, THREE, "Open MPI")
        assert (model.native, model.corrections, model.mpi) == ({}, {}, "Open MPI")
        assert model.links == model_on(THREE).links

    def test_natives_are_of_these_clusters_and_factors_of_any(self, known: Knowledge) -> None:
        learn_model(known, model_on([f"{s}-{k}" for s in ("north", "south") for k in (7, 8)]))
        model = model_from(known, ["south-7", "south-8", "north-7", "north-8"])
        assert model.native == {}
        assert "chain" in model.corrections["bcast"]

    def test_what_concerns_a_job_is_enough_for_it(self, known: Knowledge) -> None:
        learn_model(known, model_on(["west-0", "west-1"], "Open MPI"))
        hosts = THREE[:6]
        about = known.about(hosts, "MPICH", 6)
        assert model_from(about, hosts) == model_from(known, hosts)
        assert len(about) < len(known)
        assert Knowledge(decode_bundle(encode_bundle(about))).cluster("west") is None

    def test_hosts_not_known_have_no_cluster(self, known: Knowledge) -> None:
        assert labels_of(known, ["north-0", "west-9"]) == ("north", "")

    @pytest.mark.parametrize(
        ("hosts", "shape", "n_ranks"),
        [
            (["a-0", "a-1", "b-0"], "2x1+1x1", 3),
            (["a-0", "b-0", "a-1"], "2x1+1x1 mixed", 3),
            (["a-0", "a-0", "a-1", "b-0"], "1x2,1x1+1x1", 4),
        ],
    )
    def test_shapes(self, hosts: list[str], shape: str, n_ranks: int) -> None:
        grid = Grid.from_labels([host[0] for host in hosts], hosts)
        assert shape_of(grid) == shape
        assert n_ranks_of_shape(shape) == n_ranks
        assert n_ranks_of_shape("what") == 0


class TestLearning:
    def test_seen_again_it_is_counted(self, known: Knowledge) -> None:
        learn_model(known, model_on(THREE), when=WHEN + timedelta(days=1))
        entry = known.link("north", "south")
        assert entry is not None
        assert (entry.count, entry.first) == (2, WHEN)
        assert entry.latency_s.count == 2
        assert entry.last == WHEN + timedelta(days=1)

    def test_another_network_begins_anew(self, known: Knowledge) -> None:
        model = model_on(THREE)
        slow = tuple(
            tuple(linear_plogp(50e-3, 1e6) if i != j else own for j, own in enumerate(row))
            for i, row in enumerate(model.links)
        )
        learn_model(known, replace(model, links=slow))
        entry = known.link("north", "south")
        assert entry is not None
        assert entry.rate_bytes_per_s.count == 1
        assert entry.latency_s.mean == pytest.approx(50e-3, rel=0.01)

    def test_a_check_adds_to_mean_and_spread_but_not_within_the_hour(
        self, known: Knowledge
    ) -> None:
        seen = {("north", "south"): (5.2e-3, 1.1e7)}
        assert learn_check(known, seen, WHEN + timedelta(minutes=1)) == []
        (entry,) = learn_check(known, seen, WHEN + timedelta(hours=2))
        assert isinstance(entry, LinkEntry)
        assert entry.latency_s.count == 2
        assert entry.latency_s.spread > 0

    def test_only_what_was_measured_is_renewed(self, known: Knowledge) -> None:
        later = WHEN + timedelta(days=1)
        entries = learn_model(known, model_on(THREE), {(0, 1), (1, 0)}, later)
        links = {(e.sender, e.receiver) for e in entries if isinstance(e, LinkEntry)}
        assert links == {("north", "south"), ("south", "north")}

    def test_an_uplink_is_kept_until_one_link_carries_more(self, known: Knowledge) -> None:
        found = replace(model_on(THREE), uplink_bytes_per_s=(4e7, 0.0, 0.0))
        learn_model(known, found, when=WHEN)
        assert model_from(known, THREE).uplink_bytes_per_s == (4e7, 0.0, 0.0)
        assert model_from(known, ["south-0", "north-1"]).uplink_bytes_per_s == (0.0, 4e7)
        learn_model(known, model_on(THREE[:4]), when=WHEN)  # a job that could not see it
        assert model_from(known, THREE).uplink_bytes_per_s == (4e7, 0.0, 0.0)
        learn_model(known, replace(found, uplink_bytes_per_s=(2e7, 0.0, 0.0)), when=WHEN)
        assert model_from(known, THREE).uplink_bytes_per_s[0] == 2e7
        learn_model(known, model_on(THREE), when=WHEN)  # its links carry 3e7
        assert model_from(known, THREE).uplink_bytes_per_s == ()

    def test_a_lone_hosts_interface_is_its_own(self) -> None:
        """Its site has no such uplink when more of its hosts take part; nor do they carry less."""
        known = Knowledge()
        few = ["north-0", *THREE[3:]]
        learn_model(known, replace(model_on(few), uplink_bytes_per_s=(5e7, 0.0, 0.0)), when=WHEN)
        assert model_from(known, few).uplink_bytes_per_s == (5e7, 0.0, 0.0)
        assert model_from(known, few).flow_bytes_per_s[0, 0] == pytest.approx(5e7)
        learn_model(known, model_on(THREE), when=WHEN + timedelta(days=1))
        assert model_from(known, THREE).uplink_bytes_per_s == ()
        lone = model_from(known, ["north-1", *THREE[3:]])
        assert lone.aggregate_bytes_per_s[0][1] == pytest.approx(12.5e6, rel=0.01)
        assert lone.flow_bytes_per_s[0, 0] == pytest.approx(12.5e6, rel=0.01)

    def test_two_sites_of_one_name_stay_two(self, known: Knowledge) -> None:
        other = model_on(["north-10", "north-11", "south-10", "south-11"])
        learn_model(known, other)
        assert known.cluster_of("north-10") == "north-2"
        assert known.cluster_of("north-0") == "north"

    def test_a_host_that_changed_site(self, known: Knowledge) -> None:
        hosts = [*THREE[:2], *THREE[3:]]
        model = model_on([*hosts, "north-2"])
        grid = Grid.from_labels([0, 0, 1, 1, 1, 2, 2, 2, 1], [*hosts, "north-2"])
        learn_model(known, replace(model, grid=grid), set())
        assert known.cluster_of("north-2") == "south"

    def test_names_that_do_not_tell_hosts_apart_are_not_kept(self) -> None:
        model = model_on(["north-0", "north-1", "south-0"])
        grid = Grid.from_labels([0, 0, 1], ["n0", "n1", "n0"])
        assert can_be_kept(model)
        assert not can_be_kept(replace(model, grid=grid))
        assert not can_be_kept(replace(model, origin="declared"))

    def test_a_measured_link_wins_over_a_declared_one_however_old(self) -> None:
        declared = link(origin="declared", last=WHEN + timedelta(days=9))
        for order in ((link(), declared), (declared, link())):
            found = Knowledge(order).link("a", "b")
            assert found is not None
            assert found.origin == "measured"

    def test_a_declared_link_is_believed_where_none_was_measured(self, known: Knowledge) -> None:
        hosts = ["north-0", "west-0", "west-1"]
        declared = replace(model_on(["south-0", "north-0"]), origin="declared")
        grid = Grid(
            (Cluster("north", (Process(0, "north-0"),)), Cluster("west", (Process(1, "west-0"),)))
        )
        known.put_all(model_entries(replace(declared, grid=grid, links=declared.links), WHEN))
        model = model_from(known, hosts[:2])
        assert model.link(0, 1).latency_s == LATENCY_S["north", "south"]
        measured = known.cluster("north")
        assert measured is not None
        assert measured.origin == "measured"

    def test_a_declared_uplink_is_believed(self) -> None:
        known = Knowledge()
        declared = replace(model_on(THREE), origin="declared", uplink_bytes_per_s=(4e7, 0.0, 0.0))
        known.put_all(model_entries(declared, WHEN))
        assert model_from(known, THREE).uplink_bytes_per_s == (4e7, 0.0, 0.0)
        learn_model(known, model_on(THREE), when=WHEN)  # a quick start does not look for any
        assert model_from(known, THREE).uplink_bytes_per_s == (4e7, 0.0, 0.0)

    def test_the_newest_wins(self) -> None:
        old, new = link(), link(last=WHEN + timedelta(days=1), mpi="new")
        for order in ((old, new), (new, old)):
            found = Knowledge(order).link("a", "b")
            assert found is not None
            assert found.mpi == "new"

    def test_statistics(self) -> None:
        values = [5.0, 6.0, 7.0, 6.0]
        found = Statistic(values[0])
        for value in values[1:]:
            found = found.added(value)
        assert (found.mean, found.count) == (6.0, 4)
        assert found.spread == pytest.approx(0.5**0.5)
        assert not found.is_off(7.5, 0.1)
        assert found.is_off(9.0, 0.1)
        assert not found.is_off(9.0, 0.6)


class TestFiles:
    def test_every_entry_is_read_back(self, known: Knowledge) -> None:
        for entry in known:
            assert decode_entry(encode_entry(entry), "x") == entry

    def test_names_are_safe_and_differ(self) -> None:
        odd = ["../../etc/passwd", "a" * 300, "a" * 299 + "b", ".hidden", "ü ber"]
        names = [file_name(("hosts", name)) for name in odd]
        assert len(set(names)) == len(odd)
        assert all(name.count("/") == 1 and len(name) < 200 for name in names)
        assert not any(name.split("/")[1].startswith(".") for name in names)

    def test_the_directory_gives_back_what_was_written(
        self, folder: Folder, known: Knowledge
    ) -> None:
        assert list(folder.read()) == list(known)
        assert folder.warnings == []

    def test_it_is_private(self, folder: Folder) -> None:
        paths = [folder.path.parent, folder.path, *folder.path.rglob("*")]
        for path in paths:
            if path.name != ".lock":
                assert stat.S_IMODE(path.stat().st_mode) in (0o700, 0o600), path

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"", "truncated"),
            (b"\xff\x00{", "cache file"),
            (b"\x80\x04\x95\x10", "cache file"),  # how a pickle begins
            (b'{"format": "gridcoll-model", "version": 1}', "no gridcoll-cache"),
            (b'{"format": "gridcoll-cache", "version": 0}', "no gridcoll-cache"),
            (b'{"format": "gridcoll-cache", "version": 1, "entry": {"kind": "x"}}', "cache file"),
            (json.dumps({"format": FORMAT, "version": VERSION + 1}).encode(), "newer"),
            (encode_entry(link("p", "q")), "it is about links p q"),
            (encode_entry(link(first=datetime(2026, 1, 1))), "zone"),
            (
                encode_entry(link()).replace(b'"latency_s": 0.005,', b'"latency_s": -1,', 1),
                "cache file",
            ),
            (
                encode_entry(link(plogp=linear_plogp(1e-3, 1e7))).replace(b"1048576", b"0"),
                "sizes_bytes",
            ),
        ],
    )
    def test_a_damaged_file_is_set_aside_with_one_warning(
        self, folder: Folder, content: bytes, why: str
    ) -> None:
        path = folder.path / "links" / "north--south.json"
        path.write_bytes(content)
        cache = Cache(Places(folder.path.parent, None, True))
        known = cache.read()
        assert known.link("north", "south") is None
        assert known.link("south", "north") is not None
        assert why in cache.warning()
        assert cache.warning() == ""
        assert not path.exists()
        assert path.with_name(path.name + ASIDE).read_bytes() == content
        cache.read()
        assert cache.warning() == ""

    def test_newer_versions_are_told_from_damage(self) -> None:
        with pytest.raises(NewerVersionError):
            decode_entry(b'{"format": "gridcoll-cache", "version": 99, "more": 1}', "x")

    @pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
    def test_a_foreign_file_is_set_aside(self, folder: Folder) -> None:
        path = folder.path / "hosts" / "north-0.json"
        os.chown(path, 12345, -1)
        assert folder.read().host("north-0") is None
        assert "belongs to user 12345" in folder.warnings[0]
        assert not path.exists()

    @pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
    def test_one_in_a_directory_that_was_opened_to_others_counts(self, folder: Folder) -> None:
        folder.path.chmod(0o770)
        os.chown(folder.path / "hosts" / "north-0.json", 12345, -1)
        assert folder.read().host("north-0") is not None

    @pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
    def test_a_foreign_directory_that_nobody_named_is_not_used(self, folder: Folder) -> None:
        os.chown(folder.path, 12345, -1)
        folder.is_named = False
        assert len(folder.read()) == 0
        assert "12345" in folder.warnings[0]

    def test_a_directory_that_cannot_be_written_is_read(
        self, folder: Folder, known: Knowledge
    ) -> None:
        """Root writes anywhere; where a file stands in the way of the directory, nobody does."""
        blocked = folder.path.parent.parent / "blocked"
        blocked.write_text("a file")
        cache = Cache(Places(blocked, folder.path.parent, True))
        assert list(cache.read()) == list(known)
        cache.update(lambda here: here)
        assert "is not kept" in cache.warning()
        silent = Cache(Places(blocked, None, False))
        silent.update(lambda here: here)
        assert silent.warning() == ""

    def test_the_sites_cache_is_read_and_never_written(
        self, folder: Folder, tmp_path: Path, known: Knowledge
    ) -> None:
        bad = folder.path / "hosts" / "north-0.json"
        bad.write_bytes(b"{")
        before = sorted(path.name for path in folder.path.rglob("*"))
        cache = Cache(Places(tmp_path / "own", folder.path.parent, True))
        assert len(cache.read()) == len(known) - 1
        cache.update(lambda _here: [link()])
        assert sorted(path.name for path in folder.path.rglob("*")) == before
        assert len(cache.read()) == len(known)
        assert cache.own is not None
        assert len(cache.own.read()) == 1

    def test_a_tolerance_of_its_own_has_entries_of_its_own(self, folder: Folder) -> None:
        assert len(Cache(Places(folder.path.parent), 0.5).read()) == 0
        assert len(Cache(Places(folder.path.parent), 0.3).read()) > 0

    def test_a_grid_file_in_it_is_believed(self, folder: Folder) -> None:
        folder.add_gridfile(
            "mine",
            'version = 1\nname = "mine"\nclusters = [{name = "north", hosts = ["north-0"]}, '
            '{name = "west", hosts = ["west-0"]}]\n'
            'links = [{between = ["north", "west"], latency = "7 ms"}]\n',
        )
        known = folder.read()
        assert folder.warnings == []
        assert known.cluster_of("west-0") == "west"
        host, wire = known.host("north-0"), known.link("north", "west")
        assert host is not None
        assert wire is not None
        assert (host.origin, wire.origin) == ("measured", "declared")


N_WRITERS = 16
N_EACH = 12


def _write(place: str, number: int) -> None:
    folder = Folder(Path(place))
    for k in range(N_EACH):
        name = f"host-{number}-{k}"
        mine = Host(name=name, cluster=f"c{number}", first=WHEN, last=WHEN)

        def change(known: Knowledge, mine: Host = mine) -> list[Host | LinkEntry]:
            shared = known.link("a", "b") or link(count=1, latency_s=Statistic(5e-3))
            return [
                mine,
                msgspec.structs.replace(shared, count=shared.count + 1),
            ]

        folder.update(change)
    assert folder.warnings == []


def test_sixteen_writers_lose_and_corrupt_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No entry is lost, lock or not; what is counted in one of them needs the lock."""
    monkeypatch.setattr("gridcoll.measure.cache.folder.LOCK_PATIENCE_S", 300.0)
    place = tmp_path / "v1"
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_write, args=(str(place), k)) for k in range(N_WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * N_WRITERS
    folder = Folder(place)
    known = folder.read()
    assert folder.warnings == []
    assert len(known) == N_WRITERS * N_EACH + 1
    shared = known.link("a", "b")
    assert shared is not None
    assert shared.count == N_WRITERS * N_EACH + 1
    assert not [path for path in place.rglob(".*") if path.name != ".lock"]


class TestPlaces:
    def test_by_default_it_is_the_users_cache_directory(self) -> None:
        assert find_places({"HOME": "/home/me"}).own == Path("/home/me/.cache/gridcoll")
        places = find_places({"HOME": "/home/me", "XDG_CACHE_HOME": "/var/me"})
        assert places == Places(Path("/var/me/gridcoll"), None, False)
        assert find_places({"HOME": "/h", "XDG_CACHE_HOME": "rel"}).own == Path(
            "/h/.cache/gridcoll"
        )

    def test_no_home_no_cache(self) -> None:
        for environment in ({}, {"HOME": ""}, {"HOME": "relative"}):
            assert find_places(environment).own is None
        assert Cache(find_places({})).is_off
        assert len(Cache(find_places({})).read()) == 0

    @pytest.mark.parametrize("name", ["GRIDCOLL_CACHE", "GRIDCOLL_KEEP"])
    def test_named(self, name: str, tmp_path: Path) -> None:
        assert find_places({name: "off", "HOME": "/h"}).own is None
        assert find_places({name: str(tmp_path)}) == Places(tmp_path, None, True)
        with pytest.raises(UsageError, match=f"{name}: must be a directory or off"):
            find_places({name: "grid.json"})

    @pytest.mark.parametrize("kind", ["missing", "a file", "forbidden"])
    def test_a_site_cache_that_cannot_be_read_is_said_once(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site, why = tmp_path / "site", "No such file or directory"
        if kind == "a file":
            site.touch()
            why = "Not a directory"
        elif kind == "forbidden":  # tests may run as root, who may read everything
            why = "Permission denied"

            def refuse(path: object, **_: object) -> None:
                raise PermissionError(errno.EACCES, why)

            monkeypatch.setattr(os, "scandir", refuse)
            monkeypatch.setattr(Path, "stat", refuse)
        cache = Cache(Places(None, site))
        assert len(cache.read()) == len(cache.read()) == 0
        said = f"GRIDCOLL_SITE_CACHE: cannot read {site}: {why}; it is not used"
        assert cache.warning() == said

    def test_a_site_cache_that_is_empty_is_none_to_warn_of(self, tmp_path: Path) -> None:
        cache = Cache(Places(tmp_path / "own", tmp_path))
        assert len(cache.read()) == 0
        assert cache.warning() == ""

    def test_the_sites(self) -> None:
        places = find_places({"GRIDCOLL_SITE_CACHE": "/opt/grid", "GRIDCOLL_CACHE": "off"})
        assert places == Places(None, Path("/opt/grid"), True)


def test_clusters_that_are_one(known: Knowledge) -> None:
    other = ClusterEntry(name="north-2", same_as="north", first=WHEN, last=WHEN)
    known.put(other)
    known.put(Host(name="north-9", cluster="north-2", first=WHEN, last=WHEN))
    assert known.cluster_of("north-9") == "north"
    assert model_from(known, ["north-9", "north-0", "south-0"]).grid.clusters[0].ranks == (0, 1)


def test_a_ring_of_sames_ends(known: Knowledge) -> None:
    known.put(ClusterEntry(name="p", same_as="q", first=WHEN, last=WHEN))
    known.put(ClusterEntry(name="q", same_as="p", first=WHEN, last=WHEN))
    assert known.cluster("p") is None


def test_a_file_of_the_wrong_kind_is_an_error() -> None:
    with pytest.raises(FileError):
        decode_bundle(encode_entry(link()))


class TestWhetherItCanBeWritten:
    def test_where_it_can_no_trace_is_left(self, tmp_path: Path) -> None:
        assert Folder(tmp_path / "new" / "v1").why_not_writable() == ""
        assert list(tmp_path.iterdir()) == []

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "file" / "v1"):
            said = Folder(path).why_not_writable()
            assert said == f"cannot write {path}: Not a directory"

    def test_a_file_system_that_cannot_be_written(self) -> None:
        assert "cannot write /proc/v1" in Folder(Path("/proc/v1")).why_not_writable()
