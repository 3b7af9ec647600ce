from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.errors import PlanError, UsageError
from gridcoll.model import GridModel
from gridcoll.model.plogp import PLogP, linear_plogp
from gridcoll.plan import Chunk, Copy, Op, Plan, Recv, Reduce, Send
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.cost import price_plan, unblocked_one_way_s
from gridcoll.plan.tree_cost import SegmentCosts, price_tree
from gridcoll.plan.trees import GridTree, RankTree
from gridcoll.schedule.trees import SHAPES
from gridcoll.topology import Grid

G = 1e-3  # gap of the links of `fixed`, whatever the size
L = 10e-3


def fixed(latency_s: float = L, gap_s: float = G) -> PLogP:
    """A link whose gap does not depend on the size."""
    return PLogP(latency_s, (0, 1 << 20), (gap_s,) * 2, (gap_s,) * 2, (gap_s,) * 2)


def model_of(labels: str, between: PLogP, inside: PLogP, **more: object) -> GridModel:
    grid = Grid.from_labels(labels)
    n = len(grid.clusters)
    links = tuple(tuple(inside if i == j else between for j in range(n)) for i in range(n))
    return GridModel(grid, links, **more)  # type: ignore[arg-type]


def one_cluster(n: int) -> GridModel:
    return model_of("a" * n, fixed(), fixed())


def shape_plan(shape: str, n: int, n_segments: int = 1) -> Plan:
    return plan_bcast([RankTree(0, SHAPES[shape].children(n))], n_segments * 64, 64)


def chunk(start: int = 0, stop: int = 64, buffer: str = "output") -> Chunk:
    return Chunk(buffer, start, stop)


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_closed_forms(n: int) -> None:
    """Tables 1 of papers 002 and 003, with L + g for a hop and g between sends."""
    model = one_cluster(n)
    flat = price_plan(shape_plan("flat", n), model)
    assert flat.makespan_s == pytest.approx((n - 1) * G + L)
    chain = price_plan(shape_plan("chain", n), model)
    assert chain.makespan_s == pytest.approx((n - 1) * (G + L))
    segmented = price_plan(shape_plan("chain", n, 20), model)
    assert segmented.makespan_s == pytest.approx((n - 1) * (G + L) + 19 * G)
    segmented_flat = price_plan(shape_plan("flat", n, 5), model)
    assert segmented_flat.makespan_s == pytest.approx(5 * (n - 1) * G + L)


def test_binomial_of_a_power_of_two() -> None:
    assert price_plan(shape_plan("binomial", 8), one_cluster(8)).makespan_s == pytest.approx(
        3 * (G + L)
    )


def test_ops_have_their_times() -> None:
    timeline = price_plan(shape_plan("chain", 3), one_cluster(3))
    assert timeline.start_s[0] == (0.0,)
    assert timeline.end_s[0] == pytest.approx((G,))
    assert timeline.start_s[1] == pytest.approx((L, L + G))  # comes in for a gap, goes out at once
    assert timeline.end_s[1] == pytest.approx((L + G, L + 2 * G))
    assert timeline.done_s(2) == timeline.makespan_s == pytest.approx(2 * (L + G))


SHAPE_NAMES = st.sampled_from(tuple(SHAPES))


@st.composite
def grid_trees(draw: st.DrawFn) -> tuple[GridModel, GridTree]:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    labels = [c for c, size in enumerate(sizes) for _ in range(size)]
    n = len(sizes)
    rates = draw(st.lists(st.floats(1e6, 1e9), min_size=n * n, max_size=n * n))
    latencies = draw(st.lists(st.floats(1e-5, 0.1), min_size=n * n, max_size=n * n))
    # Links are no faster than the interfaces at their ends, or the interface is not the port.
    inside = [max(rates[i * n : i * n + n] + rates[i::n]) * 1.01 for i in range(n)]
    links = tuple(
        tuple(
            linear_plogp(latencies[i * n + j], inside[i] if i == j else rates[i * n + j])
            for j in range(n)
        )
        for i in range(n)
    )
    reached, transfers = [0], []
    for receiver in range(1, n):
        transfers.append((draw(st.sampled_from(reached)), receiver))
        reached.append(receiver)
    tree = GridTree(
        0,
        tuple(transfers),
        tuple(draw(SHAPE_NAMES) for _ in sizes),
        tuple(draw(st.integers(0, size - 1)) for size in sizes),
    )
    return GridModel(Grid.from_labels(labels), links), tree


