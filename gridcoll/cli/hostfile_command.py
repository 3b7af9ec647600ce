"""``gridcoll hostfile``: plain hostfiles for MPI launchers and Slurm."""

from __future__ import annotations

from pathlib import Path

import click

from gridcoll.cli.options import takes_grid
from gridcoll.files import write_atomically
from gridcoll.gridfiles import find_gridfile
from gridcoll.model import read_model
from gridcoll.topology.gridfile import read_gridfile
from gridcoll.topology.hostfile import FORMATS, first_hosts, first_of, format_hostfile, format_use


@click.command()
@takes_grid(required=True)
@click.option("--mpi", "kind", required=True, help=f"launcher: {', '.join(FORMATS)}")
@click.option("--ranks", type=int, help="how many ranks; default: every slot")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="write here, not to stdout")
def command(grid: str, kind: str, ranks: int | None, output: Path | None) -> None:
    """Write a hostfile that places ranks on the hosts of GRID, in its rank order."""
    path = find_gridfile(grid)
    if path.suffix == ".toml":
        hosts = first_hosts(read_gridfile(path), ranks)
    else:
        model = read_model(path)
        hosts = first_of(model.grid.name, model.grid.hosts, ranks)
    text = format_hostfile(hosts, kind)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_atomically(output, text)
    use = format_use(kind, str(output or "FILE"), len(hosts))
    click.echo(f"use: {use}", err=True)
