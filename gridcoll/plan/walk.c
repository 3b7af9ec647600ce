/* Simulates a collective over trees of hosts, as tree_walk.py does: the same events in
 * the same order with the same arithmetic, so that all ranks find the same times, whether or not they
 * could compile this. It takes a tenth of the time.
 *
 * Names are those of tree_walk.py, which says what is simulated. Every declaration that Python uses
 * has its counterpart there.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum stage { UP, MEET, DOWN };
enum way { BOTH, UPWARDS, DOWNWARDS };
enum kind { DUE, FREE, ENTERS, ARRIVES, RECEIVED };

typedef struct {
    int64_t n_hosts, n_clusters;
    int64_t root;                          /* -1: none */
    int64_t way;                           /* UPWARDS: to tops; DOWNWARDS: from them; or both */
    const int64_t *cluster;                /* by host */
    const int64_t *first, *count;          /* by host: the first one of its kind, and how many */
    const double *hops_s;                  /* (C, C), to order children */
    const double *gap_s, *one_way_s;       /* (C, C) */
    const double *unblocked_s, *shared_s;  /* (C, C) */
    const double *port_s, *uplink_s;       /* by cluster */
} network_t;

typedef struct {
    int64_t n_trees, n_segments;
    const int64_t *parents;  /* (trees, hosts) */
    const int64_t *uses;     /* (segments, 2): the tree and the turn */
    double period_s, ahead_s;
    double most_s;
} trees_t;

typedef struct {
    double when_s;
    int64_t number; /* in order of creation */
    int32_t kind, host;
    int32_t segment, peer, stage;
} event_t;

typedef struct {
    event_t *items;
    int64_t n, room;
} heap_t;

typedef struct {
    const network_t *net;
    const trees_t *trees;
    int64_t *first_child, *child; /* (trees, hosts + 1) and (trees, hosts), by place */
    int64_t *first_top, *top;     /* by segment */
    int64_t *n_missing, *n_unmet; /* (segments, hosts) and by segment */
    int64_t *n_left;              /* by host: how many messages it has not sent yet */
    int64_t *n_crossing;          /* (C, C): the same, by cluster of sender and of receiver */
    double *rest_s;               /* (trees, 2, hosts): see find_rests */
    double *out_free, *in_free, *wakes;
    double *pair_free;            /* (hosts, hosts) */
    double *shared_free;          /* (C, C) */
    double *uplink_out_free, *uplink_in_free;
    heap_t events, *waiting;
    int64_t number, n_messages;
    double last_s;
    int late;   /* surely later than most_s */
    int failed; /* no memory */
} walk_t;

static int is_before(const event_t *a, const event_t *b)
{
    return a->when_s < b->when_s || (a->when_s == b->when_s && a->number < b->number);
}

