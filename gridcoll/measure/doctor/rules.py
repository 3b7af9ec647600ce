"""Find problems of a job: one rule for each, with a remedy. Pure; needs no MPI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Literal

from msgspec import Struct

from gridcoll.measure.doctor.facts import Interface, JobFacts, RankFacts
from gridcoll.topology.units import format_duration, format_rate

Severity = Literal["error", "warning", "note"]
"""An error means that something does not work; a warning, that it costs time or may cause trouble;
a note is good to know."""

ASYMMETRY_FACTOR = 1.5
"""A link is asymmetric if one direction carries more than this many times what the other does. It
is twice the spread of a rate that was measured for a fraction of a second."""

THIN_FRACTION = 0.5
"""A link is thin if it carries less than this fraction of what the slower one of its two clusters'
networks does."""

MOST_WALL_OFFSET_S = 1.0
"""Clocks that differ by more make logs and time limits hard to read. gridcoll itself compares
clocks."""

BUSY_PER_CORE = 0.5
"""A host is busy if it has more processes of others than this, per core."""

VIRTUAL_PREFIXES = (
    "docker",
    "br-",
    "virbr",
    "veth",
    "lxc",
    "cni",
    "flannel",
    "tun",
    "tap",
    "wg",
    "lo",
)
"""Prefixes of the names of loopback interfaces, and of those of containers, virtual machines and
tunnels."""


class Finding(Struct, frozen=True):
    """A problem that a rule found: what it is, where, and what to do."""

    code: str
    severity: Severity
    what: str
    remedy: str


Rule = Callable[[JobFacts], Iterator[Finding]]


def launcher_of_another_mpi(job: JobFacts) -> Iterator[Finding]:
    """The launcher belongs to another MPI library, so every process has a world of its own."""
    started = job.ranks[0].host.launched_ranks
    if len(job.ranks) == 1 and started > 1:
        yield Finding(
            "launcher",
            "error",
            f"the launcher started {started} processes, and each is a job of one rank under "
            f"{job.ranks[0].vendor}",
            f"start it with the mpiexec of {job.ranks[0].vendor}, or have mpi4py load the "
            "launcher's library: python -m mpi4py --mpi-lib-version says which it loads",
        )


def one_rank(job: JobFacts) -> Iterator[Finding]:
    if len(job.ranks) == 1 and job.ranks[0].host.launched_ranks <= 1:
        yield Finding(
            "one-rank",
            "note",
            "the job has one rank; there is nothing to look at between ranks",
            "run it as the application: mpiexec -n 12 --hostfile hosts python -m gridcoll doctor",
        )


def one_node(job: JobFacts) -> Iterator[Finding]:
    if len(job.nodes) == 1 and len(job.ranks) > 1:
        yield Finding(
            "one-host",
            "note",
            "all ranks share one host: collectives are the MPI library's own, at its speed",
            "nothing, unless the job should span more hosts: name them in the hostfile",
        )


def different_libraries(job: JobFacts) -> Iterator[Finding]:
    for what, values in (
        ("MPI libraries", [facts.mpi_version for facts in job.ranks]),
        ("versions of gridcoll", [facts.gridcoll for facts in job.ranks]),
    ):
        odd = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if odd is not None:
            yield Finding(
                "versions",
                "error",
                f"hosts have different {what}: rank 0 on {job.host_of(0)} {values[0]}, rank {odd} "
                f"on {job.host_of(odd)} {values[odd]}",
                "install the same version everywhere, from one environment or one container image",
            )


def settings_refused(job: JobFacts) -> Iterator[Finding]:
    for fault in job.faults:
        yield Finding("settings", "error", fault, "correct it; gridcoll list settings names all")


def engine_missing(job: JobFacts) -> Iterator[Finding]:
    for kind in sorted({facts.engine for facts in job.ranks} - {"C"}):
        hosts = sorted({facts.host.host for facts in job.ranks if facts.engine == kind})
        why = "was not built" if kind == "Python" else kind
        yield Finding(
            "engine",
            "warning",
            f"{_names(hosts)}: plans run in Python, the engine in C {why}; short calls and many "
            "segments take longer",
            "install gridcoll's wheel for this machine, or install it where there is a C compiler",
        )


def no_threads(job: JobFacts) -> Iterator[Finding]:
    if not all(facts.threads for facts in job.ranks):
        yield Finding(
            "threads",
            "warning",
            "MPI was not started with MPI_THREAD_MULTIPLE: non-blocking collectives are the MPI "
            "library's own",
            "leave mpi4py.rc.thread_level at 'multiple', which is its default, and use a library "
            "that offers it",
        )


def name_is_loopback(job: JobFacts) -> Iterator[Finding]:
    if len(job.nodes) == 1:
        return
    for host, facts in _by_host(job).items():
        addresses = facts.host.addresses
        if addresses and ip_address(addresses[0]).is_loopback:
            yield Finding(
                "loopback",
                "warning",
                f"{host}: its own name resolves to {addresses[0]}, where other hosts cannot reach "
                "it; libraries that announce that address fail or hang",
                f"give {host} its address on the network in /etc/hosts, in place of the line with "
                f"{addresses[0]}",
            )
        elif not addresses:
            yield Finding(
                "unresolved",
                "warning",
                f"{host}: its own name does not resolve",
                f"enter {host} in /etc/hosts or in the name service",
            )


def interface(job: JobFacts) -> Iterator[Finding]:
    """Messages between hosts use a virtual interface, or not the fastest one."""
    for host, facts in _by_host(job).items():
        by_address = {each.address: each for each in facts.host.interfaces}
        used = {by_address[c.local].name: by_address[c.local] for c in facts.connections
                if c.local in by_address and not ip_address(c.remote).is_loopback}  # fmt: skip
        for each in used.values():
            better = _better(each, facts.host.interfaces)
            if better is None:
                continue
            yield Finding(
                "interface",
                "warning",
                f"{host}: {facts.vendor} talks to other hosts through {each.name} "
                f"({each.address}{_speed(each)}), where there is {better.name} "
                f"({better.address}{_speed(better)})",
                _choose_interface(facts.vendor, better.name),
            )


def _better(used: Interface, there: tuple[Interface, ...]) -> Interface | None:
    """Return an interface that should replace ``used``; None if there is no better one."""
    real = [each for each in there if not each.name.startswith(VIRTUAL_PREFIXES)]
    fastest = max(real, key=lambda each: each.bits_per_s, default=None)
    if fastest is None or fastest.name == used.name:
        return None
    if used.name.startswith(VIRTUAL_PREFIXES) or 0 < used.bits_per_s < fastest.bits_per_s:
        return fastest
    return None


def _choose_interface(vendor: str, name: str) -> str:
    return {
        "Open MPI": f"mpirun --mca btl_tcp_if_include {name} --prtemca prte_if_include {name}",
        "MPICH": f"UCX_NET_DEVICES={name}, or FI_TCP_IFACE={name} where MPICH was built with ofi",
        "Intel MPI": f"FI_TCP_IFACE={name}, and mpiexec -iface {name}",
    }.get(vendor, f"tell the MPI library to use {name}")


def oversubscribed(job: JobFacts) -> Iterator[Finding]:
    """There are more ranks than cores, and a waiting rank may keep its core busy."""
    for node, ranks in job.nodes.items():
        facts = job.ranks[node]
        cores = {core for rank in ranks for core in job.ranks[rank].host.cores}
        if len(ranks) <= len(cores):
            continue
        host = facts.host.host
        if len(ranks) <= facts.host.n_cores:
            yield Finding(
                "pinned",
                "warning",
                f"{host}: {len(ranks)} ranks may use {len(cores)} of {facts.host.n_cores} cores",
                _how_to_unbind(facts.vendor),
            )
            continue
        yields = facts.yields_when_idle
        if yields is None:
            yields = _yields_by_settings(facts.vendor, dict(facts.host.environment))
        yield Finding(
            "oversubscribed",
            "note" if yields else "warning",
            f"{host}: {len(ranks)} ranks share {len(cores)} cores"
            + ("" if yields else f", and ranks of {facts.vendor} that wait keep theirs busy"),
            "start as many ranks as there are cores"
            + (
                ""
                if yields
                else f", or let those that wait give way: {_how_to_yield(facts.vendor)}"
            ),
        )


def _yields_by_settings(vendor: str, environment: dict[str, str]) -> bool:
    """Whether a waiting rank yields its core, by the settings in ``environment``."""
    if vendor == "Open MPI":
        return environment.get("OMPI_MCA_mpi_yield_when_idle", "0") in ("1", "true")
    if vendor == "Intel MPI":
        return environment.get("I_MPI_THREAD_YIELD", "0") in ("2", "3")
    polls = environment.get("MPIR_CVAR_POLLS_BEFORE_YIELD", "")
    return polls.isdigit() and 0 < int(polls) < 1000


def _how_to_yield(vendor: str) -> str:
    return {
        "Open MPI": "mpirun --mca mpi_yield_when_idle 1 --bind-to none",
        "MPICH": "MPIR_CVAR_POLLS_BEFORE_YIELD=16",
        "Intel MPI": "I_MPI_THREAD_YIELD=3 I_MPI_THREAD_SLEEP=100 I_MPI_PIN=0",
    }.get(vendor, "see the library's manual")


def _how_to_unbind(vendor: str) -> str:
    return {
        "Open MPI": "mpirun --bind-to none, or --map-by core",
        "MPICH": "mpiexec -bind-to none, or see how the batch system binds jobs to cores",
        "Intel MPI": "I_MPI_PIN=0",
    }.get(vendor, "see how the launcher binds processes to cores")


def busy_hosts(job: JobFacts) -> Iterator[Finding]:
    """Processes of others on a host make every measurement of it longer."""
    for node, ranks in job.nodes.items():
        facts = job.ranks[node].host
        if facts.load - len(ranks) > BUSY_PER_CORE * facts.n_cores:
            yield Finding(
                "busy",
                "warning",
                f"{facts.host}: {facts.load:.1f} processes want its {facts.n_cores} cores, "
                "besides the job: what is measured now is not what the network can do",
                "measure when the hosts are the job's alone, and keep that model",
            )


def clocks(job: JobFacts) -> Iterator[Finding]:
    """Clocks differ from the one that most hosts agree with; rank 0's may be wrong itself."""
    offsets_s = {node: job.ranks[node].wall_offset_s for node in job.nodes}
    reference_node = max(
        offsets_s,
        key=lambda node: sum(
            abs(other_s - offsets_s[node]) <= MOST_WALL_OFFSET_S for other_s in offsets_s.values()
        ),
    )
    for host, facts in _by_host(job).items():
        offset_s = facts.wall_offset_s - offsets_s[reference_node]
        if abs(offset_s) > MOST_WALL_OFFSET_S:
            yield Finding(
                "clock",
                "warning",
                f"{host}: its clock is {offset_s:+.1f} s off {job.host_of(reference_node)}'s; "
                "gridcoll is not affected, but logs, file times and make are",
                "have chrony or ntpd set the clocks",
            )


