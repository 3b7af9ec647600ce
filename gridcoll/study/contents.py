"""Every figure and table of the five papers, and the command that reproduces it."""

from __future__ import annotations

from msgspec import Struct


class Item(Struct, frozen=True):
    """A figure or a table. ``command`` is what follows ``gridcoll ``; empty if there is none.

    ``remark`` says what the command does not do, or why there is no command.
    """

    paper: str
    name: str
    shows: str
    command: str
    remark: str = ""


PAPERS = {
    "000": "Barchet-Steffenel & Mounié, PMEO-PDS 2006: broadcast heuristics",
    "001": "Jeannot & Steffenel, Euro-Par 2007: LG, total exchange on two clusters",
    "002": "Steffenel & Mounié 2007: the adaptive framework",
    "003": "Barchet-Estefanel & Mounié, SBAC-PAD 2004: collectives inside a cluster",
    "004": "Caron, Klein & Pérez, RenPar 2009: resource selection",
}

CONTENTS = (
    Item("000", "Table 1", "levels by latency", "discover",
         "under mpiexec; gridcoll show draws the model it wrote"),
    Item("000", "Table 2", "parameters of the simulations", "study heuristics"),
    Item("000", "Figure 1", "mean makespan, 2 to 10 clusters", "study heuristics --clusters 2-10"),
    Item("000", "Figure 2", "mean makespan to 50 clusters", "study heuristics"),
    Item("000", "Figure 3", "the ECEF family", "study heuristics"),
    Item("000", "Figure 4", "hit rates", "study fillings"),
    Item("000", "Table 3", "latencies of 88 machines", "show grid5000", "as emulated"),
    Item("000", "Figure 5", "predicted broadcast on them", "study grid5000 --variants"),
    Item("000", "Figure 6", "the same measured", "", "those machines are gone"),
    Item("001", "Figures 1-3", "the two phases of LG",
         "explain alltoall --grid two-sites-uneven --sizes 64K --algorithm lg-steps --gantt",
         "--algorithm lg: without waiting for steps"),
    Item("001", "Figure 4", "by message size", "study total-exchange --figure 4",
         "predicted; the paper prints gains only; --fit beside those"),
    Item("001", "Figure 5", "by processes, n2 = n1", "study total-exchange --figure 5"),
    Item("001", "Figure 6", "by processes, n2 = 2 n1", "study total-exchange --figure 6"),
    Item("002", "Figure 1", "the framework", "explain bcast --grid grid5000 --sizes 1M --gantt"),
    Item("002", "Table 1", "models of broadcasts", "study one-cluster --table 1"),
    Item("002", "Figure 2", "a map of the sites", "show grid5000"),
    Item("002", "Table 2", "the machines", "", "hardware of 2007"),
    Item("002", "Table 3", "latencies of 88 machines", "show grid5000", "as emulated"),
    Item("002", "Figure 3", "measured broadcast on them", "study grid5000 --inside best",
         "predicted, not measured"),
    Item("002", "Figure 4", "simulation to 50 clusters", "study heuristics --parameters adaptive"),
    Item("003", "Figure 1", "pLogP of a cluster", "study one-cluster --figure 1",
         "of a stand-in, or of --model"),
    Item("003", "Table 1", "models of broadcasts", "study one-cluster --table 1"),
    *(
        Item("003", f"Figure {number}", shows, f"study one-cluster --figure {number}")
        for number, shows in (
            (2, "segmented chain"), (3, "binomial"), (4, "flat"), (5, "broadcasts among 16"),
            (6, "small messages"),
        )
    ),
    Item("003", "Table 2", "models of scatters", "study one-cluster --table 2"),
    *(
        Item("003", f"Figure {number}", shows, f"study one-cluster --figure {number}")
        for number, shows in (
            (7, "binomial scatter"), (8, "flat scatter"), (9, "scatters among 24"),
        )
    ),
    Item("003", "Table 3", "bounds of all-to-alls", "study one-cluster --table 3"),
    Item("003", "Figure 10", "all-to-all and its bounds", "study one-cluster --figure 10"),
    Item("003", "Figure 11", "rotated and not", "study one-cluster --figure 11"),
    Item("004", "Figure 1", "faces between hosts", "study placement-faces"),
    Item("004", "Table 1", "searches, heterogeneous", "study placement --case heterogeneous"),
    Item("004", "Table 2", "searches, diverse", "study placement --case very-heterogeneous"),
    Item("004", "Table 3", "searches, alike", "study placement --case close-to-homogeneous"),
    Item("004", "Table 4", "five clusters", "select benchmarks/placement/cem-five-588k.toml"),
    Item("004", "Figure 2", "times around the choice",
         "study placement-meshes benchmarks/placement/cem-five-588k.toml",
         "measured: benchmarks/placement/measure.py, on a testbed"),
    Item("004", "Table 5", "meshes on Grid'5000",
         "study placement-meshes benchmarks/placement/grid5000-25.toml --alone orsay"),
)  # fmt: skip
"""In the papers' order."""