static void push(walk_t *walk, heap_t *heap, event_t item)
{
    if (heap->n == heap->room) {
        int64_t room = heap->room ? 2 * heap->room : 16;
        event_t *items = realloc(heap->items, room * sizeof *items);
        if (!items) {
            walk->failed = 1;
            return;
        }
        heap->items = items;
        heap->room = room;
    }
    int64_t at = heap->n++;
    while (at > 0 && is_before(&item, &heap->items[(at - 1) / 2])) {
        heap->items[at] = heap->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->items[at] = item;
}

static event_t pop(heap_t *heap)
{
    event_t least = heap->items[0], item = heap->items[--heap->n];
    int64_t at = 0, child;
    while ((child = 2 * at + 1) < heap->n) {
        if (child + 1 < heap->n && is_before(&heap->items[child + 1], &heap->items[child]))
            child++;
        if (!is_before(&heap->items[child], &item))
            break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    if (heap->n)
        heap->items[at] = item;
    return least;
}

static event_t message(walk_t *walk, double when_s, int kind, int host, int segment, int peer,
                       int stage)
{
    event_t new = {when_s, walk->number++, kind, host, segment, peer, stage};
    return new;
}

static void schedule(walk_t *walk, double when_s, int kind, int host, int segment, int peer,
                     int stage)
{
    push(walk, &walk->events, message(walk, when_s, kind, host, segment, peer, stage));
}

static void wait_for_port(walk_t *walk, int host, double ready_s, int segment, int peer, int stage)
{
    push(walk, &walk->waiting[host], message(walk, ready_s, DUE, host, segment, peer, stage));
}

/* The host at a place of the tree, and the place of a host. Hosts of a kind take turns. */
static int64_t host_at(const network_t *net, int64_t place, int64_t turn)
{
    return net->first[place] + (place - net->first[place] + turn) % net->count[place];
}

static int64_t place_of(const network_t *net, int64_t host, int64_t turn)
{
    int64_t count = net->count[host];
    return net->first[host] + ((host - net->first[host] - turn) % count + count) % count;
}

static int64_t tree_of(const walk_t *walk, int64_t segment) { return walk->trees->uses[2 * segment]; }
static int64_t turn_of(const walk_t *walk, int64_t segment)
{
    return walk->trees->uses[2 * segment + 1];
}

static int64_t parent_of(const walk_t *walk, int64_t segment, int64_t host)
{
    int64_t turn = turn_of(walk, segment), place = place_of(walk->net, host, turn);
    int64_t above = walk->trees->parents[tree_of(walk, segment) * walk->net->n_hosts + place];
    return above < 0 ? -1 : host_at(walk->net, above, turn);
}

/* The least time of a message between hosts of these clusters. */
static double least_s(const network_t *net, int64_t a, int64_t b)
{
    int64_t ab = a * net->n_clusters + b;
    return a != b && net->uplink_s[b] > 0 ? net->unblocked_s[ab] : net->one_way_s[ab];
}

static void end_by(walk_t *walk, double end_s)
{
    if (end_s > walk->trees->most_s)
        walk->late = 1;
}

/* A message that leaves now takes its least time, and then everything that waits for it does. */
static void leaves_at(walk_t *walk, double now_s, int host, int segment, int peer, int stage)
{
    const network_t *net = walk->net;
    int64_t place = place_of(net, peer, turn_of(walk, segment));
    const double *rest_s = walk->rest_s + 2 * tree_of(walk, segment) * net->n_hosts;
    rest_s += stage == UP ? 0 : net->n_hosts;
    end_by(walk, now_s + least_s(net, net->cluster[host], net->cluster[peer]) + rest_s[place]);
}

static void send_when_due(walk_t *walk, double now_s, int host, int segment, int peer, int stage)
{
    const trees_t *trees = walk->trees;
    double due_s = (double)segment * trees->period_s - trees->ahead_s;
    leaves_at(walk, fmax(due_s, now_s), host, segment, peer, stage);
    if (due_s > now_s)
        schedule(walk, due_s, DUE, host, segment, peer, stage);
    else
        wait_for_port(walk, host, now_s, segment, peer, stage);
}

static void complete(walk_t *walk, int segment, int host, double now_s)
{
    int64_t tree = tree_of(walk, segment), turn = turn_of(walk, segment);
    int64_t place = place_of(walk->net, host, turn), n_hosts = walk->net->n_hosts;
    const int64_t *first = walk->first_child + tree * (n_hosts + 1);
    if (now_s > walk->last_s)
        walk->last_s = now_s;
    if (walk->net->way == UPWARDS)
        return;
    for (int64_t k = first[place]; k < first[place + 1]; k++) {
        int child = (int)host_at(walk->net, walk->child[tree * n_hosts + k], turn);
        if (host == walk->net->root)
            send_when_due(walk, now_s, host, segment, child, DOWN);
        else
            wait_for_port(walk, host, now_s, segment, child, DOWN);
    }
}

static void met(walk_t *walk, int segment, int host, double now_s, int64_t n_tops)
{
    /* By top: how many partial results it still waits for, its own included. */
    int64_t *n_unmet = walk->n_unmet + walk->first_top[segment];
    for (int64_t k = 0; k < n_tops; k++)
        if (walk->top[walk->first_top[segment] + k] == host && !--n_unmet[k])
            complete(walk, segment, host, now_s);
}

static void combined(walk_t *walk, int segment, int host, double now_s)
{
    int64_t parent = parent_of(walk, segment, host);
    if (parent >= 0) {
        send_when_due(walk, now_s, host, segment, (int)parent, UP);
        return;
    }
    const int64_t *tops = walk->top + walk->first_top[segment];
    int64_t n_tops = walk->first_top[segment + 1] - walk->first_top[segment], own = 0;
    while (tops[own] != host)
        own++;
    for (int64_t k = 1; k < n_tops; k++)
        send_when_due(walk, now_s, host, segment, (int)tops[(own + k) % n_tops], MEET);
    met(walk, segment, host, now_s, n_tops);
}

static void received(walk_t *walk, const event_t *event)
{
    int segment = event->segment, host = event->host;
    if (event->stage == UP) {
        if (!--walk->n_missing[segment * walk->net->n_hosts + host])
            combined(walk, segment, host, event->when_s);
    } else if (event->stage == MEET) {
        met(walk, segment, host, event->when_s,
            walk->first_top[segment + 1] - walk->first_top[segment]);
    } else {
        complete(walk, segment, host, event->when_s);
    }
}

static void leave(walk_t *walk, int host, double now_s, const event_t *sent)
{
    const network_t *net = walk->net;
    int64_t a = net->cluster[host], b = net->cluster[sent->peer], ab = a * net->n_clusters + b;
    int segment = sent->segment, stage = sent->stage, peer = sent->peer;
    walk->n_messages++;
    leaves_at(walk, now_s, host, segment, peer, stage);
    end_by(walk, now_s + (double)--walk->n_left[host] * net->port_s[a]);
    walk->out_free[host] = now_s + net->port_s[a];
    walk->pair_free[host * net->n_hosts + peer] = now_s + net->gap_s[ab];
    if (a == b) {
        schedule(walk, now_s + net->one_way_s[ab], ARRIVES, peer, segment, host, stage);
        return;
    }
    double enters_s = now_s;
    if (net->uplink_s[a] > 0) {
        enters_s = fmax(now_s, walk->uplink_out_free[a]);
        walk->uplink_out_free[a] = enters_s + net->uplink_s[a];
    }
    enters_s = fmax(enters_s, walk->shared_free[ab]);
    walk->shared_free[ab] = enters_s + net->shared_s[ab];
    end_by(walk, enters_s + (double)--walk->n_crossing[ab] * net->shared_s[ab]);
    if (net->uplink_s[b] > 0) {
        schedule(walk, enters_s, ENTERS, peer, segment, host, stage);
    } else {
        double arrives_s = fmax(enters_s + net->unblocked_s[ab], now_s + net->one_way_s[ab]);
        schedule(walk, arrives_s, ARRIVES, peer, segment, host, stage);
    }
}

/* Send the oldest message whose flow is free, if the interface is free. */
static void send_next(walk_t *walk, int host, double now_s, heap_t *blocked)
{
    const network_t *net = walk->net;
    heap_t *ready = &walk->waiting[host];
    const double *pair_free = walk->pair_free + host * net->n_hosts;
    if (!ready->n)
        return;
    double soonest_s = walk->out_free[host];
    if (soonest_s <= now_s) {
        double soonest_flow_s = INFINITY;
        blocked->n = 0;
        while (ready->n && pair_free[ready->items[0].peer] > now_s) {
            soonest_flow_s = fmin(soonest_flow_s, pair_free[ready->items[0].peer]);
            push(walk, blocked, pop(ready));
        }
        if (ready->n) {
            event_t sent = pop(ready);
            leave(walk, host, now_s, &sent);
            soonest_s = walk->out_free[host];
        } else {
            soonest_s = soonest_flow_s;
        }
        for (int64_t k = 0; k < blocked->n; k++)
            push(walk, ready, blocked->items[k]);
    }
    if (ready->n && soonest_s < walk->wakes[host]) {
        walk->wakes[host] = soonest_s;
        schedule(walk, soonest_s, FREE, host, 0, 0, 0);
    }
}

static void run(walk_t *walk)
{
    const network_t *net = walk->net;
    heap_t blocked = {0};
    while (walk->events.n && !walk->failed) {
        event_t event = pop(&walk->events);
        double now_s = event.when_s;
        int host = event.host;
        if (walk->late || now_s > walk->trees->most_s) {
            walk->last_s = INFINITY;
            break;
        }
        if (event.kind == DUE) {
            wait_for_port(walk, host, now_s, event.segment, event.peer, event.stage);
        } else if (event.kind == FREE) {
            if (now_s >= walk->wakes[host])
                walk->wakes[host] = INFINITY;
        } else if (event.kind == ENTERS) {
            int64_t a = net->cluster[event.peer], b = net->cluster[host];
            double enters_s = fmax(now_s, walk->uplink_in_free[b]);
            walk->uplink_in_free[b] = enters_s + net->uplink_s[b];
            schedule(walk, enters_s + net->unblocked_s[a * net->n_clusters + b], ARRIVES, host,
                     event.segment, event.peer, event.stage);
            continue;
        } else {
            if (event.kind == ARRIVES) {
                double received_s = walk->in_free[host] + net->port_s[net->cluster[host]];
                received_s = fmax(now_s, received_s);
                walk->in_free[host] = received_s;
                if (received_s > now_s) {
                    schedule(walk, received_s, RECEIVED, host, event.segment, event.peer,
                             event.stage);
                    continue;
                }
            }
            received(walk, &event);
        }
        send_next(walk, host, now_s, &blocked);
    }
    free(blocked.items);
}

/* The child with the longest path to a descendant is first, as in `children_of`. */
static void order_children(const network_t *net, const int64_t *parents, int64_t *first,
                           int64_t *child, int64_t *order, double *path_s)
{
    int64_t n = net->n_hosts, n_ordered = 0, *next = order + n;
    memset(first, 0, (n + 1) * sizeof *first);
    for (int64_t host = 0; host < n; host++)
        if (parents[host] >= 0)
            first[parents[host] + 1]++;
        else
            order[n_ordered++] = host;
    for (int64_t host = 0; host < n; host++)
        first[host + 1] += first[host];
    memcpy(next, first, n * sizeof *next);
    for (int64_t host = 0; host < n; host++)
        if (parents[host] >= 0)
            child[next[parents[host]]++] = host;
    for (int64_t k = 0; k < n_ordered; k++)
        for (int64_t c = first[order[k]]; c < first[order[k] + 1]; c++)
            order[n_ordered++] = child[c];
    for (int64_t k = n_ordered; k-- > 0;) {
        int64_t host = order[k];
        const double *hops_s = net->hops_s + net->cluster[host] * net->n_clusters;
        path_s[host] = 0.0;
        for (int64_t c = first[host]; c < first[host + 1]; c++)
            path_s[host] = fmax(path_s[host], hops_s[net->cluster[child[c]]] + path_s[child[c]]);
        for (int64_t c = first[host] + 1; c < first[host + 1]; c++) {
            int64_t moved = child[c], at = c;
            double key_s = hops_s[net->cluster[moved]] + path_s[moved];
            while (at > first[host]
                   && hops_s[net->cluster[child[at - 1]]] + path_s[child[at - 1]] < key_s) {
                child[at] = child[at - 1];
                at--;
            }
            child[at] = moved;
        }
    }
}

/* The least time until all hosts have a segment, by place in the tree: from when it is combined at
 * that place, and from when it is complete there. Tops are first in the order. */
static void find_rests(walk_t *walk, int64_t tree, const int64_t *order)
{
    const network_t *net = walk->net;
    int64_t n = net->n_hosts;
    const int64_t *parents = walk->trees->parents + tree * n, *cluster = net->cluster;
    double *combined_s = walk->rest_s + 2 * tree * n, *complete_s = combined_s + n;
    for (int64_t k = n; k-- > 0 && net->way != UPWARDS;) {
        int64_t host = order[k], above = parents[host];
        if (above >= 0)
            complete_s[above] = fmax(complete_s[above], complete_s[host]
                                     + least_s(net, cluster[above], cluster[host]));
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t host = order[k], above = parents[host];
        if (above >= 0) {
            combined_s[host] = combined_s[above] + least_s(net, cluster[host], cluster[above]);
            continue;
        }
        combined_s[host] = complete_s[host];
        for (int64_t top = 0; top < n; top++)
            if (parents[top] < 0 && top != host)
                combined_s[host] = fmax(combined_s[host], complete_s[top]
                                        + least_s(net, cluster[host], cluster[top]));
    }
}

static void will_send(walk_t *walk, int64_t host, int64_t peer)
{
    const network_t *net = walk->net;
    walk->n_left[host]++;
    walk->n_crossing[net->cluster[host] * net->n_clusters + net->cluster[peer]]++;
}

static void begin(walk_t *walk)
{
    const network_t *net = walk->net;
    int64_t n = net->n_hosts, n_segments = walk->trees->n_segments;
    for (int64_t host = 0; host < n; host++)
        schedule(walk, 0.0, FREE, (int)host, 0, 0, 0);
    for (int64_t segment = 0; segment < n_segments; segment++) {
        int64_t tree = tree_of(walk, segment), turn = turn_of(walk, segment);
        int64_t *tops = walk->top + walk->first_top[segment], n_tops = 0;
        const int64_t *first = walk->first_child + tree * (n + 1);
        for (int64_t host = 0; host < n; host++) {
            int64_t place = place_of(net, host, turn);
            walk->n_missing[segment * n + host] = first[place + 1] - first[place];
            int64_t above = walk->trees->parents[tree * n + place];
            if (above < 0)
                tops[n_tops++] = host;
            else
                above = host_at(net, above, turn);
            if (above >= 0 && net->way != DOWNWARDS)
                will_send(walk, host, above);
            if (above >= 0 && net->way != UPWARDS)
                will_send(walk, above, host);
        }
        for (int64_t k = 0; k < n_tops; k++) {
            walk->n_unmet[walk->first_top[segment] + k] = n_tops;
            for (int64_t other = 0; other < n_tops; other++)
                if (other != k)
                    will_send(walk, tops[k], tops[other]);
        }
        walk->first_top[segment + 1] = walk->first_top[segment] + n_tops;
    }
    for (int64_t segment = 0; segment < n_segments && net->way == DOWNWARDS; segment++)
        complete(walk, (int)segment, (int)walk->top[walk->first_top[segment]], 0.0);
    for (int64_t segment = 0; segment < n_segments && net->way != DOWNWARDS; segment++)
        for (int64_t host = 0; host < n; host++) {
            int64_t tree = tree_of(walk, segment);
            int64_t place = place_of(net, host, turn_of(walk, segment));
            const int64_t *first = walk->first_child + tree * (n + 1);
            if (first[place + 1] == first[place])
                combined(walk, (int)segment, (int)host, 0.0);
        }
}

/* Returns when all hosts have all segments; infinity if later than most_s, NaN without memory. A walk
 * ends as soon as it is clear that it will be too late. */
double gridcoll_walk(const network_t *net, const trees_t *trees, int64_t *n_messages)
{
    int64_t n = net->n_hosts, n_segments = trees->n_segments, n_clusters = net->n_clusters;
    int64_t n_numbers = trees->n_trees * (2 * n + 1) + n_segments * (3 * n + 1) + 1 + 3 * n;
    n_numbers += n_clusters * n_clusters;
    int64_t n_rests = trees->n_trees * 2 * n;
    int64_t n_seconds = 4 * n + n * n + n_clusters * (n_clusters + 2) + n_rests;
    int64_t *numbers = calloc(n_numbers, sizeof *numbers);
    double *seconds = calloc(n_seconds, sizeof *seconds), result = NAN;
    heap_t *waiting = calloc(n, sizeof *waiting);
    walk_t walk = {.net = net, .trees = trees, .waiting = waiting};
    if (numbers && seconds && waiting) {
        int64_t *order;
        double *path_s;
        walk.first_child = numbers;
        walk.child = walk.first_child + trees->n_trees * (n + 1);
        walk.n_missing = walk.child + trees->n_trees * n;
        walk.n_unmet = walk.n_missing + n_segments * n;
        walk.top = walk.n_unmet + n_segments * n;
        walk.first_top = walk.top + n_segments * n;
        walk.n_left = walk.first_top + n_segments + 1;
        walk.n_crossing = walk.n_left + n;
        order = walk.n_crossing + n_clusters * n_clusters;
        walk.out_free = seconds;
        walk.in_free = walk.out_free + n;
        walk.wakes = walk.in_free + n;
        path_s = walk.wakes + n;
        walk.pair_free = path_s + n;
        walk.shared_free = walk.pair_free + n * n;
        walk.uplink_out_free = walk.shared_free + n_clusters * n_clusters;
        walk.uplink_in_free = walk.uplink_out_free + n_clusters;
        walk.rest_s = walk.uplink_in_free + n_clusters;
        for (int64_t tree = 0; tree < trees->n_trees; tree++) {
            order_children(net, trees->parents + tree * n, walk.first_child + tree * (n + 1),
                           walk.child + tree * n, order, path_s);
            find_rests(&walk, tree, order);
        }
        begin(&walk);
        run(&walk);
        *n_messages = walk.n_messages;
        if (!walk.failed)
            result = walk.last_s;
    }
    for (int64_t host = 0; waiting && host < n; host++)
        free(waiting[host].items);
    free(walk.events.items);
    free(waiting);
    free(seconds);
    free(numbers);
    return result;
}

int64_t gridcoll_walk_interface(void) { return 3; }
