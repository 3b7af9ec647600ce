from __future__ import annotations

import os

from gridcoll.testbed.job import quiet_stderr
from gridcoll.testbed.launchers import LAUNCHERS

WARNING = (
    b"[orsay-0:00073] plm:ssh: Warning: setpgid(81,81) failed in parent with "
    b"errno=Permission denied(13)\n"
)


def test_only_noise_is_dropped() -> None:
    noise = LAUNCHERS["openmpi"].noise
    assert noise is not None
    out, target = os.pipe()
    sink = quiet_stderr(noise, target)
    os.write(sink, b"first\n" + WARNING + b"[orsay-0:00073] an error\n")
    os.write(sink, WARNING + WARNING + b"no newline")
    os.close(sink)
    seen = b""
    while not seen.endswith(b"no newline"):
        seen += os.read(out, 1000)
    assert seen == b"first\n[orsay-0:00073] an error\nno newline"
    os.close(out)
    os.close(target)
