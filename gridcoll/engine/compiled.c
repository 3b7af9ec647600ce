/* Runs one rank's program like executor.py, in the same order: starts ready ops, tests transfers for
 * completion, never blocks inside MPI. It saves the time of the interpreter: about 80 us per segment
 * and hop if ranks share cores.
 *
 * It depends on no MPI library: functions come as pointers and handles as numbers (int in MPICH's
 * family, pointers in Open MPI's), so that one object file serves them all. Every declaration that
 * Python uses has its counterpart in compiled.py.
 */

#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { SEND, RECV, REDUCE_BEFORE, REDUCE_AFTER, COPY };

/* A program as plan/flat.py writes it: a header, then these sections. */
typedef struct {
    int64_t kind, peer, tag, lane;
    int64_t buffer, start, size; /* data to send or receive, or the source of a local op */
    int64_t into_buffer, into_start;
    int64_t n_waits;
    int64_t due_us;        /* since the run began */
    int64_t first_release; /* its releases end at first_release of the next op */
} op_t;

typedef struct {
    int64_t n_ops, n_lanes, n_releases, n_receives, n_ready;
    const op_t *ops;               /* n_ops + 1: the last one only ends the list of releases */
    const int64_t *releases;
    const int64_t *first_receive;  /* by lane, n_lanes + 1 */
    const int64_t *receives;
    const int64_t *ready;
} program_t;

typedef struct {
    void *isend, *irecv, *testsome, *get_count, *test, *reduce_local;
    int64_t byte_type, null_request;
    int64_t handle_bytes, status_bytes;
    int64_t undefined, truncated;
} mpi_t;

typedef struct {
    int64_t comm, first_tag, n_tags, window;
    intptr_t buffers[3];  /* addresses, in the order of BUFFERS in plan/ops.py */
    const int64_t *places; /* for buffers in parts, else null: two byte offsets by op, of its chunk
                            * and of its destination, from the start of their buffers */
    const int64_t *types; /* by op, number of items and datatype of a transfer, datatype 0 for
                           * bytes; null if all are bytes */
    const int64_t *ranks; /* the communicator's rank by the plan's rank; null if they are the same */
    int64_t *n_sent, *bytes_sent; /* counters by the plan's rank; or null */
    int64_t unit_bytes, datatype, operation;
} call_t;

typedef struct {
    int64_t spin_ns, first_pause_ns, longest_pause_ns, waits_per_pause;
    int64_t n_polls;
    int64_t watch; /* a descriptor that is readable when a message may have come, or -1 */
    int64_t trust; /* how many pauses in a row it ended; allows longer pauses */
    int64_t n_missed; /* pauses after which a message was there that it did not report */
} wait_t;

enum {
    INTERFACE = 8, /* incremented with every change that compiled.py must know */
    NO_MEMORY = -1,
    MOST_TRUST = 6,
    MOST_FALSE_WAKEUPS = 64,
    IDLE_POLLS = 100, /* as in executor.py */
    ANNOUNCED_BYTES = 64 << 10, /* as in constants.py */
};

typedef struct run {
    const mpi_t *mpi;
    call_t call;
    program_t program;
    int64_t began_ns;
    int64_t due_ns; /* when the first ready op may start; 0 for now */
    int64_t n_left;
    int64_t error; /* of the first transfer that failed */
    int64_t n_idle; /* polls since a transfer ended */
    int64_t window_step; /* by how much the window grows */
    int64_t *n_waits;
    char *is_spoilt;         /* by op, whether it failed or depends on a failed op */
    int64_t *next;           /* by op, the next transfer of its lane */
    char *requests;          /* by op */
    int64_t *posted;         /* by lane, number of receives posted so far */
    int64_t *behind, *last;  /* by lane, transfers behind its head: a queue linked by next */
    int64_t *n_open;         /* by lane, pending transfers */
    char *heads;             /* the oldest request of each lane that has any, contiguous */
    int64_t *head_ops;
    int64_t n_heads;
    int64_t *ready;          /* a heap */
    int64_t n_ready;
    int *places;             /* positions of ended heads */
    char *statuses;
    int64_t waits_since_ns;  /* since when no transfer has ended; 0 if one just did */
    int64_t n_false_wakeups; /* how often since then the watch ended a pause for nothing */
    int watched_pause, woken; /* whether the last pause was watched; whether the watch ended it */
} run_t;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- MPI calls ---------------------------------------------------------------------------- */

