"""A direct exchange, evenly over the time of the busiest wire."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.model.gridmodel import GridModel, declared_model
from gridcoll.plan import REGISTRIES, Candidate, check_plan, choose
from gridcoll.plan.alltoall.cost import retransmission_s
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import parse_gridfile

N_BYTES = 1 << 20


def offered(model: GridModel, n_bytes: int = N_BYTES) -> list[Candidate]:
    return REGISTRIES["alltoall"]["spread"].candidates(model, n_bytes, 0)


def fast_and_slow(times: int = 1) -> GridModel:
    """A cluster of slow interfaces, which are busy for as long as a thin link: no relay helps.

    ``times`` as many hosts per cluster, and as much on links for each.
    """
    clusters = [("a", 5 * times, 1000), ("b", 3 * times, 1000), ("c", 3 * times, 50)]
    lines = ["version = 1", 'name = "unlike"']
    for name, hosts, nic in clusters:
        lines += ["[[clusters]]", f'name = "{name}"', f"hosts = {hosts}", f'nic = "{nic} Mbit/s"']
    for ends, latency, rate in (("ab", 22, 100), ("ac", 21, 1000), ("bc", 1, 50)):
        lines += ["[[links]]", f'between = ["{ends[0]}", "{ends[1]}"]']
        lines += [f'latency = "{latency} ms"', f'rate = "{rate * times**2} Mbit/s"']
    spec = parse_gridfile("\n".join(lines))
    return declared_model(spec, spec.rank_hosts())


def test_slow_interfaces_and_links_are_busy_all_the_time() -> None:
    model = fast_and_slow()
    choice = choose("alltoall", model, N_BYTES, 0, grid_only=True)
    assert choice.winner.name == "spread"
    assert choice.winner.build is not None
    plan = choice.winner.build(N_BYTES)
    check_plan(plan)
    least_s = 10 * N_BYTES / (50e6 / 8)
    walked_s = price_plan(plan, model).makespan_s
    assert least_s < walked_s < 1.06 * least_s
    assert walked_s == pytest.approx(choice.winner.predicted_s, rel=0.03)
    others = [c.predicted_s for c in choice.candidates if c.name != "spread" and c.predicted_s]
    assert min(others) > 1.2 * walked_s


def test_it_is_for_a_hundred_ranks_too() -> None:
    (candidate,) = offered(fast_and_slow(9), 16 << 10)
    assert candidate.build is not None
    check_plan(candidate.build(16 << 10))
    least_s = 98 * (16 << 10) / (50e6 / 8)
    assert candidate.predicted_s is not None
    assert least_s < candidate.predicted_s < 1.15 * least_s
    assert not offered(fast_and_slow(12))


@pytest.mark.parametrize("grid", ["three-sites", "thin-wan", "two-sites-thin", "one-cluster"])
def test_where_all_wires_are_alike_nothing_is_offered(grid: str) -> None:
    assert not offered(load_model(grid))


def test_short_blocks_leave_at_once() -> None:
    assert offered(fast_and_slow(), 8 << 10)
    assert not offered(fast_and_slow(), 8 << 9)


def test_what_overflows_an_uplinks_queue_is_sent_again() -> None:
    """So those that keep the uplink's pace are ahead, though nothing else makes them faster."""
    model = load_model("unlike-hosts")
    fastest, second, *_ = choose("alltoall", model, N_BYTES, 0, grid_only=True).candidates
    assert {fastest.name, second.name} == {"rate-paced", "spread"}
    assert retransmission_s(model, N_BYTES) > 0
    assert retransmission_s(model, 8 << 10) == 0  # fits into the queue
    without = replace(model, uplink_bytes_per_s=(), aggregate_bytes_per_s=())
    assert retransmission_s(without, N_BYTES) == 0
    # Of lone hosts, uplinks are their interfaces.
    lone = replace(load_model("patchwork"), aggregate_bytes_per_s=())
    assert retransmission_s(lone, N_BYTES) == 0


def test_what_overflows_the_queue_of_a_thin_link_is_sent_again() -> None:
    """The link carries 2.5 MB/s, and hosts send 25 MB/s to it: 96 KiB are 6 KiB a block."""
    model = load_model("thin-wan")
    assert retransmission_s(model, 4 << 10) == 0
    assert retransmission_s(model, 16 << 10) > 0
    limited = replace(model, aggregate_bytes_per_s=tuple(map(tuple, 2 * model.flow_bytes_per_s)))
    assert limited.windows_limit.all()
    assert retransmission_s(limited, 16 << 10) == 0  # windows keep flows from filling it
    assert retransmission_s(load_model("three-sites"), 16 << 10) == 0  # links carry what hosts send
