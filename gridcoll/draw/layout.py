"""Where clusters stand in a picture: near ones near, and none upon another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridcoll.model.plogp import FloatArray

N_PUSHES = 400
SITE_MARGIN = 0.25


def place_clusters(
    latency_s: FloatArray, radii: FloatArray, width: float, height: float
) -> FloatArray:
    """Positions of C circles in a ``width`` x ``height`` box, (C, 2).

    Classical multidimensional scaling of the square roots of the latencies (a site's microseconds
    stay visible beside a continent's milliseconds), fitted to the box, then circles that touch are
    pushed apart. ``radii`` are those of the circles with all that is written around them.
    """
    n = len(radii)
    centre = np.array([width, height]) / 2
    if n == 1:
        return centre[None, :]
    distance = np.sqrt(np.maximum(np.maximum(latency_s, latency_s.T), 0.0))
    np.fill_diagonal(distance, 0.0)
    places = _fit(_scale_down(distance), radii, width, height)
    for _ in range(N_PUSHES):
        if not _push_apart(places, radii):
            break
        low, high = radii[:, None], np.array([width, height]) - radii[:, None]
        places = np.clip(places, low, np.maximum(low, high))
    return places


def place_by_site(
    latency_s: FloatArray,
    sites: Sequence[Sequence[int]],
    radii: FloatArray,
    width: float,
    height: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Places of C circles, (C, 2), each inside its site's; and those of the sites, (S, 2), (S,).

    ``sites[s]`` are the circles of site ``s``. Sites stand by the mean latency between them.
    """
    inside = [_gather(radii[list(members)]) for members in sites]
    site_radii = np.array([radius for _, radius in inside])
    between = np.array([[latency_s[np.ix_(a, b)].mean() for b in sites] for a in sites])
    centres = place_clusters(between, site_radii + SITE_MARGIN, width, height)
    places = np.zeros((len(radii), 2))
    for members, centre, (offsets, _) in zip(sites, centres, inside, strict=True):
        places[list(members)] = centre + offsets
    return places, centres, site_radii


def _gather(radii: FloatArray) -> tuple[FloatArray, float]:
    """Circles close together around the origin, (k, 2), and the radius of the disc they fill."""
    k, largest = len(radii), float(radii.max())
    if k == 1:
        return np.zeros((1, 2)), largest
    # Seven stand in a ring at 0.7 of sunflower's radius; more have about 1.9 R / sqrt(k) each.
    ring = largest / np.sin(np.pi / k) / 0.7 if k <= 7 else 1.25 * largest * np.sqrt(k)
    offsets = sunflower(k, float(ring))
    return offsets, float(np.linalg.norm(offsets, axis=1).max()) + largest


def _scale_down(distance: FloatArray) -> FloatArray:
    """The two principal coordinates of a distance matrix, (C, 2), the wider one first."""
    n = len(distance)
    centring = np.eye(n) - 1.0 / n
    values, vectors = np.linalg.eigh(-0.5 * centring @ distance**2 @ centring)
    order = np.argsort(values)[::-1][:2]
    places = np.asarray(vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0)))
    # The sign of an eigenvector is arbitrary: put the first cluster left and on top.
    places[:, 0] *= -1.0 if places[0, 0] > 0 else 1.0
    places[:, 1] *= -1.0 if places[0, 1] < 0 else 1.0
    return places


def _fit(places: FloatArray, radii: FloatArray, width: float, height: float) -> FloatArray:
    """Stretch each direction to the box; a flat arrangement may grow, but not to any height."""
    margin = radii.max()
    room = np.array([width, height]) - 2 * margin
    extent = np.ptp(places, axis=0)
    factor = room[0] / max(extent[0], 1e-12)
    factors = np.array([factor, min(room[1] / max(extent[1], 1e-12), 1.7 * factor)])
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    return np.asarray((places - middle) * factors + np.array([width, height]) / 2)


def _push_apart(places: FloatArray, radii: FloatArray) -> bool:
    """Move overlapping pairs apart in place; returns whether there were any."""
    moved = False
    for i in range(len(radii)):
        for j in range(i):
            apart = places[i] - places[j]
            length = float(np.hypot(*apart))
            missing = radii[i] + radii[j] - length
            if missing > 1e-3:
                # Coincident ones leave in a direction of their own.
                angle = 0.7 + 2.4 * i
                unit = apart / length if length > 1e-9 else np.array([np.cos(angle), np.sin(angle)])
                places[i] += unit * missing * 0.5
                places[j] -= unit * missing * 0.5
                moved = True
    return moved


def spanning_tree(cost: FloatArray) -> list[tuple[int, int]]:
    """The edges of a minimum spanning tree, each ascending, cheapest growth first (Prim)."""
    n = len(cost)
    inside, edges = {0}, []
    while len(inside) < n:
        _, i, j = min(
            (float(cost[i, j]), i, j) for i in sorted(inside) for j in range(n) if j not in inside
        )
        inside.add(j)
        edges.append((min(i, j), max(i, j)))
    return edges


def sunflower(n: int, radius: float) -> FloatArray:
    """``n`` points spread evenly over a disc of ``radius`` around the origin, (n, 2).

    Up to seven stand in a ring, the first on top.
    """
    k = np.arange(n)
    if 1 < n <= 7:
        around = np.pi / 2 - 2 * np.pi * k / n
        return 0.7 * radius * np.stack([np.cos(around), np.sin(around)], axis=1)
    r = radius * np.sqrt((k + 0.5) / max(n, 1)) * (0.0 if n == 1 else 1.0)
    angle = k * np.pi * (3 - np.sqrt(5))
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)


def overlaps(box: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
    """Whether ``(x0, y0, x1, y1)`` meets any of ``others``."""
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in others
    )
