"""Make the deliberate faults of faults.toml, one after another, and check that each is caught.

    python tests/make_faults.py [--list] [--table] [--json] [NAME...]

Use the Python of an environment with MPICH. A fault is made in a copy of the tree and its tests run
there. Each test must fail, or end the job, as tests of hangs and crashes do. First, all of these
tests run without a fault; a test that fails then catches nothing. All faults together take a
quarter of an hour, so CI does not run them; `test_faults` only checks that they can still be made.
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
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import click
from msgspec import Struct

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests" / "faults.toml"
README = ROOT / "tests" / "README.md"
TABLE_HEAD = "| Fault | Made in | Caught by | Target |\n|---|---|---|---|\n"
N_RANKS = 4
TEST_TIMEOUT_S = 60
"""Timeout of one test."""

NOT_COPIED = (".git", ".venvs", "out", "dist", "__pycache__", "*_cache", ".hypothesis")


class FaultError(click.ClickException):
    """A fault that cannot be made, or tests that fail without one."""


class Fault(Struct, frozen=True):
    """A fault; see faults.toml."""

    name: str
    what: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def make(self, text: str) -> str:
        """Return ``text`` of the file with the fault. Raises `FaultError` if it cannot be made."""
        found = text.count(self.old)
        if found != 1:
            raise FaultError(f"{self.name}: its text stands {found} times in gridcoll/{self.file}")
        return text.replace(self.old, self.new)


def read_faults() -> list[Fault]:
    """Return all faults of faults.toml."""
    rows = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**row, "caught_by": tuple(row["caught_by"])}) for row in rows]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def target_of(test: str) -> str:
    """Return ``"test"`` if `make test` runs ``test``, or ``"long"`` if `make test-long` does.

    Raises `FaultError` if there is no such test.
    """
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
    """Return the table of README.md. Faults that differ only in their file share a row."""
    rows: dict[str, list[Fault]] = {}
    for fault in faults:
        rows.setdefault(fault.what, []).append(fault)
    lines = []
    for what, alike in rows.items():
        tests = list(dict.fromkeys(test for fault in alike for test in fault.caught_by))
        files = ", ".join(dict.fromkeys(f"`{fault.file}`" for fault in alike))
        caught_by = ", ".join(f"`{short_name(test)}`" for test in tests)
        targets = sorted({target_of(test) for test in tests}, reverse=True)
        in_targets = ", ".join(f"`{each}`" for each in targets)
        lines.append(f"| {what} | {files} | {caught_by} | {in_targets} |\n")
    return TABLE_HEAD + "".join(lines)


def short_name(test: str) -> str:
    return re.sub(r"\.py(?=::|$)", "", test.removeprefix("tests/mpi/"))


def table_in(readme: str) -> str:
    """Return the table in the text ``readme``."""
    start = readme.index(TABLE_HEAD)
    rows = re.match(r"(?:\|.*\n)+", readme[start:])
    return rows.group() if rows else ""


@contextlib.contextmanager
def copy_of_tree() -> Iterator[Path]:
    """Yield a copy of the tree that uses the environments of this one."""
    with tempfile.TemporaryDirectory(prefix="gridcoll-faults-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_COPIED))
        venv, copied = ROOT / ".venvs" / "mpich", tree / ".venvs" / "mpich"
        copied.mkdir(parents=True)
        for each in venv.iterdir():
            if each.name != "tally":  # each run of `make test-mpi` writes its own
                (copied / each.name).symlink_to(each)
        yield tree


def _build_hook(tree: Path) -> ModuleType:
    """Return the module of the build hook of ``tree``, without importing hatchling."""
    name = "hatchling.builders.hooks.plugin.interface"
    interface: Any = ModuleType(name)
    interface.BuildHookInterface = list  # any class that takes a type argument
    parts = {name.rsplit(".", n)[0]: ModuleType("") for n in range(1, 5)}
    spec = importlib.util.spec_from_file_location("build_hook", tree / ".ci" / "build_hook.py")
    if spec is None or spec.loader is None:
        raise FaultError("no build hook")
    hook = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {**parts, name: interface}):
        spec.loader.exec_module(hook)
    return hook


def compile_again(tree: Path, file: str) -> None:
    """Compile the library that has the source or header ``file`` again."""
    hook = _build_hook(tree)
    folder = str(Path(file).parent)
    library = next(
        name
        for name, sources in hook.LIBRARIES.items()
        if file in sources or (file.endswith(".h") and sources[0].startswith(f"{folder}/"))
    )
    compiler = hook.find_compiler()
    if compiler is None or not hook.build(compiler, library):
        raise FaultError(f"{library}: cannot be compiled")


def run_tests(tree: Path, tests: Sequence[str]) -> str:
    """Run ``tests``, of which all or none need mpiexec.

    Returns the output of pytest, or "" if all tests pass.
    """
    options = ["-rfE", f"--timeout={TEST_TIMEOUT_S}", *tests]
    if tests[0].startswith("tests/mpi/"):
        command = [
            *("make", "-s", "test-mpi", "-o", ".venvs/mpich/.stamp"),
            *("MPI=mpich", f"RANKS={N_RANKS}", f"MPI_TESTS={' '.join(options)}"),
        ]
    else:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    # There is no need to wait long for other ranks after one has failed.
    env = {**os.environ, "PYTHONPATH": str(tree), "GRIDCOLL_TEST_PATIENCE_S": "5"}
    done = subprocess.run(
        command, cwd=tree, env=env, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout if done.returncode else ""


def verdict(output: str, test: str) -> str:
    """Return how ``test`` caught a fault, given pytest's output of it alone; "" if it did not."""
    end = r"(?=[ [:]|$)" if "::" in test else "::"  # a file that cannot be imported does not count
    if re.search(rf"^(FAILED|ERROR) {re.escape(test)}{end}", output, re.MULTILINE):
        return "failed"
    is_over = re.search(
        r"\d (passed|failed|error)|no tests ran|error collecting|^usage", output, re.M
    )
    return "ended the job" if output and not is_over else ""


def make(tree: Path, fault: Fault) -> dict[str, str]:
    """Make ``fault`` in ``tree``, run its tests, and undo it. Return the verdict of each test."""
    path = tree / "gridcoll" / fault.file
    text = path.read_text(encoding="utf-8")
    path.write_text(fault.make(text), encoding="utf-8")
    in_c = path.suffix in {".c", ".h"}
    try:
        if in_c:
            compile_again(tree, fault.file)
        return {test: verdict(run_tests(tree, [test]), test) for test in fault.caught_by}
    finally:
        path.write_text(text, encoding="utf-8")
        if in_c:
            compile_again(tree, fault.file)


def failing_without(tree: Path, faults: Sequence[Fault]) -> set[str]:
    """Return the tests of ``faults`` that fail in ``tree`` without a fault."""
    tests = list(dict.fromkeys(test for fault in faults for test in fault.caught_by))
    failing = set()
    for by_mpi in (False, True):
        selected = [test for test in tests if test.startswith("tests/mpi/") == by_mpi]
        if selected and (output := run_tests(tree, selected)):
            found = {test for test in selected if verdict(output, test)}
            if not found or found == {*selected}:
                raise FaultError(f"{output[-4000:]}\nTests fail without a fault.")
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
                    click.echo(f"{fault.name:28} {how or 'NOT CAUGHT':14} {short_name(test)}")
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
