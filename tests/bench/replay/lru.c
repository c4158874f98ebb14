// SPDX-License-Identifier: Apache-2.0
/*
 * The simple policies: chunks and states in one LRU list. A prompt touches its boundaries from
 * its end to its start, so that what is evicted first is the end of what was used longest ago.
 *
 * They differ in where a state is kept, of those that the request computed:
 *   P0  at every boundary
 *   P1  at the end of the prompt
 *   P2  P1, and at every 16th boundary
 *   P3  P1, and where the prompt left what an earlier one had, evicted since or not
 */
#include <stdlib.h>
#include <string.h>

#include "policy.h"

enum placement { DENSE, EVERYWHERE, AT_END, AT_END_AND_16, AT_END_AND_BRANCH };

/* Object c is chunk c, object n_chunks + c the state behind it; object 2 n_chunks is the head. */
struct lru {
        struct replay_sizes sizes;
        struct replay_usage usage;
        enum placement placement;
        uint32_t n_chunks;
        uint32_t *next, *prev; /* next: TRACE_NONE when not held */
        bool *seen;            /* by chunk */
};

/* ---- the list ---- */

static bool is_held(const struct lru *lru, uint32_t object)
{
        return lru->next[object] != TRACE_NONE;
}

static void take_out(struct lru *lru, uint32_t object)
{
        lru->next[lru->prev[object]] = lru->next[object];
        lru->prev[lru->next[object]] = lru->prev[object];
        lru->next[object] = TRACE_NONE;
}

static void put_first(struct lru *lru, uint32_t object)
{
        uint32_t head = 2 * lru->n_chunks;

        lru->prev[object] = head;
        lru->next[object] = lru->next[head];
        lru->prev[lru->next[head]] = object;
        lru->next[head] = object;
}

/* Stores @object when it is not held. */
static void touch(struct lru *lru, uint32_t object)
{
        if (is_held(lru, object)) {
                take_out(lru, object);
        } else if (object < lru->n_chunks) {
                lru->usage.chunks++;
                lru->usage.chunks_written++;
        } else {
                lru->usage.states++;
                lru->usage.states_written++;
        }
        put_first(lru, object);
}

static void evict(struct lru *lru)
{
        while (replay_bytes(&lru->usage, &lru->sizes) > lru->sizes.capacity_bytes) {
                uint32_t victim = lru->prev[2 * lru->n_chunks];

                take_out(lru, victim);
                if (victim < lru->n_chunks)
                        lru->usage.chunks--;
                else
                        lru->usage.states--;
        }
}

/* ---- requests ---- */

static uint32_t hit(const struct lru *lru, const struct replay_request *request)
{
        uint32_t k = 0;

        for (uint32_t i = 1; i <= request->kmax && is_held(lru, request->chain[i - 1]); i++)
                if (lru->placement == DENSE || is_held(lru, lru->n_chunks + request->chain[i - 1]))
                        k = i;
        return k;
}

/* The boundaries that prompts had before. */
static uint32_t mark_seen(struct lru *lru, const struct replay_request *request)
{
        uint32_t m = 0;

        while (m < request->n && lru->seen[request->chain[m]])
                m++;
        for (uint32_t i = m; i < request->n; i++)
                lru->seen[request->chain[i]] = true;
        return m;
}

static bool wants_state(const struct lru *lru, uint32_t boundary, uint32_t n, uint32_t m)
{
        switch (lru->placement) {
        case DENSE:
                return false;
        case EVERYWHERE:
                return true;
        case AT_END:
                return boundary == n;
        case AT_END_AND_16:
                return boundary == n || boundary % 16 == 0;
        case AT_END_AND_BRANCH:
                return boundary == n || boundary == m;
        }
        return false;
}

static uint32_t lru_request(void *self, const struct replay_request *request)
{
        struct lru *lru = self;
        uint32_t k = hit(lru, request), m = mark_seen(lru, request);

        for (uint32_t i = request->n; i > 0; i--) {
                uint32_t chunk = request->chain[i - 1];

                if (i > k ? wants_state(lru, i, request->n, m) : i == k && lru->placement != DENSE)
                        touch(lru, lru->n_chunks + chunk);
                touch(lru, chunk);
        }
        evict(lru);
        return k;
}

static const struct replay_usage *lru_usage(const void *self)
{
        const struct lru *lru = self;

        return &lru->usage;
}

static void lru_free(void *self)
{
        struct lru *lru = self;

        free(lru->next);
        free(lru->prev);
        free(lru->seen);
        free(lru);
}

static int lru_new(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace,
                   enum placement placement)
{
        size_t n_objects = 2 * (size_t)trace->n_chunks + 1;
        struct lru *lru = calloc(1, sizeof(*lru));

        if (!lru)
                return err_raise(-ENOMEM);
        *lru = (struct lru){.sizes = *sizes, .placement = placement, .n_chunks = trace->n_chunks};
        lru->next = malloc(n_objects * sizeof(*lru->next));
        lru->prev = malloc(n_objects * sizeof(*lru->prev));
        lru->seen = calloc(n_objects, sizeof(*lru->seen));
        if (!lru->next || !lru->prev || !lru->seen) {
                lru_free(lru);
                return err_raise(-ENOMEM);
        }
        for (size_t i = 0; i < n_objects; i++)
                lru->next[i] = TRACE_NONE;
        lru->next[n_objects - 1] = lru->prev[n_objects - 1] = (uint32_t)(n_objects - 1);
        *ret_self = lru;
        return 0;
}

#define LRU_POLICY(id, label, placement)                                                           \
        static int id##_new(void **ret_self, const struct replay_sizes *sizes,                     \
                            const struct trace *trace)                                             \
        {                                                                                          \
                return lru_new(ret_self, sizes, trace, placement);                                 \
        }                                                                                          \
        const struct replay_policy replay_##id = {                                                 \
                .name = label,                                                                     \
                .new = id##_new,                                                                   \
                .request = lru_request,                                                            \
                .usage = lru_usage,                                                                \
                .free = lru_free,                                                                  \
        }

LRU_POLICY(dense, "dense", DENSE);
LRU_POLICY(p0, "P0", EVERYWHERE);
LRU_POLICY(p1, "P1", AT_END);
LRU_POLICY(p2, "P2", AT_END_AND_16);
LRU_POLICY(p3, "P3", AT_END_AND_BRANCH);
