"""MPI jobs on the emulated network, and the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gridcoll.errors import TestbedError
from gridcoll.testbed import launchers, pingpong, preflight
from gridcoll.testbed.instances import Instance, list_instances
from gridcoll.testbed.job import Job
from gridcoll.testbed.layout import RUN_DIR
from gridcoll.testbed.preflight import Sighting, check_transport, find_faults
from gridcoll.testbed.run import wait_for
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology import parse_gridfile

pytestmark = pytest.mark.testbed

WriteGrid = Callable[..., Path]

WHO = """
import json, os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
mine = (MPI.Get_processor_name(), node.size, sys.prefix, os.environ.get("GRIDCOLL_TRIAL"))
everybody = comm.gather(mine)
if comm.rank == 0:
    print(json.dumps(everybody))
"""


EARLY = """
from mpi4py import MPI
from gridcoll.engine.memory import ByteMemory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.plan import Chunk, Recv, Send, dataflow
comm, n, size = MPI.COMM_WORLD, 300, 10_000
first, *others = (Chunk("output", k * size, (k + 1) * size) for k in range(n))
chunks = enumerate((first, *others))
sends = [Send(0, chunk, tag) for tag, chunk in enumerate(others, start=1)]
programs = (
    (Send(1, first, n), *(Recv(1, chunk, tag) for tag, chunk in chunks)),
    (*sends, Recv(0, first, n), Send(0, first, 0)),
)
program = programs[comm.rank] if comm.rank < 2 else ()
run_program(dataflow(program), MPITransport(comm), ByteMemory(memoryview(bytearray(n * size))))
if comm.rank == 0:
    print("over")
