"""A choice says where its numbers come from."""

from __future__ import annotations

from msgspec.structs import replace

from gridcoll.model import Correction, GridModel, TimesBySize
from gridcoll.model.summary import format_sources, summarise
from gridcoll.plan import choose
from tests.plan.grids import model_of

MEASURED, DECLARED = "measured 2026-11-20, seen 3 times", "declared"


def three() -> GridModel:
    model = model_of([0, 0, 1, 1, 2, 2])
    said = tuple(
        tuple(DECLARED if {i, j} == {0, 1} else MEASURED for j in range(3)) for i in range(3)
    )
    return replace(model, sources=said)


def test_links() -> None:
    assert format_sources(three()) == f"2 {MEASURED}, 1 {DECLARED}"
    assert format_sources(model_of([0, 0, 1, 1])) == "declared"
    said = {
        (each["sender"], each["receiver"]): each["source"] for each in summarise(three())["links"]
    }
    assert said[0, 1] == said[1, 0] == DECLARED
    assert said[0, 2] == said[1, 1] == MEASURED


def test_a_choice() -> None:
    """Estimated natives and timed ones, plans that were tried before and those that were not."""
    times = TimesBySize((8, 1 << 20), (1e-3, 1.0))
    prior = replace(three(), native={"bcast": times}, native_priors=("bcast",))
    lines = choose("bcast", prior, 1 << 16, 0).sources
    assert lines[0] == f"links: 2 {MEASURED}, 1 {DECLARED}"
    assert "not timed" in lines[1]
    assert "none was tried" in lines[2]
    tried = replace(
        prior,
        native_priors=(),
        native_runs={"bcast": {"native": {8: 5, 1 << 20: 4}}},
        corrections={"bcast": {"chain": Correction((1 << 16,), (1.2,))}},
    )
    choice = choose("bcast", tried, 1 << 16, 0)
    assert choice.sources[1:] == (
        "native: observed in 9 runs",
        "plans: corrected by what chain took before",
    )
    assert str(choice).endswith("\n".join(choice.sources))
    assert choice.to_dict()["sources"] == list(choice.sources)
    assert len(choose("bcast", three(), 1 << 16, 0).sources) == 2  # no native is known at all
