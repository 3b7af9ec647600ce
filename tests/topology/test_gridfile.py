from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gridcoll.errors import FileError
from gridcoll.topology.gridfile import GridSpec, parse_gridfile, read_gridfile

HOSTFILES = Path(__file__).parents[2] / "hostfiles"

GRID = """
version = 1
name = "g"

[[clusters]]
name = "a"
site = "s"
region = "r"
hosts = 2
nic = "100 Mbit/s"
latency = "40 us"

[[clusters]]
name = "b"
site = "s"
region = "r"
hosts = ["x.example.org", "y"]
uplink = "200 Mbit/s"

[[clusters]]
name = "c"
region = "r"
hosts = 1
slots = 2

[[links]]
between = ["a", "b"]
latency = "1 ms"
rate = "1 Gbit/s"

[[links]]
between = ["s", "c"]
latency = "5 ms"

[transport]
congestion_control = "reno"
window = "64 KiB"
"""


def changed(*replacements: str) -> GridSpec:
    text = GRID
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return parse_gridfile(text, "g.toml")


class TestReading:
    def test_matrices_are_in_base_units(self) -> None:
        spec = changed()
        expected = [[40e-6, 1e-3, 5e-3], [1e-3, 50e-6, 5e-3], [5e-3, 5e-3, 50e-6]]
        np.testing.assert_allclose(spec.latency_s, expected)
        np.testing.assert_allclose(spec.nic_bytes_per_s, [12.5e6, 125e6, 125e6])
        np.testing.assert_allclose(spec.uplink_bytes_per_s, [np.inf, 25e6, np.inf])
        assert spec.rate_bytes_per_s[0, 1] == spec.rate_bytes_per_s[1, 0] == 125e6
        assert math.isinf(spec.rate_bytes_per_s[0, 2])
        assert spec.window_bytes == 65536
        assert spec.queue_bytes is None
        assert changed('window = "64 KiB"', 'queue = "1 MiB"').queue_bytes == 1 << 20
        assert spec.burst_bytes == 16384
        assert spec.transport.congestion_control == "reno"

    def test_hosts_are_counted_out_or_named(self) -> None:
        assert changed().hosts == (("a-0", "a-1"), ("x.example.org", "y"), ("c-0",))

    def test_a_nearer_link_overrides_a_wider_one_wherever_it_stands(self) -> None:
        wide = '[[links]]\nbetween = ["r", "r"]\nlatency = "9 ms"\n\n[[links]]\nbetween = ["a"'
        spec = changed('[[links]]\nbetween = ["a"', wide)
        assert spec.latency_s[0, 1] == 1e-3
        assert spec.latency_s[0, 2] == 5e-3
        last = "[transport]"
        spec = changed(last, f'[[links]]\nbetween = ["r", "r"]\nlatency = "9 ms"\n{last}')
        assert spec.latency_s[0, 1] == 1e-3
        assert spec.latency_s[0, 2] == 5e-3

    def test_a_default_link_fills_what_nothing_is_said_about(self) -> None:
        default = '[default_link]\nlatency = "7 ms"\n'
        spec = changed('[[links]]\nbetween = ["s", "c"]\nlatency = "5 ms"\n', default)
        assert spec.latency_s[0, 2] == spec.latency_s[2, 1] == 7e-3
        assert spec.latency_s[0, 1] == 1e-3


class TestRankOrder:
    def test_by_cluster(self) -> None:
        assert changed().rank_hosts() == ("a-0", "a-1", "x.example.org", "y", "c-0", "c-0")

    def test_interleaved(self) -> None:
        spec = changed('name = "g"', 'name = "g"\nrank_order = "interleaved"')
        assert spec.host_order() == ("a-0", "x.example.org", "c-0", "a-1", "y")
        assert spec.rank_hosts() == ("a-0", "x.example.org", "c-0", "c-0", "a-1", "y")

    def test_explicit(self) -> None:
        order = '["y", "c-0", "a-1", "a-0", "x.example.org"]'
        spec = changed('name = "g"', f'name = "g"\nrank_order = {order}')
        assert spec.host_order() == ("y", "c-0", "a-1", "a-0", "x.example.org")

    @pytest.mark.parametrize("order", ['["y"]', '["y", "y", "c-0", "a-1", "a-0"]'])
    def test_explicit_names_each_host_once(self, order: str) -> None:
        with pytest.raises(FileError, match="rank_order: must name each host once"):
            changed('name = "g"', f'name = "g"\nrank_order = {order}')


