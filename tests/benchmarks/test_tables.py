"""Tables in Markdown files are what kept rows say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

TEXT = """# Rows
<!-- collectives.py markdown --grids "three-sites" -->
old
<!-- end -->
between
<!-- programs.py table -->
<!-- end -->
"""


def printed(arguments: Sequence[str]) -> str:
    return f"{list(arguments)}\n"


@pytest.mark.long
def test_kept_tables_are_what_their_rows_say(script: Callable[[str], ModuleType]) -> None:
    """Every figure of a table comes from its command; else run benchmarks/tables.py."""
    tables = script("tables")
    for path in tables.FILES:
        text = path.read_text(encoding="utf-8")
        assert tables.renewed(text, tables.what_is_printed) == text, path.name


def test_what_stands_between_the_marks_is_replaced(script: Callable[[str], ModuleType]) -> None:
    new = script("tables").renewed(TEXT, printed)
    assert new.splitlines() == [
        "# Rows",
        '<!-- collectives.py markdown --grids "three-sites" -->',
        "['collectives.py', 'markdown', '--grids', 'three-sites']",
        "",
        "<!-- end -->",
        "between",
        "<!-- programs.py table -->",
        "['programs.py', 'table']",
        "",
        "<!-- end -->",
    ]
    assert script("tables").renewed(new, printed) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<!-- end -->\nbetween", "between"),
        ("<!-- collectives.py", "<!-- "),
        ("<!-- programs.py", "<!-- "),
        ("old", "<!-- end -->"),
    ],
)
def test_marks_must_be_pairs(script: Callable[[str], ModuleType], old: str, new: str) -> None:
    """A mark that nobody finds would leave a table as it was for ever."""
    with pytest.raises(ValueError, match="tables begin and"):
        script("tables").renewed(TEXT.replace(old, new), printed)


def test_check_fails_for_an_old_figure_and_changes_nothing(
    script: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, path = script("tables"), tmp_path / "README.md"
    monkeypatch.setattr(tables, "what_is_printed", printed)
    path.write_text(TEXT)
    monkeypatch.setattr("sys.argv", ["tables.py", "--check", str(path)])
    with pytest.raises(SystemExit, match="not what their rows say"):
        tables.main()
    assert path.read_text() == TEXT
    monkeypatch.setattr("sys.argv", ["tables.py", str(path)])
    tables.main()
    monkeypatch.setattr("sys.argv", ["tables.py", "--check", str(path)])
    tables.main()
