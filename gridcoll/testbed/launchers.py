"""How each MPI is started on the hosts of a testbed: one entry per MPI."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from gridcoll.errors import TestbedError, UsageError
from gridcoll.testbed.layout import AGENT, RUN_DIR


class Launcher(Struct, frozen=True):
    """How one MPI starts ranks through the testbed's agent.

    ``command(mpiexec, hostfile, n_ranks, one_per_host)`` returns the words before the user's
    command. ``environment`` is added to the user's environment, which wins if both set a variable.
    ``noise`` matches meaningless messages of the launcher on standard error.
    """

    name: str
    title: str
    hostfile: str  # the format in gridcoll.topology.hostfile
    command: Callable[[str, str, int, bool], list[str]]
    environment: Mapping[str, str]
    noise: re.Pattern[bytes] | None = None


def _openmpi(mpiexec: str, hostfile: str, n_ranks: int, one_per_host: bool) -> list[str]:
    return [
        mpiexec,
        "--allow-run-as-root",
        *("--prtemca", "plm_ssh_agent", AGENT),
        *("--prtemca", "prte_if_include", "eth0"),
        # The default is below /tmp and named by process ids, which are the same in every testbed:
        # files left there by a killed job would keep daemons from starting.
        *("--prtemca", "prte_tmpdir_base", RUN_DIR),
        *("--hostfile", hostfile),
        *("-n", str(n_ranks)),
        *("--map-by", "slot", "--bind-to", "none"),
        *("--mca", "btl", "tcp,self" if one_per_host else "tcp,self,sm"),
        *("--mca", "pml", "ob1"),
        *("--mca", "btl_tcp_if_include", "eth0"),
        *("--mca", "mpi_yield_when_idle", "1"),
        # prterun waits for ever when a rank ends before all hosts have reported its start.
        *("sh", "-c", 'sleep 0.3; exec "$@"', "sh"),
    ]


def _mpich(mpiexec: str, hostfile: str, n_ranks: int, one_per_host: bool) -> list[str]:
    return [
        mpiexec,
        *("-launcher", "ssh", "-launcher-exec", AGENT),
        *("-f", hostfile, "-n", str(n_ranks)),
    ]


def _impi(mpiexec: str, hostfile: str, n_ranks: int, one_per_host: bool) -> list[str]:
    return [
        # When ranks fail, mpiexec writes to hosts that have ended: SIGPIPE must not kill it.
        *("sh", "-c", 'trap "" PIPE; exec "$@"', "sh"),
        *(mpiexec, "-machinefile", hostfile, "-n", str(n_ranks)),
    ]


LAUNCHERS: dict[str, Launcher] = {
    "mpich": Launcher(
        "mpich",
        "MPICH",
        "mpich",
        _mpich,
        # UCX finds memory shared between namespaces unless told to use TCP alone. The last variable
        # is set by `gridcoll run`, too; it is here for programs that start without that.
        {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "UCX_TCP_KEEPIDLE": "inf"},
    ),
    "openmpi": Launcher(
        "openmpi",
        "Open MPI",
        "openmpi",
        _openmpi,
        {},
        # Harmless: the agent's process has already made this call for itself.
        re.compile(rb"\[[^\]\n]*\] plm:ssh: Warning: setpgid\([^\n]*\n"),
    ),
    "impi": Launcher(
        "impi",
        "Intel MPI",
        "impi",
        _impi,
        {
            "I_MPI_FABRICS": "ofi",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": "eth0",
            "I_MPI_HYDRA_BOOTSTRAP": "ssh",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC": AGENT,
            # Ranks outnumber cores: without sleeping, a wait would last time slices of other ranks.
            "I_MPI_THREAD_YIELD": "3",
            "I_MPI_THREAD_SLEEP": "100",
            "I_MPI_PIN": "0",
        },
    ),
}


def launcher(name: str) -> Launcher:
    """Return the launcher called ``name``. Raises `UsageError`, which lists the known ones."""
    if name not in LAUNCHERS:
        raise UsageError(f"unknown MPI {name!r}; known are {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name]


def find_environment(mpi: str | None) -> Path:
    """Return the virtual environment to run under: that of ``mpi`` if given, else the current one.

    It is looked for in the directory ``$GRIDCOLL_VENVS`` if that is set, else beside the current
    environment. Raises `TestbedError` if there is none with an mpiexec.
    """
    here = Path(sys.prefix)
    if mpi is None:
        places = [here]
    elif os.environ.get("GRIDCOLL_VENVS"):
        places = [Path(os.environ["GRIDCOLL_VENVS"], mpi)]
    else:
        places = [here.parent / mpi, here]
    for place in places:
        if (place / "bin" / "mpiexec").exists() and mpi in (None, _kind(place)):
            return place
    wanted = f"{launcher(mpi).title}'s mpiexec" if mpi else "an mpiexec"
    looked = " and ".join(str(place / "bin") for place in places)
    raise TestbedError(
        f"testbed: found no {wanted} in {looked}; install the MPI's wheel into a virtual "
        "environment named after it and set GRIDCOLL_VENVS to the directory of these"
    )


def find_mpi(environment: Path) -> str:
    """Return the name of the MPI in the virtual environment. Raises `TestbedError`."""
    kind = _kind(environment)
    if kind is None:
        raise TestbedError(f"testbed: cannot tell which MPI {environment / 'bin/mpiexec'} is")
    return kind


_TYPICAL_PROGRAMS = {"openmpi": "prterun", "impi": "impi_info", "mpich": "mpichversion"}
"""The program by which each MPI is recognised."""


def _kind(environment: Path) -> str | None:
    for name, program in _TYPICAL_PROGRAMS.items():
        if (environment / "bin" / program).exists():
            return name
    return None


def launch_environment(
    chosen: Launcher, virtual_environment: Path, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the user's command: the launcher's variables, then ``base``.

    The programs of the virtual environment come first in PATH.
    """
    # An emulated host may have the name of a real one: do not keep what is measured on it.
    environment = {**chosen.environment, "GRIDCOLL_CACHE": "off", **base}
    environment["PATH"] = f"{virtual_environment / 'bin'}:{base.get('PATH', os.defpath)}"
    environment["VIRTUAL_ENV"] = str(virtual_environment)
    environment.pop("PYTHONHOME", None)
    return environment


def launch_line(
    chosen: Launcher,
    virtual_environment: Path,
    hostfile: str,
    n_ranks: int,
    one_per_host: bool,
    command: Sequence[str],
) -> list[str]:
    mpiexec = str(virtual_environment / "bin" / "mpiexec")
    return [*chosen.command(mpiexec, hostfile, n_ranks, one_per_host), *command]