"""
"""Before what rank 0 waits for first come more messages than MPI libraries keep for anybody."""


def output_of(job: Job, *command: str, env: dict[str, str] | None = None) -> str:
    process = job.start(command, env=env, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.decode()


class TestJobs:
    def test_what_daemons_keep_ends_with_the_testbed(self, small: Testbed, mpi: str) -> None:
        """Process ids are the same in every testbed, and Open MPI calls its folders by them."""
        # A program that starts MPI: MPICH's mpiexec may end by SIGPIPE if all ranks end at once.
        tell = "import os; from mpi4py import MPI; print(os.environ.get('PMIX_SERVER_TMPDIR', ''))"
        folders = set(output_of(Job(small, mpi), "python", "-c", tell, env=ENV).split())
        assert all(folder.startswith(f"{RUN_DIR}/") for folder in folders)
        assert bool(folders) == (mpi == "openmpi")

    def test_ranks_hosts_nodes_and_environment(self, small: Testbed, mpi: str) -> None:
        job = Job(small, mpi)
        seen = json.loads(output_of(job, "python", "-c", WHO, env=ENV))
        hosts = [host for host, *_ in seen]
        assert hosts == ["left-0", "right-0", "left-1", "right-1"]  # rank_order: interleaved
        assert [size for _, size, *_ in seen] == [1, 1, 1, 1]
        assert {prefix for _, _, prefix, _ in seen} == {str(job.venv)}
        assert {said for *_, said in seen} == {"heard"}

    def test_slots_share_their_host(self, write_grid: WriteGrid, mpi: str) -> None:
        with Testbed.up(write_grid("hosts = 2", "hosts = 1\nslots = 2")) as testbed:
            seen = json.loads(output_of(Job(testbed, mpi), "python", "-c", WHO))
        assert [(host, size) for host, size, *_ in seen] == [("left-0", 2)] * 2 + [
            ("right-0", 2)
        ] * 2

    def test_the_exit_code_is_the_commands(self, small: Testbed, mpi: str) -> None:
        code = wait_for(Job(small, mpi).start(["sh", "-c", ONE_FAILS]))
        assert code == 7 or (mpi == "impi" and code), code  # Intel's mpiexec has codes of its own
        assert wait_for(Job(small, mpi).start(["true"])) == 0

    @pytest.mark.parametrize("engine", ["compiled", "python"])
    def test_early_messages_hold_up_nothing(self, small: Testbed, mpi: str, engine: str) -> None:
        """Intel MPI keeps 64 of a peer over TCP, and reads no more until somebody wants them."""
        env = {**os.environ, "GRIDCOLL_ENGINE": engine}
        assert output_of(Job(small, mpi), "python", "-c", EARLY, env=env) == "over\n"

    def test_mpi_uses_the_network(self, small: Testbed, mpi: str) -> None:
        sighting = check_transport(small, mpi)
        assert sighting.hosts == ["left-0", "right-0", "left-1"]
        assert sighting.node_sizes == [1, 1, 1]
        ((i, j, trip_s),) = sighting.round_trip_s
        assert (i, j) == (0, 1)
        assert trip_s >= 0.95 * 0.012

    def test_one_that_does_not_is_refused(
        self, small: Testbed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All ranks stay on the first host, each under the name of the host it should be on."""
        pretend = 'set -- $PMI_RANK "$@"; i=$1; shift; n=$((i + 1)); '
        pretend += 'hostname $(sed -n "${n}s/:.*//p" "$HOSTS"); exec "$@"'

        def bypass(mpiexec: str, hostfile: str, n_ranks: int, one_per_host: bool) -> list[str]:
            wrapped = ["unshare", "-u", "sh", "-c", f"HOSTS={hostfile}; {pretend}", "sh"]
            return [mpiexec, "-launcher", "fork", "-n", str(n_ranks), *wrapped]

        found = launchers.LAUNCHERS["mpich"]
        monkeypatch.setitem(launchers.LAUNCHERS, "mpich", replace(found, command=bypass))
        monkeypatch.setitem(os.environ, "UCX_NET_DEVICES", "all")
        with pytest.raises(TestbedError, match="MPI does not use the emulated network: "):
            check_transport(small, "mpich")

    def test_an_mpi_that_does_not_start_is_told(
        self, small: Testbed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(preflight, "_PROGRAM", Path("/missing/program.py"))
        with pytest.raises(TestbedError, match=r"(?s)trial run under MPICH failed .*missing/progr"):
            check_transport(small, "mpich")

    def test_an_mpi_that_hangs_is_ended(
        self, small: Testbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        forever = tmp_path / "forever.py"
        forever.write_text("import signal\nwhile True: signal.pause()\n")
        monkeypatch.setattr(preflight, "_PROGRAM", forever)
        monkeypatch.setattr(preflight, "_TIMEOUT_S", 1.0)
        with pytest.raises(TestbedError, match="trial run under MPICH did not end within 1 s"):
            check_transport(small, "mpich")


ENV = {**os.environ, "GRIDCOLL_TRIAL": "heard"}
ONE_FAILS = '[ "${PMIX_RANK:-$PMI_RANK}" = 1 ] && exit 7; sleep 1'


class TestFaults:
    """What the trial run may find; see also the real bypass above."""

    GOOD = Sighting(["a-0", "b-0", "a-1"], [1, 1, 1], [(0, 1, 0.0101)], 0.03)
    SPEC = parse_gridfile(
        'version = 1\nname = "g"\n[[clusters]]\nname = "a"\nhosts = 2\nnic = "100 Mbit/s"\n'
        '[[clusters]]\nname = "b"\nhosts = 1\n[[links]]\nbetween = ["a", "b"]\nlatency = "5 ms"\n'
    )

    def faults(self, **changes: Any) -> list[str]:
        fields = {name: getattr(self.GOOD, name) for name in Sighting.__struct_fields__}
        return find_faults(self.SPEC, ["a-0", "b-0", "a-1"], Sighting(**{**fields, **changes}))

    def test_none_in_a_good_one(self) -> None:
        assert self.faults() == []
        assert self.faults(bulk_s=None) == []

    def test_ranks_elsewhere(self) -> None:
        (fault,) = self.faults(hosts=["a-0", "a-1", "b-0"])
        assert fault == "ranks should run on a-0, b-0, a-1, are on a-0, a-1, b-0"

    def test_hosts_that_share_a_node(self) -> None:
        (fault,) = self.faults(node_sizes=[2, 1, 2])[:1]
        assert fault == "a-0 should be a node of its own, shares one with 1 others"

    def test_too_short_a_round_trip(self) -> None:
        (fault,) = self.faults(round_trip_s=[(0, 1, 0.0091)])
        assert fault == "round trip a-0-b-0 configured 10 ms, 8 bytes took 9.1 ms"

    def test_a_short_link_may_be_a_little_early(self) -> None:
        """As the relay lets packets go before they are due; 8 bytes took 106 us of 120."""
        text = (
            'version = 1\nname = "g"\nclusters = [{ name = "a", hosts = 2 }, '
            '{ name = "b", hosts = 1 }]\ndefault_link = { latency = "60 us" }'
        )
        hosts = ["a-0", "b-0", "a-1"]
        for round_trip_s, n_faults in ((106e-6, 0), (60e-6, 1)):
            seen = Sighting(hosts, [1, 1, 1], [(0, 1, round_trip_s)], None)
            assert len(find_faults(parse_gridfile(text), hosts, seen)) == n_faults

    def test_too_fast_a_neighbour(self) -> None:
        (fault,) = self.faults(bulk_s=0.001)
        assert fault == "262144 B a-0-a-1 need 18.4 ms at the NIC's rate, took 1 ms"

    def test_the_trial_program_is_where_it_is_looked_for(self) -> None:
        assert Path(pingpong.__file__) == preflight._PROGRAM


@pytest.fixture
def cli(write_grid: WriteGrid) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``cli(*args)`` starts ``gridcoll testbed args``, as a terminal does; GRID is `SMALL`."""
    grid = str(write_grid())
    started = []

    def start(*args: str) -> subprocess.Popen[str]:
        argv = [grid if arg == "GRID" else arg for arg in args]
        process = subprocess.Popen(
            [sys.executable, "-m", "gridcoll", "testbed", *argv],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def owned_by(pid: int) -> Instance:
    (instance,) = (one for one in list_instances() if one.owner_pid == pid)
    return instance


class TestCommandLine:
    WAIT = ("run", "GRID", "--no-check", "-n", "2", "--", "sh", "-c", "echo ready; sleep 1000")

    def test_run_returns_the_exit_code(self, cli: Any, mpi: str) -> None:
        process = cli("run", "GRID", "--mpi", mpi, "--", "sh", "-c", ONE_FAILS)
        _, err = process.communicate(timeout=100)
        assert process.returncode == 7 or (mpi == "impi" and process.returncode > 2), err
        assert not [one for one in list_instances() if one.owner_pid == process.pid]

    @pytest.mark.parametrize(
        ("number", "to_group"),
        [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)],
    )
    def test_signals_end_it_and_leave_nothing(
        self, cli: Any, watch: Any, number: signal.Signals, to_group: bool
    ) -> None:
        process = cli(*self.WAIT)
        assert process.stdout.readline() == "ready\n"
        watch.note(owned_by(process.pid))
        (os.killpg if to_group else os.kill)(process.pid, number)
        process.communicate(timeout=30)
        assert process.returncode == 128 + number

    def test_a_killed_one_takes_everything_with_it(self, cli: Any, watch: Any) -> None:
        process = cli(*self.WAIT)
        assert process.stdout.readline() == "ready\n"
        instance = owned_by(process.pid)
        watch.note(instance)
        keeper = os.pidfd_open(instance.pid)
        process.kill()
        process.communicate()
        assert signal_is_readable(keeper)
        os.close(keeper)
        assert cli("down", "--all-stale").wait(30) == 0
        assert not instance.path.exists()

    def test_the_end_of_the_network_is_told(self, cli: Any, watch: Any) -> None:
        process = cli(*self.WAIT)
        assert process.stdout.readline() == "ready\n"
        instance = owned_by(process.pid)
        watch.note(instance)
        os.kill(instance.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 2
        assert f"TestbedError: testbed {instance.id}: its process {instance.pid} ended" in err

    def test_up_exec_status_down(self, cli: Any, watch: Any) -> None:
        process = cli("up", "GRID")
        out, _ = process.communicate(timeout=30)
        name = out.strip()
        (instance,) = (one for one in list_instances() if one.id == name)
        watch.note(instance)
        assert instance.owner_pid == 0
        (row,) = (r for r in json.loads(output(cli("status", "--json"))) if r["id"] == name)
        assert row["hosts"]["right-1"] == "10.2.0.2"
        assert name in output(cli("status"))
        process = cli("exec", "--id", name, "right-1", "--", "sh", "-c", "hostname; exit 5")
        out, _ = process.communicate(timeout=30)
        assert (out, process.returncode) == ("right-1\n", 5)
        assert output(cli("down", name)) == f"{name} is down\n"

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            (("run", "nowhere", "--", "true"), "UsageError: grid 'nowhere': no such file, and no "),
            (("run", "GRID", "--mpi", "lam", "--", "true"), "unknown MPI 'lam'; known are mpich,"),
            (("run", "GRID", "-n", "9", "--", "true"), "has 4 slots: ranks must be 1..4, got 9"),
            (("exec", "--id", "x-1", "a-0", "--", "true"), "none is called 'x-1'; up: "),
            (("down", "x-1"), "testbed: none is called 'x-1'"),
        ],
    )
    def test_mistakes_are_told_in_one_line(self, cli: Any, args: list[str], told: str) -> None:
        process = cli(*args)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 2
        assert told in err
        assert err.count("\n") == 1


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out


def signal_is_readable(pidfd: int, timeout_s: float = 30.0) -> bool:
    """Whether the process behind ``pidfd`` ends in time."""
    import select

    return bool(select.select([pidfd], [], [], timeout_s)[0])
