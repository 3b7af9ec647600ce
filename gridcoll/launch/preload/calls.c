/* The MPI functions, and the meaning of their arguments. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gridcoll.h"

enum { /* bits of a key's form */
    TYPED = 1,    /* a datatype is derived, with gaps or another order */
    IN_PLACE = 2,
    UNEVEN = 4,   /* blocks have different counts */
    USERS = 8,    /* a user-defined operation */
    ORDERED = 16, /* one that is not commutative */
    PADDED = 32,  /* predefined, but with gaps: a pair of a value and its place; not kept in keys */
};

/* ---- the arguments of a call --------------------------------------------------------------- */

static int64_t count_of(const given_call *call, word given)
{
    return call->large ? (int64_t)given : (int)given;
}

static int64_t count_at(const given_call *call, word array, int at)
{
    return call->large ? ((const int64_t *)array)[at] : ((const int *)array)[at];
}

/* Predefined types without gaps, which are never freed: handle and size. */
static struct { word handle; int size; } plain_types[256];

/* Return the size of a datatype; -1 if it is invalid. Set TYPED in form if it is not plain, and PADDED
 * if it is predefined all the same. */
static int64_t size_of(word given, int64_t *form)
{
    word type = handle_of(given);
    unsigned at = (unsigned)((uint64_t)type * 0x9E3779B97F4A7C15u >> 56);
    if (__atomic_load_n(&plain_types[at].handle, __ATOMIC_ACQUIRE) == type && type)
        return plain_types[at].size;
    int size = 0, n, n_addresses, n_types, combiner = 0;
    word lower, extent = 0;
    if (!type || type == mpi.type_null)
        return -1;
    hold_handlers(); /* if the type was freed, the call itself must report the error */
    int failed = mpi.type_size(type, &size);
    int is_plain = !failed && !mpi.type_get_envelope(type, &n, &n_addresses, &n_types, &combiner) &&
                   !mpi.type_get_extent(type, &lower, &extent) && combiner == mpi.named && !lower &&
                   extent == size;
    release_handlers();
    if (failed)
        return -1;
    if (!is_plain) {
        *form |= combiner == mpi.named && !lower && extent > size ? TYPED | PADDED : TYPED;
        return size;
    }
    lock_known(1);
    if (!plain_types[at].handle) {
        plain_types[at].size = size;
        __atomic_store_n(&plain_types[at].handle, type, __ATOMIC_RELEASE);
    }
    unlock_known();
    return size;
}

/* Whether an operation is predefined by MPI. */
static int is_predefined(word operation)
{
    for (const int64_t *known = python.operations; *known; known++)
        if (handle_of((word)*known) == operation)
            return 1;
    return 0;
}

/* At which words of a call its arguments are; 0 if it has none such, or they are not looked at. */
static const struct { signed char n_words, recv, blocks, type, places, root; } where[] = {
    [Reduce] = {7, 1, 0, 0, 0, 5},
    [Allreduce] = {6, 1, 0, 0, 0, 0},
    [Reduce_scatter] = {6, 1, 0, 0, 0, 0},
    [Reduce_scatter_block] = {6, 1, 0, 0, 0, 0},
    [Gather] = {8, 3, 3, 5, 0, 6},
    [Gatherv] = {9, 3, 3, 6, 5, 7},
    [Scatter] = {8, 3, 0, 2, 0, 6},
    [Scatterv] = {9, 4, 0, 3, 2, 7},
    [Allgather] = {7, 3, 3, 5, 0, 0},
    [Allgatherv] = {8, 3, 3, 6, 5, 0},
    [Alltoall] = {7, 3, 0, 0, 0, 0},
    [Alltoallv] = {9, 4, 0, 0, 0, 0},
    [Alltoallw] = {9, 4, 0, 0, 0, 0},
    [Barrier] = {0, 0, 0, 0, 0, 0},
};

