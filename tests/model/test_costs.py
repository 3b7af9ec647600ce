"""The tables' formulas, worked out by hand; `tests/plan` holds them against priced plans."""

from __future__ import annotations

import pytest

from gridcoll.errors import UsageError
from gridcoll.model import PLogP
from gridcoll.model.closed_forms import CLOSED_FORMS, Call

# L = 10 s, g(m) = m seconds; of 40 bytes in segments of 10.
LINK = PLogP(10.0, (0, 100), (0.0, 100.0), (0.0, 100.0), (0.0, 100.0))


@pytest.mark.parametrize(
    ("name", "n_ranks", "total_s"),
    [
        ("flat", 5, 4 * 40 + 10),
        ("flat-rendezvous", 5, 4 * 40 + 2 * 1 + 3 * 10),
        ("segmented-flat", 5, 4 * (10 * 4) + 10),
        ("chain", 5, 4 * (40 + 10)),
        ("chain-rendezvous", 5, 4 * (40 + 2 + 30)),
        ("segmented-chain", 5, 4 * (10 + 10) + 10 * 3),
        ("binary", 5, 3 * (80 + 10)),
        ("binomial", 5, 2 * 40 + 3 * 10),
        ("binomial", 8, 3 * 40 + 3 * 10),
        ("binomial-rendezvous", 5, 2 * 40 + 3 * (2 + 30)),
        ("segmented-binomial", 5, 2 * 10 * 4 + 3 * 10),
        ("k-chain", 21, (2 + 4) * (10 + 10) + 10 * 3),  # ceil(16 / 5) more steps
        ("k-chain", 5, 2 * (10 + 10) + 10 * 3),
        ("scatter-collection", 8, (3 + 7) * 10 + 2 * 7 / 8 * 40),
    ],
)
def test_by_hand(name: str, n_ranks: int, total_s: float) -> None:
    assert CLOSED_FORMS[name].cost_s(Call(LINK, n_ranks, 40, 10)) == pytest.approx(total_s)


def test_a_degree_of_its_own() -> None:
    """Three chains and the root's step: 3 + ceil((22 - 7) / 7)."""
    call = Call(LINK, 22, 40, 10, degree=3)
    assert CLOSED_FORMS["k-chain"].cost_s(call) == pytest.approx((3 + 3) * 20 + 30)


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_alone_nothing_is_sent(name: str) -> None:
    assert CLOSED_FORMS[name].cost_s(Call(LINK, 1, 40, 10)) == 0.0


def test_a_short_last_segment_counts_as_one() -> None:
    assert [Call(LINK, 2, n, 10).n_segments for n in (0, 1, 10, 11, 40)] == [1, 1, 1, 2, 4]
    assert Call(LINK, 2, 4, 10).segment_gap_s == 4.0


def test_every_form_says_what_it_is_and_how_far_it_holds() -> None:
    for name, form in CLOSED_FORMS.items():
        assert form.name == name
        assert form.formula
        assert form.remark in form.good_for
        assert "Table 1" in form.source


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n_ranks": 0}, "n_ranks: must be at least 1, got 0"),
        ({"segment_bytes": 0}, "segment_bytes: must be at least 1, got 0"),
        ({"n_bytes": -1}, "n_bytes: must be at least 0, got -1"),
        ({"degree": 0}, "degree: must be at least 1, got 0"),
    ],
)
def test_wrong_numbers_are_refused(wrong: dict[str, int], says: str) -> None:
    numbers = {"n_ranks": 2, "n_bytes": 1, "segment_bytes": 1, **wrong}
    with pytest.raises(UsageError, match=says):
        Call(LINK, **numbers)
