"""Processes, nodes, clusters and sites of a grid, and the files that declare them."""

from gridcoll.topology.clustering import find_clusters
from gridcoll.topology.grid import Cluster, Grid, Process
from gridcoll.topology.gridfile import GridSpec, parse_gridfile, read_gridfile

__all__ = [
    "Cluster",
    "Grid",
    "GridSpec",
    "Process",
    "find_clusters",
    "parse_gridfile",
    "read_gridfile",
]