/* Whether MPI_IN_PLACE is where MPI refuses it on this rank. */
static int misuses_in_place(const given_call *call, const comm_record *comm)
{
    const word *a = call->args;
    int n = where[call->which].n_words, root = where[call->which].root;
    int is_root = !root || (int)a[root] == comm->rank;
    if (!n)
        return call->which == Bcast && a[0] == mpi.in_place;
    word send = a[0], recv = a[where[call->which].recv];
    if (call->which == Scatter || call->which == Scatterv)
        return (is_root ? send : recv) == mpi.in_place;
    return (is_root ? recv : send) == mpi.in_place;
}

/* Fill in the key of a call. Return 0 if its arguments are invalid, so that MPI reports the error. */
static int describe(given_call *call, const comm_record *comm, call_key *key)
{
    const word *a = call->args;
    int64_t form = 0, n_bytes = 0, size = 0, count = 0;
    int root = -1, is_root = 1, at = 0;
    memset(key, 0, sizeof *key);
    if (misuses_in_place(call, comm))
        return 0;
    key->which = call->which;
    call->send = NULL;
    call->recv = NULL;
    switch (call->which) {
    case Bcast:
        root = (int)a[3], count = count_of(call, a[1]), size = size_of(a[2], &form);
        call->recv = (char *)a[0];
        break;
    case Reduce:
        root = (int)a[5];
        is_root = comm->rank == root;
        /* fall through */
    case Allreduce:
    case Reduce_scatter_block:
    case Reduce_scatter:
        call->send = (const char *)a[0];
        call->recv = is_root ? (char *)a[1] : NULL;
        call->datatype = handle_of(a[3]), call->operation = handle_of(a[4]);
        if (call->operation == mpi.op_null)
            return 0;
        size = size_of(a[3], &form);
        key->datatype = form & TYPED && !(form & PADDED) ? 0 : call->datatype;
        key->operation = is_predefined(call->operation) ? call->operation : 0;
        if (!key->operation) {
            int commutes = 0;
            hold_handlers(); /* as in size_of */
            int failed = mpi.op_commutative(call->operation, &commutes);
            release_handlers();
            if (failed)
                return 0;
            form |= commutes ? USERS : USERS | ORDERED;
        }
        if (call->which != Reduce_scatter) {
            count = count_of(call, a[2]);
            break;
        }
        for (int rank = 0; rank < comm->n_ranks; rank++) {
            int64_t one = count_at(call, a[2], rank);
            if (one < 0)
                return 0;
            count += one;
            form |= one == count_at(call, a[2], 0) ? 0 : UNEVEN;
        }
        break;
    case Gather:
        root = (int)a[6], is_root = comm->rank == root;
        call->send = (const char *)a[0];
        call->recv = is_root ? (char *)a[3] : NULL;
        count = count_of(call, a[is_root ? 4 : 1]), size = size_of(a[is_root ? 5 : 2], &form);
        break;
    case Scatter:
        root = (int)a[6], is_root = comm->rank == root;
        call->send = is_root ? (const char *)a[0] : NULL;
        call->recv = (char *)a[3];
        count = count_of(call, a[is_root ? 1 : 4]), size = size_of(a[is_root ? 2 : 5], &form);
        break;
    case Allgather:
    case Alltoall:
        call->send = (const char *)a[0], call->recv = (char *)a[3];
        count = count_of(call, a[4]), size = size_of(a[5], &form);
        break;
    case Gatherv:
    case Scatterv: /* not all ranks know their sizes, so no decision may depend on them */
        root = (int)a[7];
        at = call->which == Gatherv ? 0 : 4;
        if (a[at] != mpi.in_place && count_of(call, a[at + 1]) < 0)
            return 0;
        break;
    case Allgatherv:
        call->send = (const char *)a[0], call->recv = (char *)a[3];
        size = size_of(a[6], &form);
        for (int rank = 0; rank < comm->n_ranks; rank++) {
            int64_t one = count_at(call, a[4], rank);
            if (one < 0)
                return 0;
            count += one;
            form |= one == count_at(call, a[4], 0) ? 0 : UNEVEN;
        }
        break;
    case Alltoallv:
    case Alltoallw:
    case Barrier:
        break;
    }
    if (size < 0 || count < 0 || __builtin_mul_overflow(count, size, &n_bytes))
        return 0;
    key->root = root < 0 ? 0 : root;
    if (root >= comm->n_ranks || (root < 0 && (call->which == Bcast || call->which == Reduce ||
        call->which == Gather || call->which == Scatter || call->which == Gatherv ||
        call->which == Scatterv)))
        return 0;
    const char *in_place = (const char *)mpi.in_place;
    if (call->send == in_place || (call->which == Scatter && call->recv == in_place))
        form |= IN_PLACE;
    /* The block that a rank sends to itself may have another count and type than the one received. */
    if (!(form & IN_PLACE) && is_root &&
        (call->which == Gather || call->which == Scatter || call->which == Allgather ||
         call->which == Alltoall)) {
        at = call->which == Scatter ? 4 : 1;
        int64_t own = count_of(call, a[at]), own_size = size_of(a[at + 1], &form);
        if (own < 0 || own_size < 0)
            return 0;
        form |= own * own_size == n_bytes ? 0 : TYPED; /* Python reports or handles the mismatch */
    }
    /* A null buffer, MPI_BOTTOM, is valid only with a type that contains addresses. */
    if (n_bytes && !(form & TYPED) && call->which != Allgatherv && call->which != Reduce_scatter) {
        int needs_send = call->which != Bcast && (call->which != Scatter || is_root);
        int needs_recv = (call->which != Reduce && call->which != Gather) || is_root;
        if ((needs_send && !call->send) || (needs_recv && !call->recv))
            return 0;
    }
    key->n_bytes = n_bytes;
    key->form = form & ~PADDED;
    return 1;
}

