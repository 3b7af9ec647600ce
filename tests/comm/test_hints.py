"""Keywords win over hints, hints over the environment, that over the default.

Options of `gridcoll run` are the environment's.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Iterator, KeysView
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gridcoll.cli.run_options import parse_run, prepare_run
from gridcoll.comm.settings import (
    NAMES,
    OF_THE_PROCESS,
    Keywords,
    environment_with,
    misspelt,
    read_settings,
)
from gridcoll.errors import UsageError
from gridcoll.launch import runner
from gridcoll.measure.cache.folder import NOWHERE
from gridcoll.plan import REGISTRIES
from gridcoll.variables import PREFIX, VARIABLES
from tests.examples import ROOT


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`prepare_run` waits for an application to import MPI, and for the end of the process."""
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    yield
    sys.meta_path[:] = [each for each in sys.meta_path if type(each) is not runner._Finder]


class Info(dict[str, str]):
    """As `MPI.Info`, as far as it is used."""

    def Get(self, key: str) -> str | None:
        return self.get(key)

    def keys(self) -> KeysView[str]:
        return super().keys()


EXAMPLES: dict[str, tuple[Any, str, str, Any]] = {
    "grid": (Path("/here/grid.toml"), "there.toml", "grid_file", ""),
    "cache": (Path("/here"), "/there", "places", NOWHERE),
    "keep": ("/here", "/there", "places", NOWHERE),
    "check": (True, "0", "check", False),
    "force": ("grid", "native", "force", ""),
    "tolerance": (0.2, "0.4", "tolerance", 0.3),
    "reproducible": (True, "0", "reproducible", False),
    "learn": (False, "on", "learn", True),
    "log": ("decisions", "", "log_decisions", False),
}
"""By setting: a keyword, something else as text, what it decides, and the default of that."""


def by_option(name: str, value: str) -> dict[str, str]:
    """What `gridcoll run` puts into the environment for the option of that name."""
    flag = VARIABLES.get(f"{PREFIX}{name.upper()}", VARIABLES["GRIDCOLL_GRID"]).flag
    option = [f"--{name}"] if flag else [f"--{name}", value]
    settings, application = parse_run([*option, "app.py", "--check"])
    assert application == ["app.py", "--check"]
    return settings


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_in_four_ways(name: str) -> None:
    keyword, other, field, default = EXAMPLES[name]
    variable = f"{PREFIX}{name.upper()}"
    keywords: Any = {name: keyword}
    by_keyword = read_settings(environment_with(keywords, {}))
    # An example that is the default would show nothing.
    assert getattr(read_settings({}), field) == default
    assert getattr(by_keyword, field) != default
    assert replace(by_keyword, **{field: default}) == read_settings({})
    in_environment = {variable: environment_with(keywords, {})[variable]}
    info: Any = Info({f"gridcoll_{name}": in_environment[variable], "other": "left alone"})
    assert read_settings(environment_with({}, in_environment)) == by_keyword
    assert read_settings(environment_with({"info": info}, {})) == by_keyword
    assert read_settings(by_option(name, in_environment[variable])) == by_keyword
    # What is before another wins.
    assert environment_with({"info": info}, {variable: other})[variable] != other
    assert environment_with(keywords, {variable: other})[variable] != other
    against: Any = Info({f"gridcoll_{name}": other})
    both: Any = {name: keyword, "info": against}
    assert read_settings(environment_with(both, {})) == by_keyword
    assert environment_with({}, {}) == {}


def test_every_setting_of_a_job_is_one_of_communicators() -> None:
    of_jobs = {v.name for v in VARIABLES.values() if v.option and "<" not in v.name}
    here = {f"{PREFIX}{name.upper()}" for name in (*NAMES, *OF_THE_PROCESS)}
    assert of_jobs == here


def test_keywords_are_declared_and_described() -> None:
    """What is accepted is what type checkers and readers of the docstring know of."""
    assert {*Keywords.__annotations__} == {*NAMES, "algorithms", "info"}
    source = (ROOT / "gridcoll/comm/communicator.py").read_text(encoding="utf-8")
    described = source.split("**settings\n")[1].split("Raises\n")[0]
    names = {*re.findall(r"``(\w+)``", described), *re.findall(r"``(algorithms)`` as", described)}
    assert names - {"gridcoll_"} == {*Keywords.__annotations__}


