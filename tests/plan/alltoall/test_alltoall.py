from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.constants import RETRANSMISSION_S
from gridcoll.engine.memory import ByteMemory
from gridcoll.errors import PlanError
from gridcoll.model import GridModel, PLogP, linear_plogp
from gridcoll.plan import REGISTRIES, Plan, Send, check_plan, choose
from gridcoll.plan.alltoall.bruck import plan_bruck
from gridcoll.plan.alltoall.direct import N_PAIRWISE_SLOTS, plan_direct, plan_pairwise
from gridcoll.plan.alltoall.relayed import LEAST_RELAY_BYTES
from gridcoll.plan.alltoall.vector import vector_program
from gridcoll.topology import Grid
from tests.plan.alltoall.test_traffic import run_alltoall, two
from tests.plan.grids import grids, model_of
from tests.plan.traffic import count_traffic
from tests.reference import run_reference

GRIDS = st.lists(st.integers(0, 6), min_size=1, max_size=24)
NAMES = tuple(REGISTRIES["alltoall"])


@settings(max_examples=60, deadline=None)
@given(GRIDS, st.booleans(), st.sampled_from([0, 1, 3, 1000]))
@pytest.mark.long
def test_every_candidate_on_any_grid_is_right(
    labels: list[int], together: bool, n_bytes: int
) -> None:
    """With ranks of a cluster next to one another and without; at sizes it was not chosen for."""
    model = model_of(sorted(labels) if together else labels)
    for candidate in choose("alltoall", model, n_bytes, 0).candidates:
        if candidate.build is not None:
            for exact in {n_bytes, n_bytes // 2 + 1}:
                plan = candidate.build(exact)
                assert (plan.collective, plan.n_units, plan.n_ranks) == (
                    "alltoall",
                    exact,
                    len(labels),
                )
                check_plan(plan)


def sharing(labels: list[int], n_shared: int) -> GridModel:
    """A model in which so many ranks of a cluster share a host."""
    hosts = [f"{c}-{labels[:r].count(c) // n_shared}" for r, c in enumerate(labels)]
    return replace(model_of(labels), grid=Grid.from_labels(labels, hosts))


@settings(max_examples=30, deadline=None)
@given(GRIDS, st.integers(2, 4))
@pytest.mark.long
def test_every_candidate_is_right_where_ranks_share_hosts(labels: list[int], n_shared: int) -> None:
    model = sharing(labels, n_shared)
    found = [c for c in choose("alltoall", model, 9, 0).candidates if c.build is not None]
    n_hosts = len(set(model.grid.hosts))
    assert ("nodes" in {c.name for c in found}) == (1 < n_hosts < len(labels))
    for candidate in found:
        assert candidate.build is not None
        check_plan(candidate.build(9))


@settings(max_examples=4, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=40, max_size=64), st.integers(1, 3))
@pytest.mark.long
def test_every_candidate_is_right_for_many_ranks(labels: list[int], n_shared: int) -> None:
    for candidate in choose("alltoall", sharing(labels, n_shared), 1, 0).candidates:
        if candidate.build is not None:
            check_plan(candidate.build(2))


def test_hosts_exchange_one_message_per_pair() -> None:
    model = sharing([0] * 8 + [1] * 8, 4)
    (candidate,) = REGISTRIES["alltoall"]["nodes"].candidates(model, 10, 0)
    assert candidate.build is not None
    traffic = count_traffic(candidate.build(10), Grid.from_labels(model.grid.hosts))
    assert traffic.n_inter_messages == 4 * 3
    assert set(traffic.units.values()) - {10 * 16} == {traffic.units[0, 0]}


def test_ranks_of_one_host_share_its_interface() -> None:
    """Sixteen ranks on two hosts: what crosses, 64 blocks of 8 ms, crosses one after another."""
    labels = [0] * 16
    shared = replace(model_of(labels), grid=Grid.from_labels(labels, ["a"] * 8 + ["b"] * 8))
    times = [
        {c.name: c.predicted_s for c in choose("alltoall", model, 100_000, 0).candidates}
        for model in (model_of(labels), shared)
    ]
    assert times[0]["direct"] == pytest.approx(15 * 8e-3, rel=0.01)
    assert times[1]["direct"] == pytest.approx(64 * 8e-3, rel=0.01)


