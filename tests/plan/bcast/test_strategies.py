"""The tables' strategies: plans that are right, and prices that agree with the closed forms."""

from __future__ import annotations

from itertools import product
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model import GridModel, PLogP, linear_plogp
from gridcoll.model.closed_forms import CLOSED_FORMS, Call
from gridcoll.plan import REGISTRIES, Candidate, Recv, check_plan, choose
from gridcoll.plan.bcast import strategies as bcast_strategies
from gridcoll.plan.bcast.strategies import (
    DEGREES,
    PREFIX,
    TREES,
    Strategy,
    plan_scatter_collection,
    price_scatter_collection,
    rank_order_tree,
)
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.cost import price_plan
from gridcoll.plan.tree_cost import SegmentCosts, price_ranks
from gridcoll.plan.trees import RankTree
from gridcoll.topology import Grid
from tests.plan.grids import grids, model_of

LINKS = {
    "LAN": linear_plogp(50e-6, 12.5e6),
    "WAN": linear_plogp(12e-3, 3e6),
    "latency below the gap": linear_plogp(1e-6, 1e6, overhead_s=100e-6),
    "measured": PLogP(
        80e-6, (0, 1024, 16384, 65536, 1 << 20), (9e-6, 90e-6, 1.6e-3, 5.1e-3, 95e-3),
        (5e-6,) * 5, (5e-6,) * 5,
    ),
}  # fmt: skip


def cluster(n_ranks: int, link: PLogP) -> GridModel:
    return GridModel(Grid.from_labels([0] * n_ranks), ((link,),))


def candidates(name: str, model: GridModel, n_bytes: int, root: int = 0) -> list[Candidate]:
    return REGISTRIES["bcast"][PREFIX + name].candidates(model, n_bytes, root)


def walked_s(candidate: Candidate, model: GridModel, n_bytes: int) -> float:
    """When the last message is there, every one walked through the network."""
    assert candidate.build is not None
    plan = candidate.build(n_bytes)
    ends = price_plan(plan, model).end_s
    return max(
        end
        for program, times in zip(plan.programs, ends, strict=True)
        for op, end in zip(program, times, strict=True)
        if isinstance(op, Recv)
    )


def test_every_closed_form_is_a_strategy_and_every_strategy_has_one() -> None:
    plain = [name.removeprefix(PREFIX) for name in REGISTRIES["bcast"] if name.startswith(PREFIX)]
    assert sorted(plain) == sorted(CLOSED_FORMS)


