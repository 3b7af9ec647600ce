"""Draws the map of a grid: clusters placed by latency, ranks as dots, links with their figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gridcoll.draw.figures import new_figure
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.model.summary import rates_bytes_per_s, rounded_rate
from gridcoll.topology.units import format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_PUSHES = 400
SITE_MARGIN = 0.25


def place_clusters(
    latency_s: FloatArray, radii: FloatArray, width: float, height: float
) -> FloatArray:
    """Return the positions of C circles in a ``width`` x ``height`` box, (C, 2).

    The positions come from classical multidimensional scaling of the square roots of the latencies:
    microseconds in a site stay visible beside milliseconds in a continent. They are fitted to the
    box, then overlapping circles are pushed apart. ``radii`` include the text around the circles.
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
    """Return the positions of C circles, (C, 2), and the centres and radii of sites, (S, 2), (S,).

    ``sites[s]`` are the circles of site ``s``, which lie inside its own circle. Sites are placed by
    the mean latency between them.
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
    """Pack circles around the origin; return positions, (k, 2), and the radius of their disc."""
    k, largest = len(radii), float(radii.max())
    if k == 1:
        return np.zeros((1, 2)), largest
    # `sunflower` puts up to seven in a ring of 0.7 R; more are about 1.9 R / sqrt(k) apart.
    ring = largest / np.sin(np.pi / k) / 0.7 if k <= 7 else 1.25 * largest * np.sqrt(k)
    offsets = sunflower(k, float(ring))
    return offsets, float(np.linalg.norm(offsets, axis=1).max()) + largest


def _scale_down(distance: FloatArray) -> FloatArray:
    """Return the two principal coordinates of a distance matrix, (C, 2), the wider one first."""
    n = len(distance)
    centring = np.eye(n) - 1.0 / n
    values, vectors = np.linalg.eigh(-0.5 * centring @ distance**2 @ centring)
    order = np.argsort(values)[::-1][:2]
    places = np.asarray(vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0)))
    # The sign of an eigenvector is arbitrary: put the first cluster at the top left.
    places[:, 0] *= -1.0 if places[0, 0] > 0 else 1.0
    places[:, 1] *= -1.0 if places[0, 1] < 0 else 1.0
    return places


def _fit(places: FloatArray, radii: FloatArray, width: float, height: float) -> FloatArray:
    """Stretch places to the box, their height by at most 1.7 times as much as their width."""
    margin = radii.max()
    room = np.array([width, height]) - 2 * margin
    extent = np.ptp(places, axis=0)
    factor = room[0] / max(extent[0], 1e-12)
    factors = np.array([factor, min(room[1] / max(extent[1], 1e-12), 1.7 * factor)])
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    return np.asarray((places - middle) * factors + np.array([width, height]) / 2)


def _push_apart(places: FloatArray, radii: FloatArray) -> bool:
    """Move overlapping pairs apart in place; return whether there were any."""
    moved = False
    for i in range(len(radii)):
        for j in range(i):
            apart = places[i] - places[j]
            length = float(np.hypot(*apart))
            missing = radii[i] + radii[j] - length
            if missing > 1e-3:
                # Circles at the same position are moved in a direction that depends on i.
                angle = 0.7 + 2.4 * i
                unit = apart / length if length > 1e-9 else np.array([np.cos(angle), np.sin(angle)])
                places[i] += unit * missing * 0.5
                places[j] -= unit * missing * 0.5
                moved = True
    return moved


def spanning_tree(cost: FloatArray) -> list[tuple[int, int]]:
    """Return the edges of a minimum spanning tree in Prim's order; each edge is ascending."""
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
    """Return ``n`` points spread evenly over a disc of ``radius`` around the origin, (n, 2).

    Up to seven points form a ring, with the first at the top.
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


WIDTH_IN, HEIGHT_IN = 9.0, 6.0
TITLE_IN = 0.5
INK, FAINT, RANK, COORDINATOR = "#1d2433", "#6b7280", "#3b6fb6", "#e0862d"
SITE, CLUSTER = "#eef2f8", "#ffffff"
MAX_ALL_LINKS = 8
"""With more clusters, only the links of the spanning tree are drawn."""

CHARACTER_IN, LINE_IN = 0.068, 0.15
"""Approximate width of a character and height of a line of small text."""


def draw_grid(model: GridModel) -> Figure:
    """Draw the map of ``model``. Coordinates are inches, as sizes of text are.

    Raises `UsageError` without matplotlib.
    """
    sites = list(model.grid.sites.values())
    sizes = np.array(model.grid.ranks_per_cluster, dtype=float)
    if model.n_clusters <= MAX_ALL_LINKS or len(sites) == model.n_clusters:
        shrink = min(1.0, 2.2 / np.sqrt(len(sizes)))
        circles = (0.15 + 0.45 * np.sqrt(sizes / sizes.max())) * shrink
        height = HEIGHT_IN if model.n_clusters > 2 else 0.6 * HEIGHT_IN
        places = place_clusters(model.latency_s, circles + 0.42, WIDTH_IN, height - TITLE_IN)
        figure, axes = _canvas(model, WIDTH_IN, height)
        _draw_sites(axes, model, places, circles)
        taken = _draw_clusters(axes, model, places, circles)
        _draw_links(axes, model, places, taken)
        return figure
    return _draw_by_site(model, sites, 0.12 + 0.25 * np.sqrt(sizes / sizes.max()))


def _draw_by_site(model: GridModel, sites: list[tuple[int, ...]], circles: FloatArray) -> Figure:
    """Draw many clusters by site, with only the links of the sites' spanning tree."""
    room = np.maximum(circles + 0.38, 0.62)
    _, _, grounds = place_by_site(model.latency_s, sites, room, 1.0, 1.0)
    scale = max(1.0, float(np.sqrt(3.0 * (2 * grounds) ** 2 @ np.ones(len(grounds)) / 50)))
    width, height = WIDTH_IN * scale, HEIGHT_IN * scale
    places, centres, grounds = place_by_site(model.latency_s, sites, room, width, height - TITLE_IN)
    figure, axes = _canvas(model, width, height)
    for name, centre, ground in zip(model.grid.sites, centres, grounds, strict=True):
        _disc(axes, centre, ground, SITE, SITE, 1)
        axes.text(centre[0], centre[1] + ground + 0.02, name, color="#7d8ea8", size=11,
                  style="italic", ha="center", va="center", zorder=6)  # fmt: skip
    taken = _draw_clusters(axes, model, places, circles)
    between = np.array([[model.latency_s[np.ix_(a, b)].mean() for b in sites] for a in sites])
    edges = spanning_tree(between)
    for (i, j), colour in zip(edges, _colours([between[i, j] for i, j in edges]), strict=True):
        axes.plot(*centres[[i, j]].T, color=colour, linewidth=2, zorder=0.5)
        _label(axes, centres[i], centres[j], [format_duration(between[i, j])], colour, taken)
    return figure


