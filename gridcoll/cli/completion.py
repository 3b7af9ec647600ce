"""What a shell offers for names that click does not know by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from gridcoll.cli.run_options import PLAIN

Items = list[CompletionItem]

OTHERS = {
    "--preload": "Python: also what compiled libraries call of MPI",
    "--help": "show what there is",
}
"""Options of `gridcoll run` that are no settings."""


def algorithms(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Names of algorithms: of the collective that stands before, else of all."""
    from gridcoll.plan import REGISTRIES

    given = ctx.params.get("collective") or ctx.params.get("collectives") or ()
    # Click leaves arguments unread where an option stands without its value, as here.
    words = [*([given] if isinstance(given, str) else given), *ctx.args]
    named = {word.partition(":")[0] for word in words}
    # As many as there are, by commas: what is offered is the last one.
    before, comma, last = incomplete.rpartition(",")
    found = dict.fromkeys(
        name
        for collective in ([each for each in REGISTRIES if each in named] or REGISTRIES)
        for name in _names(collective)
    )
    return [CompletionItem(before + comma + name) for name in _begun(found, last)]


def _names(collective: str) -> list[str]:
    """What may be asked for: algorithms and natives."""
    from gridcoll.plan import REGISTRIES
    from gridcoll.plan.natives import natives_of

    return [*REGISTRIES[collective], *natives_of(collective)]


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


class RunCommand(click.Command):
    """`gridcoll run`, which reads its options itself, and completes them."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> Items:
        """Options, as long as no application stands there; files after it."""
        if _is_application_given(_words(ctx)):
            return [CompletionItem(incomplete, type="file")]
        from gridcoll.plan import REGISTRIES

        options = {option: variable.good_for for option, variable in PLAIN.items()}
        options |= {f"--{name}": f"take this algorithm for {name}" for name in REGISTRIES}
        options |= OTHERS
        return [CompletionItem(name, help=options[name]) for name in _begun(options, incomplete)]


def value_or_file(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """The value of the option of `gridcoll run` before it; else a file: the application's."""
    words = _words(ctx)
    if not words or _is_application_given(words[:-1]):
        return [CompletionItem(incomplete, type="file")]
    variable = PLAIN.get(words[-1])
    if variable is not None and not variable.flag:
        values = [each for each in variable.values.split("|") if re.fullmatch("[a-z]+", each)]
        found = [CompletionItem(value) for value in _begun(values, incomplete)]
        kind = "dir" if "DIR" in variable.values else "file"
        is_path = "DIR" in variable.values or "FILE" in variable.values
        return [*found, CompletionItem(incomplete, type=kind)] if is_path else found
    from gridcoll.plan import REGISTRIES

    if (collective := words[-1].removeprefix("--")) in REGISTRIES and words[-1] != collective:
        return [CompletionItem(name) for name in _begun(_names(collective), incomplete)]
    return [CompletionItem(incomplete, type="file")]


def _words(ctx: click.Context) -> list[str]:
    """What stands between ``gridcoll run`` and what is being completed."""
    return [*ctx.params.get("argv", ()), *ctx.args]


def _is_application_given(words: list[str]) -> bool:
    """Whether options of ours are over, so that the rest is the application's."""
    at = 0
    while at < len(words) and words[at].startswith("--") and words[at] != "--":
        name, equals, _ = words[at].partition("=")
        variable = PLAIN.get(name)
        takes_value = not equals and name not in OTHERS and not (variable and variable.flag)
        at += 1 + takes_value
    return at < len(words)
