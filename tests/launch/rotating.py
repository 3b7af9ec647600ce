"""A Python environment in which decisions change at every agreed point, and these come at once.

What embeds it learns as fast as can be: every way of a kind of calls gets its turn, on all ranks at
the same call or not at all.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.launch.programs import ROOT, Toolchain

_HOOK = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from gridcoll.measure.learning import agreed
from gridcoll.measure.learning.elimination import Race

def settle(race):
    race.leader = (race.leader + 1) % len(race.beliefs)
    return True

Race.settle, agreed.OVERHEAD_PART = settle, 1e9
"""


def rotating_python(tools: Toolchain, folder: Path) -> Path:
    """Its interpreter, to be named by ``GRIDCOLL_PYTHON``."""
    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([tools.python, "-c", place], text=True).strip()
    own = folder / "python"
    subprocess.run([tools.python, "-m", "venv", "--without-pip", own], check=True)
    (site,) = own.glob("lib/python*/site-packages")
    (site / "rotating_leaders.py").write_text(_HOOK)
    (site / "hook.pth").write_text(f"{packages}\nimport rotating_leaders\n")
    return own / "bin" / "python"
