"""Ranks that share hosts: wherever they were placed, what is long enters a host once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.model import GridModel
from gridcoll.plan import REGISTRIES, choose
from gridcoll.plan.check import check_plan
from gridcoll.plan.cost import price_plan
from gridcoll.topology import Grid
from tests.plan.grids import model_of
from tests.plan.traffic import count_traffic

N_BYTES = 96_000

PLACED = {
    "block": [f"{cluster}{host}" for cluster in "ab" for host in range(3) for _ in range(4)],
    "cyclic": [f"{cluster}{host}" for cluster in "ab" for _ in range(4) for host in range(3)],
    "cyclic over all": [f"{'ab'[k % 2]}{k // 2 % 3}" for k in range(24)],
}
"""Four ranks on each of three hosts in each of two clusters: who is where, by rank."""


def placed_model(hosts: list[str], together: float = 1e9) -> GridModel:
    labels = [host[0] for host in hosts]
    order = list(dict.fromkeys(labels))
    model = model_of([order.index(label) for label in labels], together=together)
    return replace(model, grid=Grid.from_labels(labels, hosts))


@pytest.mark.parametrize("hosts", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize(
    ("collective", "algorithm", "inside", "times"),
    [
        ("bcast", "chain", "", 1.0),
        ("reduce", "chain", "", 1.0),
        ("allreduce", "ring", "", 2 * 5 / 6),
        ("allreduce", "lanes", "chain inside", 3.0),  # up, across, down
    ],
)
def test_interfaces_carry_a_message_once(
    hosts: list[str], collective: str, algorithm: str, inside: str, times: float
) -> None:
    """In rank order a chain would leave a host as often as that has ranks."""
    model = placed_model(hosts)
    found = REGISTRIES[collective][algorithm].candidates(model, N_BYTES, 0)
    build = next(c.build for c in found if inside in c.label)
    assert build is not None
    by_host = Grid.from_labels(hosts)
    sent = count_traffic(build(N_BYTES), by_host).units
    for host in range(len(by_host.clusters)):
        for end in (0, 1):
            carried = sum(n for ends, n in sent.items() if ends[0] != ends[1] and ends[end] == host)
            assert carried <= times * N_BYTES


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=12),
    st.sampled_from(sorted(REGISTRIES)),
    st.sampled_from([8, 5000]),
    st.data(),
)
def test_every_candidate_is_right_wherever_ranks_are(
    places: list[tuple[int, int]], collective: str, n_bytes: int, data: st.DataObject
) -> None:
    """Its promise of rank order, too."""
    model = placed_model([f"{'abc'[cluster]}{host}" for cluster, host in places])
    root = data.draw(st.integers(0, len(places) - 1))
    for candidate in choose(collective, model, n_bytes, root).candidates:
        if candidate.build is not None:
            check_plan(candidate.build(7), rank_order=candidate.rank_order)
        if candidate.build_blocks is not None:
            uneven = [3 * rank % 4 for rank in range(len(places))]
            check_plan(candidate.build_blocks(uneven), rank_order=candidate.rank_order)


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("places", ["abab", "abba", "aabb", "ababcdcd"])
@pytest.mark.parametrize("n_bytes", [8, 5000])
def test_rank_order_is_promised_only_where_it_is_kept(
    collective: str, places: str, n_bytes: int
) -> None:
    """Clusters are intervals of ranks; their hosts are not always."""
    clusters = ["x" if host in "ab" else "y" for host in places]
    model = placed_model([cluster + host for cluster, host in zip(clusters, places, strict=True)])
    for candidate in choose(collective, model, n_bytes, 0).candidates:
        if candidate.build is not None:
            check_plan(candidate.build(9), rank_order=candidate.rank_order)


@pytest.mark.parametrize("hosts", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("collective", ["bcast", "allreduce", "reduce"])
@pytest.mark.parametrize("n_bytes", [8, 65536, 1 << 20])
@pytest.mark.long
def test_predictions_know_who_shares_an_interface(
    hosts: list[str], collective: str, n_bytes: int
) -> None:
    """Against a walk of every message: of the fastest of each kind."""
    model, seen = placed_model(hosts), set()
    for candidate in choose(collective, model, n_bytes, 0).candidates:
        if candidate.build is None or candidate.name in seen or candidate.predicted_s is None:
            continue
        seen.add(candidate.name)
        unit_bytes = 1 if collective == "bcast" else 8
        walked = price_plan(candidate.build(n_bytes // unit_bytes), model, unit_bytes=unit_bytes)
        tolerance = 0.25 if collective == "bcast" else 0.4
        assert candidate.predicted_s == pytest.approx(walked.makespan_s, rel=tolerance), (
            candidate.label
        )


@pytest.mark.parametrize("hosts", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "gather", "scatter"])
@pytest.mark.parametrize("n_bytes", [8, 1024, 16384])
def test_predictions_of_blocks_know_who_shares_an_interface(
    hosts: list[str], collective: str, n_bytes: int
) -> None:
    """Against a walk of every message: of all candidates."""
    model = placed_model(hosts)
    plans = [c for c in choose(collective, model, n_bytes, 1).candidates if c.build]
    assert len(plans) > 1
    tolerance = 0.06 if collective in ("gather", "scatter") else 0.26
    for candidate in plans:
        assert candidate.build is not None
        walked_s = price_plan(candidate.build(n_bytes), model).makespan_s
        assert candidate.predicted_s == pytest.approx(walked_s, rel=tolerance), candidate.label


@pytest.mark.parametrize("hosts", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize(("n_bytes", "tolerance"), [(8, 0.06), (1024, 0.15), (8192, 0.08)])
@pytest.mark.long
def test_predictions_of_alltoalls_know_who_shares_an_interface(
    hosts: list[str], n_bytes: int, tolerance: float
) -> None:
    """Whose blocks for far ranks leave first gets those of near ones through when all come in."""
    model = placed_model(hosts)
    plans = [c for c in choose("alltoall", model, n_bytes, 0, grid_only=True).candidates if c.build]
    assert {"farthest-first", "direct"} <= {candidate.name for candidate in plans}
    for candidate in plans:
        assert candidate.build is not None
        walked_s = price_plan(candidate.build(n_bytes), model).makespan_s
        assert candidate.predicted_s == pytest.approx(walked_s, rel=tolerance), candidate.label


@pytest.mark.parametrize("hosts", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize("algorithm", ["lanes", "ring"])
def test_a_block_enters_every_host_once(hosts: list[str], collective: str, algorithm: str) -> None:
    """Or leaves it once, combined; around a ring it may come back to where it began."""
    (candidate,) = REGISTRIES[collective][algorithm].candidates(placed_model(hosts), 900, 0)
    assert candidate.build is not None
    by_host = Grid.from_labels(hosts)
    units = count_traffic(candidate.build(900), by_host).units
    end = 1 if collective == "allgather" else 0
    for host in range(len(by_host.clusters)):
        passed = sum(n for ends, n in units.items() if ends[0] != ends[1] and ends[end] == host)
        assert passed <= (24 - 4 if algorithm == "lanes" else 24) * 900


def test_neighbours_keep_their_hosts() -> None:
    from gridcoll.plan.allreduce.lanes import find_neighbours

    model = replace(model_of([0, 1, 2] * 4, (1e-3, 1e-3, 5e-3)))
    hosts = [f"{k % 3}-{k // 6}" for k in range(12)]
    groups = find_neighbours(replace(model, grid=Grid.from_labels([0, 1, 2] * 4, hosts)))
    assert groups.host_of == Grid.from_labels([0, 1, 2] * 4, hosts).host_of
    assert len(groups.clusters) < 3


@pytest.mark.parametrize("placed", ["block", "cyclic", "one each"])
@pytest.mark.parametrize("collective", sorted(REGISTRIES))
@pytest.mark.parametrize("n_bytes", [8, 65536])
def test_names_of_hosts_may_come_again_at_other_sites(
    placed: str, collective: str, n_bytes: int
) -> None:
    """Sites that call their hosts n0, n1, … are not on the same hosts."""
    own = PLACED.get(placed) or [f"{cluster}{host}" for cluster in "ab" for host in range(4)]
    model = placed_model(own)
    labels = [host[0] for host in own]
    same = replace(model, grid=Grid.from_labels(labels, [f"n{host[1]}" for host in own]))
    assert same.grid.host_of == model.grid.host_of
    for ours, theirs in zip(
        choose(collective, same, n_bytes, 0).candidates,
        choose(collective, model, n_bytes, 0).candidates,
        strict=True,
    ):
        assert (ours.label, ours.predicted_s) == (theirs.label, theirs.predicted_s)
        if ours.build is not None and theirs.build is not None and n_bytes == 8:
            walked = [
                price_plan(b(8), m).makespan_s
                for b, m in ((ours.build, same), (theirs.build, model))
            ]
            assert walked[0] == walked[1]
