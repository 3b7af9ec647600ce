"""The map of a grid on a terminal: clusters, hosts and ranks, and the links between clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from gridcoll.model import GridModel
from gridcoll.model.summary import format_sources, is_symmetric, rates_bytes_per_s, rounded_rate
from gridcoll.topology.grid import Cluster
from gridcoll.topology.units import format_duration

WIDTH_OF_FILES = 200
MAX_HOSTS = 8
"""If a cluster has more hosts, only its first ones and its last one are shown."""


def stdout_console() -> Console:
    """Return a console on standard output. A file or a pipe gets a fixed width."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def print_map(model: GridModel) -> None:
    """Print the map of ``model`` to standard output."""
    stdout_console().print(draw_map(model))


def draw_map(model: GridModel) -> RenderableType:
    """Return the tree of ``model`` and, for two clusters or more, the matrix of its links."""
    parts: list[RenderableType] = [_tree(model)]
    if model.n_clusters > 1:
        parts += [Text(), _matrix(model), Text(f"links: {format_sources(model)}", "dim")]
    return Group(*parts)


def count(n: int, thing: str) -> str:
    """Return ``n`` and the noun ``thing``, in the plural if ``n`` is not 1."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text, with consecutive ranks as ranges: ``0-3, 8``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _tree(model: GridModel) -> Tree:
    grid = model.grid
    n_hosts = len(set(grid.host_of))
    title = Text.assemble(
        (grid.name or "grid", "bold"),
        f"  {count(grid.n_ranks, 'rank')} on {count(n_hosts, 'host')}, "
        f"{count(len(grid.clusters), 'cluster')}, {model.origin}",
    )
    tree = Tree(title)
    for site, indices in grid.sites.items():
        clusters = [grid.clusters[i] for i in indices]
        alone = len(clusters) == 1 and clusters[0].site in ("", clusters[0].name)
        branch = tree if alone else tree.add(Text.assemble("site ", (site, "bold")))
        for i, cluster in zip(indices, clusters, strict=True):
            _add_cluster(branch, model, i, cluster)
    return tree


def _add_cluster(branch: Tree, model: GridModel, index: int, cluster: Cluster) -> None:
    line = Text.assemble((cluster.name, "bold cyan"), f"  {count(len(cluster), 'rank')}")
    link = model.links[index][index]
    if link is not None:
        rate = rounded_rate(float(rates_bytes_per_s(model)[index, index]))
        line.append(f"  {format_duration(link.latency_s)}, {rate} inside", "dim")
    if np.isfinite(model.uplinks[index]):
        line.append(f"  uplink {rounded_rate(float(model.uplinks[index]))}", "dim")
    here = branch.add(line)
    nodes = cluster.nodes
    shown = nodes if len(nodes) <= MAX_HOSTS else (*nodes[:3], (), *nodes[-1:])
    for node in shown:
        if not node:
            here.add(Text(f"… {len(nodes) - 4} more hosts", "dim"))
            continue
        ranks = [process.rank for process in node]
        text = Text(f"{node[0].host}  rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}")
        if cluster.coordinator in ranks:
            text.append(
                "  coordinator" + (f" {cluster.coordinator}" if len(ranks) > 1 else ""), "yellow"
            )
        here.add(text)


def _matrix(model: GridModel) -> Table:
    """Return the table of latencies, and of rates unless all are equal.

    Only one triangle is filled if both directions of all links are equal.
    """
    names = [cluster.name for cluster in model.grid.clusters]
    symmetric = is_symmetric(model)
    between = ~np.eye(len(names), dtype=bool)
    rates = np.vectorize(rounded_rate)(rates_bytes_per_s(model))
    common = set(rates[between]) if len(set(rates[between])) == 1 else set()
    title = "latency and rate between clusters"
    if common:
        title = f"latency between clusters, all at {min(common)}"
    table = Table(title=title, title_justify="left", title_style="", show_lines=not common)
    table.add_column("" if symmetric else "from \\ to", style="bold cyan", no_wrap=True)
    columns = range(1, len(names)) if symmetric else range(len(names))
    for j in columns:
        table.add_column(names[j], justify="right", header_style="bold cyan", overflow="fold")

    def cell(i: int, j: int) -> str:
        if i == j or (symmetric and j < i):
            return ""
        lines = [format_duration(model.latency_s[i, j])]
        if not common:
            lines.append(rates[i, j])
        return "\n".join(lines).replace(" ", "\N{NO-BREAK SPACE}")

    for i in range(len(names) - 1 if symmetric else len(names)):
        table.add_row(names[i], *(cell(i, j) for j in columns))
    return table
