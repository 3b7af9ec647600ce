"""The verdicts of benchmarks/studies/CLAIMS.md, read off the tables that stand beside it."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks" / "studies"
FILLINGS = ("independent", "symmetric", "per-cluster", "per-cluster-max")
ECEF_FAMILY = ("ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t")
SEVEN = ("flat", "fef", *ECEF_FAMILY, "bottom-up")
COUNTS = (*range(2, 11), *range(15, 51, 5))

Table = dict[tuple[int, str], dict[str, float]]


@cache
def table(name: str, file: str = "table2.csv") -> Table:
    with (HERE / name / file).open() as lines:
        rows = list(csv.DictReader(lines))
    keys = ("mean_s", "hit_rate", "excess", "as_good", "n_iterations", "proven")
    return {
        (int(row["n_clusters"]), row["heuristic"]): {
            key: float(row[key]) for key in keys if row[key]
        }
        for row in rows
    }


def mean(rows: Table, n: int, name: str) -> float:
    return rows[n, name]["mean_s"]


def hits(rows: Table, n: int, name: str) -> float:
    return rows[n, name]["hit_rate"]


@pytest.mark.parametrize("filling", FILLINGS)
def test_tables_are_complete(filling) -> None:
    rows = table(f"table2-{filling}")
    assert set(rows) == {(n, name) for n in COUNTS for name in (*SEVEN, "best")}
    assert all(rows[n, name]["n_iterations"] == 10_000 for n in COUNTS for name in SEVEN)


def test_claims_1_to_6() -> None:
    rows = table("table2-independent")
    assert mean(rows, 3, "flat") < mean(rows, 3, "fef")  # 1
    for n in COUNTS[2:]:
        assert max(SEVEN, key=lambda name: mean(rows, n, name)) == "flat"
    for filling in FILLINGS:  # 2
        other = table(f"table2-{filling}")
        assert all(mean(other, n, "bottom-up") < mean(other, n, "fef") for n in COUNTS[1:])
    family = [mean(rows, 10, name) for name in ECEF_FAMILY]  # 3
    assert max(family) / min(family) == pytest.approx(1.025, abs=1e-3)
    assert mean(rows, 10, "bottom-up") / min(family) == pytest.approx(1.097, abs=1e-3)
    slope = (mean(rows, 50, "flat") - mean(rows, 10, "flat")) / 40  # 4
    assert slope == pytest.approx(0.350, abs=2e-3)
    growth = [mean(rows, 50, name) / mean(rows, 10, name) for name in ECEF_FAMILY]  # 5
    assert 1.085 < min(growth) <= max(growth) < 1.105
    for n in COUNTS[8:]:  # 6
        base = mean(rows, n, "ecef-la")
        assert mean(rows, n, "ecef") / base < 1.003
        assert 1.023 < mean(rows, n, "ecef-la-min-t") / base < 1.035
        assert 1.023 < mean(rows, n, "ecef-la-max-t") / base < 1.035


def test_claims_7_to_10() -> None:
    links, clusters = table("table2-independent"), table("table2-per-cluster")
    for name in ("ecef", "ecef-la"):  # 7
        assert hits(links, 50, name) > hits(links, 10, name)
        assert hits(clusters, 50, name) < hits(clusters, 10, name) - 0.1
    late = "ecef-la-max-t"
    assert hits(links, 50, late) < 0.03 < 0.2 < hits(links, 10, late)  # 8
    assert all(0.41 < hits(clusters, n, late) < 0.48 for n in COUNTS if n >= 20)
    assert hits(clusters, 10, late) < 0.35
    for n in COUNTS:  # 9, 10
        leads = mean(clusters, n, late) == min(mean(clusters, n, name) for name in SEVEN)
        assert leads == (n >= 15 or n <= 3)
        assert mean(links, n, "ecef-la") == min(mean(links, n, name) for name in SEVEN)


def test_claim_11() -> None:
    rows = table("table2-independent")
    assert 0.09 < max(rows[5, name]["as_good"] for name in SEVEN) < 0.12
    assert max(rows[10, name]["as_good"] for name in SEVEN) <= 0.01
    for n in COUNTS[9:]:
        assert max(rows[n, name]["as_good"] for name in SEVEN) == 0
    assert all(rows[n, "best"]["proven"] == 1 for n in COUNTS if n <= 20)


def test_claims_13_to_15() -> None:
    rows = table("adaptive", "adaptive.csv")
    for n in COUNTS[2:]:
        assert max(SEVEN, key=lambda name: mean(rows, n, name)) == "flat"
    for n, spread in ((10, 1.007), (50, 1.005)):
        family = [mean(rows, n, name) for name in ECEF_FAMILY]
        assert max(family) / min(family) < spread
        assert max(rows[n, name]["excess"] for name in ECEF_FAMILY) < 0.02


def test_claims_17_to_19() -> None:
    with (HERE / "grid5000" / "grid5000.csv").open() as lines:
        last = list(csv.DictReader(lines))[-1]
    times = {key: float(value) for key, value in last.items()}
    assert times["megabytes"] == 4
    assert times["Flat Tree"] == max(v for key, v in times.items() if key != "megabytes")
    assert times["ECEF"] < times["Binomial, grid-unaware"] < times["Flat Tree"]
    assert times["Flat Tree"] / times["ECEF"] == pytest.approx(1.94, abs=0.01)