@given(grid_trees(), st.integers(1, 1 << 20))
def test_one_segment_agrees_with_the_fast_prediction(
    case: tuple[GridModel, GridTree], n_bytes: int
) -> None:
    model, tree = case
    costs = SegmentCosts(model, n_bytes, np.array([n_bytes]))
    fast = price_tree(costs, tree.transfers, tree.shapes, tree.relays)
    plan = plan_bcast([tree.expand(model.grid)], n_bytes, n_bytes)
    exact = price_plan(plan, model).makespan_s
    assert exact <= fast.total_s[0] * (1 + 1e-9)
    if not any(tree.relays):  # elsewhere it lets all wait for the relay's sends outward
        gap_s = model.gap_s(n_bytes)
        port_s = gap_s.diagonal()
        # And flows that are slower than interfaces wait for one another, as they really do not.
        slower = (gap_s > np.maximum(port_s[:, None], port_s[None, :])).any()
        least_s = fast.total_s[0] - slower * model.grid.n_ranks * port_s.max()
        assert exact >= least_s * (1 - 1e-9)


@given(grid_trees(), st.integers(40, 80))
@pytest.mark.long
def test_pipelines_agree_with_the_fast_prediction(
    case: tuple[GridModel, GridTree], n_segments: int
) -> None:
    model, tree = case
    n_bytes = n_segments * 16384
    costs = SegmentCosts(model, n_bytes, np.array([16384]))
    fast = price_tree(costs, tree.transfers, tree.shapes, tree.relays).total_s[0]
    plan = plan_bcast([tree.expand(model.grid)], n_bytes, 16384)
    assert price_plan(plan, model).makespan_s == pytest.approx(fast, rel=0.03)


def test_a_slow_link_leaves_its_sender_free_for_others() -> None:
    """Rank 0 sends twice to the far rank 2, whose link takes 5 G, and then to its neighbour 1."""
    model = model_of("aab", fixed(L, 5 * G), fixed())
    programs = (
        (Send(2, chunk(0, 8), 0), Send(2, chunk(8, 16), 1), Send(1, chunk(0, 16), 0)),
        (Recv(0, chunk(0, 16), 0),),
        (Recv(0, chunk(0, 8), 0), Recv(0, chunk(8, 16), 1)),
    )
    timeline = price_plan(Plan("bcast", "", 16, 0, programs), model)
    assert timeline.start_s[0] == pytest.approx((0.0, 5 * G, G))
    assert timeline.end_s[2] == pytest.approx((5 * G + L, 10 * G + L))


def test_an_interface_takes_one_message_at_a_time() -> None:
    programs = (
        (Send(2, chunk(), 0),),
        (Send(2, chunk(), 0),),
        (Recv(0, chunk(), 0), Recv(1, chunk(64, 128), 0)),
    )
    timeline = price_plan(Plan("bcast", "", 128, 0, programs), one_cluster(3))
    assert sorted(timeline.end_s[2]) == pytest.approx([L + G, L + 2 * G])
    assert sorted(timeline.start_s[2]) == pytest.approx([L, L + G])


def test_ranks_of_a_host_take_turns() -> None:
    """What the second rank hands on does not wait until the first one has sent all it has."""
    grid = Grid.from_labels("aaaa", hosts=["one", "one", "two", "two"])
    model = replace(one_cluster(4), grid=grid)
    programs = (
        tuple(Send(2, chunk(), tag) for tag in range(4)),
        tuple(Send(3, chunk(), tag) for tag in range(4)),
        tuple(Recv(0, chunk(64 * tag, 64 * tag + 64), tag) for tag in range(4)),
        tuple(Recv(1, chunk(64 * tag, 64 * tag + 64), tag) for tag in range(4)),
    )
    starts_s = price_plan(Plan("bcast", "", 256, 0, programs), model).start_s
    assert sorted(starts_s[0] + starts_s[1]) == pytest.approx([k * G for k in range(8)])
    assert min(starts_s[0][-1], starts_s[1][-1]) > 4.5 * G


