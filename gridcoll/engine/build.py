"""Builds compiled.c when gridcoll is built or installed; not part of what is installed.

Without a C compiler there is one engine less, and the wheel fits every machine.
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

FOLDER = Path(__file__).parent
SOURCE, LIBRARY = FOLDER / "compiled.c", FOLDER / "_compiled.so"
OPTIONS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC")


class EngineHook(BuildHookInterface[Any]):  # type: ignore[misc]
    """Adds the library to the wheel, whose tag then names a machine, but no Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is written, and before an editable install."""
        compiler = find_compiler()
        if compiler is None or not compile_engine(compiler):
            self.app.display_warning("gridcoll: no C compiler that works; plans run in Python")
            return
        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{machine}"
        build_data["artifacts"].append(str(LIBRARY.relative_to(self.root)))


def find_compiler() -> list[str] | None:
    """``$CC``, or the first that is there."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    return None


def compile_engine(compiler: list[str]) -> bool:
    """Whether `LIBRARY` was made anew; one that is in use somewhere stays as it is there."""
    new = LIBRARY.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*compiler, *OPTIONS, str(SOURCE), "-o", str(new)], check=False)
    if done.returncode == 0:
        new.replace(LIBRARY)
    return done.returncode == 0
