"""The examples in README and docs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of ``text`` in ``language``."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


PYTHON = [
    (f"{path.name}-{number}", code)
    for path in DOCUMENTS
    for number, code in enumerate(blocks(path.read_text(encoding="utf-8"), "python"))
]
"""Name and code of each Python example. tests/mpi runs all of them."""
