/* The MPI library behind us: identify it, look up its functions, and call them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gridcoll.h"

mpi_library mpi;
__thread int inside, is_loading;
int has_windows, is_shared;

const char *const collective_names[] = {
#define NAME(name) #name,
    EACH_COLLECTIVE(NAME)
#undef NAME
};

static const int n_words[] = {5, 7, 6, 6, 6, 8, 9, 8, 9, 7, 8, 7, 9, 9, 1};

/* ---- functions by name --------------------------------------------------------------------- */

/* Whether a function is in our own library. */
static int is_ours(const void *function)
{
    Dl_info theirs, ours;
    return dladdr(function, &theirs) && dladdr((void *)next_function, &ours) &&
           theirs.dli_fbase == ours.dli_fbase;
}

/* Return the function of that name in `library`; if that is ours, the one behind it. */
void *function_in(void *library, const char *name)
{
    void *found = dlsym(library, name);
    return found && is_ours(found) ? dlsym(RTLD_NEXT, name) : found;
}

typedef struct {
    const char *name;
    void *found;
} search;

static int search_library(struct dl_phdr_info *info, size_t size, void *given)
{
    (void)size;
    search *s = given;
    const char *file = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!file || (!strstr(file, "mpi") && !strstr(file, "python")))
        return 0;
    void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    void *found = library ? dlsym(library, s->name) : NULL;
    if (library)
        dlclose(library); /* it stays loaded, because others have it open */
    if (!found || is_ours(found))
        return 0;
    s->found = found;
    return 1;
}

/* A library that was opened locally, as Python's extension modules are, is not in the global scope:
 * search for it among all loaded libraries. */
static void *find_function(void *scope, const char *name)
{
    void *found = dlsym(scope, name);
    if (found)
        return found;
    search s = {name, NULL};
    dl_iterate_phdr(search_library, &s);
    return s.found;
}

/* Return the function that would be called without our library. */
void *next_function(const char *name)
{
    return find_function(RTLD_NEXT, name);
}

static void *any_function(const char *name)
{
    return find_function(RTLD_DEFAULT, name);
}

/* Whether a profiler's MPI_Init comes before ours: it can handle calls only after ours has ended. */
int has_profiler_in_front(void) { return !is_ours(any_function("MPI_Init")); }

/* mpi4py sets error handlers when it is imported. The application's handlers must not change, and must
 * stay unset if they are: see hold_handler. */
int set_errhandler(const char *name, word comm, word handler)
{
    int (*next)(word, word) = (int (*)(word, word))next_function(name);
    return is_loading ? 0 : next ? next(comm, handler) : 1;
}

static int set_handler_of_mpi4py(word comm, word handler)
{
    return set_errhandler("PMPI_Comm_set_errhandler", comm, handler);
}

/* A module that is loaded calls `MPI_Send` through a slot that the loader filled with the first
 * function of that name: a profiler's. Fill the slots of such names with MPI's own, `PMPI_Send`.
 * `at` are the module's relocations, which say where its slots are and how each is named. */
static void bind_past(uintptr_t base, const ElfW(Rela) *at, size_t n_bytes,
                      const ElfW(Sym) *symbols, const char *names_at)
{
    for (; n_bytes >= sizeof *at; at++, n_bytes -= sizeof *at) {
        char name[128] = "P";
        const char *given = names_at + symbols[ELF64_R_SYM(at->r_info)].st_name;
        void **slot = (void **)(base + at->r_offset), *found = NULL;
        if (!ELF64_R_SYM(at->r_info) || at->r_addend || strncmp(given, "MPI_", 4) ||
            strlen(given) > 100 || !(found = next_function(strcat(name, given))))
            continue;
        if (!strcmp(given, "MPI_Comm_set_errhandler"))
            found = (void *)set_handler_of_mpi4py;
        uintptr_t page = (uintptr_t)slot & ~(uintptr_t)(getpagesize() - 1);
        if (!mprotect((void *)page, (size_t)getpagesize(), PROT_READ | PROT_WRITE))
            *slot = found;
    }
}

