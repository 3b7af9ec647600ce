/* Find Python in the process or start it, and agree among ranks whether all of them can use it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gridcoll.h"

python_half python;
int has_grid;
addresses excluded;

static int world_rank, world_size = 1;
static int is_linked_in; /* Python is linked into the program, which may start it later */
static int is_started; /* by us, also if it is the program's */
static int is_claimed; /* the program has called for its start */

/* PyStatus of cpython/initconfig.h, since Python 3.8. */
typedef struct {
    int type; /* 0: no error */
    const char *function, *message;
    int exit_code;
} py_status;

enum { MOST_CONFIG_BYTES = 16384 }; /* a PyConfig needs about 500 */

static struct {
    int (*is_initialized)(void);
    void (*config_init)(void *);
    py_status (*config_set_argv)(void *, int64_t, char *const *);
    py_status (*initialize)(const void *);
    void (*config_clear)(void *);
    int (*run)(const char *);
    int (*ensure)(void);
    void (*release)(int);
    int (*has_lock)(void);
    void *(*save_thread)(void);
} py;

/* ---- agreement of ranks -------------------------------------------------------------------- */

static void say(const char *text)
{
    fprintf(stderr, "gridcoll: %s\n", text);
    fflush(stderr);
}

/* Whether no rank has a problem. Otherwise the lowest rank with a problem prints it, for all. */
int agree(const char *problem)
{
    int (*allreduce)(const void *, void *, int, word, word, word) =
        next_function("PMPI_Allreduce");
    int mine = problem ? world_rank : world_size, lowest = -1;
    if (!allreduce || allreduce(&mine, &lowest, 1, mpi.type_int, mpi.op_min, mpi.world))
        return 0;
    if (lowest == world_rank && problem) {
        char line[1024];
        snprintf(line, sizeof line, "rank %d: %s; all ranks run without gridcoll", world_rank,
                 problem);
        say(line);
    }
    return lowest == world_size;
}

/* ---- finding Python ------------------------------------------------------------------------ */

static int find_names(void *library)
{
    const struct { const char *name; void *at; } wanted[] = {
        {"Py_IsInitialized", &py.is_initialized},
        {"PyConfig_InitIsolatedConfig", &py.config_init},
        {"PyConfig_SetBytesArgv", &py.config_set_argv},
        {"Py_InitializeFromConfig", &py.initialize},
        {"PyConfig_Clear", &py.config_clear},
        {"PyRun_SimpleString", &py.run},
        {"PyGILState_Ensure", &py.ensure},
        {"PyGILState_Release", &py.release},
        {"PyGILState_Check", &py.has_lock},
        {"PyEval_SaveThread", &py.save_thread},
    };
    int missing = 0;
    for (unsigned k = 0; k < sizeof wanted / sizeof *wanted; k++) {
        void *function = function_in(library, wanted[k].name);
        memcpy(wanted[k].at, &function, sizeof function);
        missing |= !function;
    }
    return !missing;
}

/* Whether a module other than the Python library uses functions for configuring Python's start. */
static int sets_up_python(struct dl_phdr_info *info, size_t size, void *library)
{
    static const char names[][32] = {
        "Py_InitializeFromConfig", "Py_SetPath", "Py_SetPythonHome", "Py_Main", "Py_BytesMain",
        "PyImport_AppendInittab", "PyImport_ExtendInittab"};
    const char *strings = NULL;
    size_t n_bytes = 0;
    Dl_info ours;
    (void)size;
    if (dladdr((void *)start, &ours) && (uintptr_t)ours.dli_fbase == info->dlpi_addr)
        return 0;
    for (int k = 0; k < info->dlpi_phnum && strcmp(info->dlpi_name, library); k++) {
        if (info->dlpi_phdr[k].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const void *)(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag == DT_STRTAB)
                strings = (const char *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRSZ)
                n_bytes = entry->d_un.d_val;
        }
    }
    if ((uintptr_t)strings < info->dlpi_addr) /* the kernel's module has unrelocated addresses */
        strings = NULL;
    for (unsigned k = 0; k < sizeof names / sizeof *names && strings; k++)
        if (memmem(strings, n_bytes, names[k], strlen(names[k]) + 1))
            return 1;
    return 0;
}

