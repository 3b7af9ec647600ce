from __future__ import annotations

import pytest

from gridcoll.errors import FileError, UsageError
from gridcoll.topology import parse_gridfile
from gridcoll.topology.changes import Change, ChangeSpec, parse_loss

GRID = """
version = 1
name = "g"
dilation = 2
[[clusters]]
name = "a"
site = "north"
hosts = 1
[[clusters]]
name = "b"
site = "north"
hosts = 1
[[clusters]]
name = "c"
hosts = 1
[default_link]
latency = "20 ms"
"""


def events(text: str) -> tuple[Change, ...]:
    return parse_gridfile(GRID + "[[events]]\n" + text, "g.toml").events


def test_times_and_rates_are_dilated_as_the_grid_is() -> None:
    (change,) = events(
        'at = "3 s"\nlink = ["a", "b"]\nrate = "8 Mbit/s"\nlatency = "5 ms"\nloss = "2 %"\n'
        'cut = "1 s"'
    )
    assert change.pairs == [(0, 1)]
    assert (change.at_s, change.cut_s, change.latency_s) == (6.0, 2.0, 0.01)
    assert (change.rate_bytes_per_s, change.loss, change.reset) == (5e5, 0.02, False)


def test_a_link_between_sites_is_all_links_between_their_clusters() -> None:
    (change,) = events('at = "1 s"\nlink = ["north", "c"]\ncut = "1 s"')
    assert change.pairs == [(0, 2), (1, 2)]


def test_events_are_in_order_and_nothing_given_resets() -> None:
    text = 'at = "3 s"\nhost = "c-0"\n[[events]]\nat = "1 s"\nhost = "c-0"\nrate = "1 Mbit/s"'
    first, second = events(text)
    assert (first.at_s, first.rate_bytes_per_s, first.reset) == (2.0, 62500.0, False)
    assert (second.at_s, second.host, second.reset) == (6.0, "c-0", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('at = "1 s"\ncut = "1 s"', "give either link or host"),
        ('at = "1 s"\nlink = ["a", "b"]\nhost = "c-0"', "give either link or host"),
        ('at = "1 s"\nlink = ["a", "x"]', "no cluster, site or region is called 'x'"),
        ('at = "1 s"\nlink = ["a", "a"]', "must be between two different clusters"),
        ('at = "1 s"\nhost = "d-0"', "host 'd-0': known are a-0, b-0, c-0"),
        ('at = "1 s"\nhost = "c-0"\nloss = "1 %"', "latency and loss are a link's"),
        ('at = "1 s"\nlink = ["a", "b"]\nrate = "0 bit/s"', "must be positive"),
        ('at = "soon"\nlink = ["a", "b"]', "duration 'soon'"),
        ('link = ["a", "b"]', "missing required field `at`"),
        ('at = "1 s"\nlink = ["a", "b"]\nspeed = "1 bit/s"', "unknown field `speed`"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(FileError, match=f"grid file g.toml: .*{message}"):
        events(text)


def test_at_run_time_mistakes_are_the_users() -> None:
    spec = parse_gridfile(GRID)
    with pytest.raises(UsageError, match="no cluster, site or region is called 'x'"):
        spec.change(ChangeSpec(link=("a", "x")))


@pytest.mark.parametrize(("text", "loss"), [("0%", 0.0), ("1 %", 0.01), (" 100 % ", 1.0)])
def test_losses(text: str, loss: float) -> None:
    assert parse_loss(text) == loss


@pytest.mark.parametrize("text", ["1", "-1 %", "101 %", "1.2.3 %", ""])
def test_what_is_no_loss(text: str) -> None:
    with pytest.raises(UsageError, match="expected a percentage"):
        parse_loss(text)
