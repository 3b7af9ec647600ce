"""The report page stands alone, says what `explain` says, and is well-formed."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gridcoll.cli.group import group
from gridcoll.cli.models import load_model
from gridcoll.errors import FileError
from gridcoll.plan import Candidate, choose
from gridcoll.plan.traces import decided_of
from tests.traces import trace_in

pytest.importorskip("matplotlib")

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """Tags that are open, text, and every reference."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.references += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(group, ["report", "three-sites", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    run("--html", str(path), "--collectives", "bcast,alltoall", "--sizes", "8,1M")
    return path.read_text(encoding="utf-8")


def test_it_is_well_formed_and_fetches_nothing(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    assert all(reference.startswith("#") for reference in parsed.references)
    assert not re.search(r"@import|url\((?!#)|<script|<link", page)


def test_it_says_what_is_decided(page: str) -> None:
    words = Page(page).words
    model = load_model("three-sites")
    for collective in ("bcast", "alltoall"):
        winner = choose(collective, model, 1 << 20, 0).winner
        assert winner.name in words
        assert winner.label in words
    assert {"orsay", "toulouse", "grenoble", "12.2 ms", "inside"} <= set(words)
    assert "<svg" in page


def test_json_and_text() -> None:
    data = json.loads(run("--json", "--collectives", "bcast", "--sizes", "8,64K"))
    assert [row["n_bytes"] for row in data["decisions"]] == [8, 65536]
    assert data["grid"]["name"] == "three-sites"
    assert "allreduce of 64 KiB" in run("--collectives", "allreduce", "--sizes", "64K")


def test_a_collective_that_does_not_exist(tmp_path: Path) -> None:
    done = CliRunner().invoke(group, ["report", "three-sites", "--collectives", "scan"])
    assert "scan" in str(done.exception)


def test_a_winner_that_did_not_compete_is_kept() -> None:
    """Settings may ask for what no candidate is."""
    choice = choose("bcast", load_model("three-sites"), 1 << 20, 0)
    asked = replace(choice, winner=Candidate("native", "asked for", None))
    kept = decided_of(asked, 12)
    assert kept.candidates[kept.winner].label == "asked for"
    assert len(kept.candidates) == len(choice.candidates) + 1


def test_the_page_of_a_job(tmp_path: Path) -> None:
    """Predicted, observed, gain over native, and traffic; of ranks whose files are there."""
    trace_in(tmp_path)
    html = tmp_path / "report.html"
    done = CliRunner().invoke(
        group, ["report", str(tmp_path), "--html", str(html)], catch_exceptions=False
    )
    assert done.exit_code == 0
    text = html.read_text(encoding="utf-8")
    parsed = Page(text)
    assert parsed.open == []
    assert all(reference.startswith("#") for reference in parsed.references)
    assert not re.search(r"@import|url\((?!#)|<script|<link", text)
    assert {"123 ms", "246 ms", "2.0 x", "6", "8 KiB"} <= set(parsed.words)
    assert "2 of 12 ranks" in text
    said = CliRunner().invoke(group, ["report", str(tmp_path), "--json"], catch_exceptions=False)
    data = json.loads(said.output)
    shown = CliRunner().invoke(group, ["report", str(tmp_path)], catch_exceptions=False).output
    assert "observed 123 ms in 7 calls)" in shown
    assert "orsay to toulouse: 6 messages, 8 KiB" in shown
    assert data["decisions"][0]["candidates"][0]["observed_s"] == 0.123
    assert data["traffic"] == [{"from": "orsay", "to": "toulouse", "messages": 6, "n_bytes": 8192}]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rank-0.json", "{", "rank-0.json"),
        ("rank-5.json", '{"version":1,"rank":5,"n_ranks":9,"sent":[]}', "another job"),
        ("rank-5.json", '{"version":2,"rank":5,"n_ranks":12,"sent":[]}', "version must be 1"),
        ("rank-0.json", None, "GRIDCOLL_TRACE"),
    ],
)
def test_files_that_no_job_left(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    trace_in(tmp_path)
    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text)
    done = CliRunner().invoke(group, ["report", str(tmp_path)])
    assert isinstance(done.exception, FileError)
    assert said in str(done.exception)
