"""Each rule finds its fault, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gridcoll.cli import doctor_command
from gridcoll.measure.doctor import rules
from gridcoll.measure.doctor.facts import (
    Connection,
    HostFacts,
    Interface,
    JobFacts,
    LinkFacts,
    RankFacts,
    is_first,
    launched_ranks,
    list_interfaces,
    look_around,
    own_connections,
    own_sockets,
    parse_address,
)
from gridcoll.topology.grid import Grid

ETH = Interface("eth0", "10.0.0.1", 1e9)
MBIT = 1e6 / 8


def rank(number: int, **changes: Any) -> RankFacts:
    host = HostFacts(
        host=f"h{number}",
        addresses=(f"10.0.0.{number}",),
        interfaces=(Interface("lo", "127.0.0.1", 0), replace(ETH, address=f"10.0.0.{number}")),
        cores=(0, 1),
        n_cores=2,
        load=1.0,
        launched_ranks=4,
        environment=(),
        tcp_window_bytes=(4 << 20, 6 << 20),
    )
    facts = RankFacts(
        host=host,
        mpi_version="MPICH 5.0",
        vendor="MPICH",
        gridcoll="1",
        engine="C",
        node=number,
        connections=(Connection(f"10.0.0.{number}", "10.0.0.9"),),
    )
    of_host = {key: changes.pop(key) for key in list(changes) if hasattr(host, key)
               and key != "host"}  # fmt: skip
    return replace(facts, host=replace(host, **of_host), **changes)


def job(*ranks: RankFacts, labels: tuple[int, ...] = (0, 0, 1, 1), **changes: Any) -> JobFacts:
    """Four hosts in two clusters, without a fault unless ``changes`` make one."""
    known = tuple(ranks) or tuple(rank(number) for number in range(4))
    links = tuple(
        LinkFacts(a, b, 5e-3 if a != b else 1e-4, 100 * MBIT) for a in range(2) for b in range(2)
    )
    grid = Grid.from_labels(list(labels[: len(known)]))
    return replace(JobFacts(known, grid, links, kept="in a file"), **changes)


def changed(number: int, **changes: Any) -> JobFacts:
    """A job in which one rank has ``changes``."""
    return job(*(rank(n, **(changes if n == number else {})) for n in range(4)))


def links(*rows: tuple[int, int, float, float]) -> JobFacts:
    return job(links=tuple(LinkFacts(a, b, s, mbit * MBIT) for a, b, s, mbit in rows))


FAULTY: list[tuple[str, str, Callable[[], JobFacts]]] = [
    ("launcher", "error", lambda: job(rank(0))),
    ("one-rank", "note", lambda: job(rank(0, launched_ranks=0))),
    ("one-host", "note", lambda: job(rank(0), rank(1, node=0))),
    ("versions", "error", lambda: changed(2, mpi_version="MPICH 4.1")),
    ("versions", "error", lambda: changed(1, gridcoll="2")),
    ("settings", "error", lambda: job(faults=("GRIDCOLL_FORCE: must be grid or native",))),
    ("engine", "warning", lambda: changed(3, engine="Python")),
    ("threads", "warning", lambda: changed(3, threads=False)),
    ("loopback", "warning", lambda: changed(2, addresses=("127.0.1.1",))),
    ("unresolved", "warning", lambda: changed(2, addresses=())),
    (
        "interface",
        "warning",
        lambda: changed(
            1,
            interfaces=(ETH, Interface("docker0", "172.17.0.1", 0)),
            connections=(Connection("172.17.0.1", "172.17.0.2"),),
        ),
    ),
    (
        "interface",
        "warning",
        lambda: changed(
            1,
            interfaces=(ETH, Interface("eth1", "192.168.0.1", 1e8)),
            connections=(Connection("192.168.0.1", "192.168.0.2"),),
        ),
    ),
    ("pinned", "warning", lambda: job(*(rank(n, node=0, cores=(0,)) for n in range(2)))),
    ("oversubscribed", "warning", lambda: job(*(rank(n, node=0) for n in range(4)))),
    (
        "oversubscribed",
        "note",
        lambda: job(
            *(
                rank(n, node=0, environment=(("MPIR_CVAR_POLLS_BEFORE_YIELD", "16"),))
                for n in range(4)
            )
        ),
    ),
    (
        "oversubscribed",
        "note",
        lambda: job(*(rank(n, node=0, vendor="Open MPI", yields_when_idle=True) for n in range(4))),
    ),
    (
        "oversubscribed",
        "warning",
        lambda: job(
            *(
                rank(
                    n,
                    node=0,
                    vendor="Open MPI",
                    yields_when_idle=False,
                    environment=(("OMPI_MCA_mpi_yield_when_idle", "1"),),
                )
                for n in range(4)
            )
        ),
    ),
    ("busy", "warning", lambda: changed(0, load=5.0)),
    ("clock", "warning", lambda: changed(2, wall_offset_s=-3.0)),
    ("asymmetric", "warning", lambda: links((0, 1, 5e-3, 100), (1, 0, 5e-3, 20))),
    ("thin", "note", lambda: links((0, 0, 1e-4, 100), (0, 1, 5e-3, 20), (1, 0, 5e-3, 20))),
    (
        "window",
        "warning",
        lambda: links((0, 0, 1e-4, 10000), (0, 1, 50e-3, 250), (1, 0, 50e-3, 250)),
    ),
    ("rank-order", "note", lambda: job(labels=(0, 1, 0, 1))),
    ("cache", "warning", lambda: job(broken=("cache file x: no JSON",))),
    ("cache", "warning", lambda: job(kept="none", unwritable="cannot write /x: Read-only")),
    ("not-kept", "note", lambda: job(kept="none")),
]


@pytest.mark.parametrize(("code", "severity", "make"), FAULTY, ids=[row[0] for row in FAULTY])
def test_a_fault_is_found(code: str, severity: str, make: Callable[[], JobFacts]) -> None:
    found = rules.judge(make())
    assert (code, severity) in [(each.code, each.severity) for each in found]
    assert all(each.what and each.remedy for each in found)


def test_a_job_without_fault_has_no_finding() -> None:
    assert rules.judge(job()) == []


def test_every_rule_is_tried_by_something() -> None:
    tried = {rule for _, _, make in FAULTY for rule in rules.RULES if list(rule(make()))}
    assert tried == set(rules.RULES)


def test_the_worst_comes_first() -> None:
    found = rules.judge(
        replace(changed(2, mpi_version="x", addresses=()), faults=("a",), kept="none")
    )
    assert [each.severity for each in found] == ["error", "error", "warning", "note"]


@pytest.mark.parametrize("vendor", ["MPICH", "Open MPI", "Intel MPI", "another"])
def test_remedies_fit_the_library(vendor: str) -> None:
    crowded = job(*(rank(n, node=0, vendor=vendor) for n in range(4)))
    (found,) = list(rules.oversubscribed(crowded))
    assert ("manual" in found.remedy) == (vendor == "another")


def test_nothing_kept_is_told_once() -> None:
    assert [each.code for each in rules.judge(job(kept="none", unwritable="cannot write"))] == [
        "cache"
    ]


@pytest.mark.parametrize("wrong", range(4))
def test_the_clock_that_is_off_is_named(wrong: int) -> None:
    """Offsets are from rank 0's clock, which may be the one that is off."""
    offsets_s = [3600.0 * (number == wrong) for number in range(4)]
    ranks = [rank(n, wall_offset_s=offset_s - offsets_s[0]) for n, offset_s in enumerate(offsets_s)]
    (found,) = rules.clocks(job(*ranks))
    assert found.what.startswith(f"h{wrong}: its clock is +3600.0 s off h{int(wrong == 0)}'s")


