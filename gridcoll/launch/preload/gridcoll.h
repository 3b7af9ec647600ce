/* libgridcoll.so: preloaded before an MPI library, it passes MPI's blocking collectives to gridcoll.
 *
 * It is not compiled against any MPI library or Python: arguments are machine words, which are
 * truncated where MPI has ints, and functions are looked up by name. bridge.py has the Python half
 * of what this file declares.
 *
 *   calls.c        the MPI functions, and the meaning of their arguments
 *   interpreter.c  Python: find it or start it, and ask it about calls of new kinds
 *   known.c        communicators and the kinds of calls on them whose decision is known
 *   counts.c       how many calls were executed in which way
 *   natives.c      the MPI library behind us
 *
 * Each file uses only files below it.
 */

#ifndef GRIDCOLL_H
#define GRIDCOLL_H

#include <stdint.h>

/* A preloaded library replaces all functions and variables with the names that it exports. */
#pragma GCC visibility push(hidden)

typedef intptr_t word;

enum {
    INTERFACE = 5, /* incremented with every change that bridge.py must know */
    MOST_WORDS = 9, /* arguments of a collective */
    N_SLOTS = 64,
    N_STAMPS = 256, /* as MOST_STAMPED of gridcoll/measure/learning/agreed.py */
};

/* In the order of kinds.py's COLLECTIVES. */
#define EACH_COLLECTIVE(X) \
    X(Bcast) X(Reduce) X(Allreduce) X(Reduce_scatter) X(Reduce_scatter_block) X(Gather) X(Gatherv) \
    X(Scatter) X(Scatterv) X(Allgather) X(Allgatherv) X(Alltoall) X(Alltoallv) X(Alltoallw) X(Barrier)

enum collective {
#define NAME(name) name,
    EACH_COLLECTIVE(NAME)
#undef NAME
    N_COLLECTIVES
};

/* How a call of a known kind is executed. WAITING: by the native non-blocking call, then waiting.
 * ONCE: Python executes this call, and is asked again about the next one. */
enum action { UNKNOWN, NATIVE, PLAN, PYTHON, WAITING, ONCE };

/* Which memory a plan's input or output is. */
enum role {
    NOTHING,
    SEND_BUFFER,
    RECV_BUFFER,
    RECV_COPY,  /* a copy of the receive buffer, which holds the input for MPI_IN_PLACE */
    RECV_BLOCK, /* this rank's block of the receive buffer */
    OWN_MEMORY, /* memory of ours, which the application does not see */
    PACKED,     /* memory of ours, for a message packed without its gaps */
};

/* Everything that a decision depends on: calls with equal keys have the same decision. */
typedef struct {
    int64_t which;
    int64_t n_bytes;   /* of the message, or of one block */
    int64_t root;
    int64_t datatype;  /* of a reduction; else 0 */
    int64_t operation; /* the same */
    int64_t form;      /* other properties; see calls.c */
} call_key;

/* The engine's call_t, up to the last field that we fill in: see gridcoll/engine/compiled.c. */
typedef struct {
    int64_t comm, first_tag, n_tags, window;
    void *buffers[3]; /* input, output, scratch */
    void *places, *types, *ranks, *n_sent, *bytes_sent;
    int64_t unit_bytes, datatype, operation;
} engine_call;

typedef struct known_call {
    call_key key;
    enum action action;
    struct known_call *next;
    const void *program, *mpi;
    engine_call *call;
    int64_t tag; /* for the stamps of calls; -1 if nothing is learned from them */
    int64_t input, output; /* roles */
    int64_t input_bytes, output_bytes, scratch_bytes;
    void *scratch; /* kept if it is short */
} known_call;

/* Calls of one communicator that Python has not learned from yet. All ranks count the same calls, so
 * that all of them call Python after the same one. See launch/preload/bridge.py. */
typedef struct {
    int64_t left;     /* calls until Python must be called */
    int64_t stale;    /* whether decisions changed: Python must be asked about all kinds again */
    int64_t n_calls;  /* since Python was last called */
    int64_t total_ns; /* time of these calls */
    struct {
        int64_t tag, entry_ns, exit_ns;
    } last[N_STAMPS]; /* the k-th call at index k modulo N_STAMPS */
} stamped_calls;

typedef struct comm_record {
    word handle;
    struct comm_record *next;
    int rank, n_ranks;
    int is_native; /* whether all calls are native, because nothing can be gained */
    int n_known;
    stamped_calls *stamped; /* owned by Python; null if nothing is learned */
    known_call *known[N_SLOTS];
} comm_record;

/* A call in progress. */
typedef struct {
    int which, large, profiling; /* large: counts are MPI_Count; profiling: called as PMPI_X */
    const word *args;
    word comm;
    const char *send;
    char *recv;
    word datatype, operation; /* of a reduction */
    int failure;              /* an error that the application's handler must still be called with */
} given_call;

