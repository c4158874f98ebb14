// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host_copy.h"

int host_copies_init(struct host_copies *copies, struct host_pool *host)
{
        struct host_usage usage;

        memset(copies, 0, sizeof(*copies));
        copies->host = host;
        TAILQ_INIT(&copies->dirty);
        TAILQ_INIT(&copies->offered);
        host_usage(host, &usage);
        /* No copy is smaller than a unit. */
        return record_pool_init(&copies->pool, usage.configured_bytes / HOST_UNIT_BYTES,
                                sizeof(struct host_copy), offsetof(struct host_copy, id));
}

void host_copies_deinit(struct host_copies *copies)
{
        assert(!copies->pool.n_used);
        record_pool_deinit(&copies->pool);
}

int host_copy_new(struct host_copies *copies, const struct object_key *key, uint64_t raw_bytes,
                  enum host_copy_state state, uint32_t numa_node, uint32_t max_extents,
                  struct host_copy **ret_copy)
{
        struct host_extent extents[HOST_EXTENTS_MAX], *many = NULL;
        struct host_copy *copy;
        uint32_t n_extents, id;
        int r;

        r = host_alloc(copies->host, raw_bytes, numa_node, max_extents, extents, &n_extents);
        if (r)
                return r;
        if (n_extents > 1)
                many = malloc(n_extents * sizeof(*extents));
        if ((n_extents > 1 && !many) || !record_pool_n_free(&copies->pool)) {
                free(many);
                host_release(copies->host, extents, n_extents);
                return err_raise(-ENOMEM);
        }

        id = record_pool_take(&copies->pool);
        copy = record_pool_at(&copies->pool, id);
        copy->id = id;
        copy->extents = many ? many : &copy->extent;
        memcpy(copy->extents, extents, n_extents * sizeof(*extents));
        copy->n_extents = n_extents;
        for (uint32_t i = 0; i < n_extents; i++)
                copy->space_bytes += extents[i].length;
        copy->key = *key;
        copy->raw_bytes = raw_bytes;
        copy->state = state;
        copy->n_uses = 1;
        TAILQ_INIT(&copy->waiters);
        *ret_copy = copy;
        return 0;
}

struct host_copy *host_copy_at(struct host_copies *copies, uint32_t id)
{
        struct host_copy *copy = record_pool_at(&copies->pool, id);

        assert(copy->id == id && copy->extents);
        return copy;
}

static void free_when_unheld(struct host_copies *copies, struct host_copy *copy)
{
        if (copy->object != INDEX_NONE || copy->n_leases || copy->n_uses)
                return;

        assert(TAILQ_EMPTY(&copy->waiters));
        assert(!copy->dirty);
        host_release(copies->host, copy->extents, copy->n_extents);
        if (copy->extents != &copy->extent)
                free(copy->extents);
        free(copy->checksums);
        free(copy->expected);
        record_pool_give_back(&copies->pool, copy->id);
}

void host_copy_set_checksums(struct host_copy *copy, const struct checksum_list *checksums)
{
        size_t bytes = offsetof(struct checksum_list, pieces) +
                       checksums->n_pieces * sizeof(checksums->pieces[0]);

        free(copy->checksums);
        copy->checksums = malloc(bytes);
        if (copy->checksums)
                memcpy(copy->checksums, checksums, bytes);
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
        if (!copy->n_leases++)
                copies->leased_bytes += copy->space_bytes;
        copy->spills = false;
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
        host_copy_set_offered(copies, copy, false);
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

void host_copy_set_offered(struct host_copies *copies, struct host_copy *copy, bool offered)
{
        if (copy->offered == offered)
                return;
        copy->offered = offered;
        if (offered) {
                TAILQ_INSERT_TAIL(&copies->offered, copy, offer_link);
                copies->offered_bytes += copy->raw_bytes;
        } else {
                TAILQ_REMOVE(&copies->offered, copy, offer_link);
                copies->offered_bytes -= copy->raw_bytes;
        }
}

void host_copy_offer_again(struct host_copies *copies, struct host_copy *copy)
{
        host_copy_set_offered(copies, copy, false);
        copy->offered = true;
        TAILQ_INSERT_HEAD(&copies->offered, copy, offer_link);
        copies->offered_bytes += copy->raw_bytes;
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

uint32_t host_copy_checksum_segments(const struct host_copies *copies, const struct host_copy *copy,
                                     struct checksum_segment *ret_segments)
{
        struct tier_segment segments[HOST_EXTENTS_MAX];
        uint32_t n = host_copy_tier_segments(copies, copy, segments);

        for (uint32_t i = 0; i < n; i++)
                ret_segments[i] = (struct checksum_segment){segments[i].bytes, segments[i].length};
        return n;
}