static const char *last_part(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "";
}

/* Whether we can start the program's own Python, which it has not started yet: its later
 * Py_Initialize then does nothing. The thread that calls MPI keeps Python's lock, as after
 * Py_Initialize, so other threads must not call MPI: they would wait for the lock. */
static int can_start(int level)
{
    Dl_info library;
    return 2 * level < mpi.thread_multiple && !getenv("PYTHONHOME") &&
           dladdr((void *)py.is_initialized, &library) &&
           !strcmp(last_part(library.dli_fname), last_part(getenv("GRIDCOLL_LIBPYTHON"))) &&
           !dl_iterate_phdr(sets_up_python, (void *)library.dli_fname);
}

/* Find the Python library. Return what is wrong; null if nothing is. */
static const char *find_python(int level)
{
    static char problem[512];
    if (function_in(RTLD_DEFAULT, "Py_IsInitialized")) {
        if (!find_names(RTLD_DEFAULT))
            return "a Python that gridcoll cannot use";
        is_linked_in = !py.is_initialized();
        return !is_linked_in || can_start(level) ? NULL
                                            : "the program is to start a Python of its own: let it "
                                              "call Py_Initialize before MPI_Init";
    }
    const char *path = getenv("GRIDCOLL_LIBPYTHON");
    if (!path || !*path)
        return "GRIDCOLL_LIBPYTHON is not set: start the program by gridcoll run, or set what "
               "gridcoll preload prints";
    /* Globally, because extension modules of Python need its symbols. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        snprintf(problem, sizeof problem, "no Python library: %s", dlerror());
        return problem;
    }
    if (!find_names(library)) {
        snprintf(problem, sizeof problem, "%s: no Python library that gridcoll can use", path);
        return problem;
    }
    return NULL;
}

/* ---- starting Python ----------------------------------------------------------------------- */

static const char *const thread_limits[] = {
    "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"};
enum { N_LIMITS = sizeof thread_limits / sizeof *thread_limits };

/* Start an isolated Python: without signal handlers, without changing the locale, and ignoring
 * PYTHONHOME, which may be meant for another Python. Python finds its virtual environment by the
 * program's name. */
static const char *initialize(const char *program)
{
    static char problem[512];
    void *config = calloc(1, MOST_CONFIG_BYTES);
    if (!config)
        return "no memory for Python";
    char *argv[] = {(char *)(program && *program ? program : "python3"), NULL};
    py.config_init(config);
    py_status status = py.config_set_argv(config, 1, argv);
    if (!status.type)
        status = py.initialize(config);
    py.config_clear(config);
    free(config);
    if (!status.type)
        return is_started = 1, NULL;
    snprintf(problem, sizeof problem, "Python does not start: %s",
             status.message ? status.message : "it does not say why");
    return problem;
}

/* Use only a function, and delete it: if the application is Python, this is its namespace. */
static const char bootstrap[] =
    "def gridcoll_load(embedded, behind, root, library):\n"
    "    try:\n"
    "        import os, sys\n"
    "        if embedded:\n"
    "            sys.dont_write_bytecode = bool(os.environ.get('PYTHONDONTWRITEBYTECODE'))\n"
    "            sys.path[:0] = filter(None, os.environ.get('PYTHONPATH', '').split(':'))\n"
    "        if embedded > 1:\n" /* as the program would have it, then what we need */
    "            import site\n"
    "            site.addsitedir(site.getusersitepackages())\n"
    "            ours = os.path.dirname(os.path.dirname(os.environ.get('GRIDCOLL_PYTHON', '')))\n"
    "            sys.path.append(f'{ours}/lib/python%%d.%%d/site-packages' %% sys.version_info[:2])\n"
    "        sys.path.insert(0, root)\n"
    "        try:\n"
    "            if behind:\n" /* before the module calls MPI */
    "                from ctypes import CDLL, c_void_p, cast\n"
    "                from importlib.util import find_spec\n"
    "                start = CDLL(find_spec('mpi4py.MPI').origin).PyInit_MPI\n"
    "                CDLL(library).gridcoll_bind_past(cast(start, c_void_p))\n"
    "            from gridcoll.launch.preload.bridge import attach\n"
    "        finally:\n"
    "            sys.path.remove(root)\n"
    "        attach(library, embedded, behind)\n"
    "    except BaseException as error:\n"
    "        import ctypes\n"
    "        text = f'{type(error).__name__}: {error}'.splitlines()[0].encode()\n"
    "        ctypes.CDLL(library).gridcoll_report(text)\n"
    "gridcoll_load(%d, %d, %s, %s)\n"
    "del gridcoll_load\n";

/* Pause only shortly if this rank has windows: MPI serves accesses of other ranks only in calls. */
void look_often(void)
{
    if (has_windows && python.wait)
        python.wait[LONGEST_PAUSE] = python.wait[FIRST_PAUSE];
}

static char import_problem[512];

__attribute__((visibility("default"))) void gridcoll_report(const char *text)
{
    snprintf(import_problem, sizeof import_problem, "gridcoll cannot be loaded: %s", text);
}

__attribute__((visibility("default"))) void gridcoll_attach(const python_half *half)
{
    if (half->interface == INTERFACE)
        python = *half, mpi.errors_return = handle_of((word)half->errors_return), look_often();
    else
        gridcoll_report("its library and its Python are of different versions; install it again");
}

__attribute__((visibility("default"))) int64_t gridcoll_calls(int which, int action)
{
    return count_of_calls(which, action);
}

/* Write a path as a Python literal. */
static void quote(const char *path, char *quoted, size_t size)
{
    size_t at = 0;
    quoted[at++] = '\'';
    for (; *path && at + 4 < size; path++) {
        if (*path == '\'' || *path == '\\')
            quoted[at++] = '\\';
        quoted[at++] = *path;
    }
    quoted[at++] = '\'';
    quoted[at] = 0;
}

static const char *import_half(int is_running)
{
    Dl_info ours;
    if (!dladdr((void *)start, &ours) || !ours.dli_fname)
        return "its library cannot be found";
    char root[4096], quoted_root[4200], quoted_library[4200];
    snprintf(root, sizeof root, "%s", ours.dli_fname);
    for (int up = 0; up < 4; up++) { /* gridcoll/launch/preload/libgridcoll.so */
        char *slash = strrchr(root, '/');
        if (!slash)
            return "its library is not where it was installed";
        *slash = 0;
    }
    quote(root, quoted_root, sizeof quoted_root);
    quote(ours.dli_fname, quoted_library, sizeof quoted_library);
    char code[sizeof bootstrap + 2 * 4200];
    snprintf(code, sizeof code, bootstrap, is_running ? 0 : 1 + is_linked_in,
             !is_running && has_profiler_in_front(), quoted_root, quoted_library);
    import_problem[0] = 0;
    if (py.run(code))
        return "gridcoll cannot be loaded";
    if (import_problem[0])
        return import_problem;
    return python.begin ? NULL : "gridcoll cannot be loaded";
}

/* Load the library of name.c if MPICH has another name than mpi4py needs, as on Debian. */
static void load_name(void)
{
    Dl_info ours;
    char path[4200];
    void *library = mpi.is_int ? dlopen("libmpi.so.12", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library || !mpi.is_int || !dladdr((void *)start, &ours))
        return;
    snprintf(path, sizeof path, "%s", ours.dli_fname);
    char *slash = strrchr(path, '/');
    if (slash && (size_t)(slash - path) + 20 < sizeof path) {
        strcpy(slash, "/libmpi-name.so");
        dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
}

/* Load our Python half. Return what is wrong, or null. The application's error handlers and thread
 * limits are restored afterwards. */
static const char *load_half(int is_running)
{
    int was_set[N_LIMITS];
    for (int k = 0; k < N_LIMITS; k++)
        if (!(was_set[k] = getenv(thread_limits[k]) != NULL))
            setenv(thread_limits[k], "1", 0);
    word before[2] = {0, 0}, after = 0, comms[2] = {mpi.world, mpi.self};
    for (int k = 0; k < 2; k++)
        mpi.comm_get_errhandler(comms[k], &before[k]);
    is_loading = 1;
    const char *problem = NULL;
    load_name();
    if (is_running) {
        int state = py.ensure();
        problem = import_half(is_running);
        py.release(state);
    } else if (!(problem = initialize(is_linked_in ? NULL : getenv("GRIDCOLL_PYTHON")))) {
        problem = import_half(is_running);
        if (!is_linked_in)
            py.save_thread(); /* release the lock; later calls acquire it again */
    }
    is_loading = 0;
    for (int k = 0; k < 2; k++) { /* an mpi4py that calls the library directly has set them */
        mpi.comm_get_errhandler(comms[k], &after);
        if (handle_of(after) != handle_of(before[k]))
            mpi.comm_set_errhandler(comms[k], handle_of(before[k]));
        mpi.errhandler_free(&before[k]);
        mpi.errhandler_free(&after);
    }
    for (int k = 0; k < N_LIMITS; k++)
        if (!was_set[k])
            unsetenv(thread_limits[k]);
    return problem;
}

/* Leak checkers, such as AddressSanitizer's, do not search Python's own memory for pointers: they
 * would report everything that Python holds until the end. */
static void (*leak_switches[2])(void);

void hide_leaks(int hides)
{
    if (leak_switches[hides])
        leak_switches[hides]();
}

/* ---- start and end of the job -------------------------------------------------------------- */

static void load_and_begin(int is_running)
{
    void *hide = dlsym(RTLD_DEFAULT, "__lsan_disable"), *show = dlsym(RTLD_DEFAULT, "__lsan_enable");
    memcpy(&leak_switches[1], &hide, sizeof hide), memcpy(&leak_switches[0], &show, sizeof show);
    hide_leaks(1);
    const char *problem = load_half(is_running);
    if (agree(problem))
        has_grid = (int)python.begin();
    hide_leaks(0);
}

/* If mpi4py is just being imported, which starts MPI, load our half when the import has ended:
 * importlib then changes an attribute of the module's specification. */
static const char load_when_imported[] =
    "def gridcoll_load_then(library):\n"
    "    import ctypes, sys\n"
    "    from importlib.machinery import ModuleSpec\n"
    "    load = ctypes.CDLL(library).gridcoll_load_late\n"
    "    class Spec(ModuleSpec):\n"
    "        def __setattr__(self, name, value):\n"
    "            super().__setattr__(name, value)\n"
    "            if name == '_initializing' and not value:\n"
    "                self.__class__ = ModuleSpec\n"
    "                load()\n"
    "    spec = getattr(sys.modules.get('mpi4py.MPI'), '__spec__', None)\n"
    "    if getattr(spec, '_initializing', False):\n"
    "        spec.__class__ = Spec\n"
    "    else:\n"
    "        load()\n"
    "gridcoll_load_then(%s)\n"
    "del gridcoll_load_then\n";

/* The application ends its Python: from now on all calls are native. */
__attribute__((visibility("default"))) void gridcoll_end(void) { has_grid = 0; }

__attribute__((visibility("default"))) void gridcoll_load_late(void)
{
    int was_inside = inside;
    inside = 1;
    load_and_begin(1);
    inside = was_inside;
}

static void run_in_python(const char *code)
{
    int state = py.ensure();
    py.run(code);
    py.release(state);
}

static void load_in_python(void)
{
    char quoted[4200], code[sizeof load_when_imported + 4200];
    Dl_info ours;
    if (!dladdr((void *)start, &ours))
        return;
    quote(ours.dli_fname, quoted, sizeof quoted);
    snprintf(code, sizeof code, load_when_imported, quoted);
    run_in_python(code);
}

/* Whether this is the first rank according to the launcher, or the launcher does not tell. */
static int is_first(void)
{
    static const char *const names[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                        "SLURM_PROCID"};
    const char *first = NULL;
    for (unsigned k = 0; k < sizeof names / sizeof *names && !first; k++)
        first = getenv(names[k]);
    return !first || !strcmp(first, "0");
}

/* The program starts Python, perhaps from a library that it has just loaded. It gets the one that we started,
 * in the state that it expects after the call: this thread holds Python's lock. */
static void claim_python(void)
{
    if (!is_started || inside || !has_python())
        return;
    is_claimed = 1;
    if (!py.has_lock())
        py.ensure();
}

#define VISIBLE __attribute__((visibility("default")))

VISIBLE void Py_Initialize(void)
{
    void (*next)(void) = next_function("Py_Initialize");
    claim_python();
    if (next)
        next();
}

VISIBLE void Py_InitializeEx(int sets_handlers)
{
    void (*next)(int) = next_function("Py_InitializeEx");
    claim_python();
    if (next)
        next(sets_handlers);
}

VISIBLE py_status Py_InitializeFromConfig(const void *config)
{
    py_status (*next)(const void *) = next_function("Py_InitializeFromConfig");
    claim_python();
    return next(config); /* applies its settings, also to a Python that is started */
}

/* Programs ask whether they have to start it. */
VISIBLE int Py_IsInitialized(void)
{
    int (*next)(void) = next_function("Py_IsInitialized");
    return next && (!is_started || is_claimed || inside) ? next() : 0;
}

/* A Python that we started must live until MPI ends: other ranks may need this one. */
static int end_python(const char *name)
{
    int (*next)(void) = next_function(name);
    if (is_started && has_grid && has_python() && !inside)
        return is_claimed = 0, py.run("print(end='', flush=True)");
    return next ? next() : 0;
}

VISIBLE int Py_FinalizeEx(void) { return end_python("Py_FinalizeEx"); }
VISIBLE void Py_Finalize(void) { end_python("Py_Finalize"); }

/* MPI was started: prepare gridcoll, on all ranks or on none. Collective. */
void start(void)
{
    const char *problem = identify_library();
    if (problem) { /* ranks cannot agree in an unknown library; but all ranks have the same one */
        if (is_first())
            say(problem);
        return;
    }
    mpi.comm_rank(mpi.world, &world_rank);
    mpi.comm_size(mpi.world, &world_size);
    int level = 0;
    mpi.query_thread(&level);
    is_shared = level == mpi.thread_multiple;
    if (!agree(find_python(level)))
        return;
    if (!py.is_initialized()) {
        if (world_size > 1) /* a single rank gains nothing, and may be one of many spawned ones */
            load_and_begin(0);
    } else if (getenv("GRIDCOLL_PRELOAD_LATER"))
        /* If mpi4py is loaded, gridcoll run replaces the world and calls gridcoll_start. MPI may be
         * started by mpi4py, or by a library of an application without mpi4py, such as GPAW. */
        run_in_python("import sys\n"
                      "if 'mpi4py.MPI' not in sys.modules:\n"
                      "    import mpi4py.MPI\n");
    else
        load_in_python();
}

/* Called for each loaded module: exclude the one that contains the address `given`. */
static int exclude_module(struct dl_phdr_info *info, size_t size, void *given)
{
    (void)size;
    uintptr_t first = UINTPTR_MAX, end = 0, at = (uintptr_t)given;
    for (int k = 0; k < info->dlpi_phnum; k++) {
        if (info->dlpi_phdr[k].p_type != PT_LOAD)
            continue;
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[k].p_vaddr;
        first = start < first ? start : first;
        end = start + info->dlpi_phdr[k].p_memsz > end ? start + info->dlpi_phdr[k].p_memsz : end;
    }
    if (at < first || at >= end)
        return 0;
    excluded.first = first, excluded.end = end;
    return 1;
}

/* For gridcoll run, when Python runs and the world was replaced. Calls from mpi4py's module are
 * excluded, because gridcoll handles its methods. Collective. */
__attribute__((visibility("default"))) void gridcoll_start(const void *in_module)
{
    inside = 1;
    dl_iterate_phdr(exclude_module, (void *)in_module);
    load_and_begin(1);
    inside = 0;
}

int has_python(void) { return py.is_initialized && py.is_initialized(); }

void finish(void)
{
    hide_leaks(1);
    if (has_grid && has_python()) /* not if mpi4py ends MPI after Python has ended */
        python.finish();
    hide_leaks(0);
    has_grid = 0;
    const char *wanted = getenv("GRIDCOLL_STATS");
    if (world_rank == 0 && wanted && !strcmp(wanted, "1"))
        print_counts();
}