/* ---- a call -------------------------------------------------------------------------------- */

/* Record an error. Handlers are called when everything else is done, because they may not return. */
static int fail(given_call *call, int64_t error)
{
    return call->failure = (int)(error < 0 ? mpi.other_error : error);
}

/* The same clock as Python's time.monotonic. */
static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int overlap(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes)
{
    return a && b && a < b + b_bytes && b < a + a_bytes;
}

enum { LOOK_AGAIN_NS = 20000000 };

/* If a pause continued although a message had arrived, let Python look for new sockets. */
static void look_again(void)
{
    static int64_t looked_ns;
    if (!python.wait[N_MISSED])
        return;
    python.wait[N_MISSED] = 0;
    int64_t now = now_ns();
    if (now - looked_ns < LOOK_AGAIN_NS)
        return;
    looked_ns = now;
    python.look();
}

/* Pack a message of a type with gaps into memory, or unpack it. */
static int64_t pack(const given_call *call, char *memory, int64_t n_bytes, int is_out)
{
    const word *a = call->args; /* of a broadcast */
    int at = 0;
    return is_out ? mpi.unpack((word)memory, n_bytes, &at, a[0], a[1], a[2], mpi.self)
                  : mpi.pack(a[0], a[1], a[2], (word)memory, n_bytes, &at, mpi.self);
}

/* Whether packing gives just the bytes of the message. MPICH does not pack from MPI_BOTTOM. Packing in
 * Open MPI does not check whether a type was committed, but a broadcast on one rank does. */
static int can_pack(const given_call *call, int64_t n_bytes)
{
    const word args[] = {call->args[0], call->args[1], call->args[2], 0, mpi.self};
    const given_call alone = {.which = Bcast, .args = args, .comm = mpi.self};
    int size = 0;
    if (call->large || !call->recv)
        return 0;
    hold_handlers();
    int error = call_natively(&alone);
    error = error ? error : mpi.pack_size(args[1], args[2], mpi.self, &size);
    release_handlers();
    return !error && size == n_bytes;
}

