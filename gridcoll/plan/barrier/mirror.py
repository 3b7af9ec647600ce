"""Barrier: an allreduce of one unit whose result is not used."""

from gridcoll.plan.allreduce.allgather_reduce import allgather_reduce
from gridcoll.plan.allreduce.leaders import leaders
from gridcoll.plan.registry import algorithm, alias

algorithm(
    "barrier",
    "leaders",
    "one WAN latency: an allreduce of next to nothing",
    "004 §2.2, with an exchange in place of its gather and broadcast",
)(leaders)
algorithm(
    "barrier",
    "allgather-reduce",
    "one WAN latency; inside a cluster, messages go up but not down",
    "gridcoll; Bruck et al. 1997 inside, Bienz, Olson and Gropp 2019 between",
)(allgather_reduce)
alias("barrier", "coordinators", "leaders")
alias("barrier", "everyone", "allgather-reduce")