def test_flows_between_two_clusters_share_what_they_carry_together() -> None:
    per_message_s = 4 * G  # of 64 bytes
    together = ((64 / per_message_s,) * 2,) * 2
    # A flow of its own carries as much, or the model would not believe the shared rate.
    slow = linear_plogp(L, 64 / per_message_s, 0.0)
    programs = (
        (Send(2, chunk(), 0),), (Send(3, chunk(), 0),),
        (Recv(0, chunk(), 0),), (Recv(1, chunk(), 0),),
    )  # fmt: skip
    plan = Plan("bcast", "", 64, 0, programs)
    shared = price_plan(plan, model_of("aabb", slow, fixed(), aggregate_bytes_per_s=together))
    assert shared.end_s[3][0] - shared.end_s[2][0] == pytest.approx(per_message_s)
    apart = price_plan(plan, model_of("aabb", slow, fixed()))
    assert apart.end_s[3] == apart.end_s[2]


@pytest.mark.parametrize("both", [False, True])
def test_what_leaves_or_enters_a_cluster_shares_its_uplink(both: bool) -> None:
    """From one cluster to two, or from two to one; the way between the other two is free."""
    per_message_s = 4 * G  # of 64 bytes
    link = linear_plogp(L, 64 / G, 0.0)
    away = linear_plogp(3 * L, 64 / G, 0.0)
    uplinks = (64 / per_message_s, 0.0, 0.0)
    grid = Grid.from_labels([0, 0, 1, 2])
    links = ((link, link, away), (link, link, link), (away, link, link))
    model = GridModel(grid, links, uplink_bytes_per_s=uplinks)
    ends = [(0, 2), (1, 3)] if not both else [(2, 0), (3, 1)]
    programs: list[tuple[Op, ...]] = [()] * 4
    for sender, receiver in ends:
        programs[sender] = (Send(receiver, chunk(), 0),)
        programs[receiver] = (Recv(sender, chunk(), 0),)
    plan = Plan("bcast", "", 64, 0, tuple(programs))
    near, far = (receiver for _, receiver in ends)
    timeline = price_plan(plan, model)
    free = price_plan(plan, replace(model, uplink_bytes_per_s=()))
    assert timeline.end_s[near] == free.end_s[near]
    assert timeline.end_s[far][0] - free.end_s[far][0] == pytest.approx(per_message_s)


@pytest.mark.parametrize("uplink", [0.0, 64 / G])
def test_what_waits_for_a_thin_link_does_not_keep_others_from_the_uplink(uplink: float) -> None:
    """Two messages go over a thin link, a third one from the same cluster over a wide one."""
    link, thin = linear_plogp(L, 64 / G, 0.0), linear_plogp(L, 64 / (20 * G), 0.0)
    grid = Grid.from_labels([0, 0, 0, 1, 2])
    links = ((link, thin, link), (thin, link, link), (link, link, link))
    model = GridModel(grid, links, uplink_bytes_per_s=(uplink, 0.0, 64 / G))
    model = replace(model, aggregate_bytes_per_s=model.flow_bytes_per_s.tolist())
    programs: tuple[tuple[Op, ...], ...] = (
        (Send(3, chunk(), 0),), (Send(3, chunk(), 1),), (Send(4, chunk(), 2),),
        (Recv(0, chunk(), 0), Recv(1, chunk(64, 128), 1)), (Recv(2, chunk(), 2),),
    )  # fmt: skip
    timeline = price_plan(Plan("bcast", "", 128, 0, programs), model)
    assert timeline.end_s[3][1] > 40 * G
    assert timeline.end_s[4][0] < 6 * G + L


