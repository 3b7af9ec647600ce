"""``gridcoll study grid5000``: Figure 5 of paper 000.

It predicts broadcasts on the 88 machines of Table 3 of that paper.

The paper prints latencies but no gaps. Ours are fitted to what paper 002 says of the same grid:
1 MB from Orsay to Grenoble takes 350 ms (a TCP window of 64 KiB per round trip of twice the latency
gives 372 + 12 ms), and a binomial broadcast of 1 MB among 50 nodes over Gigabit Ethernet takes
600 ms (five rounds of 120 ms: 8.4 MB/s). So

    g(m) = overhead + m / min(local rate, window / (2 L)).

Inside a cluster, paper 000 uses the binomial tree, and paper 002 (section 6, with the same machines
and latencies) the fastest strategy of its Table 1.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from rich.table import Table

from gridcoll.errors import UsageError
from gridcoll.model.closed_forms import CLOSED_FORMS, TABLE_2004, Call
from gridcoll.model.plogp import linear_plogp
from gridcoll.schedule import HEURISTICS, Accounting, Instance
from gridcoll.schedule.greedy import SEVEN
from gridcoll.schedule.instance import Floats
from gridcoll.schedule.trees import find_shape
from gridcoll.study.one_cluster_command import halved_sizes
from gridcoll.study.options import (
    BUSY,
    JSON,
    OUTPUT,
    OVERLAP,
    PLOTS,
    make_accounting,
    prepare_output,
    table_console,
    write_csv,
    write_tables,
)
from gridcoll.study.parameters import ECEF_FAMILY
from gridcoll.study.plots import Figure, draw_bars, draw_figure
from gridcoll.topology.units import parse_rate_bytes_per_s, parse_size_bytes

CLUSTERS = ("Orsay 1", "Orsay 2", "IDPOT 1", "IDPOT 2", "IDPOT 3", "Toulouse")
MACHINES = (31, 29, 6, 1, 1, 20)
LATENCY_US = (
    (47.56, 62.10, 12181.52, 12187.24, 12197.49, 5210.99),
    (62.10, 47.92, 12181.52, 12198.03, 12195.22, 5211.47),
    (12181.52, 12181.52, 35.52, 60.08, 60.08, 5388.49),
    (12187.24, 12198.03, 60.08, 0.0, 242.47, 5393.98),
    (12197.49, 12195.22, 60.08, 242.47, 0.0, 5394.10),
    (5210.99, 5211.47, 5388.49, 5393.98, 5394.10, 27.53),
)
"""Paper 000, Table 3. The diagonal is the latency inside a cluster (0 for single machines)."""

MEGABYTE = 1_000_000

INSIDE = ("binomial", "best")
"""What a cluster does inside: a binomial tree, or the fastest strategy of paper 002, Table 1."""


class Calibration(Struct, frozen=True):
    """Values that the paper does not give; the module's docstring says where they come from."""

    window_bytes: float = 65536.0
    local_bytes_per_s: float = 8.4e6
    overhead_s: float = 100e-6

    def __post_init__(self) -> None:
        for name in ("window_bytes", "local_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"calibration: {name} must be positive, got {getattr(self, name)}")

    def rate(self, latency_s: float) -> float:
        """Return the bytes per second of one transfer over a link (latency 0: one machine)."""
        if not latency_s:
            return self.local_bytes_per_s
        return min(self.local_bytes_per_s, self.window_bytes / (2 * latency_s))

    def gap_s(self, n_bytes: float) -> Floats:
        """Return g(m) between clusters and, on the diagonal, inside them, (6, 6)."""
        latency = np.array(LATENCY_US) * 1e-6
        with np.errstate(divide="ignore"):
            rate = np.minimum(self.local_bytes_per_s, self.window_bytes / (2 * latency))
        gap: Floats = self.overhead_s + n_bytes / rate
        return gap


def grid_instance(
    n_bytes: float,
    calibration: Calibration,
    root: int = 0,
    accounting: Accounting | None = None,
    inside: str = "binomial",
) -> Instance:
    """Return the broadcast of ``n_bytes`` between the six clusters, with ``inside`` within each.

    Raises `UsageError` if ``inside`` is none of `INSIDE`.
    """
    if inside not in INSIDE:
        raise UsageError(f"inside: must be one of {', '.join(INSIDE)}; got {inside!r}")
    latency = np.array(LATENCY_US) * 1e-6
    gap = calibration.gap_s(n_bytes)
    internal = binomial_s(n_bytes, calibration)
    if inside == "best":
        internal = fastest_inside_s(n_bytes, calibration)
    return Instance(latency, gap, internal, root, accounting or Accounting())


def binomial_s(n_bytes: float, calibration: Calibration) -> Floats:
    """Return ceil(log2 P) L + floor(log2 P) g(m) for each cluster (paper 002, Table 1), (6,)."""
    latency = np.array(LATENCY_US).diagonal() * 1e-6
    gap = calibration.gap_s(n_bytes).diagonal()
    rounds = np.log2(np.array(MACHINES))
    internal: Floats = np.ceil(rounds) * latency + np.floor(rounds) * gap
    return internal


def fastest_inside_s(n_bytes: float, calibration: Calibration) -> Floats:
    """Return the least time by paper 002's Table 1 in each cluster, (6,).

    The minimum is over segments of m / 2^i bytes. k-chains are left out: their formula counts
    2 d + 1 chains but one send of the root per segment, which no broadcast can do.
    """
    forms = [
        form
        for form in CLOSED_FORMS.values()
        if form.source != TABLE_2004 and form.holds != "approximate"
    ]
    found = np.zeros(len(MACHINES))
    size = max(int(n_bytes), 1)
    for cluster, machines in enumerate(MACHINES):
        latency_s = LATENCY_US[cluster][cluster] * 1e-6
        rate = calibration.rate(latency_s)
        link = linear_plogp(latency_s, rate, calibration.overhead_s)
        found[cluster] = min(
            form.cost_s(Call(link, machines, size, segment))
            for segment in halved_sizes(size)
            for form in forms
        )
    return found


class Variant(Struct, frozen=True):
    """One choice of what the papers leave open, and the resulting times for 4 MB."""

    inside: str
    window: str
    local_rate: str
    root: int
    flat_s: float
    ecef_s: float
    best_s: float
    unaware_s: float

    @property
    def flat_over_ecef(self) -> float:
        """Paper 000 says almost 6."""
        return self.flat_s / self.ecef_s


VARIANT_WINDOWS = ("16 KiB", "64 KiB", "256 KiB")
VARIANT_RATES = ("67.2 Mbit/s", "110 Mbit/s", "1 Gbit/s")
VARIANT_ROOTS = (0, 2, 5)


def variants(n_bytes: float = 4 * MEGABYTE) -> list[Variant]:
    """Return every combination of inside, window, local rate and root."""
    found = []
    for inside in INSIDE:
        for window in VARIANT_WINDOWS:
            for rate in VARIANT_RATES:
                calibration = Calibration(
                    float(parse_size_bytes(window)), parse_rate_bytes_per_s(rate)
                )
                for root in VARIANT_ROOTS:
                    instance = grid_instance(n_bytes, calibration, root, inside=inside)
                    flat, ecef, best = (
                        HEURISTICS[name].pick(instance).makespan_s
                        for name in ("flat", "ecef", "best")
                    )
                    unaware = unaware_binomial_s(n_bytes, calibration, root)
                    found.append(Variant(inside, window, rate, root, flat, ecef, best, unaware))
    return found


def unaware_binomial_s(n_bytes: float, calibration: Calibration, root: int = 0) -> float:
    """Return the time of the binomial tree over all 88 machines, as sent by an MPI library.

    Machines are in cluster order: vertex v of the tree is machine (first machine of the root's
    cluster + v) mod 88. A sender is busy for the gap of each transfer.
    """
    place = [cluster for cluster, count in enumerate(MACHINES) for _ in range(count)]
    shift = sum(MACHINES[:root])
    place = place[shift:] + place[:shift]
    latency = np.array(LATENCY_US) * 1e-6
    gap = calibration.gap_s(n_bytes)
    arrival = [0.0] * len(place)
    for sender, receivers in enumerate(find_shape("binomial").children(len(place))):
        free = arrival[sender]  # children have higher numbers: arrival[sender] is known
        for receiver in receivers:
            free += float(gap[place[sender], place[receiver]])
            arrival[receiver] = free + float(latency[place[sender], place[receiver]])
    return max(arrival)


UNAWARE = "Binomial, grid-unaware"
PAPER_MEGABYTES = 4.0
PAPER_RATIO = 6.0


@click.command()
@click.option("--window", default="64 KiB", show_default=True, help="TCP window of a flow.")
@click.option(
    "--local-rate",
    default="67.2 Mbit/s",
    show_default=True,
    help="Rate between machines of a site.",
)
@click.option(
    "--inside", type=click.Choice(INSIDE), default="binomial", show_default=True,
    help="What a cluster does inside: paper 000's tree, or the best of paper 002's Table 1.",
)  # fmt: skip
@click.option(
    "--variants",
    "all_variants",
    is_flag=True,
    help="Predict 4 MB with every choice of what the papers leave open.",
)
@click.option("--root", type=click.IntRange(0, len(CLUSTERS) - 1), default=0, show_default=True,
              help="The root: a cluster.")  # fmt: skip
@click.option(
    "--largest", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True,
    help="Largest message in MB (10⁶ bytes).",
)  # fmt: skip
@click.option(
    "--points", type=click.IntRange(1), default=16, show_default=True, help="How many sizes."
)
@BUSY
@OVERLAP
@OUTPUT
@PLOTS
@JSON
def command(
    window: str,
    local_rate: str,
    inside: str,
    all_variants: bool,
    root: int,
    largest: float,
    points: int,
    busy: str,
    internal_start: str,
    output: Path | None,
    plots: str,
    as_json: bool,
) -> None:
    """Predict a broadcast on the 88 machines of the papers, by message size.

    The papers print latencies only; gaps are m / min(local rate, window / round trip). For 4 MB,
    paper 000 says that the ECEF family takes less than 3 s, and that flat takes almost six times as
    long, which is longer than the grid-unaware binomial tree.
    """
    if all_variants:
        _variants(output, plots, as_json)
        return
    calibration = Calibration(float(parse_size_bytes(window)), parse_rate_bytes_per_s(local_rate))
    accounting = make_accounting(busy, internal_start)
    prepare_output(output, draws=True)
    rows = []
    for n_bytes in np.linspace(0, largest * MEGABYTE, points + 1)[1:]:
        instance = grid_instance(float(n_bytes), calibration, root, accounting, inside)
        row: dict[str, object] = {"megabytes": round(float(n_bytes) / MEGABYTE, 6)}
        for name in (*SEVEN, "best"):
            row[HEURISTICS[name].label] = HEURISTICS[name].pick(instance).makespan_s
        row[UNAWARE] = unaware_binomial_s(float(n_bytes), calibration, root)
        rows.append(row)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _print(rows, root)
        if largest == PAPER_MEGABYTES:
            _compare(rows[-1])
    if output is not None:
        write_tables(output, "grid5000", rows)
        draw_figure(_figure(rows, root), output / f"paper-000-figure-5.{plots}")


def _compare(row: dict[str, object]) -> None:
    """Print the last row beside what the paper says about it."""
    times = {key: float(str(value)) for key, value in row.items()}
    family = [times[HEURISTICS[name].label] for name in ECEF_FAMILY]
    flat = times[HEURISTICS["flat"].label]
    table = Table("4 MB", "ours", "paper 000, §7", title="Beside the paper")
    table.add_row("slowest of the ECEF family (s)", f"{max(family):.2f}", "< 3")
    table.add_row("flat, times the ECEF family", f"{flat / max(family):.2f}", "almost 6")
    table.add_row("flat over grid-unaware binomial", f"{flat / times[UNAWARE]:.2f}", "> 1")
    table_console().print(table)


def _variants(output: Path | None, plots: str, as_json: bool) -> None:
    prepare_output(output, draws=True)
    every = variants()
    rows = [{**asdict(found), "flat_over_ecef": found.flat_over_ecef} for found in every]
    if output is not None:
        write_csv(output / "grid5000-variants.csv", rows)
        bars = {
            f"{found.inside}, {found.window}, {found.local_rate}, {CLUSTERS[found.root]}": {
                "flat / ECEF": found.flat_over_ecef,
                "flat / grid-unaware binomial": found.flat_s / found.unaware_s,
            }
            for found in every
        }
        draw_bars(
            "Paper 000, Figure 5, 4 MB, every reading (the paper: flat almost 6 times ECEF)",
            "times as long", bars, output / f"paper-000-figure-5-variants.{plots}",
            level=PAPER_RATIO,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(title="4 MB (s); the paper: ECEF < 3 s, flat almost 6 times as long")
    for heading in ("inside", "window", "local rate", "from", "Flat", "ECEF", "Best", UNAWARE,
                    "Flat / ECEF"):  # fmt: skip
        table.add_column(heading)
    for found in every:
        table.add_row(
            found.inside, found.window, found.local_rate, CLUSTERS[found.root],
            f"{found.flat_s:.2f}", f"{found.ecef_s:.2f}", f"{found.best_s:.2f}",
            f"{found.unaware_s:.2f}", f"{found.flat_over_ecef:.2f}",
        )  # fmt: skip
    table_console().print(table)


def _print(rows: list[dict[str, object]], root: int) -> None:
    table = Table(title=f"Predicted broadcast from {CLUSTERS[root]} (s)")
    for key in rows[0]:
        table.add_column("MB" if key == "megabytes" else key, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.2f}" for value in row.values()))
    table_console().print(table)


def _figure(rows: list[dict[str, object]], root: int) -> Figure:
    sizes = [float(str(row["megabytes"])) for row in rows]
    lines = {
        key: (sizes, [float(str(row[key])) for row in rows])
        for key in rows[0]
        if key != "megabytes"
    }
    title = f"Paper 000, Figure 5: 88 machines, broadcast from {CLUSTERS[root]}, predicted"
    return Figure(title, "message size (MB)", "time (s)", lines)
