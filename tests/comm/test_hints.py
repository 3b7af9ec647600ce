"""Keywords win over hints, hints over the environment, that over the default.

Options of `gridcoll run` are the environment's.
"""

from __future__ import annotations

from collections.abc import KeysView
from pathlib import Path
from typing import Any

import pytest

from gridcoll.cli.run_options import parse_run
from gridcoll.comm.hints import NAMES, OF_THE_PROCESS, Keywords, environment_with
from gridcoll.comm.settings import read_settings
from gridcoll.errors import UsageError
from gridcoll.variables import PREFIX, VARIABLES


class Info(dict[str, str]):
    """As `MPI.Info`, as far as it is used."""

    def Get(self, key: str) -> str | None:
        return self.get(key)

    def keys(self) -> KeysView[str]:
        return super().keys()


EXAMPLES: dict[str, tuple[Any, str]] = {
    "grid": (Path("/here/grid.toml"), "there.toml"),
    "cache": (Path("/here"), "/there"),
    "keep": ("/here", "/there"),
    "check": (True, "0"),
    "force": ("grid", "native"),
    "tolerance": (0.2, "0.4"),
    "reproducible": (True, "0"),
    "learn": (True, "off"),
    "log": ("decisions", ""),
}
"""By setting: a keyword, and something else as text."""


def by_option(name: str, value: str) -> dict[str, str]:
    """What `gridcoll run` puts into the environment for the option of that name."""
    flag = VARIABLES.get(f"{PREFIX}{name.upper()}", VARIABLES["GRIDCOLL_GRID"]).flag
    option = [f"--{name}"] if flag else [f"--{name}", value]
    settings, application = parse_run([*option, "app.py", "--check"])
    assert application == ["app.py", "--check"]
    return settings


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_in_four_ways(name: str) -> None:
    keyword, other = EXAMPLES[name]
    variable = f"{PREFIX}{name.upper()}"
    keywords: Any = {name: keyword}
    by_keyword = read_settings(environment_with(keywords, {}))
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
    assert of_jobs <= here
    # Where a keyword has no variable yet, it is refused like any other.
    assert {*Keywords.__annotations__} - {"algorithms", "info", "learn"} <= {*NAMES}


@pytest.mark.parametrize(
    ("name", "value"), list(zip(OF_THE_PROCESS, ("python", "1", "1", "/here"), strict=True))
)
def test_settings_of_the_process(name: str, value: str) -> None:
    """Two ways: the environment, and the option."""
    assert by_option(name, value) == {f"{PREFIX}{name.upper()}": value}


def test_algorithms() -> None:
    said = environment_with({"algorithms": {"bcast": "ecef"}}, {"GRIDCOLL_BCAST": "flat"})
    assert read_settings(said).algorithms == {"bcast": "ecef"}
    assert read_settings(by_option("bcast", "ecef")).algorithms == {"bcast": "ecef"}
    info: Any = Info(gridcoll_bcast="flat")
    assert read_settings(environment_with({"info": info}, {})).algorithms == {"bcast": "flat"}


@pytest.mark.parametrize(
    ("keywords", "fault"),
    [
        ({"speed": "high"}, "unknown keyword 'speed'"),
        ({"engine": "python"}, "unknown keyword 'engine'"),
        ({"algorithms": {"scan": "flat"}}, "algorithms 'scan'"),
        ({"algorithms": "flat"}, "must map collectives"),
        ({"info": Info(gridcoll_speed="high")}, "hint 'speed'"),
    ],
)
def test_what_no_setting_is_called_is_refused(keywords: Any, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        environment_with(keywords, {})


def test_values_are_checked() -> None:
    with pytest.raises(UsageError, match="GRIDCOLL_FORCE"):
        read_settings(environment_with({"force": "sometimes"}, {}))
