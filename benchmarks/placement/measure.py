"""Run a problem's iteration on an emulated grid, on the chosen clusters and those around.

    python benchmarks/placement/measure.py benchmarks/placement/three-sites.toml --mpi mpich

As paper 004, Figure 2: predicted beside measured (median, fastest and slowest iteration) for every
configuration. Needs root, as `gridcoll testbed` does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from gridcoll.placement import IterationCost, Resources, predict, read_problem, select
from gridcoll.placement.configurations import configurations
from gridcoll.testbed.job import Job
from gridcoll.testbed.run import interruptible
from gridcoll.testbed.testbed import Testbed

PROGRAM = Path(__file__).with_name("iteration.py")


def measure(testbed: Testbed, mpi: str, problem: str, hosts: list[str], n: int) -> list[float]:
    """Seconds of ``n`` iterations on ``hosts``."""
    job = Job(testbed, mpi, hosts)
    python = str(job.venv / "bin" / "python")
    line = [python, str(PROGRAM), problem, "--iterations", str(n)]
    process = job.start(line, stdout=subprocess.PIPE)
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(line)} on {', '.join(hosts)}: exit code {process.returncode}")
    times: list[float] = json.loads(output)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem")
    parser.add_argument("--mpi", default="mpich")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--output", type=Path, help="write the results here")
    arguments = parser.parse_args()
    stated = read_problem(arguments.problem)
    if stated.grid is None:
        parser.error("the problem must name its grid")
    rows = []
    with interruptible(), Testbed.up(stated.grid) as testbed:
        spec = testbed.spec
        cost = IterationCost(stated.problem, Resources.from_spec(spec))
        best = select(cost).best.clusters
        for clusters in configurations(cost, best):
            hosts = [h for h in spec.host_order() if spec.cluster_of_host[h] in clusters]
            times = measure(testbed, arguments.mpi, arguments.problem, hosts, arguments.iterations)
            rows.append(
                {
                    "clusters": [spec.clusters[i].name for i in clusters],
                    "chosen": clusters == best,
                    "predicted_ms": 1e3 * predict(cost, clusters).iteration_s,
                    "median_ms": 1e3 * statistics.median(times),
                    "fastest_ms": 1e3 * min(times),
                    "slowest_ms": 1e3 * max(times),
                }
            )
    print(f"{arguments.mpi}, {cost.problem.n_elements} elements (* chosen), ms:")
    print("predicted   median  fastest  slowest  clusters")
    for row in rows:
        star = "*" if row["chosen"] else " "
        print(
            f"{row['predicted_ms']:9.1f}{row['median_ms']:9.1f}{row['fastest_ms']:9.1f}"
            f"{row['slowest_ms']:9.1f} {star}{', '.join(row['clusters'])}"
        )
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