@pytest.mark.parametrize("place", ["keyword", "hint", "option"])
@pytest.mark.parametrize(("mine", "other"), [("cache", "keep"), ("keep", "cache")])
def test_either_name_of_the_cache_wins_over_both_below_it(
    place: str, mine: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are one setting: what the environment calls ``other`` is replaced, too."""
    below = {f"{PREFIX}{other.upper()}": "/below"}
    keywords: Any = {mine: "/above"}
    if place == "hint":
        keywords = {"info": Info({f"gridcoll_{mine}": "/above"})}
    said = environment_with(keywords, below)
    if place == "option":
        monkeypatch.setattr(os, "environ", dict(below))
        prepare_run([f"--{mine}", "/above", "-c", "pass"])
        said = dict(os.environ)
    assert read_settings(said).places.own == Path("/above")


@pytest.mark.parametrize("said", [{}, {"UCX_TCP_KEEPIDLE": "30s"}])
@pytest.mark.parametrize(
    "other",
    ["", "TLS=all", "TLS=sm,tcp", "TLS=^ib", "NET_DEVICES=eth0", "NET_DEVICES=mlx5_0:1,eth0"],
)
def test_mpich_keeps_idle_connections_unless_told_otherwise(
    said: dict[str, str], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, value = other.partition("=")
    monkeypatch.setattr(os, "environ", {**said, f"UCX_{name}": value} if other else dict(said))
    prepare_run(["-c", "pass"])
    assert os.environ["UCX_TCP_KEEPIDLE"] == said.get("UCX_TCP_KEEPIDLE", "inf")


@pytest.mark.parametrize(
    "other", ["TLS=rc,sm,self", "TLS=^tcp", "TLS=^ib,tcp", "NET_DEVICES=mlx5_0:1,mlx5_1:1"]
)
def test_ucx_without_tcp_is_told_nothing_of_it(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would say on every rank that it does not use it."""
    name, _, value = other.partition("=")
    monkeypatch.setattr(os, "environ", {f"UCX_{name}": value})
    prepare_run(["-c", "pass"])
    assert "UCX_TCP_KEEPIDLE" not in os.environ


@pytest.mark.parametrize(
    ("name", "value"), list(zip(OF_THE_PROCESS, ("python", "1", "1", "/here"), strict=True))
)
def test_settings_of_the_process(name: str, value: str) -> None:
    """Two ways: the environment, and the option."""
    assert by_option(name, value) == {f"{PREFIX}{name.upper()}": value}


@pytest.mark.parametrize("collective", REGISTRIES)
def test_algorithms(collective: str) -> None:
    """Each collective's in four ways, in the same order."""
    mine, other = [*REGISTRIES[collective], "native"][:2]
    variable = f"{PREFIX}{collective.upper()}"
    assert read_settings({}).algorithms == {}
    wanted = {collective: mine}
    said = environment_with({"algorithms": wanted}, {variable: other})
    assert read_settings(said).algorithms == wanted
    assert read_settings({variable: mine}).algorithms == wanted
    assert read_settings(by_option(collective, mine)).algorithms == wanted
    info: Any = Info({f"gridcoll_{collective}": mine})
    by_hint = environment_with({"info": info}, {variable: other})
    assert read_settings(by_hint).algorithms == wanted
    both = environment_with({"algorithms": {collective: other}, "info": info}, {})
    assert read_settings(both).algorithms == {collective: other}


@pytest.mark.parametrize(
    ("keywords", "fault"),
    [
        ({"speed": "high"}, "unknown keyword 'speed'; known are grid, .*, log, algorithms, info$"),
        ({"tolerence": 1}, r"'tolerence'; known are grid, .*; did you mean tolerance\?$"),
        ({"engine": "python"}, "unknown keyword 'engine'"),
        ({"algorithms": {"scan": "flat"}}, "algorithms 'scan'"),
        ({"algorithms": {"bcst": "flat"}}, r"algorithms 'bcst': .*; did you mean bcast\?$"),
        ({"algorithms": {3: "flat"}}, "algorithms 3: known are "),
        ({"algorithms": "flat"}, "must map collectives"),
        ({"info": Info(gridcoll_speed="x")}, "^hint 'gridcoll_speed': .*gridcoll_reduce_scatter$"),
        ({"info": Info(gridcoll_chek="1")}, r"'gridcoll_chek': .*did you mean gridcoll_check\?$"),
        ({"grid": ["a model, say"]}, "^grid: must be a path or the name of a grid, got a list"),
        ({"cache": False}, "^cache: must be a directory or 'off', got False"),
        ({"keep": 3}, "^keep: must be a directory or 'off', got 3"),
        ({"info": {"gridcoll_check": "1"}}, "^info: must be an MPI.Info, got {'gridcoll_check"),
    ],
)
def test_what_no_setting_is_called_is_refused(keywords: Any, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        environment_with(keywords, {})


WRONG: dict[str, tuple[Any, str, str]] = {
    "check": (2, "must be 0 or 1, got '2'", "must be True or False, got 2"),
    "reproducible": ("x", "must be 0 or 1, got 'x'", "must be True or False, got 'x'"),
    "learn": (1, "must be on or off, got '1'", "must be True or False, got 1"),
    "force": ("sometimes", "must be grid or native, got 'sometimes'", ""),
    "tolerance": (77, "must be in [0, 10), got 77.0", ""),
    "log": (True, "must be decisions, got 'True'", ""),
    "cache": ("/dev/null", "must be a directory or off, got '/dev/null'", ""),
    "keep": ("grid.toml", "must be a directory or off, got 'grid.toml'", ""),
}
"""By setting: a wrong value, the message about it, and that about a keyword if it is another."""


@pytest.mark.parametrize("name", [*NAMES][1:])  # the grid's errors name the file
def test_an_error_names_what_the_user_wrote(name: str) -> None:
    value, message, of_keyword = WRONG[name]
    variable, keywords = f"{PREFIX}{name.upper()}", {name: value}
    hints = {"info": Info({f"gridcoll_{name}": str(value)})}
    for place, said, given in (
        (name, of_keyword or message, lambda: environment_with(keywords, {variable: ""})),  # type: ignore[arg-type]
        (f"gridcoll_{name}", message, lambda: environment_with(hints, {variable: ""})),  # type: ignore[arg-type]
        (variable, message, lambda: {variable: str(value)}),
    ):
        with pytest.raises(UsageError, match=f"^{re.escape(f'{place}: {said}')}"):
            read_settings(given())


@pytest.mark.parametrize(
    ("place", "keywords", "environment"),
    [
        ("algorithms", {"algorithms": {"bcast": "chian"}}, {"GRIDCOLL_BCAST": "flat"}),
        ("gridcoll_bcast", {"info": Info(gridcoll_bcast="chian")}, {"GRIDCOLL_BCAST": "flat"}),
        ("GRIDCOLL_BCAST", {}, {"GRIDCOLL_BCAST": "chian"}),
    ],
)
def test_an_unknown_algorithm(place: str, keywords: Any, environment: dict[str, str]) -> None:
    said = rf"^{place}: bcast algorithm 'chian': known are native, .*; did you mean chain\?$"
    with pytest.raises(UsageError, match=said):
        read_settings(environment_with(keywords, environment))


def test_a_name_that_is_nearly_a_setting_is_told_from_others() -> None:
    said = misspelt({"GRIDCOLL_BCST": "flat", "GRIDCOLL_LEARNS": "off", "OTHER_BCST": ""})
    assert said == (
        "GRIDCOLL_BCST is no setting; GRIDCOLL_BCAST is, and "
        "GRIDCOLL_LEARNS is no setting; GRIDCOLL_LEARN is"
    )
    ours = [*(name for name in VARIABLES if "<" not in name), "GRIDCOLL_ALLREDUCE"]
    assert not misspelt(dict.fromkeys([*ours, "GRIDCOLL_TEST_RANKS", "GRIDCOLL_SITE_LISTS"], "1"))
