// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/cleanup.h"
#include "daemon/host_copy.h"

void host_copies_init(struct host_copies *copies, struct host_pool *host)
{
        memset(copies, 0, sizeof(*copies));
        copies->host = host;
        TAILQ_INIT(&copies->dirty);
}

void host_copies_deinit(struct host_copies *copies)
{
        assert(copies->n_free_ids == copies->n_ids);
        free(copies->by_id);
        free(copies->free_ids);
        memset(copies, 0, sizeof(*copies));
}

/* Ids begin at 1: 0 is INDEX_NONE. Both arrays grow together. */
static int take_id(struct host_copies *copies, uint32_t *ret_id)
{
        if (!copies->n_free_ids) {
                uint32_t n = copies->n_ids ? copies->n_ids * 2 : 256;
                struct host_copy **by_id;
                uint32_t *free_ids;

                by_id = reallocarray(copies->by_id, (size_t)n + 1, sizeof(*by_id));
                if (!by_id)
                        return err_raise(-ENOMEM);
                copies->by_id = by_id;
                free_ids = reallocarray(copies->free_ids, n, sizeof(*free_ids));
                if (!free_ids)
                        return err_raise(-ENOMEM);
                copies->free_ids = free_ids;
                for (uint32_t id = n; id > copies->n_ids; id--) {
                        by_id[id] = NULL;
                        free_ids[copies->n_free_ids++] = id;
                }
                copies->n_ids = n;
        }
        *ret_id = copies->free_ids[--copies->n_free_ids];
        return 0;
}

int host_copy_new(struct host_copies *copies, const struct object_key *key, uint64_t raw_bytes,
                  enum host_copy_state state, uint32_t numa_node, uint32_t max_extents,
                  struct host_copy **ret_copy)
{
        struct host_extent extents[HOST_EXTENTS_MAX];
        _cleanup_free_ struct host_copy *copy = NULL;
        uint32_t n_extents;
        int r;

        copy = calloc(1, sizeof(*copy));
        if (!copy)
                return err_raise(-ENOMEM);

        r = host_alloc(copies->host, raw_bytes, numa_node, max_extents, extents, &n_extents);
        if (r)
                return r == HOST_E_FULL ? HOST_E_FULL : r;

        copy->extents = malloc(n_extents * sizeof(*extents));
        r = copy->extents ? take_id(copies, &copy->id) : err_raise(-ENOMEM);
        if (r) {
                free(copy->extents);
                host_release(copies->host, extents, n_extents);
                return r;
        }

        memcpy(copy->extents, extents, n_extents * sizeof(*extents));
        copy->n_extents = n_extents;
        for (uint32_t i = 0; i < n_extents; i++)
                copy->space_bytes += extents[i].length;
        copy->key = *key;
        copy->raw_bytes = raw_bytes;
        copy->state = state;
        copy->n_uses = 1;
        TAILQ_INIT(&copy->waiters);
        copies->by_id[copy->id] = copy;
        *ret_copy = steal_ptr(copy);
        return 0;
}

struct host_copy *host_copy_at(struct host_copies *copies, uint32_t id)
{
        assert(id && id <= copies->n_ids && copies->by_id[id]);
        return copies->by_id[id];
}

static void free_when_unheld(struct host_copies *copies, struct host_copy *copy)
{
        if (copy->object != INDEX_NONE || copy->n_leases || copy->n_uses)
                return;

        assert(TAILQ_EMPTY(&copy->waiters));
        assert(!copy->dirty);
        host_release(copies->host, copy->extents, copy->n_extents);
        copies->by_id[copy->id] = NULL;
        copies->free_ids[copies->n_free_ids++] = copy->id;
        free(copy->extents);
        free(copy->checksums);
        free(copy);
        if (copies->on_space)
                copies->on_space(copies->on_space_user);
}

void host_copy_use(struct host_copy *copy)
{
        copy->n_uses++;
}

void host_copy_unuse(struct host_copies *copies, struct host_copy *copy)
{
        assert(copy->n_uses);
        copy->n_uses--;
        free_when_unheld(copies, copy);
}

void host_copy_lease(struct host_copies *copies, struct host_copy *copy)
{
        if (!copy->n_leases++) {
                copies->leased_bytes += copy->space_bytes;
                copy->leased_since_ns = uv_hrtime();
        }
}

void host_copy_unlease(struct host_copies *copies, struct host_copy *copy)
{
        assert(copy->n_leases);
        if (!--copy->n_leases)
                copies->leased_bytes -= copy->space_bytes;
        free_when_unheld(copies, copy);
}

void host_copy_publish(struct host_copies *copies, struct host_copy *copy, uint32_t object)
{
        (void)copies;
        assert(copy->object == INDEX_NONE && copy->state == HOST_COPY_READY);
        copy->object = object;
}

void host_copy_detach(struct host_copies *copies, struct host_copy *copy)
{
        assert(copy->object != INDEX_NONE);
        host_copy_set_dirty(copies, copy, false);
        copy->object = INDEX_NONE;
        free_when_unheld(copies, copy);
}

void host_copy_set_dirty(struct host_copies *copies, struct host_copy *copy, bool dirty)
{
        if (copy->dirty == dirty)
                return;
        copy->dirty = dirty;
        if (dirty) {
                TAILQ_INSERT_TAIL(&copies->dirty, copy, dirty_link);
                copies->dirty_bytes += copy->raw_bytes;
        } else {
                TAILQ_REMOVE(&copies->dirty, copy, dirty_link);
                copies->dirty_bytes -= copy->raw_bytes;
        }
}

void host_copy_wake(struct host_copy *copy)
{
        struct host_copy_waiters waiting = TAILQ_HEAD_INITIALIZER(waiting);
        struct host_copy_waiter *waiter;

        /* A waiter may wait again on the same copy: take the list away first. */
        TAILQ_CONCAT(&waiting, &copy->waiters, link);
        while ((waiter = TAILQ_FIRST(&waiting))) {
                TAILQ_REMOVE(&waiting, waiter, link);
                waiter->on_ready(waiter);
        }
}

uint32_t host_copy_tier_segments(const struct host_copies *copies, const struct host_copy *copy,
                                 struct tier_segment *ret_segments)
{
        uint64_t left = copy->raw_bytes;

        for (uint32_t i = 0; i < copy->n_extents; i++) {
                const struct host_extent *extent = &copy->extents[i];
                uint64_t length = extent->length < left ? extent->length : left;

                ret_segments[i] = (struct tier_segment){
                        .bytes = host_address(copies->host, extent),
                        .length = length,
                        .arena_id = extent->arena_id,
                };
                left -= length;
        }
        return copy->n_extents;
}

uint32_t host_copy_checksum_segments(const struct host_copies *copies,
                                     const struct host_copy *copy,
                                     struct checksum_segment *ret_segments)
{
        struct tier_segment segments[HOST_EXTENTS_MAX];
        uint32_t n = host_copy_tier_segments(copies, copy, segments);

        for (uint32_t i = 0; i < n; i++)
                ret_segments[i] = (struct checksum_segment){segments[i].bytes, segments[i].length};
        return n;
}
