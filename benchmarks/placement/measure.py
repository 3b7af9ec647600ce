"""Run a problem's iteration on an emulated grid, on the chosen clusters and on other sets.

    python benchmarks/placement/measure.py benchmarks/placement/three-sites.toml --mpi mpich
    python benchmarks/placement/measure.py benchmarks/placement/cem-five-588k.toml --part 8

As in paper 004, Figure 2, prints predicted and measured times (median, fastest and slowest
iteration) for every configuration. With ``--part 8``, uses an eighth of the hosts of each cluster
and of the elements, so that a host has as many elements as before. Needs root, like
`gridcoll testbed`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gridcoll.placement import IterationCost, Resources, predict, read_problem, select
from gridcoll.placement.configurations import configurations
from gridcoll.testbed.job import Job
from gridcoll.testbed.run import interruptible
from gridcoll.testbed.testbed import Testbed

PROGRAM = Path(__file__).with_name("iteration.py")


def measure(testbed: Testbed, mpi: str, problem: str, hosts: list[str], n: int) -> list[float]:
    """Return the seconds of each of ``n`` iterations on ``hosts``."""
    job = Job(testbed, mpi, hosts)
    python = str(job.venv / "bin" / "python")
    line = [python, str(PROGRAM), problem, "--iterations", str(n)]
    process = job.start(line, stdout=subprocess.PIPE)
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(line)} on {', '.join(hosts)}: exit code {process.returncode}")
    times: list[float] = json.loads(output)
    return times


def part_of(problem: Path, part: int, folder: Path) -> Path:
    """Write ``problem`` with one in ``part`` of each cluster's hosts and of the elements.

    Returns the path of the new problem file in ``folder``.
    """

    def fewer(match: re.Match[str]) -> str:
        return f"{match[1]}{max(int(match[2]) // part, 1)}"

    text = problem.read_text(encoding="utf-8")
    grid = re.search(r'^grid = "(.*)"', text, flags=re.M)
    if grid is None:
        sys.exit(f"{problem}: names no grid")
    hosts = (problem.parent / grid[1]).read_text(encoding="utf-8")
    (folder / "grid.toml").write_text(re.sub(r"^(hosts = )(\d+)", fewer, hosts, flags=re.M))
    text = re.sub(r"^(n_elements = )(\d+)", fewer, text, flags=re.M)
    path = folder / problem.name
    path.write_text(text.replace(grid[0], 'grid = "grid.toml"'))
    return path


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))


def run(folder: Path) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", type=Path)
    parser.add_argument("--part", type=int, default=1, help="use one in PART hosts and elements")
    parser.add_argument("--mpi", default="mpich")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--output", type=Path, help="write the results here")
    arguments = parser.parse_args()
    if arguments.part > 1:
        arguments.problem = part_of(arguments.problem, arguments.part, folder)
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
            times = measure(
                testbed, arguments.mpi, str(arguments.problem), hosts, arguments.iterations
            )
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
