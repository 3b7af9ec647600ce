"""CLAIMS.md covers the five papers; its fast verdicts are found again here.

Each check computes one verdict from today's code. A changed verdict is a changed line there.
"""

from __future__ import annotations

import csv
import json
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
from gridcoll.model import GridModel, PLogP, read_model
from gridcoll.model.closed_forms import ALLTOALL_BOUNDS, CLOSED_FORMS
from gridcoll.placement import IterationCost, Resources, predict, read_problem, select
from gridcoll.placement.correction import Exchanges, select_corrected
from gridcoll.plan.alltoall.lg import exchanges
from gridcoll.plan.alltoall.unequal_choice import choose_unequal
from gridcoll.plan.choose import choose
from gridcoll.schedule import HEURISTICS, best
from gridcoll.study.comparison import Setting, compare
from gridcoll.study.contents import CONTENTS, PAPERS
from gridcoll.study.fillings_command import CLAIMS, Scores, by_key
from gridcoll.study.grid5000_command import (
    LATENCY_US,
    Calibration,
    grid_instance,
    unaware_binomial_s,
    variants,
)
from gridcoll.study.one_cluster_command import (
    alltoall_rows,
    best_closed_form,
    broadcast_rows,
    one_cluster,
    scatter_rows,
    stand_in_link,
)
from gridcoll.study.parameters import PARAMETERS
from gridcoll.study.placement_command import (
    CASE_KINDS,
    LATENCIES,
    run_cases,
)
from gridcoll.study.total_exchange_command import Sites, hindrance_for
from gridcoll.topology import Grid, read_gridfile
from gridcoll.topology.levels import find_levels
from tests.study.drawing import expected_fail_permille

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
    seen = mpi_over_lg("30x30", 1 << 16) > 1 / 0.6
    needs = hindrance_for(Sites(), 1 << 16, 2.5)
    return verdict(Sites().gain(1 << 16) > 1.6, seen and needs is not None)


@cache
def at_60_hosts(hosts: str) -> dict[tuple[str, int], float]:
    """Kept seconds of the paper's two sites in slow motion, by variant and bytes."""
    path = ROOT / "benchmarks" / "results" / f"lg-nancy-rennes-{hosts}-mpich.json"
    rows = json.loads(path.read_text())
    return {(row["variant"], row["bytes"]): row["median_s"] for row in rows}


def mpi_over_lg(hosts: str, n_bytes: int) -> float:
    times = at_60_hosts(hosts)
    return times["native", n_bytes] / times["gridcoll:lg", n_bytes]


def lg_gains_early() -> str:
    gains = [mpi_over_lg("30x30", n_bytes) for n_bytes in (1 << 10, 1 << 13, 1 << 16)]
    as_measured = gains[0] < 1 < gains[1] < gains[2]
    return verdict(as_measured and Sites().gain(1 << 12) > 1, as_measured)


def lg_scales() -> str:
    gains = [mpi_over_lg(hosts, 1 << 16) for hosts in ("15x15", "30x30", "20x40")]
    as_measured = 1 < gains[0] < gains[1] and gains[2] > 1
    return verdict(as_measured and Sites(15, 15).gain(1 << 16) > 1, as_measured)


def lg_is_faster_with_more_to_send() -> str:
    standard_s = at_60_hosts("20x40")["native", 1 << 16] / 50
    return verdict(Sites(20, 40).seconds("lg", 1 << 19) < standard_s)


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


def one_of_them_is_optimal() -> str:
    setting = Setting(n_iterations=40, n_references=40)
    scores = [score for n in (5, 10) for score in compare(setting, n)]
    rates = [score.as_good or 0 for score in scores if score.heuristic in FAMILY]
    return verdict(max(rates) > 0.5)


