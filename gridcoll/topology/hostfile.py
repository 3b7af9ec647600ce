"""Writes hostfiles for MPI launchers and Slurm from a grid file. They keep the order of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.topology.gridfile import GridSpec


class HostfileFormat(Struct, frozen=True):
    """A hostfile format of a launcher.

    ``format_hosts`` returns the text for the hosts of ranks 0, 1, …. ``use`` is a launch line with
    the fields ``{file}`` and ``{n}`` (number of ranks).
    """

    title: str
    format_hosts: Callable[[Sequence[str]], str]
    use: str


def _runs(hosts: Sequence[str]) -> list[tuple[str, int]]:
    """Return runs of equal hosts, each with its number of consecutive ranks."""
    return [(host, len(list(run))) for host, run in groupby(hosts)]


def _slots(hosts: Sequence[str]) -> str:
    return "".join(f"{host} slots={n}\n" for host, n in _runs(hosts))


def _colons(hosts: Sequence[str]) -> str:
    return "".join(f"{host}:{n}\n" for host, n in _runs(hosts))


def _lines(hosts: Sequence[str]) -> str:
    return "".join(f"{host}\n" for host in hosts)


FORMATS: dict[str, HostfileFormat] = {
    "openmpi": HostfileFormat(
        "Open MPI", _slots, "mpirun --hostfile {file} --map-by slot -n {n} COMMAND"
    ),
    "mpich": HostfileFormat("MPICH", _colons, "mpiexec -f {file} -n {n} COMMAND"),
    "impi": HostfileFormat("Intel MPI", _colons, "mpiexec -machinefile {file} -n {n} COMMAND"),
    # One line per rank. Comments are not possible: Slurm would read them as hosts.
    "slurm": HostfileFormat(
        "Slurm", _lines, "SLURM_HOSTFILE={file} srun --distribution=arbitrary -n {n} COMMAND"
    ),
}
"""Hostfile formats by MPI library, and that of Slurm."""


def _format_of(kind: str) -> HostfileFormat:
    if kind not in FORMATS:
        raise UsageError(f"unknown hostfile format {kind!r}; known are {', '.join(FORMATS)}")
    return FORMATS[kind]


def format_hostfile(hosts: Sequence[str], kind: str) -> str:
    """Return the hostfile that puts rank ``i`` on ``hosts[i]``; ``kind`` is a key of `FORMATS`.

    Raises `UsageError`.
    """
    return _format_of(kind).format_hosts(hosts)


def first_hosts(spec: GridSpec, n_ranks: int | None = None) -> tuple[str, ...]:
    """Return the hosts of the first ``n_ranks`` ranks (default: all slots). Raises `UsageError`."""
    if spec.by_rank:
        raise UsageError(f"grid {spec.name!r} gives ranks, not hosts: no hostfile can be written")
    return first_of(spec.name, spec.rank_hosts(), n_ranks)


def first_of(grid: str, hosts: tuple[str, ...], n_ranks: int | None = None) -> tuple[str, ...]:
    """Return the first ``n_ranks`` of ``hosts`` (default: all). Raises `UsageError`."""
    if n_ranks is None:
        n_ranks = len(hosts)
    if not 1 <= n_ranks <= len(hosts):
        raise UsageError(
            f"grid {grid!r} has {len(hosts)} slots: ranks must be 1..{len(hosts)}, got {n_ranks}"
        )
    return hosts[:n_ranks]


def format_use(kind: str, file: str, n_ranks: int) -> str:
    """Return the launch line for a hostfile of ``kind`` at ``file``. Raises `UsageError`."""
    return _format_of(kind).use.format(file=file, n=n_ranks)
