"""Registered names: none is lost, documents mention no others, and one file adds an algorithm.

After an intended change of names, ``python -m tests.test_registry`` at the repository's root
rewrites ``tests/golden/registry.txt``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden" / "registry.txt"

SECTIONS = ("heuristics", "searches", "studies")
"""Sections of ``gridcoll list`` that are compared, besides those that end in "algorithms"."""

IMPORTED = """
import gridcoll.plan
from gridcoll.plan.natives import natives_of
from gridcoll.plan.registry import REGISTRIES
for collective, registry in REGISTRIES.items():
    for name in (*registry, *natives_of(collective)):
        print(f"{collective} algorithms: {name}")
"""


def run(package_root: Path, *argv: str) -> str:
    """Return the output of a fresh interpreter that finds ``gridcoll`` in ``package_root``."""
    ran = subprocess.run(
        [sys.executable, *argv], cwd=package_root, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(package_root)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def listed(package_root: Path) -> dict[str, list[str]]:
    """Return names by section, as ``gridcoll list`` prints them."""
    said = json.loads(run(package_root, "-m", "gridcoll", "list", "--json"))
    return {
        section: [entry["name"] for entry in entries]
        for section, entries in said.items()
        if section in SECTIONS or section.endswith(" algorithms")
    }


def lines_of(names: Mapping[str, Iterable[str]]) -> set[str]:
    return {f"{section}: {name}" for section, found in names.items() for name in found}


def golden() -> set[str]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def golden_algorithms() -> set[str]:
    return {line for line in golden() if " algorithms: " in line}


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    return listed(ROOT)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package that tests may change."""
    without = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "gridcoll", tmp_path / "gridcoll", ignore=without)
    return tmp_path


def test_importing_plan_registers_all_algorithms() -> None:
    assert set(run(ROOT, "-c", IMPORTED).splitlines()) == golden_algorithms()


def test_the_command_line_lists_all_names(names: dict[str, list[str]]) -> None:
    assert lines_of(names) == golden()
    assert len(golden()) == sum(map(len, names.values())), "a name is listed twice"


def test_a_lost_registration_is_noticed(copy: Path) -> None:
    lost = sorted((copy / "gridcoll/plan/alltoall").glob("lg*.py"))
    assert lost
    for path in lost:
        path.unlink()
    # The comparison also works if the import stops because other modules need these files.
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=copy, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(copy)},
    )  # fmt: skip
    assert set(ran.stdout.splitlines()) != golden_algorithms()
    assert "alltoall algorithms: lg" not in ran.stdout.splitlines()


TOY = '''
"""The root sends to everybody, one after another."""

from gridcoll.plan.ops import Chunk, Recv, Send
from gridcoll.plan.plan import Plan, Programs
from gridcoll.plan.registry import Candidate, algorithm


@algorithm("bcast", "toy", "showing that one file is enough", "tests")
def candidates(model, n_bytes, root):
    n_ranks = model.grid.n_ranks

    def build(n_bytes):
        chunk = Chunk("output", 0, n_bytes)

        def program_of(rank):
            if rank == root:
                return tuple(Send(other, chunk, 0) for other in range(n_ranks) if other != root)
            return (Recv(root, chunk, 0),)

        return Plan("bcast", "one by one", n_bytes, root, Programs(n_ranks, program_of))

    return [Candidate("toy", "one by one", 1.25, build)]
'''


def test_an_algorithm_is_one_file(copy: Path, names: dict[str, list[str]]) -> None:
    (copy / "gridcoll/plan/bcast/toy.py").write_text(TOY)
    added = lines_of(listed(copy)) - lines_of(names)
    # Reductions run the trees of broadcasts in reverse, so the algorithm is listed for both.
    assert added == {"bcast algorithms: toy", "reduce algorithms: toy"}
    explain = ("-m", "gridcoll", "explain", "bcast", "--algorithm", "toy", "--bytes", "1K")
    grid = ("--grid", str(ROOT / "hostfiles/three-sites.toml"))
    said = run(copy, *explain, *grid, "--simulate")
    assert "toy" in said
    assert "one by one" in said