def asymmetric_links(job: JobFacts) -> Iterator[Finding]:
    for link in job.links:
        back = job.link(link.receiver, link.sender)
        if link.sender >= link.receiver or back is None:
            continue
        slow, fast = sorted((link, back), key=lambda each: each.bytes_per_s)
        if fast.bytes_per_s > ASYMMETRY_FACTOR * slow.bytes_per_s:
            yield Finding(
                "asymmetric",
                "warning",
                f"{_between(job, slow.sender, slow.receiver)} carries "
                f"{_rate(slow.bytes_per_s)}, the way back {_rate(fast.bytes_per_s)}",
                "if that is meant, measure both ways: gridcoll discover --both-directions -o "
                "grid.json; else ask who runs the network for the slow direction",
            )


def thin_links(job: JobFacts) -> Iterator[Finding]:
    """Links carry much less than the networks at their ends, or TCP windows limit them."""
    for link in job.links:
        if link.sender >= link.receiver:
            continue
        ends = [job.link(end, end) for end in (link.sender, link.receiver)]
        inside = [end.bytes_per_s for end in ends if end is not None]
        if not inside or link.bytes_per_s >= THIN_FRACTION * min(inside):
            continue
        bytes_in_flight = link.bytes_per_s * 2 * link.latency_s
        sender, receiver = (job.grid.clusters[c].coordinator for c in (link.sender, link.receiver))
        window = min(
            job.ranks[sender].host.tcp_window_bytes[0], job.ranks[receiver].host.tcp_window_bytes[1]
        )
        window_limits = window and bytes_in_flight > window / 3
        yield Finding(
            "window" if window_limits else "thin",
            "warning" if window_limits else "note",
            f"{_between(job, link.sender, link.receiver)} carries {_rate(link.bytes_per_s)} in one "
            f"connection, {_rate(min(inside))} are possible at its ends"
            + (
                f"; TCP may have {window / 2**20:.1f} MiB under way and the round trip takes "
                f"{format_duration(2 * link.latency_s)}"
                if window_limits
                else ""
            ),
            "raise the third number of net.ipv4.tcp_wmem and net.ipv4.tcp_rmem at both ends"
            if window_limits
            else "nothing, if the link is like that: gridcoll sends a byte over it once and no "
            "faster than it carries",
        )


