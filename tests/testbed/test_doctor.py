"""`gridcoll doctor` on emulated grids with faults made on purpose."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gridcoll.errors import TestbedError
from gridcoll.testbed import linux
from gridcoll.testbed.job import Job
from gridcoll.testbed.launchers import find_environment
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

COMMAND = ("doctor", "--json")


def page(
    job: Job, *, before: Sequence[str] = (), gridcoll: str = "gridcoll", **settings: str
) -> tuple[dict[str, Any], int]:
    """What the doctor says, and the launcher's exit code.

    That is the doctor's own, 1, unless the launcher crashes after ranks of several hosts failed, as
    Open MPI 5.0.11's does now and then. ``before`` stands in front of the command on each host.
    """
    command = (*before, gridcoll, *COMMAND)
    process = job.start(command, env={**os.environ, **settings}, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=120)
    text = out.decode()
    return json.loads(text[text.index("{") :]), process.returncode


def codes(found: dict[str, Any]) -> set[str]:
    # Other tests' processes are not the network's fault.
    return {finding["code"] for finding in found["findings"]} - {"busy", "engine"}


def under(mpi: str) -> pytest.MarkDecorator:
    """For tests that run under one MPI, because nothing in them depends on it."""
    return pytest.mark.parametrize("mpi", [mpi], indirect=True)


def test_a_grid_without_faults(small: Testbed, mpi: str) -> None:
    hosts = sorted(small.hosts)
    found, _ = page(Job(small, mpi, hosts))
    assert codes(found) <= {"not-kept", "thin"}
    assert [len(cluster["ranks"]) for cluster in found["clusters"]] == [2, 2]
    assert all(host["transport"] == "TCP over eth0" for host in found["hosts"])
    assert all(host["addresses"][0].startswith("10.") for host in found["hosts"])


@under("openmpi")
def test_ranks_in_turn_over_sites_are_seen(small: Testbed, mpi: str) -> None:
    found, _ = page(Job(small, mpi))
    assert "rank-order" in codes(found)


@under("impi")
def test_settings_that_are_refused_are_errors(small: Testbed, mpi: str) -> None:
    found, code = page(Job(small, mpi, sorted(small.hosts)), GRIDCOLL_FORCE="sometimes")
    assert "settings" in codes(found)
    assert "sometimes" in str(found["findings"])
    assert code != 0
    assert not found["ok"]


@under("mpich")
def test_python_instead_of_c_is_seen(small: Testbed, mpi: str) -> None:
    found, code = page(Job(small, mpi, sorted(small.hosts)), GRIDCOLL_ENGINE="python")
    assert "engine" in {finding["code"] for finding in found["findings"]}
    assert code != 0


EAGER = {
    "mpich": ("-u", "MPIR_CVAR_POLLS_BEFORE_YIELD"),
    "openmpi": ("OMPI_MCA_mpi_yield_when_idle=0",),
}
"""What makes ranks that wait keep their cores, for ``env``: the testbed has them give way."""

GIVE_WAY = {"mpich": ("MPIR_CVAR_POLLS_BEFORE_YIELD=16",), "openmpi": (), "impi": ()}

INTERFACE = {
    "mpich": "UCX_NET_DEVICES",
    "openmpi": "OMPI_MCA_btl_tcp_if_include",
    "impi": "FI_TCP_IFACE",
}

ODD_HOSTS = """
import os, sys, time
if os.uname().nodename == "left-0":
    true = time.time
    time.time = lambda: true() + 3600
if os.uname().nodename == "right-0":
    sys.path.insert(0, os.environ["WITHOUT_ENGINE"])
"""
"""For `sitecustomize`: the clock of one host is wrong, another one's package has no engine in C."""

PAINT = re.compile(r"\x1b\[[0-9;]*m")

TOO_MANY = (os.cpu_count() or 1) + 1


def found_of(found: dict[str, Any], code: str) -> tuple[str, str, str]:
    """Severity, what and remedy of the only finding with ``code``."""
    (finding,) = (each for each in found["findings"] if each["code"] == code)
    return finding["severity"], finding["what"], finding["remedy"]


