"""How soon calls are fast again when a link or a host changes while they run, and changes back.

    python benchmarks/drift.py {rate,latency,host} [--grid three-sites] [--mpi mpich]
        [--model MODEL.json] [--ways WAY…] [--output FOLDER]

1 MiB broadcasts and allreduces and 64 KiB all-to-alls in a loop (`apps/calls.py loop`), while what
the first argument names changes (a link to a tenth of an interface's rate, a link to five times
its latency, a host to a third of its rate) and changes back: by a model that stays
(``GRIDCOLL_LEARN=off``), and by one that follows. ``fresh`` is a run on the changed grid from the
start, by a model of just that, frozen: what can be had. Runs that ``--ways`` leaves out are read
from the output folder. The plot has the time per call over time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from learning import on_grid
from on_grids import MPIS, RESULTS, ROOT

CHANGES = {
    "rate": ('link = ["orsay", "toulouse"]', 'rate = "10 Mbit/s"', 'rate = "1 Gbit/s"'),
    "latency": ('link = ["orsay", "toulouse"]', 'latency = "26 ms"', 'latency = "5.2 ms"'),
    "host": ('host = "toulouse-1"', 'rate = "33 Mbit/s"', 'rate = "100 Mbit/s"'),
}
"""What changes, to what, and back; on three-sites."""

FALL_S, RISE_S, END_S = 25.0, 55.0, 80.0

ENOUGH_CALLS, ENOUGH_S = 20, 3.0
"""Within so many calls, or seconds, whichever is more, calls should be fast again."""


def grid_file(folder: Path, grid: str, what: str, times: list[tuple[float, int]]) -> Path:
    """``grid`` with the change ``what``: at each time to state 1 or back to 0."""
    target, *states = CHANGES[what]
    events = "".join(
        f'\n[[events]]\nat = "{at_s:g} s"\n{target}\n{states[1 - state]}\n' for at_s, state in times
    )
    path = folder / f"{grid}-{what}-{'-'.join(f'{at_s:g}' for at_s, _ in times)}.toml"
    path.write_text((ROOT / "hostfiles" / f"{grid}.toml").read_text() + events)
    return path


def run(grid: Path, mpi: str, rows: Path, seconds: float, settings: dict[str, str]) -> None:
    app = str(ROOT / "benchmarks" / "apps" / "calls.py")
    command = ["python", "-m", "gridcoll", "run", app, "loop", str(rows), f"{seconds:g}"]
    on_grid(grid, mpi, *command, settings=settings)


def medians(rows: list[dict[str, Any]], from_s: float, until_s: float) -> dict[str, float]:
    """Median seconds of each call that began in that part, counted from the first one."""
    first_s = rows[0]["entry_s"]
    by_call: dict[str, list[float]] = {}
    for row in rows:
        if from_s <= row["entry_s"] - first_s < until_s:
            by_call.setdefault(row["call"], []).append(row["exit_s"] - row["entry_s"])
    return {call: statistics.median(took) for call, took in by_call.items()}


def settled_s(rows: list[dict[str, Any]], from_s: float) -> float:
    """When it should be fast again, if the network changes at ``from_s``."""
    first_s = rows[0]["entry_s"]
    after = [row["exit_s"] - first_s for row in rows if row["entry_s"] - first_s >= from_s]
    return max(from_s + ENOUGH_S, after[min(ENOUGH_CALLS, len(after)) - 1])


def fall_s(rows: list[dict[str, Any]]) -> float:
    """When the change shows, counted from the first call: events count from before the start.

    The first of three calls in a row that take much longer than before.
    """
    before, first_s = medians(rows, 0.0, 10.0), rows[0]["entry_s"]
    slow = [row["exit_s"] - row["entry_s"] > 1.5 * before[row["call"]] for row in rows]
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
    parser.add_argument("what", choices=CHANGES)
    parser.add_argument("--grid", default="three-sites", help="the name of a file in hostfiles")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    parser.add_argument("--model", type=Path, required=True, help="of the grid before the change")
    parser.add_argument("--ways", nargs="+", default=("frozen", "following", "fresh"))
    parser.add_argument("--output", type=Path, default=RESULTS / "drift")
    options = parser.parse_args()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{options.grid}-{options.what}-{options.mpi}"
    model = str(options.model.absolute())
    changing = grid_file(folder, options.grid, options.what, [(FALL_S, 1), (RISE_S, 0)])
    settings = {"GRIDCOLL_GRID": model, "GRIDCOLL_LOG": "decisions"}
    for way, learn in (("frozen", "off"), ("following", "on")):
        kept = folder / f"{name}-{way}.json"
        if way in options.ways:
            run(changing, options.mpi, kept, END_S, {**settings, "GRIDCOLL_LEARN": learn})
    kept = folder / f"{name}-fresh.json"
    if "fresh" in options.ways:
        changed = grid_file(folder, options.grid, options.what, [(0.0, 1)])
        declared = grid_file(folder, options.grid, options.what, [])
        _declare_changed(declared, options.what)
        run(
            *(changed, options.mpi, kept, 20.0),
            {"GRIDCOLL_GRID": str(declared), "GRIDCOLL_LEARN": "off"},
        )
    rows_of: dict[str, list[dict[str, Any]]] = {
        way: json.loads((folder / f"{name}-{way}.json").read_text())
        for way in ("frozen", "following")
    }
    best = {"after the fall": medians(json.loads(kept.read_text()), 3.0, 20.0)}
    best["after the recovery"] = medians(rows_of["frozen"], 3.0, fall_s(rows_of["frozen"]))
    for way, rows in rows_of.items():
        fell_s = fall_s(rows)
        rose_s = fell_s + RISE_S - FALL_S
        for when, from_s, until_s in (
            ("after the fall", fell_s, rose_s),
            ("after the recovery", rose_s, END_S),
        ):
            found = medians(rows, settled_s(rows, from_s), until_s)
            print(f"{name}, {way}, {when}:")
            for call, took_s in found.items():
                fresh_s = best[when].get(call)
                over = f"  {took_s / fresh_s:.2f} times fresh" if fresh_s else ""
                print(f"  {call:>18} B  {1e3 * took_s:8.1f} ms{over}")
    draw(rows_of, folder / f"{name}.svg")


def _declare_changed(path: Path, what: str) -> None:
    """Write the change into the grid file itself, so that its declared model has it."""
    text = path.read_text()
    if what == "host":
        path.write_text(text)  # a grid file has interfaces by cluster: the plan stays
        return
    _, state, _ = CHANGES[what]
    key = state.split(" =")[0]
    head, link, rest = text.partition('between = ["orsay", "toulouse"]\n')
    lines = rest.split("\n")
    place = next(k for k, line in enumerate(lines) if line.startswith(f"{key} ="))
    lines[place] = state
    path.write_text(head + link + "\n".join(lines))


if __name__ == "__main__":
    main()
