/* Calls again and again, with every result checked: long enough that decisions change.
 *
 *     learned CALLS [threads | jumps | COUNT [PERIOD]]
 *
 * Jumps: rank 1 leaves broadcasts that are too long for it, by a jump out of its handler of errors.
 * COUNT: sums of so many integers only. PERIOD: each begins at a multiple of so many milliseconds,
 * on ranks that share a clock: none is late.
 */
#include <mpi.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_THREADS = 3, N = 1000 };

static int rank, n, n_calls, bad;

static void must(int what, int call, int line)
{
    if (!what && !__atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED))
        fprintf(stderr, "rank %d, call %d: line %d\n", rank, call, line);
}
#define CHECK(what) must(what, call, __LINE__)

/* The same bits on all ranks, of sums that depend on the order. */
static void add(MPI_Comm comm, int call, double *mine, double *sum)
{
    double least[N], most[N];
    MPI_Allreduce(mine, sum, N, MPI_DOUBLE, MPI_SUM, comm);
    if (call % 16)
        return;
    PMPI_Allreduce(sum, least, N, MPI_DOUBLE, MPI_MIN, comm);
    PMPI_Allreduce(sum, most, N, MPI_DOUBLE, MPI_MAX, comm);
    CHECK(!memcmp(least, most, sizeof least));
}

static void *work(void *given)
{
    MPI_Comm comm = *(MPI_Comm *)given;
    double mine[N], sum[N];
    int *data = malloc(4 * N * sizeof *data), *got = malloc(2 * n * sizeof *got);
    int *blocks = malloc(2 * n * sizeof *blocks), ok = 1;
    MPI_Datatype gaps;
    MPI_Type_vector(N, 1, 2, MPI_INT, &gaps);
    MPI_Type_commit(&gaps);
    for (int k = 0; k < N; k++)
        mine[k] = 1.0 / (1 + (rank * 7919 + k * 104729) % 9973);
    for (int call = 0; call < n_calls; call++) {
        int root = call % n, me = rank == root;
        add(comm, call, mine, sum);
        for (int k = 0; k < N; k++)
            data[2 * k] = data[k * 2 + 1] = me ? call + k : -1;
        /* The root has it in a row, the others between gaps: they make other calls of one kind. */
        if (me)
            for (int k = 0; k < N; k++)
                data[k] = call + k;
        MPI_Bcast(data, me ? N : 1, me ? MPI_INT : gaps, root, comm);
        ok = 1;
        for (int k = 0; k < N; k++)
            ok &= data[me ? k : 2 * k] == call + k && (me || data[2 * k + 1] == -1);
        CHECK(ok);
        for (int k = 0; k < 2 * n; k++)
            blocks[k] = call + rank + k;
        MPI_Alltoall(blocks, 2, MPI_INT, got, 2, MPI_INT, comm);
        ok = 1;
        for (int k = 0; k < n; k++)
            ok &= got[2 * k] == call + k + 2 * rank;
        CHECK(ok);
        if (call % 5 == 0)
            MPI_Barrier(comm);
    }
    MPI_Type_free(&gaps);
    free(data), free(got), free(blocks);
    return NULL;
}

static void wait_for_period(long period_ms)
{
    struct timespec now, left = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    long period_ns = period_ms * 1000000;
    left.tv_nsec = period_ns - (now.tv_sec * 1000000000l + now.tv_nsec) % period_ns;
    nanosleep(&left, NULL);
}

static void sums(MPI_Comm comm, int count, int period_ms)
{
    long *mine = malloc(count * sizeof *mine), *sum = malloc(count * sizeof *sum);
    for (int call = 0; call < n_calls; call++) {
        for (int k = 0; k < count; k++)
            mine[k] = call + rank + k, sum[k] = -1;
        if (period_ms)
            wait_for_period(period_ms);
        MPI_Allreduce(mine, sum, count, MPI_LONG, MPI_SUM, comm);
        int ok = 1;
        for (int k = 0; k < count; k++)
            ok &= sum[k] == (long)n * (call + k) + n * (n - 1) / 2;
        CHECK(ok);
    }
    free(mine), free(sum);
}

static jmp_buf before;

static void jumping(MPI_Comm *comm, int *code, ...)
{
    (void)comm, (void)code;
    longjmp(before, 1);
}

static void jumps(void)
{
    MPI_Errhandler own;
    char data[64];
    static int call, n_back;
    MPI_Comm_create_errhandler(jumping, &own);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, own);
    for (call = 0; call < n_calls; call++) {
        int mine = call + rank, sum = -1;
        if (!setjmp(before))
            MPI_Bcast(data, rank == 1 ? 36 : 40, MPI_CHAR, 0, MPI_COMM_WORLD);
        else
            n_back++;
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == n * call + n * (n - 1) / 2);
    }
    must(rank != 1 || n_back == n_calls, n_back, __LINE__);
}

int main(int argc, char **argv)
{
    int provided, threads = argc > 2 && !strcmp(argv[2], "threads");
    MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    if (threads && provided < MPI_THREAD_MULTIPLE)
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    n_calls = argc > 1 ? atoi(argv[1]) : 100;
    if (threads) {
        pthread_t running[N_THREADS];
        MPI_Comm own[N_THREADS];
        for (int k = 0; k < N_THREADS; k++)
            MPI_Comm_dup(MPI_COMM_WORLD, &own[k]);
        for (int k = 0; k < N_THREADS; k++)
            pthread_create(&running[k], NULL, work, &own[k]);
        for (int k = 0; k < N_THREADS; k++)
            pthread_join(running[k], NULL);
        for (int k = 0; k < N_THREADS; k++)
            MPI_Comm_free(&own[k]);
    } else if (argc > 2 && !strcmp(argv[2], "jumps"))
        jumps();
    else if (argc > 2)
        sums(MPI_COMM_WORLD, atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 0);
    else {
        MPI_Comm world = MPI_COMM_WORLD;
        work(&world);
    }
    PMPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (!rank)
        puts(bad ? "wrong" : "right");
    MPI_Finalize();
    return bad != 0;
}
