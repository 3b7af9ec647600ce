"""What chance alone gives in paper 004's tables."""

from __future__ import annotations


def expected_fail_permille(n_clusters: int, n_tries: int) -> float:
    """How often drawing subsets evenly misses the best one, where there is only one.

    ``(1 - 1 / (2^C - 1))^tries``. For a thousand of 12 clusters 783, as in the paper's Table 1
    (782); for a thousand of 8 clusters 20 (its Table 3: 15), but for a single one 996, where
    Table 3 has 688. That row contradicts the one below it: were a third of all subsets as good as
    the best, a thousand of them would never miss.
    """
    miss = 1.0 - 1.0 / (2.0**n_clusters - 1.0)
    return float(1000.0 * miss**n_tries)
