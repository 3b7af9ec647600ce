"""Heat in a square plate: Jacobi iterations on a Cartesian grid of ranks.

Every iteration exchanges halos by Sendrecv and sums the residual by an Allreduce. An ordinary
mpi4py application; the result is compared with the same iterations on one rank.

    mpiexec -n 12 python jacobi.py
    mpiexec -n 12 python -m gridcoll run jacobi.py
"""

import argparse
import time

import numpy as np
from mpi4py import MPI


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Solve the heat equation by Jacobi iterations.")
    parser.add_argument("--points", type=int, default=240, help="along each side of the plate")
    parser.add_argument("--iterations", type=int, default=50)
    return parser.parse_args()


def hot_plate(points: int) -> np.ndarray:
    """Return the plate and its boundary, (points + 2, points + 2): hot above, cold elsewhere."""
    plate = np.zeros((points + 2, points + 2))
    plate[0] = 1.0
    return plate


def improved(field: np.ndarray) -> np.ndarray:
    """Return the inner points of ``field`` after one iteration."""
    return (field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]) / 4


def exchange_halos(cart: MPI.Cartcomm, field: np.ndarray) -> None:
    for direction, sides in enumerate((field, field.T)):
        before, after = cart.Shift(direction, 1)
        for into, out, source, target in ((-1, 1, after, before), (0, -2, before, after)):
            halo = np.array(sides[into])
            cart.Sendrecv(np.ascontiguousarray(sides[out]), target, 0, halo, source, 0)
            sides[into] = halo


def part_of(n: int, n_parts: int, which: int) -> slice:
    return slice(n * which // n_parts, n * (which + 1) // n_parts)


def main() -> None:
    options = parse_arguments()
    world = MPI.COMM_WORLD
    dims = MPI.Compute_dims(world.Get_size(), 2)
    cart = world.Create_cart(dims)
    rows, columns = (
        part_of(options.points, *each)
        for each in zip(dims, cart.Get_coords(cart.Get_rank()), strict=True)
    )
    mine = slice(rows.start, rows.stop + 2), slice(columns.start, columns.stop + 2)
    field = hot_plate(options.points)[mine]
    change = np.zeros(1)
    cart.Barrier()
    start = time.perf_counter()
    for _ in range(options.iterations):
        exchange_halos(cart, field)
        new = improved(field)
        cart.Allreduce(np.sum((new - field[1:-1, 1:-1]) ** 2), change)
        field[1:-1, 1:-1] = new
    taken_s = cart.allreduce(time.perf_counter() - start, MPI.MAX)
    wanted = hot_plate(options.points)
    for _ in range(options.iterations):
        before = wanted[1:-1, 1:-1].copy()
        wanted[1:-1, 1:-1] = improved(wanted)
    residual = np.sum((wanted[1:-1, 1:-1] - before) ** 2)
    inner = field[1:-1, 1:-1] == wanted[mine][1:-1, 1:-1]
    if not inner.all() or not np.isclose(change[0], residual):
        raise SystemExit(f"rank {world.Get_rank()}: wrong temperatures")
    if world.Get_rank() == 0:
        print(f"jacobi, an iteration: {taken_s / options.iterations:.6f} s", flush=True)
    cart.Free()


if __name__ == "__main__":
    main()
