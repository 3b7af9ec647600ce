"""``gridcoll show``: the map of a grid."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("grid")
@click.option("--png", type=click.Path(dir_okay=False), help="draw it into this file")
@click.option("--svg", type=click.Path(dir_okay=False), help="draw it into this file")
@click.option("--json", "as_json", is_flag=True, help="for scripts")
def command(grid: str, png: str | None, svg: str | None, as_json: bool) -> None:
    """Draw GRID: its sites, clusters, hosts and ranks, and what lies between the clusters.

    GRID is a declared grid (.toml), a measured model (.json), or the name of a grid in hostfiles/.
    """
    from gridcoll.cli.models import load_model
    from gridcoll.model.summary import summarise

    model = load_model(grid)
    for path, kind in ((png, "png"), (svg, "svg")):
        if path:
            from gridcoll.draw.figures import write_picture
            from gridcoll.draw.grid_picture import draw_grid

            write_picture(draw_grid(model), path, kind)
    if as_json:
        click.echo(json.dumps(summarise(model), indent=2))
        return
    from gridcoll.cli.gridmap import print_map

    print_map(model)
