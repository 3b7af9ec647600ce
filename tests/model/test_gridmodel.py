from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.constants import ANNOUNCED_BYTES
from gridcoll.errors import FileError, UsageError
from gridcoll.model import GridModel, PLogP, TimesBySize, declared_model, linear_plogp
from gridcoll.topology import Grid, parse_gridfile, read_gridfile

HOSTFILES = Path(__file__).parents[2] / "hostfiles"


class TestTimesBySize:
    def test_interpolates(self) -> None:
        times = TimesBySize((10, 20, 40), (1.0, 2.0, 3.0))
        assert times.predict(20) == 2.0
        assert times.predict(15) == pytest.approx(1.5)
        assert times.predict(30) == pytest.approx(2.5)

    def test_below_the_smallest_is_the_smallest(self) -> None:
        assert TimesBySize((10, 20), (1.0, 2.0)).predict(0) == 1.0

    def test_beyond_the_largest_goes_in_proportion(self) -> None:
        assert TimesBySize((10, 20), (1.0, 2.0)).predict(60) == pytest.approx(6.0)

    def test_arrays_give_what_numbers_give(self) -> None:
        times = TimesBySize((10, 20), (1.0, 2.0))
        sizes = np.array([0.0, 12.0, 20.0, 50.0])
        assert times.predict(sizes).tolist() == pytest.approx([times.predict(s) for s in sizes])
        assert isinstance(times.predict(12), float)

    @pytest.mark.parametrize(
        ("sizes", "seconds"),
        [((), ()), ((1, 2), (1.0,)), ((2, 1), (1.0, 1.0)), ((1, 1), (1.0, 1.0))],
    )
    def test_as_many_times_as_ascending_sizes(
        self, sizes: tuple[int, ...], seconds: tuple[float, ...]
    ) -> None:
        with pytest.raises(UsageError, match="need as many times as ascending sizes, got"):
            TimesBySize(sizes, seconds)


class TestLinks:
    def test_one_row_and_column_per_cluster(self, model: GridModel) -> None:
        for links in (model.links[:2], tuple(row[:2] for row in model.links)):
            with pytest.raises(UsageError, match="links: must be 3 x 3 for 3 clusters"):
                replace(model, links=links)

    @pytest.mark.parametrize(("i", "j"), [(0, 1), (2, 0), (0, 0), (2, 2)])
    def test_only_a_lone_process_has_none_inside(self, model: GridModel, i: int, j: int) -> None:
        links = [list(row) for row in model.links]
        links[i][j] = None
        with pytest.raises(UsageError, match=rf"links\[{i}\]\[{j}\]: missing"):
            replace(model, links=tuple(tuple(row) for row in links))

    def test_direction_counts(self, model: GridModel) -> None:
        assert model.link(0, 1).latency_s == 2e-3
        assert model.link(1, 0).latency_s == 4e-3
        assert model.latency_s[2, 1] == 7e-3

    def test_inside_a_lone_process_its_fastest_link_stands_in(self, model: GridModel) -> None:
        assert replace(model, aggregate_bytes_per_s=()).link(1, 1) is model.link(1, 2)
        # Its widest link carries 6e8 in several flows; all together show more.
        assert model.link(1, 1).gap(1 << 20) == pytest.approx(2**20 / 6e8)
        assert model.link(1, 1).gap(0) == model.link(1, 2).gap(0)
        faster = replace(model, uplink_bytes_per_s=(0.0, 8e8, 0.0))
        assert faster.flow_bytes_per_s[1, 1] == pytest.approx(8e8)

    def test_one_process_in_all(self) -> None:
        alone = GridModel(Grid.from_labels([0]), ((None,),))
        assert alone.link(0, 0).latency_s > 0
        assert alone.latency_s.shape == (1, 1)


