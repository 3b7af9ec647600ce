"""`gridcoll doctor` on emulated grids with faults made on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridcoll.testbed.job import Job
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.changes import ChangeSpec

pytestmark = [pytest.mark.testbed, pytest.mark.long]

SLOW = """
import sys
from pyroute2 import IPRoute
from gridcoll.testbed.network import _limit_rate
from gridcoll.topology import parse_gridfile
with IPRoute() as ip:
    index = ip.link_lookup(ifname="eth0")[0]
    _limit_rate(ip, index, parse_gridfile(sys.argv[1], "small"), 6e5, "replace")
"""
"""What leaves the host it runs on, and not what comes, is slow."""

COMMAND = ("python", "-m", "gridcoll", "doctor", "--json")


def page(job: Job, *more: str, **settings: str) -> tuple[dict[str, Any], int]:
    """What the doctor says, and the launcher's exit code.

    That is the doctor's own, 1, unless the launcher crashes after ranks of several hosts failed, as
    Open MPI 5.0.11's does now and then.
    """
    process = job.start((*COMMAND, *more), env={**os.environ, **settings}, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=120)
    text = out.decode()
    return json.loads(text[text.index("{") :]), process.returncode


def codes(found: dict[str, Any]) -> set[str]:
    # Other tests' processes are not the network's fault.
    return {finding["code"] for finding in found["findings"]} - {"busy", "engine"}


def test_a_grid_without_faults(small: Testbed, mpi: str) -> None:
    hosts = sorted(small.hosts)
    found, _ = page(Job(small, mpi, hosts))
    assert codes(found) <= {"not-kept", "thin"}
    assert [len(cluster["ranks"]) for cluster in found["clusters"]] == [2, 2]
    assert all(host["transport"] == "TCP over eth0" for host in found["hosts"])
    assert all(host["addresses"][0].startswith("10.") for host in found["hosts"])


def test_ranks_in_turn_over_sites_are_seen(small: Testbed, mpi: str) -> None:
    found, _ = page(Job(small, mpi))
    assert "rank-order" in codes(found)


def test_settings_that_are_refused_are_errors(small: Testbed, mpi: str) -> None:
    found, code = page(Job(small, mpi, sorted(small.hosts)), GRIDCOLL_FORCE="sometimes")
    assert "settings" in codes(found)
    assert "sometimes" in str(found["findings"])
    assert code != 0
    assert not found["ok"]


def test_python_instead_of_c_is_seen(small: Testbed, mpi: str) -> None:
    found, code = page(Job(small, mpi, sorted(small.hosts)), GRIDCOLL_ENGINE="python")
    assert "engine" in {finding["code"] for finding in found["findings"]}
    assert code != 0


class TestFaultsOfTheNetwork:
    @pytest.fixture
    def own(self, write_grid: Callable[..., Path]) -> Any:
        with Testbed.up(write_grid()) as testbed:
            yield testbed

    def test_a_slow_direction_is_seen(self, own: Testbed, mpi: str) -> None:
        slow = own.popen("left-0", (sys.executable, "-c", SLOW, own.instance.text))
        assert slow.wait(30) == 0
        found, code = page(Job(own, mpi, sorted(own.hosts)))
        assert "asymmetric" in codes(found)
        assert code != 0

    def test_a_thin_link_is_seen(self, own: Testbed, mpi: str) -> None:
        own.change(own.spec.change(ChangeSpec(link=("left", "right"), rate="4 Mbit/s")))
        found, _ = page(Job(own, mpi, sorted(own.hosts)))
        assert "thin" in codes(found)

    def test_a_name_that_is_loopback_is_seen(self, own: Testbed, mpi: str) -> None:
        if mpi != "openmpi":
            pytest.skip("hydra starts ranks of a host with such an address where it is itself")
        hosts, _ = own.shared_file("hosts")
        text = hosts.read_text()
        wrong = text.replace(f"{own.hosts['right-1'].address} right-1", "127.0.1.1 right-1")
        assert wrong != text
        hosts.write_text(wrong)
        who = own.popen("right-1", ("getent", "ahostsv4", "right-1"), stdout=subprocess.PIPE)
        assert who.communicate()[0].split()[0] == b"127.0.1.1"
        found, code = page(Job(own, mpi, sorted(own.hosts)))
        assert "loopback" in codes(found)
        assert code != 0

    def test_a_cut_link_ends_the_job_with_a_word(self, own: Testbed) -> None:
        job = Job(own, "mpich", sorted(own.hosts))
        # Hosts meet first, then the link is gone.
        late = "import sys, time; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print('up', "
        late += "flush=True); time.sleep(3); from gridcoll.cli import main; sys.argv[1:] = "
        late += "['doctor', '--patience', '5']; main()"
        process = job.start(("python", "-c", late), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert b"up" in process.stdout.readline()
        own.change(own.spec.change(ChangeSpec(link=("left", "right"), cut="30 s")))
        _, said = process.communicate(timeout=120)
        assert b"nothing happened for 5 s" in said
        assert process.returncode != 0
