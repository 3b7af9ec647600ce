from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.model import declared_model
from gridcoll.placement import Resources
from gridcoll.topology import parse_gridfile

GRID = """
version = 1
name = "two"
[[clusters]]
name = "a"
site = "north"
region = "land"
hosts = 3
nic = "100 Mbit/s"
uplink = "2 Gbit/s"
[[clusters]]
name = "b"
site = "north"
region = "land"
hosts = ["b1", "b2"]
[[clusters]]
name = "c"
site = "south"
region = "land"
hosts = 5
latency = "20 us"
[[links]]
between = ["north", "north"]
latency = "1 ms"
[[links]]
between = ["north", "south"]
latency = "8 ms"
rate = "1 Gbit/s"
"""


def test_from_spec() -> None:
    resources = Resources.from_spec(parse_gridfile(GRID))
    assert resources.names == ("a", "b", "c")
    assert resources.grid_name == "two"
    assert resources.n_hosts.tolist() == [3, 2, 5]
    assert resources.nic_bytes_per_s.tolist() == [12.5e6, 125e6, 125e6]
    # The link between a and b has no limit; c reaches nobody faster than its links.
    assert resources.uplink_bytes_per_s.tolist() == [250e6, np.inf, 125e6]
    assert resources.latency_s[0] == pytest.approx([50e-6, 1e-3, 8e-3])
    assert resources.latency_s[2, 2] == pytest.approx(20e-6)


def test_one_cluster_keeps_its_uplink() -> None:
    text = GRID.split("[[clusters]]")
    spec = parse_gridfile(text[0] + "[[clusters]]" + text[1])
    assert Resources.from_spec(spec).uplink_bytes_per_s.tolist() == [250e6]


def test_groups_are_sites_and_regions_of_two_or_more() -> None:
    assert Resources.from_spec(parse_gridfile(GRID)).groups() == ((0, 1), (0, 1, 2))


def test_unnamed_sites_are_no_group() -> None:
    text = GRID.replace('site = "north"\nregion = "land"', "").replace('"north"', '"a"', 1)
    spec = parse_gridfile(text.replace('between = ["a", "north"]', 'between = ["a", "b"]').replace(
        'between = ["north", "south"]', 'between = ["a", "c"]'
    ).replace('between = ["a", "b"]', 'between = ["b", "c"]') + (
        '[[links]]\nbetween = ["a", "b"]\nlatency = "1 ms"\n'
    ))  # fmt: skip
    assert Resources.from_spec(spec).groups() == ()


def test_ranks_only() -> None:
    spec = parse_gridfile('version = 1\nname = "r"\n[[clusters]]\nname = "a"\nranks = 3\n')
    with pytest.raises(UsageError, match=r"cluster 'a': hosts: placement chooses hosts"):
        Resources.from_spec(spec)


def test_from_model_agrees_with_the_file_it_was_declared_by() -> None:
    spec = parse_gridfile(GRID)
    resources = Resources.from_model(declared_model(spec, spec.rank_hosts()))
    declared = Resources.from_spec(spec)
    assert resources.names == declared.names
    assert resources.sites == declared.sites
    assert resources.n_hosts.tolist() == [3, 2, 5]
    np.testing.assert_allclose(resources.latency_s, declared.latency_s)
    np.testing.assert_allclose(resources.nic_bytes_per_s, declared.nic_bytes_per_s, rtol=1e-2)
    # No pair of hosts shows what a whole cluster can carry: one flow's rate from each host.
    np.testing.assert_allclose(
        resources.uplink_bytes_per_s, [3 * 12.5e6, 2 * 125e6, 5 * 125e6], rtol=1e-2
    )
    given = np.array([1e6, 2e6, 3e6])
    model = declared_model(spec, spec.rank_hosts())
    assert Resources.from_model(model, given).uplink_bytes_per_s.tolist() == given.tolist()


def test_hosts_of_a_model_are_counted_once() -> None:
    spec = parse_gridfile(GRID)
    hosts = [host for host in spec.rank_hosts() for _ in range(2)]
    assert Resources.from_model(declared_model(spec, hosts)).n_hosts.tolist() == [3, 2, 5]


def test_unknown_cluster() -> None:
    resources = Resources.from_spec(parse_gridfile(GRID))
    assert resources.indices(["c", "a"]) == (0, 2)
    with pytest.raises(UsageError, match="cluster 'd': unknown; the grid has a, b, c"):
        resources.indices(["d"])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n_hosts", np.array([4, 0]), "n_hosts of cluster 'c1': must be positive, got 0"),
        ("nic_bytes_per_s", np.array([np.nan, 1.0]), "nic_bytes_per_s of cluster 'c0'.*nan"),
        ("uplink_bytes_per_s", np.array([1.0, -1.0]), "uplink_bytes_per_s of cluster 'c1'"),
        ("processes_per_host", np.array([1, 0]), r"processes_per_host: .* got \[1, 0\]"),
        ("sites", ("x",), r"sites: needs one value per cluster \(2\), got 1"),
        ("latency_s", np.zeros((2, 3)), r"latency_s: must be 2 by 2, got \(2, 3\)"),
        ("latency_s", np.array([[0, np.nan], [np.nan, 0]]), "between 'c0' and 'c1'.*nan"),
        ("latency_s", np.array([[0, -1.0], [-1.0, 0]]), "not negative, got -1"),
        ("latency_s", np.array([[0, 1.0], [2.0, 0]]), "the same both ways, got 1.0 and 2.0"),
    ],
)
def test_numbers_that_cannot_be(resources_of, field, value, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        resources_of(**{"latency_s": np.full((2, 2), 1e-3), field: value})


def test_no_clusters(resources_of) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="names: needs at least one cluster"):
        resources_of(np.zeros((0, 0)))


def test_without_any_name_groups_are_what_is_near() -> None:
    """As on a measured grid: two cities of two clusters, 1 ms inside and 50 ms between."""
    city = np.array([0, 0, 1, 1])
    latency_s = np.where(city[:, None] == city, 1e-3, 50e-3)
    np.fill_diagonal(latency_s, 5e-5)
    nothing = ("",) * 4
    resources = Resources(
        tuple("abcd"), nothing, nothing, np.full(4, 8), np.full(4, 1e8), np.full(4, 1e8), latency_s
    )
    assert resources.groups() == ((0, 1), (2, 3), (0, 1, 2, 3))


def test_slots_are_processes() -> None:
    spec = parse_gridfile(GRID.replace("hosts = 3", "hosts = 3\nslots = 4"))
    assert Resources.from_spec(spec).processes.tolist() == [4, 1, 1]
    model = declared_model(spec, spec.rank_hosts())
    assert Resources.from_model(model).processes.tolist() == [4, 1, 1]
