"""``gridcoll run`` by hand: it must not import what the application did not ask for."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from gridcoll.errors import GridcollError, UsageError
from gridcoll.gridfiles import find_gridfile
from gridcoll.launch.programs import (
    find_program,
    is_preloaded,
    mpi_variables,
    run_again_preloaded,
    run_program,
)
from gridcoll.variables import PREFIX, VARIABLES, over

if TYPE_CHECKING:
    from mpi4py import MPI

    from gridcoll.measure.clusters import Progress

PLAIN = {
    "--" + name.removeprefix(PREFIX).lower(): variable
    for name, variable in VARIABLES.items()
    if variable.option and "<" not in name
}
"""Options of `gridcoll run` that are settings, by name."""


def help_text() -> str:
    """What ``gridcoll run --help`` prints."""
    rows = [
        (option if variable.flag else f"{option} {variable.values}", variable.good_for)
        for option, variable in PLAIN.items()
    ]
    rows.append(("--COLLECTIVE NAME", "take this algorithm, as --bcast ecef-la-max-t"))
    options = "\n".join(f"  {left:<20}  {right}" for left, right in rows)
    return f"""\
Usage: mpiexec -n N python -m gridcoll run [OPTIONS] FILE [ARGS]...
       mpiexec -n N python -m gridcoll run [OPTIONS] -m MODULE [ARGS]...
       mpiexec -n N python -m gridcoll run [OPTIONS] -c CODE [ARGS]...
       mpiexec -n N python -m gridcoll run [OPTIONS] PROGRAM [ARGS]...

  Run an unmodified mpi4py application with MPI.COMM_WORLD replaced by a
  grid-aware communicator, or a program in C, C++ or Fortran with gridcoll in
  front of its MPI library. What is known of the hosts and their links is
  checked; what is not known is measured and kept.

Options (each as the environment variable GRIDCOLL_OPTION):
{options}
  --preload             Python: also what compiled libraries call of MPI
  --help                show this text
"""


def parse_run(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split ``argv`` into environment settings and the application with its arguments.

    Raises `UsageError` for an unknown option, or one without its value.
    """
    rest = list(argv)
    settings: dict[str, str] = {}
    while rest and rest[0].startswith("--") and rest[0] != "--":
        option, equals, value = rest.pop(0).partition("=")
        variable = PLAIN.get(option)
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
        known = ", ".join([*PLAIN, *(f"--{name}" for name in REGISTRIES)])
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


def _cache_path(value: str) -> str:
    return value if value == "off" else _absolute(value)


_PATHS = {"--grid": _grid_path, "--cache": _cache_path, "--keep": _cache_path}


def prepare_run(argv: Sequence[str]) -> Callable[[], object]:
    """Get ready for ``gridcoll run ARGV``; the result does it, raising what the application raises.

    Raises `UsageError` for a mistake in ``argv``.
    """
    if argv and argv[0] in ("-h", "--help"):
        return lambda: sys.stdout.write(help_text())
    below = argv[:1] == ["--preload"] or argv[:1] == ("--preload",)
    settings, application = parse_run(argv[1:] if below else argv)
    if below and not is_preloaded():
        run_again_preloaded()
    said = over(os.environ, settings)
    for name in {*os.environ} - {*said}:
        del os.environ[name]
    os.environ.update({**mpi_variables(), **said})
    program = find_program(application[0]) if application else None
    if program is not None:
        return lambda: run_program(program, application)
    from gridcoll.launch.preload.below import warn_that_all_was_native
    from gridcoll.launch.runner import prepare_application, when_mpi_is_imported

    if not is_preloaded():
        atexit.register(warn_that_all_was_native)
    when_mpi_is_imported(_swap)
    return prepare_application(application)


def _swap() -> None:
    from gridcoll.cli.voice import end_together
    from gridcoll.launch.preload.below import start_library, warn_that_all_was_native
    from gridcoll.launch.world import swap_world
    from gridcoll.measure.report import show_progress_with

    def then() -> None:
        atexit.unregister(warn_that_all_was_native)
        if is_preloaded():
            start_library()

    def fail(error: GridcollError, world: MPI.Intracomm) -> None:
        atexit.unregister(warn_that_all_was_native)
        end_together(error, world)

    show_progress_with(_open_bars)
    # An application must not go on without the communicator it was promised.
    swap_world(fail, then)


def _open_bars() -> AbstractContextManager[Progress]:
    """Bars for a start that takes long: one that is quick loads no library for them."""
    from gridcoll.cli.progress import Stages
    from gridcoll.measure.report import is_on_terminal

    return Stages(force_terminal=is_on_terminal())
