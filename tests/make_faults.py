"""Make the deliberate faults of faults.toml, one after another, and see that each is caught.

    python tests/make_faults.py [--list] [--table] [--json] [NAME...]

by the Python of an environment with MPICH. A fault is made in a copy of the tree, its tests run
there, and each must fail: or end the job, as tests of what hangs or crashes do. All of these tests
are run without a fault first; one that fails then catches nothing. All faults take a quarter of
an hour, so they are no part of CI; `test_faults` only looks whether they can still be made.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import click

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests" / "faults.toml"
README = ROOT / "tests" / "README.md"
TABLE_HEAD = "| Fault | Made in | Caught by | Target |\n|---|---|---|---|\n"
N_RANKS = 4
LIMIT_S = 60
"""Of one test."""

LEFT_OUT = (".git", ".venvs", "out", "dist", "__pycache__", "*_cache", ".hypothesis")


class FaultError(click.ClickException):
    """A fault that cannot be made, or tests that fail without one."""


@dataclass(frozen=True)
class Fault:
    """A fault; see faults.toml."""

    name: str
    what: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def make(self, text: str) -> str:
        """``text`` of the file, with the fault."""
        found = text.count(self.old)
        if found != 1:
            raise FaultError(f"{self.name}: its text stands {found} times in gridcoll/{self.file}")
        return text.replace(self.old, self.new)


def read_faults() -> list[Fault]:
    """All of them."""
    rows = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**row, "caught_by": tuple(row["caught_by"])}) for row in rows]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def target_of(test: str) -> str:
    """Which of `make test` and `make test-long` has a test. Raises `FaultError` if none."""
    file, *names = test.split("::")
    path = ROOT / file
    if not path.exists():
        raise FaultError(f"{file}: there is no such file")
    body = _tree(path).body
    marks = [ast.unparse(each) for each in body if isinstance(each, ast.Assign)]
    marks = [each for each in marks if each.startswith("pytestmark")]
    for name in names:
        found = [
            each
            for each in body
            if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name
        ]
        if not found:
            raise FaultError(f"{test}: there is no such test")
        marks += map(ast.unparse, found[0].decorator_list)
        body = found[0].body
    is_long = any("mark.long" in each for each in marks) or file.startswith("tests/testbed/")
    return "long" if is_long else "test"


def table(faults: Sequence[Fault]) -> str:
    """As README.md has it: faults that differ by file only are one row."""
    rows: dict[str, list[Fault]] = {}
    for fault in faults:
        rows.setdefault(fault.what, []).append(fault)
    lines = []
    for what, alike in rows.items():
        tests = list(dict.fromkeys(test for fault in alike for test in fault.caught_by))
        files = ", ".join(dict.fromkeys(f"`{fault.file}`" for fault in alike))
        caught_by = ", ".join(f"`{_short(test)}`" for test in tests)
        targets = sorted({target_of(test) for test in tests}, reverse=True)
        in_targets = ", ".join(f"`{each}`" for each in targets)
        lines.append(f"| {what} | {files} | {caught_by} | {in_targets} |\n")
    return TABLE_HEAD + "".join(lines)


def _short(test: str) -> str:
    return re.sub(r"\.py(?=::|$)", "", test.removeprefix("tests/mpi/"))


def table_in(readme: str) -> str:
    """The table that ``readme`` has."""
    start = readme.index(TABLE_HEAD)
    rows = re.match(r"(?:\|.*\n)+", readme[start:])
    return rows.group() if rows else ""


@contextlib.contextmanager
def copy_of_tree() -> Iterator[Path]:
    """A copy of the tree with the environments of this one."""
    with tempfile.TemporaryDirectory(prefix="gridcoll-faults-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
        venv, copied = ROOT / ".venvs" / "mpich", tree / ".venvs" / "mpich"
        copied.mkdir(parents=True)
        for each in venv.iterdir():
            if each.name != "tally":  # each run of `make test-mpi` writes its own
                (copied / each.name).symlink_to(each)
        yield tree


def _build_hook(tree: Path) -> ModuleType:
    """The build hook of ``tree``; hatchling, which calls it elsewhere, need not be there."""
    name = "hatchling.builders.hooks.plugin.interface"
    interface: Any = ModuleType(name)
    interface.BuildHookInterface = list  # anything that takes a type
    parts = {name.rsplit(".", n)[0]: ModuleType("") for n in range(1, 5)}
    spec = importlib.util.spec_from_file_location("build_hook", tree / ".ci" / "build_hook.py")
    if spec is None or spec.loader is None:
        raise FaultError("no build hook")
    hook = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {**parts, name: interface}):
        spec.loader.exec_module(hook)
    return hook


def compile_engine(tree: Path) -> None:
    """Build the engine in C anew."""
    hook = _build_hook(tree)
    compiler = hook.find_compiler()
    if compiler is None or not hook.build(compiler, "engine/_compiled.so"):
        raise FaultError("engine/compiled.c: cannot be compiled")


def run_tests(tree: Path, tests: Sequence[str]) -> str:
    """What pytest says of ``tests``, all under mpiexec or none; "" if all pass."""
    options = ["-rfE", f"--timeout={LIMIT_S}", *tests]
    if tests[0].startswith("tests/mpi/"):
        command = [
            *("make", "-s", "test-mpi", "-o", ".venvs/mpich/.stamp"),
            *("MPI=mpich", f"RANKS={N_RANKS}", f"MPI_TESTS={' '.join(options)}"),
        ]
    else:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    # Patience with ranks that hang after another has failed is not needed here.
    env = {**os.environ, "PYTHONPATH": str(tree), "GRIDCOLL_TEST_PATIENCE_S": "5"}
    done = subprocess.run(
        command, cwd=tree, env=env, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout if done.returncode else ""


def verdict(said: str, test: str) -> str:
    """How ``test`` caught a fault, given what pytest said of it alone; "" if it did not."""
    end = r"(?=[ [:]|$)" if "::" in test else "::"  # not a file that cannot be imported
    if re.search(rf"^(FAILED|ERROR) {re.escape(test)}{end}", said, re.MULTILINE):
        return "failed"
    is_over = re.search(
        r"\d (passed|failed|error)|no tests ran|error collecting|^usage", said, re.M
    )
    return "ended the job" if said and not is_over else ""


def make(tree: Path, fault: Fault) -> dict[str, str]:
    """Make ``fault`` in ``tree``, run its tests, and undo it; the verdict of each test."""
    path = tree / "gridcoll" / fault.file
    text = path.read_text(encoding="utf-8")
    path.write_text(fault.make(text), encoding="utf-8")
    in_c = path.suffix == ".c"
    try:
        if in_c:
            compile_engine(tree)
        return {test: verdict(run_tests(tree, [test]), test) for test in fault.caught_by}
    finally:
        path.write_text(text, encoding="utf-8")
        if in_c:
            compile_engine(tree)


def failing_without(tree: Path, faults: Sequence[Fault]) -> set[str]:
    """The tests of ``faults`` that fail as it is."""
    tests = list(dict.fromkeys(test for fault in faults for test in fault.caught_by))
    failing = set()
    for by_mpi in (False, True):
        some = [test for test in tests if test.startswith("tests/mpi/") == by_mpi]
        if some and (said := run_tests(tree, some)):
            found = {test for test in some if verdict(said, test)}
            if not found or found == {*some}:
                raise FaultError(f"{said[-4000:]}\nTests fail without a fault.")
            failing |= found
    return failing


@click.command(help=__doc__.splitlines()[0])
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "only_list", is_flag=True, help="Print names, and make nothing.")
@click.option("--table", "only_table", is_flag=True, help="Write the table of tests/README.md.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def main(names: Sequence[str], only_list: bool, only_table: bool, as_json: bool) -> None:
    """Make the faults ``names``, or all."""
    faults = read_faults()
    unknown = set(names) - {fault.name for fault in faults}
    if unknown:
        raise FaultError(f"unknown: {', '.join(sorted(unknown))}; see --list")
    if only_list:
        for fault in faults:
            click.echo(f"{fault.name:28} {fault.what}")
        return
    if only_table:
        text = README.read_text(encoding="utf-8")
        README.write_text(text.replace(table_in(text), table(faults)), encoding="utf-8")
        return
    wanted = [fault for fault in faults if not names or fault.name in names]
    rows = []
    with copy_of_tree() as tree:
        failing = failing_without(tree, wanted)
        for fault in wanted:
            if failing.isdisjoint(fault.caught_by):
                verdicts = make(tree, fault)
            else:
                verdicts = dict.fromkeys(fault.caught_by, "")
            rows.append({"fault": fault.name, "file": fault.file, "tests": verdicts})
            if not as_json:
                for test, how in verdicts.items():
                    click.echo(f"{fault.name:28} {how or 'NOT CAUGHT':14} {_short(test)}")
    for test in sorted(failing):
        click.echo(f"fails without a fault: {test}", err=True)
    n_caught = sum(all(row["tests"].values()) for row in rows)  # type: ignore[attr-defined]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        click.echo(f"{n_caught} of {len(rows)} faults are caught")
    sys.exit(n_caught < len(rows))


if __name__ == "__main__":
    main()
