"""What programs in C learn from their calls: ranks change decisions at the same call, or never.

Results are checked in the program, call by call. Every test asks how calls were made.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.programs import (
    TWO_MPIS,
    Done,
    Toolchain,
    good,
    needs_compiler,
    planned_of,
    tools_of,
    write_grid,
)
from tests.launch.rotating import rotating_python

pytestmark = needs_compiler

Rotate = Callable[..., Done]

CHANGED = re.compile(r"^gridcoll: call \d+: (\w+) of .* instead of ", re.MULTILINE)

NEAR = """
version = 1
name = "declared"
clusters = [{{ name = "a", ranks = {first} }}, {{ name = "b", ranks = {second} }}]
links = [{{ between = ["a", "b"], latency = "10 us", rate = "1 Gbit/s" }}]
"""
"""As near as processes of one machine are: clocks are compared soon."""


@pytest.fixture
def rotate(build, tmp_path: Path) -> Rotate:
    """Run ``learned`` while decisions change at every agreed point; ``own``: settings of rank 1."""

    def run(tools: Toolchain, n_ranks: int, *arguments: str, own: str = "") -> Done:
        wrapper = tmp_path / "wrapper.sh"
        wrapper.write_text(
            "#!/bin/sh\n"
            f"export GRIDCOLL_PYTHON={rotating_python(tools, tmp_path)}\n"
            "rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}}\n"
            f"[ $rank = 1 ] && export RANK_1=1 {own}\n"
            'exec "$@"\n'
        )
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        return good(
            tools.run(
                n_ranks,
                wrapper,
                [str(build(tools, "learned")), *arguments],
                options=["--stats", "--grid", write_near(tmp_path, n_ranks)],
                variables={"GRIDCOLL_LOG": "decisions"},
                limit_s=300,
            )
        )

    return run


def write_near(folder: Path, n_ranks: int) -> str:
    path = folder / "near.toml"
    first = (n_ranks + 1) // 2
    path.write_text(NEAR.format(first=first, second=n_ranks - first))
    return str(path)


def check_many_ways(done: Done) -> None:
    """That decisions changed, in C as well: calls of one kind were plans there, and native."""
    assert done.stdout == "right\n"
    assert {"bcast", "allreduce", "alltoall"} <= set(CHANGED.findall(done.stderr)), done.stderr
    counts = planned_of(done)
    assert counts["Allreduce"][0] > 0
    planned, native, through_python = counts["Alltoall"]
    assert min(planned, native, through_python) > 0, counts


class TestDecisionsThatChange:
    @pytest.mark.parametrize("mpi", TWO_MPIS)
    def test_on_all_ranks_at_the_same_call(self, rotate, mpi) -> None:
        check_many_ways(rotate(tools_of(mpi), 3, "100"))

    @pytest.mark.parametrize("mpi", TWO_MPIS)
    def test_in_several_threads(self, rotate, mpi) -> None:
        check_many_ways(rotate(tools_of(mpi), 2, "100", "threads"))

    def test_with_a_rank_whose_calls_all_go_through_python(self, rotate) -> None:
        """It counts the same calls."""
        check_many_ways(rotate(tools_of("mpich"), 3, "100", own="GRIDCOLL_ENGINE=python"))

    @pytest.mark.long
    def test_with_a_rank_that_jumps_out_of_native_calls(self, rotate) -> None:
        """It counts them. MPICH does not stand that natively."""
        done = rotate(tools_of("openmpi"), 3, "100", "jumps")
        assert done.stdout == "right\n"
        assert planned_of(done)["Bcast"][1] > 0

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("mpi", "n_rounds"), [("mpich", "1000"), ("openmpi", "400"), ("impi", "400")]
    )
    def test_for_long(self, rotate, mpi, n_rounds) -> None:
        check_many_ways(rotate(tools_of(mpi), 4, n_rounds))


def test_few_calls_go_through_python(build, tmp_path) -> None:
    """The first one of a kind, and trials."""
    tools = tools_of("mpich")
    options = ["--stats", "--grid", write_near(tmp_path, 2)]
    done = good(tools.run(2, build(tools, "learned"), ["3000", "1"], options=options))
    assert done.stdout == "right\n"
    planned, native, through_python = planned_of(done)["Allreduce"]
    assert 1 <= through_python < 300
    assert planned + native + through_python == 3001


def test_frozen(build, tmp_path) -> None:
    tools = tools_of("mpich")
    options = ["--stats", "--grid", write_near(tmp_path, 2)]
    variables = {"GRIDCOLL_LEARN": "off", "GRIDCOLL_LOG": "decisions"}
    done = good(
        tools.run(2, build(tools, "learned"), ["3000", "1"], options=options, variables=variables)
    )
    assert done.stdout == "right\n"
    assert planned_of(done)["Allreduce"] == (3001, 0, 0)
    assert "gridcoll: call" not in done.stderr


@pytest.mark.parametrize("mpi", TWO_MPIS)
def test_handles_come_again_with_other_ranks_behind_them(build, tmp_path, mpi) -> None:
    """Also those of communicators on which nothing can be gained."""
    tools = tools_of(mpi)
    options = ["--stats", "--grid", write_near(tmp_path, 3)]
    done = good(tools.run(3, build(tools, "lifetime"), ["few comms"], options=options, limit_s=200))
    assert done.stdout.startswith("right")
    assert planned_of(done)["Allreduce"][0] >= 100


@pytest.mark.parametrize("mpi", TWO_MPIS)
def test_all_collectives(build, tmp_path, mpi) -> None:
    """As with plans forced, but learning."""
    tools = tools_of(mpi)
    options = ["--stats", "--grid", write_grid(tmp_path, 3)]
    done = good(tools.run(3, build(tools, "everything"), options=options, limit_s=120))
    assert done.stdout == "right\n"
    planned, _, through_python = planned_of(done)["all"]
    assert planned > 100
    assert through_python > 100