@pytest.mark.skipif(TOO_MANY > 17, reason="more ranks than cores would be too many here")
class TestFaultsOfHosts:
    @pytest.mark.parametrize("mpi", ["mpich", "openmpi"], indirect=True)  # busy ranks take long
    def test_each_is_named_beside_the_others(
        self, small: Testbed, mpi: str, tmp_path: Path
    ) -> None:
        """Ranks that keep busy, a clock, an engine, a kept file: four faults in one job."""
        package = Path(__file__).parents[2] / "gridcoll"
        leave = shutil.ignore_patterns("__pycache__", "_compiled.so")
        shutil.copytree(package, tmp_path / "copy/gridcoll", ignore=leave)
        (tmp_path / "sitecustomize.py").write_text(ODD_HOSTS)
        damaged = tmp_path / "cache/v1/hosts/damaged.json"
        damaged.parent.mkdir(parents=True)
        damaged.write_text("{ no")
        hosts = ["left-0"] * TOO_MANY + ["left-1", "right-0"]
        found, code = page(
            Job(small, mpi, hosts),
            before=("env", *EAGER[mpi]),
            PYTHONPATH=str(tmp_path),
            WITHOUT_ENGINE=str(tmp_path / "copy"),
            GRIDCOLL_CACHE=str(tmp_path / "cache"),
        )

        weight, what, remedy = found_of(found, "oversubscribed")
        assert weight == "warning"
        assert f"left-0: {TOO_MANY} ranks share" in what
        assert "busy" in what
        assert "give way" in remedy

        weight, what, remedy = found_of(found, "clock")
        assert weight == "warning"
        assert "left-0: its clock is +3600.0 s off" in what
        assert "ntpd" in remedy

        weight, what, remedy = found_of(found, "engine")
        assert weight == "warning"
        assert what.startswith("right-0: plans run in Python")
        assert "wheel" in remedy
        assert found["engines"] == ["C", "Python"]

        weight, what, remedy = found_of(found, "cache")
        assert weight == "warning"
        assert str(damaged) in what
        assert "gridcoll cache list" in remedy
        assert not damaged.exists()

        assert "versions" not in codes(found)
        assert not found["ok"]
        assert code != 0

    def test_ranks_that_give_way_and_a_cache_that_nobody_can_write(
        self, small: Testbed, mpi: str, tmp_path: Path
    ) -> None:
        """Root writes anywhere, but no directory where there is a file."""
        (tmp_path / "file").touch()
        found, code = page(
            Job(small, mpi, ["left-0"] * TOO_MANY),
            before=("env", *GIVE_WAY[mpi]),
            GRIDCOLL_CACHE=str(tmp_path / "file/cache"),
        )
        weight, what, remedy = found_of(found, "oversubscribed")
        assert weight == "note"
        assert "busy" not in what
        assert "give way" not in remedy

        weight, what, remedy = found_of(found, "cache")
        assert weight == "warning"
        assert f"left-0: cannot write {tmp_path}/file/cache" in what
        assert "GRIDCOLL_CACHE=DIR" in remedy
        assert "not-kept" not in codes(found)
        assert code != 0

    def test_open_mpi_gives_way_by_itself_beyond_its_slots(
        self, small: Testbed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No variable says so: the doctor asks the library."""
        programs = find_environment_or_skip("openmpi") / "bin"
        monkeypatch.delenv("OMPI_MCA_mpi_yield_when_idle", raising=False)
        line = [
            str(programs / "mpirun"),
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
        ]
        line += ["--host", "left-0:1", "-n", str(TOO_MANY), str(programs / "gridcoll"), *COMMAND]
        process = small.popen("left-0", line, {**os.environ}, stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=120)
        weight, what, _ = found_of(json.loads(out[out.index(b"{") :]), "oversubscribed")
        assert weight == "note"
        assert what.startswith(f"left-0: {TOO_MANY} ranks share")


class TestAnotherLauncher:
    def test_a_launcher_that_leaves_each_process_alone(self, small: Testbed) -> None:
        """MPICH's mpiexec knows nothing of Open MPI's ranks. One page is enough."""
        gridcoll = find_environment_or_skip("openmpi") / "bin/gridcoll"
        found, code = page(Job(small, "mpich", ["left-0", "left-1"]), gridcoll=str(gridcoll))
        weight, what, remedy = found_of(found, "launcher")
        assert weight == "error"
        assert "started 2 processes, and each is a job of one rank under Open MPI" in what
        assert "mpiexec of Open MPI" in remedy
        assert found["n_ranks"] == 1
        assert code != 0

    def test_a_launcher_under_which_mpi_does_not_start(self, small: Testbed) -> None:
        """MPICH ends the process, so the word comes before."""
        gridcoll = find_environment_or_skip("mpich") / "bin/gridcoll"
        find_environment_or_skip("openmpi")
        job = Job(small, "openmpi", ["left-0", "left-1"])
        process = job.start(
            (str(gridcoll), *COMMAND), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        _, said = process.communicate(timeout=60)
        assert b"start it with the mpiexec of MPICH" in said
        assert process.returncode != 0


def find_environment_or_skip(mpi: str) -> Path:
    try:
        return find_environment(mpi)
    except TestbedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="class")
def cabled(write_grid: Callable[..., Path]) -> Iterator[Testbed]:
    """left-0 and left-1 have a cable between them, too, called as that of a container's network."""
    from pyroute2 import IPRoute

    with Testbed.up(write_grid()) as testbed:
        name = "docker0"
        ends = [testbed.descriptor(host, "net") for host in ("left-0", "left-1")]
        with linux.inside({"net": ends[0]}), IPRoute() as ip:
            ip.link("add", ifname=name, kind="veth", peer={"ifname": name, "net_ns_fd": ends[1]})
        for number, end in enumerate(ends, 1):
            with linux.inside({"net": end}), IPRoute() as ip:
                index = ip.link_lookup(ifname=name)[0]
                ip.addr("add", index=index, address=f"172.17.0.{number}", prefixlen=24)
                ip.link("set", index=index, state="up")
        for end in ends:
            with linux.inside({"net": end}), IPRoute() as ip:
                # Linux says up a while after both ends are, and UCX asks it.
                give_up = time.monotonic() + 20
                while ip.get_links(ifname=name)[0].get_attr("IFLA_OPERSTATE") != "UP":
                    assert time.monotonic() < give_up
                    time.sleep(0.01)
            os.close(end)
        yield testbed


class TestTheWrongInterface:
    HOSTS = ("left-0", "left-1")

    def test_it_is_named_with_the_right_one(self, cabled: Testbed, mpi: str) -> None:
        """On the page that people read."""
        process = Job(cabled, mpi, self.HOSTS).start(
            ("env", f"{INTERFACE[mpi]}=docker0", "gridcoll", "doctor"), stdout=subprocess.PIPE
        )
        out, _ = process.communicate(timeout=120)
        text = PAINT.sub("", out.decode().replace("\r", ""))
        lines = text.splitlines()
        assert {"mpich": "MPICH", "openmpi": "Open MPI", "impi": "Intel"}[mpi] in lines[0]
        for number, host in enumerate(self.HOSTS, 1):
            row = next(line for line in lines if line.startswith(f"│ {host}"))
            cells = [cell.strip() for cell in row.strip("│").split("│")]
            # And not over eth0, through which the launcher talks to its helpers.
            assert cells[1:2] + cells[4:] == [
                str(number - 1),
                "TCP over docker0",
                f"10.1.0.{number}",
            ]
            (at,) = (
                k for k, line in enumerate(lines) if "docker0 (172.17" in line and host in line
            )
            assert lines[at].startswith(f"warning: {host}: ")
            assert f"docker0 (172.17.0.{number}" in lines[at]
            assert f"where there is eth0 (10.1.0.{number}" in lines[at]
            assert lines[at + 1].startswith("  remedy: ")
            assert "eth0" in lines[at + 1]
        assert re.search(r"^│ left +│ inside +│ .* [mu]?s +│ ", text, re.MULTILINE)
        assert re.fullmatch(r"\d+ things wrong, \d notes?", lines[-1])
        assert process.returncode != 0


class TestFaultsOfTheNetwork:
    @pytest.fixture
    def own(self, write_grid: Callable[..., Path]) -> Any:
        with Testbed.up(write_grid()) as testbed:
            yield testbed

    @under("openmpi")
    def test_a_slow_direction_is_seen(self, own: Testbed, mpi: str) -> None:
        slow = own.popen("left-0", (sys.executable, "-c", SLOW, own.instance.text))
        assert slow.wait(30) == 0
        found, code = page(Job(own, mpi, sorted(own.hosts)))
        assert "asymmetric" in codes(found)
        assert code != 0

    @under("mpich")
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
        own.change(own.spec.change(ChangeSpec(link=("left", "right"), cut="60 s")))
        assert process.stderr is not None
        assert any(b"nothing happened for 5 s" in line for line in process.stderr)
        # The launcher's messages pass there, too.
        own.change(own.spec.change(ChangeSpec(link=("left", "right"))))
        process.communicate(timeout=120)
        assert process.returncode != 0
