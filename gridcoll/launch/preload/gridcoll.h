/* libgridcoll.so: put in front of an MPI library, it gives MPI's blocking collectives to gridcoll.
 *
 * It knows no MPI library and no Python: arguments are machine words, cut to ints where MPI has
 * ints, and functions are looked up by name. bridge.py has the other half of
 * what this file declares.
 *
 *   calls.c        MPI's names, and what a call of each is about
 *   known.c        communicators and the kinds of calls on them whose decision is known
 *   natives.c      the MPI library behind us
 *   interpreter.c  Python: found or started, asked about calls of new kinds
 */

#ifndef GRIDCOLL_H
#define GRIDCOLL_H

#include <stdint.h>

typedef intptr_t word;

enum {
    INTERFACE = 5, /* counted up with every change of what bridge.py must know */
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

/* What a call of a known kind does. ONCE: Python does this one, and is asked again about the next. */
enum action { UNKNOWN, NATIVE, PLAN, PYTHON, WAITING, ONCE };

/* What a plan's input and output are. */
enum role {
    NOTHING,
    SEND_BUFFER,
    RECV_BUFFER,
    RECV_COPY,  /* a copy of what is in the receive buffer, which is taken in place */
    RECV_BLOCK, /* this rank's block of it */
    OWN_MEMORY, /* where nobody looks */
    PACKED,     /* the same, where a message without its gaps passes */
};

/* Everything that a decision depends on: the same words, the same decision. */
typedef struct {
    int64_t which;
    int64_t n_bytes;   /* of the message, or of one block */
    int64_t root;
    int64_t datatype;  /* of a reduction; else 0 */
    int64_t operation; /* the same */
    int64_t form;      /* what else counts; see calls.c */
} call_key;

/* The engine's call_t, as far as we fill it in: see gridcoll/engine/compiled.c. */
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
    int64_t tag; /* under which calls are stamped; -1 where nothing is learned from them */
    int64_t input, output; /* roles */
    int64_t input_bytes, output_bytes, scratch_bytes;
    void *scratch, *own; /* kept where they are short */
} known_call;

/* Calls of one communicator that Python is yet to learn from. All ranks count the same calls, so
 * that all turn to Python after the same one. See launch/preload/bridge.py. */
typedef struct {
    int64_t left;     /* calls until Python is to hear of them */
    int64_t stale;    /* whether decisions changed: about all kinds, Python is to be asked anew */
    int64_t n_calls;  /* since Python has heard of any */
    int64_t total_ns; /* what they took */
    struct {
        int64_t tag, entry_ns, exit_ns;
    } last[N_STAMPS]; /* the k-th call in place k modulo N_STAMPS */
} stamped_calls;

typedef struct comm_record {
    word handle;
    struct comm_record *next;
    int rank, n_ranks;
    int is_native; /* nothing can be gained on it */
    int n_known;
    stamped_calls *stamped; /* Python's; null where nothing is learned */
    known_call *known[N_SLOTS];
} comm_record;

/* A call as it is under way. */
typedef struct {
    int which, large, profiling; /* large: counts are MPI_Count; profiling: called as PMPI_X */
    const word *args;
    word comm;
    const char *send;
    char *recv;
    word datatype, operation; /* of a reduction */
    int failure;              /* of which the application's handler is yet to hear */
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
    int64_t (*begin)(void);           /* collective; whether there is a grid */
    int64_t (*open)(question *);      /* a communicator seen first; whether it is worth anything */
    int64_t (*decide)(question *);    /* a call of a new kind; its action */
    int64_t (*perform)(question *);   /* a call that goes through Python */
    int64_t (*learn)(int64_t comm);   /* from stamped calls; collective. An error, or 0 */
    void (*clear)(int64_t comm);      /* forget the decisions of a communicator */
    void (*forget)(int64_t comm);     /* and all else of it */
    void (*look)(void);               /* for new sockets: see engine/watch.py */
    void (*finish)(void);
    int64_t errors_return;     /* MPI_ERRORS_RETURN */
    const int64_t *operations; /* MPI's own, by handle; ends with 0 */
    /* the engine in C, or null */
    void *(*run_begin)(const void *, const void *, const void *);
    int (*run)(void *, void *, int64_t);
    int64_t (*run_end)(void *);
    int64_t *wait; /* how it waits, wherever it is called from */
} python_half;

/* natives.c */
typedef struct {
    int is_int; /* handles */
    word world, self, fatal, type_int, op_min, comm_null, type_null, op_null, in_place;
    word count_error, other_error;
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
extern __thread int inside __attribute__((tls_model("initial-exec")));

void *next_function(const char *name);
int is_behind(void);
const char *meet_library(void); /* what is wrong with it; null if nothing */
int call_natively(const given_call *call);
int call_and_wait(const given_call *call);
void hold_handler(word comm, word *held);
void release_handler(word comm, word *held);
void hold_handlers(void);    /* what plans fail of goes to the caller, not to handlers */
void release_handlers(void);
word handle_of(word given); /* as MPI has it: an int or a pointer */

/* known.c */
extern int is_shared; /* whether several threads may call MPI */
comm_record *find_comm(word handle);
comm_record *enter_comm(const question *answer, int is_native);
void drop_comm(word handle, void (*before)(int64_t));
known_call *find_known(const comm_record *comm, const call_key *key);
known_call *enter_known(comm_record *comm, const question *answer);
void make_room(comm_record *comm, void (*clear)(int64_t));
void forget_stale(comm_record *comm, void (*clear)(int64_t));
void lock_known(int writes);
void unlock_known(void);

/* interpreter.c */
extern python_half python;
extern int has_grid;
extern __thread int is_loading;
void start(void);
void finish(void);
void hide_leaks(int hides); /* what this thread takes is no leak of the program's */
int has_python(void);
int agree(const char *problem); /* whether no rank has one; the lowest that has says so */

/* calls.c */
void exclude(const void *in_module); /* calls from that module are left alone */
void count_call(int which, enum action action);
uint64_t count_of_calls(int which, int action);
void print_counts(void);
void look_often(void);
int set_handler_of_mpi4py(word comm, word handler);

#endif
