"""One name of an option has one meaning in all commands, and those that it had still work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from gridcoll.cli.group import group
from gridcoll.cli.options import RenamedOptions
from gridcoll.cli.run_options import SETTING_OPTIONS

EXCEPTIONS = {
    "--check": "of `testbed`: a grid is measured before it is used; of `run`: calls are compared",
}
"""Names with more than one meaning, each with these."""


def commands(command: click.Command = group, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group, by its full name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        assert found is not None
        yield from commands(found, f"{name} {each}".strip())


def options() -> list[tuple[str, str, str]]:
    """Name, command and help of each option, those of `run` and short names, too."""
    found = [
        (option, name, parameter.help or "")
        for name, command in commands()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    ]
    return found + [
        (option, "run", variable.good_for) for option, variable in SETTING_OPTIONS.items()
    ]


def meaning(text: str) -> str:
    """How a help text begins: what follows is of the one command."""
    return re.split(r"[,;:]|\.$", text, maxsplit=1)[0].strip().lower()


def ambiguous(said: list[tuple[str, str, str]]) -> dict[str, dict[str, list[str]]]:
    """Names with several meanings: the commands of each."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for option, name, text in said:
        found[option][meaning(text)].append(name)
    return {option: dict(by) for option, by in found.items() if len(by) > 1}


def test_one_name_has_one_meaning() -> None:
    said = options()
    assert len({name for _, name, _ in said}) > 20
    assert {*ambiguous(said)} == {*EXCEPTIONS}


def test_another_meaning_is_seen() -> None:
    other = [*options(), ("--json", "moon", "write moons"), ("--sizes", "moon", "kilograms, as 8")]
    assert {*ambiguous(other)} == {*EXCEPTIONS, "--json", "--sizes"}


def test_every_option_has_a_help_text() -> None:
    assert [(option, name) for option, name, text in options() if not text] == []


def test_output_is_short_everywhere() -> None:
    by_name = {
        option: {name for each, name, _ in options() if each == option}
        for option in ("-o", "--output")
    }
    assert by_name["-o"] == by_name["--output"]
    assert len(by_name["-o"]) > 8


def test_a_grid_is_called_grid_everywhere() -> None:
    """Where GRID is an argument, ``--grid`` does as well; but a testbed is nothing without one."""
    for name, command in commands():
        names = {parameter.name for parameter in command.params}
        if "grid" in names and not name.startswith("testbed"):
            assert "--grid" in {o for p in command.params for o in p.opts}, name


@pytest.mark.parametrize(
    "words",
    [
        ["show", "three-sites", "--json"],
        ["report", "three-sites", "--json", "--collectives", "bcast", "--sizes", "8"],
        ["hostfile", "three-sites", "--mpi", "mpich"],
    ],
    ids=lambda words: words[0],
)
def test_a_grid_by_option(words: list[str]) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(group, arguments)
        return done.exit_code, done.output

    as_argument = said(*words)
    assert as_argument[0] == 0
    assert said(words[0], *words[2:], "--grid", words[1]) == as_argument
    code, text = said(*words, "--grid", words[1])
    assert code == 2
    assert "give one of them" in text
    if words[0] != "show":  # without a grid it shows what the cache knows
        code, text = said(words[0], *words[2:])
        assert code == 2
        assert "Missing argument 'GRID', or option '--grid'" in text


def renamed() -> list[tuple[str, str, str]]:
    return [
        (name, old, new)
        for name, command in commands()
        if isinstance(command, RenamedOptions)
        for old, new in command.renamed.items()
    ]


@pytest.mark.parametrize(("name", "old", "new"), renamed())
def test_former_names_are_taken(name: str, old: str, new: str) -> None:
    command = dict(commands())[name]
    options_now = {option for p in command.params for option in p.opts}
    assert new in options_now
    assert old not in options_now
    arguments = ["--", "x"] if name != "bench" else ["bcast"]
    contexts = [
        command.make_context(name, [f"{each}=7", *arguments], resilient_parsing=True)
        for each in (old, new)
    ]
    assert contexts[0].params == contexts[1].params
    assert "7" in str(contexts[0].params)


def test_bench_had_other_names() -> None:
    assert {(old, new) for name, old, new in renamed() if name == "bench"} == {
        ("--algorithms", "--algorithm"),
        ("--model-file", "--model"),
        ("--keep", "--model"),
        ("--trace", "--trace-plot"),
    }


def test_what_follows_two_dashes_is_left_alone() -> None:
    command = RenamedOptions(
        "any", params=[click.Argument(["words"], nargs=-1)], renamed={"--old": "--new"}
    )
    context = command.make_context("any", ["a", "--", "--old", "b"])
    assert context.params["words"] == ("a", "--old", "b")


def test_a_model_is_not_a_cache() -> None:
    """`bench --keep FILE` was what `run --keep DIR` is not."""
    keeps = {name for option, name, _ in options() if option == "--keep"}
    assert keeps == {"run"}
