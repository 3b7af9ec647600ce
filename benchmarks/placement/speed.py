"""Time the placement searches on random grids of 18, 25 and 200 clusters and several meshes.

python benchmarks/placement/speed.py [--cases 20]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from gridcoll.placement import SEARCHES, IterationCost, Phase, Problem, Resources
from gridcoll.study.placement_command import ALPHA_S, HIDDEN_PART, tree_latencies

MESHES = (588_000, 2_480_674, 10_000_000, 100_000_000)
RUNS = (
    (18, "exhaustive", 1.0),
    (25, "exhaustive", None),
    (25, "branch-and-bound", 10.0),
    (200, "annealing-grouping", 10.0),
    (200, "branch-and-bound", None),
)


def draw(rng: np.random.Generator, n_clusters: int, n_elements: int) -> IterationCost:
    """Return a case with clusters in random cities and countries.

    Latencies and hosts are as in paper 004, §3.2.2.
    """
    country = rng.integers(4, size=n_clusters)
    city = rng.integers(max(2, n_clusters // 12), size=n_clusters)
    places = list(zip(country.tolist(), city.tolist(), strict=True))
    names = tuple(f"cluster{k}" for k in range(n_clusters))
    alpha_s = rng.choice(ALPHA_S, n_clusters) * rng.uniform(0.8, 1.2, n_clusters)
    hidden = alpha_s * HIDDEN_PART * rng.uniform(0.8, 1.2, n_clusters)
    phases = [
        Phase(name=name, alpha_s=dict(zip(names, part.tolist(), strict=True)))
        for name, part in (("fields", alpha_s - hidden), ("hidden", hidden))
    ]
    resources = Resources(
        names=names,
        sites=tuple(f"city{i}.{j}" for i, j in places),
        regions=tuple(f"country{i}" for i, _ in places),
        n_hosts=rng.integers(8, 129, n_clusters),
        nic_bytes_per_s=np.full(n_clusters, 125e6),
        uplink_bytes_per_s=rng.choice([125e6, 1250e6], n_clusters),
        latency_s=tree_latencies(rng, places),
    )
    return IterationCost(Problem(n_elements=n_elements, phases=phases), resources)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20)
    n_cases = parser.parse_args().cases
    print("clusters  search              elapsed s: median  slowest   CPU slowest   limit  proven")
    for n_clusters, name, limit_s in RUNS:
        elapsed, cpu, proven = [], [], 0
        for case in range(n_cases):
            rng = np.random.default_rng([n_clusters, case])
            cost = draw(rng, n_clusters, MESHES[case % len(MESHES)])
            start, start_cpu = time.perf_counter(), time.process_time()
            proven += SEARCHES[name].run(cost, rng).proven
            elapsed.append(time.perf_counter() - start)
            cpu.append(time.process_time() - start_cpu)
        print(
            f"{n_clusters:8d}  {name:20s}{np.median(elapsed):17.3f}{max(elapsed):9.3f}"
            f"{max(cpu):14.3f}{'' if limit_s is None else f'{limit_s:.0f} s':>8s}"
            f"{proven:5d} of {n_cases}"
        )


if __name__ == "__main__":
    main()