class TestTables:
    def test_gap_matrix(self, model: GridModel) -> None:
        gaps = model.gap_s(500)
        for i in range(3):
            for j in range(3):
                assert gaps[i, j] == model.link(i, j).gap(500)

    def test_tables_agree_with_the_links(self, model: GridModel) -> None:
        """All links at all sizes at once, between and beyond what was measured."""
        sizes = np.array([0.0, 1.0, 999.0, 1000.0, 54_321.0, 100_000.0, 7e6])
        rows = [list(row) for row in model.links]
        rows[0][1] = replace(model.link(0, 1), gap_s=(1e-3, 3e-3, 2e-3))  # falls at the end
        falling = replace(model, relay_gap=None, links=tuple(tuple(row) for row in rows))
        gaps, alone = falling.gap_and_one_way_s(sizes)
        for i in range(3):
            for j in range(3):
                link = falling.link(i, j)
                assert gaps[i, j].tolist() == pytest.approx([link.gap(s) for s in sizes])
                assert alone[i, j].tolist() == pytest.approx([link.one_way(s) for s in sizes])

    def test_below_the_smallest_size_its_value_holds(self) -> None:
        """Nobody measured an empty message; a steep line to 0 would end below zero."""
        steep = PLogP(1e-3, (100, 200), (1e-4, 5e-4), (0.0, 0.0), (0.0, 0.0))
        model = GridModel(Grid.from_labels([0, 1]), ((None, steep), (steep, None)))
        sizes = np.array([0.0, 8.0, 100.0, 150.0])
        gaps, alone = model.gap_and_one_way_s(sizes)
        np.testing.assert_allclose(gaps[0, 1], [1e-4, 1e-4, 1e-4, 3e-4])
        np.testing.assert_allclose(gaps[0, 1], steep.gap(sizes))
        np.testing.assert_allclose(alone[0, 1], steep.one_way(sizes))
        assert model.gap_s(8)[0, 1] == pytest.approx(1e-4)

    def test_no_gap_below_the_relay_gap(self, model: GridModel) -> None:
        slow = replace(model, relay_gap=TimesBySize((0, 1000), (5e-4, 6e-4)))
        gaps, _ = slow.gap_and_one_way_s(np.array([500.0, 100_000.0]))
        assert gaps[0, 0].tolist() == pytest.approx([5.5e-4, 6e-2])
        fast = replace(model, relay_gap=TimesBySize((0, 100_000), (1e-9, 1e-9)))
        assert fast.gap_and_one_way_s(np.array([500.0]))[0][0, 1] == pytest.approx(1.5e-5)

    def test_a_slow_interface_that_all_waited_for_keeps_fast_ones_from_nothing(self) -> None:
        fast, slow = linear_plogp(1e-3, 100e6), linear_plogp(1e-3, 25e6)
        links = ((fast, slow), (slow, slow))
        unlike = GridModel(Grid.from_labels([0, 0, 1, 1]), links)
        at = np.array([1e5])
        waited = replace(unlike, relay_gap=TimesBySize((0, 100_000), (4e-6, 4.2e-3)))
        gaps, _ = waited.gap_and_one_way_s(at)
        assert gaps[0, 0, 0] == pytest.approx(1.05e-3, rel=0.02)
        assert gaps[1, 1, 0] == pytest.approx(4.2e-3)
        # Measured by a few messages, which pass in a burst; the wait was that of a stream.
        three = (4e-6, 2e-3, 42e-3)
        burst = PLogP(1e-3, (0, 100_000, 1 << 20), three, three, three)
        bursts = replace(waited, links=((fast, burst), (burst, burst)))
        assert bursts.gap_and_one_way_s(at)[0][0, 0, 0] == pytest.approx(1.05e-3, rel=0.02)
        assert bursts.gap_and_one_way_s(at)[0][1, 1, 0] == pytest.approx(4.2e-3)
        # What no interface explains is the engine's, and all have it.
        engine = replace(unlike, relay_gap=TimesBySize((0, 100_000), (4e-6, 6e-3)))
        assert engine.gap_and_one_way_s(at)[0][0, 0, 0] == pytest.approx(6e-3)


class TestTogether:
    def test_is_a_positive_matrix_or_nothing(self, model: GridModel) -> None:
        rows = ((1.0, 1.0, 1.0),) * 3
        for wrong in (rows[:2], (*rows[:2], (1.0, 1.0)), (*rows[:2], (1.0, 0.0, 1.0))):
            with pytest.raises(UsageError, match="aggregate_bytes_per_s: must be 3 x 3 and pos"):
                replace(model, aggregate_bytes_per_s=wrong)

    def test_flows_together_carry_at_least_what_one_does(self, model: GridModel) -> None:
        one = 2**20 / replace(model, aggregate_bytes_per_s=()).gap_s(2**20)
        low = replace(model, aggregate_bytes_per_s=((1.0,) * 3,) * 3)
        assert low.link_bytes_per_s == pytest.approx(one)
        assert replace(model, aggregate_bytes_per_s=()).link_bytes_per_s == pytest.approx(one)
        assert model.link_bytes_per_s[1].tolist() == pytest.approx([4e8, 6e8, 6e8])


