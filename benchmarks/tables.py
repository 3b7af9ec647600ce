"""Update the tables of Markdown files: the command in the comment above each table prints it.

A table stands between ``<!-- collectives.py markdown OPTIONS -->`` and ``<!-- end -->``. The
command may also be one of ``programs.py`` or ``applications.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import applications
import collectives
import programs
from on_grids import RESULTS, ROOT

from gridcoll.files import write_atomically

DOCUMENTS = ("README.md", "docs/benchmarks.md", "docs/programs.md")
FILES = (*(ROOT / name for name in DOCUMENTS), RESULTS / "README.md")

_SCRIPTS = {
    "applications.py": applications.main,
    "collectives.py": collectives.main,
    "programs.py": programs.main,
}
_REGION = re.compile(r"(<!-- (\w+\.py .*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_BEGIN = re.compile(r"<!-- \w+\.py ")


def renewed(text: str, printed: Callable[[Sequence[str]], str]) -> str:
    """Return ``text`` with every table replaced by ``printed(words of its command)``.

    Raises ValueError if a table has no end, or if there is no table.
    """
    n_begun, n_ended = len(_BEGIN.findall(text)), text.count("<!-- end -->")
    found = list(_REGION.finditer(text))
    if not n_begun == n_ended == len(found) > 0:
        raise ValueError(f"{n_begun} tables begin and {n_ended} end, of which {len(found)} match")
    return _REGION.sub(lambda m: f"{m[1]}{printed(shlex.split(m[2]))}\n{m[3]}", text)


def what_is_printed(arguments: Sequence[str]) -> str:
    """Return the output of the script ``arguments[0]`` when it is given the other arguments."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        _SCRIPTS[arguments[0]](arguments[1:])
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if a table is old"
    )
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    options = parser.parse_args()
    old = []
    for path in options.files:
        text = path.read_text(encoding="utf-8")
        new = renewed(text, what_is_printed)
        if new == text:
            continue
        old.append(str(path))
        if not options.check:
            write_atomically(path, new)
            print(f"renewed {path}")
    if old and options.check:
        sys.exit(
            f"tables that are not what their rows say: {', '.join(old)}; run benchmarks/tables.py"
        )


if __name__ == "__main__":
    main()
