from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.errors import UsageError
from gridcoll.topology.grid import Cluster, Grid, Process


def cluster(name: str, *ranks: int, site: str = "", region: str = "") -> Cluster:
    return Cluster(name, tuple(Process(rank, f"h{rank}") for rank in ranks), site, region)


@pytest.fixture
def grid() -> Grid:
    """Three clusters over six ranks, interleaved; the last two share a site."""
    return Grid(
        (
            cluster("a", 0, 3, 5),
            cluster("b", 1, 4, site="s", region="r"),
            cluster("c", 2, site="s"),
        ),
        "g",
    )


class TestCluster:
    def test_needs_a_process(self) -> None:
        with pytest.raises(UsageError, match=r"cluster 'a': needs at least one process"):
            Cluster("a", ())

    @pytest.mark.parametrize("ranks", [(1, 0), (0, 0)])
    def test_ranks_ascend(self, ranks: tuple[int, ...]) -> None:
        with pytest.raises(UsageError, match=r"cluster 'a': ranks must be ascending, got \["):
            cluster("a", *ranks)

    def test_coordinator_is_the_lowest_rank(self) -> None:
        assert cluster("a", 2, 5, 7).coordinator == 2

    def test_nodes_group_by_host_in_order_of_lowest_rank(self) -> None:
        processes = (Process(0, "y"), Process(1, "x"), Process(2, "y"), Process(3, "x"))
        nodes = Cluster("a", processes).nodes
        assert [[p.rank for p in node] for node in nodes] == [[0, 2], [1, 3]]

    def test_a_line_goes_node_by_node(self) -> None:
        mixed = Cluster("a", tuple(Process(rank, host) for rank, host in enumerate("xyxzyx")))
        assert mixed.line == (0, 2, 5, 1, 4, 3)
        assert [mixed.places[rank] for rank in range(6)] == [0, 3, 1, 5, 4, 2]
        assert mixed.in_turns == (0, 1, 3, 2, 4, 5)
        assert mixed.node_sizes == (3, 2, 1)
        assert mixed.line_from(2) == (2, 5, 0, 1, 4, 3)
        assert mixed.line_from(4) == (4, 1, 3, 0, 2, 5)
        assert mixed.line_from(4, 1) == (4, 1, 0, 2, 5, 3)
        assert mixed.line_from(4, 2) == (4, 1, 3, 2, 5, 0)

    def test_a_line_on_one_node_or_many(self) -> None:
        together = Cluster("a", tuple(Process(rank, "x") for rank in range(4)))
        assert together.line_from(1, 1) == (1, 3, 0, 2)
        apart = cluster("a", 0, 1, 2, 3)
        assert apart.line == apart.ranks == apart.in_turns
        assert apart.line_from(1, 1) == (1, 3, 0, 2)

    def test_spread_takes_of_all_nodes_in_turn(self) -> None:
        hosts = "aaaabcc"
        many = Cluster("a", tuple(Process(10 + k, host) for k, host in enumerate(hosts)))
        spreads = [(10,), (10, 14), (10, 14, 15), (10, 11, 14, 15), (10, 11, 14, 15, 16)]
        assert [many.spread(most) for most in range(1, 6)] == spreads
        assert many.spread(7) == many.spread(99) == many.ranks


