/* The loop of relay.py: carries packets between clusters over links with rates and latencies.
 *
 * It is in C because, on a machine with a few cores, the process that plays the WAN must not be the
 * busiest one. relay.py says what a link is; every declaration here has a counterpart there.
 */

#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    VNET_HEADER_BYTES = 10,
    MOST_PACKET_BYTES = 65536 + 64,
    ETHERNET_BYTES = 14,
    LINKS_PER_PATH = 3,
    MOST_READ = 64,
};

#define MAX_EARLY_S 20e-6 /* a packet may leave this long before it is due, as sleeps end late; half
                             of ROUND_TRIP_EARLY_S in probe.py */
#define SLEEPS_AVERAGED 16 /* the lateness of sleeps is averaged over about this many */

typedef struct {
    double s_per_byte, queue_s, free_s;
    int64_t n_dropped;
} link_t;

typedef struct {
    int64_t n_clusters;
    /* Another thread may change delays, losses and rates, one double at a time. */
    const double *delay_s; /* from each cluster to each */
    const double *loss;    /* the fraction of frames lost, likewise */
    const int64_t *path;   /* LINKS_PER_PATH links of each pair, -1 for none */
    link_t *links;
    double frame_overhead_bytes, wire_per_payload;
} wan_t;

typedef struct {
    double at_s;
    int64_t number;
    char *data;
    size_t n_bytes;
} packet_t;

typedef struct {
    packet_t *heap;
    size_t n, room;
} queue_t;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int before(const packet_t *a, const packet_t *b)
{
    return a->at_s < b->at_s || (a->at_s == b->at_s && a->number < b->number);
}

/* Returns 0 if there is no memory. */
static int push(queue_t *queue, packet_t packet)
{
    if (queue->n == queue->room) {
        size_t room = 2 * queue->room + 64;
        packet_t *heap = realloc(queue->heap, room * sizeof *heap);
        if (!heap)
            return 0;
        queue->heap = heap;
        queue->room = room;
    }
    size_t at = queue->n++;
    while (at && before(&packet, &queue->heap[(at - 1) / 2])) {
        queue->heap[at] = queue->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->heap[at] = packet;
    return 1;
}

static packet_t pop(queue_t *queue)
{
    packet_t first = queue->heap[0], moved = queue->heap[--queue->n];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= queue->n)
            break;
        if (child + 1 < queue->n && before(&queue->heap[child + 1], &queue->heap[child]))
            child++;
        if (!before(&queue->heap[child], &moved))
            break;
        queue->heap[at] = queue->heap[child];
        at = child;
    }
    queue->heap[at] = moved;
    return first;
}

/* Returns how many frames a packet is on the wire, as n_frames_of in relay.py. */
static size_t n_frames_of(const unsigned char *packet, size_t n_bytes)
{
    unsigned gso_type = packet[1], header = packet[2] | packet[3] << 8;
    unsigned gso = packet[4] | packet[5] << 8;
    size_t length = n_bytes - VNET_HEADER_BYTES;
    return gso_type && gso && length > header ? (length - header + gso - 1) / gso : 1;
}

/* Whether a link that loses this fraction of frames loses one of n_frames. */
static int is_lost(double loss, size_t n_frames)
{
    static uint64_t state = 0x9e3779b97f4a7c15u; /* xorshift64: the same packets every time */
    if (loss <= 0)
        return 0;
    double all_pass = 1;
    while (n_frames--)
        all_pass *= 1 - loss;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53 >= all_pass;
}

/* Returns what a packet costs a link, in bytes of application data, as payload_bytes in relay.py. */
static double payload_bytes(const wan_t *wan, size_t n_frames, size_t n_bytes)
{
    size_t length = n_bytes - VNET_HEADER_BYTES;
    return ((double)(length + ETHERNET_BYTES) +
            (double)(n_frames - 1) * wan->frame_overhead_bytes) / wan->wire_per_payload;
}

/* Returns when a packet that leaves at at_s arrives, as Wan.arrival_s in relay.py; negative if a
   queue is full. */