def test_nodes_win_where_many_ranks_send_tiny_blocks() -> None:
    labels = [rank // 32 for rank in range(64)]
    model = replace(sharing(labels, 16), aggregate_bytes_per_s=((1e9,) * 2,) * 2)
    times = {c.name: c.predicted_s or 0.0 for c in choose("alltoall", model, 8, 0).candidates}
    assert times["nodes"] < 1.1 * min(times[name] for name in ("direct", "farthest-first", "lg"))


@settings(max_examples=60, deadline=None)
@given(GRIDS)
def test_scratch_is_at_most_twice_the_send_buffer(labels: list[int]) -> None:
    """Who relays for others cannot do with it: not offered where that would be large."""
    model = model_of(labels)
    combining = "leaders", "lanes", "aggregated", "shortest-paths"
    for candidate in choose("alltoall", model, 1000, 0).candidates:
        if candidate.build is not None and candidate.name not in combining:
            plan = candidate.build(40_000)
            most = max(2 * 40_000 * len(labels), LEAST_RELAY_BYTES)
            assert max(plan.scratch_units or (0,)) <= most


def test_coordinators_are_not_offered_where_they_need_much_room() -> None:
    model = model_of([0] * 8 + [1] * 8)
    offered = [
        n
        for n in (1, 1000, 5000, 100_000)
        if REGISTRIES["alltoall"]["leaders"].candidates(model, n, 0)
    ]
    assert offered == [1, 1000, 5000]


@settings(max_examples=25, deadline=None)
@given(grids, st.sampled_from([0, 1, 5]))
def test_bytes_arrive(labels: list[int], n: int) -> None:
    """The engine, not the checker: every byte, through every candidate."""
    model = model_of(labels)
    for candidate in choose("alltoall", model, n, 0).candidates:
        if candidate.build is not None:
            run_alltoall(candidate.build(n), model.grid, len(labels))


def test_pairwise_has_few_sends_under_way() -> None:
    """Its slots are all the scratch there is."""
    assert set(plan_pairwise(9, 10).scratch_units) == {N_PAIRWISE_SLOTS * 10}


@pytest.mark.parametrize(("n_ranks", "n_steps"), [(1, 0), (2, 1), (5, 3), (8, 3), (9, 4)])
def test_bruck_takes_log_steps(n_ranks: int, n_steps: int) -> None:
    for program in plan_bruck(n_ranks, 1).programs:
        assert sum(isinstance(op, Send) for op in program) == n_steps


def test_a_misrouted_block_is_found() -> None:
    """All blocks are of one size, so only what is in them tells."""
    plan = plan_direct(range(3), 4)
    swapped = {1: 2, 2: 1}
    program = tuple(
        replace(
            op, chunk=op.chunk._replace(start=4 * swapped[op.peer], stop=4 * swapped[op.peer] + 4)
        )
        if isinstance(op, Send)
        else op
        for op in plan.programs[0]
    )
    with pytest.raises(PlanError, match=r"alltoall .* must leave unit 4 of rank 0 there"):
        check_plan(replace(plan, programs=[program, *plan.programs[1:]]))


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_has_a_grid_it_is_for(name: str) -> None:
    algorithm = REGISTRIES["alltoall"][name]
    assert algorithm.name == name
    assert algorithm.good_for
    assert algorithm.source
    labels, hosts = [0, 0, 0, 1, 1, 2], ["a", "a", "b", "c", "c", "d"]
    model = model_of(labels)
    if name != "rate-paced":  # that needs links which are busier than interfaces
        model = replace(model, grid=Grid.from_labels(labels, hosts))
    if name == "relayed":  # and that one links that are unlike
        model = load_model("patchwork")
    if name == "aggregated":  # many ranks, short blocks
        model = model_of([0] * 6 + [1] * 6 + [2] * 4)
    is_short = name in ("aggregated", "shortest-paths")
    candidate = algorithm.candidates(model, 4096 if is_short else 10_000, 0)[0]
    assert candidate.name == name
    assert candidate.predicted_s
    assert candidate.build is not None
    check_plan(candidate.build(100))


def test_one_rank_has_nothing_to_plan() -> None:
    assert [c.name for c in choose("alltoall", model_of([0]), 8, 0).candidates] == ["native"]


def costly_messages(gap_s: float) -> GridModel:
    """Two clusters of eight; a message between them costs ``gap_s``, inside 10 us."""
    grid = two(8, 8)
    wan = PLogP(5e-3, (0, 1 << 20), (gap_s, gap_s + 0.08), (1e-5, 1e-5), (1e-5, 1e-5))
    lan = linear_plogp(50e-6, 12.5e6)
    return GridModel(grid, ((lan, wan), (wan, lan)), aggregate_bytes_per_s=((1e9,) * 2,) * 2)


def test_lg_wins_where_messages_between_clusters_limit() -> None:
    choice = choose("alltoall", costly_messages(1e-3), 100, 0)
    assert choice.winner.name == "lg"


@pytest.mark.parametrize("n_bytes", [20_000, 100_000, 1 << 20])
def test_direct_wins_where_interfaces_limit(n_bytes: int) -> None:
    """LG passes more through every interface: what it collects for others."""
    choice = choose("alltoall", costly_messages(1e-5), n_bytes, 0)
    assert choice.winner.name in ("direct", "farthest-first")
    by_name = {c.name: c.predicted_s for c in choice.candidates}
    assert by_name["lg"] is not None
    assert by_name["direct"] is not None
    assert by_name["lg"] > 1.3 * by_name["direct"]


def test_blocks_with_the_longest_way_leave_first() -> None:
    """And at no step do all ranks of a cluster send to the same one."""
    model = model_of([0] * 3 + [1] * 3 + [2] * 3, latencies_s=(5e-3, 12e-3, 2e-3))
    (candidate,) = REGISTRIES["alltoall"]["farthest-first"].candidates(model, 50_000, 0)
    assert candidate.build is not None
    plan = candidate.build(50_000)
    orders = [[op.peer for op in program if isinstance(op, Send)] for program in plan.programs]
    clusters = model.grid.cluster_of
    for rank, order in enumerate(orders):
        ways = [float(model.latency_s[clusters[rank], clusters[peer]]) for peer in order]
        assert ways == sorted(ways, reverse=True)
    for step in range(6):
        assert sorted(clusters[order[step]] for order in orders[:3]) in ([1] * 3, [2] * 3)
        assert len({order[step] for order in orders[:3]}) == 3


def test_far_first_hides_latency_behind_sending_to_neighbours() -> None:
    """Two clusters of two, 1 ms a block: two and the long way, where direct sends three before."""
    lan, wan = linear_plogp(1e-4, 1e6, 0.0), linear_plogp(20e-3, 1e6, 0.0)
    model = GridModel(two(2, 2), ((lan, wan), (wan, lan)), aggregate_bytes_per_s=((1e9,) * 2,) * 2)
    times = {c.name: c.predicted_s for c in choose("alltoall", model, 1000, 0).candidates}
    assert times["farthest-first"] == pytest.approx(22e-3, abs=1e-5)
    assert times["direct"] == pytest.approx(23e-3, abs=1e-5)


def test_a_thin_link_limits_all_flows_together() -> None:
    lan, wan = linear_plogp(5e-5, 12.5e6), linear_plogp(5e-3, 12.5e6)
    model = GridModel(two(4, 4), ((lan, wan), (wan, lan)), aggregate_bytes_per_s=((1e6,) * 2,) * 2)
    model = replace(model, links=((lan, linear_plogp(5e-3, 1e6)), (linear_plogp(5e-3, 1e6), lan)))
    (candidate,) = REGISTRIES["alltoall"]["direct"].candidates(model, 5_000, 0)
    assert candidate.predicted_s == pytest.approx(16 * 5_000 / 1e6 + 5e-3, rel=0.01)
    # 800 KB at once do not fit into the queue before the link.
    (candidate,) = REGISTRIES["alltoall"]["direct"].candidates(model, 50_000, 0)
    passed_s = 16 * 50_000 / 1e6 + 5e-3
    assert candidate.predicted_s == pytest.approx(passed_s + RETRANSMISSION_S, rel=0.01)


@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_blocks_of_different_sizes(n_ranks: int, seed: int) -> None:
    """Each rank's program from its own row and column of the sizes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 6, (n_ranks, n_ranks))
    sent = [
        [random.integers(0, 256, sizes[i, j], np.uint8).tobytes() for j in range(n_ranks)]
        for i in range(n_ranks)
    ]
    programs = [vector_program(r, sizes[r].tolist(), sizes[:, r].tolist()) for r in range(n_ranks)]
    outputs = [bytearray(int(sizes[:, r].sum())) for r in range(n_ranks)]
    run_reference(
        Plan("alltoallv", "", 0, -1, programs),
        [ByteMemory(memoryview(outputs[r]), memoryview(b"".join(sent[r]))) for r in range(n_ranks)],
    )
    for r in range(n_ranks):
        assert bytes(outputs[r]) == b"".join(sent[i][r] for i in range(n_ranks))


def test_a_rank_agrees_with_itself_on_sizes() -> None:
    with pytest.raises(PlanError, match="rank 1: 2 units for itself, 3 from itself"):
        vector_program(1, [1, 2], [1, 3])
