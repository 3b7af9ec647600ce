"""Compile the C sources when gridcoll is built or installed.

Without a C compiler, Python code does the work of the engine and of the relay, programs that are
not Python run without gridcoll, and the wheel fits every machine. The named grids, which are beside
the package in the source tree, are inside the package in a wheel.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).parents[1] / "gridcoll"
PRELOAD = ("calls.c", "interpreter.c", "known.c", "counts.c", "natives.c")
LIBRARIES = {
    "engine/_compiled.so": ("engine/compiled.c",),
    "plan/_walk.so": ("plan/walk.c",),
    "testbed/_relay.so": ("testbed/relay.c",),
    "launch/preload/libgridcoll.so": tuple(f"launch/preload/{name}" for name in PRELOAD),
    "launch/preload/libmpi-name.so": ("launch/preload/name.c",),
}
OWN_OPTIONS = {
    "launch/preload/libmpi-name.so": ("-Wl,-soname,libmpi.so.12",),
    # Times must be equal to the last bit on all ranks, whatever their machines can do at once.
    "plan/_walk.so": ("-ffp-contract=off", "-lm"),
}
MACHINES = {62: "x86_64", 183: "aarch64"}
"""Names of machines, by their number in the header of an ELF file."""
OLDEST_GLIBC = (2, 17)
"""The oldest glibc in the tag of a wheel, one that package indexes accept."""
OPTIONS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC")


class CompilerHook(BuildHookInterface[Any]):  # type: ignore[misc]
    """Adds the libraries to the wheel. Its tag then names a machine, but no Python version."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries, before a wheel is written and before an editable install."""
        if version != "editable":
            build_data["force_include"]["hostfiles"] = "gridcoll/hostfiles"
        if os.environ.get("GRIDCOLL_BUILD") == "pure":
            return
        compiler = find_compiler()
        if compiler is None or not all(build(compiler, library) for library in LIBRARIES):
            for library in LIBRARIES:  # these may be of another version
                (PACKAGE / library).unlink(missing_ok=True)
            self.app.display_warning(
                "gridcoll: no C compiler that works; Python does it all, and only for Python"
            )
            return
        machine = platform_tag(libraries_in(PACKAGE))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{machine}"
        root = Path(self.root)
        build_data["artifacts"] += [str((PACKAGE / each).relative_to(root)) for each in LIBRARIES]


def libraries_in(package: Path) -> list[Path]:
    """Return the compiled libraries in ``package``."""
    return [
        path
        for folder in ("engine", "plan", "testbed", "launch")
        for path in sorted((package / folder).rglob("*.so"))
    ]


def platform_tag(libraries: list[Path]) -> str:
    """Return the platform tag of a wheel with ``libraries``, as ``manylinux_2_17_x86_64``.

    The libraries need no Python and no MPI, but a machine and a C library: the machine for which
    they were compiled, and the newest version of glibc that one of their symbols needs. Without
    glibc, or for a machine that is not in `MACHINES`, the tag is that of this system.
    """
    data = [path.read_bytes() for path in libraries]
    machines = {MACHINES.get(int.from_bytes(library[18:20], "little")) for library in data}
    versions = {
        (int(major), int(minor))
        for library in data
        for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library)
    }
    machine = machines.pop() if len(machines) == 1 else None
    if machine is None or not versions:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    major, minor = max(*versions, OLDEST_GLIBC)
    return f"manylinux_{major}_{minor}_{machine}"


def find_compiler() -> list[str] | None:
    """Return ``$CC`` or, if it is not set, the first compiler found. None if there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    return None


def build(compiler: list[str], name: str) -> bool:
    """Compile the library ``name``, and return whether this succeeded.

    The file is replaced, so that a process that uses the old library keeps it.
    """
    library = PACKAGE / name
    sources = [str(PACKAGE / source) for source in LIBRARIES[name]]
    new = library.with_suffix(f".{os.getpid()}")
    own = OWN_OPTIONS.get(name, ())
    command = [*compiler, *OPTIONS, *sources, "-ldl", "-lpthread", *own, "-o", str(new)]
    done = subprocess.run(command, check=False)
    if done.returncode == 0:
        new.replace(library)
    return done.returncode == 0
