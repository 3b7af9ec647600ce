"""The report page in a headless browser: what it lays out, what it fetches, what one sees.

Chromium is taken from ``GRIDCOLL_TEST_BROWSER`` or the path; `make test-browser` gets it from
Debian's packages, which it does not install. It names a browser or says that it has none, which is
an error in CI.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gridcoll.cli.group import group
from tests.traces import trace_in

pytest.importorskip("matplotlib")
from matplotlib import image

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ASKED = os.environ.get("GRIDCOLL_TEST_BROWSER")
BROWSER = ASKED or next(filter(None, map(shutil.which, NAMES)), "")
if ASKED is not None and not BROWSER and os.environ.get("CI") == "true":
    raise pytest.UsageError("no Chromium here: the report page stays unseen, an error in CI")
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium here: make test-browser gets one")

WIDTH, HEIGHT = 1200, 4000  # all of it is looked at

ASK = """<script>
addEventListener("load", () => {
  const box = (each) => {
    const b = each.getBoundingClientRect();
    return [b.x, b.y, b.width, b.height];
  };
  const area = (each) => box(each)[2] * box(each)[3];
  const all = (what) => [...document.querySelectorAll(what)];
  document.body.dataset.said = JSON.stringify({
    mode: document.compatMode,
    beyond: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    pictures: all("svg").map(box),
    tables: all("table").map(box),
    headings: all("h1, h2").map((each) => each.textContent),
    cells: all("td").filter(area).map((each) => each.textContent),
    empty: all("th").filter((each) => !area(each)).length,
  });
});
</script></body>"""


def browse(page: Path, width: int, *options: str) -> str:
    """Open ``page`` in a window that is ``width`` wide; what the browser prints."""
    command = [BROWSER, "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={width},{HEIGHT}", *options, page.as_uri()]
    home = {"HOME": str(page.parent)}  # where it keeps what it notes
    done = subprocess.run(
        command, env={**os.environ, **home}, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy that has nothing: its address, and what was asked of it so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def do_CONNECT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", asked
        server.shutdown()


def laid_out(page: Path, width: int) -> dict[str, Any]:
    """What the browser makes of ``page``, asked by a script that only this copy has."""
    asking = page.with_name(f"asking-{page.name}")
    text = page.read_text(encoding="utf-8")
    assert text.count("</body>") == 1
    asking.write_text(text.replace("</body>", ASK), encoding="utf-8")
    found = re.search(r'data-said="([^"]*)"', browse(asking, width, "--dump-dom"))
    assert found is not None
    said: dict[str, Any] = json.loads(html.unescape(found[1]))
    return said


def faults(page: Path, width: int) -> list[str]:
    """What is wrong with ``page`` as it is laid out and as it is seen."""
    said = laid_out(page, width)
    picture = page.with_suffix(".png")
    with proxy() as (address, fetched):
        options = (f"--proxy-server={address}", "--disable-background-networking")
        browse(page, width, f"--screenshot={picture}", *options)
    pixels = image.imread(picture)[:, :, :3]
    found = []
    if said["mode"] != "CSS1Compat":
        found.append("not standard mode")
    if fetched:
        found.append(f"fetches {fetched}")
    if said["beyond"] > 0:
        found.append(f"{said['beyond']} pixels wider than the window")
    if said["empty"]:
        found.append("columns without room")
    for kind in ("pictures", "tables"):
        if not said[kind]:
            found.append(f"no {kind}")
        for x, y, w, h in said[kind]:
            part = pixels[int(y) : int(y + h), int(x) : int(x + w)]
            if not part.size or (part < 0.6).any(axis=2).mean() < 1e-3:
                found.append(f"nothing to be seen in {kind}")
    colours = {tuple(c) for x, y, w, h in said["pictures"] for c in _coloured(pixels, x, y, w, h)}
    if len(colours) < 3:
        found.append("clusters have no colours")
    return found


def _coloured(pixels: Any, x: float, y: float, w: float, h: float) -> list[list[int]]:
    """Colours, coarsely, of what is neither grey nor nearly white."""
    part = pixels[int(y) : int(y + h), int(x) : int(x + w)].reshape(-1, 3)
    vivid = part[(part.max(axis=1) - part.min(axis=1)) > 0.25]
    coarse = (vivid * 4).round().astype(int)
    return [list(map(int, each)) for each in {tuple(each) for each in coarse}]


def page_of(what: str, path: Path) -> Path:
    """The page that is written into ``path``."""
    arguments = ["report", what, "--html", str(path)]
    assert CliRunner().invoke(group, arguments, catch_exceptions=False).exit_code == 0
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of("three-sites", tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def page_of_a_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    trace_in(folder)
    return page_of(str(folder), folder / "report.html")


@pytest.mark.parametrize("width", [WIDTH, 500])
def test_the_page_as_it_is_seen(page: Path, width: int) -> None:
    assert faults(page, width) == []


@pytest.mark.parametrize("width", [WIDTH, 500])
def test_the_page_of_a_job_as_it_is_seen(page_of_a_job: Path, width: int) -> None:
    assert faults(page_of_a_job, width) == []


def test_the_parts_of_a_jobs_page(page_of_a_job: Path) -> None:
    said = laid_out(page_of_a_job, WIDTH)
    assert said["headings"][1:] == ["Clusters", "Links", "Decisions", "Traffic"]
    assert len(said["tables"]) == 4
    assert {"123 ms", "246 ms", "2.0 x", "8 KiB"} <= {*said["cells"]}


def test_traffic_that_nobody_sees_is_a_fault(page_of_a_job: Path) -> None:
    broken = page_of_a_job.with_name("broken.html")
    text = page_of_a_job.read_text(encoding="utf-8")
    before, heading, after = text.partition("<h2>Traffic</h2>")
    assert heading
    broken.write_text(
        before + heading + after.replace("<table", "<table style='opacity: 0'", 1),
        encoding="utf-8",
    )
    assert "nothing to be seen in tables" in faults(broken, WIDTH)


def test_its_parts(page: Path) -> None:
    said = laid_out(page, WIDTH)
    assert said["headings"] == ["three-sites", "Clusters", "Links", "Decisions"]
    assert len(said["tables"]) == 3
    ((_, _, width, height),) = said["pictures"]
    assert width > 300
    assert height > 150


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("<!DOCTYPE html>", "", "not standard mode"),
        ("<h2>Links", "<img src='http://a.example/b.png'><h2>Links", "fetches"),
        ("<style>", "<style>@import url(https://a.example/b.css);", "fetches"),
        ("<h2>Links", "<p style='width: 3000px'>wide</p><h2>Links", "wider than the window"),
        ("</style>", "svg { opacity: 0 }</style>", "nothing to be seen in pictures"),
        ("</style>", "svg { filter: grayscale(1) }</style>", "no colours"),
        ("</style>", "table { color: #fff }</style>", "nothing to be seen in tables"),
    ],
)
def test_a_broken_page_is_seen(page: Path, old: str, new: str, fault: str) -> None:
    broken = page.with_name("broken.html")
    text = page.read_text(encoding="utf-8")
    assert old in text
    broken.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert any(fault in each for each in faults(broken, WIDTH))