static int run_plan(given_call *call, const comm_record *comm, known_call *known)
{
    engine_call *engine = known->call;
    int64_t n_in = known->input_bytes, n_out = known->output_bytes;
    char *copy = NULL, *own = NULL, *scratch = known->scratch;
    const char *input = NULL;
    char *output = NULL;
    int64_t error = 0;
    switch (known->input) {
    case SEND_BUFFER: input = call->send; break;
    case RECV_BUFFER: input = call->recv; break;
    case RECV_BLOCK: input = call->recv + comm->rank * n_in; break;
    case RECV_COPY:
        input = copy = malloc((size_t)n_in + 1);
        if (copy)
            memcpy(copy, call->recv, (size_t)n_in);
        break;
    case OWN_MEMORY: input = own = calloc(1, (size_t)(n_in + n_out) + 1); break;
    }
    switch (known->output) {
    case RECV_BUFFER: output = call->recv; break;
    case PACKED: output = own = malloc((size_t)n_out + 1); break;
    case OWN_MEMORY:
        own = own ? own : calloc(1, (size_t)(n_in + n_out) + 1);
        output = own ? own + n_in : NULL;
        break;
    }
    if (!scratch && known->scratch_bytes)
        scratch = aligned_alloc(64, (size_t)(known->scratch_bytes + 63) / 64 * 64);
    if ((known->input == RECV_COPY && !copy) || (known->output >= OWN_MEMORY && !own) ||
        (known->scratch_bytes && !scratch)) {
        error = -1;
        goto done;
    }
    engine->buffers[0] = (void *)input, engine->buffers[1] = output, engine->buffers[2] = scratch;
    if (known->key.form & USERS)
        engine->operation = call->operation;
    hold_handlers();
    int packs = known->output == PACKED, is_root = comm->rank == known->key.root;
    if (packs && is_root)
        error = pack(call, own, n_out, 0);
    void *run = error ? NULL : python.run_begin(known->program, known->mpi, engine);
    while (run && !python.run(run, python.wait, 1000000000))
        ;
    error = run ? python.run_end(run) : error ? error : -1;
    if (packs && !is_root && !error)
        error = pack(call, own, n_out, 1);
    release_handlers();
    look_again();
done:
    free(copy);
    free(own);
    if (scratch != known->scratch)
        free(scratch);
    return error ? fail(call, error) : 0;
}

static int perform(given_call *call, comm_record *comm, const call_key *key)
{
    question asked = {.key = *key, .comm = comm->handle, .rank = comm->rank,
                      .n_ranks = comm->n_ranks, .large = call->large, .args = call->args};
    /* We call its error handler once, whatever fails: a plan, or the native call instead of it. */
    word handler = 0;
    hold_handlers();
    if (comm->handle != mpi.world)
        hold_handler(comm->handle, &handler);
    python.perform(&asked);
    if (comm->handle != mpi.world)
        release_handler(comm->handle, &handler);
    release_handlers();
    forget_stale(comm, python.clear);
    return asked.error ? fail(call, asked.error) : 0;
}

static int copy_nothing(word comm, int key, void *extra, void *from, void *into, int *is_copied)
{
    (void)comm, (void)key, (void)extra, (void)from, (void)into;
    return *is_copied = 0;
}

/* Forget a communicator that is being freed. */
static void forget(word handle)
{
    int was_inside = inside;
    inside = 1;
    hide_leaks(1);
    drop_comm(handle, python.forget);
    hide_leaks(0);
    inside = was_inside;
}

static int drop_freed(word comm, int key, void *value, void *extra)
{
    (void)key, (void)value, (void)extra;
    if (has_grid && has_python())
        forget(handle_of(comm));
    return 0;
}

/* Let MPI tell us when it frees a communicator: a plug-in may free it without calling us. */
static void watch_comm(word handle)
{
    static int key = -1;
    if (handle == mpi.world)
        return;
    lock_known(1);
    if (key == -1 && mpi.comm_create_keyval(copy_nothing, drop_freed, &key, NULL))
        key = -1;
    unlock_known();
    if (key != -1)
        mpi.comm_set_attr(handle, key, NULL);
}

