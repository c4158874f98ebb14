// SPDX-License-Identifier: Apache-2.0
/*
 * Adaptive placement and eviction of states (A2Q), in the plainest form, over a tree that forgets
 * nothing: what the daemon's bounded one is compared with. And P7, the same without adapting.
 *
 * A state is unproven (T1) until it was used, or until something else says that prompts come
 * back to it (T2); each list is LRU, and `frac` is the share of T1. A state that is evicted
 * leaves a ghost that says from which list; a prompt that would have used it moves `frac`.
 *
 * Chunks have no LRU. One is live when its own state or that of something behind it is held;
 * all others are of no use and are evicted before any state is.
 *
 * Of the states that a request computed it keeps that of the end of the prompt, that of the
 * boundary where prompts branch, and one a little before the end of a long new stretch (the next
 * prompt may edit the tail). The one before the one that was used has done its work: two of a
 * conversation are kept.
 */
#include <stdlib.h>

#include "policy.h"

enum list { T1, T2, DEAD, N_LISTS };

static const uint32_t GHOST_REACH = 5; /* a ghost counts for so many evictions for each state */
static const uint32_t EVICTIONS_MAX = 4096;
static const double FRAC_MIN = 0.02, FRAC_MAX = 0.98;
static const uint32_t LONG_STRETCH = 64; /* chunks */

struct link {
        uint32_t next, prev; /* next: TRACE_NONE when in no list */
};

struct node {
        uint32_t parent;
        uint32_t n_children; /* ever seen */
        uint32_t n_live;     /* own state, and children that are live */
        uint8_t list;        /* of the state; N_LISTS: none is held */
        uint8_t ghost;       /* list that its state was evicted from; N_LISTS: no ghost */
        bool is_seen, is_held;
        uint64_t ghost_stamp;
};

/* Links: n_nodes for the states, n_nodes for the chunks that are dead, and the heads. */
struct a2q {
        struct replay_sizes sizes;
        struct replay_usage usage;
        bool is_adaptive;
        uint32_t n_nodes;
        struct node *nodes;
        struct link *links;
        uint32_t lengths[N_LISTS];
        double frac;
        uint64_t evictions[2]; /* of T1 and T2, halved together */
        uint64_t n_evictions;
};

/* ---- lists ---- */

static uint32_t head_of(const struct a2q *a2q, enum list list)
{
        return 2 * a2q->n_nodes + list;
}

static void put_first(struct a2q *a2q, enum list list, uint32_t item)
{
        uint32_t head = head_of(a2q, list), next = a2q->links[head].next;

        a2q->links[item] = (struct link){.next = next, .prev = head};
        a2q->links[head].next = a2q->links[next].prev = item;
        a2q->lengths[list]++;
}

static void take_out(struct a2q *a2q, enum list list, uint32_t item)
{
        struct link *link = &a2q->links[item];

        a2q->links[link->prev].next = link->next;
        a2q->links[link->next].prev = link->prev;
        link->next = TRACE_NONE;
        a2q->lengths[list]--;
}

static uint32_t last_of(const struct a2q *a2q, enum list list)
{
        return a2q->links[head_of(a2q, list)].prev;
}

static bool is_dead(const struct a2q *a2q, uint32_t chunk)
{
        return a2q->links[a2q->n_nodes + chunk].next != TRACE_NONE;
}

/* ---- what is live ---- */

static void become_live(struct a2q *a2q, uint32_t chunk)
{
        while (chunk != TRACE_NONE && a2q->nodes[chunk].n_live++ == 0) {
                if (is_dead(a2q, chunk))
                        take_out(a2q, DEAD, a2q->n_nodes + chunk);
                chunk = a2q->nodes[chunk].parent;
        }
}

static void become_dead(struct a2q *a2q, uint32_t chunk)
{
        while (chunk != TRACE_NONE && --a2q->nodes[chunk].n_live == 0) {
                if (a2q->nodes[chunk].is_held)
                        put_first(a2q, DEAD, a2q->n_nodes + chunk);
                chunk = a2q->nodes[chunk].parent;
        }
}

static bool has_state(const struct a2q *a2q, uint32_t chunk)
{
        return a2q->nodes[chunk].list != N_LISTS;
}

static void drop_state(struct a2q *a2q, uint32_t chunk)
{
        take_out(a2q, a2q->nodes[chunk].list, chunk);
        a2q->nodes[chunk].list = N_LISTS;
        a2q->usage.states--;
        become_dead(a2q, chunk);
}

