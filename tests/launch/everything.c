/* Every blocking collective, checked against what each rank can compute by itself. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, n, bad;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            if (!bad) \
                fprintf(stderr, "rank %d line %d: %s\n", rank, __LINE__, #what); \
            bad++; \
        } \
    } while (0)

static long value(int from, int at) { return 1000003L * from + 7 * at + 1; }

static void first_of_both(void *in, void *inout, int *len, MPI_Datatype *type)
{ /* associative, does not commute: pairs (a, b) as affine maps */
    long *x = in, *y = inout;
    (void)type;
    for (int k = 0; k < *len; k += 1) {
        long a = x[2 * k], b = x[2 * k + 1], c = y[2 * k], d = y[2 * k + 1];
        y[2 * k] = a * c % 1009, y[2 * k + 1] = (a * d + b) % 1009;
    }
}

static void sum(void *in, void *inout, int *len, MPI_Datatype *type)
{
    (void)type;
    for (int k = 0; k < *len; k++)
        ((long *)inout)[k] += ((long *)in)[k];
}

static void all_of(MPI_Comm comm, int m)
{
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &n);
    long *a = malloc(sizeof(long) * (n * m + 1)), *b = malloc(sizeof(long) * (n * m + 1));
    int *counts = malloc(sizeof(int) * n), *places = malloc(sizeof(int) * n);
    long whole = 0;
    for (int root = 0; root < n; root++) {
        for (int k = 0; k < m; k++)
            a[k] = rank == root ? value(root, k) : -1;
        MPI_Bcast(a, m, MPI_LONG, root, comm);
        for (int k = 0; k < m; k++)
            CHECK(a[k] == value(root, k));
        for (int way = 0; way < 2; way++) {
            for (int k = 0; k < m; k++)
                a[k] = value(rank, k), b[k] = way ? value(rank, k) : -1;
            MPI_Reduce(way && rank == root ? MPI_IN_PLACE : a, rank == root ? b : NULL, m, MPI_LONG,
                       MPI_SUM, root, comm);
            for (int k = 0; k < m && rank == root; k++) {
                whole = 0;
                for (int r = 0; r < n; r++)
                    whole += value(r, k);
                CHECK(b[k] == whole);
            }
            for (int k = 0; k < n * m; k++)
                b[k] = -1;
            for (int k = 0; k < m; k++)
                b[rank * m + k] = a[k] = value(rank, k);
            MPI_Gather(way && rank == root ? MPI_IN_PLACE : a, m, MPI_LONG, rank == root ? b : NULL,
                       m, MPI_LONG, root, comm);
            for (int r = 0; r < n && rank == root; r++)
                for (int k = 0; k < m; k++)
                    CHECK(b[r * m + k] == value(r, k));
            for (int r = 0; r < n; r++)
                for (int k = 0; k < m; k++)
                    b[r * m + k] = value(r, k);
            for (int k = 0; k < m; k++)
                a[k] = -1;
            MPI_Scatter(rank == root ? b : NULL, m, MPI_LONG,
                        way && rank == root ? MPI_IN_PLACE : a, m, MPI_LONG, root, comm);
            for (int k = 0; k < m && !(way && rank == root); k++)
                CHECK(a[k] == value(rank, k));
        }
        for (int r = 0, at = 0; r < n; r++)
            counts[r] = m ? (r * 3 + 1) % m : 0, places[r] = at, at += counts[r];
        for (int k = 0; k < m; k++)
            a[k] = value(rank, k);
        MPI_Gatherv(a, counts[rank], MPI_LONG, b, counts, places, MPI_LONG, root, comm);
        for (int r = 0; r < n && rank == root; r++)
            for (int k = 0; k < counts[r]; k++)
                CHECK(b[places[r] + k] == value(r, k));
        for (int r = 0; r < n; r++)
            for (int k = 0; k < counts[r]; k++)
                b[places[r] + k] = value(r, k);
        MPI_Scatterv(b, counts, places, MPI_LONG, a, counts[rank], MPI_LONG, root, comm);
        for (int k = 0; k < counts[rank]; k++)
            CHECK(a[k] == value(rank, k));
    }
    for (int way = 0; way < 2; way++) {
        for (int k = 0; k < m; k++)
            a[k] = b[k] = value(rank, k);
        MPI_Allreduce(way ? MPI_IN_PLACE : a, b, m, MPI_LONG, MPI_MAX, comm);
        for (int k = 0; k < m; k++)
            CHECK(b[k] == value(n - 1, k));
        for (int k = 0; k < n * m; k++)
            b[k] = -1;
        for (int k = 0; k < m; k++)
            b[rank * m + k] = a[k] = value(rank, k);
        MPI_Allgather(way ? MPI_IN_PLACE : a, m, MPI_LONG, b, m, MPI_LONG, comm);
        for (int r = 0; r < n; r++)
            for (int k = 0; k < m; k++)
                CHECK(b[r * m + k] == value(r, k));
        for (int k = 0; k < n * m; k++)
            b[k] = -1;
        for (int k = 0; k < counts[rank]; k++)
            b[places[rank] + k] = a[k] = value(rank, k);
        MPI_Allgatherv(way ? MPI_IN_PLACE : a, counts[rank], MPI_LONG, b, counts, places, MPI_LONG,
                       comm);
        for (int r = 0; r < n; r++)
            for (int k = 0; k < counts[r]; k++)
                CHECK(b[places[r] + k] == value(r, k));
        for (int r = 0; r < n; r++)
            for (int k = 0; k < m; k++)
                a[r * m + k] = b[r * m + k] = value(rank * 100 + r, k);
        MPI_Alltoall(way ? MPI_IN_PLACE : a, m, MPI_LONG, b, m, MPI_LONG, comm);
        for (int r = 0; r < n; r++)
            for (int k = 0; k < m; k++)
                CHECK(b[r * m + k] == value(r * 100 + rank, k));
        for (int r = 0; r < n; r++)
            for (int k = 0; k < m; k++)
                a[r * m + k] = b[r * m + k] = value(rank, r * m + k);
        MPI_Reduce_scatter_block(way ? MPI_IN_PLACE : a, b, m, MPI_LONG, MPI_SUM, comm);
        for (int k = 0; k < m; k++) {
            whole = 0;
            for (int r = 0; r < n; r++)
                whole += value(r, rank * m + k);
            CHECK(b[k] == whole);
        }
        for (int k = 0; k < n * m; k++)
            a[k] = b[k] = value(rank, k);
        MPI_Reduce_scatter(way ? MPI_IN_PLACE : a, b, counts, MPI_LONG, MPI_SUM, comm);
        for (int k = 0; k < counts[rank]; k++) {
            whole = 0;
            for (int r = 0; r < n; r++)
                whole += value(r, places[rank] + k);
            CHECK(b[k] == whole);
        }
    }
    int *to = malloc(sizeof(int) * n), *from = malloc(sizeof(int) * n);
    int *to_at = malloc(sizeof(int) * n), *from_at = malloc(sizeof(int) * n);
    MPI_Datatype *types = malloc(sizeof(MPI_Datatype) * n);
    for (int r = 0; r < n; r++) {
        to[r] = m ? (rank + 2 * r) % m : 0, from[r] = m ? (r + 2 * rank) % m : 0;
        to_at[r] = from_at[r] = r * m, types[r] = MPI_LONG;
        for (int k = 0; k < m; k++)
            a[r * m + k] = value(rank * 100 + r, k), b[r * m + k] = -1;
    }
    MPI_Alltoallv(a, to, to_at, MPI_LONG, b, from, from_at, MPI_LONG, comm);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < from[r]; k++)
            CHECK(b[r * m + k] == value(r * 100 + rank, k));
    for (int r = 0; r < n; r++) {
        to_at[r] *= sizeof(long), from_at[r] *= sizeof(long);
        for (int k = 0; k < m; k++)
            b[r * m + k] = -1;
    }
    MPI_Alltoallw(a, to, to_at, types, b, from, from_at, types, comm);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < from[r]; k++)
            CHECK(b[r * m + k] == value(r * 100 + rank, k));
    MPI_Barrier(comm);
    /* Operations of the application's own, on types of its own. */
    MPI_Op ours, maps;
    MPI_Datatype pair, stride, resized;
    MPI_Op_create(sum, 1, &ours);
    MPI_Op_create(first_of_both, 0, &maps);
    MPI_Type_contiguous(2, MPI_LONG, &pair);
    MPI_Type_commit(&pair);
    for (int k = 0; k < m; k++)
        a[k] = value(rank, k);
    MPI_Allreduce(a, b, m, MPI_LONG, ours, comm);
    for (int k = 0; k < m; k++) {
        whole = 0;
        for (int r = 0; r < n; r++)
            whole += value(r, k);
        CHECK(b[k] == whole);
    }
    for (int k = 0; k < m / 2; k++)
        a[2 * k] = rank + k + 2, a[2 * k + 1] = rank + 1;
    MPI_Allreduce(a, b, m / 2, pair, maps, comm);
    for (int k = 0; k < m / 2; k++) {
        long x = k + 2, y = 1;
        for (int r = 1; r < n; r++)
            y = (x * (r + 1) + y) % 1009, x = x * (r + k + 2) % 1009;
        CHECK(n == 1 || (b[2 * k] == x && b[2 * k + 1] == y));
    }
    /* Every second element, sent by a type and received as a row, and the other way round. */
    MPI_Type_vector(m / 2, 1, 2, MPI_LONG, &stride);
    MPI_Type_create_resized(stride, 0, (MPI_Aint)(sizeof(long) * m), &resized);
    MPI_Type_commit(&resized);
    for (int root = 0; root < n && m > 1; root++) /* MPICH takes one empty item for a message */
        for (int way = 0; way < 2; way++) {
            for (int k = 0; k < m; k++)
                a[k] = rank == root ? value(root, k) : -1;
            if ((rank == root) != way)
                MPI_Bcast(a, 1, resized, root, comm);
            else
                MPI_Bcast(a, m / 2, MPI_LONG, root, comm);
            for (int k = 0; k < m / 2 && rank != root; k++) {
                CHECK(a[way ? 2 * k : k] == value(root, way ? k : 2 * k));
                CHECK(!way || a[2 * k + 1] == -1);
            }
        }
    for (int k = 0; k < m; k++)
        a[k] = value(rank, k);
    if (m > 1)
        MPI_Allgather(a, 1, resized, b, m / 2, MPI_LONG, comm);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < m / 2; k++)
            CHECK(b[r * (m / 2) + k] == value(r, 2 * k));
    for (int k = 0; k < m; k++)
        a[k] = value(rank, k);
    struct { double x; int at, between; } near, nearest; /* a pair with a gap, which is not sent */
    near.x = (rank * 7 + 3) % n, near.at = rank, near.between = rank, nearest.between = -rank;
    MPI_Allreduce(&near, &nearest, 1, MPI_DOUBLE_INT, MPI_MINLOC, comm);
    CHECK((nearest.at * 7 + 3) % n == nearest.x && nearest.between == -rank);
    MPI_Type_free(&pair);
    MPI_Type_free(&stride);
    MPI_Type_free(&resized);
    MPI_Op_free(&ours);
    MPI_Op_free(&maps);
    free(a), free(b), free(counts), free(places), free(to), free(from), free(to_at), free(from_at);
    free(types);
}

