/* What calls cost: nanoseconds of each of several collectives, median of many rounds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_ROUNDS = 51 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_memory(void)
{
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        long kb;
        if (sscanf(line, "VmRSS: %ld", &kb) == 1)
            printf("resident_kb %ld\n", kb);
    }
    if (file)
        fclose(file);
}

int main(int argc, char **argv)
{
    static double ns[N_ROUNDS];
    int rank, n_calls = argc > 1 ? atoi(argv[1]) : 10000;
    long data = 1, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int which = 0; which < 3; which++) {
        for (int round = 0; round < N_ROUNDS; round++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double began = MPI_Wtime();
            for (int k = 0; k < n_calls; k++)
                switch (which) {
                case 0: MPI_Bcast(&data, 1, MPI_LONG, 0, MPI_COMM_WORLD); break;
                case 1: MPI_Allreduce(&data, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD); break;
                case 2: MPI_Barrier(MPI_COMM_WORLD); break;
                }
            ns[round] = (MPI_Wtime() - began) / n_calls * 1e9;
        }
        qsort(ns, N_ROUNDS, sizeof *ns, compare);
        if (!rank)
            printf("%s %.1f %.1f\n", (const char *[]){"bcast", "allreduce", "barrier"}[which], ns[0],
                   ns[N_ROUNDS / 2]);
    }
    if (!rank)
        print_memory();
    MPI_Finalize();
    return 0;
}