/* Called for each loaded module: bind the one that contains the address `given`. */
static int bind_module(struct dl_phdr_info *info, size_t size, void *given)
{
    (void)size;
    Dl_info of;
    const ElfW(Dyn) *each = NULL;
    for (int k = 0; k < info->dlpi_phnum; k++)
        if (info->dlpi_phdr[k].p_type == PT_DYNAMIC)
            each = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr);
    if (!each || !dladdr(given, &of) || (uintptr_t)of.dli_fbase != info->dlpi_addr)
        return 0;
    uintptr_t found[DT_JMPREL + 1] = {0};
    for (; each->d_tag != DT_NULL; each++)
        if (each->d_tag > 0 && each->d_tag <= DT_JMPREL)
            found[each->d_tag] = each->d_un.d_ptr;
    if (found[DT_STRTAB] < info->dlpi_addr || !found[DT_SYMTAB])
        return 1; /* the loader did not relocate the addresses, as musl's does not */
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)found[DT_SYMTAB];
    const char *strings = (const char *)found[DT_STRTAB];
    bind_past(info->dlpi_addr, (const void *)found[DT_RELA], found[DT_RELASZ], symbols, strings);
    bind_past(info->dlpi_addr, (const void *)found[DT_JMPREL], found[DT_PLTRELSZ], symbols,
              strings);
    return 1;
}

/* Let calls of the module that contains this address bypass profilers and our library. */
__attribute__((visibility("default"))) void gridcoll_bind_past(const void *in_module)
{
    dl_iterate_phdr(bind_module, (void *)in_module);
}

/* ---- identifying the library --------------------------------------------------------------- */

enum { /* of MPICH and all libraries with its binary interface */
    MPICH_WORLD = 0x44000000,
    MPICH_SELF = 0x44000001,
    MPICH_INT = 0x4c000405,
    MPICH_MIN = 0x58000002,
    MPICH_COMM_NULL = 0x04000000,
    MPICH_TYPE_NULL = 0x0c000000,
    MPICH_OP_NULL = 0x18000000,
    MPICH_FATAL = 0x54000000,
    MPICH_NAMED = 1,
};

enum { /* of the binary interface (ABI) of MPI 5 */
    ABI_WORLD = 0x101,
    ABI_SELF = 0x102,
    ABI_COMM_NULL = 0x100,
    ABI_INT = 0x209,
    ABI_TYPE_NULL = 0x200,
    ABI_MIN = 0x22,
    ABI_OP_NULL = 0x20,
    ABI_NAMED = 101,
    ABI_THREAD_MULTIPLE = 4096,
};

word handle_of(word given) { return mpi.is_int ? (word)(int)given : given; }

