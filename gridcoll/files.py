"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gridcoll.errors import FileError


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Replace the file at ``path`` by ``content``; readers see the old one or the new one.

    Raises `FileError` when the directory cannot be written.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise FileError(f"cannot write {path}: {error}") from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
