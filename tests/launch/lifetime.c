/* What a program does to communicators, threads, errors and itself; argv[1] says what. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <locale.h>
#include <mpi.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int rank, n, bad;

static void must(int what, int line)
{
    if (!what && !bad++)
        fprintf(stderr, "rank %d line %d\n", rank, line);
}
#define CHECK(what) must(what, __LINE__)

static long resident_kb(void)
{
    long kb = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "VmRSS: %ld", &kb);
    fclose(file);
    return kb;
}

static void bcast(MPI_Comm comm, int count, int root)
{
    int me, size, *data = malloc(sizeof(int) * (count + 1));
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &size);
    for (int k = 0; k < count; k++)
        data[k] = me == root ? root + k : -1;
    MPI_Bcast(data, count, MPI_INT, root, comm);
    for (int k = 0; k < count; k++)
        CHECK(data[k] == root + k);
    free(data);
}

static void allreduce(MPI_Comm comm)
{
    int me, size;
    long mine, sum = -1;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &size);
    mine = me + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, comm);
    CHECK(sum == (long)size * (size + 1) / 2);
}

static void calls(void)
{
    char data[8] = "";
    long before = 0;
    for (int k = 0; k < 110000; k++) {
        MPI_Bcast(data, 8, MPI_CHAR, 0, MPI_COMM_WORLD);
        if (k % 16 == 0)
            MPI_Barrier(MPI_COMM_WORLD);
        if (k == 10000)
            before = resident_kb();
    }
    if (!rank)
        printf("grown by kB: %ld\n", resident_kb() - before);
}

static void comms(int many)
{
    static MPI_Comm kept[300];
    for (int k = 0; k < many; k++) {
        if (k % 2)
            MPI_Comm_split(MPI_COMM_WORLD, 0, k % 3 ? rank : -rank, &kept[k]);
        else
            MPI_Comm_dup(k ? kept[k - 1] : MPI_COMM_WORLD, &kept[k]);
        allreduce(kept[k]);
    }
    for (int k = 0; k < many; k++)
        allreduce(kept[k]), MPI_Comm_free(&kept[k]);
    for (int k = 0; k < 50; k++) { /* handles come again, with other ranks behind them */
        MPI_Comm part;
        MPI_Comm_split(MPI_COMM_WORLD, k % 2 ? rank == 0 : rank == n - 1, rank, &part);
        allreduce(part);
        bcast(part, 3, 0);
        MPI_Comm_free(&part);
    }
}

static int call_once_more(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)key, (void)value, (void)extra;
    MPI_Barrier(comm);
    allreduce(comm);
    return MPI_SUCCESS;
}

/* Calls of what is being freed by its callback, and freed past whatever is in front of MPI's library. */
static void frees(void)
{
    Dl_info library = {0};
    int (*past)(MPI_Comm *) = NULL, key;
    if (dladdr((void *)MPI_Wtime, &library))
        *(void **)&past = dlsym(dlopen(library.dli_fname, RTLD_LAZY), "MPI_Comm_free");
    CHECK(past && past != MPI_Comm_free);
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, call_once_more, &key, NULL);
    for (int k = 0; k < 40; k++) { /* handles come again, with other ranks behind them */
        MPI_Comm part;
        MPI_Comm_split(MPI_COMM_WORLD, k % 3 ? rank == k % n : 0, k % 2 ? rank : -rank, &part);
        allreduce(part);
        if (k % 4 < 2)
            MPI_Comm_set_attr(part, key, NULL);
        if (k % 4 == 0 || k % 4 == 3)
            MPI_Comm_free(&part);
        else
            past(&part);
    }
}

static void kinds(void)
{
    for (int count = 0; count < 700; count++)
        bcast(MPI_COMM_WORLD, count, count % n);
    for (int count = 0; count < 20; count++)
        bcast(MPI_COMM_WORLD, count, count % n);
}

static void *thread(void *given)
{
    MPI_Comm comm = *(MPI_Comm *)given;
    for (int k = 0; k < 100; k++)
        allreduce(comm), bcast(comm, k % 7, k % n);
    return NULL;
}

static void threads(void)
{
    pthread_t running[4];
    MPI_Comm own[4];
    for (int k = 0; k < 4; k++)
        MPI_Comm_dup(MPI_COMM_WORLD, &own[k]);
    for (int k = 0; k < 4; k++)
        pthread_create(&running[k], NULL, thread, &own[k]);
    for (int k = 0; k < 4; k++)
        pthread_join(running[k], NULL);
    for (int k = 0; k < 4; k++)
        MPI_Comm_free(&own[k]);
}

