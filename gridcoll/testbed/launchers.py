"""How each MPI is started on the hosts of a testbed: one entry per MPI."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridcoll.errors import TestbedError, UsageError
from gridcoll.testbed.layout import AGENT, RUN_DIR


@dataclass(frozen=True)
class Launcher:
    """One MPI's way to start ranks through the testbed's agent.

    ``command(mpiexec, hostfile, n_ranks, one_per_host)`` is what stands before the user's command;
    ``environment`` is added to the user's, which wins where both say something. ``noise`` matches
    what the launcher says on standard error that means nothing.
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
        # By default below /tmp and called by process ids, which are the same in every testbed: what
        # a killed job left there keeps daemons from starting.
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
        # It writes to hosts that have ended, when ranks fail, and would die of that.
        *("sh", "-c", 'trap "" PIPE; exec "$@"', "sh"),
        *(mpiexec, "-machinefile", hostfile, "-n", str(n_ranks)),
    ]


LAUNCHERS: dict[str, Launcher] = {
    "mpich": Launcher(
        "mpich",
        "MPICH",
        "mpich",
        _mpich,
        # UCX finds memory shared between namespaces unless told to use TCP alone. The last is what
        # `gridcoll run` sets, for programs that start without it.
        {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "UCX_TCP_KEEPIDLE": "inf"},
    ),
    "openmpi": Launcher(
        "openmpi",
        "Open MPI",
        "openmpi",
        _openmpi,
        {},
        # It lost a race to do what the agent's process had done itself.
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
            # Ranks outnumber cores: without sleeping, a wait lasts other ranks' time slices.
            "I_MPI_THREAD_YIELD": "3",
            "I_MPI_THREAD_SLEEP": "100",
            "I_MPI_PIN": "0",
        },
    ),
}


def launcher(name: str) -> Launcher:
    """The launcher called ``name``. Raises `UsageError`, listing the known."""
    if name not in LAUNCHERS:
        raise UsageError(f"unknown MPI {name!r}; known are {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name]


def find_environment(mpi: str | None) -> Path:
    """The virtual environment to run under: of ``mpi`` where one is named, else the current one.

    Looks in the directory ``$GRIDCOLL_VENVS``, else beside the current environment. Raises
    `TestbedError` when there is none with an mpiexec.
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
    """Which MPI the virtual environment holds. Raises `TestbedError`."""
    kind = _kind(environment)
    if kind is None:
        raise TestbedError(f"testbed: cannot tell which MPI {environment / 'bin/mpiexec'} is")
    return kind


_TELLTALES = {"openmpi": "prterun", "impi": "impi_info", "mpich": "mpichversion"}


def _kind(environment: Path) -> str | None:
    for name, telltale in _TELLTALES.items():
        if (environment / "bin" / telltale).exists():
            return name
    return None


def launch_environment(
    chosen: Launcher, virtual_environment: Path, base: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the user's command: ``base``, the launcher's needs, the venv first."""
    # Emulated hosts are called like others and are not them: what is measured there is not kept.
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
