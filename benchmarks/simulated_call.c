/* One collective call of the MPI below, begun by all ranks at an agreed time; prints the longest.
 *
 *   simulated_call COLLECTIVE BYTES
 *
 * Made with smpicc and run with smpirun: time is SimGrid's. A call of before the agreed time makes
 * what a library makes at its first call.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AGREED_S 1000.0

static void call(const char *name, char *from, char *into, int n)
{
    if (!strcmp(name, "bcast"))
        MPI_Bcast(from, n, MPI_BYTE, 0, MPI_COMM_WORLD);
    else if (!strcmp(name, "allreduce"))
        MPI_Allreduce(from, into, n, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
    else
        MPI_Alltoall(from, n, MPI_BYTE, into, n, MPI_BYTE, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, size;
    double took, longest;
    MPI_Init(&argc, &argv);
    if (argc != 3)
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int n = atoi(argv[2]);
    size_t all = strcmp(argv[1], "alltoall") ? (size_t)n : (size_t)n * size;
    char *from = SMPI_SHARED_MALLOC(all), *into = SMPI_SHARED_MALLOC(all);
    call(argv[1], from, into, 8);
    usleep((useconds_t)(1e6 * (AGREED_S - MPI_Wtime())));
    call(argv[1], from, into, n);
    took = MPI_Wtime() - AGREED_S;
    MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!rank)
        printf("longest %.9f\n", longest);
    SMPI_SHARED_FREE(from);
    SMPI_SHARED_FREE(into);
    MPI_Finalize();
    return 0;
}
