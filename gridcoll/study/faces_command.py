"""``gridcoll study placement-faces``: Figure 1 of paper 004.

Faces between the parts of a tetrahedral mesh, beside the paper's estimate.

The mesh is a cube of cells with six tetrahedra each. The parts come from a partitioner. If none is
installed, recursive coordinate bisection halves the longest side again and again. This gives the
compact parts that the estimate assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import asdict
from rich.table import Table

from gridcoll.errors import UsageError
from gridcoll.placement.problem import Update
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

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Mesh(Struct, frozen=True):
    """Tetrahedra: their centres, (n, 3), and pairs of neighbours that share a face, (faces, 2)."""

    centres: Floats
    faces: Ints

    @property
    def n_elements(self) -> int:
        return len(self.centres)


def cube_mesh(n_elements: int) -> Mesh:
    """Return a cube of about ``n_elements`` tetrahedra, one per cell and order of the three axes.

    Raises `UsageError` for fewer than six.
    """
    side = round((n_elements / 6) ** (1 / 3))
    if side < 1:
        raise UsageError(f"elements: must be at least 6, got {n_elements}")
    cells = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
    corners = []
    for order in permutations(range(3)):
        walk = np.zeros((4, 3), dtype=np.int64)
        for step, axis in enumerate(order, start=1):
            walk[step] = walk[step - 1]
            walk[step, axis] = 1
        corners.append(cells[:, None, :] + walk)
    points = np.stack(corners, axis=1).reshape(-1, 4, 3)
    width = side + 1
    vertices = (points[..., 0] * width + points[..., 1]) * width + points[..., 2]
    triples = np.concatenate([np.delete(vertices, k, axis=1) for k in range(4)])
    triples.sort(axis=1)
    owners = np.tile(np.arange(len(vertices)), 4)
    keys = (triples[:, 0] * width**3 + triples[:, 1]) * width**3 + triples[:, 2]
    order_ = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order_][1:] == keys[order_][:-1])
    faces = np.stack([owners[order_][same], owners[order_][same + 1]], axis=1)
    return Mesh(points.mean(axis=1), faces)


def bisect(mesh: Mesh, n_parts: int) -> Ints:
    """Return the part of each element, by halving the longest side again and again.

    Cuts are in proportion to the number of parts on each side.
    """
    part = np.zeros(mesh.n_elements, dtype=np.int64)
    _bisect(mesh.centres, np.arange(mesh.n_elements), n_parts, 0, part)
    return part


def _bisect(centres: Floats, members: Ints, n_parts: int, first: int, part: Ints) -> None:
    if n_parts == 1:
        part[members] = first
        return
    own = centres[members]
    axis = int(np.argmax(own.max(axis=0) - own.min(axis=0)))
    order = members[np.argsort(own[:, axis], kind="stable")]
    left = n_parts // 2
    cut = len(order) * left // n_parts
    _bisect(centres, order[:cut], left, first, part)
    _bisect(centres, order[cut:], n_parts - left, first + left, part)


def metis(mesh: Mesh, n_parts: int) -> Ints:
    """Return the part of each element, by Metis. Raises `UsageError` without pymetis."""
    try:
        import pymetis  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UsageError("partitioner metis: pymetis is not installed; pip install it") from None
    both = np.concatenate([mesh.faces, mesh.faces[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    starts = np.searchsorted(both[:, 0], np.arange(mesh.n_elements + 1))
    _, membership = pymetis.part_graph(n_parts, xadj=starts, adjncy=both[:, 1])
    return np.asarray(membership, dtype=np.int64)


PARTITIONERS: dict[str, Callable[[Mesh, int], Ints]] = {"bisection": bisect, "metis": metis}


class Faces(Struct, frozen=True):
    """Faces of the part that has most, beside the estimate ``β n_local^(2/3)`` of the paper."""

    n_parts: int
    most: int
    mean: float
    estimate: float
    beta_needed: float


def count_faces(mesh: Mesh, part: Ints) -> Faces:
    """Count faces between parts. ``beta_needed`` is the least β that gives an upper bound."""
    across = part[mesh.faces[:, 0]] != part[mesh.faces[:, 1]]
    n_parts = int(part.max()) + 1
    counts = np.bincount(part[mesh.faces[across]].ravel(), minlength=n_parts)
    surface = (mesh.n_elements / n_parts) ** (2 / 3)
    most = int(counts.max())
    return Faces(n_parts, most, float(counts.mean()), Update().beta_host * surface, most / surface)


@click.command()
@click.option(
    "--elements", type=click.IntRange(6), default=588_000, show_default=True,
    help="Size of the mesh.",
)  # fmt: skip
@click.option(
    "--hosts", default="2,4,8,16,32,64,128", show_default=True, help="Numbers of hosts, or parts."
)
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
    """Count faces between hosts of a partitioned mesh, beside the paper's β (n / hosts)^(2/3).

    The paper takes β = 5, which was always above the counts of its partitioner. Its mesh was that
    of an aircraft; ours is a cube.
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
