"""Run the iteration of a problem as an MPI program, to compare with `gridcoll select`.

    mpiexec ... python iteration.py PROBLEM.toml

Run it with one rank per host on any of the problem's clusters. Computation is replaced by waiting,
as the hosts of an emulated grid share the machine's cores. UPDATEs and ALLREDUCEs send real
messages. Each host exchanges faces with both neighbours in its cluster's ring, and its share of the
faces between clusters, which form a ring as well. The ALLREDUCE is the paper's two-level one. Rank
0 prints the seconds of each iteration as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from gridcoll.placement import IterationCost, Problem, Resources, predict, read_problem
from gridcoll.topology import Grid, read_gridfile

ALLREDUCE_TAG = 30000
WARM_UP = 3  # iterations that open connections


class Iteration:
    """The messages and waits of one rank. All buffers are made before the clock starts."""

    def __init__(self, world: MPI.Intracomm, grid: Grid, cost: IterationCost, here: int) -> None:
        self._world = world
        names = [cluster.name for cluster in grid.clusters]
        chosen = cost.resources.indices(names)
        prediction = predict(cost, chosen)
        self._wait_s = [
            phase_s * self._share(cost, j, chosen, names[here])
            for j, phase_s in enumerate(prediction.phase_s)
        ]
        self._n_updates = cost.problem.update.count
        self._n_allreduces = cost.problem.allreduce.count
        self._local = world.Split(here, world.rank)
        leaders = [cluster.coordinator for cluster in grid.clusters]
        self._peers = [rank for rank in leaders if rank != world.rank]
        self._leads = world.rank in leaders
        messages = list(_messages(grid, cost.problem))
        self._sends = [
            (to, tag, np.zeros(n_bytes, np.uint8))
            for tag, (source, to, n_bytes) in enumerate(messages)
            if source == world.rank
        ]
        self._receives = [
            (source, tag, np.empty(n_bytes, np.uint8))
            for tag, (source, to, n_bytes) in enumerate(messages)
            if to == world.rank
        ]

    @staticmethod
    def _share(cost: IterationCost, phase: int, chosen: tuple[int, ...], name: str) -> float:
        """Return the computing time of this cluster, relative to that of the slowest cluster."""
        mine = cost.peaks[phase, cost.resources.indices([name])[0]]
        return float(mine / cost.peaks[phase, list(chosen)].max())

    def run(self) -> None:
        for wait_s in self._wait_s:
            time.sleep(wait_s)
        for _ in range(self._n_updates):
            requests = [self._world.Irecv(buf, rank, tag) for rank, tag, buf in self._receives]
            requests += [self._world.Isend(buf, rank, tag) for rank, tag, buf in self._sends]
            MPI.Request.Waitall(requests)
        for _ in range(self._n_allreduces):
            self._allreduce()

    def _allreduce(self) -> None:
        values, total = np.ones(7), np.empty(7)
        self._local.Reduce(values, total, root=0)
        if self._leads:
            outgoing, incoming = total.copy(), [np.empty(7) for _ in self._peers]
            requests = [
                self._world.Irecv(buffer, peer, ALLREDUCE_TAG)
                for peer, buffer in zip(self._peers, incoming, strict=True)
            ]
            requests += [self._world.Isend(outgoing, peer, ALLREDUCE_TAG) for peer in self._peers]
            MPI.Request.Waitall(requests)
            total += sum(incoming)
        self._local.Bcast(total, root=0)
        if total[0] != self._world.size:
            raise RuntimeError(f"allreduce: expected {self._world.size}, got {total[0]}")


def _messages(grid: Grid, problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Yield (source, target, bytes) of every message of an UPDATE, the same on every rank."""
    update = problem.update
    clusters = [[process.rank for process in cluster.processes] for cluster in grid.clusters]
    per_host = update.beta_host * (problem.n_elements / grid.n_ranks) ** (2 / 3)
    per_cluster = update.beta_cluster * (problem.n_elements / len(clusters)) ** (2 / 3)
    for here, members in enumerate(clusters):
        for step in (1, -1):  # half of the faces to either side
            if len(members) > 1:
                for k, rank in enumerate(members):
                    to = members[(k + step) % len(members)]
                    yield rank, to, int(update.face_bytes * per_host / 2)
            if len(clusters) > 1:
                there = clusters[(here + step) % len(clusters)]
                n_pairs = max(len(members), len(there))
                for k in range(n_pairs):
                    n_bytes = int(update.face_bytes * per_cluster / 2 / n_pairs)
                    yield members[k % len(members)], there[k % len(there)], n_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem")
    parser.add_argument("--iterations", type=int, default=30)
    arguments = parser.parse_args()
    world = MPI.COMM_WORLD
    stated = read_problem(arguments.problem)
    if stated.grid is None:
        parser.error("the problem must name its grid")
    spec = read_gridfile(stated.grid)
    hosts = world.allgather(MPI.Get_processor_name())
    if len(set(hosts)) != len(hosts):
        parser.error("needs one rank per host")
    grid, _ = spec.assign(hosts)
    cost = IterationCost(stated.problem, Resources.from_spec(spec))
    iteration = Iteration(world, grid, cost, grid.cluster_of[world.rank])
    ends = []
    for _ in range(arguments.iterations + WARM_UP + 1):
        iteration.run()
        ends.append(MPI.Wtime())  # no barrier: an iteration's ALLREDUCEs keep ranks together
    if world.rank == 0:
        print(json.dumps(np.diff(ends[WARM_UP:]).tolist()))


if __name__ == "__main__":
    main()
