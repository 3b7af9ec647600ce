"""Reading files with validation, and writing them completely or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from gridcoll.errors import FileError, UsageError, listed

T = TypeVar("T")


class _Kind(NamedTuple):
    """A kind of file: how error messages call it, a description, and keys that only it has."""

    name: str
    description: str
    keys: frozenset[str]


_KINDS = tuple(
    _Kind(name, description, frozenset(keys.split()))
    for name, description, keys in (
        ("model file", "a measured model (.json), for --grid and gridcoll show", "format clusters"),
        ("grid file", "a grid file (.toml), for --grid and gridcoll show", "name clusters version"),
        ("problem file", "a problem file, for gridcoll select", "n_elements phases"),
        ("cache file", "an export of a cache, for gridcoll cache import", "format entries"),
        ("cache entry", "an entry of a cache; gridcoll cache show lists them", "format entry"),
        ("trace", "a rank's trace; gridcoll report takes its directory", "rank n_ranks sent"),
        ("run file", "the times of a run, for gridcoll select --correct", "clusters iteration_s"),
        ("run file", "the faces of a run, for gridcoll select --correct", "clusters host_faces"),
        ("measured rows", "what gridcoll bench wrote, for gridcoll study", "variant median_s"),
        ("decision", "what gridcoll explain --json printed, for scripts", "collective candidates"),
        ("map", "what gridcoll show --json printed, for scripts", "n_ranks clusters links"),
        ("report", "what gridcoll report --json printed, for scripts", "grid decisions"),
        ("table", "what gridcoll cache printed, for scripts", "origin first last"),
    )
)
_TEXTS = (
    (
        "goal",
        "a schedule that gridcoll export wrote, for LogGOPSim",
        re.compile(r"num_ranks \d+\n"),
    ),
    ("page", "a page of gridcoll report, for a browser", re.compile(r"\s*<!doctype html", re.I)),
    ("hostfile", "a hostfile, for MPI's launchers", re.compile(r"(\S+( slots=|:)\d+\n)+")),
    (
        "counts",
        "whole numbers, as gridcoll explain --counts takes",
        re.compile(r"\d+([\s,]+\d+)*\s*"),
    ),
)
"""Kinds of files that are neither TOML nor JSON: name, description, and how they begin."""


def unfit(kind: str, path: str | Path, data: bytes | str, reason: str) -> FileError:
    """Return the error to raise for a file that cannot be read as a ``kind`` (``grid file``).

    If the file is of another kind, the error says which one and what it is for; otherwise, it gives
    the ``reason``.
    """
    found, description = _kind_of(data)
    if found and found != kind:
        reason = f"it is {description}"
    return FileError(f"{kind} {path}: {reason}")


def _kind_of(data: bytes | str) -> tuple[str, str]:
    """Return name and description of the kind of file; empty if it is none of gridcoll's."""
    decoded = None
    for decode in (msgspec.json.decode, msgspec.toml.decode):
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            decoded = decoded or decode(data)
    first = decoded[0] if isinstance(decoded, list) and decoded else decoded
    if isinstance(first, dict):
        for kind in _KINDS:
            if kind.keys <= first.keys():
                return kind.name, kind.description
        return "", ""
    text = data if isinstance(data, str) else data.decode(errors="replace")
    return next((entry[:2] for entry in _TEXTS if entry[2].match(text)), ("", ""))


def decode_toml(text: str, document: type[T], kind: str, path: str) -> T:
    """Decode ``text`` (TOML) to a ``document`` struct.

    Raises `FileError`, which starts with ``kind`` (``grid file``) and ``path``, and names the wrong
    field. If that is no field of its table, the error lists those that are.
    """
    try:
        return msgspec.toml.decode(text, type=document)
    except msgspec.ValidationError as error:
        # msgspec writes ``Expected … - at `$.clusters[0].hosts```, but the field should come first.
        # Errors of our own checks, which msgspec wraps, already name the field.
        match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", str(error), re.DOTALL)
        reason = str(error) if match is None else f"{match[2]}: {match[1]}"
        if match is not None and isinstance(error.__cause__, UsageError):
            reason = match[1]
        if unknown := re.search(r"contains unknown field `(.*?)`", str(error), re.DOTALL):
            place = re.findall(r"\[\d+\]|\w+", match[2] if match else "")
            known = _fields_at(inspect.type_info(document), place)
            reason += f"; known are {listed(unknown[1], known)}"
        raise unfit(kind, path, text, reason) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise unfit(kind, path, text, f"not TOML: {error}") from None


def _fields_at(kind: inspect.Type, place: Sequence[str]) -> Iterator[str]:
    """Return the names of all fields of the struct at ``place``, steps from ``kind`` inwards."""
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _fields_at(each, place)
    elif isinstance(kind, inspect.ListType):
        yield from _fields_at(kind.item_type, place[1:])
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if not place:
                yield field.encode_name
            elif field.encode_name == place[0]:
                yield from _fields_at(field.type, place[1:])


def read_text(path: str | Path, kind: str) -> str:
    """Return the text at ``path``. Raises `FileError`; ``kind`` is, for example, ``grid file``."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{kind} {path}: {getattr(error, 'strerror', None) or error}") from None


def check_writable(path: str | Path) -> None:
    """Raise `FileError` unless a file can be written to ``path``.

    Long jobs check this before they start.
    """
    path = Path(path)
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a directory")
    target = path if is_stream(path) else _resolved(path).parent
    if not os.access(target, os.W_OK):
        raise FileError(f"cannot write {path}: {target} is nothing we may write to")


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn an `OSError` in the body into a `FileError`: cannot write ``path``."""
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from None


def make_directory(path: str | Path) -> None:
    """Make the directory ``path``, whose parent must exist. Raises `FileError` if that fails."""
    with writing(path):
        Path(path).mkdir(exist_ok=True)


def is_stream(path: Path) -> bool:
    """Whether ``path`` is a device or pipe such as ``/dev/stdout``, which must not be replaced."""
    return path.is_relative_to("/dev") or (path.exists() and not path.is_file())


def _resolved(path: Path) -> Path:
    """Return ``path`` with symbolic links resolved. Raises `FileError` if they form a loop."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError for loops, up to Python 3.12
        raise FileError(f"cannot write {path}: {error}") from None


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Replace the file at ``path`` by ``content``; readers see the old file or the new one.

    A symbolic link is kept, and the file it points to is replaced, with the same permissions. To a
    device or pipe, the content is written. Raises `FileError` if it cannot be written.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    if is_stream(path):
        with writing(path):
            path.write_bytes(data)
        return
    path = _resolved(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    with writing(path):
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                if path.exists():
                    os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
