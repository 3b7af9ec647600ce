"""Trees that share a message as unlike interfaces and links can carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.tree_packing import Packing, Platform
from gridcoll.model.wires import links_of, wires_from_spec
from gridcoll.plan import packed_trees
from gridcoll.plan.check import check_plan
from gridcoll.plan.choose import choose
from gridcoll.plan.cost import price_plan
from gridcoll.plan.ops import Send
from gridcoll.plan.packed_trees import best_packed, is_offered
from gridcoll.plan.registry import REGISTRIES
from gridcoll.plan.tree_walk import use_in_turns
from gridcoll.topology.gridfile import GridSpec, parse_gridfile, read_gridfile
from tests.plan.grids import unlike_model

HOSTFILES = Path(__file__).parents[2] / "hostfiles"

UNLIKE_DISTANCES = """version = 1
name = "zones"
clusters = [
  { name = "a", hosts = 4, nic = "100 Mbit/s" },
  { name = "b", hosts = 5, nic = "100 Mbit/s" },
  { name = "c", hosts = 1, nic = "100 Mbit/s" },
  { name = "d", hosts = 1, nic = "100 Mbit/s" },
]
links = [
  { between = ["a", "b"], latency = "1.1 ms", rate = "200 Mbit/s" },
  { between = ["a", "c"], latency = "1.4 ms", rate = "200 Mbit/s" },
  { between = ["b", "c"], latency = "3.9 ms", rate = "1 Gbit/s" },
  { between = ["a", "d"], latency = "2.5 ms", rate = "200 Mbit/s" },
  { between = ["b", "d"], latency = "2.6 ms", rate = "1 Gbit/s" },
  { between = ["c", "d"], latency = "3.5 ms", rate = "200 Mbit/s" },
]
"""


@st.composite
def unlike_grids(draw: st.DrawFn, most_clusters: int, most_hosts: int = 5) -> GridSpec:
    """Interfaces of 20 to 1000 Mbit/s, links of 10 to 1000 with 0.5 to 40 ms."""
    n = draw(st.integers(2, most_clusters))
    lines = ["version = 1", 'name = "unlike"']
    for k in range(n):
        hosts, slots = draw(st.integers(1, most_hosts)), draw(st.integers(1, 2))
        nic = draw(st.sampled_from([20, 50, 100, 200, 1000]))
        lines += ["[[clusters]]", f'name = "c{k}"', f"hosts = {hosts}", f"slots = {slots}"]
        lines += [f'nic = "{nic} Mbit/s"']
    for a in range(n):
        for b in range(a):
            latency = draw(st.sampled_from([0.5, 2, 5, 10, 40]))
            rate = draw(st.sampled_from([10, 30, 100, 1000]))
            lines += ["[[links]]", f'between = ["c{a}", "c{b}"]', f'latency = "{latency} ms"']
            lines += [f'rate = "{rate} Mbit/s"']
    return parse_gridfile("\n".join(lines))


@pytest.mark.parametrize(
    "collective", ["bcast", "reduce", pytest.param("allreduce", marks=pytest.mark.long)]
)
@settings(max_examples=25, deadline=None)
@given(spec=unlike_grids(4), data=st.data())
def test_plans_are_right(collective: str, spec: GridSpec, data: st.DataObject) -> None:
    model = declared_model(spec, spec.rank_hosts())
    root = data.draw(st.integers(0, model.grid.n_ranks - 1))
    n_units = data.draw(st.sampled_from([1, 7, 1000, 40_000]))
    for candidate in REGISTRIES[collective]["packed-trees"].candidates(model, 40_000, root):
        assert candidate.build
        check_plan(candidate.build(n_units))


def test_slow_interfaces_pass_on_next_to_nothing_at_a_megabyte() -> None:
    model = unlike_model()
    found = best_packed(model, 1 << 20)
    assert found
    slow, trees = model.grid.clusters[3].ranks, found.trees
    n = len(trees.uses)
    for rank in slow:
        nodes = [trees.node(rank, trees.tree_of(k)) for k in range(n)]
        degree = sum((node.parent >= 0) + len(node.children) for node in nodes) / n
        assert degree < 1.1


def test_an_allreduce_on_a_patchwork_comes_near_the_limit() -> None:
    spec = read_gridfile(HOSTFILES / "patchwork.toml")
    model, wires = unlike_model(), wires_from_spec(spec, spec.rank_hosts())
    for n_bytes, most in ((1 << 20, 1.3), (16 << 20, 1.06)):
        choice = choose("allreduce", model, n_bytes, 0, grid_only=True)
        assert choice.winner.name == "packed-trees"
        assert 1 <= (choice.winner.predicted_s or 0) / limit_s("allreduce", wires, n_bytes) <= most


def test_it_takes_what_was_predicted() -> None:
    model = unlike_model()
    for collective in ("bcast", "reduce", "allreduce"):
        (candidate,) = REGISTRIES[collective]["packed-trees"].candidates(model, 1 << 20, 0)
        assert candidate.build
        simulated_s = price_plan(candidate.build(1 << 20), model).makespan_s
        assert candidate.predicted_s == pytest.approx(simulated_s, rel=0.1)


def test_sites_at_unlike_distances_gain_though_all_wires_are_alike() -> None:
    """Other ways over clusters are one tree at a time, or as long as the longest of several."""
    spec = parse_gridfile(UNLIKE_DISTANCES)
    model = declared_model(spec, spec.rank_hosts())
    for n_bytes, most in ((64 << 10, 0.75), (256 << 10, 0.9)):
        best: dict[str, float] = {}
        for candidate in choose("bcast", model, n_bytes, 0).candidates:
            if candidate.build:
                walked_s = price_plan(candidate.build(n_bytes), model).makespan_s
                best[candidate.name] = min(walked_s, best.get(candidate.name, np.inf))
        ours_s = best.pop("packed-trees")
        assert ours_s < most * min(best.values())


def test_one_cluster_and_hundreds_of_hosts_are_left_alone() -> None:
    spec = read_gridfile(HOSTFILES / "one-cluster.toml")
    assert not is_offered(declared_model(spec, spec.rank_hosts()), 1 << 20)
    spec = parse_gridfile(UNLIKE_DISTANCES.replace("hosts = 5", "hosts = 300"))
    assert not is_offered(declared_model(spec, spec.rank_hosts()), 1 << 20)


def many_unlike(n_clusters: int) -> GridSpec:
    """Clusters of one to five hosts, interfaces and links of 50 to 1000 Mbit/s, 1 to 30 ms."""
    random = np.random.default_rng(n_clusters)
    lines = ["version = 1", 'name = "many"']
    for k in range(n_clusters):
        nic = random.choice([50, 100, 200, 1000])
        lines += ["[[clusters]]", f'name = "c{k}"', f"hosts = {k % 5 + 1}", f'nic = "{nic} Mbit/s"']
    for a in range(n_clusters):
        for b in range(a):
            latency, rate = random.uniform(1, 30), random.choice([50, 100, 1000])
            lines += ["[[links]]", f'between = ["c{a}", "c{b}"]', f'latency = "{latency:.1f} ms"']
            lines += [f'rate = "{rate} Mbit/s"']
    return parse_gridfile("\n".join(lines))


@pytest.mark.long
@pytest.mark.parametrize(("n_clusters", "most"), [(24, (1.4, 1.4)), (40, (1.4, 2.0))])
def test_more_than_sixty_hosts_that_are_unlike(n_clusters: int, most: tuple[float, float]) -> None:
    """Without packed trees, an allreduce of 1 MiB takes 1.65 and 2.42 times the limit there."""
    spec = many_unlike(n_clusters)
    model = declared_model(spec, spec.rank_hosts())
    assert model.grid.n_ranks > 64
    for collective, times_limit in zip(("bcast", "allreduce"), most, strict=True):
        winner = choose(collective, model, 1 << 20, 0).winner
        assert winner.build
        plan = winner.build(1 << 20)
        check_plan(plan)
        limit = limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), 1 << 20)
        assert price_plan(plan, model).makespan_s < times_limit * limit


def test_packings_are_not_looked_for_among_very_many_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For 50 clusters that may take half a minute."""
    asked: list[int] = []

    def packings(platform: Platform) -> tuple[Packing, ...]:
        asked.append(len(platform.links))
        return ()

    monkeypatch.setattr(packed_trees, "_packings", packings)
    for n_clusters in (24, 40):
        spec = many_unlike(n_clusters)
        assert best_packed(declared_model(spec, spec.rank_hosts()), 1 << 20, 0)
    assert asked == [24]