class TestRestrict:
    def test_links_follow_their_clusters(self, model: GridModel) -> None:
        part = model.restrict([4, 0, 3])
        assert [c.name for c in part.grid.clusters] == ["c", "a"]
        assert part.links[0][1] is model.links[2][0]
        assert part.links[1][0] is model.links[0][2]
        assert part.links[0][0] is model.links[2][2]

    def test_the_mpi_library_is_the_same(self, model: GridModel) -> None:
        assert replace(model, mpi="MPICH").restrict([0, 1]).mpi == "MPICH"

    def test_a_cluster_left_with_one_process_has_its_interface(self, model: GridModel) -> None:
        """What is inside shows that, unless it was between processes of one host."""
        part = model.restrict([0, 1, 3])
        assert part.links[0][0] is model.links[0][0]
        assert part.links[1][1] is None
        assert part.links[2][2] is None
        assert model.restrict([0, 3, 4]).links[1][1] is model.links[2][2]

    def test_native_times_are_those_of_other_ranks(self, model: GridModel) -> None:
        variants = {"bcast": {"native-nonblocking": model.native["bcast"]}}
        part = replace(model, native_variants=variants).restrict([0, 1])
        assert part.native == {}
        assert part.native_variants == {}
        assert (part.origin, part.tolerance, part.relay_gap) == ("measured", 0.25, model.relay_gap)

    def test_flows_together_follow_their_clusters(self, model: GridModel) -> None:
        assert model.restrict([3, 0]).aggregate_bytes_per_s == ((9e8, 7e8), (3e8, 1e9))
        alone = replace(model, aggregate_bytes_per_s=())
        assert alone.restrict([3, 0]).aggregate_bytes_per_s == ()

    def test_every_subset_makes_a_model(self, model: GridModel) -> None:
        for mask in range(1, 32):
            ranks = [rank for rank in range(5) if mask >> rank & 1]
            part = model.restrict(ranks)
            assert part.grid.n_ranks == len(ranks)
            assert np.isfinite(part.latency_s).all()

    def test_refuses_ranks_that_are_not(self, model: GridModel) -> None:
        with pytest.raises(UsageError, match="restriction to ranks"):
            model.restrict([0, 5])


DECLARED = """
version = 1
name = "declared"

[[clusters]]
name = "a"
hosts = 2
latency = "50 us"
nic = "100 Mbit/s"

[[clusters]]
name = "b"
hosts = 2
latency = "10 us"
nic = "1 Gbit/s"
uplink = "80 Mbit/s"

[[clusters]]
name = "c"
hosts = 1
nic = "10 Gbit/s"

[[links]]
between = ["a", "b"]
latency = "5 ms"
rate = "200 Mbit/s"

[[links]]
between = ["b", "c"]
latency = "8 ms"
rate = "40 Mbit/s"

[[links]]
between = ["a", "c"]
latency = "40 ms"
"""


