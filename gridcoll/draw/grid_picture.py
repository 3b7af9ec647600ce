"""The map of a grid as a picture: clusters by latency, ranks as dots, links with their figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gridcoll.draw.figures import new_figure
from gridcoll.draw.layout import (
    overlaps,
    place_by_site,
    place_clusters,
    spanning_tree,
    sunflower,
)
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.model.summary import rates_bytes_per_s, rounded_rate
from gridcoll.topology.units import format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN = 9.0, 6.0
TITLE_IN = 0.5
INK, FAINT, RANK, COORDINATOR = "#1d2433", "#6b7280", "#3b6fb6", "#e0862d"
SITE, CLUSTER = "#eef2f8", "#ffffff"
MAX_ALL_LINKS = 8
"""Of more clusters only the links of the spanning tree are drawn."""

CHARACTER_IN, LINE_IN = 0.068, 0.15
"""About what a character and a line of small text take."""


def draw_grid(model: GridModel) -> Figure:
    """The picture. Coordinates are inches, so that text and circles can be weighed together.

    Raises `UsageError` without matplotlib.
    """
    sites = list(model.grid.sites.values())
    sizes = np.array([len(cluster) for cluster in model.grid.clusters], dtype=float)
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
    """Many clusters: by site, with the links of the sites' spanning tree only."""
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
    """A titled figure whose axes count inches."""
    figure = new_figure(width, height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    grid, top = model.grid, height - 0.3
    axes.text(0.25, top, grid.name or "grid", color=INK, size=15, weight="bold", va="center")
    said = f"{grid.n_ranks} ranks in {model.n_clusters} clusters, {model.origin}"
    if _common_rate(model):
        said += f"; {_common_rate(model)} between all"
    axes.text(width - 0.25, top, said, color=FAINT, size=10, ha="right", va="center")
    for x, colour, what in ((0.3, COORDINATOR, "coordinator"), (1.4, RANK, "rank")):
        axes.scatter(x, 0.2, s=28, c=colour, linewidths=0, zorder=7)
        axes.text(x + 0.1, 0.2, what, color=FAINT, size=8, va="center", zorder=7)
    return figure, axes


def _common_rate(model: GridModel) -> str:
    """The rate of all links between clusters, if it is one and the same; else empty."""
    between = ~np.eye(model.n_clusters, dtype=bool)
    rates = {rounded_rate(float(rate)) for rate in rates_bytes_per_s(model)[between]}
    return rates.pop() if len(rates) == 1 else ""


def _draw_sites(axes: Any, model: GridModel, places: FloatArray, circles: FloatArray) -> None:
    """A common ground under the clusters of a site."""
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
    """Discs with a dot per rank; returns the boxes that they and their names take."""
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
    axes: Any,
    model: GridModel,
    places: FloatArray,
    taken: list[tuple[float, float, float, float]],
) -> None:
    """A line per pair, figures where there is room; the spanning tree of latencies comes first."""
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
        lines = [_both(model.latency_s, i, j, format_duration)]
        if not common:
            lines.append(_both(rates, i, j, rounded_rate))
        _label(axes, places[i], places[j], lines, colour, taken)


def _label(
    axes: Any,
    one: FloatArray,
    other: FloatArray,
    lines: list[str],
    colour: Any,
    taken: list[tuple[float, float, float, float]],
) -> None:
    """Write ``lines`` on a link where nothing is yet, and enter them in ``taken``; else nowhere."""
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


def _both(values: FloatArray, i: int, j: int, say: Any) -> str:
    """One figure, or both where the directions differ."""
    there, back = say(float(values[i, j])), say(float(values[j, i]))
    return str(there) if there == back else f"{there} / {back}"


def _colours(latencies_s: list[float]) -> list[Any]:
    """Near links green, far ones violet, by the logarithm."""
    from matplotlib import colormaps

    if not latencies_s:
        return []
    logs = np.log(np.maximum(latencies_s, 1e-9))
    scale = (logs - logs.min()) / max(float(np.ptp(logs)), 1e-9)
    return list(colormaps["viridis"](0.75 * (1 - scale) + 0.05))