# Names in documents.

DOCUMENTS = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*/README.md")),
)
COLUMNS = {
    "algorithm": "algorithms",
    "heuristic": "heuristics",
    "search": "searches",
    "study": "studies",
}
"""Cells of a table's column with such a header must be names registered in that section."""


def unregistered_names(text: str, names: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names that ``text`` uses as registered ones, but that are not registered."""
    known = {section: set(found) for section, found in names.items()}
    algorithms = {
        section.removesuffix(" algorithms"): found
        for section, found in known.items()
        if section.endswith(" algorithms")
    }
    known["algorithms"] = set().union(*algorithms.values())
    found = []
    for collective, name in re.findall(r"\bGRIDCOLL_([A-Z_]+)=([a-z0-9][a-z0-9-]*)", text):
        if name not in algorithms.get(collective.lower(), {name}):
            found.append(f"GRIDCOLL_{collective}={name}")
    for line in text.splitlines():
        for name in re.findall(r"--algorithm[ =]([a-z0-9][a-z0-9-]*)", line):
            explained = re.search(r"explain ([a-z_]+)", line)
            which = explained.group(1) if explained else ""
            if name not in algorithms.get(which, known["algorithms"]):
                found.append(f"{which} --algorithm {name}".strip())
    for section, name in named_in_tables(text):
        if name not in known[section]:
            found.append(f"{section}: {name}")
    return found


def named_in_tables(text: str) -> list[tuple[str, str]]:
    """Return section and name for each cell under one of `COLUMNS`.

    Names are the words in backticks, or else the first word.
    """
    found: list[tuple[str, str]] = []
    places: dict[int, str] = {}
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not inside:
            inside = True
            places = {at: COLUMNS[cell] for at, cell in enumerate(cells) if cell in COLUMNS}
            continue
        for at, section in places.items():
            cell = cells[at] if at < len(cells) else ""
            if set(cell) <= set("-: "):
                continue
            words = re.findall(r"`([^`]+)`", cell) or [re.split(r"[\s,]", cell.strip("*"))[0]]
            found += [(section, word) for word in words]
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_what_there_is(path: Path, names: dict[str, list[str]]) -> None:
    assert unregistered_names(path.read_text(encoding="utf-8"), names) == []


@pytest.mark.parametrize(
    "text",
    [
        "run it with `GRIDCOLL_BCAST=chian`",
        "GRIDCOLL_ALLTOALL=ecef mpiexec -n 4",
        "gridcoll explain bcast --algorithm lg --grid x",
        "`--algorithm nothing`",
        "| algorithm | time |\n|---|--:|\n| lost | 3 |",
        "| time | algorithm |\n|---|--:|\n| 3 | `chain`, `lost` |",
        "| search | time |\n|---|--:|\n| sa.greedy | 3 |",
        "| heuristic |\n|---|\n| ECEF |",
    ],
)
def test_a_name_that_is_not_registered_is_seen(text: str, names: dict[str, list[str]]) -> None:
    assert unregistered_names(text, names)


@pytest.mark.parametrize(
    "text",
    [
        "`GRIDCOLL_BCAST=NAME`, GRIDCOLL_FORCE=grid, GRIDCOLL_ALLTOALL=native-v",
        "gridcoll explain bcast --algorithm chain",
        "| algorithm | time |\n|---|--:|\n| **`chain`** | 3 |\n| lg, packed | 4 |\n|  | 4 |",
        "| search |\n|---|\n| annealing (sa) |\n\n| grid |\n|---|\n| nowhere |",
    ],
)
def test_other_names_are_left_alone(text: str, names: dict[str, list[str]]) -> None:
    assert unregistered_names(text, names) == []


def test_tables_are_read() -> None:
    placement = (ROOT / "benchmarks/placement/README.md").read_text(encoding="utf-8")
    assert ("searches", "annealing-grouping") in named_in_tables(placement)


if __name__ == "__main__":
    lines = sorted(lines_of(listed(ROOT)))
    head = "# Written by: python -m tests.test_registry\n"
    GOLDEN.write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8")
