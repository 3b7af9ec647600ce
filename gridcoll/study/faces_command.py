"""``gridcoll study placement-faces``: Figure 1 of paper 004."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from gridcoll.errors import UsageError
from gridcoll.study.faces import PARTITIONERS, Faces, count_faces, cube_mesh
from gridcoll.study.options import (
    JSON,
    PLOT,
    RESULT,
    prepare_plot,
    report,
    table_console,
    whole_numbers,
)
from gridcoll.study.plots import Figure, draw_figure


@click.command()
@click.option(
    "--elements", type=click.IntRange(6), default=588_000, show_default=True,
    help="Size of the mesh.",
)  # fmt: skip
@click.option("--hosts", default="2,4,8,16,32,64,128", show_default=True, help="Parts.")
@click.option(
    "--partitioner", type=click.Choice(list(PARTITIONERS)), default="bisection", show_default=True,
    help="metis needs pymetis.",
)  # fmt: skip
@RESULT
@PLOT
@JSON
def command(
    elements: int,
    hosts: str,
    partitioner: str,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Faces between hosts of a partitioned mesh, beside the paper's β (n / hosts)^(2/3), β = 5.

    The paper: 5 was always above what its partitioner counted. Its mesh was an aircraft's, ours
    is a cube.
    """
    prepare_plot(plot)
    parts = whole_numbers("--hosts", hosts)
    mesh = cube_mesh(elements)
    if min(parts) < 2 or max(parts) > mesh.n_elements:
        raise UsageError(f"--hosts {hosts!r}: must be from 2 to the {mesh.n_elements} elements")
    found = [count_faces(mesh, PARTITIONERS[partitioner](mesh, n)) for n in parts]
    if plot is not None:
        lines = {
            "most of a host": (parts, [float(faces.most) for faces in found]),
            "mean": (parts, [faces.mean for faces in found]),
            "paper's estimate, β = 5 (model)": (parts, [faces.estimate for faces in found]),
        }
        title = f"Paper 004, Figure 1: {mesh.n_elements} elements, {partitioner}"
        draw_figure(Figure(title, "hosts", "faces", lines, log=True), plot)
    title = f"Paper 004, Figure 1: {mesh.n_elements} tetrahedra, {partitioner}"
    report([asdict(faces) for faces in found], output, as_json, lambda: _print(title, found))


def _print(title: str, found: Sequence[Faces]) -> None:
    table = Table(
        "hosts", "most faces", "mean", "β (n / hosts)^(2/3)", "β needed", "paper's β", title=title
    )
    for faces in found:
        table.add_row(
            str(faces.n_parts), str(faces.most), f"{faces.mean:.0f}", f"{faces.estimate:.0f}",
            f"{faces.beta_needed:.2f}", "5",
        )  # fmt: skip
    table_console().print(table)
