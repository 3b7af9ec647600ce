"""A check, before a command runs, that the MPI really uses the emulated network.

An MPI may find shared memory between hosts that are on one machine; every figure would be wrong.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
from msgspec import Struct

from gridcoll.errors import TestbedError
from gridcoll.testbed.job import Job
from gridcoll.testbed.probe import ROUND_TRIP_EARLY_S
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology import GridSpec
from gridcoll.topology.units import format_duration

_PROGRAM = Path(__file__).with_name("pingpong.py")
_N_ROUNDS = 5
_BULK_BYTES = 256 * 1024
_TIMEOUT_S = 60.0
_TOLERANCE = 0.05


class Sighting(Struct, frozen=True):
    """What `pingpong` reports: its hosts, and times between its ranks."""

    hosts: list[str]
    node_sizes: list[int]
    round_trip_s: list[tuple[int, int, float]]
    bulk_s: float | None


def check_transport(testbed: Testbed, mpi: str | None) -> Sighting:
    """Run `pingpong` on one host per cluster, and on a second host of the first cluster.

    Raises `TestbedError` if MPI starts wrongly, takes several hosts for one node, or is faster than
    the network that it should use.
    """
    hosts = [names[0] for names in testbed.spec.hosts]
    neighbour = testbed.spec.hosts[0][1:2]
    hosts += neighbour
    sighting = _run(Job(testbed, mpi, hosts=hosts), _BULK_BYTES if neighbour else 0)
    faults = find_faults(testbed.spec, hosts, sighting)
    if faults:
        raise TestbedError(
            f"testbed {testbed.instance.id}: MPI does not use the emulated network: "
            + "; ".join(faults)
        )
    return sighting


def _run(job: Job, n_bulk_bytes: int) -> Sighting:
    command = ["python", str(_PROGRAM), str(_N_ROUNDS), str(n_bulk_bytes)]
    process = job.start(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    place = f"testbed {job.testbed.instance.id}: the trial run under {job.launcher.title}"
    try:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TestbedError(f"{place} did not end within {_TIMEOUT_S:g} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    lines = [line for line in out.splitlines() if line.startswith(b"{")]
    if process.returncode or not lines:
        said = (err or out).decode(errors="replace").strip()[-2000:]
        raise TestbedError(f"{place} failed with exit code {process.returncode}: {said}")
    try:
        return msgspec.json.decode(lines[-1], type=Sighting)
    except msgspec.DecodeError as error:
        raise TestbedError(f"{place} printed nothing that makes sense: {error}") from None


def find_faults(spec: GridSpec, hosts: list[str], sighting: Sighting) -> list[str]:
    """Return what in ``sighting`` is impossible if rank ``i`` really runs on ``hosts[i]``."""
    faults = []
    if sighting.hosts != hosts:
        faults.append(f"ranks should run on {', '.join(hosts)}, are on {', '.join(sighting.hosts)}")
    for host, size in zip(hosts, sighting.node_sizes, strict=False):
        if size != 1:
            faults.append(f"{host} should be a node of its own, shares one with {size - 1} others")
    for i, j, measured_s in sighting.round_trip_s:
        configured_s = 2 * float(spec.latency_s[i, j])
        if measured_s < configured_s * (1 - _TOLERANCE) - ROUND_TRIP_EARLY_S:
            faults.append(
                f"round trip {hosts[i]}-{hosts[j]} configured {format_duration(configured_s)}, "
                f"8 bytes took {format_duration(measured_s)}"
            )
    if sighting.bulk_s is not None:
        # Each of the two NICs on the path lets a burst pass at once.
        least_s = (_BULK_BYTES - 2 * spec.burst_bytes) / float(spec.nic_bytes_per_s[0])
        if sighting.bulk_s < least_s * (1 - _TOLERANCE):
            faults.append(
                f"{_BULK_BYTES} B {hosts[0]}-{hosts[-1]} need {format_duration(least_s)} at the "
                f"NIC's rate, took {format_duration(sighting.bulk_s)}"
            )
    return faults
