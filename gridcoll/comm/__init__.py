"""The user's communicator: discovery, agreement, settings and the plan cache behind it."""

from gridcoll.comm.context import ClusterComms
from gridcoll.comm.gridcomm import GridComm

__all__ = ["ClusterComms", "GridComm"]
