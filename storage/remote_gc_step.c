// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/remote_gc_state.h"

uint64_t remote_gc_now_ns(const struct remote_gc *gc)
{
        struct timespec now;

        if (gc->options.now_ns)
                return gc->options.now_ns();
        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * REMOTE_GC_NS_PER_S + (uint64_t)now.tv_nsec;
}

void remote_gc_finish(struct remote_gc *gc, int outcome)
{
        assert(!gc->n_in_flight);
        gc->result.outcome = outcome;
        gc->options.on_end(gc->options.user, &gc->result);
        free(gc->keys);
        free(gc->bytes);
        free(gc);
}

void remote_gc_fail(struct remote_gc *gc, int r, const char *what)
{
        const char *said = gc->options.pool->ops.last_failure(gc->options.pool);

        why_set(&gc->result.why, "%s: %s%s%s", what, strerror(-r), *said ? ": " : "", said);
        remote_gc_finish(gc, r);
}

bool remote_gc_is_over(struct remote_gc *gc)
{
        gc->n_in_flight--;
        if (!gc->cancelled)
                return false;
        if (!gc->n_in_flight) {
                why_set(&gc->result.why, "broken off: what is left is found by the next");
                remote_gc_finish(gc, -ECANCELED);
        }
        return true;
}

/* ---- requests ---- */

int remote_gc_submit_get(struct remote_gc *gc, void *bytes, uint64_t length,
                         void (*on_done)(struct pool_get *get, int result, uint64_t n_bytes))
{
        int r;

        gc->get = (struct pool_get){
                .name = gc->name,
                .length = length,
                .bytes = bytes,
                .deadline_ms = gc->options.deadline_ms,
                .on_done = on_done,
                .user = gc,
        };
        r = gc->options.pool->ops.get(gc->options.pool, &gc->get);
        gc->n_in_flight += !r;
        return r;
}

void remote_gc_get(struct remote_gc *gc, void *bytes, uint64_t length,
                   void (*on_done)(struct pool_get *get, int result, uint64_t n_bytes))
{
        int r = remote_gc_submit_get(gc, bytes, length, on_done);

        if (r)
                remote_gc_fail(gc, r, gc->name);
}

void remote_gc_put(struct remote_gc *gc, uint64_t length, uint32_t flags,
                   void (*on_done)(struct pool_put *put, int result))
{
        int r;

        gc->buffer = (struct pool_buffer){.bytes = gc->small, .length = length};
        gc->put = (struct pool_put){
                .name = gc->name,
                .buffers = &gc->buffer,
                .n_buffers = 1,
                .flags = flags,
                .deadline_ms = gc->options.deadline_ms,
                .on_done = on_done,
                .user = gc,
        };
        r = gc->options.pool->ops.put(gc->options.pool, &gc->put);
        if (r)
                remote_gc_fail(gc, r, gc->name);
        else
                gc->n_in_flight++;
}

static void on_name(struct pool_list *list, const char *name, uint64_t bytes)
{
        struct remote_gc *gc = list->user;

        /* A pool that gives more or longer names than were asked for is not believed. */
        if (gc->n_names == list->max || strlen(name) >= POOL_NAME_MAX)
                return;
        snprintf(gc->names[gc->n_names], POOL_NAME_MAX, "%s", name);
        gc->sizes[gc->n_names++] = bytes;
}

static void on_listed(struct pool_list *list, int result, bool more)
{
        struct remote_gc *gc = list->user;

        if (remote_gc_is_over(gc))
                return;
        if (result && result != -ENOENT)
                remote_gc_fail(gc, result, gc->prefix);
        else
                gc->after_list(gc, more && gc->n_names);
}

void remote_gc_list(struct remote_gc *gc, const char *kind, const char *after,
                    void (*after_list)(struct remote_gc *gc, bool more))
{
        int r;

        pool_name_prefix(gc->prefix, kind, gc->options.node);
        gc->n_names = 0;
        gc->after_list = after_list;
        gc->list = (struct pool_list){
                .prefix = gc->prefix,
                .after = after,
                .max = gc->phase == GC_REPLACED ? REMOTE_GC_SEGMENTS : REMOTE_GC_PAGE,
                .deadline_ms = gc->options.deadline_ms,
                .on_name = on_name,
                .on_done = on_listed,
                .user = gc,
        };
        r = gc->options.pool->ops.list(gc->options.pool, &gc->list);
        if (r)
                remote_gc_fail(gc, r, gc->prefix);
        else
                gc->n_in_flight++;
}

void remote_gc_keep_named(struct remote_gc *gc, const char *kind)
{
        uint8_t node[16];
        uint64_t number;
        uint32_t n = 0;

        for (uint32_t i = 0; i < gc->n_names; i++) {
                if (!pool_name_parse_number(gc->names[i], kind, node, &number) ||
                    memcmp(node, gc->options.node, sizeof(node)))
                        continue;
                memmove(gc->names[n], gc->names[i], POOL_NAME_MAX);
                gc->sizes[n++] = gc->sizes[i];
        }
        gc->n_names = n;
}