static comm_record *open_comm(word handle)
{
    int is_inter = 1, rank = 0, n_ranks = 1;
    if (handle == mpi.comm_null)
        return NULL;
    hold_handlers(); /* as in size_of */
    int failed = mpi.comm_test_inter(handle, &is_inter);
    if (!failed && !is_inter)
        failed = mpi.comm_rank(handle, &rank) || mpi.comm_size(handle, &n_ranks);
    release_handlers();
    if (failed)
        return NULL;
    question asked = {.comm = handle, .rank = rank, .n_ranks = n_ranks};
    int is_native = is_inter || n_ranks == 1 || !python.open(&asked);
    watch_comm(handle);
    return add_comm(&asked, is_native);
}

static int act(given_call *call, comm_record *comm, known_call *known, enum action action)
{
    switch (action) {
    case PLAN: return run_plan(call, comm, known);
    case WAITING: return call_and_wait(call);
    default: return call_natively(call);
    }
}

/* A call with time stamps. Python learns from them after a call that all ranks have counted to, and
 * may then change decisions. */
typedef struct {
    comm_record *comm;
    int64_t tag, entry_ns;
} stamped_call;

/* The call that the MPI library is executing; without a communicator, there is none. Error handlers
 * may jump out of it. */
static __thread stamped_call in_library;

static int64_t end_stamped(const stamped_call *call)
{
    comm_record *comm = call->comm;
    stamped_calls *stamped = comm->stamped;
    int64_t exit_ns = now_ns(), at = stamped->n_calls++ % N_STAMPS;
    stamped->last[at].tag = call->tag;
    stamped->last[at].entry_ns = call->entry_ns, stamped->last[at].exit_ns = exit_ns;
    stamped->total_ns += exit_ns - call->entry_ns;
    in_library.comm = NULL;
    if (--stamped->left > 0)
        return 0;
    hold_handlers();
    int64_t failed = python.learn(comm->handle);
    release_handlers();
    forget_stale(comm, python.clear);
    return failed;
}

static int act_stamped(given_call *call, comm_record *comm, known_call *known,
                       enum action action)
{
    stamped_call mine = {comm, known->tag, now_ns()};
    if (action != PLAN)
        in_library = mine;
    int error = act(call, comm, known, action);
    int64_t failed = action == PLAN || in_library.comm ? end_stamped(&mine) : 0;
    return failed && !error ? fail(call, failed) : error;
}

/* MPICH rejects aliased buffers before it sends anything, but a plan would not. So try the call in
 * MPICH on MPI_COMM_SELF, and return its error, or 0. */
static int alias_error(const given_call *call, const comm_record *comm)
{
    int n = where[call->which].n_words, recv = where[call->which].recv;
    int blocks = where[call->which].blocks, type = where[call->which].type;
    int places = where[call->which].places, root = where[call->which].root;
    if (!n || !mpi.is_int || (root && (int)call->args[root] != comm->rank))
        return 0;
    word args[MOST_WORDS];
    memcpy(args, call->args, (size_t)n * sizeof *args);
    if (type) { /* this rank's block among those of all ranks */
        int64_t form = 0, size = size_of(args[type], &form);
        int64_t at = places ? count_at(call, args[places], comm->rank)
                            : comm->rank * count_of(call, args[type - 1]);
        args[blocks] += at * size;
    }
    if (args[0] != args[recv] || !args[0])
        return 0;
    static const int64_t zeros[2];
    if (call->which == Alltoallv || call->which == Alltoallw) { /* no data: other ranks' counts */
        int are_same = args[1] == args[5];
        args[1] = args[2] = args[6] = (word)&zeros[0];
        args[5] = (word)&zeros[!are_same];
    }
    int counts = places ? places - 1 : call->which == Reduce_scatter ? 2 : 0;
    if (counts)
        args[counts] += comm->rank * (word)(call->large ? sizeof(int64_t) : sizeof(int));
    if (places)
        args[places] = (word)&zeros[0];
    if (root)
        args[root] = 0;
    args[n - 1] = mpi.self;
    given_call alone = {.which = call->which, .large = call->large, .profiling = call->profiling,
                        .args = args, .comm = mpi.self};
    hold_handlers();
    int error = call_natively(&alone);
    release_handlers();
    return error;
}

