// SPDX-License-Identifier: Apache-2.0
/*
 * Once after each start our bundles in the pool are listed: one that nobody knows, from a
 * power loss or a put that arrived long after its deadline, is removed.
 *
 * A node that lost its index has learned from its own journal what it stored; from the list
 * it learns what of it is there. Only then its bytes are known, and it may store again.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/pool_name.h"
#include "storage/remote_tier.h"

#define LIST_NAMES 1000u

struct survey {
        struct remote *remote;
        struct database_changes changes;
        char prefix[POOL_NAME_MAX];
        char after[POOL_NAME_MAX];
        uint64_t next;  /* own bundles below were found, or dropped */
        uint64_t limit; /* from this number on this run has taken some */
        struct pool_list list;
};

static void put_number(struct survey *survey, char prefix, uint64_t number, uint64_t bytes)
{
        struct remote_index_bundle value = {.bytes = bytes};
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

        remote_index_number_key(key, prefix, number);
        database_changes_put(&survey->changes, key, sizeof(key), &value, sizeof(value));
}

/* Our journal tells of it, and it is not there. */
static void drop_missing(struct survey *survey, struct remote_bundle *bundle)
{
        struct remote *remote = survey->remote;
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

        while (bundle->first_entry)
                remote_vanish(remote, remote_map_slot(&remote->map, bundle->first_entry),
                              &survey->changes, false, 0);
        remote->counts.stale_entries++;
        remote->used_bytes -= bundle->bytes;
        remote->n_bundles--;
        remote_index_number_key(key, REMOTE_INDEX_BUNDLE, bundle->number);
        database_changes_delete(&survey->changes, key, sizeof(key));
        if (!bundle->n_reads)
                remote_map_drop_bundle(&remote->map, bundle);
}

static void drop_missing_below(struct survey *survey, uint64_t number)
{
        struct remote *remote = survey->remote;
        struct remote_bundle *bundle, *next;

        for (bundle = remote_node_first_bundle(remote->own); bundle && bundle->number < number;
             bundle = next) {
                next = remote_bundle_next(bundle);
                if (bundle->number >= survey->next && bundle->state == REMOTE_BUNDLE_LIVE)
                        drop_missing(survey, bundle);
        }
        survey->next = number;
}

static void on_name(struct pool_list *list, const char *name, uint64_t bytes)
{
        struct survey *survey = list->user;
        struct remote *remote = survey->remote;
        struct remote_bundle *bundle;
        struct bundle_id id;

        strncpy(survey->after, name, sizeof(survey->after) - 1);
        if (!bundle_name_parse(name, &id) || id.number < survey->next ||
            (id.number >= survey->limit && id.number < remote->next_bundle))
                return;
        if (remote->is_rebuilding)
                drop_missing_below(survey, id.number);
        survey->next = id.number + 1;
        if (remote->next_bundle <= id.number)
                remote->next_bundle = id.number + 1;
        bundle = remote_map_bundle(&remote->map, remote->own, id.number, false);
        if (!bundle) {
                /* Nobody knows it any more. */
                put_number(survey, REMOTE_INDEX_CONDEMNED, id.number, bytes);
                remote->used_bytes += bytes;
                remote_condemn(remote, id.number, bytes, 0);
        } else if (bundle->state == REMOTE_BUNDLE_LIVE &&
                   (remote->is_rebuilding || bundle->bytes != bytes)) {
                /* A journal tells what its parts take, not its header. */
                put_number(survey, REMOTE_INDEX_BUNDLE, id.number, bytes);
                remote->used_bytes += bytes - bundle->bytes;
                bundle->bytes = bytes;
                bundle->dead_bytes = bytes > bundle->live_bytes ? bytes - bundle->live_bytes : 0;
        }
}

static int list_on(struct survey *survey);

static void end(struct survey *survey)
{
        struct remote *remote = survey->remote;

        database_changes_deinit(&survey->changes);
        free(survey);
        remote_retry_soon(remote);
        remote_ready(remote);
        remote_wake(remote);
        remote_idle(remote);
}

static void on_listed(struct pool_list *list, int result, bool more)
{
        struct survey *survey = list->user;
        struct remote *remote = survey->remote;

        remote_note(remote, result);
        if (!result && !more)
                remote->is_surveyed = true;
        if (!result && !more && remote->is_rebuilding) {
                drop_missing_below(survey, UINT64_MAX);
                remote->is_rebuilding = false;
                remote_put_meta(remote, &survey->changes);
                remote_notice(remote,
                              "the index of the pool is rebuilt: %llu bundles of this node, %llu "
                              "bytes",
                              (unsigned long long)remote->n_bundles,
                              (unsigned long long)remote->used_bytes);
        }
        /* A list that did not end is begun anew after the next round. */
        remote_change(remote, &survey->changes, false, NULL);
        if (result || !more || remote->is_closing || list_on(survey)) {
                remote->is_listing = false;
                end(survey);
        }
}

static int list_on(struct survey *survey)
{
        struct pool *pool = survey->remote->pool;

        survey->list = (struct pool_list){
                .prefix = survey->prefix,
                .after = survey->after[0] ? survey->after : NULL,
                .max = LIST_NAMES,
                .deadline_ms = survey->remote->options.deadline_ms,
                .on_name = on_name,
                .on_done = on_listed,
                .user = survey,
        };
        return pool->ops.list(pool, &survey->list);
}

void remote_survey(struct remote *remote)
{
        struct survey *survey;

        if (remote->is_listing || remote->is_open || remote->is_surveyed)
                return;
        survey = calloc(1, sizeof(*survey));
        if (!survey)
                return;
        survey->remote = remote;
        survey->next = 1;
        survey->limit = remote->is_rebuilding ? UINT64_MAX : remote->first_new_bundle;
        pool_name_prefix(survey->prefix, "bundle", remote->own->id);
        if (list_on(survey)) {
                free(survey);
                return;
        }
        remote->is_listing = true;
        remote_busy(remote);
}