def the_optimum_is_too_expensive() -> str:
    """Counted, not timed: within the steps that a fraction of a second has in plain Python."""
    rng = np.random.default_rng(1)
    proven = []
    for _ in range(5):
        latency_s, gap_s = (rng.uniform(*span, (20, 20)) for span in ((1e-3, 15e-3), (0.1, 0.6)))
        found = best(latency_s, gap_s, rng.uniform(0.02, 3, 20), 0, budget_steps=500_000)
        proven.append(found.is_optimal)
    return verdict(not all(proven))


def levels_by_latency() -> str:
    """Of Table 3's clusters: Orsay's together, then the sites, then all."""
    levels = find_levels(LATENCY_US)
    sites = ((0, 1), (2, 3, 4))
    return verdict(all(any(site in groups for groups in levels) for site in sites))


def lg_beyond_two_clusters() -> str:
    """Three clusters of four between which a message costs a millisecond: LG wins unasked."""
    across = PLogP(5e-3, (0, 1 << 20), (1e-3, 0.1), (1e-3, 0.1), (1e-3, 0.1))
    inside = PLogP(50e-6, (0, 1 << 20), (1e-5, 0.01), (1e-5, 0.01), (1e-5, 0.01))
    links = tuple(tuple(inside if i == j else across for j in range(3)) for i in range(3))
    model = GridModel(Grid.from_labels([c for c in range(3) for _ in range(4)]), links)
    equal = choose("alltoall", model, 1 << 13, 0).winner.name
    counts = np.random.default_rng(1).integers(1, 512, (12, 12))
    unequal = choose_unequal(model, counts).winner.name
    return verdict(equal == "lg" and unequal in ("lg", "lg-adaptive"))


def off_the_optimum(most: float) -> bool:
    """Whether no member of the ECEF family is farther from it, by paper 002's parameters."""
    setting = Setting(PARAMETERS["adaptive"], n_iterations=40, n_references=40)
    scores = {score.heuristic: score.excess or 0 for score in compare(setting, 10)}
    return max(scores[name] for name in FAMILY) < most


def t_hardly_matters() -> str:
    """What knows T gains little with 1 to 100 MB/s, and much with gaps of 100 to 600 ms."""
    setting = Setting(n_iterations=40, n_references=40)
    table2_s = {score.heuristic: score.excess or 0 for score in compare(setting, 10)}
    quick = off_the_optimum(0.03)
    return verdict(quick and table2_s["ecef"] < 0.03, quick)


@cache
def measured(collective: str) -> dict[tuple[str, int], float]:
    """Kept seconds of 24 hosts, by algorithm and bytes."""
    path = ROOT / "benchmarks" / "studies" / "one-cluster-24" / f"{collective}.json"
    return {
        (row["variant"].removeprefix("gridcoll:"), row["bytes"]): row["median_s"]
        for row in json.loads(path.read_text())
    }


@cache
def measured_link() -> PLogP:
    return read_model(ROOT / "benchmarks" / "studies" / "one-cluster-24" / "model.json").link(0, 0)


def broadcast_off(name: str, n_bytes: int) -> float:
    """Measured over the formula's, among 24."""
    formula_s, _ = best_closed_form(name, measured_link(), 24, n_bytes)
    return measured("bcast")[f"plain-{name}", n_bytes] / formula_s


def flat_follows_its_model() -> str:
    long, short = (abs(broadcast_off("flat", n) - 1) < 0.2 for n in (1 << 18, 256))
    return verdict(long and short, long or short)


def pipeline_wins_measured() -> str:
    names = ("segmented-chain", "binomial", "flat")
    times = [measured("bcast")[f"plain-{name}", 1 << 18] for name in names]
    return verdict(times == sorted(times) and pipeline_wins() == HOLDS)


def short_messages_are_delayed() -> str:
    """By more than a third where they are not cut."""
    times = measured("bcast")
    whole, cut = (
        [times[f"plain-{kind}{name}", 1 << 12] for name in ("flat", "binomial")]
        for kind in ("", "segmented-")
    )
    return verdict(all(a > 1.33 * b for a, b in zip(whole, cut, strict=True)))


