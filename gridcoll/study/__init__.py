"""The papers' simulations and figures, one module each."""

from __future__ import annotations

from msgspec import Struct


class Study(Struct, frozen=True):
    """One study: ``gridcoll study NAME``.

    ``module`` has a click command called ``command``, and is imported only when the study is run.
    """

    name: str
    good_for: str
    source: str
    module: str


_ENTRIES = (
    Study(
        "heuristics",
        "mean makespan and hit rate of the broadcast heuristics on random grids",
        "paper 000, Figures 1-4; paper 002, Figure 4",
        "gridcoll.study.heuristics_command",
    ),
    Study(
        "fillings",
        "hit rates by how random links are filled, and which claims hold with each",
        "paper 000, Figure 4",
        "gridcoll.study.fillings_command",
    ),
    Study(
        "grid5000",
        "predicted broadcast on 88 machines by message size, with the grid-unaware binomial",
        "paper 000, Table 3 and Figure 5",
        "gridcoll.study.grid5000_command",
    ),
    Study(
        "one-cluster",
        "models of broadcast, scatter and all-to-all inside a cluster, beside our plans",
        "paper 002, Table 1; paper 003, Tables 1-3 and Figures 1-11",
        "gridcoll.study.one_cluster_command",
    ),
    Study(
        "optimum",
        "how close the heuristics and best come to the optimum, and how fast",
        "gridcoll",
        "gridcoll.study.optimum_command",
    ),
    Study(
        "total-exchange",
        "LG and the direct exchange on two sites, with contention between them",
        "paper 001, Figures 4-6",
        "gridcoll.study.total_exchange_command",
    ),
    Study(
        "placement",
        "failures, errors and times of the searches for clusters on random grids",
        "paper 004, Tables 1-3",
        "gridcoll.study.placement_command",
    ),
    Study(
        "placement-faces",
        "faces between the hosts of a partitioned mesh, beside the paper's estimate",
        "paper 004, Figure 1",
        "gridcoll.study.faces_command",
    ),
    Study(
        "placement-meshes",
        "the clusters chosen and their times as the mesh grows",
        "paper 004, Table 5 and Figure 2",
        "gridcoll.study.placement_meshes_command",
    ),
)

STUDIES: dict[str, Study] = {entry.name: entry for entry in _ENTRIES}