/* A state that is there already has proven itself. */
static void keep_state(struct a2q *a2q, uint32_t chunk, enum list list)
{
        struct node *node = &a2q->nodes[chunk];

        if (has_state(a2q, chunk)) {
                take_out(a2q, node->list, chunk);
                list = T2;
        } else {
                a2q->usage.states++;
                a2q->usage.states_written++;
                become_live(a2q, chunk);
        }
        node->list = a2q->is_adaptive ? list : T2;
        put_first(a2q, node->list, chunk);
}

/* ---- eviction ---- */

static void evict_state(struct a2q *a2q)
{
        double limit = a2q->frac * (a2q->lengths[T1] + a2q->lengths[T2]);
        enum list list = a2q->lengths[T1] > limit || !a2q->lengths[T2] ? T1 : T2;
        uint32_t victim = last_of(a2q, list);

        drop_state(a2q, victim);
        a2q->evictions[list]++;
        a2q->n_evictions++;
        a2q->nodes[victim].ghost = (uint8_t)list;
        a2q->nodes[victim].ghost_stamp = a2q->n_evictions;
}

static void evict(struct a2q *a2q)
{
        while (replay_bytes(&a2q->usage, &a2q->sizes) > a2q->sizes.capacity_bytes) {
                if (!a2q->lengths[DEAD]) {
                        evict_state(a2q);
                } else {
                        uint32_t item = last_of(a2q, DEAD);

                        take_out(a2q, DEAD, item);
                        a2q->nodes[item - a2q->n_nodes].is_held = false;
                        a2q->usage.chunks--;
                }
        }
}

/* ---- ghosts ---- */

static void learn(struct a2q *a2q, enum list list)
{
        double ratio = (double)(a2q->evictions[!list] + 1) / (double)(a2q->evictions[list] + 1);
        double step = (ratio > 1 ? ratio : 1) / (a2q->lengths[T1] + a2q->lengths[T2] + 1);

        a2q->frac += list == T1 ? step : -step;
        if (a2q->frac < FRAC_MIN)
                a2q->frac = FRAC_MIN;
        if (a2q->frac > FRAC_MAX)
                a2q->frac = FRAC_MAX;
}

/* True when a state that was evicted not long ago would have been used. */
static bool hits_ghost(struct a2q *a2q, const struct replay_request *request, uint32_t k)
{
        uint64_t reach = (uint64_t)GHOST_REACH * (a2q->lengths[T1] + a2q->lengths[T2]);

        for (uint32_t i = request->kmax; i > k; i--) {
                uint32_t chunk = request->chain[i - 1];
                struct node *node = &a2q->nodes[chunk];

                if (!has_state(a2q, chunk) && node->ghost != N_LISTS &&
                    a2q->n_evictions - node->ghost_stamp < reach) {
                        learn(a2q, node->ghost);
                        node->ghost = N_LISTS;
                        return true;
                }
        }
        return false;
}

static void forget_slowly(struct a2q *a2q)
{
        if (a2q->evictions[T1] + a2q->evictions[T2] >= EVICTIONS_MAX) {
                a2q->evictions[T1] /= 2;
                a2q->evictions[T2] /= 2;
        }
}

/* ---- requests ---- */

static uint32_t hit(const struct a2q *a2q, const struct replay_request *request)
{
        uint32_t k = 0;

        for (uint32_t i = 1; i <= request->kmax && a2q->nodes[request->chain[i - 1]].is_held; i++)
                if (has_state(a2q, request->chain[i - 1]))
                        k = i;
        return k;
}

/* Adds what is new to the tree. Returns the boundary where it branches off, or 0. */
static uint32_t insert(struct a2q *a2q, const struct replay_request *request)
{
        uint32_t m = 0, branch = 0;

        while (m < request->n && a2q->nodes[request->chain[m]].is_seen)
                m++;
        if (m > 0 && m < request->n && a2q->nodes[request->chain[m - 1]].n_children > 0)
                branch = m;
        for (uint32_t i = m; i < request->n; i++) {
                struct node *node = &a2q->nodes[request->chain[i]];

                node->is_seen = true;
                if (i > 0) {
                        node->parent = request->chain[i - 1];
                        a2q->nodes[node->parent].n_children++;
                }
        }
        return branch;
}

