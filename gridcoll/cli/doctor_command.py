"""``gridcoll doctor``: what a job runs on, what is wrong with it, and the remedies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gridcoll.cli.options import JSON
from gridcoll.errors import GridcollError

if TYPE_CHECKING:
    from mpi4py import MPI

    from gridcoll.measure.doctor.facts import JobFacts, Kept
    from gridcoll.measure.doctor.rules import Finding

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@click.command()
@JSON
@click.option(
    "--patience",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="end the job, and name the step, if a step makes no progress for this long",
)
def command(as_json: bool, patience: float) -> None:
    """Show what a job runs on and what is wrong with it, with a remedy for each problem.

    Run it under mpiexec, with the ranks and hosts of the application; it takes seconds. The exit
    code is 1 if there are errors or warnings, else 0; notes do not count.
    """
    from gridcoll.cli.voice import need_mpi
    from gridcoll.measure.doctor.facts import is_first, own_sockets

    inherited = own_sockets()
    _warn_of_launcher()
    need_mpi()
    from mpi4py import MPI

    from gridcoll.cli.progress import Stages
    from gridcoll.cli.voice import one_voice
    from gridcoll.comm.settings import VERSION
    from gridcoll.measure.doctor.examine import examine
    from gridcoll.measure.doctor.rules import judge

    is_rank_0 = MPI.COMM_WORLD.Get_rank() == 0
    watchdog = _Watchdog(MPI.COMM_WORLD.Get_rank(), patience)
    comm = MPI.COMM_WORLD.Dup()
    with one_voice(comm):
        tolerance, engine, faults = _settings()
        misfit = _grid_misfit(comm)
        with Stages(silent=not is_rank_0 or as_json) as stages:

            def progress(what: str, done: int, of: int) -> None:
                watchdog.step(what)
                stages(what, done, of)

            job = examine(
                comm,
                tolerance,
                gridcoll=VERSION,
                engine=engine,
                progress=progress,
                kept=_kept,
                faults=(*faults, misfit) if misfit else faults,
                inherited=inherited,
            )
        watchdog.end()
        findings = judge(job)
        # If each process is a job of its own, only the first one prints.
        if is_rank_0 and (len(job.ranks) > 1 or is_first(os.environ)):
            click.echo(json.dumps(_as_data(job, findings), indent=2, ensure_ascii=False)) if (
                as_json
            ) else _print(job, findings)
            sys.stdout.flush()
    comm.Barrier()  # a launcher may end the job as soon as one rank has gone
    comm.Free()
    sys.exit(int(any(finding.severity != "note" for finding in findings)))


class _Watchdog:
    """Ends this process when no step was made for ``patience_s``, and names the step under way.

    If a link is cut, or a library announces an address that others cannot reach, every rank would
    wait for ever without a message.
    """

    def __init__(self, rank: int, patience_s: float) -> None:
        self._rank = rank
        self._patience_s = patience_s
        self._step_name = "start"
        self._step_time_s = time.monotonic()
        self._finished = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def step(self, what: str) -> None:
        """Record that a step of ``what`` was made."""
        self._step_name, self._step_time_s = what, time.monotonic()

    def end(self) -> None:
        self._finished.set()

    def _watch(self) -> None:
        while not self._finished.wait(min(self._patience_s / 4, 1.0)):
            if time.monotonic() - self._step_time_s > self._patience_s:
                host = os.uname().nodename
                sys.stderr.write(
                    f"gridcoll doctor: rank {self._rank} on {host}: nothing happened for "
                    f"{self._patience_s:g} s while looking at {self._step_name}: some hosts do not "
                    "reach one another. Check firewalls, and that each host's name resolves "
                    "to the address that the others use\n"
                )
                sys.stderr.flush()
                os._exit(1)


def _warn_of_launcher() -> None:
    """Warn if the launcher is Open MPI's and the library is MPICH.

    This is said before MPI starts, as starting it may end the job; and on every rank, as the first
    rank that ends takes the others with it.
    """
    if "OMPI_COMM_WORLD_SIZE" not in os.environ or "mpi4py.MPI" in sys.modules:
        return
    command = (sys.executable, "-m", "mpi4py", "--mpi-lib-version")
    version = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if version.startswith("MPICH"):
        sys.stderr.write(
            "gridcoll doctor: the launcher is Open MPI's and the library is MPICH: if MPI does not "
            "start now, start it with the mpiexec of MPICH, or have mpi4py load Open MPI\n"
        )
        sys.stderr.flush()


def _settings() -> tuple[float, str, tuple[str, ...]]:
    """Return the tolerance, this rank's engine, and the errors in this rank's settings."""
    from gridcoll.comm.settings import misspelt, read_settings
    from gridcoll.engine.compiled import LIBRARY, require_engine
    from gridcoll.topology.clustering import DEFAULT_TOLERANCE

    faults = [message] if (message := misspelt(os.environ)) else []
    tolerance = DEFAULT_TOLERANCE
    try:
        tolerance = read_settings().tolerance
    except GridcollError as error:
        faults.append(str(error))
    engine = "C" if LIBRARY.exists() else "Python"
    if os.environ.get("GRIDCOLL_ENGINE") == "python":
        engine = "is not wanted: GRIDCOLL_ENGINE=python"
    try:
        require_engine()
    except GridcollError as error:
        engine = str(error)
    return tolerance, engine, tuple(faults)


def _kept(hosts: list[str]) -> Kept:
    """Return what the cache knows of ``hosts``, its damaged files, and why it is not writable."""
    from gridcoll.comm.settings import read_settings
    from gridcoll.measure.cache.entries import Host
    from gridcoll.measure.cache.folder import Cache
    from gridcoll.measure.doctor.facts import Kept

    try:
        settings = read_settings()
    except GridcollError:
        return Kept()
    if settings.grid_file:
        return Kept(f"the grid is read from {settings.grid_file}")
    cache = Cache(settings.places, settings.tolerance)
    if cache.is_off:
        return Kept("off")
    known = {entry.key[-1] for entry in cache.read() if isinstance(entry, Host)}
    n_known = len(known.intersection(hosts))
    where = settings.places.own or settings.places.site
    return Kept(
        f"{n_known} of {len(hosts)} hosts are known in {where}" if n_known else "none",
        tuple(text for folder in (cache.own, cache.site) if folder for text in folder.warnings),
        cache.own.why_not_writable() if cache.own else "",
    )


def _grid_misfit(comm: MPI.Intracomm) -> str:
    """Return why the grid file in the settings does not fit this job, else "". Collective."""
    from gridcoll.comm.settings import read_settings
    from gridcoll.measure.find_model import load_model

    try:
        path = read_settings().grid_file
    except GridcollError:
        path = ""
    path = comm.bcast(path, 0)
    try:
        if path:
            load_model(comm, path)
    except GridcollError as error:
        return str(error)
    return ""


def _as_data(job: JobFacts, findings: list[Finding]) -> dict[str, Any]:
    """Return the page as plain data. Names end in their units."""
    return {
        "ok": all(finding.severity == "note" for finding in findings),
        "findings": [msgspec.to_builtins(finding) for finding in findings],
        "mpi": job.ranks[0].mpi_version,
        "gridcoll": job.ranks[0].gridcoll,
        "engines": sorted({facts.engine for facts in job.ranks}),
        "n_ranks": len(job.ranks),
        "kept": job.kept,
        "hosts": [
            {
                "host": job.ranks[node].host.host,
                "ranks": ranks,
                "n_cores": job.ranks[node].host.n_cores,
                "cores": sorted({core for r in ranks for core in job.ranks[r].host.cores}),
                "load": job.ranks[node].host.load,
                "addresses": list(job.ranks[node].host.addresses),
                "interfaces": [
                    {"name": each.name, "address": each.address, "bits_per_s": each.bits_per_s}
                    for each in job.ranks[node].host.interfaces
                ],
                "transport": transport(job, node),
                "clock_offset_s": job.ranks[node].wall_offset_s,
            }
            for node, ranks in job.nodes.items()
        ],
        "clusters": [
            {"name": cluster.name, "ranks": list(cluster.ranks)} for cluster in job.grid.clusters
        ],
        "links": [msgspec.to_builtins(link) for link in job.links],
    }


def transport(job: JobFacts, node: int) -> str:
    """Return how the MPI library reached other hosts from ``node``."""
    facts = job.ranks[node]
    names = {each.address: each.name for each in facts.host.interfaces}
    used = {names.get(c.local, c.local) for rank in job.nodes[node]
            for c in job.ranks[rank].connections if names.get(c.local) != "lo"}  # fmt: skip
    if facts.fast_network:
        return "a network other than TCP"
    if len(job.nodes) == 1:
        return "shared memory"
    return f"TCP over {', '.join(sorted(used))}" if used else "unknown"


def _print(job: JobFacts, findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from gridcoll.cli.gridmap import count, format_ranks, stdout_console
    from gridcoll.measure.doctor.rules import counts
    from gridcoll.topology.units import format_duration, format_rate

    console = stdout_console()
    first = job.ranks[0]
    console.print(Text(f"{first.mpi_version}; gridcoll {first.gridcoll.split(',')[0]}", "bold"))
    table = Table("host", "ranks", "cores", "load", "transport", "address")
    for node, ranks in list(job.nodes.items())[:16]:
        facts = job.ranks[node].host
        table.add_row(
            facts.host,
            format_ranks(ranks),
            str(facts.n_cores),
            f"{facts.load:.1f}",
            transport(job, node),
            facts.addresses[0] if facts.addresses else "does not resolve",
        )
    console.print(table)
    if len(job.nodes) > 16:
        console.print(f"… {len(job.nodes) - 16} more hosts; all are in --json")
    links = Table("from", "to", "latency", "rate of one connection")
    for link in job.links[:24]:
        a, b = (job.grid.clusters[c].name for c in (link.sender, link.receiver))
        rate = format_rate(float(f"{8 * link.bytes_per_s:.2g}") / 8)
        links.add_row(a, "inside" if a == b else b, format_duration(link.latency_s), rate)
    if job.links:
        console.print(f"{count(len(job.grid.clusters), 'cluster')}:")
        console.print(links)
    for finding in findings:
        console.print()
        head = Text.assemble((f"{finding.severity}: ", STYLES[finding.severity]), finding.what)
        console.print(head, soft_wrap=True)
        console.print(Text(f"  remedy: {finding.remedy}"), soft_wrap=True)
    n = counts(findings)
    console.print()
    wrong = n["error"] + n["warning"]
    console.print(
        f"{count(wrong, 'thing')} wrong, {count(n['note'], 'note')}"
        if wrong
        else f"all is well, {count(n['note'], 'note')}"
    )
