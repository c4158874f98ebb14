// SPDX-License-Identifier: Apache-2.0
/*
 * A node that lost its index has learned from its own journal what it stored; what is left
 * is to see what of it is in the pool, and what else is there under its name. Only then its
 * bytes are known, and it may store again.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/pool_name.h"
#include "storage/remote_tier.h"

#define LIST_NAMES 1000u

struct rebuild {
        struct remote *remote;
        struct database_changes changes;
        char prefix[POOL_NAME_MAX];
        char after[POOL_NAME_MAX];
        uint64_t next; /* own bundles below were found, or dropped */
        struct pool_list list;
};

static void put_number(struct rebuild *rebuild, char prefix, uint64_t number, uint64_t bytes)
{
        struct remote_index_bundle value = {.bytes = bytes};
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

        remote_index_number_key(key, prefix, number);
        database_changes_put(&rebuild->changes, key, sizeof(key), &value, sizeof(value));
}

/* Our journal tells of it, and it is not there. */
static void drop_missing(struct rebuild *rebuild, struct remote_bundle *bundle)
{
        struct remote *remote = rebuild->remote;
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

        while (bundle->first_entry)
                remote_vanish(remote, remote_map_slot(&remote->map, bundle->first_entry),
                              &rebuild->changes, false, 0);
        remote->counts.stale_entries++;
        remote->used_bytes -= bundle->bytes;
        remote->n_bundles--;
        remote_index_number_key(key, REMOTE_INDEX_BUNDLE, bundle->number);
        database_changes_delete(&rebuild->changes, key, sizeof(key));
        if (!bundle->n_reads)
                remote_map_drop_bundle(&remote->map, bundle);
}

static void drop_missing_below(struct rebuild *rebuild, uint64_t number)
{
        struct remote *remote = rebuild->remote;
        struct remote_bundle *bundle, *next;

        for (bundle = remote_node_first_bundle(remote->own); bundle && bundle->number < number;
             bundle = next) {
                next = remote_bundle_next(bundle);
                if (bundle->number >= rebuild->next && bundle->state == REMOTE_BUNDLE_LIVE)
                        drop_missing(rebuild, bundle);
        }
        rebuild->next = number;
}

static void on_name(struct pool_list *list, const char *name, uint64_t bytes)
{
        struct rebuild *rebuild = list->user;
        struct remote *remote = rebuild->remote;
        struct remote_bundle *bundle;
        struct bundle_id id;

        strncpy(rebuild->after, name, sizeof(rebuild->after) - 1);
        if (!bundle_name_parse(name, &id) || id.number < rebuild->next)
                return;
        drop_missing_below(rebuild, id.number);
        rebuild->next = id.number + 1;
        if (remote->next_bundle <= id.number)
                remote->next_bundle = id.number + 1;
        bundle = remote_map_bundle(&remote->map, remote->own, id.number, false);
        if (!bundle) {
                /* Nobody knows it any more. */
                put_number(rebuild, REMOTE_INDEX_CONDEMNED, id.number, bytes);
                remote->used_bytes += bytes;
                remote_condemn(remote, id.number, bytes, 0);
        } else if (bundle->state == REMOTE_BUNDLE_LIVE) {
                put_number(rebuild, REMOTE_INDEX_BUNDLE, id.number, bytes);
                remote->used_bytes += bytes - bundle->bytes;
                bundle->bytes = bytes;
                bundle->dead_bytes = bytes > bundle->live_bytes ? bytes - bundle->live_bytes : 0;
        }
}

static int list_on(struct rebuild *rebuild);

static void end(struct rebuild *rebuild)
{
        struct remote *remote = rebuild->remote;

        database_changes_deinit(&rebuild->changes);
        free(rebuild);
        remote_retry_soon(remote);
        remote_ready(remote);
        remote_wake(remote);
        remote_idle(remote);
}

static void on_listed(struct pool_list *list, int result, bool more)
{
        struct rebuild *rebuild = list->user;
        struct remote *remote = rebuild->remote;

        remote_note(remote, result);
        if (!result && !more) {
                drop_missing_below(rebuild, UINT64_MAX);
                remote->is_rebuilding = false;
                remote_put_meta(remote, &rebuild->changes);
                remote_notice(remote,
                              "the index of the pool is rebuilt: %llu bundles of this node, %llu "
                              "bytes",
                              (unsigned long long)remote->n_bundles,
                              (unsigned long long)remote->used_bytes);
        }
        /* A list that did not end is begun anew after the next round. */
        remote_change(remote, &rebuild->changes, false, NULL);
        if (result || !more || remote->is_closing || list_on(rebuild)) {
                remote->is_listing = false;
                end(rebuild);
        }
}

static int list_on(struct rebuild *rebuild)
{
        struct pool *pool = rebuild->remote->pool;

        rebuild->list = (struct pool_list){
                .prefix = rebuild->prefix,
                .after = rebuild->after[0] ? rebuild->after : NULL,
                .max = LIST_NAMES,
                .deadline_ms = rebuild->remote->options.deadline_ms,
                .on_name = on_name,
                .on_done = on_listed,
                .user = rebuild,
        };
        return pool->ops.list(pool, &rebuild->list);
}

void remote_rebuild(struct remote *remote)
{
        struct rebuild *rebuild;

        if (remote->is_listing || remote->is_open)
                return;
        rebuild = calloc(1, sizeof(*rebuild));
        if (!rebuild)
                return;
        rebuild->remote = remote;
        rebuild->next = 1;
        pool_name_prefix(rebuild->prefix, "bundle", remote->own->id);
        if (list_on(rebuild)) {
                free(rebuild);
                return;
        }
        remote->is_listing = true;
        remote_busy(remote);
}
