"""Tests of the build hook, called as hatchling calls it. hatchling itself is not needed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

BUILD = Path(__file__).parents[1] / ".ci" / "build_hook.py"
LIBRARIES = (
    "gridcoll/engine/_compiled.so",
    "gridcoll/plan/_walk.so",
    "gridcoll/testbed/_relay.so",
    "gridcoll/launch/preload/libgridcoll.so",
    "gridcoll/launch/preload/libmpi-name.so",
)
PRELOAD = ("calls", "interpreter", "known", "counts", "natives", "name")
T = TypeVar("T")


class Interface(Generic[T]):
    """The part of hatchling's base class that the hook uses."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.warnings: list[str] = []
        self.app = SimpleNamespace(display_warning=self.warnings.append)


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook in a source tree of its own, which has libraries of another version."""
    package = tmp_path / "gridcoll"
    preload = (f"launch/preload/{name}.c" for name in PRELOAD)
    for source in ("engine/compiled.c", "plan/walk.c", "testbed/relay.c", *preload):
        (package / source).parent.mkdir(parents=True, exist_ok=True)
        (package / source).write_text("int nothing;\n")
    for library in LIBRARIES:
        (tmp_path / library).write_text("stale")
    (tmp_path / ".ci").mkdir()
    copied = shutil.copy(BUILD, tmp_path / ".ci")
    name = "hatchling.builders.hooks.plugin.interface"
    for part in (name.rsplit(".", n)[0] for n in range(4, 0, -1)):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    interface = ModuleType(name)
    interface.BuildHookInterface = Interface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, interface)
    spec = importlib.util.spec_from_file_location("built", copied)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CompilerHook(tmp_path)


def compiler(directory: Path, script: str) -> str:
    """Return the path of a compiler that runs ``script``; ``$output`` is its last argument."""
    path = directory / "compiler"
    path.write_text(f"#!/bin/sh\nfor output; do :; done\n{script}\n")
    path.chmod(0o755)
    return str(path)


def built(hook: Any, version: str = "standard") -> dict[str, Any]:
    build_data: dict[str, Any] = {"force_include": {}, "artifacts": []}
    hook.initialize(version, build_data)
    return build_data


def test_libraries_are_in_the_wheel(hook, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, 'echo new >"$output"'))
    data = built(hook)
    assert data["artifacts"] == list(LIBRARIES)
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-")
    assert {(tmp_path / library).read_text() for library in LIBRARIES} == {"new\n"}
    assert not hook.warnings


def test_the_pure_wheel_compiles_nothing(hook, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, 'echo new >"$output"'))
    monkeypatch.setenv("GRIDCOLL_BUILD", "pure")
    data = built(hook)
    assert data == {"force_include": {"hostfiles": "gridcoll/hostfiles"}, "artifacts": []}


def library(machine: int, *versions: str) -> bytes:
    """Return the part of a compiled library that the hook reads."""
    header = b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")
    return header + b"".join(b"\0GLIBC_" + version.encode() for version in versions)


@pytest.mark.parametrize(
    ("libraries", "tag"),
    [
        ([library(62, "2.2.5", "2.17")], "manylinux_2_17_x86_64"),
        ([library(62, "2.2.5")], "manylinux_2_17_x86_64"),
        ([library(183, "2.17"), library(183, "2.34", "2.4")], "manylinux_2_34_aarch64"),
        ([library(62)], None),  # another C library
        ([library(62, "2.17"), library(183, "2.17")], None),
        ([library(243, "2.27")], None),
    ],
)
def test_the_tag_says_what_libraries_need(hook, tmp_path, libraries, tag) -> None:
    paths = [tmp_path / str(number) for number in range(len(libraries))]
    for path, data in zip(paths, libraries, strict=True):
        path.write_bytes(data)
    said = type(hook).initialize.__globals__["platform_tag"](paths)
    assert said == tag if tag else said.startswith("linux_")


@pytest.mark.parametrize(
    "script",
    ["exit 1", 'case $output in *relay*) exit 1;; *) echo new >"$output";; esac', None],
    ids=["fails", "fails at the second", "is not there"],
)
def test_without_a_compiler_that_works_nothing_stale_stays(
    hook, tmp_path, monkeypatch, script
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler" if script is None else compiler(tmp_path, script))
    data = built(hook)
    assert not [library for library in LIBRARIES if (tmp_path / library).exists()]
    assert data == {"force_include": {"hostfiles": "gridcoll/hostfiles"}, "artifacts": []}
    assert len(hook.warnings) == 1


@pytest.mark.parametrize(
    ("version", "included"), [("standard", {"hostfiles": "gridcoll/hostfiles"}), ("editable", {})]
)
def test_named_grids_are_in_the_wheel(hook, monkeypatch, version, included) -> None:
    """An editable install uses those beside the package in the source tree."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert built(hook, version)["force_include"] == included