static void absolute_addresses(MPI_Comm comm)
{
    MPI_Comm_rank(comm, &rank);
    int one = rank ? -1 : 1, two = rank ? -1 : 2, lengths[] = {1, 1};
    MPI_Aint places[2];
    MPI_Datatype both;
    MPI_Get_address(&one, &places[0]);
    MPI_Get_address(&two, &places[1]);
    MPI_Type_create_hindexed(2, lengths, places, MPI_INT, &both);
    MPI_Type_commit(&both);
    MPI_Bcast(MPI_BOTTOM, 1, both, 0, comm);
    CHECK(one == 1 && two == 2);
    MPI_Type_free(&both);
}

static void uncommitted(MPI_Comm comm)
{
    MPI_Datatype stride;
    int values[4] = {0}, right, kind, error;
    MPI_Type_vector(2, 1, 2, MPI_INT, &stride);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    error = MPI_Bcast(values, 1, stride, 0, comm);
    right = error && !MPI_Error_class(error, &kind) && kind == MPI_ERR_TYPE;
    CHECK(right);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
    MPI_Type_free(&stride);
}

#ifdef LARGE
static void large_counts(MPI_Comm comm)
{
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &n);
    long a[64], b[64];
    MPI_Count counts[64];
    MPI_Aint places[64];
    for (int k = 0; k < 10; k++)
        a[k] = rank ? -1 : k;
    MPI_Bcast_c(a, 10, MPI_LONG, 0, comm);
    for (int k = 0; k < 10; k++)
        CHECK(a[k] == k);
    MPI_Allreduce_c(a, b, 10, MPI_LONG, MPI_SUM, comm);
    for (int k = 0; k < 10; k++)
        CHECK(b[k] == n * k);
    for (int r = 0; r < n; r++)
        counts[r] = 1 + r % 2, places[r] = 2 * r;
    a[0] = a[1] = rank;
    MPI_Allgatherv_c(a, counts[rank], MPI_LONG, b, counts, places, MPI_LONG, comm);
    for (int r = 0; r < n; r++)
        CHECK(b[2 * r] == r);
}
#endif

int main(int argc, char **argv)
{
    int world_rank, key, m[] = {0, 1, 5, 1000, 20000};
    MPI_Comm parts, reversed, copy, row;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &key);
    for (int again = 0; again < 2; again++)
        for (unsigned k = 0; k < sizeof m / sizeof *m; k++)
            all_of(MPI_COMM_WORLD, m[k]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &reversed);
    all_of(reversed, 100);
    MPI_Comm_dup(reversed, &copy);
    MPI_Comm_free(&reversed);
    all_of(copy, 30);
    MPI_Comm_free(&copy);
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &parts);
    all_of(parts, 100);
    MPI_Comm_free(&parts);
    int fewer = key - 1, is_ring = 1;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &fewer, &is_ring, 0, &row);
    if (row != MPI_COMM_NULL) {
        all_of(row, 10);
        MPI_Comm_free(&row);
    }
    all_of(MPI_COMM_SELF, 10);
    absolute_addresses(MPI_COMM_WORLD);
    uncommitted(MPI_COMM_WORLD);
#ifdef LARGE
    large_counts(MPI_COMM_WORLD);
#endif
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (!world_rank)
        puts(bad ? "wrong" : "right");
    MPI_Finalize();
    return bad != 0;
}
