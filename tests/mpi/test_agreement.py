"""Ranks raise together or not at all, and what one rank alone knows never decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.comm.settings import VERSION
from gridcoll.engine.agreement import (
    HEAD_BYTES,
    ROW_BYTES,
    from_root,
    raise_together,
    require_equal,
    tell_all,
    together,
)
from gridcoll.errors import DisagreementError, FileError, GridcollError, UsageError
from gridcoll.model import GridModel, digest, write_model
from gridcoll.plan import REGISTRIES
from gridcoll.topology import Grid
from tests.mpi.support import grid_comm, grid_model, layouts, works


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRID", "KEEP", "CHECK", "FORCE", "TOLERANCE", "BCAST"):
        monkeypatch.delenv(f"GRIDCOLL_{name}", raising=False)


def refused(world: MPI.Intracomm, kind: type[GridcollError], *parts: str) -> None:
    """Building a GridComm raises ``kind`` on every rank, with one text, and no rank waits."""
    own = world.Dup()
    with pytest.raises(GridcollError) as caught:
        GridComm(own)
    assert type(caught.value) is kind
    texts = world.allgather(str(caught.value))
    assert texts == texts[:1] * len(texts)
    for part in parts:
        assert part in texts[0]
    assert own.allreduce(1) == world.Get_size()  # still of use
    own.Free()


@pytest.mark.parametrize("longest", [0, ROW_BYTES - 30, ROW_BYTES, 5 * ROW_BYTES])
def test_everybody_is_told_everything(world: MPI.Intracomm, longest: int) -> None:
    """Short and long ones beside each other; some are empty."""
    items = [(rank, "x" * (longest * (rank % 3) // 2)) for rank in range(world.Get_size())]
    assert tell_all(world, items[world.Get_rank()]) == items


@pytest.mark.parametrize("n_bytes", [0, HEAD_BYTES - 200, HEAD_BYTES, 5 * HEAD_BYTES])
def test_what_rank_0_knows_is_told_whole(world: MPI.Intracomm, n_bytes: int) -> None:
    """Random bytes, which compression does not make shorter; a step fails on all ranks or none."""
    data = np.random.default_rng(n_bytes).bytes(n_bytes)
    own = data if world.Get_rank() == 0 else b"not asked for"
    calls: list[object] = []

    class Counting(MPI.Intracomm):
        def Bcast(self, buf: object, root: int = 0) -> None:
            calls.append(buf)
            super().Bcast(buf, root)  # type: ignore[arg-type]

    assert from_root(Counting(world), lambda: own) == data
    assert len(calls) == (1 if n_bytes < HEAD_BYTES - 100 else 2)

    def fail() -> None:
        raise UsageError(data.hex())

    with pytest.raises(UsageError, match=rf"^{data.hex()}$"):
        from_root(world, fail)


class TestCheck:
    """GRIDCOLL_CHECK=1: mistakes that MPI answers with garbage, or with waiting for ever."""

    @pytest.mark.mpi(min_size=3)
    @pytest.mark.parametrize("odd", [0, 1, 2])
    def test_sizes(self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, odd: int) -> None:
        monkeypatch.setenv("GRIDCOLL_CHECK", "1")
        with grid_comm(world) as comm:
            n = 50 if comm.Get_rank() == odd else 40
            with pytest.raises(DisagreementError, match=r"Bcast: rank 0 has .*bytes=.*bytes="):
                comm.Bcast(np.zeros(n), 0)
            works(comm)

    @pytest.mark.mpi(min_size=3)
    def test_roots(self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRIDCOLL_CHECK", "1")
        with grid_comm(world) as comm:
            root = int(comm.Get_rank() == 1)
            with pytest.raises(DisagreementError, match=r"root=0.*rank 1 has .*root=1"):
                comm.Bcast(np.zeros(9), root)
            with pytest.raises(DisagreementError, match=r"bcast: .*root=0.*rank 1 has .*root=1"):
                comm.bcast(1, root)
            works(comm)

    @pytest.mark.mpi(min_size=3)
    def test_operations(self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRIDCOLL_CHECK", "1")
        with grid_comm(world) as comm:
            call = comm.bcast if comm.Get_rank() == 2 else comm.Bcast
            with pytest.raises(DisagreementError, match=r"rank 0 has 'Bcast .*rank 2 has 'bcast "):
                call(np.zeros(9))
            works(comm)

    def test_right_calls_pass(self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRIDCOLL_CHECK", "1")
        with grid_comm(world) as comm:
            works(comm)
            strided = MPI.DOUBLE.Create_vector(6, 1, comm.Get_rank() + 1).Commit()
            comm.Bcast([np.zeros(6 * (comm.Get_rank() + 1)), 1, strided])
            strided.Free()
        with grid_comm(world, [0] * world.Get_size()) as comm:
            works(comm)

    @pytest.mark.mpi(min_size=3)
    def test_one_cluster_is_checked_too(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GRIDCOLL_CHECK", "1")
        with grid_comm(world, [0] * world.Get_size()) as comm:
            with pytest.raises(DisagreementError):
                comm.Bcast(np.zeros(5 + (comm.Get_rank() == 1)), 0)
            works(comm)


class TestSettings:
    WRONG = (
        ("FORCE", "sometimes", "GRIDCOLL_FORCE: must be grid or native, got 'sometimes'"),
        ("TOLERANCE", "much", "GRIDCOLL_TOLERANCE: must be a number, got 'much'"),
        ("TOLERANCE", "-1", "GRIDCOLL_TOLERANCE: must be in [0, 10), got -1.0"),
        ("TOLERANCE", "nan", "GRIDCOLL_TOLERANCE: must be in [0, 10), got nan"),
        ("CHECK", "yes", "GRIDCOLL_CHECK: must be 0 or 1, got 'yes'"),
        ("QUIET", "yes", "GRIDCOLL_QUIET: must be 0 or 1, got 'yes'"),
        ("STATS", "2", "GRIDCOLL_STATS: must be 0 or 1, got '2'"),
        ("CACHE", "/dev/null", "GRIDCOLL_CACHE: must be a directory or off, got '/dev/null'"),
        ("BCAST", "fastest", "bcast algorithm 'fastest': known are native, "),
    )

    @pytest.mark.parametrize(("name", "value", "message"), WRONG)
    def test_wrong_everywhere(
        self,
        world: MPI.Intracomm,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        value: str,
        message: str,
    ) -> None:
        monkeypatch.setenv(f"GRIDCOLL_{name}", value)
        refused(world, UsageError, message)

    def test_an_unknown_algorithm_lists_the_known(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GRIDCOLL_BCAST", "fastest")
        refused(world, UsageError, *REGISTRIES["bcast"])

    @pytest.mark.mpi(min_size=3)
    @pytest.mark.parametrize(("name", "value", "message"), WRONG)
    def test_wrong_on_one_rank(
        self,
        world: MPI.Intracomm,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        value: str,
        message: str,
    ) -> None:
        if world.Get_rank() == 2:
            monkeypatch.setenv(f"GRIDCOLL_{name}", value)
        refused(world, UsageError, message)

    @pytest.mark.mpi(min_size=3)
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("FORCE", "grid"),
            ("CHECK", "1"),
            ("TOLERANCE", "0.5"),
            ("BCAST", "chain"),
            ("GRID", "/nowhere.toml"),
        ],
    )
    def test_other_on_one_rank(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        if world.Get_rank() == 1:
            monkeypatch.setenv(f"GRIDCOLL_{name}", value)
        said = f"{name.lower()}=given" if value.startswith("/") else value
        refused(world, DisagreementError, "settings (GRIDCOLL_* variables)", "rank 1 has", said)

    @pytest.mark.mpi(min_size=2)
    def test_only_what_differs_is_told(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if world.Get_rank() == 1:
            monkeypatch.setenv("GRIDCOLL_BCAST", "chain")
            monkeypatch.setenv("GRIDCOLL_CHECK", "1")
        here, there = "check=False; algorithms none", "check=True; algorithms bcast=chain"
        refused(world, DisagreementError, f": rank 0 has '{here}', rank 1 has '{there}'")

    @pytest.mark.mpi(min_size=3)
    def test_another_version_on_one_rank(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if world.Get_rank() == 2:
            monkeypatch.setattr("gridcoll.comm.communicator.VERSION", "0.0.9, sources 00000000")
        parts = ("version: rank 0 has", VERSION, "rank 2 has", "gridcoll=0.0.9, sources 00000000")
        refused(world, DisagreementError, *parts)

    @pytest.mark.mpi(min_size=3)
    def test_an_engine_that_is_wrong_on_one_rank(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would be found by the first plan, where the others wait already."""

        def refuse() -> None:
            raise UsageError("GRIDCOLL_ENGINE: must be python or compiled, got 'fast'")

        if world.Get_rank() == 2:
            monkeypatch.setattr("gridcoll.engine.compiled._library", refuse)
        refused(world, UsageError, "GRIDCOLL_ENGINE: must be python or compiled, got 'fast'")

    def test_forced_by_name(self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRIDCOLL_BCAST", "chain")
        with grid_comm(world, native_s=1e-9) as comm:
            choice = comm.explain("bcast", 10_000)
            assert choice.winner.name == ("chain" if comm.Get_size() > 1 else "native")
            works(comm)

    @pytest.mark.parametrize("force", ["grid", "native"])
    def test_forced_kind(
        self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, force: str
    ) -> None:
        monkeypatch.setenv("GRIDCOLL_FORCE", force)
        with grid_comm(world, native_s=1e-9 if force == "grid" else 10.0) as comm:
            native = force == "native" or comm.Get_size() == 1
            assert (comm.explain("bcast", 10_000).winner.name == "native") == native
            works(comm)


def declared(labels: list[int]) -> str:
    """A grid file for these ranks."""
    clusters = ""
    for label in sorted(set(labels)):
        ranks = [rank for rank, other in enumerate(labels) if other == label]
        clusters += f'[[clusters]]\nname = "c{label}"\nranks = {ranks}\n'
    return f'version = 1\nname = "here"\n{clusters}' + (
        '[default_link]\nlatency = "5 ms"\nrate = "100 Mbit/s"\n'
    )


class TestGridFiles:
    @pytest.fixture
    def path(self, mpi_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """One place for all ranks; it is in GRIDCOLL_GRID, and nothing is there yet."""
        path = mpi_tmp_path / "grid.toml"
        monkeypatch.setenv("GRIDCOLL_GRID", str(path))
        return path

    def write(self, world: MPI.Intracomm, path: Path, text: str) -> None:
        """On rank 0 only: no other rank needs the file."""
        if world.Get_rank() == 0:
            path.write_text(text)

    def test_declared(self, world: MPI.Intracomm, path: Path) -> None:
        for labels in layouts(world.Get_size()).values():
            self.write(world, path, declared(labels))
            comm = GridComm(world)
            assert comm.grid.cluster_of == tuple(labels)
            assert [c.coordinator for c in comm.grid.clusters] == [
                labels.index(label) for label in dict.fromkeys(labels)
            ]
            assert comm.model.origin == "declared"
            works(comm)
            comm.Free()

    def test_measured(
        self, world: MPI.Intracomm, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = path.with_suffix(".json")
        monkeypatch.setenv("GRIDCOLL_GRID", str(path))
        model = _here(world)
        if world.Get_rank() == 0:
            write_model(model, path)
        comm = GridComm(world)
        assert comm.model == model
        works(comm)
        comm.Free()

    def test_missing(self, world: MPI.Intracomm, path: Path) -> None:
        refused(world, FileError, f"grid file {path}: ", "No such file")

    @pytest.mark.mpi(min_size=3)
    def test_missing_only_where_nobody_reads_it(
        self, world: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Hosts need not share a file system."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GRIDCOLL_GRID", "grid.toml")
        if world.Get_rank() == 0:
            Path("grid.toml").write_text(declared(layouts(world.Get_size())["two"]))
        comm = GridComm(world)
        assert len(comm.grid.clusters) == 2
        comm.Free()

    @pytest.mark.mpi(min_size=3)
    def test_every_site_has_its_own_path(
        self, world: MPI.Intracomm, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where a job is launched in another directory at each; rank 0's is read."""
        self.write(world, path, declared(layouts(world.Get_size())["two"]))
        if world.Get_rank():
            monkeypatch.setenv("GRIDCOLL_GRID", f"/site-{world.Get_rank()}/grid.toml")
        comm = GridComm(world)
        assert len(comm.grid.clusters) == 2
        works(comm)
        comm.Free()

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("version = 1", "version = ", "not TOML"),
            ("version = 1", "version = 3", "version: must be 1, got 3"),
            ('name = "here"', "", "missing required field `name`"),
            ("ranks", "rnaks", "unknown field `rnaks`"),
            ("ranks = [", "latency = '5 miles'\nranks = [", "duration '5 miles'"),
            ("ranks = [0", "ranks = [1, 0, 1", "is in two clusters"),
        ],
    )
    def test_malformed(
        self, world: MPI.Intracomm, path: Path, old: str, new: str, message: str
    ) -> None:
        right = declared([0] * world.Get_size())
        assert old in right
        self.write(world, path, right.replace(old, new, 1))
        refused(world, FileError, f"grid file {path}: ", message)

    @pytest.mark.parametrize("off_by", [-1, 1])
    def test_another_number_of_ranks(self, world: MPI.Intracomm, path: Path, off_by: int) -> None:
        n = world.Get_size()
        if n + off_by:
            self.write(world, path, declared([0] * (n + off_by)))
            refused(world, FileError, f"it describes ranks 0..{n + off_by - 1}, the job has {n}")

    def test_other_hosts(self, world: MPI.Intracomm, path: Path) -> None:
        self.write(
            world,
            path,
            'version = 1\nname = "away"\n[[clusters]]\nname = "a"\nhosts = ["no-such-host"]\n',
        )
        host = MPI.Get_processor_name()
        refused(world, FileError, f"rank 0 runs on {host!r}, which is in none of its clusters")

    def test_a_measured_model_of_another_job(
        self, world: MPI.Intracomm, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = path.with_suffix(".json")
        monkeypatch.setenv("GRIDCOLL_GRID", str(path))
        n = world.Get_size()
        if world.Get_rank() == 0:
            write_model(grid_model([0] * (n + 1)), path)
        refused(world, FileError, f"it describes {n + 1} ranks, the job has {n}", "measure again")
        if world.Get_rank() == 0:
            write_model(grid_model([0] * n), path)
        refused(world, FileError, "rank 0 was measured on 'host0' and now runs on", "rank order")
        if world.Get_rank() == 0:
            path.write_text("{")
        refused(world, FileError, f"model file {path}: ")


def _here(world: MPI.Intracomm) -> GridModel:
    labels = layouts(world.Get_size())["interleaved" if world.Get_size() > 2 else "one cluster"]
    hosts = world.allgather(MPI.Get_processor_name())
    return replace(grid_model(labels), grid=Grid.from_labels(labels, hosts))


class TestTogether:
    def test_results(self, world: MPI.Intracomm) -> None:
        assert together(world, world.Get_rank) == world.Get_rank()

    def test_the_lowest_failing_ranks_error(self, world: MPI.Intracomm) -> None:
        n, rank = world.Get_size(), world.Get_rank()
        for lowest in range(n):

            def step(lowest: int = lowest) -> None:
                if rank >= lowest:
                    raise (UsageError if rank == lowest else FileError)(f"from {rank}")

            with pytest.raises(UsageError, match=f"^from {lowest}$"):
                together(world, step)

    def test_nobody_fails(self, world: MPI.Intracomm) -> None:
        raise_together(world, None)

    def test_nobody_waits_for_who_fails_of_something_else(self, world: MPI.Intracomm) -> None:
        """As of a file system that answers with errors nobody thought of, on one rank."""
        last = world.Get_size() - 1

        def step() -> None:
            if world.Get_rank() == last:
                raise PermissionError("not yours")

        with pytest.raises(GridcollError, match=f"rank {last}: PermissionError: not yours"):
            together(world, step)

    @pytest.mark.mpi(min_size=3)
    def test_equal_or_who_is_odd(self, world: MPI.Intracomm) -> None:
        require_equal(world, "colour", "red")
        with pytest.raises(DisagreementError, match="colour: rank 0 has 'red', rank 2 has 'blue'"):
            require_equal(world, "colour", "blue" if world.Get_rank() == 2 else "red")


@pytest.mark.mpi(min_size=3)
def test_models_that_differ(world: MPI.Intracomm) -> None:
    own = world.Dup()
    labels = [0] * world.Get_size()
    model = grid_model(labels, native_s=1.0 if world.Get_rank() == 1 else 2.0)
    assert len(set(world.allgather(digest(model)))) == 2
    with pytest.raises(DisagreementError, match="model: rank 0 has"):
        GridComm(own, model=model)
    own.Free()