typedef int (*transfer_int)(void *, int, int, int, int, int, void *);
typedef int (*transfer_ptr)(void *, int, void *, int, int, void *, void *);
typedef int (*testsome_f)(int, void *, int *, int *, void *);
typedef int (*test_f)(void *, int *, void *);
typedef int (*count_int)(const void *, int, int *);
typedef int (*count_ptr)(const void *, void *, int *);
typedef int (*reduce_int)(const void *, void *, int, int, int);
typedef int (*reduce_ptr)(const void *, void *, int, void *, void *);

static int is_int(const mpi_t *mpi) { return mpi->handle_bytes == (int64_t)sizeof(int); }

/* MPI_Isend or MPI_Irecv: they take the same arguments. */
static int start_transfer(run_t *run, void *function, char *data, const op_t *op, char *request)
{
    const mpi_t *mpi = run->mpi;
    int tag = (int)(run->call.first_tag + op->tag % run->call.n_tags);
    int peer = (int)(run->call.ranks ? run->call.ranks[op->peer] : op->peer);
    int64_t count = op->size * run->call.unit_bytes, datatype = mpi->byte_type;
    const int64_t *type = run->call.types ? &run->call.types[2 * (op - run->program.ops)] : NULL;
    if (op->kind == SEND && run->is_spoilt[op - run->program.ops])
        count = 0;
    else if (type && type[1])
        count = type[0], datatype = type[1];
    if (is_int(mpi))
        return ((transfer_int)function)(data, (int)count, (int)datatype, peer, tag,
                                        (int)run->call.comm, request);
    return ((transfer_ptr)function)(data, (int)count, (void *)datatype, peer, tag,
                                    (void *)run->call.comm, request);
}

static int reduce_local(const run_t *run, const char *left, char *right, int64_t n_units)
{
    const mpi_t *mpi = run->mpi;
    int n = (int)n_units;
    if (is_int(mpi))
        return ((reduce_int)mpi->reduce_local)(left, right, n, (int)run->call.datatype,
                                               (int)run->call.operation);
    return ((reduce_ptr)mpi->reduce_local)(left, right, n, (void *)run->call.datatype,
                                           (void *)run->call.operation);
}

static int is_null(const mpi_t *mpi, const char *request)
{
    int64_t handle = 0;
    if (is_int(mpi)) {
        int value;
        memcpy(&value, request, sizeof value);
        return value == (int)mpi->null_request;
    }
    memcpy(&handle, request, sizeof handle);
    return handle == mpi->null_request;
}

/* ---- the program -------------------------------------------------------------------------- */

static char *chunk(const run_t *run, int64_t index)
{
    const op_t *op = &run->program.ops[index];
    int64_t at = run->call.places ? run->call.places[2 * index] : op->start * run->call.unit_bytes;
    return (char *)(run->call.buffers[op->buffer] + at);
}

static char *target(const run_t *run, int64_t index)
{
    const op_t *op = &run->program.ops[index];
    int64_t at = run->call.places ? run->call.places[2 * index + 1]
                                  : op->into_start * run->call.unit_bytes;
    return (char *)(run->call.buffers[op->into_buffer] + at);
}

/* Ops start by due time, and in program order if they are due at the same time. So no op waits for
 * one that is not due yet. */
static int starts_before(const run_t *run, int64_t a, int64_t b)
{
    int64_t due_a = run->program.ops[a].due_us, due_b = run->program.ops[b].due_us;
    return due_a != due_b ? due_a < due_b : a < b;
}

