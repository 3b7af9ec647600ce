/* Communicators, and the kinds of calls on them whose decision is known. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gridcoll.h"

enum {
    N_BUCKETS = 256,
    MOST_KNOWN = 256,          /* per communicator, as N_FAST_CALLS of comm/context.py */
    MOST_KEPT_BYTES = 128 << 10, /* of scratch, as MOST_SCRATCH_BYTES of comm/context.py */
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static comm_record *buckets[N_BUCKETS];

void lock_known(int writes)
{
    if (is_shared)
        writes ? pthread_rwlock_wrlock(&lock) : pthread_rwlock_rdlock(&lock);
}

void unlock_known(void)
{
    if (is_shared)
        pthread_rwlock_unlock(&lock);
}

static unsigned hash(uint64_t value, unsigned n)
{
    return (unsigned)(value * 0x9E3779B97F4A7C15u >> 32) % n;
}

/* ---- communicators ------------------------------------------------------------------------- */

comm_record *find_comm(word handle)
{
    lock_known(0);
    comm_record *comm = buckets[hash((uint64_t)handle, N_BUCKETS)];
    while (comm && comm->handle != handle)
        comm = comm->next;
    unlock_known();
    return comm;
}

comm_record *add_comm(const question *answer, int is_native)
{
    comm_record *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->handle = (word)answer->comm;
    comm->rank = (int)answer->rank, comm->n_ranks = (int)answer->n_ranks;
    comm->is_native = is_native;
    comm->stamped = answer->stamped;
    comm_record **bucket = &buckets[hash((uint64_t)comm->handle, N_BUCKETS)];
    lock_known(1);
    comm->next = *bucket;
    *bucket = comm;
    unlock_known();
    return comm;
}

static void clear_comm(comm_record *comm)
{
    for (int k = 0; k < N_SLOTS; k++) {
        known_call *next, *known = comm->known[k];
        for (; known; known = next) {
            next = known->next;
            free(known->scratch);
            free(known);
        }
        comm->known[k] = NULL;
    }
    comm->n_known = 0;
}

/* Forget a communicator. First call `before`, which lets Python forget it. */
void drop_comm(word handle, void (*before)(int64_t))
{
    comm_record **at = &buckets[hash((uint64_t)handle, N_BUCKETS)];
    lock_known(1);
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    comm_record *comm = *at;
    if (comm)
        *at = comm->next;
    unlock_known();
    if (!comm)
        return;
    if (!comm->is_native)
        before(comm->handle);
    clear_comm(comm);
    free(comm);
}

/* ---- kinds of calls ------------------------------------------------------------------------ */

/* Collectives of a communicator are called one after another, so they need no lock. */

static unsigned slot_of(const call_key *key)
{
    uint64_t mixed = (uint64_t)key->n_bytes * 31 + (uint64_t)key->which * 7 +
                     (uint64_t)key->root * 1021 + (uint64_t)key->operation +
                     (uint64_t)key->datatype * 3 + (uint64_t)key->form;
    return hash(mixed, N_SLOTS);
}

known_call *find_known(const comm_record *comm, const call_key *key)
{
    known_call *known = comm->known[slot_of(key)];
    while (known && memcmp(&known->key, key, sizeof *key))
        known = known->next;
    return known;
}

/* Store an answer of Python. Return null if there is no memory. */
known_call *add_known(comm_record *comm, const question *answer)
{
    known_call *known = calloc(1, sizeof *known);
    if (!known)
        return NULL;
    known->key = answer->key;
    known->action = (enum action)answer->action;
    known->program = answer->program, known->mpi = answer->mpi;
    known->call = answer->call;
    known->tag = answer->tag;
    known->input = answer->input, known->output = answer->output;
    known->input_bytes = answer->input_bytes, known->output_bytes = answer->output_bytes;
    known->scratch_bytes = answer->scratch_bytes;
    if (answer->scratch_bytes && answer->scratch_bytes <= MOST_KEPT_BYTES)
        known->scratch = aligned_alloc(64, (size_t)(answer->scratch_bytes + 63) / 64 * 64);
    unsigned slot = slot_of(&known->key);
    known->next = comm->known[slot];
    comm->known[slot] = known;
    comm->n_known++;
    return known;
}

/* If the table is full, forget all known calls, in Python too, before Python is asked for another. */
void make_room(comm_record *comm, void (*clear)(int64_t))
{
    if (comm->n_known < MOST_KNOWN)
        return;
    clear(comm->handle);
    clear_comm(comm);
}

/* Forget all known calls if decisions changed. */
void forget_stale(comm_record *comm, void (*clear)(int64_t))
{
    if (!comm->stamped || !comm->stamped->stale)
        return;
    comm->stamped->stale = 0;
    clear(comm->handle);
    clear_comm(comm);
}
