"""Builds what is in C when gridcoll is built or installed.

Each file has a counterpart in Python, which runs where there is no C compiler; the wheel then fits
every machine. The named grids, which are beside the package here, are inside it where that is
installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).parents[1] / "gridcoll"
SOURCES = ("engine/compiled.c", "testbed/relay.c")
OPTIONS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC")


class CompilerHook(BuildHookInterface[Any]):  # type: ignore[misc]
    """Adds the libraries to the wheel, whose tag then names a machine, but no Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is written, and before an editable install."""
        if version != "editable":
            build_data["force_include"]["hostfiles"] = "gridcoll/hostfiles"
        compiler = find_compiler()
        sources = [PACKAGE / source for source in SOURCES]
        if compiler is None or not all(build(compiler, source) for source in sources):
            for source in sources:  # of another version, perhaps
                library_of(source).unlink(missing_ok=True)
            self.app.display_warning("gridcoll: no C compiler that works; Python does it all")
            return
        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{machine}"
        root = Path(self.root)
        build_data["artifacts"] += [str(library_of(s).relative_to(root)) for s in sources]


def find_compiler() -> list[str] | None:
    """``$CC``, or the first that is there."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    return None


def library_of(source: Path) -> Path:
    """Where ``source`` goes: ``relay.c`` to ``_relay.so`` beside it."""
    return source.with_name(f"_{source.stem}.so")


def build(compiler: list[str], source: Path) -> bool:
    """Whether it was made anew; a library that is in use somewhere stays as it is there."""
    library = library_of(source)
    new = library.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*compiler, *OPTIONS, str(source), "-o", str(new)], check=False)
    if done.returncode == 0:
        new.replace(library)
    return done.returncode == 0
