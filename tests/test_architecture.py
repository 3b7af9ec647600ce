"""Laws for the sources of the package, each with a test.

A law is a function that returns the violations in given sources, each with its place. It is tested
twice: the package must have none, and a made-up source that breaks the law must have one.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path

import pytest
from msgspec import Struct

import gridcoll

PACKAGE = Path(gridcoll.__file__).parent

BASE = {"constants", "errors", "files", "gridfiles", "variables", "release"}
"""Modules outside the rooms, which every room may import."""

_DOWN_TO_PLAN = {"topology", "model", "schedule", "plan"}
_DOWN_TO_COMM = {*_DOWN_TO_PLAN, "engine", "measure", "comm"}
MAY_IMPORT: dict[str, set[str]] = {
    "topology": set(),
    "model": {"topology"},
    "schedule": {"topology"},
    "plan": {"topology", "model", "schedule"},
    "engine": _DOWN_TO_PLAN,
    "measure": {*_DOWN_TO_PLAN, "engine"},
    "comm": {*_DOWN_TO_PLAN, "engine", "measure"},
    "launch": _DOWN_TO_COMM,
    "bench": _DOWN_TO_COMM,
    "draw": {"topology", "model", "plan"},
    "placement": {*_DOWN_TO_PLAN, "draw"},
    "study": {*_DOWN_TO_PLAN, "placement", "draw"},
    "testbed": {"topology"},
    "cli": {*_DOWN_TO_COMM, "launch", "bench", "draw", "placement", "study", "testbed"},
}
"""The rooms that a room may import, besides itself and `BASE`."""

PURE = ("topology", "model", "schedule", "plan", "draw", "placement")
"""Rooms whose import loads neither MPI nor terminal libraries."""

LIBRARY = (*PURE, "engine", "measure", "comm")
"""Rooms that applications call. They raise errors, and neither print nor exit."""

MAY_IMPORT_MPI = ("engine", "measure", "comm", "launch", "bench", "cli", "testbed/pingpong.py")

COMM_FRONT = {"comm/__init__.py", "comm/communicator.py"}
"""The communicator is composed of `comm.methods`, which use the rest of `comm`."""


class Sources(Struct, frozen=True, dict=True):
    """Syntax trees of the package's files by place, as ``plan/ops.py``."""

    trees: Mapping[str, ast.Module]

    @classmethod
    def read(cls, package: Path) -> Sources:
        return cls.of(
            **{
                path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
                for path in sorted(package.rglob("*.py"))
            }
        )

    @classmethod
    def of(cls, **texts: str) -> Sources:
        return cls({place: ast.parse(text) for place, text in texts.items()})

    @cached_property
    def places(self) -> dict[str, str]:
        """The place of each file, by the name of its module."""
        return {module_of(place): place for place in self.trees}

    @cached_property
    def edges(self) -> list[tuple[str, str, int]]:
        """Imports of one file by another: importing place, imported place, and line.

        Imports in functions and under TYPE_CHECKING are included. Imports of a file by itself are
        not.
        """
        found = []
        for place, tree in self.trees.items():
            for line, names in imports_of(tree):
                known = [self.places[name] for name in names if name in self.places]
                if known and known[-1] != place:
                    found.append((place, known[-1], line))
        return list(dict.fromkeys(found))


