"""A model that follows what was found of links."""

from __future__ import annotations

import pytest

from gridcoll.measure.learning.links import Found, changed_model, found_of, glance_of, scaled
from gridcoll.model import linear_plogp
from tests.plan.grids import model_of

MODEL = model_of([0, 0, 1, 1, 2, 2], native_s=1.0, together=1e8)


def test_links_that_are_as_they_were_change_nothing() -> None:
    found = {(a, b): Found(1.1, 0.9) for a in range(3) for b in range(3) if a != b}
    assert changed_model(MODEL, found) is None


def test_only_the_link_that_changed_is_another_one() -> None:
    changed = changed_model(MODEL, {(0, 1): Found(1.0, 10.0), (0, 2): Found(1.0, 1.0)})
    assert changed is not None
    assert changed.link(0, 1).gap(1 << 20) == pytest.approx(
        10 * MODEL.link(0, 1).gap(1 << 20), rel=0.01
    )
    assert changed.link(0, 2) == MODEL.link(0, 2)
    assert changed.aggregate_bytes_per_s[0][1] == pytest.approx(1e7)
    assert not changed.native, "natives were timed on another network"


@pytest.mark.parametrize("found", [Found(5.0, 1.0), Found(1.0, 0.1), Found(5.0, 10.0)])
def test_latency_and_rate_are_scaled_apart(found: Found) -> None:
    link = linear_plogp(10e-3, 1e7)
    after = scaled(link, found)
    assert after.latency_s == pytest.approx(link.latency_s * found.latency)
    assert after.gap_s[0] == link.gap_s[0]
    rise = (after.gap_s[1] - after.gap_s[0]) / (link.gap_s[1] - link.gap_s[0])
    assert rise == pytest.approx(found.gap)


@pytest.mark.parametrize("found", [Found(5.0, 1.0), Found(1.0, 10.0), Found(5.0, 10.0)])
def test_a_glance_tells_a_link_that_is_back_by_few_bytes(found: Found) -> None:
    worse = changed_model(MODEL, {(0, 1): found, (1, 0): found})
    assert worse is not None
    glance = glance_of(worse, MODEL, (0, 1))
    link, old = worse.link(0, 1), MODEL.link(0, 1)
    assert glance.expected_s == pytest.approx(link.one_way(glance.n_bytes) + link.one_way(0))
    back_s = old.one_way(glance.n_bytes) + old.one_way(0)
    assert back_s < 0.8 * glance.better_s < 0.8 * glance.expected_s
    assert glance.expected_s < 20 * link.one_way(0), "a look would be as cheap"
    if found.gap == 1.0:
        assert glance.n_bytes == 0


def test_a_glance_at_a_link_as_it_was_measured() -> None:
    glance = glance_of(MODEL, None, (0, 1))
    assert glance.n_bytes
    assert glance.better_s == pytest.approx(0.75 * glance.expected_s)


def test_what_links_have_over_others() -> None:
    worse = changed_model(MODEL, {(0, 2): Found(2.0, 10.0)})
    assert worse is not None
    found = found_of(worse, MODEL)
    assert list(found) == [(0, 2)]
    assert found[0, 2].latency == pytest.approx(2.0)
    assert found[0, 2].gap == pytest.approx(10.0, rel=0.1)
    assert not found_of(MODEL, MODEL)