/* A question to Python, and its answer. */
typedef struct {
    call_key key;
    int64_t comm, rank, n_ranks, large;
    const word *args;
    int64_t action, error;
    const void *program, *mpi;
    engine_call *call;
    int64_t tag;
    stamped_calls *stamped;
    int64_t input, output, input_bytes, output_bytes, scratch_bytes;
} question;

typedef struct {
    int64_t interface;
    int64_t (*begin)(void);           /* find the grid; return whether there is one; collective */
    int64_t (*open)(question *);      /* add a communicator; return whether anything can be gained */
    int64_t (*decide)(question *);    /* decide for a new kind of call; return the action */
    int64_t (*perform)(question *);   /* execute a call in Python */
    int64_t (*learn)(int64_t comm);   /* from stamped calls; return an error or 0; collective */
    void (*clear)(int64_t comm);      /* forget the decisions of a communicator */
    void (*forget)(int64_t comm);     /* forget a communicator */
    void (*look)(void);               /* look for new sockets: see engine/watch.py */
    void (*finish)(void);
    int64_t errors_return;     /* MPI_ERRORS_RETURN */
    const int64_t *operations; /* handles of MPI's predefined operations; ends with 0 */
    /* the C engine, or null */
    void *(*run_begin)(const void *, const void *, const void *);
    int (*run)(void *, void *, int64_t);
    int64_t (*run_end)(void *);
    int64_t *wait; /* its waiting parameters and counters, shared by all callers */
} python_half;

/* Of the waiting parameters: see wait_t in gridcoll/engine/compiled.c. */
enum { FIRST_PAUSE = 1, LONGEST_PAUSE = 2, N_MISSED = 7 };

typedef struct {
    uintptr_t first, end;
} addresses;

/* natives.c */
typedef struct {
    int is_int; /* whether handles are ints */
    word world, self, fatal, type_int, op_min, comm_null, type_null, op_null, in_place;
    word count_error, other_error;
    word errors_return; /* known when Python is attached */
    int named, thread_multiple; /* MPI_COMBINER_NAMED, MPI_THREAD_MULTIPLE */
    int (*comm_rank)(word, int *), (*comm_size)(word, int *);
    int (*comm_test_inter)(word, int *);
    int (*comm_call_errhandler)(word, int);
    int (*comm_get_errhandler)(word, word *), (*comm_set_errhandler)(word, word);
    int (*errhandler_free)(word *);
    int (*comm_create_keyval)(int (*)(word, int, void *, void *, void *, int *),
                              int (*)(word, int, void *, void *), int *, void *);
    int (*comm_set_attr)(word, int, void *);
    int (*type_size)(word, int *);
    int (*type_get_extent)(word, word *, word *);
    int (*type_get_envelope)(word, int *, int *, int *, int *);
    int (*op_commutative)(word, int *);
    int (*pack)(word, word, word, word, word, int *, word);
    int (*unpack)(word, word, int *, word, word, word, word);
    int (*pack_size)(word, word, word, int *);
    int (*test)(word *, int *, void *);
    int (*query_thread)(int *);
} mpi_library;

extern mpi_library mpi;
extern int has_windows; /* for one-sided communication */
extern int is_shared; /* whether several threads may call MPI */
extern __thread int inside __attribute__((tls_model("initial-exec"))); /* inside MPI or gridcoll */
extern __thread int is_loading; /* mpi4py is being imported for us */
extern const char *const collective_names[];

void *next_function(const char *name);
void *function_in(void *library, const char *name);
int has_profiler_in_front(void);
const char *identify_library(void); /* return what is wrong with it; null if nothing is */
int call_natively(const given_call *call);
int call_and_wait(const given_call *call);
void hold_handler(word comm, word *held);
void release_handler(word comm, word *held);
void hold_handlers(void);    /* let errors be returned to us instead of calling handlers */
void release_handlers(void);
word handle_of(word given); /* the handle in a word: an int or a pointer */
int set_errhandler(const char *name, word comm, word handler);

/* known.c */
comm_record *find_comm(word handle);
comm_record *add_comm(const question *answer, int is_native);
void drop_comm(word handle, void (*before)(int64_t));
known_call *find_known(const comm_record *comm, const call_key *key);
known_call *add_known(comm_record *comm, const question *answer);
void make_room(comm_record *comm, void (*clear)(int64_t));
void forget_stale(comm_record *comm, void (*clear)(int64_t));
void lock_known(int writes);
void unlock_known(void);

/* interpreter.c */
extern python_half python;
extern int has_grid;
extern addresses excluded; /* do not handle calls from there */
void start(void);
void finish(void);
void look_often(void);
void hide_leaks(int hides); /* whether memory that this thread allocates is hidden from leak checkers */
int has_python(void);
int agree(const char *problem); /* whether no rank has a problem; the lowest rank with one prints it */

/* counts.c */
void count_call(int which, enum action action);
uint64_t count_of_calls(int which, int action);
void print_counts(void);

#pragma GCC visibility pop

#endif
