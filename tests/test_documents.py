"""Commands, options, settings, messages and files named in documents exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import click
import pytest

import gridcoll
import gridcoll.errors
from gridcoll.cli.group import group
from gridcoll.cli.run_options import parse_run
from gridcoll.comm.settings import NAMES, read_settings
from gridcoll.errors import UsageError
from gridcoll.measure.doctor import rules
from gridcoll.plan import REGISTRIES
from gridcoll.variables import PREFIX, VARIABLES, Variable
from tests.examples import DOCUMENTS, ROOT, blocks

LINK = re.compile(r"\]\(([^)\s]+)\)")


def unknown_options(line: str) -> list[str]:
    """Return the commands and options in ``line`` of a shell that gridcoll does not have."""
    words = shlex.split(line, comments=True)
    for at, word in enumerate(words):
        if word == "gridcoll" and (at == 0 or words[at - 1] == "-m" or "=" in words[at - 1]):
            return _unknown(words[at + 1 :])
    return []


def _unknown(words: list[str]) -> list[str]:
    command: click.Command = group
    context = click.Context(group)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            return [words[0]]
        command, words = found, words[1:]
    if command.name in (
        "run",
        "preload",
    ):  # these parse their own options and those of the application
        return []
    known = {name for parameter in command.params for name in (*parameter.opts, "--help")}
    mine = words[: words.index("--")] if "--" in words else words
    return [word for word in mine if word.startswith("-") and word.split("=")[0] not in known]


def lines(text: str) -> list[str]:
    """Return the lines of the shell examples in ``text``."""
    return [line for block in blocks(text, "sh") for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_examples_exist(path: Path) -> None:
    wrong = {line: unknown_options(line) for line in lines(path.read_text(encoding="utf-8"))}
    assert {line: options for line, options in wrong.items() if options} == {}


@pytest.mark.parametrize(
    "line",
    [
        "gridcoll discvoer",
        "mpirun -n 3 python -m gridcoll bench bcast --byte 8",
        "GRIDCOLL_CHECK=1 gridcoll explain bcast --grid a --size 1M",
        "gridcoll cache lst",
    ],
)
def test_a_command_that_does_not_exist_is_seen(line: str) -> None:
    assert unknown_options(line)


def test_some_examples_are_seen() -> None:
    found = [line for path in DOCUMENTS for line in lines(path.read_text(encoding="utf-8"))]
    assert sum("gridcoll" in line for line in found) > 20


def dead_links(path: Path, text: str) -> list[str]:
    """Return the relative links in ``text``, the document at ``path``, whose target is missing."""
    found = []
    for target in LINK.findall(text):
        if "://" in target:
            continue
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            found.append(target)
    return found


def anchors(path: Path) -> set[str]:
    """Return the anchors that the site makes from the headings of the document at ``path``."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    assert dead_links(path, path.read_text(encoding="utf-8")) == []


def test_a_dead_link_is_seen() -> None:
    text = "[a](nowhere.md) [b](cluster.md#not-there) [c](cluster.md#slurm) ![](three-sites.svg)"
    assert dead_links(ROOT / "docs/index.md", text) == ["nowhere.md", "cluster.md#not-there"]


FUNCTION = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def unknown_functions(text: str) -> list[str]:
    """Return what ``text`` names as ``file.py:function`` or ``file.py:Class.method`` in vain."""
    unknown = []
    for path, name in FUNCTION.findall(text):
        places = [place for place in (ROOT / "gridcoll" / path, ROOT / path) if place.exists()]
        nodes: list[ast.AST] = [ast.parse(places[0].read_text())] if places else []
        for part in name.split("."):
            nodes = [
                node
                for above in nodes
                for node in ast.walk(above)
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
            ]
        if not nodes:
            unknown.append(f"{path}:{name}")
    return unknown


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_in_documents_exist(path: Path) -> None:
    assert unknown_functions(path.read_text(encoding="utf-8")) == []