/* Identify the library behind us. Return what is wrong with it; null if nothing is. */
const char *identify_library(void)
{
    int (*abi_version)(int *, int *) = next_function("PMPI_Abi_get_version");
    int abi = -1, minor = -1, length = 0;
    char version[8192] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING, at most */
    int (*library_version)(char *, int *) = next_function("PMPI_Get_library_version");
    void *world = any_function("ompi_mpi_comm_world");
    if (library_version)
        library_version(version, &length);
    mpi.thread_multiple = 3;
    mpi.count_error = 2, mpi.other_error = 16; /* MPI_ERR_COUNT, MPI_ERR_OTHER */
    mpi.in_place = 1;
    if (world) {
        mpi.world = (word)world, mpi.self = (word)any_function("ompi_mpi_comm_self");
        mpi.comm_null = (word)any_function("ompi_mpi_comm_null");
        mpi.type_int = (word)any_function("ompi_mpi_int");
        mpi.type_null = (word)any_function("ompi_mpi_datatype_null");
        mpi.op_min = (word)any_function("ompi_mpi_op_min");
        mpi.op_null = (word)any_function("ompi_mpi_op_null");
        mpi.named = 0;
    } else if (abi_version && !abi_version(&abi, &minor) && abi > 0) {
        mpi.world = ABI_WORLD, mpi.self = ABI_SELF, mpi.comm_null = ABI_COMM_NULL;
        mpi.type_int = ABI_INT, mpi.type_null = ABI_TYPE_NULL;
        mpi.op_min = ABI_MIN, mpi.op_null = ABI_OP_NULL;
        mpi.named = ABI_NAMED, mpi.thread_multiple = ABI_THREAD_MULTIPLE;
    } else if (strstr(version, "MPICH") || strstr(version, "Intel(R) MPI") ||
               strstr(version, "MVAPICH") || strstr(version, "CRAY MPICH")) {
        mpi.is_int = 1;
        mpi.world = MPICH_WORLD, mpi.self = MPICH_SELF, mpi.comm_null = MPICH_COMM_NULL;
        mpi.type_int = MPICH_INT, mpi.type_null = MPICH_TYPE_NULL;
        mpi.op_min = MPICH_MIN, mpi.op_null = MPICH_OP_NULL;
        mpi.named = MPICH_NAMED, mpi.fatal = MPICH_FATAL;
        mpi.in_place = -1, mpi.other_error = 15;
    } else
        return "an MPI library that gridcoll does not know; it runs without gridcoll";
    const struct { const char *name; void *at; } needed[] = {
        {"PMPI_Comm_rank", &mpi.comm_rank},
        {"PMPI_Comm_size", &mpi.comm_size},
        {"PMPI_Comm_test_inter", &mpi.comm_test_inter},
        {"PMPI_Comm_call_errhandler", &mpi.comm_call_errhandler},
        {"PMPI_Comm_get_errhandler", &mpi.comm_get_errhandler},
        {"PMPI_Comm_set_errhandler", &mpi.comm_set_errhandler},
        {"PMPI_Errhandler_free", &mpi.errhandler_free},
        {"PMPI_Comm_create_keyval", &mpi.comm_create_keyval},
        {"PMPI_Comm_set_attr", &mpi.comm_set_attr},
        {"PMPI_Type_size", &mpi.type_size},
        {"PMPI_Type_get_extent", &mpi.type_get_extent},
        {"PMPI_Type_get_envelope", &mpi.type_get_envelope},
        {"PMPI_Op_commutative", &mpi.op_commutative},
        {"PMPI_Pack", &mpi.pack},
        {"PMPI_Unpack", &mpi.unpack},
        {"PMPI_Pack_size", &mpi.pack_size},
        {"PMPI_Test", &mpi.test},
        {"PMPI_Query_thread", &mpi.query_thread},
    };
    for (unsigned k = 0; k < sizeof needed / sizeof *needed; k++) {
        void *function = next_function(needed[k].name);
        if (!function)
            return "an MPI library without all functions of MPI 2; it runs without gridcoll";
        memcpy(needed[k].at, &function, sizeof function);
    }
    return NULL;
}

/* ---- calls --------------------------------------------------------------------------------- */

typedef int (*f1)(word);
typedef int (*f5)(word, word, word, word, word);
typedef int (*f6)(word, word, word, word, word, word);
typedef int (*f7)(word, word, word, word, word, word, word);
typedef int (*f8)(word, word, word, word, word, word, word, word);
typedef int (*f9)(word, word, word, word, word, word, word, word, word);
typedef int (*f10)(word, word, word, word, word, word, word, word, word, word);

