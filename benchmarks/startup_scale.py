"""Count the network traffic of a quick start by hosts and by clusters, without MPI.

    python benchmarks/startup_scale.py [--hosts 12,…] [--clusters 2,…] [--json FILE] [--plot FILE]

The reference network has about 2 to 30 ms between clusters, 50 us between hosts of a cluster, 20 %
noise, and links of 100 Mbit/s. The table shows the bytes on one link and the steps that follow each
other: round trips to group hosts (those of several rounds of pairs overlap), rounds of disjoint
pairs of clusters with their round trips, and exchanges between all hosts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from reference_link import ReferenceLink
from rich.console import Console
from rich.table import Table

from gridcoll.files import write_atomically
from gridcoll.measure.landmarks import CONCURRENT_TRIPS, LONG_LATENCY_S, quick_latency
from gridcoll.measure.pairs import disjoint_rounds, quick_plogp
from gridcoll.topology.landmarks import group_nodes
from gridcoll.topology.units import format_size

HOSTS = (12, 40, 120, 400, 1200, 5000)
CLUSTERS = (2, 5, 10, 25, 50, 100)
FIXED_CLUSTERS, FIXED_HOSTS = 10, 1000
BYTES_PER_S = 12.5e6

Row = dict[str, Any]


def count(n_hosts: int, n_clusters: int) -> Row:
    """Return a row: group ``n_hosts``, then measure all links between clusters."""
    random = np.random.default_rng(n_hosts + n_clusters)
    labels = np.arange(n_hosts) % n_clusters
    random.shuffle(labels)
    places = random.uniform(0, 1, (n_clusters, 2))
    between_s = 2e-3 + 20e-3 * np.linalg.norm(places[:, None] - places[None, :], axis=2)
    np.fill_diagonal(between_s, 50e-6)
    n_grouping_trips, by_link = [0], {}

    def measure(rounds: Sequence[Sequence[tuple[int, int]]]) -> Mapping[Any, tuple[float, float]]:
        found = {}
        together = 0  # round trips to far hosts overlap, also those of different rounds
        for a, b in (pair for pairs in rounds for pair in pairs):
            i, j = sorted((labels[a], labels[b]))
            noisy_s = between_s[i, j] * random.uniform(1, 1.2)
            if noisy_s >= LONG_LATENCY_S:
                found[a, b] = noisy_s, noisy_s
                together = CONCURRENT_TRIPS + 1
            else:
                found[a, b] = quick_latency(ReferenceLink(noisy_s, BYTES_PER_S, overhead_s=0.0))
        n_grouping_trips[0] += together
        return found

    begin = time.perf_counter()
    grouping = group_nodes(n_hosts, measure, 0.3)
    thinking_s = time.perf_counter() - begin
    truth = sorted(np.flatnonzero(labels == c).tolist() for c in range(n_clusters))
    link_trips = 0
    rounds = disjoint_rounds(list(combinations(range(n_clusters), 2)))
    for pairs in rounds:
        longest = 0
        for a, b in pairs:
            link = by_link[a, b] = ReferenceLink(float(between_s[a, b]), BYTES_PER_S)
            quick_plogp(link)
            longest = max(longest, link.n_trips)
        link_trips += longest
    most_bytes = max((link.n_bytes for link in by_link.values()), default=0)
    return {
        "hosts": n_hosts,
        "clusters": n_clusters,
        "right": grouping.groups == truth,
        "grouping_rounds": grouping.n_rounds,
        "grouping_trips": n_grouping_trips[0],
        "grouping_short_rounds": grouping.n_short_rounds,
        "exchanges": grouping.n_exchanges,
        "pairs_of_all": grouping.n_pairs / (n_hosts * (n_hosts - 1) / 2),
        "link_rounds": len(rounds),
        "link_trips": link_trips,
        "bytes_per_link": most_bytes,
        "seconds_of_arithmetic": thinking_s,
    }


def print_table(rows: Sequence[Row]) -> None:
    table = Table(title="A quick start: what waits for what, and what a link carries")
    for column in (
        *("hosts", "clusters", "right", "WAN rounds to group", "round trips", "short rounds"),
        *("exchanges", "of all pairs", "rounds of links", "round trips", "bytes per link"),
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["hosts"]),
            str(row["clusters"]),
            "yes" if row["right"] else "NO",
            str(row["grouping_rounds"]),
            str(row["grouping_trips"]),
            str(row["grouping_short_rounds"]),
            str(row["exchanges"]),
            f"{row['pairs_of_all']:.1%}",
            str(row["link_rounds"]),
            str(row["link_trips"]),
            format_size(row["bytes_per_link"]),
        )
    Console(width=max(Console().width, 130)).print(table)


def plot(rows: Sequence[Row], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
    for axis, by, fixed, at in (
        (axes[0], "hosts", "clusters", FIXED_CLUSTERS),
        (axes[1], "clusters", "hosts", FIXED_HOSTS),
    ):
        mine = sorted((row for row in rows if row[fixed] == at), key=lambda row: row[by])
        for what, label in (
            ("grouping_rounds", "rounds of disjoint pairs, to group hosts"),
            ("grouping_trips", "round trips in them"),
            ("link_trips", "round trips for links between clusters"),
        ):
            axis.plot([r[by] for r in mine], [max(r[what], 1) for r in mine], "o-", label=label)
        axis.plot([r[by] for r in mine], [r["hosts"] - 1 for r in mine], "k--", label="all pairs")
        axis.set(xscale="log", yscale="log", xlabel=by, title=f"{at} {fixed}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("one after another across the WAN")
    axes[0].legend(fontsize="small")
    figure.savefig(path)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default=",".join(map(str, HOSTS)))
    parser.add_argument("--clusters", default=",".join(map(str, CLUSTERS)))
    parser.add_argument("--json", default="")
    parser.add_argument("--plot", default="")
    options = parser.parse_args(arguments)
    hosts, clusters = (
        [int(text) for text in each.split(",") if text]
        for each in (options.hosts, options.clusters)
    )
    cases = [(n, min(FIXED_CLUSTERS, n // 2)) for n in hosts]
    cases += [(FIXED_HOSTS, n) for n in clusters]
    rows = [count(*case) for case in dict.fromkeys(cases)]
    print_table(rows)
    if options.json:
        write_atomically(options.json, json.dumps(rows, indent=1) + "\n")
    if options.plot:
        plot(rows, Path(options.plot))


if __name__ == "__main__":
    main()