static int n_handled, handled;

static void handler(MPI_Comm *comm, int *code, ...)
{
    (void)comm;
    n_handled++;
    MPI_Error_class(*code, &handled);
}

/* What MPI refuses on each rank by itself is not taken as an address, or as a count, by a plan. */
static void misused(MPI_Comm comm, int *mine, int *ours)
{
    int ones[64], places[64], negative[64];
    for (int k = 0; k < 64; k++)
        ones[k] = 1, places[k] = k, negative[k] = -1;
    for (int k = 0; k < 2; k++) { /* kinds of calls that are known as plans */
        MPI_Allgather(mine, 1, MPI_INT, ours, 1, MPI_INT, comm);
        MPI_Scatter(mine, 1, MPI_INT, ours, 1, MPI_INT, 0, comm);
    }
    n_handled = handled = 0;
    MPI_Allgather(mine, 1, MPI_INT, MPI_IN_PLACE, 1, MPI_INT, comm);
    CHECK(n_handled == 1);
    MPI_Alltoallv(mine, ones, places, MPI_INT, MPI_IN_PLACE, ones, places, MPI_INT, comm);
    CHECK(n_handled == 2 && handled != MPI_ERR_TRUNCATE && handled != MPI_ERR_OTHER);
    if (rank)
        return; /* they need not call: the root sends nothing */
    MPI_Scatter(MPI_IN_PLACE, 1, MPI_INT, ours, 1, MPI_INT, 0, comm);
    MPI_Gatherv(mine, 1, MPI_INT, MPI_IN_PLACE, ones, places, MPI_INT, 0, comm);
    CHECK(n_handled == 4 && handled != MPI_ERR_TRUNCATE);
    MPI_Gatherv(mine, 1, MPI_INT, ours, negative, places, MPI_INT, 0, comm);
    CHECK(n_handled == 5 && handled == MPI_ERR_COUNT);
    MPI_Scatterv(mine, ones, places, MPI_INT, ours, -1, MPI_INT, 0, comm);
    CHECK(n_handled == 6 && handled == MPI_ERR_COUNT);
}

/* A message that is longer than its receive: rank 1 has less room than rank 0 sends. */
static void errors(void)
{
    MPI_Errhandler own, was;
    MPI_Comm comm;
    char data[64] = "";
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &was);
    CHECK(was == MPI_ERRORS_ARE_FATAL); /* as MPI has it: nobody has set another */
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_create_errhandler(handler, &own);
    MPI_Comm_set_errhandler(comm, own);
    bcast(comm, 2, 0);
    CHECK(!n_handled);
    int error = MPI_Bcast(data, rank ? 5 : 8, MPI_CHAR, 0, comm);
    if (rank) {
        CHECK(error != MPI_SUCCESS);
        CHECK(n_handled == 1);
        CHECK(handled != MPI_SUCCESS); /* MPI's own says that it is of another class */
    } else
        CHECK(error == MPI_SUCCESS && !n_handled);
    /* Blocks longer than their own places: who needs them hears of it, and nobody waits. Shorter ones
     * are taken. */
    int *mine = calloc((size_t)n * 2, sizeof(int)), *ours = calloc((size_t)n * 2, sizeof(int));
    for (int own = 0; own <= 2; own += 2) {
        int fails = own == 2;
        n_handled = 0;
        error = MPI_Alltoall(mine, rank ? 1 : own, MPI_INT, ours, 1, MPI_INT, comm);
        CHECK((error != MPI_SUCCESS) == fails && n_handled == fails);
        error = MPI_Allgather(mine, rank ? 1 : own, MPI_INT, ours, 1, MPI_INT, comm);
        CHECK((error != MPI_SUCCESS) == fails && n_handled == 2 * fails);
        error = MPI_Gather(mine, rank ? 1 : own, MPI_INT, ours, 1, MPI_INT, 0, comm);
        CHECK((error != MPI_SUCCESS) == (fails && !rank) && n_handled == (rank ? 2 : 3) * fails);
        bcast(comm, 3, 0), allreduce(comm);
    }
    misused(comm, mine, ours);
