/* Loads a Python library after MPI_Init and runs it, as programs with plug-ins do: started plainly or by
 * settings, with the level of threads that is given. */

#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int type;
    const char *function, *message;
    int exit_code;
} status;

static int check(const char *what, int holds)
{
    if (!holds)
        printf("wrong: %s\n", what), fflush(stdout), MPI_Abort(MPI_COMM_WORLD, 1);
    return 0;
}

#define FIND(result, name, parameters) result (*name) parameters = dlsym(RTLD_DEFAULT, #name)

int main(int argc, char **argv)
{
    int provided, rank, wrong = 0;
    MPI_Init_thread(&argc, &argv, atoi(argv[2]), &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    check("the library loads", dlopen(getenv("LIBRARY"), RTLD_NOW | RTLD_GLOBAL) != NULL);
    FIND(int, Py_IsInitialized, (void));
    FIND(void, Py_Initialize, (void));
    FIND(void, Py_Finalize, (void));
    FIND(int, PyRun_SimpleString, (const char *));
    FIND(int, PyGILState_Check, (void));
    FIND(void, PyConfig_InitIsolatedConfig, (void *));
    FIND(void, PyConfig_Clear, (void *));
    FIND(status, PyConfig_SetBytesArgv, (void *, long, char *const *));
    FIND(status, Py_InitializeFromConfig, (const void *));
    check("it is not started", !Py_IsInitialized());
    if (!strcmp(argv[1], "plain")) {
        Py_Initialize();
    } else {
        void *config = calloc(1, 16384);
        char *arguments[] = {"script", "one", NULL};
        PyConfig_InitIsolatedConfig(config);
        check("it takes arguments", !PyConfig_SetBytesArgv(config, 2, arguments).type);
        check("it starts", !Py_InitializeFromConfig(config).type);
        PyConfig_Clear(config);
        check("it has arguments", !PyRun_SimpleString("import sys\nassert sys.argv[1] == 'one'"));
    }
    check("it is started", Py_IsInitialized());
    check("this thread has its lock", PyGILState_Check());
    check("it runs", !PyRun_SimpleString("import json\nassert json.loads('[1]') == [1]"));
    MPI_Barrier(MPI_COMM_WORLD);
    Py_Finalize();
    check("it has ended", !Py_IsInitialized());
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Reduce(rank ? &wrong : MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank)
        puts("right");
    return MPI_Finalize();
}
