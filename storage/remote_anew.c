// SPDX-License-Identifier: Apache-2.0
/*
 * An index of which a part cannot be read: opening finds it among what is loaded at once, the
 * walk of its entries in the rest. It is made anew, as one that was lost is, from our journal
 * and the others'; until then nothing is stored.
 *
 * What of it could be read and is not said again by a journal in the pool stays: records that
 * are still to go there, what replacing commits said, and which bundles are to be removed.
 * Entries go, those too that the daemon was told of: their records are not in memory.
 */
#include <stdlib.h>

#include "storage/remote_tier.h"

#define SLICE_ENTRIES 128u

bool remote_index_is_damaged(int result)
{
        return result == -EIO; /* of a cursor; writes are not waited for */
}

bool remote_drop_entries(struct remote *remote)
{
        struct database_changes nothing = {NULL};
        struct remote_node *node;
        bool is_over = true;

        LIST_FOREACH(node, &remote->map.nodes, link) {
                is_over = remote_drop_bundles_of(remote, node, SLICE_ENTRIES, &nothing);
                if (!is_over)
                        break;
        }
        database_changes_deinit(&nothing); /* the whole index goes */
        remote_tell_vanished(remote);
        return is_over;
}

/* The journal and a list of what is in the pool tell of them again. */
static void drop_own_bundles(struct remote *remote)
{
        struct remote_bundle *bundle, *next;

        for (bundle = remote_node_first_bundle(remote->own); bundle; bundle = next) {
                next = remote_bundle_next(bundle);
                if (bundle->state != REMOTE_BUNDLE_LIVE)
                        continue;
                remote->used_bytes -= bundle->bytes;
                remote->n_bundles--;
                remote_map_drop_bundle(&remote->map, bundle);
        }
}

static void put_condemned(struct remote *remote, struct database_changes *changes)
{
        const struct remote_bundle *bundle;

        TAILQ_FOREACH(bundle, &remote->going, link) {
                struct remote_index_bundle value = {.bytes = bundle->bytes};
                uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

                remote_index_number_key(key, REMOTE_INDEX_CONDEMNED, bundle->number);
                database_changes_put(changes, key, sizeof(key), &value, sizeof(value));
        }
}

int remote_make_anew(struct remote *remote, struct why *why)
{
        struct database_changes changes = {NULL};
        struct remote_node *node;
        int r = database_renew(remote->index, why);

        if (r)
                return r;
        remote_notice(remote, "the index of the pool is damaged and is made anew; what this node "
                              "stored is learned from its journal before it stores more");
        drop_own_bundles(remote);
        remote->is_rebuilding = true;
        remote->first_segment = 0;
        LIST_FOREACH(node, &remote->map.nodes, link) {
                node->read_to = node->told = 0;
                remote_put_node(remote, node, &changes);
        }
        free(remote->layouts);
        remote->layouts = NULL;
        remote->n_layouts = 0;
        remote->layout_bytes = 0;
        put_condemned(remote, &changes);
        remote_replaced_put_all(remote, &changes);
        remote_journal_put_all(remote, &changes);
        remote_put_meta(remote, &changes);
        remote_change(remote, &changes, true, NULL);
        return 0;
}
