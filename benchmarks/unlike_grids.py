"""Compare chosen plans with the limit on random grids with different interfaces and links.

    python benchmarks/unlike_grids.py [--grids 500] [--fewest 2] [--clusters 12] [--bytes 16M]
        [--collectives …]
    python benchmarks/unlike_grids.py --named patchwork,unlike-hosts --bytes 64K [--collectives …]

Needs no MPI: grids are declared, and times are predictions. Prints by collective the median and the
worst ratio of the predicted time to the limit, and how long a choice takes. For grids in
``hostfiles`` (``--named``), prints the ratio and the chosen plan for each grid.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
from on_grids import ROOT

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan.choose import choose
from gridcoll.topology.gridfile import GridSpec, parse_gridfile
from gridcoll.topology.units import parse_size_bytes

NICS = (50, 100, 200, 500, 1000)
RATES = (20, 50, 100, 1000)
"""Rates of interfaces and links to draw from, in Mbit/s."""


def random_grid(seed: int, most_clusters: int, fewest_clusters: int = 2) -> GridSpec:
    """Return a random grid with 1 to 5 hosts per cluster and 1 to 30 ms between clusters."""
    random = np.random.default_rng(seed)
    n = int(random.integers(fewest_clusters, most_clusters + 1))
    lines = ["version = 1", f'name = "unlike-{seed}"']
    for k in range(n):
        hosts, nic = int(random.integers(1, 6)), int(random.choice(NICS))
        lines += ["[[clusters]]", f'name = "c{k}"', f"hosts = {hosts}", f'nic = "{nic} Mbit/s"']
    for a in range(n):
        for b in range(a):
            latency, rate = float(random.uniform(1, 30)), int(random.choice(RATES))
            lines += ["[[links]]", f'between = ["c{a}", "c{b}"]']
            lines += [f'latency = "{latency:.1f} ms"', f'rate = "{rate} Mbit/s"']
    return parse_gridfile("\n".join(lines))


def ratio(collective: str, spec: GridSpec, n_bytes: int) -> tuple[float, float, str]:
    """Return the predicted time of the chosen plan over the limit, the seconds for choosing, and
    the name of the plan's algorithm.
    """
    model = declared_model(spec, spec.rank_hosts())
    start = time.perf_counter()
    winner = choose(collective, model, n_bytes, 0, grid_only=True).winner
    took_s = time.perf_counter() - start
    limit = limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), n_bytes)
    return (winner.predicted_s or 0.0) / limit, took_s, winner.name


def print_named(names: Sequence[str], collectives: Sequence[str], n_bytes: int) -> None:
    """Print a Markdown line per grid and collective."""
    print("| grid | collective | × limit | chosen |\n|---|---|--:|---|")
    for name in names:
        spec = parse_gridfile((ROOT / "hostfiles" / f"{name}.toml").read_text())
        for collective in collectives:
            times_limit, _, chosen = ratio(collective, spec, n_bytes)
            print(f"| {name} | {collective} | {times_limit:.2f} | {chosen} |")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--grids", type=int, default=500)
    parser.add_argument("--clusters", type=int, default=12, help="largest number of clusters")
    parser.add_argument("--fewest", type=int, default=2, help="smallest number of clusters")
    parser.add_argument("--bytes", default="16M")
    parser.add_argument("--collectives", default="bcast,reduce,allreduce,alltoall")
    parser.add_argument("--named", default="", help="use these grids of hostfiles instead")
    options = parser.parse_args(arguments)
    n_bytes = parse_size_bytes(options.bytes)
    if options.named:
        print_named(options.named.split(","), options.collectives.split(","), n_bytes)
        return
    print("| collective | grids | median × limit | worst | of grid | slowest choice |")
    print("|---|--:|--:|--:|--:|--:|")
    for collective in options.collectives.split(","):
        found = [
            (*ratio(collective, random_grid(seed, options.clusters, options.fewest), n_bytes), seed)
            for seed in range(options.grids)
        ]
        worst = max(found)
        print(
            f"| {collective} | {len(found)} | {statistics.median(r for r, *_ in found):.3f} "
            f"| {worst[0]:.2f} ({worst[2]}) | {worst[3]} | {max(s for _, s, *_ in found):.2f} s |"
        )


if __name__ == "__main__":
    main()