static void push_ready(run_t *run, int64_t index)
{
    int64_t *heap = run->ready, at = run->n_ready++;
    while (at && starts_before(run, index, heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = index;
}

static int64_t pop_ready(run_t *run)
{
    int64_t *heap = run->ready, first = heap[0], moved = heap[--run->n_ready];
    int64_t n = run->n_ready, at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && starts_before(run, heap[child + 1], heap[child]))
            child++;
        if (!starts_before(run, heap[child], moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
    return first;
}

static void fail(run_t *run, int64_t index, int64_t error)
{
    run->is_spoilt[index] = 1;
    if (!run->error)
        run->error = error;
}

static void complete(run_t *run, int64_t index);

/* Add a started transfer to its lane. */
static void enter(run_t *run, int64_t index)
{
    int64_t lane = run->program.ops[index].lane, size = run->mpi->handle_bytes;
    run->next[index] = -1;
    if (run->n_open[lane]++) {
        if (run->behind[lane] < 0)
            run->behind[lane] = index;
        else
            run->next[run->last[lane]] = index;
        run->last[lane] = index;
        return;
    }
    memcpy(run->heads + run->n_heads * size, run->requests + index * size, size);
    run->head_ops[run->n_heads++] = index;
}

/* Post as many receives of a lane as the window and free buffers allow. */
static void post(run_t *run, int64_t lane)
{
    const program_t *program = &run->program;
    int64_t end = program->first_receive[lane + 1];
    while (program->first_receive[lane] + run->posted[lane] < end) {
        int64_t index = program->receives[program->first_receive[lane] + run->posted[lane]];
        const op_t *op = &program->ops[index];
        if (run->n_waits[index] || run->n_open[lane] >= run->call.window)
            return;
        run->posted[lane]++;
        int error = start_transfer(run, run->mpi->irecv, chunk(run, index), op,
                                   run->requests + index * run->mpi->handle_bytes);
        if (error) {
            fail(run, index, error);
            complete(run, index);
        } else
            enter(run, index);
    }
}

static void combine(run_t *run, int64_t index, char *source, char *into)
{
    const op_t *op = &run->program.ops[index];
    int64_t n_bytes = op->size * run->call.unit_bytes;
    int error = 0;
    if (!op->size)
        return;
    if (op->kind == REDUCE_BEFORE)
        error = reduce_local(run, source, into, op->size);
    else {
        /* Aligned like scratch, so that vectorised operations treat elements alike on all ranks. */
        char *result = aligned_alloc(64, (size_t)(n_bytes + 63) / 64 * 64);
        if (result) {
            memcpy(result, source, (size_t)n_bytes);
            error = reduce_local(run, into, result, op->size);
            memcpy(into, result, (size_t)n_bytes);
        } else
            error = NO_MEMORY;
        free(result);
    }
    if (error)
        fail(run, index, error);
}

/* Whether the first ready op is not due yet. */
static int too_early(run_t *run)
{
    int64_t due_us = run->program.ops[run->ready[0]].due_us;
    run->due_ns = due_us ? run->began_ns + 1000 * due_us : 0;
    return run->due_ns > 0 && now_ns() < run->due_ns;
}

static void start_ready(run_t *run)
{
    int64_t unit = run->call.unit_bytes;
    while (run->n_ready && !too_early(run)) {
        int64_t index = pop_ready(run);
        const op_t *op = &run->program.ops[index];
        char *data = chunk(run, index);
        if (op->kind == SEND) {
            if (run->call.n_sent) {
                run->call.n_sent[op->peer]++;
                run->call.bytes_sent[op->peer] += op->size * unit;
            }
            int error = start_transfer(run, run->mpi->isend, data, op,
                                       run->requests + index * run->mpi->handle_bytes);
            if (!error) {
                enter(run, index);
                continue;
            }
            fail(run, index, error);
        } else if (op->kind == COPY)
            memcpy(target(run, index), data, (size_t)(op->size * unit));
        else
            combine(run, index, data, target(run, index));
        complete(run, index);
    }
}

static void complete(run_t *run, int64_t index)
{
    const op_t *op = &run->program.ops[index];
    run->n_left--;
    for (int64_t k = op->first_release; k < op[1].first_release; k++) {
        int64_t later = run->program.releases[k];
        run->is_spoilt[later] |= run->is_spoilt[index];
        if (--run->n_waits[later])
            continue;
        if (run->program.ops[later].kind == RECV)
            post(run, run->program.ops[later].lane);
        else
            push_ready(run, later);
    }
}

/* Whether a message is empty that should have data: its sender has no valid data. */
static int is_empty(const mpi_t *mpi, const op_t *op, const char *status)
{
    int n_bytes = 1;
    if (op->kind != RECV || !op->size)
        return 0;
    if (is_int(mpi))
        ((count_int)mpi->get_count)(status, (int)mpi->byte_type, &n_bytes);
    else
        ((count_ptr)mpi->get_count)(status, (void *)mpi->byte_type, &n_bytes);
    return !n_bytes;
}

/* Write the positions of ended heads to run->places and return their number. Failed ones count. */
static int test_some(run_t *run)
{
    const mpi_t *mpi = run->mpi;
    int n_ended = 0;
    int error = ((testsome_f)mpi->testsome)((int)run->n_heads, run->heads, &n_ended, run->places,
                                            run->statuses);
    if (!error) {
        n_ended = n_ended == (int)mpi->undefined ? 0 : n_ended;
        for (int k = 0; k < n_ended; k++) {
            int64_t index = run->head_ops[run->places[k]];
            if (is_empty(mpi, &run->program.ops[index], run->statuses + k * mpi->status_bytes))
                fail(run, index, mpi->truncated);
        }
        return n_ended;
    }
    /* MPICH has freed the failed requests, and only their statuses have the error: with our arguments
     * it can only be truncation. Open MPI keeps them and reports the error again. */
    n_ended = 0, error = (int)mpi->truncated;
    for (int64_t place = 0; place < run->n_heads; place++) {
        char *request = run->heads + place * mpi->handle_bytes;
        int ended = is_null(mpi, request), request_error = 0;
        if (!ended)
            request_error = ((test_f)mpi->test)(request, &ended, run->statuses);
        if (request_error)
            error = request_error;
        if (ended || request_error)
            run->places[n_ended++] = (int)place;
    }
    for (int k = 0; k < n_ended; k++) /* not all libraries say which of them failed */
        fail(run, run->head_ops[run->places[k]], error);
    return n_ended;
}

static int compare_places(const void *a, const void *b)
{
    return *(const int *)b - *(const int *)a;
}

/* Post more receives: see Executor._widen. */
static void widen(run_t *run)
{
    run->n_idle = 0;
    run->call.window += run->window_step;
    for (int64_t lane = 0; lane < run->program.n_lanes; lane++)
        post(run, lane);
    start_ready(run);
}

/* Test pending transfers and start ready ops; return whether any transfer ended. */
int gridcoll_advance(run_t *run)
{
    int64_t size = run->mpi->handle_bytes;
    int n_ended = run->n_heads ? test_some(run) : 0;
    if (!n_ended) {
        start_ready(run); /* ops may have become due */
        if (++run->n_idle >= IDLE_POLLS)
            widen(run);
        return 0;
    }
    run->n_idle = 0;
    /* From the last position down: the request that fills a freed place was handled already. */
    qsort(run->places, (size_t)n_ended, sizeof *run->places, compare_places);
    for (int k = 0; k < n_ended; k++) {
        int place = run->places[k];
        int64_t index = run->head_ops[place], lane = run->program.ops[index].lane;
        int64_t from = run->behind[lane];
        run->n_open[lane]--;
        if (from >= 0) {
            run->behind[lane] = run->next[from];
            run->head_ops[place] = from;
            memcpy(run->heads + place * size, run->requests + from * size, (size_t)size);
        } else {
            int64_t last = --run->n_heads;
            run->head_ops[place] = run->head_ops[last];
            memmove(run->heads + place * size, run->heads + last * size, (size_t)size);
        }
        complete(run, index);
        post(run, lane);
    }
    start_ready(run);
    return 1;
}

/* ---- a run -------------------------------------------------------------------------------- */

static void read_program(program_t *program, const int64_t *flat)
{
    program->n_ops = flat[0];
    program->n_lanes = flat[1];
    program->n_releases = flat[2];
    program->n_receives = flat[3];
    program->n_ready = flat[4];
    program->ops = (const op_t *)(flat + 5);
    program->releases = (const int64_t *)(program->ops + program->n_ops + 1);
    program->first_receive = program->releases + program->n_releases;
    program->receives = program->first_receive + program->n_lanes + 1;
    program->ready = program->receives + program->n_receives;
}

/* Free the run and return its error, 0 if there is none. */
int64_t gridcoll_end(run_t *run)
{
    int64_t error = run->error;
    free(run);
    return error;
}

/* The bytes of memory that a run of the program needs. */
static size_t size_of_run(const program_t *program, const mpi_t *mpi)
{
    size_t n = (size_t)program->n_ops, lanes = (size_t)program->n_lanes;
    size_t handle = (size_t)mpi->handle_bytes, status = (size_t)mpi->status_bytes;
    /* Arrays of 64-bit words come first, then narrower ones, so that all are aligned. */
    return sizeof(run_t) + (3 * n + 5 * lanes) * sizeof(int64_t) + (n + lanes) * handle
           + lanes * (status + sizeof(int)) + n + 64;
}

/* Begin a run in memory of size_of_run bytes, all zeros. */
static void begin_in(run_t *run, const program_t *program, const mpi_t *mpi, const call_t *call)
{
    size_t n = (size_t)program->n_ops, lanes = (size_t)program->n_lanes;
    size_t handle = (size_t)mpi->handle_bytes, status = (size_t)mpi->status_bytes;
    int64_t *words = (int64_t *)(run + 1);
    run->mpi = mpi;
    run->call = *call;
    run->program = *program;
    run->n_left = program->n_ops;
    run->began_ns = now_ns();
    run->window_step = call->window;
    run->n_waits = words, words += n;
    run->next = words, words += n;
    run->ready = words, words += n;
    run->posted = words, words += lanes;
    run->behind = words, words += lanes;
    run->last = words, words += lanes;
    run->n_open = words, words += lanes;
    run->head_ops = words, words += lanes;
    run->requests = (char *)words;
    run->heads = run->requests + n * handle;
    /* The widest member of a status in MPI libraries is a size_t. */
    run->statuses = (char *)(((uintptr_t)(run->heads + lanes * handle) + 15) / 16 * 16);
    run->places = (int *)(run->statuses + lanes * status);
    run->is_spoilt = (char *)(run->places + lanes);
    for (size_t k = 0; k < n; k++)
        run->n_waits[k] = program->ops[k].n_waits;
    for (size_t k = 0; k < lanes; k++)
        run->behind[k] = -1;
    int has_long_send = 0;
    for (int64_t k = 0; k < program->n_ready; k++) {
        const op_t *op = &program->ops[program->ready[k]];
        has_long_send |= op->kind == SEND && op->size * call->unit_bytes >= ANNOUNCED_BYTES;
        push_ready(run, program->ready[k]);
    }
    if (has_long_send) /* then sends come before receives: see constants.py */
        start_ready(run);
    for (size_t lane = 0; lane < lanes; lane++)
        post(run, (int64_t)lane);
    start_ready(run);
}

/* Begin a run, which gridcoll_end has to free. Return null if there is no memory. */
run_t *gridcoll_begin(const int64_t *flat, const mpi_t *mpi, const call_t *call)
{
    program_t program;
    read_program(&program, flat);
    run_t *run = calloc(1, size_of_run(&program, mpi));
    if (run)
        begin_in(run, &program, mpi, call);
    return run;
}

int64_t gridcoll_interface(void) { return INTERFACE; }
int64_t gridcoll_n_left(const run_t *run) { return run->n_left; }

/* ---- waiting: see waiting.py -------------------------------------------------------------- */

/* The watch must end a longer pause in time when a message comes. So trust in it has to grow: every
 * time it ends a pause for a message, the shortest pause doubles, and a message that it missed resets
 * this. A socket that is not MPI's may stay readable, but must not prevent sleep: after many wakeups
 * for nothing, the watch is ignored until a transfer ends. */

/* Sleep; return whether the watch ended the pause. */
static int pause_ns(int64_t watch, int64_t ns)
{
    struct timespec time = {ns / 1000000000, ns % 1000000000};
    if (watch < 0) {
        nanosleep(&time, NULL);
        return 0;
    }
    struct pollfd descriptor = {(int)watch, POLLIN, 0};
    return ppoll(&descriptor, 1, &time, NULL) > 0;
}

/* A transfer has ended: update the trust in the watch. */
static void judge_watch(run_t *run, wait_t *wait)
{
    if (run->watched_pause && run->woken)
        wait->trust += wait->trust < MOST_TRUST;
    else if (run->watched_pause) {
        wait->trust = 0;
        wait->n_missed++;
    }
    run->watched_pause = run->woken = 0;
    run->n_false_wakeups = run->waits_since_ns = 0;
}

/* Run to the end and return 1. Return 0 earlier if a poll finds nothing and the first such poll was
 * more than patience_ns ago. */
int gridcoll_run(run_t *run, wait_t *wait, int64_t patience_ns)
{
    int64_t began_ns = 0;
    while (run->n_left) {
        int progress = 0;
        for (int64_t k = 0; k < wait->n_polls && !progress; k++)
            progress = gridcoll_advance(run);
        if (progress) {
            judge_watch(run, wait);
            continue;
        }
        int64_t now = now_ns();
        if (!began_ns)
            began_ns = now;
        if (!run->waits_since_ns)
            run->waits_since_ns = now;
        if (now - began_ns > patience_ns)
            return 0;
        run->n_false_wakeups += run->woken;
        int64_t watch = run->n_false_wakeups < MOST_FALSE_WAKEUPS ? wait->watch : -1;
        int64_t trust = watch < 0 ? 0 : wait->trust;
        int64_t waited = now - run->waits_since_ns, ns = waited / wait->waits_per_pause;
        if (waited < wait->spin_ns && !trust) {
            sched_yield();
            continue;
        }
        int64_t shortest = wait->first_pause_ns << trust;
        ns = ns < shortest ? shortest : ns;
        ns = ns > wait->longest_pause_ns ? wait->longest_pause_ns : ns;
        int until_due = run->n_ready && ns > run->due_ns - now;
        if (until_due)
            ns = run->due_ns > now ? run->due_ns - now : 0;
        run->woken = pause_ns(watch, ns);
        run->watched_pause = watch >= 0 && !until_due; /* others tell nothing about the watch */
    }
    return 1;
}

/* ---- calls from Python --------------------------------------------------------------------- */

/* A function that Python calls to repeat an earlier call. It checks the buffers, because only these
 * may differ, and runs the program. Functions of Python come as pointers. Their signatures do not
 * change between versions, so that one object file serves all versions. */

/* The layout of Py_buffer. */
typedef struct {
    char *data;
    void *object;
    ptrdiff_t n_bytes, item_bytes;
    int readonly, n_dimensions;
    const char *format;
    ptrdiff_t *shape, *strides, *suboffsets;
    void *internal;
} buffer_t;

typedef struct {
    int (*get_buffer)(void *, buffer_t *, int);
    void (*release_buffer)(buffer_t *);
    void (*clear_error)(void);
    void *(*save_thread)(void);
    void (*restore_thread)(void *);
    void *(*get_pointer)(void *, const char *);
    void *(*call)(void *, void *const *, size_t, void *);
    void (*count_reference)(void *);
    void *none;
} python_t;

/* Requirements for a buffer. */
typedef struct {
    int64_t place;    /* position among the arguments; 0 if there is no such buffer */
    int64_t n_bytes;
    int64_t n_blocks; /* the number of items must be a multiple of this */
    char format[8];   /* empty for any number that MPI takes without a type */
} form_t;

typedef struct {
    const int64_t *flat;
    const mpi_t *mpi;
    const call_t *call;
    wait_t *wait;
    int64_t patience_ns;
    form_t given, output;
    int64_t writes;      /* whether output is written to */
    const void *in_place; /* MPI.IN_PLACE: given instead of an input, it means output */
    char *own;            /* where output is then copied to; null if in_place is not allowed */
    void *read;           /* called with arguments that do not meet the requirements */
    void *finish;         /* called if Python has to finish the run */
    run_t *memory;        /* of the last run, to be reused */
    run_t *run;           /* the run that finish has to end, or null */
} repeat_t;

static const python_t *python_functions;

void gridcoll_use_python(const python_t *functions) { python_functions = functions; }

enum { WRITABLE = 1, FORMAT = 4, C_CONTIGUOUS = 0x38 }; /* PyBUF_... */

static int is_plain(const char *format)
{
    if (!format || !format[0])
        return 0;
    if (format[0] == 'Z')
        return (format[1] == 'f' || format[1] == 'd') && !format[2];
    return strchr("?bBhHiIlLqQfd", format[0]) && !format[1];
}

/* Get the object's buffer; return whether it meets the requirements, and must be released. */
static int take(const python_t *python, void *object, const form_t *form, int flags, buffer_t *buffer)
{
    if (python->get_buffer(object, buffer, flags | FORMAT | C_CONTIGUOUS)) {
        python->clear_error();
        return 0;
    }
    int64_t n_items = buffer->item_bytes ? buffer->n_bytes / buffer->item_bytes : 0;
    if (buffer->n_bytes == form->n_bytes && n_items % form->n_blocks == 0 && is_plain(buffer->format)
        && (!form->format[0] || !strcmp(buffer->format, form->format)))
        return 1;
    python->release_buffer(buffer);
    return 0;
}

/* A METH_FASTCALL function. Arguments are the communicator, then those of the method. */
void *gridcoll_repeat(void *capsule, void *const *args, ptrdiff_t n_args)
{
    const python_t *python = python_functions;
    repeat_t *self = python->get_pointer(capsule, NULL);
    const form_t *to = &self->output, *from = &self->given;
    call_t call = *self->call;
    buffer_t output, given;
    int has_output = 0, has_given = 0, fits = to->place < n_args && from->place < n_args;
    if (fits && to->place)
        fits = has_output = take(python, args[to->place], to, self->writes ? WRITABLE : 0, &output);
    if (has_output)
        call.buffers[1] = (intptr_t)output.data;
    if (fits && from->place && args[from->place] == self->in_place && self->own) {
        memcpy(self->own, output.data, (size_t)to->n_bytes);
        call.buffers[0] = (intptr_t)self->own;
    } else if (fits && from->place) {
        fits = has_given = take(python, args[from->place], from, 0, &given);
        if (has_given) {
            call.buffers[0] = (intptr_t)given.data;
            fits = !has_output || given.data + given.n_bytes <= output.data
                   || output.data + output.n_bytes <= given.data;
        }
    }
    void *next = fits ? NULL : self->read;
    if (fits) {
        program_t program;
        read_program(&program, self->flat);
        size_t n_bytes = size_of_run(&program, self->mpi);
        run_t *run = self->memory ? self->memory : malloc(n_bytes);
        self->memory = NULL;
        if (!run)
            next = self->read;
        else {
            void *thread = python->save_thread();
            memset(run, 0, n_bytes);
            begin_in(run, &program, self->mpi, &call);
            int ended = gridcoll_run(run, self->wait, self->patience_ns);
            python->restore_thread(thread);
            if (!ended || run->error || self->wait->n_missed) {
                self->run = run;
                next = self->finish;
            } else
                self->memory = run;
        }
    }
    if (has_output)
        python->release_buffer(&output);
    if (has_given)
        python->release_buffer(&given);
    if (next)
        return python->call(next, args, (size_t)n_args, NULL);
    python->count_reference(python->none);
    return python->none;
}

void gridcoll_forget(repeat_t *self) { free(self->memory); }
