from __future__ import annotations

import json
import os
import subprocess
import sys

from gridcoll.model.closed_forms import CLOSED_FORMS
from gridcoll.placement import SEARCHES
from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import natives_of
from gridcoll.schedule import HEURISTICS
from gridcoll.schedule.trees import SHAPES
from gridcoll.study import STUDIES
from gridcoll.variables import VARIABLES


def test_everything_with_a_name_is_listed(gridcoll):
    said = json.loads(gridcoll("list", "--json").out)
    names = {section: [entry["name"] for entry in entries] for section, entries in said.items()}
    for collective, registry in REGISTRIES.items():
        assert names[f"{collective} algorithms"] == [*registry, *natives_of(collective)]
    assert names["heuristics"] == list(HEURISTICS)
    assert names["tree shapes"] == list(SHAPES)
    assert names["closed forms"] == list(CLOSED_FORMS)
    assert names["searches"] == list(SEARCHES)
    assert names["studies"] == list(STUDIES)
    assert names["settings"] == list(VARIABLES)
    assert names["passed through"] == ["Scan, Exscan"]


def test_every_entry_says_what_it_is_good_for(gridcoll):
    said = json.loads(gridcoll("list", "--json").out)
    for entries in said.values():
        for entry in entries:
            assert len(entry["good_for"]) > 10
            assert "source" in entry or "values" in entry


def test_tables(gridcoll):
    out = gridcoll("list").out
    for word in ("ecef-la-max-t", "ECEF-LAT", "binomial", "GRIDCOLL_GRID", "branch-and-bound"):
        assert word in out


def test_one_section(gridcoll):
    assert list(json.loads(gridcoll("list", "shapes", "--json").out)) == ["tree shapes"]
    ran = gridcoll("list", "nonsense")
    assert ran.code == 2
    assert "known are" in ran.err
    assert "bcast algorithms" in ran.err


def test_offline_commands_do_not_touch_mpi():
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "import gridcoll.cli.list_command as l, gridcoll.cli.explain_command, gridcoll.cli.models\n"
        "import gridcoll.plan.cost, gridcoll.draw.gantt\n"
        "import gridcoll.comm.settings\n"
        "l.catalogue()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
