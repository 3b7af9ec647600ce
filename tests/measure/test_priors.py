"""What natives are reckoned to take, where nobody timed them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.measure import priors
from gridcoll.measure.natives import CALLS
from gridcoll.measure.priors import add_priors, native_prior
from gridcoll.model import GridModel, TimesBySize, linear_plogp
from gridcoll.plan import choose
from gridcoll.plan.alltoall import cost
from gridcoll.plan.natives import NATIVE
from gridcoll.topology import Grid


def model_of(
    labels: list[int],
    latency_s: float = 10e-3,
    rate: float = 12.5e6,
    hosts: Sequence[str] = (),
) -> GridModel:
    grid = Grid.from_labels(labels, hosts=hosts)
    n = len(grid.clusters)
    links = tuple(
        tuple(linear_plogp(latency_s if a != b else 50e-6, rate) for b in range(n))
        for a in range(n)
    )
    return GridModel(grid, links, "measured")


THREE = [0] * 4 + [1] * 4 + [2] * 4


def test_all_that_discovery_times_and_nothing_goes_down() -> None:
    found = add_priors(model_of(THREE)).native
    assert set(found) == set(CALLS)
    for times in found.values():
        assert np.all(np.isfinite(times.seconds))
        assert min(times.seconds) >= 10e-3  # nobody is faster than the light


def test_a_broadcast_is_a_binomial_tree_in_rank_order() -> None:
    """0 → 8, 4, 2, 1: the last cluster's ranks are reached through 8, one latency away."""
    price_s = native_prior("bcast", model_of(THREE)).seconds[0]
    assert price_s == pytest.approx(10e-3, rel=0.1)
    interleaved = native_prior("bcast", model_of([0, 1, 2] * 4)).seconds[0]
    assert interleaved > 1.9 * price_s


def test_an_exchange_that_overflows_the_queue_of_a_thin_link_loses_packets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MPICH paces nothing: 16 blocks of 64 KiB are sent at once to a link of 2.5 MB/s."""
    wide = model_of(THREE)
    thin = tuple(
        tuple(link if a == b else linear_plogp(10e-3, 2.5e6) for b, link in enumerate(row))
        for a, row in enumerate(wide.links)
    )
    model = replace(wide, links=thin, aggregate_bytes_per_s=((2.5e6,) * 3,) * 3)
    estimates = []
    for lost_s in (0.0, 0.1):
        monkeypatch.setattr(cost, "RETRANSMISSION_S", lost_s)
        estimates.append(native_prior("alltoall", model))
    without, exchanges = estimates
    assert exchanges.predict(64 << 10) == pytest.approx(without.predict(64 << 10) + 0.1)
    assert exchanges.predict(1 << 10) == without.predict(1 << 10)


def test_long_ones_take_what_bytes_take() -> None:
    """Scatter and ring allgather: some two times m through every interface."""
    slow, fast = (native_prior("bcast", model_of(THREE, 1e-4, rate)) for rate in (12.5e6, 125e6))
    assert slow.seconds[-1] == pytest.approx(10 * fast.seconds[-1], rel=0.2)
    assert slow.seconds[-1] > (4 << 20) / 12.5e6


@pytest.mark.parametrize("n_ranks", [2, 3, 5, 8, 33, 200])
def test_any_number_of_ranks(n_ranks: int) -> None:
    found = add_priors(model_of([rank % 2 for rank in range(n_ranks)])).native
    assert all(min(times.seconds) > 0 for times in found.values())


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=2, max_size=7))
def test_any_number_of_ranks_on_any_host(hosts: list[tuple[int, int]]) -> None:
    """Of some hosts no rank sends to another host in a step."""
    each = [(c, f"{c}-{k}") for k, (c, n) in enumerate(hosts) for _ in range(n)]
    labels = sorted({c for c, _ in each})
    model = model_of([labels.index(c) for c, _ in each], hosts=[host for _, host in each])
    for collective in CALLS:
        assert np.all(np.isfinite(native_prior(collective, model).seconds))


def test_what_was_timed_stays() -> None:
    timed = TimesBySize((8,), (1.0,))
    model = add_priors(replace(model_of(THREE), native={"bcast": timed}))
    assert model.native["bcast"] == timed
    assert "bcast" not in model.native_priors
    assert set(model.native_priors) == set(CALLS) - {"bcast"}
    assert add_priors(model) == model


def test_what_is_never_called_is_not_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[str] = []

    def noted(collective: str, model: GridModel) -> TimesBySize:
        priced.append(collective)
        return native_prior(collective, model)

    monkeypatch.setattr(priors, "native_prior", noted)
    model = add_priors(model_of(THREE))
    assert "bcast" in model.native
    assert "scan" not in model.native
    assert len(model.native) == len(CALLS)
    assert not priced
    for n_bytes in (8, 1 << 20):
        choose("bcast", model, n_bytes, 0)
    assert priced == ["bcast"]
    assert model.native == {name: native_prior(name, model_of(THREE)) for name in CALLS}


def test_a_choice_says_so_and_doubts() -> None:
    """A plan that is as good is taken; a native that is far ahead by its estimate is, too."""
    model = add_priors(model_of(THREE))
    choice = choose("bcast", model, 8, 0)
    assert choice.winner.build is not None
    assert "estimated, not measured" in choice.reason
    native = next(each for each in choice.candidates if each.name == NATIVE)
    assert native.label.endswith("estimated")
    assert native.predicted_s is not None
    for times, is_native in ((0.9, False), (0.5, True)):
        quicker = TimesBySize((8,), (times * (choice.winner.predicted_s or 0.0),))
        doubted = replace(model, native={**model.native, "bcast": quicker})
        assert (choose("bcast", doubted, 8, 0).winner.build is None) == is_native
        sure = replace(doubted, native_priors=())
        assert choose("bcast", sure, 8, 0).winner.build is None
