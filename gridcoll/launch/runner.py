"""Run an unmodified application as plain Python would, with its ``MPI.COMM_WORLD`` replaced.

Nothing here imports MPI or NumPy: the application may set ``mpi4py.rc``, thread limits and so on
before it imports them.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from mpi4py.run import set_abort_status

from gridcoll.errors import UsageError

_MPI = "mpi4py.MPI"


def when_mpi_is_imported(step: Callable[[], object]) -> None:
    """Call ``step`` as soon as ``mpi4py.MPI`` is loaded, before its importer can use it."""
    if _MPI in sys.modules:
        step()
    else:
        sys.meta_path.insert(0, _Finder(step))


class _Finder(importlib.abc.MetaPathFinder):
    """Find ``mpi4py.MPI`` once, by the ordinary finders, and add a step to its loading."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MPI:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._step)
        return spec


class _Loader(importlib.abc.Loader):
    """Load as ``loader`` does, then call ``step``."""

    def __init__(self, loader: importlib.abc.Loader, step: Callable[[], object]) -> None:
        self._loader = loader
        self._step = step

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._step()


def prepare_application(arguments: Sequence[str]) -> Callable[[], None]:
    """Prepare to run ``FILE ARGS…``, ``-m MODULE ARGS…`` or ``-c CODE ARGS…`` as ``python`` does.

    Sets ``sys.argv``, ``sys.path[0]`` and ``__main__``. The returned function runs the application
    and raises what it raises. As with ``python -m mpi4py``, an exception aborts all ranks of the
    job, with Python's exit code.

    Raises `UsageError` if there is nothing to run.
    """
    run = _prepare(list(arguments))
    return lambda: _run(run)


def _run(run: Callable[[], object]) -> None:
    try:
        run()
    except (SystemExit, KeyboardInterrupt) as error:
        set_abort_status(error)
        _hide_our_frames()
        raise
    except BaseException:
        set_abort_status(1)
        _hide_our_frames()
        raise


def _prepare(arguments: list[str]) -> Callable[[], object]:
    if not arguments:
        raise UsageError("run: name an application: FILE, -m MODULE or -c CODE")
    kind = arguments[0]
    if kind in ("-m", "-c") and len(arguments) < 2:
        raise UsageError(f"run: {kind} needs an argument")
    if kind == "-m":
        sys.argv[:] = arguments[1:]
        _set_first_path(str(Path.cwd()))
        _new_main()
        return lambda: runpy._run_module_as_main(sys.argv[0])  # type: ignore[attr-defined]
    if kind == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        _set_first_path("")
        return _executor_of(_new_main(), lambda: compile(arguments[1], "<string>", "exec", 0, True))
    if kind == "-":
        sys.argv[:] = arguments
        _set_first_path("")
        source = sys.stdin.read()
        return _executor_of(_new_main(), lambda: compile(source, "<stdin>", "exec", 0, True))
    return _prepare_file(arguments)


def _prepare_file(arguments: list[str]) -> Callable[[], object]:
    script = arguments[0]
    path = os.path.abspath(script)  # noqa: PTH100 - like Python, do not resolve links
    if not Path(path).exists():
        raise UsageError(f"run: application {script!r}: no such file")
    sys.argv[:] = arguments
    importer = pkgutil.get_importer(path)
    if importer is not None and importer.find_spec("__main__") is not None:
        _set_first_path(path)  # a directory or a zip file
        _new_main()
        run_package: Callable[..., object] = runpy._run_module_as_main  # type: ignore[attr-defined]
        return lambda: run_package("__main__", False)
    try:
        with io.open_code(path) as file:
            code = pkgutil.read_code(file)
        source = b"" if code else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"run: application {script!r}: {error.strerror}") from None
    _set_first_path(str(Path(path).resolve().parent))
    main = _new_main()
    main.__file__ = path
    main.__dict__["__cached__"] = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    return _executor_of(main, lambda: code or compile(source, path, "exec", 0, True))


def _executor_of(main: ModuleType, compiled: Callable[[], CodeType]) -> Callable[[], object]:
    # Compile late: a syntax error is an error of the application, and must abort the job.
    return lambda: exec(compiled(), main.__dict__)


def _new_main() -> ModuleType:
    """Replace our ``__main__`` by a new one, like the one that Python makes, and return it."""
    main = ModuleType("__main__")
    main.__loader__ = importlib.machinery.BuiltinImporter
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _set_first_path(path: str) -> None:
    """Replace the entry that Python added for us; in safe or isolated mode it added none."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = path


def _hide_our_frames() -> None:
    """Start the traceback where plain Python's starts, also for the application's own hook.

    The hook runs after the stack was unwound, when the traceback contains the frames above ours.
    """
    original_hook = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        shown = traceback
        while shown and shown.tb_frame.f_code is not _run.__code__:
            shown = shown.tb_next
        while shown and shown.tb_frame.f_code.co_filename == __file__:
            shown = shown.tb_next
        error.__traceback__ = shown
        original_hook(kind, error, shown)

    sys.excepthook = hook