def between_its_bounds() -> str:
    upper_s = ALLTOALL_BOUNDS["paper-upper"].cost_s(measured_link(), 24, 1 << 14)
    return verdict(measured("alltoall")["direct", 1 << 14] <= upper_s)


def rotating_changes_nothing() -> str:
    times = measured("alltoall")
    off = [times["direct-unrotated", n] / times["direct", n] - 1 for n in (256, 2048, 1 << 14)]
    return verdict(max(map(abs, off)) < 0.1)


def grouping_improves_greedy() -> str:
    """By the tables that are kept: greedy fails, grouping does not; annealing adds nothing."""
    path = ROOT / "benchmarks" / "placement" / "tables" / "placement-table-2.csv"
    rows = csv.DictReader(path.read_text().splitlines())
    fail = {row["search"]: float(row["fail_permille"]) for row in rows}
    improves = fail["grouping"] < fail["greedy"]
    return verdict(improves and fail["annealing-greedy"] < fail["greedy"], improves)


def a_corrected_choice_holds() -> str:
    """A partitioner that counts twice what was expected: the last choice is by its counts."""
    stated = read_problem(ROOT / "benchmarks" / "placement" / "three-sites.toml")
    assert stated.grid is not None
    resources = Resources.from_spec(read_gridfile(stated.grid))

    def partition(problem, selection) -> Exchanges:  # type: ignore[no-untyped-def]
        faces = (problem.n_elements / selection.best.n_hosts) ** (2 / 3)
        return Exchanges(host_faces=10 * faces, cluster_faces=2 * faces)

    rounds = select_corrected(stated.problem, resources, partition)
    return verdict(rounds[-1].corrected.update.beta_host == pytest.approx(10.0))


CHECKS: dict[str, Callable[[], str]] = {
    **{
        f"000.{number}": lambda number=number: of_simulation(number)  # type: ignore[misc]
        for number in (1, 2, 3, 4, 5, 6, 7, 9, 10)
    },
    "000.8": late_keeps_its_rate,
    "000.11": one_of_them_is_optimal,
    "000.12": the_optimum_is_too_expensive,
    "000.13": look_ahead_helps_bottom_up,
    "000.14": lambda: verdict(
        grid5000("flat") > unaware_binomial_s(4e6, Calibration()) > grid5000("ecef")
    ),
    "000.15": family_under_3_s,
    "000.16": flat_six_times,
    "000.17": lambda: verdict(grid5000("flat") > 1.3 * grid5000("flat", root=5)),
    "000.19": levels_by_latency,
    "001.1": fewest_messages_cross,
    "001.2": lg_steps,
    "001.3": lg_gains,
    "001.4": lg_gains_early,
    "001.5": lg_scales,
    "001.6": lg_is_faster_with_more_to_send,
    "001.7": lg_beyond_two_clusters,
    "002.1": table_1,
    "002.2": halving_finds_a_good_segment,
    "002.3": gains_half,
    "002.4": adaptive_order,
    "002.5": adaptive_alike,
    "002.6": lambda: verdict(off_the_optimum(0.03)),
    "002.7": t_hardly_matters,
    "002.8": the_fastest_strategy_is_chosen,
    "003.1": flat_follows_its_model,
    "003.2": lambda: verdict(abs(broadcast_off("binomial", 1 << 18) - 1) < 0.3),
    "003.3": pipeline_wins_measured,
    "003.4": short_messages_are_delayed,
    "003.5": scatter_formulas,
    "003.6": binomial_scatter_wins,
    "003.7": alltoall_bounds,
    "003.8": between_its_bounds,
    "003.9": rotating_changes_nothing,
    "004.2": greedy_and_grouping,
    "004.3": random_subsets,
    "004.4": grouping_improves_greedy,
    "004.5": greedy_behind_random,
    "004.6": one_random_subset,
    "004.7": latencies_by_branch,
    "004.8": more_elements_more_clusters,
    "004.9": table_5_clusters,
    "004.10": table_5_orsay,
    "004.11": table_5_communication,
    "004.12": a_corrected_choice_holds,
}


@pytest.mark.long
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
