"""A cache across jobs on networks that are not what they were."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gridcoll.measure.cache.folder import Folder
from gridcoll.testbed.run import run_on_grid

pytestmark = [pytest.mark.testbed, pytest.mark.long]

START = "from mpi4py import MPI; import gridcoll; gridcoll.GridComm(MPI.COMM_WORLD)"


def rate(cache: Path) -> float:
    """Of the link from left to right, in bytes per second."""
    link = Folder(cache / "v1").read().link("left", "right")
    assert link is not None
    return link.rate_bytes_per_s.mean


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """``start(grid)`` runs a job there; the cache that all of them have."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("GRIDCOLL_CACHE", str(cache))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    def run(grid: Path) -> Path:
        assert run_on_grid(grid, [sys.executable, "-c", START], mpi="mpich", check=False) == 0
        return cache

    return run


def test_a_link_that_fell_to_a_tenth_is_measured_again(
    start: Callable[[Path], Path], write_grid: Callable[..., Path]
) -> None:
    cache = start(write_grid())
    before = rate(cache)
    start(write_grid('"40 Mbit/s"', '"4 Mbit/s"'))
    assert rate(cache) < before / 3


def test_a_host_that_changed_site_is_placed_there(
    start: Callable[[Path], Path], write_grid: Callable[..., Path]
) -> None:
    """Three hosts on the left and two on the right; then the third one is on the right."""
    three = 'hosts = ["left-0", "left-1", "left-2"]'
    first = write_grid(
        'name = "left"\nhosts = 2', f'name = "left"\n{three}',
        'rank_order = "interleaved"', "",
        'name = "right"\nhosts = 2', 'name = "right"\nhosts = ["right-0", "right-1"]',
    )  # fmt: skip
    second = write_grid(
        'name = "left"\nhosts = 2', 'name = "left"\nhosts = ["left-0", "left-1"]',
        'rank_order = "interleaved"', "",
        'name = "right"\nhosts = 2', 'name = "right"\nhosts = ["right-0", "right-1", "left-2"]',
    )  # fmt: skip
    known = Folder(start(first) / "v1").read()
    assert known.cluster_of("left-2") == known.cluster_of("left-0")
    known = Folder(start(second) / "v1").read()
    assert known.cluster_of("left-2") == known.cluster_of("right-0")


def test_a_start_where_hosts_have_several_ranks(
    start: Callable[[Path], Path], write_grid: Callable[..., Path]
) -> None:
    """In some steps of the library's own algorithms, a host's ranks only send to one another."""
    grid = write_grid("hosts = 2", "hosts = 2\nslots = 3", 'rank_order = "interleaved"', "")
    assert rate(start(grid)) > 0