EXACT_FOR_ANY_N = ("flat", "segmented-flat", "chain", "segmented-chain", "chain-rendezvous")
EXACT_FOR_POWERS_OF_TWO = ("binomial", "segmented-binomial")


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize(
    ("name", "n_ranks"),
    [*product(EXACT_FOR_ANY_N, (2, 3, 5, 8, 13)), *product(EXACT_FOR_POWERS_OF_TWO, (2, 4, 8, 16))],
)
def test_exact(name: str, n_ranks: int, link: PLogP) -> None:
    """Closed form, fast price and walked plan: all three the same."""
    model = cluster(n_ranks, link)
    for n_bytes in (1, 4096, 1 << 16):
        for candidate in candidates(name, model, n_bytes, root=1):
            if n_bytes % (candidate.segment_bytes or 1) == 0:
                assert candidate.closed_form_s == pytest.approx(candidate.predicted_s)
                assert candidate.closed_form_s == pytest.approx(walked_s(candidate, model, n_bytes))


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("n_ranks", [3, 5, 6, 7, 11, 13])
def test_binomial_otherwise_is_off_by_a_gap_or_the_latencies(n_ranks: int, link: PLogP) -> None:
    """The table takes the floor of the gaps, where the root sends the ceiling of them."""
    model = cluster(n_ranks, link)
    for n_bytes in (1, 4096, 1 << 16):
        (candidate,) = candidates("binomial", model, n_bytes)
        off = walked_s(candidate, model, n_bytes) - (candidate.closed_form_s or 0.0)
        latencies_s = (ceil(log2(n_ranks)) - 1) * link.latency_s
        assert link.gap(n_bytes) - latencies_s <= off + 1e-12
        assert off <= link.gap(n_bytes) + 1e-12


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize(
    ("name", "n_ranks", "n_asked"),
    [
        *(("flat-rendezvous", n_ranks, n_ranks - 1) for n_ranks in (3, 5, 8, 13)),
        *(("binomial-rendezvous", n_ranks, int(log2(n_ranks))) for n_ranks in (2, 4, 8, 16)),
    ],
)
def test_rendezvous_is_exact_while_answers_come_late(
    name: str, n_ranks: int, n_asked: int, link: PLogP
) -> None:
    """Otherwise the root's requests hold up its first messages, and the plan takes longer."""
    model = cluster(n_ranks, link)
    for n_bytes in (4096, 1 << 16):
        (candidate,) = candidates(name, model, n_bytes)
        taken_s = walked_s(candidate, model, n_bytes)
        assert candidate.predicted_s == pytest.approx(taken_s)
        if (n_asked - 2) * link.gap(1) <= 2 * link.latency_s:
            assert candidate.closed_form_s == pytest.approx(taken_s)
        else:
            assert taken_s > (candidate.closed_form_s or 0.0)


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("n_ranks", [2, 3, 7, 8, 15, 31])
def test_binary_never_takes_longer_than_its_bound(n_ranks: int, link: PLogP) -> None:
    model = cluster(n_ranks, link)
    for n_bytes in (1, 4096, 1 << 16):
        (candidate,) = candidates("binary", model, n_bytes)
        assert walked_s(candidate, model, n_bytes) <= (candidate.closed_form_s or 0.0) * (1 + 1e-9)


@pytest.mark.parametrize("n_ranks", [2, 4, 8, 16])
def test_scatter_collection_stays_below_its_bound_where_gaps_are_in_proportion(
    n_ranks: int,
) -> None:
    """By what its shares save that came down the tree; an overhead per message breaks the bound."""
    for latency_s in (1e-6, 50e-6, 12e-3):
        n_bytes = 1 << 16
        model = cluster(n_ranks, linear_plogp(latency_s, 12.5e6, overhead_s=0.0))
        (candidate,) = candidates("scatter-collection", model, n_bytes)
        taken_s = walked_s(candidate, model, n_bytes)
        assert (
            0.5 * (candidate.closed_form_s or 0.0)
            <= taken_s
            <= (candidate.closed_form_s or 0.0) + 1e-12
        )
    model = cluster(16, LINKS["latency below the gap"])
    (candidate,) = candidates("scatter-collection", model, 16)
    assert walked_s(candidate, model, 16) > (candidate.closed_form_s or 0.0)


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_k_chains_cost_what_their_root_sends(degree: int) -> None:
    """The table lets the root send a segment once; ours sends it to every chain."""
    link = LINKS["LAN"]
    n_bytes, segment, n_ranks = 1 << 16, 4096, 25
    tree = rank_order_tree(f"{degree}-chain", n_ranks, 0)
    taken_s = price_plan(plan_bcast([tree], n_bytes, segment), cluster(n_ranks, link)).makespan_s
    gap_s, n_segments = link.gap(segment), n_bytes // segment
    hops = (n_ranks - 1) // degree - 1
    ours_s = (degree * gap_s + link.latency_s + hops * (gap_s + link.latency_s)
              + (n_segments - 1) * degree * gap_s)  # fmt: skip
    assert taken_s == pytest.approx(ours_s)
    closed_form_s = CLOSED_FORMS["k-chain"].cost_s(Call(link, n_ranks, n_bytes, segment, degree))
    assert taken_s - closed_form_s > 0.9 * (n_segments - 1) * (degree - 1) * gap_s


