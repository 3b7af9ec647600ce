"""Plain hostfiles, as MPI launchers read them, from a grid file. Rank order is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gridcoll.errors import UsageError
from gridcoll.topology.gridfile import GridSpec


def _runs(hosts: Sequence[str]) -> list[tuple[str, int]]:
    """Hosts with the number of ranks each takes in a row."""
    runs: list[tuple[str, int]] = []
    for host in hosts:
        if runs and runs[-1][0] == host:
            runs[-1] = (host, runs[-1][1] + 1)
        else:
            runs.append((host, 1))
    return runs


def _openmpi(hosts: Sequence[str]) -> str:
    return "".join(f"{host} slots={n}\n" for host, n in _runs(hosts))


def _mpich(hosts: Sequence[str]) -> str:
    return "".join(f"{host}:{n}\n" for host, n in _runs(hosts))


def _slurm(hosts: Sequence[str]) -> str:
    """SLURM_HOSTFILE: a line per rank and no room for comments."""
    return "".join(f"{host}\n" for host in hosts)


FORMATS: dict[str, Callable[[Sequence[str]], str]] = {
    "openmpi": _openmpi,
    "mpich": _mpich,
    "impi": _mpich,
    "slurm": _slurm,
}
"""Hostfile formats by MPI (or Slurm): text for the hosts of ranks 0, 1, …"""


def format_hostfile(spec: GridSpec, kind: str, n_ranks: int | None = None) -> str:
    """The hostfile that puts rank ``i`` on ``spec.rank_hosts()[i]``.

    ``kind`` is a key of `FORMATS`; ``n_ranks`` takes the first so many ranks (default: every slot
    of every host). Raises `UsageError`.
    """
    if kind not in FORMATS:
        raise UsageError(f"unknown hostfile format {kind!r}; known are {', '.join(FORMATS)}")
    if spec.by_rank:
        raise UsageError(f"grid {spec.name!r} gives ranks, not hosts: no hostfile can be written")
    hosts = spec.rank_hosts()
    if n_ranks is None:
        n_ranks = len(hosts)
    if not 1 <= n_ranks <= len(hosts):
        raise UsageError(
            f"grid {spec.name!r} has {len(hosts)} slots: ranks must be 1..{len(hosts)}, "
            f"got {n_ranks}"
        )
    return FORMATS[kind](hosts[:n_ranks])