class TestAssignment:
    def test_ranks_join_the_cluster_of_their_host(self) -> None:
        grid, origin = changed().assign(["y", "a-1", "c-0", "a-0", "x"])
        assert [cluster.name for cluster in grid.clusters] == ["b", "a", "c"]
        assert [cluster.ranks for cluster in grid.clusters] == [(0, 4), (1, 3), (2,)]
        assert grid.clusters[0].site == "s"
        assert origin == (1, 0, 2)

    def test_a_host_of_no_cluster_is_told(self) -> None:
        with pytest.raises(FileError, match=r"g.toml: hosts: rank 1 runs on 'z', which is in none"):
            changed().assign(["a-0", "z"])

    @pytest.mark.parametrize(
        ("listed", "host"),
        [
            ((["n1.lyon.fr"], ["n1.nancy.fr"]), "n1"),
            ((["n1.lyon.fr"], ["n1.nancy.fr"]), "n1.lille.fr"),
            ((["n1"], ["n1.nancy.fr"]), "n1.lyon.fr"),
            ((["10.1.0.7"], ["10.2.0.7"]), "10.0.0.1"),
            ((["10.1.0.7"], ["n1"]), "10.0.0.1"),
        ],
    )
    def test_a_short_name_that_may_be_another_host_is_told(
        self, listed: tuple[list[str], list[str]], host: str
    ) -> None:
        text = 'version=1\nname="g"\n[default_link]\nlatency="1 ms"\n'
        for name, hosts in zip("ab", listed, strict=True):
            text += f'[[clusters]]\nname="{name}"\nhosts={hosts}\n'
        spec = parse_gridfile(text)
        with pytest.raises(FileError, match=rf"hosts: rank 1 runs on '{host}', which (is in|may)"):
            spec.assign([listed[0][0], host])
        assert spec.assign([listed[1][0], listed[0][0]])[1] == (1, 0)

    def test_all_that_a_short_name_may_be_are_named(self) -> None:
        spec = changed('["x.example.org", "y"]', '["a-0.example.org", "y"]')
        with pytest.raises(FileError, match=r"may be any of 'a-0', 'a-0\.example\.org'$"):
            spec.assign(["a-0.example.com"])
        assert spec.assign(["a-1.example.com", "y.example.com"])[1] == (0, 1)

    def test_ranks_may_be_counted_out(self) -> None:
        text = 'version=1\nname="g"\n[[clusters]]\nname="a"\nranks=2\n[[clusters]]\nname="b"\n'
        text += 'ranks=[2, 3]\n[[links]]\nbetween=["a","b"]\nlatency="1 ms"\n'
        grid, origin = parse_gridfile(text).assign(["h"] * 4)
        assert [cluster.ranks for cluster in grid.clusters] == [(0, 1), (2, 3)]
        assert origin == (0, 1)
        with pytest.raises(FileError, match=r"describes ranks 0\.\.3, the job has 5 ranks"):
            parse_gridfile(text).assign(["h"] * 5)
        with pytest.raises(FileError, match=r"ranks: rank 1 is in two clusters"):
            parse_gridfile(text.replace("[2, 3]", "[1, 3]")).assign(["h"] * 4)


class TestMistakes:
    @pytest.mark.parametrize(
        ("old", "new", "told"),
        [
            ("version = 1", "version = 2", "version: must be 1, got 2"),
            ("version = 1", "", ".*missing required field `version`"),
            ("version = 1", "version = ", "not TOML"),
            ("hosts = 2", "hosts = 0", r"clusters\[0\]\.hosts: Expected `int` >= 1"),
            ("hosts = 2", "hots = 2", r"clusters\[0\]: .*unknown field `hots`"),
            ("hosts = 2", "hots = 2", ".*; known are name, .*, uplink; did you mean hosts\\?$"),
            ("version = 1", "verson = 1", ".*; known are version, .*; did you mean version\\?$"),
            ("window", "windw", "transport: .*; known are .*, queue; did you mean window\\?$"),
            ('latency = "5 ms"', 'delay = "5 ms"', r"links\[1\]: .*; known are .*, between$"),
            ("[transport]", "[default_link]\nlatncy = 1\n[transport]", ".*did you mean latency"),
            ("hosts = 2", "hosts = []", "cluster 'a': needs at least one member"),
            ("hosts = 2", "", "cluster 'a': give either hosts or ranks"),
            ("hosts = 2", "hosts = 2\nranks = 2", "cluster 'a': give either hosts or ranks"),
            ("hosts = 1\n", "ranks = 1\n", "cluster 'c': all clusters must be given by hosts"),
            ("hosts = 2", 'hosts = ["y", "b"]', "clusters: host 'y' is listed twice"),
            ('name = "b"', 'name = "a"', "clusters: the name 'a' is used twice"),
            ('name = "b"', 'name = "b c"', r"clusters\[1\]\.name: "),
            ('"100 Mbit/s"', '"100 Mbit"', "cluster 'a' nic: rate '100 Mbit': expected a number"),
            ('"100 Mbit/s"', '"0 Mbit/s"', "cluster 'a' nic: must be positive"),
            ('"40 us"', '"40"', "cluster 'a': duration '40'"),
            ('"5 ms"', '"5 Ms"', "link 's'-'c': duration '5 Ms'"),
            ('"64 KiB"', '"64 miles"', "transport.window: size '64 miles'"),
            ('["s", "c"]', '["s", "d"]', "links: no cluster, site or region is called 'd'"),
            ('["s", "c"]', '["s", "b"]', "links: none is given between 'a' and 'c'"),
            ('["s", "c"]', '["s"]', r"links\[1\]\.between: "),
            ('["s", "c"]', '["b", "a"]', "link 'b'-'a': link 'a'-'b' is about 'a' and 'b' too"),
            ('["a", "b"]', '["a", "a"]', "link 'a'-'a': must be between two different clusters"),
            ("[transport]", '[default_link]\nbetween = ["a", "c"]\n[transport]', ".*`between`"),
        ],
    )
    def test_are_told_with_their_place(self, old: str, new: str, told: str) -> None:
        with pytest.raises(FileError, match=rf"^grid file g\.toml: {told}"):
            changed(old, new)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=r"grid file .*none\.toml: "):
            read_gridfile(tmp_path / "none.toml")

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(FileError, match=r"grid file .*bad\.toml: "):
            read_gridfile(tmp_path / "bad.toml")


