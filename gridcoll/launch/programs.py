"""Start programs that are not Python, with libgridcoll.so preloaded before their MPI library.

This module needs neither MPI nor NumPy.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import struct
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gridcoll.errors import UsageError
from gridcoll.launch.preload import LIBRARY

_ELF = b"\x7fELF"
_PT_INTERP = 3
_SHT_SYMTAB = 2


def mpi_variables() -> dict[str, str]:
    """Return environment variables for MPI libraries, to be set unless the user has set them.

    They keep connections over long links alive.
    """
    transports = os.environ.get("UCX_TLS", "all")
    named = not {"all", "tcp"}.isdisjoint(transports.removeprefix("^").split(","))
    devices = os.environ.get("UCX_NET_DEVICES", "all").split(",")
    has_tcp = named != transports.startswith("^") and not all(":" in each for each in devices)
    # Without this, UCX in MPICH closes a connection that is idle while its link is interrupted for
    # 16 to 26 s: eight probes, 2 s apart, start within 10 s. A process that then sends there is
    # killed by a signal. A UCX without TCP, or with only devices such as mlx5_0:1, warns on all
    # ranks about a variable that it does not use.
    return {"UCX_TCP_KEEPIDLE": "inf"} if has_tcp else {}


_NOT_FIRST = "verify_asan_link_order=0"
"""Option of AddressSanitizer that accepts libraries before its own."""

_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


def find_program(name: str) -> Path | None:
    """Return the file of ``name``, here or on the PATH, if it is a program that is not Python.

    None for Python programs, and if there is no such program.
    """
    path = Path(name)
    if not path.exists():
        found = None if "/" in name else shutil.which(name)
        if found is None:
            return None
        path = Path(found)
    if path.is_dir() or not os.access(path, os.X_OK):
        return None
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return None
    if first.startswith(_ELF):
        return path
    return path if first.startswith(b"#!") and b"python" not in first else None


def preload_problem(path: Path) -> str:
    """Return why no library can be preloaded into this program; empty if one can."""
    if not LIBRARY.exists():
        return f"{LIBRARY.name} was not built: gridcoll was installed without a C compiler"
    if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        return f"{path} is a set-uid program, which takes no preloaded library"
    if _is_static(path):
        return f"{path} is statically linked, which takes no preloaded library"
    if _has_own_mpi(path):
        return f"{path} has its MPI library inside, in front of which nothing can be put"
    return ""


def _byte_order(head: bytes) -> str:
    """Return the byte order of a 64-bit program, as in `struct` formats; "" for other files.

    ``head`` is the beginning of the file.
    """
    if not head.startswith(_ELF) or len(head) < 64 or head[4] != 2:
        return ""
    return "<" if head[5] == 1 else ">"


def _is_static(path: Path) -> bool:
    """Whether ``path`` is an ELF program that is started without a dynamic linker."""
    with path.open("rb") as file:
        head = file.read(64)
        if not (order := _byte_order(head)):
            return False
        (at,) = struct.unpack_from(f"{order}Q", head, 32)
        size, n = struct.unpack_from(f"{order}HH", head, 54)
        file.seek(at)
        table = file.read(size * n)
    kinds = [struct.unpack_from(f"{order}I", table, size * k)[0] for k in range(n)]
    return _PT_INTERP not in kinds


def _has_own_mpi(path: Path) -> bool:
    """Whether an MPI library is linked into the program. Unknown for stripped ones: then False."""
    with path.open("rb") as file:
        head = file.read(64)
        if not (order := _byte_order(head)):
            return False
        (at,) = struct.unpack_from(f"{order}Q", head, 40)
        size, n = struct.unpack_from(f"{order}HH", head, 58)

        def read_at(start: int, length: int) -> bytes:
            file.seek(start)
            return file.read(length)

        headers = [read_at(at + k * size, size) for k in range(n)]
        sections = [struct.unpack_from(f"{order}IIQQQQI", each) for each in headers]
        for _, kind, _, _, start, length, names_at in sections:
            if kind != _SHT_SYMTAB:
                continue
            *_, names_start, names_length, _ = sections[names_at]
            name = read_at(names_start, names_length).find(b"\0PMPI_Init\0") + 1
            symbols = struct.iter_unpack(f"{order}IBBHQQ", read_at(start, length))
            if name and any(each[0] == name and each[3] for each in symbols):
                return True
    return False


def find_libpython() -> Path:
    """Return the shared library of this Python. Raises `UsageError` if it has none."""
    names = sysconfig.get_config_vars()
    name = names.get("INSTSONAME") or names.get("LDLIBRARY") or ""
    if ".so" in name:
        for folder in (names.get("LIBDIR"), f"{names.get('LIBDIR')}/{names.get('MULTIARCH')}"):
            if folder and (path := Path(folder) / name).exists():
                return path
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    for path in (Path(line.split()[-1]) for line in lines if "libpython" in line):
        if path.exists():
            return path
    raise UsageError(
        f"{sys.executable}: this Python has no shared library, which programs that are not Python "
        "need; take one that was built with --enable-shared, as distributions' and conda's are"
    )


def preload_settings() -> dict[str, str]:
    """Return the environment variables that a program needs. Raises `UsageError`."""
    if not LIBRARY.exists():
        raise UsageError(
            f"{LIBRARY.name} was not built: gridcoll was installed without a C compiler; install "
            "one, then gridcoll again"
        )
    others = [each for each in os.environ.get("LD_PRELOAD", "").split(":") if each != str(LIBRARY)]
    return {
        **{name: os.environ.get(name, value) for name, value in mpi_variables().items()},
        # Programs with AddressSanitizer would not start: it requires that its library is the first.
        "ASAN_OPTIONS": ":".join(filter(None, [_NOT_FIRST, os.environ.get("ASAN_OPTIONS")])),
        "LD_PRELOAD": ":".join(filter(None, [str(LIBRARY), *others])),
        "GRIDCOLL_LIBPYTHON": str(find_libpython()),
        "GRIDCOLL_PYTHON": sys.executable,
    }


def is_preloaded() -> bool:
    """Whether the library is preloaded into this process."""
    return str(LIBRARY) in os.environ.get("LD_PRELOAD", "").split(":")


def run_program(path: Path, command: Sequence[str]) -> NoReturn:
    """Replace this process by the program at ``path``, with the library preloaded if possible.

    ``command`` is as the user gave it: a program that restarts itself uses its name from there.
    """
    problem = preload_problem(path)
    if not problem:
        try:
            os.environ.update(preload_settings())
        except UsageError as error:
            problem = str(error)
    if problem and is_first_rank():
        sys.stderr.write(f"gridcoll: {problem}; it runs without gridcoll\n")
        sys.stderr.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and the program would inherit it
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    name, is_there = command[0], Path(command[0]).exists()
    os.execv(name if is_there else path, list(command))  # a Path would drop the dot of ./name


def run_again_preloaded() -> NoReturn:
    """Restart this Python command with the library preloaded before the MPI library."""
    os.environ.update(preload_settings(), GRIDCOLL_PRELOAD_LATER="1")
    os.execv(sys.executable, sys.orig_argv)


def is_first_rank() -> bool:
    """Whether this is rank 0, which prints common messages; also true without a launcher."""
    ranks = (os.environ.get(name) for name in _RANK_VARIABLES)
    return next((rank for rank in ranks if rank is not None), "0") == "0"