def module_of(place: str) -> str:
    parts = ["gridcoll", *place.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield line and names of each import; for ``from a import b`` the names a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, (alias.name,)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, (module, f"{module}.{alias.name}")


def room_of(place: str) -> str:
    """Return the folder of the package that a file is in, or the file's name if it is in none."""
    return place.split("/")[0].removesuffix(".py")


def inner_room_of(place: str) -> str:
    """Return the same, but with the folders of `plan` and `comm` as rooms of their own."""
    if place in COMM_FRONT:
        return "comm, the front"
    parts = place.split("/")
    return ".".join(parts[:2]) if parts[0] in ("plan", "comm") and len(parts) > 2 else parts[0]


# The laws.


def stray_rooms(sources: Sources) -> list[str]:
    """Return folders that are not in `MAY_IMPORT`."""
    rooms = {room_of(place) for place in sources.trees if "/" in place}
    return sorted(rooms - MAY_IMPORT.keys())


def upward_imports(sources: Sources) -> list[str]:
    """Return imports that `MAY_IMPORT` does not allow."""
    allowed = {room: {room} | below | BASE for room, below in MAY_IMPORT.items()}
    allowed |= dict.fromkeys(BASE, BASE)
    allowed |= {"__init__": {"comm", "launch", "measure", "model"} | BASE, "__main__": {"cli"}}
    found = []
    for place, tree in sources.trees.items():
        for line, (module, *_) in imports_of(tree):
            if module.startswith("."):
                found.append(f"{place}:{line}: {module}: imports are absolute")
        if room_of(place) not in allowed:
            found.append(f"{place}: beside the rooms")
    for place, target, line in sources.edges:
        if room_of(target) not in allowed.get(room_of(place), set()):
            found.append(f"{place}:{line} imports {module_of(target)}")
    return found


def plans_that_know_collectives(sources: Sources) -> list[str]:
    """Return imports of a collective's folder by files directly in `plan`."""
    return [
        f"{place}:{line} imports {module_of(target)}"
        for place, target, line in sources.edges
        if inner_room_of(place) == "plan" and inner_room_of(target).startswith("plan.")
    ]


def room_circles(sources: Sources) -> list[str]:
    """Return rooms that import each other in a circle, with these imports."""
    pairs = [
        (inner_room_of(place), inner_room_of(target), f"{place}:{line} imports {module_of(target)}")
        for place, target, line in sources.edges
    ]
    found = []
    for circle in circles({(a, b) for a, b, _ in pairs if a != b}):
        imports = [said for a, b, said in pairs if a != b and {a, b} <= circle]
        found.append(f"{', '.join(sorted(circle))}: {'; '.join(imports)}")
    return found


def file_circles(sources: Sources) -> list[str]:
    """Return files that import each other in a circle."""
    pairs = {(place, target) for place, target, _ in sources.edges}
    return [", ".join(sorted(circle)) for circle in circles(pairs)]


def circles(pairs: set[tuple[str, str]]) -> list[set[str]]:
    """Return sets of names in which each name leads to all others."""
    after: dict[str, set[str]] = {}
    for a, b in pairs:
        after.setdefault(a, set()).add(b)
    reached = {name: _reach(after, name) for name in after}
    found: list[set[str]] = []
    for name, there in reached.items():
        if name in there and not any(name in circle for circle in found):
            found.append({other for other in there if name in reached.get(other, ())})
    return found


def _reach(after: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    new = set(after.get(start, ()))
    while new:
        seen |= new
        new = set().union(*(after.get(name, set()) for name in new)) - seen
    return seen


def forbidden_mpi_imports(sources: Sources) -> list[str]:
    """Return imports of mpi4py in files that must not import it."""
    return [
        f"{place}:{line} imports {names[0]}"
        for place, tree in sources.trees.items()
        if not any(place == known or place.startswith(f"{known}/") for known in MAY_IMPORT_MPI)
        for line, names in imports_of(tree)
        if names[0].split(".")[0] == "mpi4py"
    ]


def asserts_prints_and_exits(sources: Sources) -> list[str]:
    found = []
    for place, tree in sources.trees.items():
        if room_of(place) not in (*LIBRARY, *BASE, "__init__"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                found.append(f"{place}:{node.lineno}: assert")
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("print", "exit", "quit", "sys.exit", "os._exit"):
                    found.append(f"{place}:{node.lineno}: {called}")
    return found


def unseeded_randomness(sources: Sources) -> list[str]:
    """Return calls of a global random generator, and generators made without a seed."""
    generators = ("Generator", "SeedSequence", "PCG64", "Philox", "random.Random")
    found = []
    for place, tree in sources.trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called.endswith("default_rng"):
                if not node.args and not node.keywords:
                    found.append(f"{place}:{node.lineno}: {called}() without a seed")
            elif called.startswith(("np.random.", "numpy.random.", "random.")) and not (
                called.endswith(generators)
            ):
                found.append(f"{place}:{node.lineno}: {called}")
    return found


def dataclass_imports(sources: Sources) -> list[str]:
    """Return imports of dataclasses: each costs every start 1 to 2 ms, a struct 0.03."""
    return [
        f"{place}:{line}: use msgspec.Struct"
        for place, tree in sources.trees.items()
        for line, names in imports_of(tree)
        if names[0] == "dataclasses"
    ]


Law = Callable[[Sources], list[str]]
LAWS: tuple[Law, ...] = (
    stray_rooms,
    upward_imports,
    plans_that_know_collectives,
    room_circles,
    file_circles,
    forbidden_mpi_imports,
    asserts_prints_and_exits,
    unseeded_randomness,
    dataclass_imports,
)
by_name = partial(pytest.mark.parametrize, ids=lambda value: getattr(value, "__name__", ""))


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources.read(PACKAGE)


@by_name("law", LAWS)
def test_the_package_keeps(law: Law, sources: Sources) -> None:
    violations = law(sources)
    assert not violations, "\n".join(["", *violations])


def test_the_sources_are_all_there(sources: Sources) -> None:
    """A law proves nothing if it sees no files."""
    assert {room_of(place) for place in sources.trees} >= {*MAY_IMPORT, *BASE}
    assert ("plan/choose.py", "plan/registry.py") in {edge[:2] for edge in sources.edges}


BREAKS: tuple[tuple[Law, dict[str, str]], ...] = (
    (stray_rooms, {"attic/__init__.py": ""}),
    (upward_imports, {"model/a.py": "from gridcoll.plan import ops", "plan/ops.py": ""}),
    (upward_imports, {"measure/a.py": "import gridcoll.comm.b", "comm/b.py": ""}),
    (
        upward_imports,
        {"errors.py": "def f():\n  from gridcoll.topology.a import b", "topology/a.py": ""},
    ),
    (upward_imports, {"plan/a.py": "from . import ops", "plan/ops.py": ""}),
    (upward_imports, {"more.py": ""}),
    (
        plans_that_know_collectives,
        {"plan/a.py": "def f():\n  from gridcoll.plan.bcast import b", "plan/bcast/b.py": ""},
    ),
    (
        room_circles,
        {
            "plan/bcast/a.py": "from gridcoll.plan.gather.b import x",
            "plan/gather/b.py": "",
            "plan/gather/c.py": "if TYPE_CHECKING:\n  import gridcoll.plan.bcast.d",
            "plan/bcast/d.py": "",
        },
    ),
    (
        room_circles,
        {
            "comm/a.py": "from gridcoll.comm.methods.b import x",
            "comm/methods/b.py": "def f():\n  from gridcoll.comm import c",
            "comm/c.py": "",
        },
    ),
    (
        file_circles,
        {
            "plan/a.py": "from gridcoll.plan import b",
            "plan/b.py": "if TYPE_CHECKING:\n  from gridcoll.plan.c import x",
            "plan/c.py": "def f():\n  import gridcoll.plan.a",
        },
    ),
    (
        file_circles,
        {"cli/__init__.py": "from gridcoll.cli.a import x", "cli/a.py": "import gridcoll.cli"},
    ),
    (forbidden_mpi_imports, {"plan/a.py": "def f():\n  from mpi4py import MPI"}),
    (forbidden_mpi_imports, {"testbed/run.py": "import mpi4py.MPI"}),
    (asserts_prints_and_exits, {"comm/a.py": "assert x"}),
    (asserts_prints_and_exits, {"files.py": "print(1)"}),
    (asserts_prints_and_exits, {"measure/a.py": "def f():\n  sys.exit(1)"}),
    (unseeded_randomness, {"cli/a.py": "np.random.default_rng()"}),
    (unseeded_randomness, {"study/a.py": "numpy.random.shuffle(x)"}),
    (unseeded_randomness, {"bench/a.py": "random.random()"}),
    (dataclass_imports, {"plan/a.py": "from dataclasses import dataclass"}),
)


@by_name(("law", "texts"), BREAKS)
def test_a_source_that_breaks_a_law_is_seen(law: Law, texts: dict[str, str]) -> None:
    assert law(Sources.of(**texts))


KEEPS = {
    "__init__.py": "def f():\n  from gridcoll.comm import GridComm",
    "comm/__init__.py": "from gridcoll.comm.communicator import GridComm",
    "comm/communicator.py": "from gridcoll.comm.methods.a import A",
    "comm/methods/a.py": "from gridcoll.comm.context import Context\nfrom mpi4py import MPI",
    "comm/context.py": "from gridcoll.engine import run\nimport gridcoll.errors",
    "engine/__init__.py": "from gridcoll.engine.run import run",
    "engine/run.py": "",
    "plan/bcast/a.py": "from gridcoll.plan.gather.b import c\nrandom.Random(1)",
    "plan/gather/b.py": "from gridcoll.plan.ops import Op\nnp.random.default_rng(1)",
    "plan/ops.py": "from gridcoll.model import GridModel",
    "model/__init__.py": "",
    "errors.py": "raise SystemError",
    "cli/a.py": "print(1)",
}


@by_name("law", LAWS)
def test_sources_that_break_no_law_are_left_alone(law: Law) -> None:
    assert law(Sources.of(**KEEPS)) == []


def test_every_law_is_broken_by_something() -> None:
    assert {law for law, _ in BREAKS} == set(LAWS)


# What importing loads.


def loaded_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after ``code``."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=PACKAGE.parent,
    )
    return {name.split(".")[0] for name in run.stdout.split()}


def test_importing_gridcoll_starts_nothing() -> None:
    loaded = loaded_after("import gridcoll")
    assert "gridcoll" in loaded
    assert not loaded & {"mpi4py", "numpy", "click", "rich", "msgspec", "matplotlib"}


def test_pure_rooms_load_neither_mpi_nor_terminal(sources: Sources) -> None:
    modules = sorted(module_of(place) for place in sources.trees if room_of(place) in PURE)
    loaded = loaded_after("import " + ", ".join(modules))
    assert "gridcoll" in loaded
    assert not loaded & {"mpi4py", "click", "rich", "matplotlib", "pyroute2"}


def test_the_executor_needs_no_mpi() -> None:
    loaded = loaded_after("import gridcoll.engine.executor, gridcoll.engine.counting")
    assert "mpi4py" not in loaded


def test_the_command_line_starts_no_mpi() -> None:
    loaded = loaded_after("import gridcoll.cli")
    assert "mpi4py" not in loaded
    assert "rich" not in loaded


def test_what_is_loaded_is_seen() -> None:
    assert "mpi4py" in loaded_after("import mpi4py")


def listed_files(header: Path) -> list[str]:
    """Return the C files that the comment at the top of ``header`` lists, in its order."""
    return re.findall(r"^ \*   (\w+)\.c  ", header.read_text(), re.MULTILINE)


def upward_uses(header: Path, objects: Path) -> list[str]:
    """Return which C files beside ``header`` use names of files above them in its list.

    Files are compiled into the folder ``objects``.
    """
    folder, files = header.parent, listed_files(header)
    owner: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    for file in files:
        target = objects / f"{file}.o"
        subprocess.run(["gcc", "-c", str(folder / f"{file}.c"), "-o", str(target)], check=True)
        listed = subprocess.run(["nm", str(target)], capture_output=True, text=True, check=True)
        symbols = [line.split()[-2:] for line in listed.stdout.splitlines()]
        owner |= {name: file for kind, name in symbols if kind.isupper() and kind != "U"}
        needs[file] = [name for kind, name in symbols if kind == "U"]
    return [
        f"{file}.c: {name} of {owner[name]}.c"
        for at, file in enumerate(files)
        for name in needs[file]
        if owner.get(name) in files[:at]
    ]


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
def test_c_files_of_the_preloaded_library_use_only_those_below(tmp_path: Path) -> None:
    header = PACKAGE / "launch" / "preload" / "gridcoll.h"
    assert {*listed_files(header), "name"} == {path.stem for path in header.parent.glob("*.c")}
    assert upward_uses(header, tmp_path) == []


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
def test_c_files_that_use_one_above_are_seen(tmp_path: Path) -> None:
    header = tmp_path / "both.h"
    header.write_text("/*\n *   top.c  a\n *   bottom.c  b\n */\n")
    (tmp_path / "top.c").write_text("int low(void);\nint high(void) { return low(); }\n")
    (tmp_path / "bottom.c").write_text("int low(void) { return 1; }\n")
    assert upward_uses(header, tmp_path) == []
    (tmp_path / "bottom.c").write_text("int high(void);\nint low(void) { return high(); }\n")
    assert upward_uses(header, tmp_path) == ["bottom.c: high of top.c"]
