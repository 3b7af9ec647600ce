"""A line that a site shares, found by what its hosts send to all other sites at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gridcoll.testbed.job import Job
from gridcoll.testbed.testbed import Testbed

pytestmark = pytest.mark.testbed

THIRD = """
[[clusters]]
name = "third"
hosts = 2
nic = "100 Mbit/s"
[[links]]
between = ["third", "left"]
latency = "4 ms"
rate = "1 Gbit/s"
[[links]]
between = ["third", "right"]
latency = "5 ms"
rate = "40 Mbit/s"
"""

FIND = """
import json, sys
from mpi4py import MPI
from msgspec.structs import replace
from gridcoll.measure.quick import add_estimates
from gridcoll.measure.uplinks import measure_uplinks
from gridcoll.model.gridmodel import declared_model
from gridcoll.topology import parse_gridfile
comm = MPI.COMM_WORLD
hosts = comm.allgather(MPI.Get_processor_name())
links = declared_model(parse_gridfile(sys.argv[1]), hosts)
# Links as flows between two sites show them: each fits into the uplink, which nothing tells.
links = replace(links, uplink_bytes_per_s=())
if sys.argv[2] == "at a start":
    found = add_estimates(comm, links).uplink_bytes_per_s
else:
    found = measure_uplinks(comm, links)
if comm.rank == 0:
    print(json.dumps(dict(zip([c.name for c in links.grid.clusters], found))))
"""


@pytest.mark.parametrize(("uplink", "when"), [("50 Mbit/s", "at a start"), ("", "alone")])
def test_it_is_found_where_there_is_one(
    write_grid: Callable[..., Path], uplink: str, when: str
) -> None:
    """Half of what links carry is told from all of it, on a busy machine as well."""
    shared = f'nic = "80 Mbit/s"\nuplink = "{uplink}"' if uplink else 'nic = "80 Mbit/s"'
    text = write_grid('nic = "80 Mbit/s"', shared).read_text() + THIRD
    path = write_grid()
    path.write_text(text)
    with Testbed.up(path) as testbed:
        command = ["python", "-c", FIND, text, when]
        job = Job(testbed, "mpich").start(command, stdout=subprocess.PIPE)
        out, _ = job.communicate(timeout=100)
    assert job.returncode == 0
    found = json.loads(out)
    if not uplink:
        assert not any(found.values())
    else:
        assert 0.5 * 50e6 / 8 < found["right"] < 1.4 * 50e6 / 8