def test_k_chains_of_every_degree_are_tried() -> None:
    found = candidates("k-chain", cluster(25, LINKS["LAN"]), 1 << 20)
    assert [c.label.split("-chain")[0] for c in found] == [str(degree) for degree in DEGREES]
    assert not candidates("k-chain", cluster(2, LINKS["LAN"]), 1 << 20)


@settings(max_examples=40)
@given(grids, st.data())
def test_right_on_any_grid(labels: list[int], data: st.DataObject) -> None:
    """Whatever the clusters, the strategies are laid over rank order, and say so."""
    model = model_of(labels)
    root = data.draw(st.integers(0, len(labels) - 1))
    n_bytes = data.draw(st.sampled_from([0, 1, 7, 4096]))
    for name in CLOSED_FORMS:
        for candidate in candidates(name, model, n_bytes, root):
            assert candidate.build is not None
            check_plan(candidate.build(n_bytes))
            assert (candidate.closed_form_s is None) == (model.n_clusters > 1)


@settings(max_examples=60)
@given(grids, st.sampled_from([tree for tree in TREES if not tree.segmented]), st.data())
def test_prices_in_one_piece_over_several_clusters_are_exact(
    labels: list[int], strategy: Strategy, data: st.DataObject
) -> None:
    """While answers come late, as over any WAN; see above for the other case."""
    model = model_of(labels)
    root = data.draw(st.integers(0, len(labels) - 1))
    for candidate in candidates(strategy.name, model, 100_000, root):
        taken_s = walked_s(candidate, model, 100_000)
        assert candidate.predicted_s == pytest.approx(taken_s, rel=0.02)


@settings(max_examples=60)
@given(grids, st.sampled_from([tree for tree in TREES if tree.segmented]), st.data())
def test_prices_in_segments_over_several_clusters_are_near(
    labels: list[int], strategy: Strategy, data: st.DataObject
) -> None:
    model = model_of(labels)
    root = data.draw(st.integers(0, len(labels) - 1))
    for candidate in candidates(strategy.name, model, 100_000, root):
        taken_s = walked_s(candidate, model, 100_000)
        assert 0.6 * taken_s <= (candidate.predicted_s or 0.0) <= 1.6 * taken_s


def test_what_crosses_on_several_edges_shares_the_link() -> None:
    """Two ranks send to the other site, over a link that carries no more for two than for one."""
    inside, between = linear_plogp(50e-6, 12.5e6), linear_plogp(5e-3, 2e6)
    model = GridModel(Grid.from_labels([0, 0, 1, 1]), ((inside, between), (between, inside)))
    costs = SegmentCosts(model, 1 << 20, np.array([16384]))
    one = price_ranks(costs, RankTree(0, ((1, 2), (), (3,), ()))).total_s[0]
    two = price_ranks(costs, RankTree(0, ((1, 2), (3,), (), ()))).total_s[0]
    assert one == pytest.approx((1 << 20) / 2e6, rel=0.05)
    assert two == pytest.approx(2 * (1 << 20) / 2e6, rel=0.05)


@settings(max_examples=100)
@given(grids, st.data())
def test_the_price_of_scatter_and_collection(labels: list[int], data: st.DataObject) -> None:
    """Against the walk of every message; incoming shares do not queue in the price."""
    model = model_of(labels)
    n = len(labels)
    ring = data.draw(st.permutations(range(n)))
    n_bytes = n * data.draw(st.sampled_from([1, 500, 20_000]))
    taken_s = price_plan(plan_scatter_collection(ring, n_bytes), model).makespan_s
    if n > 1:
        assert price_scatter_collection(model, ring, n_bytes) == pytest.approx(taken_s, rel=0.05)