static void store_chunks(struct a2q *a2q, const struct replay_request *request)
{
        for (uint32_t i = 0; i < request->n; i++) {
                uint32_t chunk = request->chain[i];

                if (a2q->nodes[chunk].is_held)
                        continue;
                a2q->nodes[chunk].is_held = true;
                a2q->usage.chunks++;
                a2q->usage.chunks_written++;
                if (!a2q->nodes[chunk].n_live)
                        put_first(a2q, DEAD, a2q->n_nodes + chunk);
        }
}

static void store_states(struct a2q *a2q, const struct replay_request *request, uint32_t k,
                         uint32_t branch, bool comes_back)
{
        uint32_t n = request->n;

        for (uint32_t i = n; i > k; i--) {
                if (i == n)
                        keep_state(a2q, request->chain[i - 1], comes_back ? T2 : T1);
                else if (i == branch)
                        keep_state(a2q, request->chain[i - 1], T2);
                else if (i + 2 == n && n - k >= LONG_STRETCH)
                        keep_state(a2q, request->chain[i - 1], T1);
        }
        if (k > 0)
                keep_state(a2q, request->chain[k - 1], T2);
}

/* The nearest state before the one that was used, unless other prompts go on from it too. */
static void drop_superseded(struct a2q *a2q, const struct replay_request *request, uint32_t k)
{
        for (uint32_t i = k; i-- > 1;) {
                uint32_t chunk = request->chain[i - 1];

                if (!has_state(a2q, chunk))
                        continue;
                if (a2q->nodes[chunk].n_children <= 1)
                        drop_state(a2q, chunk);
                return;
        }
}

static uint32_t a2q_request(void *self, const struct replay_request *request)
{
        struct a2q *a2q = self;
        uint32_t k = hit(a2q, request);
        bool was_ghost = hits_ghost(a2q, request, k);
        uint32_t branch = insert(a2q, request);
        bool goes_on = k > 0 && k < request->n && a2q->nodes[request->chain[k - 1]].n_children == 1;
        uint64_t n_states = a2q->usage.states;

        forget_slowly(a2q);
        store_chunks(a2q, request);
        store_states(a2q, request, k, branch, goes_on || was_ghost);
        if (k > 0 && k < request->n && a2q->usage.states > n_states)
                drop_superseded(a2q, request, k);
        evict(a2q);
        return k;
}

/* ---- life ---- */

static const struct replay_usage *a2q_usage(const void *self)
{
        const struct a2q *a2q = self;

        return &a2q->usage;
}

static void a2q_free(void *self)
{
        struct a2q *a2q = self;

        free(a2q->nodes);
        free(a2q->links);
        free(a2q);
}

static int new_tree(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace,
                    bool is_adaptive)
{
        size_t n_nodes = trace->n_chunks;
        struct a2q *a2q = calloc(1, sizeof(*a2q));

        if (!a2q)
                return err_raise(-ENOMEM);
        *a2q = (struct a2q){.sizes = *sizes, .is_adaptive = is_adaptive, .frac = 0.5};
        a2q->n_nodes = (uint32_t)n_nodes;
        a2q->nodes = calloc(n_nodes + 1, sizeof(*a2q->nodes));
        a2q->links = calloc(2 * n_nodes + N_LISTS, sizeof(*a2q->links));
        if (!a2q->nodes || !a2q->links) {
                a2q_free(a2q);
                return err_raise(-ENOMEM);
        }
        for (size_t i = 0; i < n_nodes; i++) {
                a2q->nodes[i].parent = TRACE_NONE;
                a2q->nodes[i].list = a2q->nodes[i].ghost = N_LISTS;
        }
        for (size_t i = 0; i < 2 * n_nodes; i++)
                a2q->links[i].next = TRACE_NONE;
        for (enum list list = T1; list < N_LISTS; list++) {
                uint32_t head = head_of(a2q, list);

                a2q->links[head] = (struct link){.next = head, .prev = head};
        }
        *ret_self = a2q;
        return 0;
}

static int a2q_new(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace)
{
        return new_tree(ret_self, sizes, trace, true);
}

static int p7_new(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace)
{
        return new_tree(ret_self, sizes, trace, false);
}

const struct replay_policy replay_a2q = {
        .name = "A2Q",
        .new = a2q_new,
        .request = a2q_request,
        .usage = a2q_usage,
        .free = a2q_free,
};

const struct replay_policy replay_p7 = {
        .name = "P7",
        .new = p7_new,
        .request = a2q_request,
        .usage = a2q_usage,
        .free = a2q_free,
};
