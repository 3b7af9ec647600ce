"""``gridcoll run`` by hand: it must not import what the application did not ask for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gridcoll.cli.gridfiles import find_gridfile
from gridcoll.errors import UsageError
from gridcoll.variables import PREFIX, VARIABLES

_PLAIN = {
    "--" + name.removeprefix(PREFIX).lower(): variable
    for name, variable in VARIABLES.items()
    if variable.option and "<" not in name
}


def help_text() -> str:
    """What ``gridcoll run --help`` prints."""
    rows = [
        (option if variable.flag else f"{option} {variable.values}", variable.good_for)
        for option, variable in _PLAIN.items()
    ]
    rows.append(("--COLLECTIVE NAME", "take this algorithm, as --bcast ecef-la-max-t"))
    options = "\n".join(f"  {left:<20}  {right}" for left, right in rows)
    return f"""\
Usage: mpiexec -n N python -m gridcoll run [OPTIONS] FILE [ARGS]...
       mpiexec -n N python -m gridcoll run [OPTIONS] -m MODULE [ARGS]...
       mpiexec -n N python -m gridcoll run [OPTIONS] -c CODE [ARGS]...

  Run an unmodified mpi4py application with MPI.COMM_WORLD replaced by a
  grid-aware communicator. Without a grid file the network is measured first;
  with --keep FILE.json, or --keep DIR, only the first time on these hosts.

Options (each as the environment variable GRIDCOLL_OPTION):
{options}
  --help                show this text
"""


def parse_run(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split ``argv`` into environment settings and the application with its arguments.

    Raises `UsageError` for an option nobody knows, or one without its value.
    """
    rest = list(argv)
    settings: dict[str, str] = {}
    while rest and rest[0].startswith("--") and rest[0] != "--":
        option, equals, value = rest.pop(0).partition("=")
        variable = _PLAIN.get(option)
        if variable is not None and variable.flag:
            if equals:
                raise UsageError(f"run: {option} takes no value, got {value!r}")
            value = "1"
        elif not equals:
            if variable is None:
                _require_collective(option)
            if not rest:
                raise UsageError(f"run: {option} needs a value")
            value = rest.pop(0)
        if variable is None:
            _require_collective(option, value)
        name = PREFIX + option.removeprefix("--").upper()
        settings[name] = _PATHS.get(option, str)(value)
    if rest and rest[0] == "--":
        del rest[0]
    if rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        raise UsageError(f"run: unknown option {rest[0]!r}; see gridcoll run --help")
    return settings, rest


def _require_collective(option: str, algorithm: str | None = None) -> None:
    """Raise `UsageError` unless ``option`` names a collective (and its value an algorithm)."""
    from gridcoll.plan import REGISTRIES  # NumPy comes with it: only if such an option is given
    from gridcoll.plan.registry import check_forced

    collective = option.removeprefix("--")
    if collective not in REGISTRIES:
        known = ", ".join([*_PLAIN, *(f"--{name}" for name in REGISTRIES)])
        raise UsageError(f"run: unknown option {option!r}; known are {known}")
    if algorithm is not None:
        check_forced(collective, algorithm)


def _grid_path(value: str) -> str:
    """An absolute path, for applications that change directory before they import MPI."""
    try:
        return str(find_gridfile(value).absolute())
    except UsageError:
        return _absolute(value)  # rank 0 reads it; its host may have it


def _absolute(value: str) -> str:
    return str(Path(value).absolute())


_PATHS = {"--grid": _grid_path, "--keep": _absolute}


def prepare_run(argv: Sequence[str]) -> Callable[[], object]:
    """Get ready for ``gridcoll run ARGV``; the result does it, raising what the application raises.

    Raises `UsageError` for a mistake in ``argv``.
    """
    if argv and argv[0] in ("-h", "--help"):
        return lambda: sys.stdout.write(help_text())
    settings, application = parse_run(argv)
    os.environ.update(settings)
    from gridcoll.launch.runner import prepare_application, when_mpi_is_imported

    when_mpi_is_imported(_swap)
    return prepare_application(application)


def _swap() -> None:
    from gridcoll.cli.voice import end_together
    from gridcoll.launch.world import swap_world

    # An application must not go on without the communicator it was promised.
    swap_world(end_together)
