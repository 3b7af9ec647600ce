"""How long messages take: pLogP per link, its storage, and the limits of the wire."""

from gridcoll.model.correction import Correction
from gridcoll.model.gridmodel import GridModel, SlowHosts, TimesBySize, declared_model
from gridcoll.model.plogp import PLogP, linear_plogp
from gridcoll.model.slow_hosts import planning_model
from gridcoll.model.storage import digest, format_model, parse_model, read_model, write_model

__all__ = [
    "Correction",
    "GridModel",
    "PLogP",
    "SlowHosts",
    "TimesBySize",
    "declared_model",
    "digest",
    "format_model",
    "linear_plogp",
    "parse_model",
    "planning_model",
    "read_model",
    "write_model",
]