def rank_order(job: JobFacts) -> Iterator[Finding]:
    """The ranks of a cluster are not consecutive, so natives go back and forth between sites."""
    if len(job.grid.clusters) < 2:
        return
    of = job.grid.cluster_of
    crossings = sum(of[rank] != of[rank + 1] for rank in range(len(of) - 1))
    if crossings > len(job.grid.clusters) - 1:
        yield Finding(
            "rank-order",
            "note",
            f"neighbouring ranks are in different clusters {crossings} times, where "
            f"{len(job.grid.clusters) - 1} would do; gridcoll is not affected, but the MPI "
            "library's own collectives and messages between neighbours are",
            "list hosts site by site in the hostfile (gridcoll hostfile GRID.toml writes it), or "
            "map by slot: mpirun --map-by slot",
        )


def broken_cache(job: JobFacts) -> Iterator[Finding]:
    for fault in job.broken:
        is_site = fault.startswith("GRIDCOLL_SITE_CACHE")
        remedy = (
            f"name a directory that {job.host_of(0)} can read, or unset it"
            if is_site
            else "gridcoll cache list shows what is left"
        )
        yield Finding("cache", "warning", fault, remedy)
    if job.unwritable:
        yield Finding(
            "cache",
            "warning",
            f"{job.host_of(0)}: {job.unwritable}; what is measured is not kept",
            "make room there, or name a directory that jobs may write: GRIDCOLL_CACHE=DIR; off for "
            "none",
        )


