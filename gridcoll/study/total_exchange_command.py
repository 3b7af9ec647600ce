"""``gridcoll study total-exchange``: Figures 4 to 6 of paper 001, by model.

They compare LG with the direct exchange on two sites.

The network is the paper's (§5): Gigabit Ethernet hosts at Nancy and Rennes, and a private backbone
of 10 Gbit/s. The latency (paper 000's longest) and the TCP window are assumptions.

By pLogP alone, the direct exchange wins for long blocks: its many flows fill the backbone, while
the few flows of LG are limited by their windows. What the paper measured (LG 40 to 60 % faster and
more) must have another cause: direct has n1 n2 flows in each direction, LG max(n1, n2). Once the
windows of all flows exceed what the backbone holds, packets are dropped and senders wait.
`flow_contention` is the slowdown by the number of flows:

    γ(F) = 1                      up to F0 = (rate · round trip) / window flows
    γ(F) = 1 + h (F / F0 - 1)     beyond

h is a property of the network, as γ is inside a cluster (paper 003). The paper does not give it; 0
is a network that shares without loss. `hindrance_for` finds the h at which LG gains what the paper
claims.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.errors import UsageError
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import PLogP
from gridcoll.plan.choose import choose
from gridcoll.study.options import (
    JSON,
    MEASURED,
    PLOT,
    RESULT,
    prepare_plot,
    read_measured,
    show_rows,
    write_rows,
)
from gridcoll.study.plots import MODEL_SUFFIX, Figure, draw_bars, draw_figure
from gridcoll.topology.grid import Cluster, Grid, Process
from gridcoll.topology.units import (
    format_size,
    parse_duration_s,
    parse_rate_bytes_per_s,
    parse_size_bytes,
)

LATENCY_S = 5.8e-3
HOST_BYTES_PER_S = 125e6
BACKBONE_BYTES_PER_S = 1.25e9
WINDOW_BYTES = 65536.0
LAN_LATENCY_S = 50e-6
MESSAGE_S = 20e-6
LONG_BYTES = 1 << 20


class Sites(Struct, frozen=True):
    """Two sites as in the paper; ``hindrance`` is h."""

    n_first: int = 30
    n_second: int = 30
    latency_s: float = LATENCY_S
    window_bytes: float = WINDOW_BYTES
    backbone_bytes_per_s: float = BACKBONE_BYTES_PER_S
    hindrance: float = 0.0

    def __post_init__(self) -> None:
        for name in ("n_first", "n_second", "latency_s", "window_bytes", "backbone_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"sites: {name}: must be positive, got {getattr(self, name)}")
        if not self.hindrance >= 0:
            raise UsageError(f"sites: hindrance: must not be negative, got {self.hindrance}")

    @property
    def free_flows(self) -> float:
        """F0: the number of flows whose windows fill the backbone."""
        return self.backbone_bytes_per_s * 2 * self.latency_s / self.window_bytes

    def flow_contention(self, n_flows: int) -> float:
        """Return γ(F)."""
        return 1.0 + self.hindrance * max(n_flows / self.free_flows - 1.0, 0.0)

    def n_flows(self, algorithm: str) -> int:
        """Return the number of flows in each direction at once."""
        if algorithm == "lg":
            return max(self.n_first, self.n_second)
        return self.n_first * self.n_second

    def model(self, n_flows: int) -> GridModel:
        """Return the model of the sites with so many flows between them, slower by γ(F)."""
        slower = self.flow_contention(n_flows)
        rate = min(self.window_bytes / (2 * self.latency_s), HOST_BYTES_PER_S) / slower
        across = _link(self.latency_s, rate)
        inside = _link(LAN_LATENCY_S, HOST_BYTES_PER_S)
        sizes = (self.n_first, self.n_second)
        first = 0
        clusters = []
        for k, size in enumerate(sizes):
            members = tuple(Process(rank, f"host{rank}") for rank in range(first, first + size))
            clusters.append(Cluster(("nancy", "rennes")[k], members))
            first += size
        together = min(self.backbone_bytes_per_s, min(sizes) * HOST_BYTES_PER_S) / slower
        lan = [size * HOST_BYTES_PER_S for size in sizes]
        return GridModel(
            Grid(tuple(clusters), "nancy-rennes"),
            tuple(
                tuple((inside if sizes[i] > 1 else None) if i == j else across for j in range(2))
                for i in range(2)
            ),
            aggregate_bytes_per_s=((lan[0], together), (together, lan[1])),
        )

    def seconds(self, algorithm: str, n_bytes: int) -> float:
        """Return the predicted time of ``direct`` or ``lg`` for blocks of ``n_bytes``."""
        model = self.model(self.n_flows(algorithm))
        predicted = choose("alltoall", model, n_bytes, 0, forced=algorithm).winner.predicted_s
        return float("inf") if predicted is None else predicted

    def gain(self, n_bytes: int) -> float:
        """Return the time of direct over that of LG: above 1 if LG is faster."""
        return self.seconds("direct", n_bytes) / self.seconds("lg", n_bytes)


def _link(latency_s: float, bytes_per_s: float) -> PLogP:
    wire_s = LONG_BYTES / bytes_per_s
    times = (MESSAGE_S, MESSAGE_S + wire_s)
    return PLogP(latency_s, (0, LONG_BYTES), times, times, times)


MAX_HINDRANCE = 1e4


def hindrance_for(sites: Sites, n_bytes: int, gain: float) -> float | None:
    """Return the least h at which LG is ``gain`` times as fast as direct; None if there is none."""

    def enough(hindrance: float) -> bool:
        return replace(sites, hindrance=hindrance).gain(n_bytes) >= gain

    if enough(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > MAX_HINDRANCE:
            return None
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


PAPER_GAINS = {"as fast": 1.0, "40 % less": 1 / 0.6, "60 % less": 2.5, "8 times": 8.0}
"""Paper 001, §5.1: LG is up to 8 times as fast, and takes 40 to 60 % less for large messages."""

FIT_BYTES = 1 << 16
COMPARED = {"native": "mpi_s", "gridcoll:direct": "direct_s", "gridcoll:lg": "lg_s"}
"""What is compared: the column here for each variant in the rows of a benchmark."""

LARGEST_HOSTS = 60
HOST_RATIOS = {5: 1, 6: 2}
"""By figure: hosts of the second site per host of the first."""


@click.command()
@click.option(
    "--figure", type=click.IntRange(4, 6), default=4, show_default=True, help="Figure of the paper."
)
@click.option("--sizes", help="Bytes, of a block; default: those of the figure.")
@click.option("--hindrance", type=click.FloatRange(0), default=0.0, show_default=True,
              help="h: how much all flows are slowed by those beyond a full backbone.")  # fmt: skip
@click.option("--window", default="64 KiB", show_default=True, help="TCP window of a flow.")
@click.option("--latency", default="5.8 ms", show_default=True, help="One way, between the sites.")
@click.option("--backbone", default="10 Gbit/s", show_default=True, help="Rate of the backbone.")
@click.option("--fit", is_flag=True, help="Find the h that gives the gains printed in the paper.")
@MEASURED
@RESULT
@PLOT
@JSON
def command(
    figure: int,
    sizes: str | None,
    hindrance: float,
    window: str,
    latency: str,
    backbone: str,
    fit: bool,
    measured: tuple[Path, ...],
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Predict LG and the direct exchange on two sites, with contention between the sites.

    Paper 001 says that LG is up to 8 times as fast and takes 40 to 60 % less time for large
    messages, and that 512 KB by LG are faster than 64 KB by the direct exchange. It prints no
    times. Files of --measured are named after the numbers of hosts, for example lg-30x30.json.
    """
    prepare_plot(plot)
    base = Sites(
        latency_s=parse_duration_s(latency),
        window_bytes=float(parse_size_bytes(window)),
        backbone_bytes_per_s=parse_rate_bytes_per_s(backbone),
        hindrance=hindrance,
    )
    rows = _fit(base) if fit else _rows(figure, base, sizes)
    known = _of_figure(figure, [row for path in measured for row in _compared(path)])
    if output is not None:
        write_rows(output, [*rows, *known] if output.suffix == ".json" else rows)
    if plot is not None and fit:
        _draw_fit(rows, plot)
    elif plot is not None:
        draw_figure(_figure(figure, hindrance, rows, known), plot)
    if as_json:
        click.echo(json.dumps([*rows, *known], indent=1))
    else:
        what = "h at which LG gains what the paper prints" if fit else f"with h = {hindrance:g}"
        show_rows(f"Paper 001, Figure {figure}, predicted: {what}", rows)
        if known:
            show_rows("Measured on an emulated grid, in its time divided by the dilation", known)


