"""``gridcoll show``: the map of a grid."""

from __future__ import annotations

import json

import click

from gridcoll.cli.options import JSON, RenamedOptions, takes_grid


@click.command(cls=RenamedOptions, renamed={"--png": "--plot", "--svg": "--plot"})
@takes_grid(required=False)
@click.option("--plot", multiple=True, metavar="FILE", help="draw into this file, png or svg")
@JSON
def command(grid: str | None, plot: tuple[str, ...], as_json: bool) -> None:
    """Draw GRID: its sites, clusters, hosts and ranks, and the links between clusters.

    GRID is a declared grid (.toml), a measured model (.json), or the name of a grid in hostfiles/.
    For a declared grid, measured links from the cache are shown as well. Without GRID, all links in
    the cache are shown, as by `gridcoll cache show`.
    """
    if grid is None:
        from gridcoll.cli.cache_command import show

        show.callback(as_json)  # type: ignore[misc]
        return
    from gridcoll.cli.models import load_model
    from gridcoll.model.summary import summarise

    model = load_model(grid)
    if plot:
        from gridcoll.draw.figures import write_picture
        from gridcoll.draw.grid_picture import draw_grid

        for path in plot:
            write_picture(draw_grid(model), path)
    if as_json:
        click.echo(json.dumps(summarise(model), indent=2))
        return
    from gridcoll.cli.gridmap import print_map

    print_map(model)
    if model.origin == "declared":
        _print_measured(grid)


def _print_measured(grid: str) -> None:
    """Print which links of a grid file were measured and when, if any were."""
    from gridcoll.cli.cache_command import print_links, read_cache
    from gridcoll.gridfiles import find_gridfile
    from gridcoll.measure.cache.learning import with_declared
    from gridcoll.topology.gridfile import read_gridfile

    path = find_gridfile(grid)
    spec, known = read_gridfile(path), read_cache()
    hosts = [host for hosts in spec.hosts for host in hosts]
    names = {known.cluster_of(host) for host in hosts} - {""}
    if names:
        merged = with_declared(known, spec, path.stat().st_mtime)
        print_links(merged, names | {cluster.name for cluster in spec.clusters})
