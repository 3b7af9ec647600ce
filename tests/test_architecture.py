"""Layering is law, and here it says so. Read the rooms in this order; none knows a later one."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gridcoll

PACKAGE = Path(gridcoll.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# What a room may import, besides itself.
BASE = {"errors", "files", "variables", "pictures"}
MAY_IMPORT = {
    "topology": set(),
    "model": {"topology"},
    "schedule": set(),
    "plan": {"topology", "model", "schedule"},
    "engine": {"topology", "model", "schedule", "plan"},
    "comm": {"topology", "model", "schedule", "plan", "engine"},
    "placement": {"topology", "model"},
    "study": {"topology", "model", "schedule", "placement"},
    "testbed": {"topology"},
    "cli": {
        *("topology", "model", "schedule", "plan", "engine", "comm"),
        *("placement", "study", "testbed"),
    },
}
PURE = ("topology", "model", "schedule", "plan", "placement")
"""Rooms that run anywhere: no MPI, no terminal."""

LIBRARY = (*PURE, "engine", "comm")
"""Rooms that applications call: they raise, and neither print nor exit."""

KNOW_MPI = ("engine", "comm", "cli", "testbed/pingpong.py")

LONGEST_FUNCTION = 64
LONGEST_MODULE = 350


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all modules imported, in functions and under TYPE_CHECKING, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_every_room_has_its_place() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rooms_import_what_stands_before_them(path: Path) -> None:
    room = room_of(path)
    if room not in MAY_IMPORT:  # errors.py and the like; __init__ hands GridComm out when asked
        allowed = {"__init__.py": {"comm"}, "__main__.py": {"cli"}}.get(room, BASE)
    else:
        allowed = {room} | MAY_IMPORT[room] | BASE
    for module in imports_of(parse(path)):
        assert not module.startswith("."), f"{module}: imports are absolute"
        parts = module.split(".")
        if parts[0] == "gridcoll" and len(parts) > 1:
            assert parts[1] in allowed, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_engine_and_comm_know_mpi(path: Path) -> None:
    name = name_of(path)
    if not any(name == known or name.startswith(f"{known}/") for known in KNOW_MPI):
        knows = [m for m in imports_of(parse(path)) if m.split(".")[0] == "mpi4py"]
        assert not knows, f"{name} imports {knows}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if room_of(path) in LIBRARY or path.parent == PACKAGE],
    ids=name_of,
)  # fmt: skip
def test_the_library_neither_asserts_prints_nor_exits(path: Path) -> None:
    for node in ast.walk(parse(path)):
        place = f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
        assert not isinstance(node, ast.Assert), f"{place}: assert"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "exit", "quit", "sys.exit", "os._exit"), (
                f"{place}: {called}"
            )


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_are_read_in_one_sitting(path: Path) -> None:
    n_lines = path.read_text(encoding="utf-8").count("\n")
    assert n_lines <= LONGEST_MODULE
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert code_lines(node) <= LONGEST_FUNCTION, f"{node.name}: {code_lines(node)} lines"


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of ``function`` without its docstring."""
    first = function.body[0]
    n_lines = (function.end_lineno or 0) - function.lineno + 1
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        n_lines -= (first.end_lineno or 0) - first.lineno + 1
    return n_lines


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_is_random_without_a_seed(path: Path) -> None:
    """Law 9: no global generator, and none that seeds itself."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            place = f"{name_of(path)}:{node.lineno}"
            if called.endswith("default_rng"):
                assert node.args or node.keywords, f"{place}: {called}() without a seed"
            elif called.startswith(("np.random.", "numpy.random.", "random.")):
                generators = ("Generator", "SeedSequence", "PCG64", "Philox", "random.Random")
                assert called.endswith(generators), f"{place}: {called}"


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after ``code``."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {name.split(".")[0] for name in run.stdout.split()}


def test_importing_gridcoll_starts_nothing() -> None:
    loaded = loaded_after("import gridcoll")
    assert "gridcoll" in loaded
    assert not loaded & {"mpi4py", "numpy", "click", "rich", "msgspec", "matplotlib"}


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_load_neither_mpi_nor_terminal(room: str) -> None:
    modules = sorted(
        name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in MODULES
        if room_of(path) == room
    )
    loaded = loaded_after("import " + ", ".join(f"gridcoll.{module}" for module in modules))
    assert "gridcoll" in loaded
    assert not loaded & {"mpi4py", "click", "rich", "matplotlib", "pyroute2"}


def test_the_executor_and_the_reference_runner_need_no_mpi() -> None:
    loaded = loaded_after("import gridcoll.engine.executor, gridcoll.engine.reference")
    assert "mpi4py" not in loaded


def test_the_command_line_starts_no_mpi() -> None:
    loaded = loaded_after("import gridcoll.cli")
    assert "mpi4py" not in loaded
    assert "rich" not in loaded
