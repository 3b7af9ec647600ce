"""Options of ``gridcoll run``, parsed without click.

Nothing may be imported here that the application does not ask for.
"""

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
from gridcoll.variables import PREFIX, VARIABLES, override

if TYPE_CHECKING:
    from mpi4py import MPI

    from gridcoll.measure.clusters import Progress

SETTING_OPTIONS = {
    "--" + name.removeprefix(PREFIX).lower(): variable
    for name, variable in VARIABLES.items()
    if variable.option and "<" not in name
}
"""The options of `gridcoll run` that are settings, by name."""


def help_text() -> str:
    """Return what ``gridcoll run --help`` prints."""
    rows = [
        (option if variable.flag else f"{option} {variable.values}", variable.good_for)
        for option, variable in SETTING_OPTIONS.items()
    ]
    rows.append(("--COLLECTIVE NAME", "use this algorithm, for example --bcast ecef-la-max-t"))
    options = "\n".join(f"  {left:<20}  {right}" for left, right in rows)
    return f"""\
Usage: mpiexec -n N python -m gridcoll run [OPTIONS] FILE [ARGS]...
       mpiexec -n N python -m gridcoll run [OPTIONS] -m MODULE [ARGS]...
       mpiexec -n N python -m gridcoll run [OPTIONS] -c CODE [ARGS]...
       mpiexec -n N python -m gridcoll run [OPTIONS] PROGRAM [ARGS]...

  Run an unmodified mpi4py application with MPI.COMM_WORLD replaced by a
  grid-aware communicator, or a program in C, C++ or Fortran with gridcoll in
  front of its MPI library. Known hosts and links are checked; unknown ones
  are measured and kept for later jobs.

Options (each is also an environment variable GRIDCOLL_OPTION):
{options}
  --preload             Python programs: also serve MPI calls of compiled libraries
  --help                show this text
"""


def parse_run(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split ``argv`` into environment settings and the application with its arguments.

    Raises `UsageError` for an unknown option, or for an option without its value.
    """
    rest = list(argv)
    settings: dict[str, str] = {}
    while rest and rest[0].startswith("--") and rest[0] != "--":
        option, equals, value = rest.pop(0).partition("=")
        variable = SETTING_OPTIONS.get(option)
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
        settings[name] = _PATH_OPTIONS.get(option, str)(value)
    if rest and rest[0] == "--":
        del rest[0]
    if rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        raise UsageError(f"run: unknown option {rest[0]!r}; see gridcoll run --help")
    return settings, rest


def _require_collective(option: str, algorithm: str | None = None) -> None:
    """Raise `UsageError` unless ``option`` names a collective (and its value an algorithm)."""
    from gridcoll.plan import REGISTRIES  # imports NumPy: only if such an option is given
    from gridcoll.plan.registry import check_forced

    collective = option.removeprefix("--")
    if collective not in REGISTRIES:
        known = ", ".join([*SETTING_OPTIONS, *(f"--{name}" for name in REGISTRIES)])
        raise UsageError(f"run: unknown option {option!r}; known are {known}")
    if algorithm is not None:
        check_forced(collective, algorithm)


def _grid_path(value: str) -> str:
    """Return an absolute path, for applications that change directory before they import MPI."""
    try:
        return str(find_gridfile(value).absolute())
    except UsageError:
        return _absolute(value)  # rank 0 reads the file, perhaps on another host


def _absolute(value: str) -> str:
    return str(Path(value).absolute())


def _cache_path(value: str) -> str:
    return value if value == "off" else _absolute(value)


_PATH_OPTIONS = {"--grid": _grid_path, "--cache": _cache_path, "--keep": _cache_path}


def prepare_run(argv: Sequence[str]) -> Callable[[], object]:
    """Prepare ``gridcoll run ARGV``. The returned function runs it.

    That function raises what the application raises; this one `UsageError` for mistakes in
    ``argv``.
    """
    if argv and argv[0] in ("-h", "--help"):
        return lambda: sys.stdout.write(help_text())
    preload = argv[:1] == ["--preload"] or argv[:1] == ("--preload",)
    settings, application = parse_run(argv[1:] if preload else argv)
    if preload and not is_preloaded():
        run_again_preloaded()
    environment = override(os.environ, settings)
    for name in {*os.environ} - {*environment}:
        del os.environ[name]
    os.environ.update({**mpi_variables(), **environment})
    program = find_program(application[0]) if application else None
    if program is not None:
        return lambda: run_program(program, application)
    from gridcoll.launch.preload.below import warn_that_all_was_native
    from gridcoll.launch.runner import prepare_application, when_mpi_is_imported

    if not is_preloaded():
        atexit.register(warn_that_all_was_native)
    when_mpi_is_imported(_swap_world)
    return prepare_application(application)


def _swap_world() -> None:
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
    # If the grid-aware communicator cannot be made, the application must not continue without it.
    swap_world(fail, then)


def _open_bars() -> AbstractContextManager[Progress]:
    """Open progress bars for a slow start. A quick start does not load their library."""
    from gridcoll.cli.progress import Stages
    from gridcoll.measure.report import is_on_terminal

    return Stages(force_terminal=is_on_terminal())