SIZES = {
    "two-sites": [4, 4],
    "two-sites-uneven": [3, 6],
    "three-sites": [4, 4, 4],
    "grid5000": [3, 3, 2, 1, 1, 2],
    "scrambled": [4, 4, 4],
    "thin-wan": [4, 4, 4],
    "long-fat": [4, 4],
    "one-cluster": [6],
}


class TestNamedGrids:
    @pytest.mark.parametrize("name", SIZES)
    def test_is_what_its_name_says(self, name: str) -> None:
        spec = read_gridfile(HOSTFILES / f"{name}.toml")
        assert spec.name == name
        assert [len(hosts) for hosts in spec.hosts] == SIZES[name]
        assert spec.description

    def test_none_is_missing(self) -> None:
        assert {path.stem for path in HOSTFILES.glob("*.toml")} >= set(SIZES)

    def test_three_sites(self) -> None:
        latency_s = read_gridfile(HOSTFILES / "three-sites.toml").latency_s
        found = [latency_s[0, 1], latency_s[1, 2], latency_s[0, 2]]
        assert found == pytest.approx([5.2e-3, 5.4e-3, 12.2e-3])

    def test_scrambled_is_three_sites_in_another_order(self) -> None:
        scrambled = read_gridfile(HOSTFILES / "scrambled.toml")
        plain = read_gridfile(HOSTFILES / "three-sites.toml")
        assert scrambled.hosts == plain.hosts
        assert (scrambled.latency_s == plain.latency_s).all()
        of = [scrambled.cluster_of_host[host] for host in scrambled.rank_hosts()]
        assert of == [0, 1, 2] * 4

    def test_thin_wan_is_thinner_than_its_nics(self) -> None:
        spec = read_gridfile(HOSTFILES / "thin-wan.toml")
        assert spec.rate_bytes_per_s[0, 1] == 2.5e6
        assert set(spec.nic_bytes_per_s) == {12.5e6}

    def test_long_fat_needs_several_flows(self) -> None:
        spec = read_gridfile(HOSTFILES / "long-fat.toml")
        assert 2 * spec.latency_s[0, 1] == 0.08
        assert spec.window_bytes is not None
        assert spec.window_bytes / (2 * spec.latency_s[0, 1]) < spec.nic_bytes_per_s.min() / 2


def test_a_dilated_grid_is_the_same_in_slow_motion() -> None:
    plain, slow = changed(), changed('name = "g"', 'name = "g"\ndilation = 4')
    assert (plain.name, slow.name) == ("g", "g-x4")
    np.testing.assert_allclose(slow.latency_s, 4 * plain.latency_s)
    np.testing.assert_allclose(slow.rate_bytes_per_s, plain.rate_bytes_per_s / 4)
    np.testing.assert_allclose(slow.nic_bytes_per_s, plain.nic_bytes_per_s / 4)
    np.testing.assert_allclose(slow.uplink_bytes_per_s, plain.uplink_bytes_per_s / 4)
    # What is on its way is as much as before, and so are windows and bursts.
    assert (slow.window_bytes, slow.burst_bytes) == (plain.window_bytes, plain.burst_bytes)


@pytest.mark.parametrize("wrong", ["0.5", "-1", "0", "inf", "nan", '"4"'])
def test_a_dilation_that_is_none(wrong: str) -> None:
    with pytest.raises(FileError, match="dilation"):
        changed('name = "g"', f'name = "g"\ndilation = {wrong}')