def test_the_root_of_a_long_broadcast_sends_no_faster_than_wires_carry() -> None:
    """What waits before a thin link may be lost; of a short message nothing has to wait."""
    model = unlike_model()
    for n_bytes, waits in ((4 << 20, True), (16 << 10, False)):
        (candidate,) = REGISTRIES["bcast"]["packed-trees"].candidates(model, n_bytes, 0)
        assert candidate.build
        programs = candidate.build(n_bytes).programs
        due_s = [op.due_us * 1e-6 for op in programs[0] if isinstance(op, Send)]
        assert due_s == sorted(due_s)
        assert (due_s[-1] > 0.8 * candidate.expected_s) == waits
        others = [op for program in programs[1:] for op in program if isinstance(op, Send)]
        assert not any(op.due_us for op in others)


def test_a_link_that_seems_a_third_wider_than_a_flow_does_not_rule_them_out() -> None:
    """One wrong rate of a quick start must not cost the best plans; windows that limit do."""
    model = unlike_model()
    flows = model.flow_bytes_per_s
    for times, offered in ((1.33, True), (1.6, False)):
        links = np.array(model.link_bytes_per_s)
        links[0, 1] = links[1, 0] = times * flows[0, 1]
        rows = tuple(map(tuple, links.tolist()))
        seems = replace(model, aggregate_bytes_per_s=rows)
        assert is_offered(seems, 1 << 20) == offered
    found, right = (best_packed(each, 1 << 20) for each in (seems, model))
    assert found
    assert right
    assert found.total_s == pytest.approx(right.total_s, rel=0.05)


