"""An application under ``gridcoll run`` behaves as under plain Python: here both are run."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROBE = """
import sys
main = sys.modules["__main__"]
print(__name__, sys.argv, sys.path[0], main.__dict__.get("__file__"), type(main.__loader__))
print(sorted(k for k in main.__dict__ if k.startswith("__")), main.__spec__ and main.__spec__.name)
print([name for name in ("numpy", "click", "rich", "mpi4py.MPI") if name in sys.modules])
print(globals() is main.__dict__, "annotations" in globals())
import atexit
atexit.register(lambda: print("at exit", main is sys.modules["__main__"], sys.argv))
"""

ENDINGS = {
    "exit": "raise SystemExit(7)",
    "exit-none": "raise SystemExit",
    "exit-text": "raise SystemExit('reason')",
    "error": "def f():\n    1 / 0\nf()",
    "chained": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('x') from e",
    "syntax": "x x",
    "own-hook": "import sys, traceback\n"
    "def hook(kind, error, tb):\n"
    "    print('HOOK', kind, error, [f.name for f in traceback.extract_tb(tb)])\n"
    "sys.excepthook = hook\nraise ValueError(3)",
    "interrupt": "raise KeyboardInterrupt",
    "group": "class E(BaseException): pass\nraise E('base')",
}


def run_python(*argv: str, cwd: Path, stdin: str = "") -> tuple[int, str, str]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *argv], cwd=cwd, input=stdin, capture_output=True, text=True, env=env
    )
    return done.returncode, done.stdout, done.stderr


def assert_same(*argv: str, cwd: Path, stdin: str = "") -> tuple[int, str, str]:
    plain = run_python(*argv, cwd=cwd, stdin=stdin)
    ours = run_python("-m", "gridcoll", "run", *argv, cwd=cwd, stdin=stdin)
    assert ours == plain
    return plain


def test_a_script(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "app.py").write_text(PROBE)
    (tmp_path / "link.py").symlink_to("sub/app.py")
    assert "__main__ ['sub/app.py', '--grid', '-x']" in assert_same(
        "sub/app.py", "--grid", "-x", cwd=tmp_path
    )[1]  # fmt: skip
    assert_same("link.py", cwd=tmp_path)


def test_a_module_and_a_package(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "__main__.py").write_text(PROBE + "from . import other\nother.f()\n")
    (tmp_path / "pack" / "other.py").write_text("def f():\n    raise OSError('deep')\n")
    code, out, _ = assert_same("-m", "pack", "-m", "--check", cwd=tmp_path)
    assert code == 1
    assert "pack" in out
    assert_same("-m", "pack.nosuch", cwd=tmp_path)


def test_code_and_standard_input(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("print('beside')")
    assert "beside" in assert_same("-c", PROBE + "import beside", "-c", "y", cwd=tmp_path)[1]
    assert "beside" in assert_same("-", "y", cwd=tmp_path, stdin="import beside")[1]


def test_a_directory_and_a_zip_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(PROBE)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", PROBE)
    assert_same("folder", "x", cwd=tmp_path)
    assert_same("app.zip", "x", cwd=tmp_path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_endings(ending: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ENDINGS[ending])
    assert_same("app.py", cwd=tmp_path)


def test_a_gridcoll_error_of_the_application_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from gridcoll.errors import UsageError\nraise UsageError(1)")
    code, _, error = assert_same("app.py", cwd=tmp_path)
    assert code == 1
    assert "Traceback" in error