#ifdef MPICH_NUMVERSION /* which refuses memory that is given twice, before it sends anything */
    int ones[64], places[64], one = 1, *twice = calloc((size_t)n, sizeof(int));
    for (int k = 0; k < 64; k++)
        ones[k] = 1, places[k] = k;
    n_handled = 0;
    CHECK(MPI_Allgather(twice + rank, 1, MPI_INT, twice, 1, MPI_INT, comm) != MPI_SUCCESS);
    CHECK(MPI_Alltoallv(twice, ones, places, MPI_INT, twice, ones, places, MPI_INT, comm));
    if (rank == n - 1) { /* alone: nobody else is asked */
        CHECK(MPI_Reduce(&one, &one, 1, MPI_INT, MPI_SUM, rank, comm) != MPI_SUCCESS);
        CHECK(MPI_Gather(twice + rank, 1, MPI_INT, twice, 1, MPI_INT, rank, comm) != MPI_SUCCESS);
        CHECK(MPI_Gatherv(twice + rank, 1, MPI_INT, twice, ones, places, MPI_INT, rank, comm));
        CHECK(MPI_Scatterv(twice, ones, places, MPI_INT, twice + rank, 1, MPI_INT, rank, comm));
    }
    CHECK(n_handled == (rank == n - 1 ? 6 : 2));
    MPI_Reduce(rank ? &one : MPI_IN_PLACE, &one, 1, MPI_INT, MPI_SUM, 0, comm);
    CHECK(one == (rank ? 1 : n));
    /* Parts of one piece of memory that do not overlap: not the same counts, so MPICH takes it. */
    int *parts = calloc((size_t)n * 8, sizeof(int)), sent[64], got[64], from[64];
    for (int k = 0; k < n; k++) {
        sent[k] = rank > k ? 2 : 1, got[k] = k > rank ? 2 : 1, places[k] = 2 * k, from[k] = 2 * (n + k);
        parts[2 * k] = parts[2 * k + 1] = 100 * rank + k + 1;
    }
    CHECK(!MPI_Alltoallv(parts, sent, places, MPI_INT, parts, got, from, MPI_INT, comm));
    for (int k = 0; k < n; k++)
        CHECK(parts[from[k]] == 100 * k + rank + 1 && parts[places[k]] == 100 * rank + k + 1);
    free(parts);
    free(twice);
#endif
    free(mine), free(ours);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CHECK(MPI_Bcast(data, -1, MPI_CHAR, 0, MPI_COMM_WORLD) != MPI_SUCCESS);
    CHECK(MPI_Bcast(data, 1, MPI_CHAR, n + 7, MPI_COMM_WORLD) != MPI_SUCCESS);
    CHECK(MPI_Bcast(data, 1, MPI_DATATYPE_NULL, 0, MPI_COMM_WORLD) != MPI_SUCCESS);
    bcast(MPI_COMM_WORLD, 9, 0);
    /* Of no communicator: MPICH's go to the world's handler as long as MPI_COMM_SELF has had none. */
    MPI_Datatype none;
    CHECK(MPI_Type_contiguous(-1, MPI_INT, &none) != MPI_SUCCESS);
    MPI_Comm_free(&comm);
}

static jmp_buf before;

static void jumping(MPI_Comm *comm, int *code, ...)
{
    (void)comm, (void)code;
    longjmp(before, 1);
}

#define JUMPING(k) static void jumping_##k(MPI_Comm *comm, int *code, ...) { jumping(comm, code); }
JUMPING(0) JUMPING(1) JUMPING(2) JUMPING(3) JUMPING(4) JUMPING(5) JUMPING(6) JUMPING(7)
JUMPING(8) JUMPING(9) JUMPING(10) JUMPING(11) JUMPING(12) JUMPING(13) JUMPING(14) JUMPING(15)

/* As many as mpi4py has for a program's handlers. */
static void jumps_of_many(MPI_Comm comm)
{
    static MPI_Comm_errhandler_function *const many[] = {
        jumping_0, jumping_1, jumping_2, jumping_3, jumping_4, jumping_5, jumping_6, jumping_7,
        jumping_8, jumping_9, jumping_10, jumping_11, jumping_12, jumping_13, jumping_14, jumping_15};
    for (volatile int k = 0; k < 16; k++) {
        MPI_Errhandler one;
        MPI_Comm_create_errhandler(many[k], &one);
        MPI_Comm_set_errhandler(comm, one);
        MPI_Errhandler_free(&one);
        if (rank == 1 && !setjmp(before)) {
            MPI_Bcast(NULL, -1, MPI_CHAR, 0, comm);
            CHECK(!"a handler is called");
        }
        allreduce(comm);
    }
}