def test_of_two_clocks_that_of_rank_0_is_right() -> None:
    (found,) = rules.clocks(job(rank(0), rank(1, wall_offset_s=-5.0)))
    assert found.what.startswith("h1: its clock is -5.0 s off h0's")


def test_addresses_of_linux() -> None:
    assert parse_address("0100007F:1F90") == "127.0.0.1"
    assert parse_address("0000000000000000FFFF00000100000A:0016") == "10.0.0.1"


def test_what_launchers_say() -> None:
    assert launched_ranks({}) == 0
    assert launched_ranks({"PMI_SIZE": "4", "HOME": "/"}) == 4
    assert launched_ranks({"SLURM_STEP_NUM_TASKS": "many"}) == 0
    # Slurm counts the helpers of an mpiexec that starts one rank.
    assert launched_ranks({"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "1"}) == 1


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ({}, True),
        ({"PMI_SIZE": "4", "PMI_RANK": "0", "SLURM_PROCID": "1"}, True),
        ({"PMI_SIZE": "4", "PMI_RANK": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, False),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, False),
    ],
)
def test_which_process_is_the_first(said: dict[str, str], first: bool) -> None:
    assert is_first(said) == first


def test_this_host_is_looked_at() -> None:
    facts = look_around("localhost")
    assert facts.addresses == ("127.0.0.1",)
    assert facts.cores
    assert "lo" in [each.name for each in list_interfaces()]


def test_own_connections_are_seen() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            server.accept()[0].close()
            client.getsockname()
        accepted = socket.create_connection(server.getsockname())
        kept, _ = server.accept()
        assert own_connections() == []  # to itself
        accepted.close()
        kept.close()


def test_connections_that_a_launcher_left_open_do_not_count() -> None:
    """Their other end is in another process."""
    import socket
    import subprocess
    import sys

    connect = (
        "import socket, sys; other = socket.create_connection(('127.0.0.2', int(sys.argv[1])))"
    )
    connect += "; sys.stdin.read()"
    with socket.create_server(("127.0.0.2", 0)) as server:
        other = subprocess.Popen(
            (sys.executable, "-c", connect, str(server.getsockname()[1])), stdin=subprocess.PIPE
        )
        with other, server.accept()[0]:
            assert Connection("127.0.0.2", "127.0.0.1") in own_connections()
            assert own_connections(excluded=own_sockets()) == []
            other.communicate()


def test_a_site_cache_that_is_not_there_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRIDCOLL_CACHE", str(tmp_path))
    monkeypatch.setenv("GRIDCOLL_SITE_CACHE", "/nowhere")
    (found,) = rules.broken_cache(job(broken=doctor_command._kept(["h0"]).broken))
    assert found.what.startswith("GRIDCOLL_SITE_CACHE: cannot read /nowhere: No such file")
    assert "unset it" in found.remedy


def test_a_misspelt_setting_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDCOLL_BCST", "flat")
    _, _, faults = doctor_command._settings()
    assert faults == ("GRIDCOLL_BCST is no setting; GRIDCOLL_BCAST is",)