def _rows(figure: int, base: Sites, text: str | None) -> list[dict[str, Any]]:
    if figure == 4:
        axis = [1 << k for k in range(0, 25, 2)]
        sites = [replace(base, n_first=a, n_second=b) for a, b in ((30, 30), (20, 40))]
    else:
        axis = [1 << 16, 1 << 19]
        counts = (2, 5, 10, 15, 20, 25, 30) if figure == 5 else (2, 5, 10, 15, 20)
        sites = [replace(base, n_first=n, n_second=n * HOST_RATIOS[figure]) for n in counts]
    if text is not None:
        axis = [parse_size_bytes(piece) for piece in text.split(",")]
    found = []
    for where in sites:
        for size in axis:
            direct_s, lg_s = where.seconds("direct", size), where.seconds("lg", size)
            found.append(
                {
                    "hosts": f"{where.n_first} + {where.n_second}",
                    "n_hosts": where.n_first + where.n_second,
                    "n_bytes": size,
                    "direct_s": direct_s,
                    "lg_s": lg_s,
                    "direct_over_lg": direct_s / lg_s,
                    "flows": where.n_flows("direct"),
                    "free_flows": where.free_flows,
                }
            )
    return found


def _fit(base: Sites) -> list[dict[str, Any]]:
    return [
        {
            "hosts": f"{where.n_first} + {where.n_second}",
            "lg": claim,
            "gain": gain,
            "n_bytes": FIT_BYTES,
            "hindrance": (found := hindrance_for(where, FIT_BYTES, gain)),
            "contention": found
            and replace(where, hindrance=found).flow_contention(where.n_flows("direct")),
        }
        for where in (base, replace(base, n_first=20, n_second=40))
        for claim, gain in PAPER_GAINS.items()
    ]


