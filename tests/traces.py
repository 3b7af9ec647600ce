"""Traces as a job with ``GRIDCOLL_TRACE`` leaves them, made without a job."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.model import write_model
from gridcoll.plan import Candidate, choose
from gridcoll.plan.traces import RankTrace, Sent, decided_of, write_trace


def trace_in(folder: Path) -> None:
    """Write a trace of a job on three sites: the files of ranks 0 and 5, and the model."""
    model = load_model("three-sites")
    write_model(model, folder / "model.json")
    choice = choose("bcast", model, 1 << 20, 0)
    winner = replace(choice.winner, observed_s=0.123, n_calls=7)
    native = Candidate("native", "the library", 0.369, observed_s=0.246, n_calls=2)
    seen = replace(choice, winner=winner, candidates=(winner, native))
    sent = [Sent("orsay", "toulouse", 3, 4096)]
    write_trace(RankTrace(1, 0, 12, sent, [decided_of(seen, 12)]), folder)
    write_trace(RankTrace(1, 5, 12, sent), folder)
