/* How many calls of each collective were executed in which way. */

#include <stdio.h>

#include "gridcoll.h"

static uint64_t counts[N_COLLECTIVES][WAITING + 1];

void count_call(int which, enum action action)
{
    if (is_shared)
        __atomic_fetch_add(&counts[which][action], 1, __ATOMIC_RELAXED);
    else
        counts[which][action]++;
}

uint64_t count_of_calls(int which, int action)
{
    return which >= 0 && which < N_COLLECTIVES && action >= 0 && action <= WAITING
               ? __atomic_load_n(&counts[which][action], __ATOMIC_RELAXED)
               : 0;
}

void print_counts(void)
{
    uint64_t planned = 0, natively = 0, asked = 0;
    for (int which = 0; which < N_COLLECTIVES; which++) {
        uint64_t native = counts[which][NATIVE] + counts[which][WAITING];
        uint64_t *mine = counts[which];
        if (mine[PLAN] + mine[PYTHON] + native)
            fprintf(stderr, "gridcoll: MPI_%s: %lu planned, %lu native, %lu through Python\n",
                    collective_names[which], (unsigned long)mine[PLAN], (unsigned long)native,
                    (unsigned long)mine[PYTHON]);
        planned += mine[PLAN], natively += native, asked += mine[PYTHON];
    }
    fprintf(stderr, "gridcoll: all: %lu planned, %lu native, %lu through Python\n",
            (unsigned long)planned, (unsigned long)natively, (unsigned long)asked);
}