def measured_each_time(job: JobFacts) -> Iterator[Finding]:
    if job.kept in ("none", "off") and len(job.nodes) > 1 and not job.unwritable:
        yield Finding(
            "not-kept",
            "note",
            "nothing is kept of these hosts: the first communicator measures their network",
            "nothing, if jobs may write their cache (gridcoll cache path; GRIDCOLL_CACHE)",
        )


RULES: tuple[Rule, ...] = (
    launcher_of_another_mpi,
    different_libraries,
    settings_refused,
    name_is_loopback,
    interface,
    oversubscribed,
    busy_hosts,
    asymmetric_links,
    thin_links,
    engine_missing,
    no_threads,
    clocks,
    rank_order,
    broken_cache,
    measured_each_time,
    one_rank,
    one_node,
)
"""All rules, in the order of their output. Tests try each one alone."""

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


def judge(job: JobFacts) -> list[Finding]:
    """Return the findings of all rules, the most severe first."""
    found = [finding for rule in RULES for finding in rule(job)]
    return sorted(found, key=lambda finding: _ORDER[finding.severity])


def counts(findings: list[Finding]) -> Counter[Severity]:
    """Return the number of findings of each severity."""
    return Counter(finding.severity for finding in findings)


def _by_host(job: JobFacts) -> dict[str, RankFacts]:
    return {job.ranks[node].host.host: job.ranks[node] for node in job.nodes}


def _between(job: JobFacts, sender: int, receiver: int) -> str:
    names = [job.grid.clusters[c].name for c in (sender, receiver)]
    return f"{names[0]} to {names[1]}"


def _rate(bytes_per_s: float) -> str:
    return format_rate(float(f"{8 * bytes_per_s:.2g}") / 8)


def _speed(each: Interface) -> str:
    return f", {format_rate(each.bits_per_s / 8)}" if each.bits_per_s else ""


def _names(hosts: list[str], most: int = 4) -> str:
    shown = ", ".join(hosts[:most])
    return shown if len(hosts) <= most else f"{shown} and {len(hosts) - most} more"
