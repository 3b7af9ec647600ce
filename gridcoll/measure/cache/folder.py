"""The cache as a directory: one small file per entry, replaced whole so that jobs can share it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from gridcoll.errors import FileError, GridcollError, UsageError
from gridcoll.files import read_text, writing
from gridcoll.measure.cache.entries import (
    FOLDERS,
    VERSION,
    AnyEntry,
    NewerVersionError,
    decode_entry,
    encode_entry,
    file_name,
)
from gridcoll.measure.cache.knowledge import Knowledge
from gridcoll.measure.cache.learning import declared_entries
from gridcoll.topology.clustering import DEFAULT_TOLERANCE
from gridcoll.topology.gridfile import parse_gridfile
from gridcoll.variables import name_of

DECLARED = "declared"
"""Folder of grid files that were written by hand."""

LOCK_PATIENCE_S = 5.0
"""How long a writer waits for others. Then it writes without a lock, and one of two new values of
an entry may be lost."""

ASIDE = ".aside"
"""Suffix of files that cannot be used."""


class Places(Struct, frozen=True):
    """Where the cache is."""

    own: Path | None
    """The user's cache; None if there is none, or if it is off."""
    site: Path | None = None
    """A cache that an administrator provides. It is only read."""
    is_named: bool = False
    """Whether the environment names ``own``; otherwise it is the user's cache directory."""


NOWHERE = Places(None)
"""No cache."""


def find_places(environment: Mapping[str, str] | None = None) -> Places:
    """Return where the environment says that the cache is.

    ``GRIDCOLL_CACHE``, or ``GRIDCOLL_KEEP``, may be ``off``. Raises `UsageError` if it is a file.
    """
    env = os.environ if environment is None else environment
    site = Path(env["GRIDCOLL_SITE_CACHE"]) if env.get("GRIDCOLL_SITE_CACHE") else None
    for name in ("GRIDCOLL_CACHE", "GRIDCOLL_KEEP"):
        value = env.get(name, "")
        if value == "off":
            return Places(None, site, True)
        if value:
            no_directory = Path(value).exists() and not Path(value).is_dir()
            if no_directory or Path(value).suffix in (".json", ".toml"):
                raise UsageError(
                    f"{name_of(name, env)}: must be a directory or off, got {value!r}; a grid file "
                    "is read with the setting grid (GRIDCOLL_GRID)"
                )
            return Places(Path(value), site, True)
    base = env.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():  # ignored, by the XDG specification
        home = env.get("HOME", "")
        if not Path(home).is_absolute():
            return Places(None, site)
        base = f"{home}/.cache"
    return Places(Path(base, "gridcoll"), site)


class Folder(Struct):
    """A cache's directory."""

    path: Path
    read_only: bool = False
    is_named: bool = True
    warnings: list[str] = field(default_factory=list)
    """What went wrong so far, for the user."""

    @property
    def is_shared(self) -> bool:
        """Whether the owner lets others write here, so that their entries count, too."""
        try:
            mode = self.path.stat().st_mode
        except OSError:
            return False
        return self.is_named and bool(mode & (stat.S_IWGRP | stat.S_IWOTH))

    def read(self) -> Knowledge:
        """Return all valid entries. Invalid ones are set aside and reported in `warnings`."""
        known = Knowledge()
        if not self._is_ours():
            return known
        for path in sorted(self._list(DECLARED, ".toml")):
            with self._setting_aside(path):
                self._check_owner(path)
                spec = parse_gridfile(read_text(path, "grid file"), str(path))
                known.put_all(declared_entries(spec, path.stat().st_mtime))
        for folder in FOLDERS:
            for path in self._list(folder, ".json"):
                with self._setting_aside(path):
                    self._check_owner(path)
                    entry = decode_entry(path.read_bytes(), str(path))
                    if file_name(entry.key) != f"{folder}/{path.name}":
                        raise FileError(f"cache file {path}: it is about {' '.join(entry.key)}")
                    known.put(entry)
        return known

    def _is_ours(self) -> bool:
        """Whether the content of this directory can be trusted."""
        if self.read_only and (why := self.why_not_readable()):
            self.warnings.append(why)
            return False
        try:
            found = self.path.stat()
        except OSError:
            return False
        if self.is_named or self.read_only or found.st_uid == os.getuid():
            return True
        self.warnings.append(f"{self.path} belongs to user {found.st_uid} and is not used")
        return False

    def _check_owner(self, path: Path) -> None:
        """Raise `FileError` unless the file belongs to a trusted user.

        Trusted are this user, root, and, if the directory was named or is the site's, its owner. If
        the directory is shared, all users are.
        """
        owner = path.stat().st_uid
        trusted = {os.getuid(), 0}
        if self.is_named or self.read_only:
            trusted.add(self.path.stat().st_uid)
        if owner not in trusted and not self.is_shared:
            raise FileError(f"cache file {path}: it belongs to user {owner}")

    def _list(self, folder: str, suffix: str) -> list[Path]:
        place = self.path / folder
        try:
            with os.scandir(place) as found:
                return [
                    place / each.name
                    for each in found
                    if each.name.endswith(suffix) and not each.name.startswith(".")
                ]
        except OSError:
            return []

    @contextlib.contextmanager
    def _setting_aside(self, path: Path) -> Iterator[None]:
        """Turn errors of an unusable file into warnings, and rename the file if possible."""
        try:
            yield
        except FileNotFoundError:
            pass  # another job removed it while we read
        except (GridcollError, OSError) as error:
            what = "newer" if isinstance(error, NewerVersionError) else "set aside"
            self.warnings.append(f"{error} ({what})")
            if not self.read_only:
                with contextlib.suppress(OSError):
                    path.rename(path.with_name(path.name + ASIDE))

    def update(self, change: Callable[[Knowledge], Iterable[AnyEntry]]) -> int:
        """Write the entries that ``change`` makes of the present ones; return their number.

        This holds a lock if the file system supports it. Raises `FileError` if it cannot write.
        """
        with self._locked():
            return self.write(change(self.read()))

    def why_not_readable(self) -> str:
        """Return why the site's entries cannot be read here; empty if they can."""
        try:
            with os.scandir(self.path):
                return ""
        except OSError as error:
            reason = error.strerror or error
        return f"GRIDCOLL_SITE_CACHE: cannot read {self.path}: {reason}; it is not used"

    def why_not_writable(self) -> str:
        """Return why entries cannot be written here; empty if they can. Leaves no trace."""
        try:
            place = next(each for each in (self.path, *self.path.parents) if each.exists())
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(b"room")
        except OSError as error:
            return f"cannot write {self.path}: {error.strerror or error}"
        return ""

    def write(self, entries: Iterable[AnyEntry]) -> int:
        """Replace the files of ``entries``; return their number. Raises `FileError`."""
        n = 0
        with writing(self.path):
            for n, entry in enumerate(entries, 1):  # noqa: B007
                _replace(self.path / file_name(entry.key), encode_entry(entry), self.is_shared)
        return n

    def add_gridfile(self, name: str, text: str) -> Path:
        """Write a declared grid, and return its path. Raises `FileError`."""
        path = self.path / DECLARED / f"{name}.toml"
        with writing(path), self._locked():
            _replace(path, text.encode(), self.is_shared)
        return path

    def gridfiles(self) -> list[str]:
        """Return the names of the declared grids."""
        return sorted(path.stem for path in self._list(DECLARED, ".toml"))

    def remove_gridfile(self, name: str) -> bool:
        """Remove a declared grid; return whether there was one. Raises `FileError`."""
        if name not in self.gridfiles():
            return False
        path = self.path / DECLARED / f"{name}.toml"
        with writing(path), self._locked():
            path.unlink(missing_ok=True)
        return True

    def remove(self, entries: Iterable[AnyEntry]) -> int:
        """Remove the files of ``entries``; return how many existed. Raises `FileError`."""
        paths = [self.path / file_name(entry.key) for entry in entries]
        with self._locked():
            there = [path for path in paths if path.exists()]
            with writing(self.path):
                for path in there:
                    path.unlink(missing_ok=True)
        return len(there)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with writing(self.path):
            make_private(self.path)
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _wait_for_lock(handle)
            yield
        finally:
            os.close(handle)  # releases the lock


