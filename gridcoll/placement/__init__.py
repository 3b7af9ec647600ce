"""Which clusters to run on: the subset that minimises the time of an iteration (paper 004)."""

from gridcoll.placement.allreduce import FORMS
from gridcoll.placement.correction import Exchanges, correct_betas, select_corrected
from gridcoll.placement.cost import IterationCost, Prediction, SubsetResult, predict
from gridcoll.placement.problem import Phase, Problem, parse_problem, read_problem
from gridcoll.placement.resources import Resources
from gridcoll.placement.selection import SEARCHES, Selection, select

__all__ = [
    "FORMS",
    "SEARCHES",
    "Exchanges",
    "IterationCost",
    "Phase",
    "Prediction",
    "Problem",
    "Resources",
    "Selection",
    "SubsetResult",
    "correct_betas",
    "parse_problem",
    "predict",
    "read_problem",
    "select",
    "select_corrected",
]
