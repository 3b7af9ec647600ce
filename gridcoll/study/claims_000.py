"""What paper 000 says of its simulations (§6, Figures 1 to 4), each as a test on our scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gridcoll.schedule.greedy import SEVEN
from gridcoll.study.comparison import Score

Scores = Mapping[tuple[int, str], Score]
"""By number of clusters and heuristic."""

FAMILY = ("ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t")
LATE = "ecef-la-max-t"
FEW, MANY = 10, 50


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in our words; ``holds`` needs the counts 3 to `FEW` and `MANY`."""

    number: int
    figure: str
    says: str
    holds: Callable[[Scores], bool]


def by_key(scores: Sequence[Score]) -> Scores:
    """Scores by number of clusters and heuristic."""
    return {(score.n_clusters, score.heuristic): score for score in scores}


def _mean(scores: Scores, n: int, name: str) -> float:
    return scores[n, name].mean_s


def _hits(scores: Scores, n: int, name: str) -> float:
    rate = scores[n, name].hit_rate
    return 0.0 if rate is None else rate


def _counts(scores: Scores, least: int = 3) -> list[int]:
    return sorted({n for n, _ in scores if n >= least})


def _flat_is_slowest(scores: Scores) -> bool:
    return all(
        max(SEVEN, key=lambda name: _mean(scores, n, name)) == "flat" for n in _counts(scores)
    )


def _bottom_up_before_fef(scores: Scores) -> bool:
    return all(_mean(scores, n, "bottom-up") < _mean(scores, n, "fef") for n in _counts(scores))


def _family_leads(scores: Scores) -> bool:
    few = [n for n in _counts(scores) if n <= FEW]
    return all(
        min(_mean(scores, n, name) for name in FAMILY) <= _mean(scores, n, other)
        for n in few
        for other in ("flat", "fef", "bottom-up")
    )


def _two_are_unfit(scores: Scores) -> bool:
    least = min(_mean(scores, MANY, name) for name in SEVEN)
    return all(_mean(scores, MANY, name) > 1.5 * least for name in ("flat", "fef"))


def _number_hardly_matters(scores: Scores) -> bool:
    return all(_mean(scores, MANY, name) < 1.2 * _mean(scores, FEW, name) for name in FAMILY)


def _too_close_to_tell(scores: Scores) -> bool:
    for n in _counts(scores, FEW):
        family = [_mean(scores, n, name) for name in FAMILY]
        deviation = scores[n, "ecef"].deviation_s / scores[n, "ecef"].n_iterations ** 0.5
        if max(family) - min(family) > 4 * deviation:
            return False
    return True


def _hit_rates_fall(scores: Scores) -> bool:
    return all(_hits(scores, MANY, name) < _hits(scores, FEW, name) for name in ("ecef", "ecef-la"))


def _late_keeps_its_rate(scores: Scores) -> bool:
    return all(0.35 <= _hits(scores, n, LATE) <= 0.55 for n in _counts(scores, FEW))


def _late_is_fastest_of_many(scores: Scores) -> bool:
    return all(_mean(scores, MANY, LATE) <= _mean(scores, MANY, name) for name in SEVEN)


def _mixed_pays(scores: Scores) -> bool:
    few = min(("ecef", "ecef-la"), key=lambda name: _mean(scores, FEW, name))
    return _mean(scores, FEW, few) <= _mean(scores, FEW, LATE) and _late_is_fastest_of_many(scores)


CLAIMS = (
    Claim(1, "1", "flat is the slowest", _flat_is_slowest),
    Claim(2, "1", "BottomUp beats FEF", _bottom_up_before_fef),
    Claim(3, "1", "the ECEF family is the best", _family_leads),
    Claim(4, "2", "flat and FEF are unfit for many clusters", _two_are_unfit),
    Claim(5, "3", "the number of clusters hardly matters to the ECEF family",
          _number_hardly_matters),
    Claim(6, "3", "the family's averages are too close to tell apart (4 standard errors)",
          _too_close_to_tell),
    Claim(7, "4", "the hit rates of ECEF and ECEF-LA fall from 10 to 50 clusters",
          _hit_rates_fall),
    Claim(8, "4", "ECEF-LAT keeps a hit rate of about 45 % (35 to 55 % from 10 clusters on)",
          _late_keeps_its_rate),
    Claim(9, "3", "ECEF-LAT has the smallest mean at 50 clusters", _late_is_fastest_of_many),
    Claim(10, "4", "ECEF or ECEF-LA for few clusters, ECEF-LAT for many", _mixed_pays),
)  # fmt: skip
"""The numbers are those of ``benchmarks/studies/CLAIMS.md``."""