static __thread word freed; /* being freed: callbacks may use it, but it must not be added again */

static int do_call(given_call *call, comm_record *comm)
{
    if (!comm && call->comm != freed)
        comm = open_comm(call->comm);
    if (!comm || comm->is_native)
        return count_call(call->which, NATIVE), call_natively(call);
    int error = alias_error(call, comm);
    if (error)
        return count_call(call->which, NATIVE), fail(call, error);
    call_key key;
    if (!describe(call, comm, &key))
        return count_call(call->which, NATIVE), call_natively(call);
    known_call *known = find_known(comm, &key);
    enum action action = NATIVE;
    if (!known) {
        make_room(comm, python.clear);
        question asked = {.key = key, .comm = comm->handle, .rank = comm->rank,
                          .n_ranks = comm->n_ranks, .large = call->large, .args = call->args,
                          .tag = -1};
        hold_handlers();
        asked.action = python.decide(&asked);
        release_handlers();
        action = (enum action)asked.action;
        known = action == ONCE ? NULL : add_known(comm, &asked);
    }
    if (known)
        action = known->action;
    else if (action != ONCE)
        action = NATIVE;
    if (action == PLAN && known->input == SEND_BUFFER && known->output == RECV_BUFFER &&
        overlap(call->send, known->input_bytes, call->recv, known->output_bytes))
        action = PYTHON;
    if (action == PLAN && known->output == PACKED && !can_pack(call, known->output_bytes))
        action = PYTHON;
    count_call(call->which, action == ONCE ? PYTHON : action);
    if (action == PYTHON || action == ONCE)
        return perform(call, comm, &key);
    return known && known->tag >= 0 ? act_stamped(call, comm, known, action)
                                    : act(call, comm, known, action);
}

static inline int call_mpi(int which, int large, int profiling, word comm, const word *args,
                           const void *caller)
{
    given_call call = {.which = which, .large = large, .profiling = profiling, .args = args,
                       .comm = handle_of(comm)};
    uintptr_t from = (uintptr_t)caller;
    if (inside || (from >= excluded.first && from < excluded.end))
        return call_natively(&call);
    comm_record *known = has_grid ? find_comm(call.comm) : NULL;
    if (!has_grid || (known && known->is_native))
        return count_call(which, NATIVE), call_natively(&call);
    inside = 1;
    hide_leaks(1);
    int error = do_call(&call, known);
    hide_leaks(0);
    inside = 0;
    if (call.failure)
        mpi.comm_call_errhandler(call.comm, call.failure);
    return error;
}

/* ---- the MPI functions --------------------------------------------------------------------- */

#define VISIBLE __attribute__((visibility("default")))

#define DEFINE(prefix, name, suffix, large, profiling, comm, parameters, ...) \
    VISIBLE int prefix##MPI_##name##suffix parameters \
    { \
        const word args[] = {__VA_ARGS__}; \
        return call_mpi(name, large, profiling, comm, args, __builtin_return_address(0)); \
    }

#define DEFINE_BOTH(name, suffix, large, comm, parameters, ...) \
    DEFINE(, name, suffix, large, 0, comm, parameters, __VA_ARGS__) \
    DEFINE(P, name, suffix, large, 1, comm, parameters, __VA_ARGS__)

#define DEFINE_ALL(name, comm, parameters, ...) \
    DEFINE_BOTH(name, , 0, comm, parameters, __VA_ARGS__) \
    DEFINE_BOTH(name, _c, 1, comm, parameters, __VA_ARGS__)

#define FIVE (word a, word b, word c, word d, word e)
#define SIX (word a, word b, word c, word d, word e, word f)
#define SEVEN (word a, word b, word c, word d, word e, word f, word g)
#define EIGHT (word a, word b, word c, word d, word e, word f, word g, word h)
#define NINE (word a, word b, word c, word d, word e, word f, word g, word h, word i)

