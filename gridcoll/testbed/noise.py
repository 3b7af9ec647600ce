"""Keeping a launcher's meaningless warnings off the user's terminal."""

from __future__ import annotations

import os
import re
import threading

_CHUNK_BYTES = 65536


def quiet_stderr(noise: re.Pattern[bytes], target: int = 2) -> int:
    """A descriptor to write to: what matches ``noise`` is dropped, the rest goes to ``target``.

    A thread copies until every writer has closed its end; the caller closes its own. Python waits
    for that thread before it exits, so nothing is lost.
    """
    source, sink = os.pipe()
    threading.Thread(target=_copy, args=(source, target, noise), name="stderr").start()
    return sink


def _copy(source: int, target: int, noise: re.Pattern[bytes]) -> None:
    with os.fdopen(source, "rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            rest = memoryview(noise.sub(b"", chunk))
            while rest:
                rest = rest[os.write(target, rest) :]
