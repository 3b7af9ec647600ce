"""Measure how soon calls are fast again after a link or a host changes, and changes back.

    python benchmarks/drift.py {rate,latency,host} [--grid three-sites] [--mpi mpich] [--at NAME…]
        [--models FOLDER] [--ways WAY…] [--meet] [--output FOLDER]

1 MiB broadcasts and allreduces and 64 KiB all-to-alls run in a loop (`apps/calls.py loop`). During
the loop, the thing named by the first argument changes and changes back: a link drops to a tenth of
an interface's rate, a link gets five times its latency, or a host drops to a third of its rate.

The ways are ``frozen``, by a model that does not change (``GRIDCOLL_LEARN=off``), and
``following``, by one that does. ``declared``, if asked for, follows as well but starts from the
grid file. ``fresh`` stands for two frozen runs, in the state before the change and in the state
after it, each with a full discovery in that state. They show the best possible times. Runs that
``--ways`` leaves out are read from the output folder. The plot shows the time per call over time.

The last line of each table is for a round of all three calls, from entry to entry. The times of
calls are from their last entries: a slow host enters late, which makes one call longer and the next
one shorter. With ``--meet``, ranks meet in a barrier before each call, as in OSU's benchmarks.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from learning import on_grid
from on_grids import MPIS, RESULTS, ROOT, model_on, path_of_grid

from gridcoll.topology.gridfile import GridSpec, read_gridfile

FALL_S, RISE_S, END_S, FRESH_S = 25.0, 55.0, 80.0, 15.0

WAYS = ("frozen", "following", "fresh")
CHANGING = {"frozen": "off", "following": "on", "declared": "on"}
"""The ways that see the change while they run, and the value of ``GRIDCOLL_LEARN``."""

ROUND = "a round"

SETTLING_CALLS, SETTLING_S = 20, 3.0
"""Calls should be fast again within this number of calls or seconds, whichever is longer."""


def change_of(spec: GridSpec, what: str, at: list[str]) -> tuple[str, str, str]:
    """Return the lines of an event: its target, the changed value, and the original value.

    The target is the link between the clusters ``at``, by default the first two, or the host
    ``at``, by default the last one.
    """

    def rate(bytes_per_s: float) -> str:
        return f'rate = "{8e-6 * bytes_per_s:g} Mbit/s"'

    if what == "host":
        host = at[0] if at else spec.hosts[-1][-1]
        nic = spec.nic_bytes_per_s[spec.cluster_of_host[host]]
        return f'host = "{host}"', rate(nic / 3), rate(nic)
    names = [cluster.name for cluster in spec.clusters]
    a, b = (names.index(name) for name in at or names[:2])
    target = f'link = ["{names[a]}", "{names[b]}"]'
    if what == "latency":
        once, often = (f'latency = "{k * spec.latency_s[a, b]:g} s"' for k in (1, 5))
        return target, often, once
    nic = min(spec.nic_bytes_per_s[[a, b]])
    return target, rate(nic / 10), rate(spec.rate_bytes_per_s[a, b])


def grid_file(path: Path, grid: Path, change: tuple[str, str, str], at_s: list[float]) -> Path:
    """Write ``grid`` to ``path`` with the change, and back if there are two times.

    Returns ``path``.
    """
    target, *states = change
    events = "".join(
        f'\n[[events]]\nat = "{when:g} s"\n{target}\n{state}\n'
        for when, state in zip(at_s, states, strict=False)
    )
    path.write_text(grid.read_text() + events)
    return path


def run(
    grid: Path, mpi: str, kind: str, model: Path, rows: Path, seconds: float, learn: str
) -> None:
    """Run the ``kind`` of loop on ``grid`` with a kept ``model``, and write its ``rows``."""
    app = str(ROOT / "benchmarks" / "apps" / "calls.py")
    command = ["python", "-m", "gridcoll", "run", app, kind, str(rows), f"{seconds:g}"]
    settings = {"GRIDCOLL_GRID": str(model), "GRIDCOLL_LEARN": learn}
    on_grid(grid, mpi, *command, settings={**settings, "GRIDCOLL_LOG": "decisions"})


def medians(rows: list[dict[str, Any]], from_s: float, until_s: float) -> dict[str, float]:
    """Return the median seconds of each call, and of a round, if begun in the given interval.

    Times are counted from the first call.
    """
    first_s = rows[0]["entry_s"]
    calls = list(dict.fromkeys(row["call"] for row in rows))
    found: dict[str, list[float]] = {name: [] for name in (*(f"{c} B" for c in calls), ROUND)}
    for k, row in enumerate(rows):
        if from_s <= row["entry_s"] - first_s < until_s:
            found[f"{row['call']} B"].append(row["exit_s"] - row["entry_s"])
            if row["call"] == calls[0] and k + len(calls) < len(rows):
                found[ROUND].append(rows[k + len(calls)]["entry_s"] - row["entry_s"])
    return {name: statistics.median(took) for name, took in found.items() if took}


def settling_end_s(rows: list[dict[str, Any]], from_s: float) -> float:
    """Return when calls should be fast again, if the network changes at ``from_s``."""
    first_s = rows[0]["entry_s"]
    after = [row["exit_s"] - first_s for row in rows if row["entry_s"] - first_s >= from_s]
    return max(from_s + SETTLING_S, after[min(SETTLING_CALLS, len(after)) - 1])


def change_seen_s(rows: list[dict[str, Any]]) -> float:
    """Return when the change becomes visible, in seconds from the first call.

    It is the start of the first of three successive calls that take much longer than before. The
    times of events are of no use here, as they are counted from before the start.
    """
    before, first_s = medians(rows, 0.0, 10.0), rows[0]["entry_s"]
    slow = [row["exit_s"] - row["entry_s"] > 1.5 * before[f"{row['call']} B"] for row in rows]
    for k, row in enumerate(rows[:-2]):
        if row["entry_s"] - first_s > 10 and all(slow[k : k + 3]):
            return float(row["entry_s"] - first_s)
    return FALL_S


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, figsize=(7, 8), sharex=True)
    calls = dict.fromkeys(row["call"] for row in next(iter(results.values())))
    for axis, call in zip(axes, calls, strict=True):
        for way, rows in results.items():
            first_s = rows[0]["entry_s"]
            mine = [row for row in rows if row["call"] == call]
            axis.plot(
                [row["entry_s"] - first_s for row in mine],
                [row["exit_s"] - row["entry_s"] for row in mine],
                label=way,
            )
        axis.set_title(f"{call} B")
        axis.set_ylabel("seconds")
        axis.set_yscale("log")
    axes[0].legend()
    axes[-1].set_xlabel("seconds from the first call")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("rate", "latency", "host"))
    parser.add_argument("--grid", default="three-sites", help="a file in hostfiles, or a path")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    parser.add_argument(
        "--at", nargs="+", default=[], metavar="NAME", help="two clusters or a host"
    )
    parser.add_argument("--models", type=Path, help="full discoveries are kept there, and reused")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=(*WAYS, "declared"))
    parser.add_argument("--meet", action="store_true", help="a barrier before each call")
    parser.add_argument("--output", type=Path, default=RESULTS / "drift")
    options = parser.parse_args()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    grid = path_of_grid(options.grid)
    change = change_of(read_gridfile(grid), options.what, options.at)
    kind = "meet" if options.meet else "loop"
    on = "-".join([grid.stem, options.what, *options.at, options.mpi])
    name = f"{on}-meet" if options.meet else on
    changed = grid_file(folder / f"{on}-changed.toml", grid, change, [0.0])
    changing = grid_file(folder / f"{on}-changing.toml", grid, change, [FALL_S, RISE_S])
    models = options.models or folder
    model = model_on(grid, options.mpi, models)
    kept = {way: folder / f"{name}-{way}.json" for way in (*CHANGING, "fresh", "before")}
    if "fresh" in options.ways:
        run(grid, options.mpi, kind, model, kept["before"], FRESH_S, "off")
        fresh = model_on(changed, options.mpi, models)
        run(changed, options.mpi, kind, fresh, kept["fresh"], FRESH_S, "off")
    for way, learn in CHANGING.items():
        if way in options.ways:
            known = grid if way == "declared" else model
            run(changing, options.mpi, kind, known, kept[way], END_S, learn)
    found = {way: json.loads(path.read_text()) for way, path in kept.items() if path.exists()}
    best = {
        when: medians(found[way], 3.0, FRESH_S)
        for when, way in (("after the fall", "fresh"), ("after the recovery", "before"))
    }
    rows_of = {way: found[way] for way in CHANGING if way in found}
    for way, rows in rows_of.items():
        fell_s = change_seen_s(rows)
        rose_s = fell_s + RISE_S - FALL_S
        for when, from_s, until_s in (
            ("after the fall", fell_s, rose_s),
            ("after the recovery", rose_s, END_S),
        ):
            print(f"{name}, {way}, {when}:")
            for call, took_s in medians(rows, settling_end_s(rows, from_s), until_s).items():
                fresh_s = best[when].get(call)
                over = f"  {took_s / fresh_s:.2f} times fresh" if fresh_s else ""
                print(f"  {call:>20}  {1e3 * took_s:8.1f} ms{over}")
    if rows_of:
        draw(rows_of, folder / f"{name}.svg")


if __name__ == "__main__":
    main()
