"""Who is there: processes, nodes, clusters and sites, and the files that declare them."""

from gridcoll.topology.grid import Cluster, Grid, Process
from gridcoll.topology.gridfile import GridSpec, parse_gridfile, read_gridfile

__all__ = ["Cluster", "Grid", "GridSpec", "Process", "parse_gridfile", "read_gridfile"]
