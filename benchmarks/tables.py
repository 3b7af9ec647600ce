"""Keep the tables of Markdown files what the command in the comment above each prints.

A table stands between ``<!-- collectives.py markdown OPTIONS -->`` and ``<!-- end -->``.
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

import collectives
from on_grids import RESULTS, ROOT

from gridcoll.files import write_atomically

FILES = (ROOT / "README.md", RESULTS / "README.md")

_REGION = re.compile(r"(<!-- collectives\.py (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def renewed(text: str, printed: Callable[[Sequence[str]], str]) -> str:
    """``text`` with every table as ``printed`` of its command's arguments gives it.

    Raises ValueError where a table has no end, or none begins.
    """
    n_begun, n_ended = text.count("<!-- collectives.py "), text.count("<!-- end -->")
    found = list(_REGION.finditer(text))
    if not n_begun == n_ended == len(found) > 0:
        raise ValueError(f"{n_begun} tables begin and {n_ended} end, of which {len(found)} match")
    return _REGION.sub(lambda m: f"{m[1]}{printed(shlex.split(m[2]))}\n{m[3]}", text)


def what_is_printed(arguments: Sequence[str]) -> str:
    """What ``collectives.py ARGUMENTS`` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        collectives.main(arguments)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if one is old")
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