@pytest.mark.parametrize("n_bytes", [1, 1 << 16])
def test_candidates_inside_one_cluster_have_their_closed_forms(n_bytes: int) -> None:
    """By shape and segments; the tables know no binary tree in segments."""
    found = REGISTRIES["bcast"]["inside"].candidates(cluster(8, LINKS["LAN"]), n_bytes, 0)
    for candidate in found:
        shape = candidate.label.split(" ")[0]
        whole = candidate.segment_bytes == n_bytes
        assert (candidate.closed_form_s is None) == (shape == "binary" and not whole)
        if shape in ("flat", "chain", "binomial") and n_bytes % (candidate.segment_bytes or 1) == 0:
            assert candidate.closed_form_s == pytest.approx(candidate.predicted_s)


def test_asking_for_one_writes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of ranks may ask for a strategy: its price is worked out, not simulated."""

    def written(*_: object) -> None:
        pytest.fail("a plan was written to choose")

    for writer in ("plan_bcast", "plan_bcast_rendezvous", "plan_scatter_collection"):
        monkeypatch.setattr(bcast_strategies, writer, written)
    model = model_of([rank % 3 for rank in range(300)])
    for name in CLOSED_FORMS:
        assert candidates(name, model, 1 << 20)


def test_they_are_only_tried_when_asked_for() -> None:
    model = model_of([0, 0, 0, 1, 1])
    unasked = {candidate.name for candidate in choose("bcast", model, 4096, 0).candidates}
    assert not any(name.startswith(PREFIX) for name in unasked)
    for name in CLOSED_FORMS:
        choice = choose("bcast", model, 4096, 0, forced=PREFIX + name)
        assert (choice.winner.name, choice.reason) == (PREFIX + name, "asked for")


def test_nobody_sends_before_its_receiver_agreed() -> None:
    """Request, answer, message: three messages per edge, and the message waits for the answer."""
    (candidate,) = candidates("chain-rendezvous", cluster(3, LINKS["LAN"]), 10)
    assert candidate.build is not None
    program = candidate.build(10).programs[1]
    assert [str(op) for op in program] == [
        "recv scratch[0:1] from 0 tag 0",
        "send scratch[0:1] to 0 tag 0",
        "recv output[0:10] from 0 tag 1",
        "send output[0:1] to 2 tag 0",
        "recv scratch[1:2] from 2 tag 0",
        "send output[0:10] to 2 tag 1 after scratch[1:2]",
    ]


def test_scatter_and_collection_send_nothing_twice() -> None:
    """P - 1 shares arrive at every rank but the root, each once."""
    n, n_bytes = 8, 800
    plan = plan_scatter_collection(range(n), n_bytes)
    for rank, program in enumerate(plan.programs):
        received = sum(op.chunk.size for op in program if isinstance(op, Recv))
        assert received == (n_bytes if rank else 0)


@pytest.mark.parametrize("n_ranks", [8, 16, 24])
@pytest.mark.parametrize("n_bytes", [256, 1 << 10, 1 << 14, 1 << 16])
def test_the_choice_in_one_cluster_is_behind_no_strategy(n_ranks: int, n_bytes: int) -> None:
    """k-chains of other degrees lead for short messages among a few; they take part unasked."""
    model = cluster(n_ranks, linear_plogp(50e-6, 125e6, overhead_s=20e-6))
    chosen = choose("bcast", model, n_bytes, 0, grid_only=True)
    assert PREFIX + "scatter-collection" in {each.name for each in chosen.candidates}
    names = [name for name in CLOSED_FORMS if "rendezvous" not in name]
    times = [each.expected_s for name in names for each in candidates(name, model, n_bytes)]
    assert chosen.winner.expected_s <= min(times) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["flat", "chain", "binomial"])
def test_a_rendezvous_only_adds_to_its_tree(name: str) -> None:
    """So it can never be chosen, and is there to be asked for."""
    for link in LINKS.values():
        for n_bytes in (1, 1 << 10, 1 << 20):
            model = cluster(9, link)
            (plain,) = candidates(name, model, n_bytes)
            (asking,) = candidates(f"{name}-rendezvous", model, n_bytes)
            assert asking.expected_s > plain.expected_s