double gridcoll_arrival_s(const wan_t *wan, int64_t source, int64_t target, double n_bytes,
                          double at_s)
{
    int64_t pair = source * wan->n_clusters + target;
    const int64_t *path = wan->path + pair * LINKS_PER_PATH;
    double gone_s = at_s;
    for (int k = 0; k < LINKS_PER_PATH && path[k] >= 0; k++) {
        link_t *link = &wan->links[path[k]];
        if (link->free_s - at_s > link->queue_s) {
            link->n_dropped++;
            return -1.0;
        }
    }
    for (int k = 0; k < LINKS_PER_PATH && path[k] >= 0; k++) {
        link_t *link = &wan->links[path[k]];
        link->free_s = (at_s > link->free_s ? at_s : link->free_s) + n_bytes * link->s_per_byte;
        gone_s = gone_s > link->free_s ? gone_s : link->free_s;
    }
    return gone_s + wan->delay_s[pair];
}

static void take_in(const wan_t *wan, int tun, queue_t *queue, int64_t *n_seen)
{
    static unsigned char packet[MOST_PACKET_BYTES];
    double at_s = now_s();
    for (int k = 0; k < MOST_READ; k++) {
        ssize_t n_bytes = read(tun, packet, sizeof packet);
        if (n_bytes < VNET_HEADER_BYTES + 20)
            return;
        /* IPv4 source and destination are at 12 and 16; clusters count from 1 in 10.x.0.0. */
        const unsigned char *ip = packet + VNET_HEADER_BYTES;
        int64_t source = ip[13] - 1, target = ip[17] - 1, n = wan->n_clusters;
        if (ip[0] >> 4 != 4 || source < 0 || target < 0 || source >= n || target >= n)
            continue;
        size_t n_frames = n_frames_of(packet, (size_t)n_bytes);
        if (is_lost(wan->loss[source * n + target], n_frames))
            continue;
        double cost = payload_bytes(wan, n_frames, (size_t)n_bytes);
        double arrives_s = gridcoll_arrival_s(wan, source, target, cost, at_s);
        char *copy = arrives_s < 0 ? NULL : malloc((size_t)n_bytes);
        if (!copy)
            continue; /* a network drops packets for which it has no room */
        memcpy(copy, packet, (size_t)n_bytes);
        if (!push(queue, (packet_t){arrives_s, (*n_seen)++, copy, (size_t)n_bytes}))
            free(copy);
    }
}

/* Carries packets until stop is readable, as when its other end is closed; for ever if stop is
   negative. */
void gridcoll_relay(int tun, int stop, const wan_t *wan)
{
    queue_t queue = {NULL, 0, 0};
    int64_t n_seen = 0;
    double early_s = 0; /* how late recent sleeps ended, on average */
    for (;;) {
        double at_s = now_s();
        while (queue.n && queue.heap[0].at_s - early_s <= at_s) {
            packet_t packet = pop(&queue);
            ssize_t n_written = write(tun, packet.data, packet.n_bytes);
            (void)n_written; /* a network drops what it cannot deliver */
            free(packet.data);
        }
        struct timespec pause, *limit = NULL;
        double until_s = queue.n ? queue.heap[0].at_s - early_s : 0;
        if (queue.n) {
            double left_s = until_s - now_s();
            left_s = left_s > 0 ? left_s : 0;
            pause.tv_sec = (time_t)left_s;
            pause.tv_nsec = (long)((left_s - (double)pause.tv_sec) * 1e9);
            limit = &pause;
        }
        struct pollfd files[] = {{tun, POLLIN, 0}, {stop, POLLIN, 0}};
        int n_ready = ppoll(files, 2, limit, NULL);
        if (n_ready < 0)
            continue;
        if (n_ready == 0) {
            double late_s = now_s() - until_s;
            early_s += ((late_s < MAX_EARLY_S ? late_s : MAX_EARLY_S) - early_s) / SLEEPS_AVERAGED;
        }
        if (files[1].revents)
            break;
        if (files[0].revents)
            take_in(wan, tun, &queue, &n_seen);
    }
    while (queue.n)
        free(pop(&queue).data);
    free(queue.heap);
}