def test_a_function_that_does_not_exist_is_seen() -> None:
    text = "`plan/choose.py:choose`, `plan/choose.py:chose`, `no/file.py:choose`"
    text += "`comm/communicator.py:GridComm.no`"
    assert unknown_functions(text) == [
        "plan/choose.py:chose",
        "no/file.py:choose",
        "comm/communicator.py:GridComm.no",
    ]


def test_every_page_is_on_the_site() -> None:
    text = (ROOT / ".ci/mkdocs.yml").read_text(encoding="utf-8")
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == set(
        re.findall(r": (\w+\.md)$", text, re.MULTILINE)
    )


def places_of(variable: Variable) -> str:
    """Return where ``variable`` can be given, in the words of docs/settings.md."""
    name = variable.name.removeprefix(PREFIX).lower()
    is_algorithm = name == "<collective>"
    places = ["keyword", "hint"] if is_algorithm or name in NAMES else []
    with_value = ["--bcast", "chain"] if is_algorithm else [f"--{name}=1"]
    try:
        taken = bool(parse_run([f"--{name}"] if variable.flag else with_value)[0])
    except UsageError:
        taken = False
    return ", ".join([*places, *(["option"] if taken else []), "environment"])


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    entries = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    there = {entry.split(".")[-1] for entry in entries}
    errors = {"DisagreementError", "FileError", "GridcollError", "PlanError", "UsageError"}
    assert "gridcoll.errors" in entries
    assert all(getattr(gridcoll.errors, name).__doc__ for name in errors)
    assert {*gridcoll.__all__} | {"Keywords"} <= there | errors