class TestGrid:
    def test_every_rank_once(self) -> None:
        with pytest.raises(UsageError, match=r"every rank 0..n-1 .* got \[0, 2\]"):
            Grid((cluster("a", 0, 2),), "g")
        with pytest.raises(UsageError, match=r"got \[0, 1, 1\]"):
            Grid((cluster("a", 0, 1), cluster("b", 1)), "g")
        with pytest.raises(UsageError, match=r"got \[\]"):
            Grid(())

    def test_clusters_ordered_by_coordinator(self) -> None:
        with pytest.raises(UsageError, match=r"ordered by their lowest rank, got lowest ranks"):
            Grid((cluster("b", 1), cluster("a", 0, 2)))

    def test_from_labels(self) -> None:
        grid = Grid.from_labels(["x", 7, "x", 7, "y"])
        assert [c.name for c in grid.clusters] == ["x", "7", "y"]
        assert [c.ranks for c in grid.clusters] == [(0, 2), (1, 3), (4,)]
        assert grid.hosts == ("host0", "host1", "host2", "host3", "host4")

    def test_one_machine_may_stand_for_a_grid(self) -> None:
        assert Grid.from_labels("xyxy", ["here"] * 4).splits_hosts
        assert not Grid.from_labels("xxyy", ["a", "a", "b", "b"]).splits_hosts

    def test_from_labels_needs_a_host_for_each(self) -> None:
        with pytest.raises(UsageError, match="2 labels but 1 hosts"):
            Grid.from_labels([0, 0], ["only"])

    def test_who_is_where(self, grid: Grid) -> None:
        assert grid.n_ranks == 6
        assert grid.cluster_of == (0, 1, 2, 0, 1, 0)
        assert grid.hosts == ("h0", "h1", "h2", "h3", "h4", "h5")
        assert [grid.lane_of(rank) for rank in range(6)] == [0, 0, 0, 1, 1, 2]

    def test_hosts_of_two_clusters_may_have_one_name(self) -> None:
        grid = Grid.from_labels([0, 1, 0, 1, 1], ["n0", "n0", "n1", "n1", "n0"])
        assert grid.host_of == (0, 1, 2, 3, 1)
        assert grid.restrict([4, 2, 0])[0].host_of == (0, 1, 2)
        assert grid.shares_hosts
        assert not Grid.from_labels([0, 1, 0, 1], ["a", "a", "b", "b"]).shares_hosts

    def test_other_clusters_of_the_same_hosts(self) -> None:
        grid = Grid.from_labels([0, 1, 0, 1], ["n0", "n0", "n0", "n1"])
        one = grid.regroup([0, 0, 0, 0])
        assert [cluster.ranks for cluster in one.clusters] == [(0, 1, 2, 3)]
        assert one.host_of == grid.host_of == (0, 1, 0, 2)

    def test_lanes_are_ranks_of_equal_index(self, grid: Grid) -> None:
        assert grid.lanes() == ((0, 1, 2), (3, 4), (5,))

    def test_a_cluster_without_site_is_a_site_of_its_own(self, grid: Grid) -> None:
        assert grid.sites == {"a": (0,), "s": (1, 2)}


class TestRestrict:
    def test_keeps_names_sites_and_hosts(self, grid: Grid) -> None:
        part, origin = grid.restrict([4, 5, 1])
        assert origin == (1, 0)
        assert [(c.name, c.ranks, c.site, c.region) for c in part.clusters] == [
            ("b", (0, 2), "s", "r"),
            ("a", (1,), "", ""),
        ]
        assert part.hosts == ("h4", "h5", "h1")
        assert part.name == "g"

    def test_to_all_is_itself(self, grid: Grid) -> None:
        assert grid.restrict(range(6)) == (grid, (0, 1, 2))

    @pytest.mark.parametrize("ranks", [[0, 0], [6], [-1]])
    def test_refuses(self, grid: Grid, ranks: list[int]) -> None:
        with pytest.raises(UsageError, match=r"restriction to ranks .* 0..5"):
            grid.restrict(ranks)

    @given(st.data())
    def test_members_keep_their_company(self, data: st.DataObject) -> None:
        labels = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
        grid = Grid.from_labels(labels)
        ranks = data.draw(st.permutations(range(len(labels))))
        ranks = ranks[: data.draw(st.integers(1, len(ranks)))]
        part, origin = grid.restrict(ranks)
        for new, old in enumerate(ranks):
            assert origin[part.cluster_of[new]] == grid.cluster_of[old]
            assert part.hosts[new] == grid.hosts[old]