DEFINE_ALL(Bcast, e, FIVE, a, b, c, d, e)
DEFINE_ALL(Reduce, g, SEVEN, a, b, c, d, e, f, g)
DEFINE_ALL(Allreduce, f, SIX, a, b, c, d, e, f)
DEFINE_ALL(Reduce_scatter, f, SIX, a, b, c, d, e, f)
DEFINE_ALL(Reduce_scatter_block, f, SIX, a, b, c, d, e, f)
DEFINE_ALL(Gather, h, EIGHT, a, b, c, d, e, f, g, h)
DEFINE_ALL(Gatherv, i, NINE, a, b, c, d, e, f, g, h, i)
DEFINE_ALL(Scatter, h, EIGHT, a, b, c, d, e, f, g, h)
DEFINE_ALL(Scatterv, i, NINE, a, b, c, d, e, f, g, h, i)
DEFINE_ALL(Allgather, g, SEVEN, a, b, c, d, e, f, g)
DEFINE_ALL(Allgatherv, h, EIGHT, a, b, c, d, e, f, g, h)
DEFINE_ALL(Alltoall, g, SEVEN, a, b, c, d, e, f, g)
DEFINE_ALL(Alltoallv, i, NINE, a, b, c, d, e, f, g, h, i)
DEFINE_ALL(Alltoallw, i, NINE, a, b, c, d, e, f, g, h, i)
DEFINE_BOTH(Barrier, , 0, a, (word a), a)

/* Handle the start and end of MPI only if the application calls these functions, not MPI itself. */

typedef int (*init_f)(word, word);
typedef int (*init_thread_f)(word, word, word, int *);
typedef int (*finalize_f)(void);
typedef int (*comm_free_f)(word *);

static int init(const char *name, word argc, word argv)
{
    init_f next = (init_f)next_function(name);
    if (!next)
        return 1;
    int outer = !inside;
    inside = 1;
    int error = next(argc, argv);
    if (outer && !error)
        start();
    inside = !outer;
    return error;
}

static int init_thread(const char *name, word argc, word argv, word wanted, int *provided)
{
    init_thread_f next = (init_thread_f)next_function(name);
    if (!next)
        return 1;
    int outer = !inside;
    inside = 1;
    int error = next(argc, argv, wanted, provided);
    if (outer && !error)
        start();
    inside = !outer;
    return error;
}

static int finalize(const char *name)
{
    finalize_f next = (finalize_f)next_function(name);
    if (!next)
        return 1;
    if (!inside) {
        inside = 1;
        finish();
        inside = 0;
    }
    return next();
}

/* This is also done inside MPI: a callback of the application may free a communicator it has kept. */
static int comm_free(const char *name, word *handle)
{
    comm_free_f next = (comm_free_f)next_function(name);
    if (!next)
        return 1;
    word outer = freed;
    if (has_grid && handle && has_python()) {
        freed = mpi.is_int ? *(int *)handle : *handle;
        forget(freed);
    }
    int error = next(handle);
    freed = outer;
    return error;
}

/* The library calls error handlers from inside, and an exception or a jump in a handler leaves it.
 * Therefore we put a function in front of each handler that resets our state. */

typedef void handler_function(word *, int *, ...);
typedef int (*create_errhandler_f)(handler_function *, word *);
#define EIGHT_HANDLERS(X, k) X(k##0) X(k##1) X(k##2) X(k##3) X(k##4) X(k##5) X(k##6) X(k##7)
#define EACH_HANDLER(X) /* in octal */ \
    EIGHT_HANDLERS(X, 00) EIGHT_HANDLERS(X, 01) EIGHT_HANDLERS(X, 02) EIGHT_HANDLERS(X, 03) \
    EIGHT_HANDLERS(X, 04) EIGHT_HANDLERS(X, 05) EIGHT_HANDLERS(X, 06) EIGHT_HANDLERS(X, 07)