def test_the_claims_of_the_papers_are_on_the_site() -> None:
    text = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    (named,) = re.findall(r'^--8<-- "(\S+)"$', text, re.MULTILINE)
    assert (ROOT / named).name == "CLAIMS.md"
    assert (ROOT / named).exists()
    # It has no links, as their targets would not be on the site.
    assert LINK.findall((ROOT / named).read_text(encoding="utf-8")) == []


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(GRIDCOLL_\S+)` \| (.*?) \| (.*) \| ([^|]*) \|$", text, re.MULTILINE)
    assert rows == [
        (v.name, v.values.replace("|", " or "), v.good_for, places_of(v))
        for v in VARIABLES.values()
    ]
    assert {row[3] for row in rows} == {
        "keyword, hint, option, environment",
        "option, environment",
        "environment",
    }


NOT_DEFAULT = {
    "GRIDCOLL_GRID": "grid.toml",
    "GRIDCOLL_CACHE": "/elsewhere",
    "GRIDCOLL_KEEP": "/elsewhere",
    "GRIDCOLL_CHECK": "1",
    "GRIDCOLL_FORCE": "grid",
    "GRIDCOLL_TOLERANCE": "0.2",
    "GRIDCOLL_REPRODUCIBLE": "1",
    "GRIDCOLL_LEARN": "off",
    "GRIDCOLL_LOG": "decisions",
}
"""For each setting of a communicator, a value that is not the default."""


def test_what_ranks_compare_is_what_the_page_says() -> None:
    assert {*NOT_DEFAULT} == {f"{PREFIX}{name.upper()}" for name in NAMES}
    nothing = read_settings({}).text()
    compared = {
        n for n, value in NOT_DEFAULT.items() if read_settings({n: value}).text() != nothing
    }
    for collective, algorithms in REGISTRIES.items():
        variable = f"{PREFIX}{collective.upper()}"
        assert read_settings({variable: next(iter(algorithms))}).text() != nothing
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    paragraph = text.split("must be the same on all ranks:")[1].split(" They are compared")[0]
    assert {*re.findall(r"`(GRIDCOLL_\S+)`", paragraph)} == compared | {"GRIDCOLL_<COLLECTIVE>"}


def test_every_finding_is_documented() -> None:
    source = Path(rules.__file__).read_text(encoding="utf-8")
    known = set(re.findall(r'Finding\(\s*"([\w-]+)"', source)) | {"window", "thin"}
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    section = text.split("## The doctor's findings")[1]
    assert set(re.findall(r"^\| `([\w-]+)`", section, re.MULTILINE)) == known


def messages(source: str) -> list[tuple[str, str]]:
    """Return type and message of each error that ``source`` raises, with … for filled-in parts."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        if node.func.id.endswith("Error"):
            found.append((node.func.id, _text(node.args[0])))
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(v) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return "…"


def rows_of_messages() -> list[str]:
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", text.split("## What else happens")[0], re.MULTILINE)


def sources() -> str:
    """Return the package's sources with each message on one line, and … for filled-in parts."""
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "gridcoll").rglob("*.py"))
    )
    return re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\s*\n\s*f?"', "", text))


def test_messages_with_remedies_are_those_of_the_package() -> None:
    rows, said = rows_of_messages(), sources()
    pieces = {row: [part for part in row.split("…") if len(part.strip(" :,")) > 3] for row in rows}
    assert len(rows) > 12
    for row, parts in pieces.items():
        assert all(part.strip().rstrip(":") in said for part in parts), row


def test_a_message_that_nobody_says_is_seen() -> None:
    assert "this message is said by nobody" not in sources()


NEED_NO_REMEDY = {
    "GridComm: unknown keyword …; known are …": "names what there is",
    "hint …: known are …": "names what there is",
    "algorithms …: known are …": "names what there is",
    "…: …": "puts a setting's name before an unknown algorithm, with what there is",
    "algorithms: must map collectives to names, got …": "says what it must be",
    "grid: must be a path or the name of a grid, got a …; see model=": "says what it must be",
    "nbytes: must not be negative, got …": "says what it must be",
    "link …: must be two of the clusters …": "names what there is",
    "run: name an application: FILE, -m MODULE or -c CODE": "says what to write",
    "run: … needs an argument": "says what to write",
    "sizes: must ascend, got …": "of a kept file: comes out as `cache file …`",
    "grid file …: it gives ranks; the cache needs hosts by name": "of `cache import`; says why",
    "…": "passes on what another rank raised",
}
"""Messages of a running job that need no remedy, each with the reason."""

USER_ERRORS = {"UsageError", "FileError", "DisagreementError", "GridcollError", "TestbedError"}


def without_remedy(said: Iterable[tuple[str, str]], rows: Iterable[str]) -> set[str]:
    """Return the messages in ``said`` that match no row.

    `PlanError` is left out, as one row covers all of its messages.
    """
    patterns = [re.compile(".*".join(map(re.escape, row.split("…"))), re.DOTALL) for row in rows]
    return {
        text
        for kind, text in said
        if kind in USER_ERRORS
        if text not in NEED_NO_REMEDY and not any(each.search(text) for each in patterns)
    }


def said_by_jobs() -> list[tuple[str, str]]:
    return [
        message
        for room in ("comm", "engine", "launch", "measure")
        for path in sorted((ROOT / "gridcoll" / room).rglob("*.py"))
        for message in messages(path.read_text(encoding="utf-8"))
    ]


def test_every_message_of_a_job_has_a_remedy() -> None:
    said, rows = said_by_jobs(), rows_of_messages()
    assert "PlanError" in rows
    assert len(said) > 40
    assert without_remedy(said, rows) == set()
    texts = {text for _, text in said}
    assert {*NEED_NO_REMEDY} <= texts, "is said no more"


def test_a_message_without_a_remedy_is_seen() -> None:
    new = messages('raise UsageError(f"moon: {phase!r} is not full")')
    assert new == [("UsageError", "moon: … is not full")]
    assert without_remedy(new, rows_of_messages()) == {"moon: … is not full"}
    # Without a row, the message that it describes has no remedy.
    rows = rows_of_messages()
    without = [row for row in rows if row != "rank … has elements of …, rank … of …"]
    assert without_remedy(said_by_jobs(), without) == {"…: rank … has elements of …, rank … of …"}


def test_nothing_is_fetched_from_elsewhere() -> None:
    """The site works without a network."""
    assert "font: false" in (ROOT / ".ci/mkdocs.yml").read_text(encoding="utf-8")
    for path in DOCUMENTS:
        assert not re.search(r"!\[[^\]]*\]\(https?:", path.read_text(encoding="utf-8")), path
