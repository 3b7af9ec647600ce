"""``gridcoll study placement``: Tables 1 to 3 of paper 004.

The tables compare the searches on the random grids of §3.2 of that paper.

The paper leaves open:

- The latency between two clusters, see `LATENCIES`. By default, one latency is drawn for the world,
  for each country and for each city, and holds between the parts of that place. With the ranges of
  the paper, this makes the triangle inequality hold. The text may also be read as one latency for
  each branch from the world down to a cluster; then either the longest branch on the path counts,
  or the sum of all.
- The α of "real clusters": here those of its Table 4 and §2.3.1. Hosts and uplinks have 1 Gbit/s.
- The mesh: here, of the paper's own two (5 and 10 million tetrahedra), the one for which the mean
  error of a single random subset, which no search influences, is closest to that in the table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from msgspec import Struct
from rich.table import Table

from gridcoll.errors import UsageError
from gridcoll.model.plogp import FloatArray
from gridcoll.placement import SEARCHES, IterationCost, Phase, Problem, Resources
from gridcoll.study.options import (
    JSON,
    OUTPUT,
    PLOTS,
    SEED,
    prepare_output,
    progress_bar,
    table_console,
    write_tables,
)
from gridcoll.study.plots import draw_bars

ALPHA_S = (6.75e-6, 1.46e-5, 8.20e-6, 8.94e-6, 1.47e-5, 1.033e-5)  # Table 4, then §2.3.1
HIDDEN_PART = 2.198 / 10.33  # of α, the part an UPDATE may overlap (§2.3.1)
LAN_LATENCY_S = 44e-6  # footnote 2
NIC_BYTES_PER_S = 125e6
UPLINK_BYTES_PER_S = 125e6
LEVEL = "level"
WORLD_S, COUNTRY_S, CITY_S = (0.050, 0.100), (0.010, 0.050), (0.001, 0.005)


class PaperRow(Struct, frozen=True):
    """One row of the paper: failures per thousand, and (min, avg, max); None where it prints ε."""

    fail_permille: float
    error_percent: tuple[float, float | None, float | None]
    time_ms: tuple[float, float | None, float]


class CaseKind(Struct, frozen=True):
    """One of the three test cases."""

    name: str
    table: int
    good_for: str
    n_cases: int
    n_elements: int
    draw: Callable[[np.random.Generator, int, str], IterationCost]
    """Draws one grid with a problem of so many elements, by one of `LATENCIES`."""
    searches: tuple[str, ...]
    paper: Mapping[str, PaperRow]


def heterogeneous(
    rng: np.random.Generator, n_elements: int, latencies: str = LEVEL
) -> IterationCost:
    """Draw two countries of three cities of two clusters, 16 to 64 hosts (§3.2.1)."""
    places = [(i, j) for i in range(2) for j in range(3) for _ in range(2)]
    return _unlike(rng, places, (16, 64), n_elements, latencies)


def very_heterogeneous(
    rng: np.random.Generator, n_elements: int, latencies: str = LEVEL
) -> IterationCost:
    """Draw 1 to 4 countries of 1 to 10 cities of 1 to 3 clusters, 8 to 128 hosts (§3.2.2)."""
    n_countries, n_cities, n_clusters = rng.integers(1, 5), rng.integers(1, 11), rng.integers(1, 4)
    places = [
        (i, j) for i in range(n_countries) for j in range(n_cities) for _ in range(n_clusters)
    ]
    return _unlike(rng, places, (8, 128), n_elements, latencies)


def close_to_homogeneous(
    rng: np.random.Generator, n_elements: int, latencies: str = LEVEL
) -> IterationCost:
    """Draw two cities of four clusters, 64 or 128 hosts each, all hosts alike (§3.2.3)."""
    places = [(0, j) for j in range(2) for _ in range(4)]
    n_hosts = rng.choice([64, 128], size=len(places))
    return _case(rng, places, n_hosts, np.full(len(places), ALPHA_S[-1]), n_elements, latencies)


def _unlike(
    rng: np.random.Generator,
    places: list[tuple[int, int]],
    n_hosts: tuple[int, int],
    n_elements: int,
    latencies: str,
) -> IterationCost:
    n = len(places)
    alpha_s = np.array(ALPHA_S)[rng.integers(len(ALPHA_S), size=n)] * rng.uniform(0.8, 1.2, n)
    return _case(
        rng, places, rng.integers(n_hosts[0], n_hosts[1] + 1, n), alpha_s, n_elements, latencies
    )


def _case(
    rng: np.random.Generator,
    places: list[tuple[int, int]],
    n_hosts: np.ndarray,
    alpha_s: FloatArray,
    n_elements: int,
    latencies: str,
) -> IterationCost:
    names = tuple(f"cluster{k}" for k in range(len(places)))
    resources = Resources(
        names=names,
        sites=tuple(f"city{i}.{j}" for i, j in places),
        regions=tuple(f"country{i}" for i, _ in places),
        n_hosts=n_hosts,
        nic_bytes_per_s=np.full(len(places), NIC_BYTES_PER_S),
        uplink_bytes_per_s=np.full(len(places), UPLINK_BYTES_PER_S),
        latency_s=LATENCIES[latencies](rng, places),
    )
    phases = [
        _phase("fields", names, alpha_s * (1 - HIDDEN_PART), None),
        _phase("hidden", names, alpha_s * HIDDEN_PART, 1),
    ]
    return IterationCost(Problem(n_elements=n_elements, phases=phases), resources)


def _phase(name: str, names: tuple[str, ...], alpha_s: FloatArray, update: int | None) -> Phase:
    table = dict(zip(names, alpha_s.tolist(), strict=True))
    return Phase(name=name, alpha_s=table, overlaps_update=update)


def tree_latencies(rng: np.random.Generator, places: list[tuple[int, int]]) -> FloatArray:
    """Draw (C, C) one-way latencies of clusters at ``(country, city)``.

    The world, each country and each city have one latency of their own.
    """
    country, city = np.array(places).T
    world_s = rng.uniform(*WORLD_S)
    country_s = rng.uniform(*COUNTRY_S, country.max() + 1)
    city_s = rng.uniform(*CITY_S, (country.max() + 1, city.max() + 1))
    same_country = country[:, None] == country
    same_city = same_country & (city[:, None] == city)
    latency_s: FloatArray = np.where(same_country, country_s[country][:, None], world_s)
    latency_s = np.where(same_city, city_s[country, city][:, None], latency_s)
    np.fill_diagonal(latency_s, LAN_LATENCY_S)
    return latency_s


def branch_latencies(
    rng: np.random.Generator, places: list[tuple[int, int]], combine: np.ufunc
) -> FloatArray:
    """Draw (C, C) one-way latencies: those of the branches between two clusters, combined."""
    country, city = np.array(places).T
    world_s = rng.uniform(*WORLD_S, country.max() + 1)[country]
    country_s = rng.uniform(*COUNTRY_S, (country.max() + 1, city.max() + 1))[country, city]
    city_s = rng.uniform(*CITY_S, len(places))
    same_country = country[:, None] == country
    same_city = same_country & (city[:, None] == city)
    own_s: FloatArray = city_s
    latency_s: FloatArray = combine.outer(own_s, own_s)
    for branch_s, shared in ((country_s, same_city), (world_s, same_country)):
        own_s = combine(own_s, branch_s)
        latency_s = np.where(shared, latency_s, combine.outer(own_s, own_s))
    np.fill_diagonal(latency_s, LAN_LATENCY_S)
    return latency_s


LATENCIES: dict[str, Callable[[np.random.Generator, list[tuple[int, int]]], FloatArray]] = {
    LEVEL: tree_latencies,
    "longest-branch": partial(branch_latencies, combine=np.maximum),
    "sum-of-branches": partial(branch_latencies, combine=np.add),
}
"""Interpretations of paper 004, §3.2."""

_LOCAL = ("greedy", "grouping", "annealing", "annealing-greedy", "annealing-grouping")

CASE_KINDS: dict[str, CaseKind] = {
    kind.name: kind
    for kind in (
        CaseKind(
            "heterogeneous", 1, "12 clusters, far apart and unlike",
            1000, 588_000, heterogeneous,
            ("exhaustive", "random", "random-1k", *_LOCAL, "branch-and-bound"),
            {
                "exhaustive": PaperRow(0, (0, 0, 0), (689, 706, 1012)),
                "random": PaperRow(1000, (24, 601, 2410), (0, 0, 0)),
                "random-1k": PaperRow(782, (0, 22, 363), (176, 185, 211)),
                "greedy": PaperRow(2, (0, None, 4), (12, 37, 92)),
                "grouping": PaperRow(0, (0, 0, 0), (28, 59, 132)),
                "annealing": PaperRow(630, (0, 19, 209), (25, 57, 100)),
                "annealing-greedy": PaperRow(1, (0, None, 4), (42, 96, 211)),
                "annealing-grouping": PaperRow(0, (0, 0, 0), (59, 118, 219)),
            },
        ),
        CaseKind(
            "very-heterogeneous", 2, "1 to 120 clusters, as diverse as can be",
            10000, 2_480_674, very_heterogeneous,
            ("random", "random-1k", *_LOCAL, "branch-and-bound"),
            {
                "random": PaperRow(926.6, (0, 278, 1107), (0, None, 13)),
                "random-1k": PaperRow(828.1, (0, 184, 973), (81, None, 3247)),
                "greedy": PaperRow(4.9, (0, None, 14), (0, None, 13660)),
                "grouping": PaperRow(1.6, (0, None, 4), (1, None, 16259)),
                "annealing": PaperRow(776.8, (0, 50, 874), (32, None, 499)),
                "annealing-greedy": PaperRow(3.8, (0, None, 14), (33, None, 13927)),
                "annealing-grouping": PaperRow(0.5, (0, None, 1), (34, None, 16782)),
            },
        ),
        CaseKind(
            "close-to-homogeneous", 3, "two cities of four like clusters",
            1000, 10_000_000, close_to_homogeneous,
            ("exhaustive", "random", "random-1k", *_LOCAL, "branch-and-bound"),
            {
                "exhaustive": PaperRow(0, (0, 0, 0), (39, 43, 79)),
                "random": PaperRow(688, (0, 96, 491), (0, 0, 2)),
                "random-1k": PaperRow(15, (0, 0, 17), (161, 171, 666)),
                "greedy": PaperRow(127, (0, 2, 36), (19, 27, 101)),
                "grouping": PaperRow(2, (0, None, None), (29, 40, 171)),
                "annealing": PaperRow(335, (0, 5, 84), (39, 61, 183)),
                "annealing-greedy": PaperRow(0, (0, 0, 0), (64, 90, 181)),
                "annealing-grouping": PaperRow(0, (0, 0, 0), (72, 103, 181)),
            },
        ),
    )
}  # fmt: skip
"""The test cases by name."""


EQUAL_WITHIN = 1e-9  # relative; with a smaller difference, two subsets are equally good


class Row(Struct, frozen=True):
    """Results of one search: failures per thousand; error and CPU time as (min, avg, max)."""

    search: str
    fail_permille: float
    error_percent: tuple[float, float, float]
    time_ms: tuple[float, float, float]


def find_kind(name: str) -> CaseKind:
    """Return the test case called ``name``. Raises `UsageError`."""
    if name not in CASE_KINDS:
        raise UsageError(f"unknown test case {name!r}; known are {', '.join(CASE_KINDS)}")
    return CASE_KINDS[name]


def run_cases(
    kind: CaseKind,
    n_cases: int,
    seed: int = 0,
    n_elements: int | None = None,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
    latencies: str = LEVEL,
) -> tuple[Row, ...]:
    """Run every search of ``kind`` on ``n_cases`` grids. Errors are relative to the best search.

    Each case has a random generator of its own, and so has each search in it: neither the number of
    cases nor the list of searches changes other results. ``track`` may show progress. Raises
    `UsageError` if there are no cases.
    """
    if n_cases < 1:
        raise UsageError(f"cases: must be at least 1, got {n_cases}")
    found_s = np.empty((n_cases, len(kind.searches)))
    took_s = np.empty_like(found_s)
    for case in track(range(n_cases)):
        cost = kind.draw(
            np.random.default_rng([seed, case]), n_elements or kind.n_elements, latencies
        )
        for column, name in enumerate(kind.searches):
            rng = np.random.default_rng([seed, case, list(SEARCHES).index(name)])
            start_s = time.process_time()
            found_s[case, column] = SEARCHES[name].run(cost, rng).iteration_s
            took_s[case, column] = time.process_time() - start_s
    errors = found_s / found_s.min(axis=1, keepdims=True) - 1.0
    return tuple(
        Row(
            search=name,
            fail_permille=1000.0 * float((errors[:, column] > EQUAL_WITHIN).mean()),
            error_percent=_spread(100.0 * errors[:, column]),
            time_ms=_spread(1e3 * took_s[:, column]),
        )
        for column, name in enumerate(kind.searches)
    )


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    return float(values.min()), float(values.mean()), float(values.max())


@click.command()
@click.option(
    "--case",
    "names",
    multiple=True,
    help=f"Test case: {', '.join(CASE_KINDS)}; may be repeated; default: all.",
)
@click.option("--cases", type=int, help="Number of grids of each test case; default: the paper's.")
@click.option(
    "--elements", type=click.IntRange(1), help="Size of the mesh, instead of each test case's."
)
@click.option(
    "--latencies", type=click.Choice(list(LATENCIES)), default=LEVEL, show_default=True,
    help="Drawn per world, country and city, or per branch, where the longest or the sum counts.",
)  # fmt: skip
@SEED
@OUTPUT
@PLOTS
@JSON
def command(
    names: tuple[str, ...],
    cases: int | None,
    elements: int | None,
    latencies: str,
    seed: int,
    output: Path | None,
    plots: str,
    as_json: bool,
) -> None:
    """Compare the searches for clusters on random grids: failures, errors, times.

    A search fails on a grid if another search finds a better subset. The paper's numbers are shown
    beside ours. If subsets are drawn evenly, one random subset of 12 clusters fails in 1000 of 1000
    cases, and the best of a thousand in 783; with 8 clusters, in 996 and 20.
    """
    kinds = [find_kind(name) for name in names or CASE_KINDS]
    prepare_output(output, draws=True)
    data: list[dict[str, Any]] = []
    for kind in kinds:
        n_cases = kind.n_cases if cases is None else cases
        rows = run_cases(
            kind, n_cases, seed, elements,
            lambda loop, k=kind: _track(loop, k),  # type: ignore[misc]
            latencies,
        )  # fmt: skip
        records = [_record(kind, n_cases, elements or kind.n_elements, row) for row in rows]
        data += records
        if not as_json:
            table_console().print(_table(kind, n_cases, elements or kind.n_elements, rows))
        if output is not None:
            write_tables(output, f"placement-table-{kind.table}", records)
            _draw(kind, records, output / f"paper-004-table-{kind.table}.{plots}")
    if as_json:
        click.echo(json.dumps(data, indent=1))


def _track(loop: Iterable[int], kind: CaseKind) -> Iterator[int]:
    with progress_bar() as bar:
        yield from bar.track(list(loop), description=kind.name)


def _record(kind: CaseKind, n_cases: int, n_elements: int, row: Row) -> dict[str, Any]:
    paper = kind.paper.get(row.search)
    return {
        "case": kind.name,
        "table": kind.table,
        "n_cases": n_cases,
        "n_elements": n_elements,
        "search": row.search,
        "fail_permille": row.fail_permille,
        "paper_fail_permille": None if paper is None else paper.fail_permille,
        "error_min_percent": row.error_percent[0],
        "error_avg_percent": row.error_percent[1],
        "error_max_percent": row.error_percent[2],
        "time_min_ms": row.time_ms[0],
        "time_avg_ms": row.time_ms[1],
        "time_max_ms": row.time_ms[2],
    }


def _draw(kind: CaseKind, records: Sequence[dict[str, Any]], path: Path) -> None:
    bars = {
        row["search"]: {"ours": row["fail_permille"], "paper": row["paper_fail_permille"]}
        for row in records
    }
    draw_bars(f"Paper 004, Table {kind.table}: {kind.name}", "failures (‰)", bars, path)


def _table(kind: CaseKind, n_cases: int, n_elements: int, rows: Sequence[Row]) -> Table:
    table = Table(
        "search", "fail ‰", "paper", "error % min/avg/max", "paper", "CPU ms min/avg/max", "paper",
        title=f"Table {kind.table}, {kind.name}: {n_cases} cases, {n_elements} elements",
    )  # fmt: skip
    for row in rows:
        paper = kind.paper.get(row.search)
        table.add_row(
            f"{row.search} ({SEARCHES[row.search].label})",
            f"{row.fail_permille:.4g}",
            "" if paper is None else f"{paper.fail_permille:g}",
            " / ".join(f"{value:.2f}" for value in row.error_percent),
            "" if paper is None else _triple(paper.error_percent, "ε"),
            " / ".join(f"{value:.2f}" for value in row.time_ms),
            "" if paper is None else _triple(paper.time_ms, "-"),
        )
    return table


def _triple(values: Sequence[float | None], missing: str) -> str:
    return " / ".join(missing if value is None else f"{value:g}" for value in values)
