from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.cli.hostfile_command import command
from gridcoll.errors import FileError, UsageError
from gridcoll.topology.gridfile import GridSpec, parse_gridfile
from gridcoll.topology.hostfile import FORMATS, first_hosts, format_hostfile, format_use

LINK = '[default_link]\nlatency = "5 ms"\n'


def spec(*clusters: tuple[int, int], order: str = '"cluster"') -> GridSpec:
    """A grid whose clusters a, b, … have so many hosts of so many slots."""
    tables = "".join(
        f'[[clusters]]\nname = "{chr(97 + i)}"\nhosts = {hosts}\nslots = {slots}\n'
        for i, (hosts, slots) in enumerate(clusters)
    )
    return parse_gridfile(f'version = 1\nname = "g"\nrank_order = {order}\n{tables}{LINK}')


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("openmpi", "a-0 slots=1\nb-0 slots=2\na-1 slots=1\n"),
        ("mpich", "a-0:1\nb-0:2\na-1:1\n"),
        ("impi", "a-0:1\nb-0:2\na-1:1\n"),
        ("slurm", "a-0\nb-0\nb-0\na-1\n"),
    ],
)
def test_formats_keep_the_rank_order(kind: str, text: str) -> None:
    assert format_hostfile(first_hosts(spec((2, 1), (1, 2), order='"interleaved"')), kind) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [("openmpi", "a-0 slots=1\nb-0 slots=1\n"), ("mpich", "a-0:1\nb-0:1\n")],
)
def test_fewer_ranks_take_the_first_slots(kind: str, text: str) -> None:
    grid = spec((2, 1), (1, 2), order='["a-0", "b-0", "a-1"]')
    assert format_hostfile(first_hosts(grid, 2), kind) == text


def read_back(kind: str, text: str) -> list[str]:
    hosts = []
    for line in text.splitlines():
        host, _, n = line.partition({"openmpi": " slots=", "slurm": "?"}.get(kind, ":"))
        hosts += [host] * int(n or 1)
    return hosts


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4),
    st.sampled_from(['"cluster"', '"interleaved"']),
    st.integers(1, 48),
)
def test_rank_i_is_on_the_host_of_rank_i(
    kind: str, clusters: list[tuple[int, int]], order: str, n_ranks: int
) -> None:
    grid = spec(*clusters, order=order)
    n_ranks = min(n_ranks, len(grid.rank_hosts()))
    assert read_back(kind, format_hostfile(first_hosts(grid, n_ranks), kind)) == list(
        grid.rank_hosts()[:n_ranks]
    )


def test_slurm_gets_no_comments() -> None:
    assert "#" not in format_hostfile(first_hosts(spec((2, 1))), "slurm")
    assert "--distribution=arbitrary" in format_use("slurm", "F", 2)


def test_mistakes_are_told() -> None:
    with pytest.raises(UsageError, match="'lam'; known are openmpi, mpich, impi, slurm"):
        format_hostfile(first_hosts(spec((1, 1))), "lam")
    for n_ranks in (0, 3):
        with pytest.raises(UsageError, match=rf"has 2 slots: ranks must be 1..2, got {n_ranks}"):
            first_hosts(spec((2, 1)), n_ranks)
    by_rank = parse_gridfile('version = 1\nname = "g"\n[[clusters]]\nname = "a"\nranks = 2\n')
    with pytest.raises(UsageError, match="gives ranks, not hosts"):
        first_hosts(by_rank)


class TestCommand:
    @pytest.fixture
    def grid(self, tmp_path: Path) -> str:
        path = tmp_path / "g.toml"
        path.write_text('version = 1\nname = "g"\n[[clusters]]\nname = "a"\nhosts = 3\n')
        return str(path)

    def test_prints_the_file_and_says_elsewhere_how_to_use_it(self, grid: str) -> None:
        result = CliRunner().invoke(command, [grid, "--mpi", "mpich", "--ranks", "2"])
        assert result.stdout == "a-0:1\na-1:1\n"
        assert result.stderr == "use: mpiexec -f FILE -n 2 COMMAND\n"

    def test_writes_it_where_told(self, grid: str, tmp_path: Path) -> None:
        target = tmp_path / "hosts"
        result = CliRunner().invoke(command, [grid, "--mpi", "slurm", "-o", str(target)])
        assert target.read_text() == "a-0\na-1\na-2\n"
        assert result.stdout == ""
        assert f"SLURM_HOSTFILE={target} srun" in result.stderr

    def test_a_place_that_cannot_be_written_is_told(self, grid: str, tmp_path: Path) -> None:
        argv = [grid, "--mpi", "mpich", "-o", str(tmp_path / "no" / "hosts")]
        result = CliRunner().invoke(command, argv)
        assert isinstance(result.exception, FileError)