def test_turns_keep_to_shares_all_the_time() -> None:
    uses = use_in_turns((0.5, 0.3, 0.2), 100)
    for n in range(1, 101):
        for tree, share in enumerate((0.5, 0.3, 0.2)):
            n_taken = sum(which == tree for which, _ in uses[:n])
            assert abs(n_taken - share * n) <= 1
    assert [turn for which, turn in uses if which == 2] == list(range(20))


def test_a_link_that_no_pair_of_hosts_filled_counts_as_wide() -> None:
    """Flows of two hosts of 200 to four of 50 Mbit/s carried 200, and one of 60 its 60."""
    model = unlike_model()
    measured = np.array(model.link_bytes_per_s)
    measured[0, 3] = measured[3, 0] = 200e6 / 8
    rows = tuple(map(tuple, measured.tolist()))
    assert links_of(model)[0, 3] == model.link_bytes_per_s[0, 3]
    links = links_of(replace(model, aggregate_bytes_per_s=rows, origin="measured"))
    assert links[0, 3] == pytest.approx(250e6 / 8, rel=0.02)
    assert links[0, 1] == pytest.approx(60e6 / 8, rel=0.02)


def test_an_allreduce_has_no_more_segments_than_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every doubling saves 2 %. A broadcast has as many as take least time."""
    spec = read_gridfile(HOSTFILES / "patchwork.toml")
    n_bytes = 1 << 20

    def found(root: int) -> tuple[int, float]:
        packed = best_packed(declared_model(spec, spec.rank_hosts()), n_bytes, root)
        assert packed is not None
        return packed.segment_bytes, packed.total_s

    few, broadcast = found(-1), found(0)
    monkeypatch.setattr(packed_trees, "MORE_SEGMENTS_GAIN", 0.0)
    many = found(-1)
    assert few[0] > many[0]
    assert few[1] <= many[1] / 0.98 ** np.log2(few[0] / many[0])
    assert found(0) == broadcast
