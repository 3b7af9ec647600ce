"""Measure how well discovery finds a declared grid. Run it on this grid, under an MPI.

    gridcoll testbed run GRID --mpi MPI -- python benchmarks/discovery.py hostfiles/GRID.toml

Prints how many clusterings equal the declared one, the largest errors of latencies and gaps, and
the uplinks found beside those declared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.bench.runs import mpi_name
from gridcoll.measure.clusters import find_grid
from gridcoll.measure.discover import measure_links
from gridcoll.measure.flows import measure_aggregate_bandwidth, rates_of_one_flow
from gridcoll.measure.uplinks import measure_uplinks
from gridcoll.model import GridModel, declared_model
from gridcoll.topology import Grid, read_gridfile
from gridcoll.topology.units import format_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grid", help="the declared grid the job runs on")
    parser.add_argument("--clusterings", type=int, default=10)
    parser.add_argument("--measurements", type=int, default=2, help="number of pLogP measurements")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD.Dup()
    spec = read_gridfile(options.grid)
    declared = declared_model(spec, comm.allgather(MPI.Get_processor_name()))
    wanted = {cluster.ranks for cluster in declared.grid.clusters}
    n_right, begin = 0, time.perf_counter()
    for _ in range(options.clusterings):
        grid = find_grid(comm, 0.3)
        n_right += {cluster.ranks for cluster in grid.clusters} == wanted
    clustering_s = (time.perf_counter() - begin) / options.clusterings
    latency_error, gap_error, begin = [0.0], [0.0], time.perf_counter()
    for _ in range(options.measurements):
        measured = GridModel(declared.grid, measure_links(comm, declared.grid))
        latency_error.append(_worst_latency_error(declared, measured))
        gap_error.append(_worst_gap_error(declared, measured))
    plogp_s = (time.perf_counter() - begin) / max(options.measurements, 1)
    measured = _with_flows(comm, declared.grid)
    begin = time.perf_counter()
    uplinks = measure_uplinks(comm, measured)
    uplinks_s = time.perf_counter() - begin
    if comm.Get_rank() == 0:
        print(
            f"{spec.name:18} {mpi_name():16} clusters {n_right}/{options.clusterings} "
            f"({clustering_s:.1f} s each)  L off by at most {max(latency_error):.1%}, "
            f"g(1 MB) by {max(gap_error):.1%} ({plogp_s:.1f} s each)",
            flush=True,
        )
        print(f"{'uplinks found':18} {_rates(uplinks)} ({uplinks_s:.1f} s)")
        print(f"{'declared':18} {_rates(declared.uplink_bytes_per_s)}", flush=True)


def _with_flows(comm: MPI.Intracomm, grid: Grid) -> GridModel:
    """Return a measured model that includes the aggregate bandwidth of several flows."""
    model = GridModel(grid, measure_links(comm, grid), "measured")
    together = measure_aggregate_bandwidth(comm, grid, rates_of_one_flow(model))
    return replace(model, aggregate_bytes_per_s=together)


def _rates(bytes_per_s: Sequence[float]) -> str:
    """Format rates by cluster, with a dash if a cluster has no limit."""
    return ", ".join(format_rate(round(each)) if each else "–" for each in bytes_per_s) or "none"


def _worst_latency_error(declared: GridModel, measured: GridModel) -> float:
    """Return the largest relative error of L between clusters.

    Inside clusters the declared latency is only nominal.
    """
    between = ~np.eye(declared.n_clusters, dtype=bool)
    if not between.any():
        return 0.0
    error = np.abs(measured.latency_s - declared.latency_s) / declared.latency_s
    return float(error[between].max())


def _worst_gap_error(declared: GridModel, measured: GridModel) -> float:
    """Return the largest relative error of g(1 MB) on any link.

    Clusters of a single process have no internal link.
    """
    error = np.abs(measured.gap_s(1 << 20) / declared.gap_s(1 << 20) - 1)
    alone = [len(cluster) == 1 for cluster in declared.grid.clusters]
    error[np.diag(alone)] = 0.0
    return float(error.max())


if __name__ == "__main__":
    main()