def _canvas(model: GridModel, width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure with a title, and its axes in inches."""
    figure = new_figure(width, height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    grid, top = model.grid, height - 0.3
    axes.text(0.25, top, grid.name or "grid", color=INK, size=15, weight="bold", va="center")
    summary = f"{grid.n_ranks} ranks in {model.n_clusters} clusters, {model.origin}"
    if _common_rate(model):
        summary += f"; {_common_rate(model)} between all"
    axes.text(width - 0.25, top, summary, color=FAINT, size=10, ha="right", va="center")
    for x, colour, label in ((0.3, COORDINATOR, "coordinator"), (1.4, RANK, "rank")):
        axes.scatter(x, 0.2, s=28, c=colour, linewidths=0, zorder=7)
        axes.text(x + 0.1, 0.2, label, color=FAINT, size=8, va="center", zorder=7)
    return figure, axes


def _common_rate(model: GridModel) -> str:
    """Return the rate of all links between clusters if they have the same; else ``""``."""
    between = ~np.eye(model.n_clusters, dtype=bool)
    rates = {rounded_rate(float(rate)) for rate in rates_bytes_per_s(model)[between]}
    return rates.pop() if len(rates) == 1 else ""


def _draw_sites(axes: Any, model: GridModel, places: FloatArray, circles: FloatArray) -> None:
    """Draw a common background for the clusters of each site."""
    for site, indices in model.grid.sites.items():
        if len(indices) < 2:
            continue
        for k, i in enumerate(indices):
            _disc(axes, places[i], circles[i] + 0.5, SITE, SITE, 0)
            for j in indices[:k]:
                axes.plot(
                    *places[[i, j]].T, color=SITE, zorder=0, solid_capstyle="round",
                    linewidth=72 * 1.2 * (min(circles[i], circles[j]) + 0.5),
                )  # fmt: skip
        top = max(indices, key=lambda i: places[i][1])
        axes.text(places[top][0], places[top][1] + circles[top] + 0.27, site, color="#93a3bb",
                  size=10, style="italic", ha="center", va="bottom", zorder=6)  # fmt: skip


def _disc(axes: Any, place: FloatArray, radius: float, face: str, edge: str, order: float) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(
        Circle((place[0], place[1]), radius, facecolor=face, edgecolor=edge, linewidth=1.4,
               zorder=order)
    )  # fmt: skip


def _draw_clusters(
    axes: Any, model: GridModel, places: FloatArray, circles: FloatArray
) -> list[tuple[float, float, float, float]]:
    """Draw discs with a dot per rank; return the boxes that they and their text occupy."""
    taken = []
    rates = rates_bytes_per_s(model)
    shared = {i for indices in model.grid.sites.values() if len(indices) > 1 for i in indices}
    for i, cluster in enumerate(model.grid.clusters):
        x, y = places[i]
        radius = circles[i]
        face = SITE if i in shared else "white"
        ground = {"facecolor": face, "edgecolor": "none", "pad": 0.5, "alpha": 0.85}
        _disc(axes, places[i], radius, CLUSTER, INK, 4)
        dots = places[i] + sunflower(len(cluster), radius * 0.8)
        area = min(70.0, 0.35 * (72 * radius) ** 2 * 0.64 / len(cluster))
        colours = [COORDINATOR] + [RANK] * (len(cluster) - 1)
        axes.scatter(*dots.T, s=area, c=colours, zorder=5, linewidths=0)
        axes.text(x, y + radius + 0.04, cluster.name, color=INK, size=10, weight="bold",
                  ha="center", va="bottom", zorder=6, bbox=ground)  # fmt: skip
        below = f"{len(cluster)} rank" + "s" * (len(cluster) > 1)
        link = model.links[i][i]
        if link is not None:
            below += f"\n{format_duration(link.latency_s)}, {rounded_rate(float(rates[i, i]))}"
        axes.text(x, y - radius - 0.04, below, color=FAINT, size=8, ha="center", va="top",
                  zorder=6, linespacing=1.25, bbox=ground)  # fmt: skip
        half = max(radius, CHARACTER_IN * max(len(cluster.name), 17) / 2)
        taken.append((x - half, y - radius - 0.36, x + half, y + radius + 0.24))
    return taken


def _draw_links(
    axes: Any, model: GridModel, places: FloatArray, taken: list[tuple[float, float, float, float]]
) -> None:
    """Draw a line per pair, with figures if there is room, from the latency spanning tree on."""
    n, common = model.n_clusters, _common_rate(model)
    latency_s = np.maximum(model.latency_s, model.latency_s.T)
    rates = rates_bytes_per_s(model)
    pairs = spanning_tree(latency_s)
    by_length = sorted((float(latency_s[i, j]), i, j) for i in range(n) for j in range(i + 1, n))
    if n <= MAX_ALL_LINKS:
        pairs += [(i, j) for _, i, j in by_length if (i, j) not in pairs]
    colours = _colours([float(latency_s[i, j]) for i, j in pairs])
    for rank, ((i, j), colour) in enumerate(zip(pairs, colours, strict=True)):
        near = rank < n - 1
        width = 1.0 + 0.6 * np.log10(max(float(rates[i, j]) / rates.min(), 1.0))
        axes.plot(
            *places[[i, j]].T, color=colour, linewidth=width * (1.6 if near else 1.0),
            alpha=0.95 if near else 0.6, zorder=2,
        )  # fmt: skip
        lines = [_both_directions(model.latency_s, i, j, format_duration)]
        if not common:
            lines.append(_both_directions(rates, i, j, rounded_rate))
        _label(axes, places[i], places[j], lines, colour, taken)


def _label(
    axes: Any,
    one: FloatArray,
    other: FloatArray,
    lines: list[str],
    colour: Any,
    taken: list[tuple[float, float, float, float]],
) -> None:
    """Write ``lines`` at a free place on a link, if there is any, and add it to ``taken``."""
    half_w = CHARACTER_IN * max(map(len, lines)) / 2 + 0.03
    half_h = LINE_IN * len(lines) / 2
    for part in (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73):
        x, y = one + part * (other - one)
        box = (x - half_w, y - half_h, x + half_w, y + half_h)
        if not overlaps(box, taken):
            taken.append(box)
            axes.text(
                x, y, "\n".join(lines), color=INK, size=8, ha="center", va="center", zorder=3,
                bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": colour},
            )  # fmt: skip
            return


def _both_directions(values: FloatArray, i: int, j: int, format_value: Any) -> str:
    """Return the value as text, or both values if the directions differ."""
    there, back = format_value(float(values[i, j])), format_value(float(values[j, i]))
    return str(there) if there == back else f"{there} / {back}"


def _colours(latencies_s: list[float]) -> list[Any]:
    """Return a colour per link by the logarithm of its latency: green if near, violet if far."""
    from matplotlib import colormaps

    if not latencies_s:
        return []
    logs = np.log(np.maximum(latencies_s, 1e-9))
    scale = (logs - logs.min()) / max(float(np.ptp(logs)), 1e-9)
    return list(colormaps["viridis"](0.75 * (1 - scale) + 0.05))
