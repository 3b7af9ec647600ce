"""``gridcoll hostfile``: plain hostfiles for MPI launchers and Slurm."""

from __future__ import annotations

from pathlib import Path

import click

from gridcoll.cli.gridfiles import find_gridfile
from gridcoll.cli.options import takes_grid
from gridcoll.files import write_atomically
from gridcoll.topology.gridfile import read_gridfile
from gridcoll.topology.hostfile import FORMATS, first_hosts, format_hostfile, format_use


@click.command()
@takes_grid(required=True)
@click.option("--mpi", "kind", required=True, help=f"whose launcher: {', '.join(FORMATS)}")
@click.option("--ranks", type=int, help="how many ranks; default: every slot")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="write here, not to stdout")
def command(grid: str, kind: str, ranks: int | None, output: Path | None) -> None:
    """Write the hostfile that places ranks on GRID's hosts in the grid file's rank order."""
    spec = read_gridfile(find_gridfile(grid))
    text = format_hostfile(spec, kind, ranks)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_atomically(output, text)
    use = format_use(kind, str(output or "FILE"), len(first_hosts(spec, ranks)))
    click.echo(f"use: {use}", err=True)
