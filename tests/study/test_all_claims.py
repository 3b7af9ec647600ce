"""CLAIMS.md covers the five papers; its fast verdicts are found again here.

Each check computes one verdict from today's code. A changed verdict is a changed line there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pytest

from gridcoll.cli.group import group
from gridcoll.cli.study_command import command as study
from gridcoll.model.closed_forms import CLOSED_FORMS
from gridcoll.placement import IterationCost, Resources, predict, read_problem, select
from gridcoll.plan.alltoall.lg import exchanges
from gridcoll.plan.choose import choose
from gridcoll.schedule import HEURISTICS
from gridcoll.study.claims_000 import CLAIMS, Scores, by_key
from gridcoll.study.comparison import Setting, compare
from gridcoll.study.contents import CONTENTS, PAPERS
from gridcoll.study.grid5000 import Calibration, grid_instance, unaware_binomial_s, variants
from gridcoll.study.one_cluster import (
    alltoall_rows,
    best_closed_form,
    broadcast_rows,
    one_cluster,
    scatter_rows,
    stand_in_link,
)
from gridcoll.study.parameters import PARAMETERS
from gridcoll.study.placement import expected_fail_permille, run_cases
from gridcoll.study.placement_cases import CASE_KINDS, LATENCIES
from gridcoll.study.total_exchange import Sites, hindrance_for
from gridcoll.topology import read_gridfile

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "benchmarks" / "studies" / "CLAIMS.md"
VERDICTS = ("holds", "holds only if", "does not hold", "cannot be tried")
HOLDS, ONLY_IF, NOT, UNTRIED = VERDICTS


class Line(NamedTuple):
    verdict: str
    came_out: str
    command: str


def lines() -> dict[str, Line]:
    found = {}
    for line in TEXT.read_text().splitlines():
        match = re.match(
            r"\| (00\d\.\d+) \| (.+?) \| \*\*(.+?)\*\*(.*?) \| (.+) \| (.*?) ?\|$", line
        )
        if match:
            number, _, verdict, _, came_out, command = match.groups()
            assert number not in found, f"claim {number} is there twice"
            found[number] = Line(verdict, came_out, command.strip("` "))
    return found


LINES = lines()


@cache
def table2(filling: str) -> Scores:
    setting = Setting(filling=filling, n_iterations=1000)
    return by_key([score for n in (3, 5, 10, 50) for score in compare(setting, n)])


@cache
def adaptive() -> Scores:
    setting = Setting(PARAMETERS["adaptive"], n_iterations=500)
    return by_key([score for n in (3, 10, 50) for score in compare(setting, n)])


def verdict(always: bool, sometimes: bool = False) -> str:
    return HOLDS if always else ONLY_IF if sometimes else NOT


def of_simulation(number: int) -> str:
    """By independent links; where that fails, by any filling and from 4 clusters on."""
    claim = CLAIMS[number - 1]
    assert claim.number == number
    if claim.holds(table2("independent")):
        return HOLDS
    some = {key: score for key, score in table2("independent").items() if key[0] != 3}
    return verdict(False, claim.holds(some) or claim.holds(table2("per-cluster")))


def late_keeps_its_rate() -> str:
    """About 45 %: within 10 of it at 10 and 50 clusters; per-cluster gaps come within 13."""
    far = [
        max(abs(table2(filling)[n, "ecef-la-max-t"].hit_rate - 0.45) for n in (10, 50))  # type: ignore[operator]
        for filling in ("independent", "per-cluster")
    ]
    return verdict(far[0] < 0.1, far[1] < 0.15)


def look_ahead_helps_bottom_up() -> str:
    setting = Setting(n_iterations=2000)
    means = {s.heuristic: s.mean_s for s in compare(setting, 10, ("bottom-up", "bottom-up-la"))}
    return verdict(means["bottom-up-la"] < means["bottom-up"])


def grid5000(name: str, inside: str = "binomial", root: int = 0) -> float:
    instance = grid_instance(4e6, Calibration(), root, inside=inside)
    return HEURISTICS[name].pick(instance).makespan_s


FAMILY = ("ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t")


def family_under_3_s() -> str:
    return verdict(
        max(grid5000(name) for name in FAMILY) < 3,
        max(grid5000(name, "best") for name in FAMILY) < 3,
    )


def flat_six_times() -> str:
    ratios = [found.flat_over_ecef for found in variants()]
    return verdict(min(ratios) > 5, max(ratios) > 5)


def gains_half() -> str:
    unaware_s = unaware_binomial_s(4e6, Calibration())
    gains = [grid5000(name, "best") <= unaware_s / 2 for name in ("fef", *FAMILY, "bottom-up")]
    return verdict(all(gains), any(gains))


def fewest_messages_cross() -> str:
    counts = {}
    for sites in (Sites(), Sites(20, 40)):
        (exchange,) = exchanges(sites.model(1).grid)
        counts[sites.n_first] = len(exchange.messages)
    return verdict(counts == {30: 60, 20: 80})


def lg_steps() -> str:
    (exchange,) = exchanges(Sites(3, 7).model(1).grid)
    sent = [sum(message[0] == rank for message in exchange.messages) for rank in exchange.small]
    return verdict(set(sent) <= {2, 3})


def lg_gains() -> str:
    return verdict(Sites().gain(1 << 16) > 1.6, hindrance_for(Sites(), 1 << 16, 2.5) is not None)


def lg_gains_early() -> str:
    return verdict(Sites().gain(1 << 12) > 1)


def lg_scales() -> str:
    sites = Sites(15, 30, hindrance=6.3)
    ahead = sites.gain(1 << 16) > 1
    return verdict(ahead and Sites(20, 40, hindrance=6.3).seconds("lg", 1 << 19)
                   < Sites(20, 40, hindrance=6.3).seconds("direct", 1 << 16))  # fmt: skip


def table_1() -> str:
    exact = [row for row in broadcast_rows(LINK, 16, 1 << 16) if row.strategy == "k-chain"]
    (row,) = exact
    assert row.plan_s is not None
    other = [
        row
        for row in broadcast_rows(LINK, 16, 1 << 16)
        if CLOSED_FORMS[row.strategy].holds == "exact" and not row.strategy.endswith("rendezvous")
    ]
    agree = all(row.plan_s == pytest.approx(row.formula_s, rel=0.03) for row in other)
    return verdict(agree and row.formula_s > 0.9 * row.plan_s, agree)


def halving_finds_a_good_segment() -> str:
    (row,) = [row for row in broadcast_rows(LINK, 16, 1 << 16) if row.strategy == "segmented-chain"]
    assert row.plan_s is not None
    return verdict(row.plan_s > 0.97 * row.formula_s)


def adaptive_order() -> str:
    means = {name: adaptive()[50, name].mean_s for name in ("flat", "fef", *FAMILY)}
    best = min(means.values())
    return verdict(
        max(means, key=lambda name: means[name]) == "flat"
        and means["fef"] > 1.1 * best
        and max(means[name] for name in FAMILY) < 1.06 * best
    )


def adaptive_alike() -> str:
    spread = [
        max(adaptive()[n, name].mean_s for name in FAMILY)
        / min(adaptive()[n, name].mean_s for name in FAMILY)
        for n in (10, 50)
    ]
    return verdict(max(spread) < 1.02)


def the_fastest_strategy_is_chosen() -> str:
    """At no size is a line of Table 1 ahead of what is chosen unasked."""
    model = one_cluster(LINK, 16)
    behind = []
    for size in (256, 1 << 10, 1 << 16, 1 << 20):
        chosen = choose("bcast", model, size, 0, grid_only=True).winner.predicted_s
        plans = [row.plan_s for row in broadcast_rows(LINK, 16, size) if row.plan_s is not None]
        assert chosen is not None
        behind.append(chosen / min(plans) - 1)
    return verdict(max(behind) < 1e-9)


def pipeline_wins() -> str:
    times = [best_closed_form(name, LINK, 16, 1 << 20)[0]
             for name in ("segmented-chain", "binomial", "flat")]  # fmt: skip
    return verdict(times == sorted(times))


def scatter_formulas() -> str:
    rows = scatter_rows(LINK, 16, 1 << 15)
    return verdict(all(row.plan_s == pytest.approx(row.formula_s, rel=1e-6) for row in rows))


def binomial_scatter_wins() -> str:
    faster = []
    for size in (256, 1 << 20):
        times = {row.strategy: row.formula_s for row in scatter_rows(LINK, 24, size)}
        faster.append(times["binomial"] < times["flat"])
    return verdict(all(faster), any(faster))


def alltoall_bounds() -> str:
    times = {row.strategy: row.formula_s for row in alltoall_rows(LINK, 24, 1 << 16)}
    same = times["paper-upper"] == pytest.approx(times["upper"])
    return verdict(same, times["paper-upper"] > times["upper"])


LINK = stand_in_link()


def fails(case: str, n_cases: int = 60) -> dict[str, float]:
    return {row.search: row.fail_permille for row in run_cases(CASE_KINDS[case], n_cases)}


def greedy_and_grouping() -> str:
    found = fails("heterogeneous")
    return verdict(max(found["greedy"], found["grouping"]) < 20 and found["annealing"] > 400)


def random_subsets() -> str:
    return verdict(abs(expected_fail_permille(12, 1000) - 782) < 5)


def greedy_behind_random() -> str:
    found = fails("close-to-homogeneous", 100)
    return verdict(found["greedy"] > found["random-1k"])


def one_random_subset() -> str:
    return verdict(abs(fails("close-to-homogeneous")["random"] - 688) < 60)


def latencies_by_branch() -> str:
    kind = CASE_KINDS["heterogeneous"]
    errors = {}
    for name in LATENCIES:
        rows = {row.search: row for row in run_cases(kind, 60, latencies=name)}
        errors[name] = rows["random"].error_percent[1]
    near = {name: 400 < error < 800 for name, error in errors.items()}
    return verdict(all(near.values()), near["longest-branch"] and near["level"])


@cache
def five(n_elements: int) -> tuple[int, float]:
    stated = read_problem(ROOT / "benchmarks" / "placement" / "cem-five-588k.toml")
    return _chosen(stated.grid, stated.problem, n_elements)


@cache
def grid25(n_elements: int) -> tuple[int, float]:
    stated = read_problem(ROOT / "benchmarks" / "placement" / "grid5000-25.toml")
    return _chosen(stated.grid, stated.problem, n_elements)


def _chosen(grid, problem, n_elements: int) -> tuple[int, float]:  # type: ignore[no-untyped-def]
    import msgspec

    resources = Resources.from_spec(read_gridfile(grid))
    best = select(
        IterationCost(msgspec.structs.replace(problem, n_elements=n_elements), resources)
    ).best
    return len(best.clusters), best.communication_s


def more_elements_more_clusters() -> str:
    return verdict((five(588_000)[0], five(2_480_674)[0]) == (4, 5))


def table_5_clusters() -> str:
    return verdict([grid25(n)[0] for n in (5_135_732, 10**8, 10**9)] == [15, 25, 25])


def table_5_orsay() -> str:
    import msgspec

    stated = read_problem(ROOT / "benchmarks" / "placement" / "grid5000-25.toml")
    assert stated.grid is not None
    resources = Resources.from_spec(read_gridfile(stated.grid))
    orsay = tuple(i for i, site in enumerate(resources.sites) if site == "orsay")
    problem = msgspec.structs.replace(stated.problem, n_elements=2_480_674)
    time_s = predict(IterationCost(problem, resources), orsay).iteration_s
    return verdict(abs(time_s / 0.071 - 1) < 0.1)


def table_5_communication() -> str:
    return verdict(abs(grid25(10**9)[1] / 0.751 - 1) < 0.2)


CHECKS: dict[str, Callable[[], str]] = {
    **{
        f"000.{number}": lambda number=number: of_simulation(number)  # type: ignore[misc]
        for number in (1, 2, 3, 4, 5, 6, 7, 9, 10)
    },
    "000.8": late_keeps_its_rate,
    "000.13": look_ahead_helps_bottom_up,
    "000.14": lambda: verdict(
        grid5000("flat") > unaware_binomial_s(4e6, Calibration()) > grid5000("ecef")
    ),
    "000.15": family_under_3_s,
    "000.16": flat_six_times,
    "000.17": lambda: verdict(grid5000("flat") > 1.3 * grid5000("flat", root=5)),
    "001.1": fewest_messages_cross,
    "001.2": lg_steps,
    "001.3": lg_gains,
    "001.4": lg_gains_early,
    "001.5": lg_scales,
    "002.1": table_1,
    "002.2": halving_finds_a_good_segment,
    "002.3": gains_half,
    "002.4": adaptive_order,
    "002.5": adaptive_alike,
    "002.8": the_fastest_strategy_is_chosen,
    "003.3": pipeline_wins,
    "003.5": scatter_formulas,
    "003.6": binomial_scatter_wins,
    "003.7": alltoall_bounds,
    "004.2": greedy_and_grouping,
    "004.3": random_subsets,
    "004.5": greedy_behind_random,
    "004.6": one_random_subset,
    "004.7": latencies_by_branch,
    "004.8": more_elements_more_clusters,
    "004.9": table_5_clusters,
    "004.10": table_5_orsay,
    "004.11": table_5_communication,
}


@pytest.mark.parametrize("number", CHECKS)
def test_the_verdict_is_found_again(number: str) -> None:
    assert CHECKS[number]() == LINES[number].verdict


def test_all_papers_are_there_in_order() -> None:
    numbers = [tuple(map(int, number.split("."))) for number in LINES]
    assert numbers == sorted(numbers)
    assert {number.split(".")[0] for number in LINES} == set(PAPERS)
    for paper in map(int, PAPERS):
        own = [number for of, number in numbers if of == paper]
        assert own == list(range(1, len(own) + 1))


@pytest.mark.parametrize("number", LINES)
def test_every_claim_has_a_verdict_and_a_command(number: str) -> None:
    line = LINES[number]
    assert line.verdict in VERDICTS
    assert line.came_out
    if line.verdict == UNTRIED:
        return
    check_command(line.command if line.command.startswith("gridcoll ") else f"study {line.command}")


@pytest.mark.parametrize("item", CONTENTS, ids=lambda item: f"{item.paper} {item.name}")
def test_every_figure_and_table_has_a_command_that_parses(item) -> None:
    if not item.command:
        assert item.remark
        return
    check_command(item.command)


def check_command(text: str) -> None:
    """The command and its options are known; what is left out to be short may be missing."""
    words = shlex.split(text.removeprefix("gridcoll "))
    found: click.Command = group
    context = click.Context(group)
    if words[0] == "study":
        found, words = study, words[1:]
        context = click.Context(study)
    command = found.get_command(context, words[0]) if isinstance(found, click.Group) else None
    assert command is not None, text
    known = {name for parameter in command.params for name in parameter.opts}
    for word in words[1:]:
        if word.startswith("--"):
            assert word in known, f"{text}: {word}"


def test_a_changed_verdict_is_noticed() -> None:
    assert verdict(True) == HOLDS
    assert verdict(False, True) == ONLY_IF
    assert verdict(False) == NOT
    assert np.isfinite(Sites().gain(64))
