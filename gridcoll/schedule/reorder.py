"""The best order of each cluster's sends, for a tree that is given."""

from __future__ import annotations

from collections.abc import Iterable

from gridcoll.schedule.instance import Instance


def reorder(transfers: Iterable[tuple[int, int]], instance: Instance) -> list[tuple[int, int]]:
    """The same tree with every sender's transfers in the order that ends earliest.

    First the child for which most remains once the sender is free again: latency plus the child's
    own completion. (Jackson's rule for jobs with delivery times; swapping two neighbours that break
    it never helps.) Ties go to the smallest child.
    """
    order = list(transfers)
    cost, busy, own = instance.cost_rows, instance.busy_rows, instance.internals
    late = instance.accounting.internal == "after-last-send"
    sends: dict[int, list[tuple[int, int]]] = {}
    after: dict[int, list[tuple[float, int]]] = {}
    for sender, receiver in reversed(order):  # receivers' own sends come later, hence first here
        queue = sorted(after.pop(receiver, []))
        sends[receiver] = [(receiver, child) for _, child in queue]
        remaining = _completion(receiver, queue, busy[receiver], own[receiver], late)
        key = busy[sender][receiver] - cost[sender][receiver] - remaining
        after.setdefault(sender, []).append((key, receiver))
    root = instance.root
    sends[root] = [(root, child) for _, child in sorted(after.get(root, []))]
    result = list(sends[root])
    for _, receiver in result:  # grows while it is read: breadth first
        result.extend(sends[receiver])
    return result


def _completion(
    cluster: int, queue: list[tuple[float, int]], busy: list[float], own: float, late: bool
) -> float:
    """From the cluster's arrival until it and all it serves are done."""
    free, end = 0.0, 0.0 if late else own
    for key, child in queue:
        free += busy[child]
        end = max(end, free - key)
    return max(end, free + own) if late else end