static int call_with(void *function, int n, const word *a)
{
    switch (n) {
    case 1: return ((f1)function)(a[0]);
    case 2: return ((int (*)(word, word))function)(a[0], a[1]);
    case 5: return ((f5)function)(a[0], a[1], a[2], a[3], a[4]);
    case 6: return ((f6)function)(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7: return ((f7)function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 8: return ((f8)function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    case 9: return ((f9)function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
    default:
        return ((f10)function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]);
    }
}

static void *functions[N_COLLECTIVES][2][2], *starters[N_COLLECTIVES][2];

static void *function_of(const given_call *call)
{
    void **known = &functions[call->which][call->large][call->profiling];
    if (!*known) {
        char name[64] = "PMPI_";
        strcat(strcat(name, collective_names[call->which]), call->large ? "_c" : "");
        *known = next_function(name + !call->profiling);
    }
    return *known;
}

/* Call a library that has no large counts, with small ones. mpi4py, for example, finds our functions
 * with large counts, and concludes that the library has them. */
static int call_without_large(const given_call *call)
{
    static const struct { signed char counts[2], arrays[4]; } where[] = {
        [Bcast] = {{1, -1}, {-1, -1, -1, -1}},
        [Reduce] = {{2, -1}, {-1, -1, -1, -1}},
        [Allreduce] = {{2, -1}, {-1, -1, -1, -1}},
        [Reduce_scatter] = {{-1, -1}, {2, -1, -1, -1}},
        [Reduce_scatter_block] = {{2, -1}, {-1, -1, -1, -1}},
        [Gather] = {{1, 4}, {-1, -1, -1, -1}},
        [Gatherv] = {{1, -1}, {4, 5, -1, -1}},
        [Scatter] = {{1, 4}, {-1, -1, -1, -1}},
        [Scatterv] = {{5, -1}, {1, 2, -1, -1}},
        [Allgather] = {{1, 4}, {-1, -1, -1, -1}},
        [Allgatherv] = {{1, -1}, {4, 5, -1, -1}},
        [Alltoall] = {{1, 4}, {-1, -1, -1, -1}},
        [Alltoallv] = {{-1, -1}, {1, 2, 5, 6}},
        [Alltoallw] = {{-1, -1}, {1, 2, 5, 6}},
        [Barrier] = {{-1, -1}, {-1, -1, -1, -1}},
    };
    given_call small = *call;
    word args[MOST_WORDS + 1];
    int n_ranks = 0, too_long = 0;
    int (*size_of_comm)(word, int *) = next_function("PMPI_Comm_size");
    int (*remote_size)(word, int *) = next_function("PMPI_Comm_remote_size");
    int (*is_inter)(word, int *) = next_function("PMPI_Comm_test_inter");
    int inter = 0, n_remote = 0;
    memcpy(args, call->args, (size_t)n_words[call->which] * sizeof *args);
    small.large = 0, small.args = args;
    void *function = function_of(&small);
    if (!function || !size_of_comm || size_of_comm(call->comm, &n_ranks))
        return (int)mpi.other_error;
    if (is_inter && remote_size && !is_inter(call->comm, &inter) && inter &&
        !remote_size(call->comm, &n_remote) && n_remote > n_ranks)
        n_ranks = n_remote;
    for (int k = 0; k < 2; k++) {
        int at = where[call->which].counts[k];
        too_long |= at >= 0 && args[at] != (int)args[at];
    }
    int *copies[4] = {NULL, NULL, NULL, NULL};
    for (int k = 0; k < 4; k++) {
        int at = where[call->which].arrays[k];
        if (at < 0 || !args[at])
            continue;
        if (inter && call->which == Reduce_scatter) {
            int n_local = 0;
            size_of_comm(call->comm, &n_local);
            n_ranks = n_local;
        }
        const int64_t *given = (const int64_t *)args[at];
        copies[k] = malloc((size_t)n_ranks * sizeof **copies + 1);
        for (int rank = 0; copies[k] && rank < n_ranks; rank++) {
            too_long |= given[rank] != (int)given[rank];
            copies[k][rank] = (int)given[rank];
        }
        args[at] = (word)copies[k];
    }
    int error;
    if (too_long) {
        error = (int)mpi.count_error;
        int (*handler)(word, int) = next_function("PMPI_Comm_call_errhandler");
        if (handler)
            handler(call->comm, error);
    } else
        error = call_with(function, n_words[call->which], args);
    for (int k = 0; k < 4; k++)
        free(copies[k]);
    return error;
}

static int call_function(const given_call *call)
{
    void *function = function_of(call);
    if (!function && call->large)
        return call_without_large(call);
    return function ? call_with(function, n_words[call->which], call->args) : 1;
}

/* Meanwhile, leave alone the MPI functions that the library calls itself. */
int call_natively(const given_call *call)
{
    if (inside)
        return call_function(call);
    inside = 1;
    int error = call_function(call);
    inside = 0;
    return error;
}

/* ---- error handlers ------------------------------------------------------------------------ */

/* An error of a request that belongs to no communicator goes to the handler of MPI_COMM_SELF, or of
 * the world in older libraries. That handler is the application's, and may end the job. While plans
 * run, errors of these two communicators are returned instead. */

static pthread_mutex_t handlers_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_holding;
static word held[2];

/* In MPICH, communicators have no handler until one is set. Errors of such communicators go to the
 * handler of MPI_COMM_SELF or, if it has none, of the world, although MPI reports the handler that
 * ends the job. As a handler cannot be unset again, we do not set one then: those two serve. */
static int may_be_unset(word handler) { return mpi.is_int && handler == mpi.fatal; }

void hold_handler(word comm, word *handler)
{
    mpi.comm_get_errhandler(comm, handler);
    if (comm == mpi.world || !may_be_unset(handle_of(*handler)))
        mpi.comm_set_errhandler(comm, mpi.errors_return);
}

void release_handler(word comm, word *handler)
{
    if (comm == mpi.world || !may_be_unset(handle_of(*handler)))
        mpi.comm_set_errhandler(comm, handle_of(*handler));
    mpi.errhandler_free(handler);
}

static word *handler_comms(void)
{
    static word comms[2];
    comms[0] = mpi.world, comms[1] = mpi.self;
    return comms;
}

void hold_handlers(void)
{
    pthread_mutex_lock(&handlers_lock);
    for (int k = 0; k < 2 && !n_holding; k++)
        hold_handler(handler_comms()[k], &held[k]);
    n_holding++;
    pthread_mutex_unlock(&handlers_lock);
}

void release_handlers(void)
{
    pthread_mutex_lock(&handlers_lock);
    n_holding--;
    for (int k = 0; k < 2 && !n_holding; k++)
        release_handler(handler_comms()[k], &held[k]);
    pthread_mutex_unlock(&handlers_lock);
}

/* Execute a call by its non-blocking form, waiting politely: see gridcoll/engine/waiting.py. */
int call_and_wait(const given_call *call)
{
    void **starter = &starters[call->which][call->large];
    if (!*starter) {
        char name[64] = "PMPI_I";
        strcat(name, collective_names[call->which]);
        name[6] = (char)(name[6] + 'a' - 'A');
        *starter = next_function(strcat(name, call->large ? "_c" : ""));
    }
    if (!*starter)
        return call_natively(call);
    word args[MOST_WORDS + 1], request = 0, status[8];
    int n = n_words[call->which], done = 0, error;
    memcpy(args, call->args, (size_t)n * sizeof *args);
    args[n] = (word)&request;
    error = call_with(*starter, n + 1, args);
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    while (!error) {
        for (int poll = 0; poll < 8 && !done && !error; poll++)
            error = mpi.test(&request, &done, status);
        if (done || error)
            break;
        clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t ns = (now.tv_sec - began.tv_sec) * 1000000000ll + now.tv_nsec - began.tv_nsec;
        if (ns < 50000) {
            sched_yield();
            continue;
        }
        ns /= 100;
        ns = ns < 10000 || has_windows ? 10000 : ns > 1000000 ? 1000000 : ns;
        struct timespec pause = {0, (long)ns};
        nanosleep(&pause, NULL);
    }
    return error;
}