def _wait_for_lock(handle: int) -> None:
    """Get the lock, or continue without it if there are no locks, or if another job keeps it."""
    deadline_s = time.monotonic() + LOCK_PATIENCE_S
    while not _try_lock(handle) and time.monotonic() < deadline_s:
        time.sleep(2e-3)


def _try_lock(handle: int) -> bool:
    """Try to get the lock; return whether there is nothing to wait for.

    That is if we have it, or if the file system has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def make_private(path: Path) -> None:
    """Make a directory for this user alone, and missing parents of it."""
    if not path.is_dir():
        make_private(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)


def _replace(path: Path, data: bytes, is_shared: bool) -> None:
    """Do as `write_atomically`, without waiting for the disk: lost entries are measured again."""
    if not path.parent.is_dir():
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o777 if is_shared else 0o700)
    temporary = path.with_name(f".{os.urandom(6).hex()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if is_shared else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class Cache:
    """The user's cache and the administrator's, as one."""

    def __init__(self, places: Places, tolerance: float = DEFAULT_TOLERANCE) -> None:
        below = f"v{VERSION}"
        if tolerance != DEFAULT_TOLERANCE:  # another tolerance finds other clusters
            below += f"-tolerance-{tolerance:g}"
        self.own: Folder | None = None
        self.site: Folder | None = None
        if places.own is not None:
            self.own = Folder(places.own / below, is_named=places.is_named)
        if places.site is not None:
            self.site = Folder(places.site / below, read_only=True)
            # Unlike `Path.is_dir`, this raises no error for a directory that we may not search.
            if not os.path.isdir(self.site.path):  # noqa: PTH112
                self.site.path = places.site
        self._is_named = places.is_named

    @property
    def is_off(self) -> bool:
        """Whether there is nothing to read or write."""
        return self.own is None and self.site is None

    def read(self) -> Knowledge:
        known = Knowledge()
        for folder in (self.site, self.own):
            if folder is not None:
                known.put_all(folder.read())
        return known

    def update(self, change: Callable[[Knowledge], Iterable[AnyEntry]]) -> None:
        """Write what ``change`` makes of what is known now.

        A failure is reported only for a directory that the user named: the default one was not
        asked for.
        """
        if self.own is None:
            return

        def changed(known: Knowledge) -> Iterable[AnyEntry]:
            if self.site is not None:
                known.put_all(self.site.read())
            return change(known)

        try:
            self.own.update(changed)
        except FileError as error:
            if self._is_named:
                self.own.warnings.append(f"{error}; what was measured is not kept")

    def warning(self) -> str:
        """Return what went wrong since the last call, in one line."""
        messages: list[str] = []
        for folder in (self.site, self.own):
            if folder is not None:
                messages += folder.warnings
                folder.warnings.clear()
        messages = list(dict.fromkeys(messages))
        more = f", and {len(messages) - 1} more" if len(messages) > 1 else ""
        return messages[0] + more if messages else ""