/* Handlers that do not return, as those of C++ that throw: what the others do is done here as well. */
static void jumps(void)
{
    MPI_Errhandler own;
    MPI_Comm comm;
    char data[64] = "";
    static int n_back;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_create_errhandler(jumping, &own);
    MPI_Comm_set_errhandler(comm, own);
    bcast(comm, 2, 0);
    if (rank == 1) { /* of an error that no other rank meets */
        if (!setjmp(before))
            MPI_Bcast(data, -1, MPI_CHAR, 0, comm);
        else
            n_back++;
    }
    for (int k = 0; k < 100; k++)
        allreduce(comm), bcast(MPI_COMM_WORLD, k, 0);
    if (!setjmp(before))
        MPI_Bcast(data, rank ? 5 : 8, MPI_CHAR, 0, comm); /* longer than its receive: of a plan */
    else
        n_back++;
    CHECK(n_back == (rank == 0 ? 0 : rank == 1 ? 2 : 1));
    for (int k = 0; k < 100; k++)
        allreduce(comm), bcast(MPI_COMM_WORLD, k, 0);
    jumps_of_many(comm);
    /* Neither the communicator nor the handler is freed. */
}

/* Pauses that are asked for in this thread, in the place of libc's. */
static __thread long longest_ns;

static void note(const struct timespec *time)
{
    long ns = time ? time->tv_sec * 1000000000l + time->tv_nsec : 0;
    longest_ns = ns > longest_ns ? ns : longest_ns;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    note(time);
    return clock_nanosleep(CLOCK_REALTIME, 0, time, left);
}

int ppoll(struct pollfd *files, nfds_t n_files, const struct timespec *time, const sigset_t *mask)
{
    struct timespec left = time ? *time : (struct timespec){0, 0};
    note(time);
    return (int)syscall(SYS_ppoll, files, n_files, time ? &left : NULL, mask, 8);
}

/* The longest pause of the first rank while another is late. */
static long longest_wait_ns(void)
{
    struct timespec late = {0, 300000000};
    if (rank)
        clock_nanosleep(CLOCK_REALTIME, 0, &late, NULL);
    longest_ns = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    return longest_ns;
}

static void windows(int is_shared)
{
    MPI_Win window;
    int *base;
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_shared)
        MPI_Win_allocate_shared(4, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    else
        MPI_Win_allocate(4, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    long waited_ns = longest_wait_ns();
    CHECK(rank || waited_ns < 100000);
    MPI_Win_free(&window);
}

static void alone(void)
{
    MPI_Comm half, inter, merged;
    int one = 1, sum = 0;
    struct sigaction action;
    bcast(MPI_COMM_WORLD, 5, 0);
    sigaction(SIGINT, NULL, &action);
    CHECK(action.sa_handler == SIG_DFL);
    sigaction(SIGPIPE, NULL, &action);
    CHECK(action.sa_handler == SIG_DFL);
    CHECK(!strcmp(setlocale(LC_ALL, NULL), "C"));
    CHECK(getenv("OPENBLAS_NUM_THREADS") == NULL);
    MPI_Scan(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == rank + 1);
    MPI_Comm_split(MPI_COMM_WORLD, rank > 0, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank > 0 ? 0 : 1, 5, &inter);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, inter);
    CHECK(sum == (rank > 0 ? 1 : n - 1));
    MPI_Barrier(inter);
    MPI_Intercomm_merge(inter, rank > 0, &merged);
    allreduce(merged);
    MPI_Comm_disconnect(&merged);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "calm";
    int provided;
    if (!strcmp(what, "threads")) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
        if (provided < MPI_THREAD_MULTIPLE)
            return 1;
    } else
        MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (!strcmp(what, "calls"))
        calls();
    else if (!strcmp(what, "comms"))
        comms(300); /* more than there are parts of tags for groups */
    else if (!strcmp(what, "frees"))
        frees();
    else if (!strcmp(what, "few comms"))
        comms(120);
    else if (!strcmp(what, "kinds"))
        kinds();
    else if (!strcmp(what, "threads"))
        threads();
    else if (!strcmp(what, "errors"))
        errors();
    else if (!strcmp(what, "jumps"))
        jumps();
    else if (!strcmp(what, "windows") || !strcmp(what, "shared windows"))
        windows(!strcmp(what, "shared windows"));
    else if (!strcmp(what, "alone"))
        alone();
    else
        bcast(MPI_COMM_WORLD, 100, 0), allreduce(MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (!rank && strcmp(what, "calls"))
        puts(bad ? "wrong" : "right");
    MPI_Finalize();
    return bad != 0;
}
