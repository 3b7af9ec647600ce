"""Shell completion of names that click does not know by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from gridcoll.cli.run_options import SETTING_OPTIONS

Items = list[CompletionItem]

OTHER_OPTIONS = {
    "--preload": "Python programs: also serve MPI calls of compiled libraries",
    "--help": "show the help text",
}
"""Options of `gridcoll run` that are not settings."""


def algorithms(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Complete names of algorithms of the collectives already given, or of all collectives."""
    from gridcoll.plan import REGISTRIES

    given = ctx.params.get("collective") or ctx.params.get("collectives") or ()
    # Click does not parse arguments while an option lacks its value, as is the case here.
    words = [*([given] if isinstance(given, str) else given), *ctx.args]
    named = {word.partition(":")[0] for word in words}
    # Several names may be given with commas between them; the last one is completed.
    before, comma, last = incomplete.rpartition(",")
    found = dict.fromkeys(
        name
        for collective in ([each for each in REGISTRIES if each in named] or REGISTRIES)
        for name in _names(collective)
    )
    return [CompletionItem(before + comma + name) for name in _starting_with(found, last)]


def _names(collective: str) -> list[str]:
    """Return the names that may be asked for: algorithms and natives."""
    from gridcoll.plan import REGISTRIES
    from gridcoll.plan.natives import natives_of

    return [*REGISTRIES[collective], *natives_of(collective)]


def _starting_with(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


class RunCommand(click.Command):
    """`gridcoll run`, which parses and completes its options itself."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> Items:
        """Complete options before the application, and files after it."""
        if _is_application_given(_words(ctx)):
            return [CompletionItem(incomplete, type="file")]
        from gridcoll.plan import REGISTRIES

        options = {option: variable.good_for for option, variable in SETTING_OPTIONS.items()}
        options |= {f"--{name}": f"use this algorithm for {name}" for name in REGISTRIES}
        options |= OTHER_OPTIONS
        return [
            CompletionItem(name, help=options[name]) for name in _starting_with(options, incomplete)
        ]


def value_or_file(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Complete the value of the preceding option of `gridcoll run`, or a file."""
    words = _words(ctx)
    if not words or _is_application_given(words[:-1]):
        return [CompletionItem(incomplete, type="file")]
    variable = SETTING_OPTIONS.get(words[-1])
    if variable is not None and not variable.flag:
        values = [each for each in variable.values.split("|") if re.fullmatch("[a-z]+", each)]
        found = [CompletionItem(value) for value in _starting_with(values, incomplete)]
        kind = "dir" if "DIR" in variable.values else "file"
        is_path = "DIR" in variable.values or "FILE" in variable.values
        return [*found, CompletionItem(incomplete, type=kind)] if is_path else found
    from gridcoll.plan import REGISTRIES

    if (collective := words[-1].removeprefix("--")) in REGISTRIES and words[-1] != collective:
        return [CompletionItem(name) for name in _starting_with(_names(collective), incomplete)]
    return [CompletionItem(incomplete, type="file")]


def _words(ctx: click.Context) -> list[str]:
    """Return the words between ``gridcoll run`` and the one being completed."""
    return [*ctx.params.get("argv", ()), *ctx.args]


def _is_application_given(words: list[str]) -> bool:
    """Whether gridcoll's own options have ended, so that the rest is for the application."""
    at = 0
    while at < len(words) and words[at].startswith("--") and words[at] != "--":
        name, equals, _ = words[at].partition("=")
        variable = SETTING_OPTIONS.get(name)
        takes_value = not equals and name not in OTHER_OPTIONS and not (variable and variable.flag)
        at += 1 + takes_value
    return at < len(words)
