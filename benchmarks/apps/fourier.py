"""A three-dimensional Fourier transform, forward and back, by mpi4py-fft on pencils.

mpi4py-fft calls Alltoallw on parts of a Cartesian communicator. The result is compared with NumPy's
transform on one rank. Without mpi4py-fft (`make fft`), it prints a message and no time.

    mpiexec -n 12 python fourier.py
    mpiexec -n 12 python -m gridcoll run fourier.py
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

try:
    from mpi4py_fft import PFFT, newDistArray
except ImportError:
    PFFT = None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Transform a cube of numbers forward and back.")
    parser.add_argument("--points", type=int, default=96, help="along each side of the cube")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    if comm.allreduce(PFFT is None, MPI.LOR):
        if rank == 0:
            print(
                "mpi4py-fft is not installed: LEFT OUT (make fft; needs libfftw3-dev)", flush=True
            )
        return
    shape = (options.points,) * 3
    transform = PFFT(comm, shape, dtype=float)
    cube = np.random.default_rng(options.points).standard_normal(shape)
    given = newDistArray(transform, False)
    given[:] = cube[given.local_slice()]
    spectrum, back = newDistArray(transform, True), newDistArray(transform, False)
    taken = []
    for _ in range(options.repeats + 1):  # the first is not counted
        back[:] = 0
        comm.Barrier()
        start = time.perf_counter()
        transform.forward(given, spectrum)
        transform.backward(spectrum, back)
        taken.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    wanted = np.fft.rfftn(cube)[spectrum.local_slice()] / cube.size
    if not np.allclose(spectrum, wanted) or not np.allclose(back, given):
        raise SystemExit(f"rank {rank}: wrong transform")
    if rank == 0:
        print(f"mpi4py-fft, a cube forward and back: {np.median(taken[1:]):.6f} s", flush=True)
    transform.destroy()


if __name__ == "__main__":
    main()