enum { N_HANDLERS = 64 }; /* most handler functions of a program */
static handler_function *handlers[N_HANDLERS];

static void handle_outside(int which, word *comm, int *code)
{
    int was_inside = inside;
    if (in_library.comm)
        end_stamped(&in_library); /* the other ranks count it, too */
    inside = 0, freed = 0;
    handlers[which](comm, code);
    inside = was_inside;
}

#define HANDLER(k) static void handler_##k(word *comm, int *code, ...) { handle_outside(k, comm, code); }
EACH_HANDLER(HANDLER)
#define NAME(k) handler_##k,
static handler_function *const wrappers[N_HANDLERS] = {EACH_HANDLER(NAME)};
#undef NAME

static int create_errhandler(const char *name, handler_function *function, word *handle)
{
    create_errhandler_f next = (create_errhandler_f)next_function(name);
    for (int k = 0; k < N_HANDLERS && !inside && function; k++) {
        handler_function *free_place = NULL;
        if (__atomic_compare_exchange_n(&handlers[k], &free_place, function, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST) || free_place == function) {
            function = wrappers[k];
            break;
        }
    }
    return next ? next(function, handle) : 1;
}

VISIBLE int MPI_Comm_create_errhandler(handler_function *a, word *b)
{
    return create_errhandler("MPI_Comm_create_errhandler", a, b);
}
VISIBLE int PMPI_Comm_create_errhandler(handler_function *a, word *b)
{
    return create_errhandler("PMPI_Comm_create_errhandler", a, b);
}
/* A library without large counts has only the small form, which takes the same words. */
#define WINDOW(name, suffix, parameters, ...) \
    VISIBLE int name##suffix parameters \
    { \
        int (*next) parameters = (int (*) parameters)next_function(#name #suffix); \
        if (!next) \
            next = (int (*) parameters)next_function(#name); \
        has_windows = 1, look_often(); \
        return next ? next(__VA_ARGS__) : 1; \
    }

#define WINDOW_ALL(name) \
    WINDOW(name, , SIX, a, b, c, d, e, f) \
    WINDOW(P##name, , SIX, a, b, c, d, e, f) \
    WINDOW(name, _c, SIX, a, b, c, d, e, f) \
    WINDOW(P##name, _c, SIX, a, b, c, d, e, f)

WINDOW_ALL(MPI_Win_create)
WINDOW_ALL(MPI_Win_allocate)
WINDOW_ALL(MPI_Win_allocate_shared)
WINDOW(MPI_Win_create_dynamic, , (word a, word b, word c), a, b, c)
WINDOW(PMPI_Win_create_dynamic, , (word a, word b, word c), a, b, c)

VISIBLE int MPI_Comm_set_errhandler(word a, word b)
{
    return set_errhandler("MPI_Comm_set_errhandler", a, b);
}
VISIBLE int MPI_Init(word a, word b) { return init("MPI_Init", a, b); }
VISIBLE int PMPI_Init(word a, word b) { return init("PMPI_Init", a, b); }
VISIBLE int MPI_Init_thread(word a, word b, word c, int *d)
{
    return init_thread("MPI_Init_thread", a, b, c, d);
}
VISIBLE int PMPI_Init_thread(word a, word b, word c, int *d)
{
    return init_thread("PMPI_Init_thread", a, b, c, d);
}
VISIBLE int MPI_Finalize(void) { return finalize("MPI_Finalize"); }
VISIBLE int PMPI_Finalize(void) { return finalize("PMPI_Finalize"); }
VISIBLE int MPI_Comm_free(word *a) { return comm_free("MPI_Comm_free", a); }
VISIBLE int PMPI_Comm_free(word *a) { return comm_free("PMPI_Comm_free", a); }
VISIBLE int MPI_Comm_disconnect(word *a) { return comm_free("MPI_Comm_disconnect", a); }
VISIBLE int PMPI_Comm_disconnect(word *a) { return comm_free("PMPI_Comm_disconnect", a); }