class TestDeclared:
    """``g(m)`` is m over the slowest of NICs, link, uplinks and a TCP window per round trip."""

    HOSTS = ("a-0", "b-0", "a-1", "b-1", "c-0")

    def rate(self, model: GridModel, i: int, j: int) -> float:
        link = model.link(i, j)
        return 1e6 / (link.gap(1_000_000) - link.gap(0))

    def test_hand_figures(self) -> None:
        model = declared_model(parse_gridfile(DECLARED), self.HOSTS)
        assert [c.ranks for c in model.grid.clusters] == [(0, 2), (1, 3), (4,)]
        assert model.origin == "declared"
        assert model.latency_s[0].tolist() == pytest.approx([50e-6, 5e-3, 40e-3])
        assert model.latency_s[1].tolist()[:2] == pytest.approx([5e-3, 10e-6])
        assert self.rate(model, 0, 0) == pytest.approx(12.5e6)  # a's NICs
        assert self.rate(model, 1, 1) == pytest.approx(125e6)  # no uplink inside
        assert self.rate(model, 0, 1) == pytest.approx(10e6)  # b's uplink
        assert self.rate(model, 1, 0) == pytest.approx(10e6)
        assert self.rate(model, 1, 2) == pytest.approx(5e6)  # the link
        assert self.rate(model, 0, 2) == pytest.approx(12.5e6)  # a's NICs again
        assert self.rate(model, 2, 2) == pytest.approx(1.25e9)  # of a lone host, too

    def test_long_messages_are_announced(self) -> None:
        link = declared_model(parse_gridfile(DECLARED), self.HOSTS).link(0, 1)
        for n_bytes, trips in ((0, 1), (ANNOUNCED_BYTES - 1, 1), (ANNOUNCED_BYTES, 3), (10**7, 3)):
            assert link.one_way(n_bytes) == pytest.approx(trips * 5e-3 + link.gap(n_bytes))

    def test_a_window_per_round_trip(self) -> None:
        text = DECLARED + '\n[transport]\nwindow = "64 KiB"\n'
        model = declared_model(parse_gridfile(text), self.HOSTS)
        assert self.rate(model, 0, 2) == pytest.approx(65536 / 80e-3)
        assert self.rate(model, 0, 0) == pytest.approx(12.5e6)  # 655 MB/s would fit

    def test_a_window_limits_nothing_where_there_is_no_latency(self) -> None:
        text = DECLARED.replace("40 ms", "0 s") + '\n[transport]\nwindow = "64 KiB"\n'
        model = declared_model(parse_gridfile(text), self.HOSTS)
        assert model.latency_s[0, 2] == 0
        assert self.rate(model, 0, 2) == pytest.approx(12.5e6)

    def test_clusters_come_in_rank_order(self) -> None:
        hosts = ("c-0", "b-0", "a-0")
        model = declared_model(parse_gridfile(DECLARED), hosts)
        assert [c.name for c in model.grid.clusters] == ["c", "b", "a"]
        assert model.latency_s[0, 2] == pytest.approx(40e-3)
        assert model.latency_s[0, 1] == pytest.approx(8e-3)

    def test_a_host_of_nobody(self) -> None:
        with pytest.raises(FileError, match="rank 1 runs on 'elsewhere'"):
            declared_model(parse_gridfile(DECLARED), ("a-0", "elsewhere"))

    @pytest.mark.parametrize("path", sorted(HOSTFILES.glob("*.toml")), ids=lambda path: path.stem)
    def test_every_named_grid_has_a_model(self, path: Path) -> None:
        spec = read_gridfile(path)
        hosts = () if spec.by_rank else spec.rank_hosts()
        model = declared_model(spec, hosts)
        assert model.n_clusters == len(spec.clusters)
        assert (model.gap_s(1 << 20) > 0).all()

    def test_what_all_hosts_send_together(self) -> None:
        """Two of a's NICs, b's uplink, the link: the least of what all share."""
        model = declared_model(parse_gridfile(DECLARED), self.HOSTS)
        together = np.array(model.aggregate_bytes_per_s)
        assert together[0, 0] == pytest.approx(25e6)
        assert together[0, 1] == together[1, 0] == pytest.approx(10e6)
        assert together[1, 2] == pytest.approx(5e6)
        assert together[0, 2] == pytest.approx(25e6)


def test_a_grid_file_says_which_uplinks_are_shared() -> None:
    model = load_model("unlike-hosts")
    assert model.uplinks == pytest.approx([12.5e6, 12.5e6, 7.5e6, 7.5e6, np.inf])
    assert model.restrict([0, 10]).uplinks == pytest.approx([12.5e6, np.inf])
    assert load_model("three-sites").uplink_bytes_per_s == ()
    with pytest.raises(UsageError, match="uplink_bytes_per_s: must be 5 numbers from 0 on"):
        replace(model, uplink_bytes_per_s=(1.0,))


def test_contention_goes_with_its_cluster() -> None:
    link = linear_plogp(1e-4, 1e7)
    model = GridModel(
        Grid.from_labels([0, 0, 1, 1]), ((link, link), (link, link)), contention=(0.5, 2.0)
    )
    assert model.restrict([2, 3]).contention == (2.0,)
    assert model.restrict([3, 0, 1]).contention == (2.0, 0.5)
    with pytest.raises(UsageError, match="contention: must be 2 numbers from 0 on"):
        replace(model, contention=(1.0,))