def _compared(path: Path) -> list[dict[str, Any]]:
    """Return times by size of MPI's own exchange, direct and LG, divided by the dilation."""
    hosts = re.search(r"(\d+)x(\d+)", path.stem)
    if hosts is None:
        raise UsageError(f"--measured {path}: its name must have the hosts, as lg-30x30.json")
    n_first, n_second = int(hosts[1]), int(hosts[2])
    found: dict[int, dict[str, Any]] = {}
    for row in read_measured(path):
        dilation = re.search(r"-x([\d.]+)$", row.grid)
        times = found.setdefault(row.bytes, dict.fromkeys(COMPARED.values()))
        if row.variant in COMPARED:
            times[COMPARED[row.variant]] = row.median_s / (float(dilation[1]) if dilation else 1.0)
    return [
        {"hosts": f"{n_first} + {n_second}", "n_hosts": n_first + n_second, "n_bytes": size,
         **times, "mpi_over_lg": _over(times["mpi_s"], times["lg_s"]),
         "direct_over_lg": _over(times["direct_s"], times["lg_s"])}
        for size, times in sorted(found.items())
    ]  # fmt: skip


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _of_figure(figure: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that belong to ``figure``: 60 hosts for Figure 4, else its ratio of hosts."""
    if figure == 4:
        return [row for row in rows if row["n_hosts"] == LARGEST_HOSTS]
    ratio = HOST_RATIOS[figure]
    return [
        row
        for row in rows
        if row["n_hosts"] % (1 + ratio) == 0
        and row["hosts"].split(" + ")[1] == str(row["n_hosts"] * ratio // (1 + ratio))
    ]


def _draw_fit(rows: list[dict[str, Any]], path: Path) -> None:
    bars = {
        claim: {row["hosts"]: row["hindrance"] for row in rows if row["lg"] == claim}
        for claim in PAPER_GAINS
    }
    draw_bars("Paper 001: h at which LG gains what is claimed", "h", bars, path)


def _figure(
    number: int, hindrance: float, rows: list[dict[str, Any]], known: list[dict[str, Any]]
) -> Figure:
    title = f"Paper 001, Figure {number}, predicted (h = {hindrance:g})"
    over = "n_bytes" if number == 4 else "n_hosts"
    apart = "hosts" if number == 4 else "n_bytes"
    lines = {}
    for group in dict.fromkeys(row[apart] for row in rows):
        own = [row for row in rows if row[apart] == group]
        label = group if number == 4 else format_size(group)
        for name, key in (("direct", "direct_s"), ("LG", "lg_s")):
            lines[f"{name}, {label} {MODEL_SUFFIX}"] = (
                [row[over] for row in own], [row[key] for row in own],
            )  # fmt: skip
        for name, key in (("MPI", "mpi_s"), ("direct", "direct_s"), ("LG", "lg_s")):
            own = sorted((row for row in known if row[apart] == group and row[key]),
                         key=lambda row: row[over])  # fmt: skip
            if own:
                lines[f"{name}, {label}, measured"] = (
                    [row[over] for row in own], [row[key] for row in own],
                )  # fmt: skip
    return Figure(title, "bytes" if number == 4 else "hosts", "time (s)", lines, log=True)