@pytest.mark.parametrize(
    ("one_way_s", "gap_s", "busy_s", "expected_s"),
    [
        (0.70, 0.65, 0.10, 0.15),  # all but latency and what interfaces take is waiting
        (0.09, 0.65, 0.02, 0.07),  # a lone message fits its window: it never waits so long
        (0.05, 0.65, 0.02, 0.05),  # nor is it slower for that
        (0.20, 0.10, 0.10, 0.20),  # no window: what is more than the gap is a rendezvous
    ],
)
def test_what_a_message_takes_without_waiting_for_its_window(
    one_way_s: float, gap_s: float, busy_s: float, expected_s: float
) -> None:
    times = (np.array([each]) for each in (one_way_s, gap_s, busy_s, 0.05))
    assert unblocked_one_way_s(*times) == pytest.approx([expected_s])


def late_trees(stream: int) -> Plan:
    """Rank 1 passes on two messages; the one it is to receive first comes last."""
    programs = (
        (Send(2, chunk(0, 8), 0), Send(1, chunk(8, 16), 1)),
        (
            Recv(2, chunk(0, 8), 0), Recv(0, chunk(8, 16), 1, stream),
            Send(3, chunk(0, 8), 0), Send(3, chunk(8, 16), 1),
        ),
        (Recv(0, chunk(0, 8), 0), Send(1, chunk(0, 8), 0)),
        (Recv(1, chunk(0, 8), 0), Recv(1, chunk(8, 16), 1, stream)),
    )  # fmt: skip
    return Plan("bcast", "", 16, 0, programs)


def test_messages_overtake_only_on_another_stream() -> None:
    model = one_cluster(4)
    held_up = price_plan(late_trees(0), model).end_s[3]
    assert held_up[1] >= held_up[0]
    passed = price_plan(late_trees(1), model).end_s[3]
    assert passed == pytest.approx((3 * (L + G), 2 * (L + G) + G))


def test_reducing_and_copying_take_no_time() -> None:
    programs = (
        (
            Copy(chunk(0, 8, "input"), chunk(0, 8)),
            Recv(1, chunk(0, 8, "scratch"), 0),
            Reduce(chunk(0, 8, "scratch"), chunk(0, 8)),
        ),
        (Send(0, chunk(0, 8, "input"), 0),),
    )
    plan = Plan("reduce", "", 8, 0, programs, (8, 0))
    free = price_plan(plan, one_cluster(2))
    assert free.end_s[0] == pytest.approx((0.0, L + G, L + G))


def test_what_overwrites_waits_for_what_reads() -> None:
    """The second message may come into the buffer only when the first has left it."""
    programs = (
        (Send(1, chunk(), 0), Send(1, chunk(), 1)),
        (Recv(0, chunk(), 0), Send(2, chunk(), 0), Recv(0, chunk(), 1)),
        (Recv(1, chunk(), 0),),
    )
    timeline = price_plan(Plan("bcast", "", 64, 0, programs), one_cluster(3))
    assert timeline.end_s[1][2] == pytest.approx(L + 2 * G)
    assert timeline.end_s[1][2] >= timeline.end_s[1][1]


def test_nothing_is_sent_before_it_is_due() -> None:
    programs = (
        (Send(1, chunk(), 0), Send(1, chunk(), 1, due_us=int(5e6 * G))),
        (Recv(0, chunk(), 0), Recv(0, chunk(), 1)),
    )
    timeline = price_plan(Plan("bcast", "", 64, 0, programs), one_cluster(2))
    assert timeline.start_s[0] == pytest.approx((0.0, 5 * G))
    assert timeline.makespan_s == pytest.approx(6 * G + L)


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="plan: 3 ranks, the model has 2"):
        price_plan(shape_plan("flat", 3), one_cluster(2))
    lonely = Plan("bcast", "", 8, 0, ((), (Recv(0, chunk(0, 8), 0),)))
    with pytest.raises(PlanError, match=r"rank 1, op 0 .*never ends"):
        price_plan(lonely, one_cluster(2))
    assert price_plan(Plan("bcast", "", 8, 0, ((), ())), one_cluster(2)).makespan_s == 0.0
