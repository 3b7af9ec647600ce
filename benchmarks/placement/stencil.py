"""A stencil on a partitioned tetrahedral mesh: a small version of paper 004's application.

    mpiexec ... python stencil.py PROBLEM.toml --elements 60000 --output RUN.json
    gridcoll select PROBLEM.toml --elements 60000 --correct RUN.json

Every rank has one part of the mesh, made by Metis (pymetis) or by bisection. An iteration makes the
problem's UPDATEs, in which every face between parts carries ``face_bytes``, replaces each element's
values by the mean of its neighbours' values, and makes the problem's ALLREDUCEs. Computation takes
the time that the problem states: as the hosts of an emulated grid share the machine's cores, each
waits for the rest of its α. Run it with one rank per host on some of the problem's clusters. The
run file, for ``--correct``, has the times of iterations and the numbers of faces between parts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from gridcoll.placement import read_problem
from gridcoll.study.faces_command import PARTITIONERS, Mesh, cube_mesh
from gridcoll.topology import read_gridfile

WARM_UP = 3


class Part:
    """The elements of one rank, and the elements whose values it sends and receives."""

    def __init__(self, mesh: Mesh, part: np.ndarray, rank: int, n_values: int) -> None:
        mine = part == rank
        self.local = np.flatnonzero(mine)
        place = np.full(mesh.n_elements, -1)
        both = np.concatenate([mesh.faces, mesh.faces[:, ::-1]])
        both = both[mine[both[:, 0]]]
        ghosts = np.unique(both[~mine[both[:, 1]], 1])
        place[self.local] = np.arange(len(self.local))
        place[ghosts] = len(self.local) + np.arange(len(ghosts))
        self.here, self.there = place[both[:, 0]], place[both[:, 1]]
        self.n_neighbours = np.bincount(self.here, minlength=len(self.local))[:, None]
        self.values = np.zeros((len(self.local) + len(ghosts), n_values))
        self.values[: len(self.local)] = self.local[:, None]
        crossing = both[~mine[both[:, 1]]]
        self.out, self.come = {}, {}
        for peer in np.unique(part[crossing[:, 1]]).tolist():
            toward = crossing[part[crossing[:, 1]] == peer]
            # Sort by both elements of a face, so that both sides use the same order.
            low = np.minimum(toward[:, 0], toward[:, 1])
            high = np.maximum(toward[:, 0], toward[:, 1])
            toward = toward[np.lexsort((high, low))]
            self.out[peer] = place[toward[:, 0]]
            self.come[peer] = place[toward[:, 1]]

    def update(self, comm: MPI.Intracomm) -> None:
        """Exchange the values of elements at faces shared with other ranks. Collective."""
        incoming = {
            peer: np.empty((len(at), self.values.shape[1])) for peer, at in self.come.items()
        }
        requests = [comm.Irecv(buffer, peer) for peer, buffer in incoming.items()]
        outgoing = {peer: self.values[at] for peer, at in self.out.items()}
        requests += [comm.Isend(buffer, peer) for peer, buffer in outgoing.items()]
        MPI.Request.Waitall(requests)
        for peer, buffer in incoming.items():
            self.values[self.come[peer]] = buffer

    def compute(self) -> None:
        """Replace the values of each element by the mean of its neighbours' values."""
        total = np.zeros((len(self.local), self.values.shape[1]))
        np.add.at(total, self.here, self.values[self.there])
        self.values[: len(self.local)] = total / np.maximum(self.n_neighbours, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem")
    parser.add_argument("--elements", type=int, default=60_000)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--partitioner", choices=list(PARTITIONERS), default="bisection")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    world = MPI.COMM_WORLD
    stated = read_problem(arguments.problem)
    if stated.grid is None:
        parser.error("the problem must name its grid")
    grid, _ = read_gridfile(stated.grid).assign(world.allgather(MPI.Get_processor_name()))
    mesh = cube_mesh(arguments.elements)
    part = PARTITIONERS[arguments.partitioner](mesh, world.size)
    # Adjacent parts go to the same cluster, as they have adjacent numbers (nearly so with Metis).
    order = np.array([rank for cluster in grid.clusters for rank in cluster.ranks])
    part = order[part]
    update = stated.problem.update
    mine = Part(mesh, part, world.rank, max(1, round(update.face_bytes / 8)))
    here = grid.clusters[grid.cluster_of[world.rank]].name
    alphas = [phase.alpha_s for phase in stated.problem.phases]
    alpha_s = sum(alpha if isinstance(alpha, float) else alpha[here] for alpha in alphas)
    compute_s = alpha_s * len(mine.local)
    ends = []
    for _ in range(arguments.iterations + WARM_UP + 1):
        for _ in range(update.count):
            mine.update(world)
        started = time.perf_counter()
        mine.compute()
        time.sleep(max(0.0, compute_s - (time.perf_counter() - started)))
        for _ in range(stated.problem.allreduce.count):
            world.allreduce(float(mine.values[: len(mine.local)].sum()))
        ends.append(MPI.Wtime())
    if world.rank:
        return
    across = part[mesh.faces]
    across = across[across[:, 0] != across[:, 1]]
    cluster = np.array(grid.cluster_of)[across]
    inside = across[cluster[:, 0] == cluster[:, 1]]
    between = cluster[cluster[:, 0] != cluster[:, 1]]
    run = {
        "clusters": [each.name for each in grid.clusters],
        "iteration_s": np.diff(ends[WARM_UP:]).tolist(),
        "host_faces": int(np.bincount(inside.ravel(), minlength=1).max(initial=0)),
        "cluster_faces": int(np.bincount(between.ravel(), minlength=1).max(initial=0)),
    }
    text = json.dumps(run)
    if arguments.output is None:
        print(text)
    else:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
