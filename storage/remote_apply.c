// SPDX-License-Identifier: Apache-2.0
/*
 * Obeying what stands in journals, ours among them when the index lacks what it says. Every
 * record may come twice: after a crash, and in snapshots.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/remote_tier.h"

void remote_put_node(struct remote *remote, const struct remote_node *node,
                     struct database_changes *changes)
{
        uint8_t key[REMOTE_INDEX_NODE_BYTES] = {REMOTE_INDEX_NODE};
        struct remote_index_node head = {
                .read_to = node->read_to,
                .floor = node->floor,
                .gap_at = node->gap_at,
                .n_positions = node->n_positions,
        };
        size_t bytes = sizeof(head) + node->n_positions * sizeof(struct remote_index_position);
        uint8_t *value = malloc(bytes);

        if (!value) {
                remote_break(remote, err_raise(-ENOMEM));
                return;
        }
        memcpy(key + 1, node->id, sizeof(node->id));
        memcpy(value, &head, sizeof(head));
        for (uint32_t i = 0; i < node->n_positions; i++) {
                struct remote_index_position position = {.number = node->positions[i].number};

                memcpy(position.node, node->positions[i].node->id, sizeof(position.node));
                memcpy(value + sizeof(head) + i * sizeof(position), &position, sizeof(position));
        }
        database_changes_put(changes, key, sizeof(key), value, bytes);
        free(value);
}

/* ---- stored ---- */

static void put_bundle(const struct remote_bundle *bundle, struct database_changes *changes)
{
        struct remote_index_bundle value = {.bytes = bundle->bytes};
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

        remote_index_number_key(key, REMOTE_INDEX_BUNDLE, bundle->number);
        database_changes_put(changes, key, sizeof(key), &value, sizeof(value));
}

/* Of our own journal: a part that the index did not know. */
static void take_own_part(struct remote *remote, struct remote_entry *entry,
                          struct database_changes *changes)
{
        struct remote_bundle *bundle = entry->bundle;

        if (bundle->n_entries == 1 && !bundle->bytes)
                remote->n_bundles++;
        bundle->bytes += entry->stored_bytes;
        remote->used_bytes += entry->stored_bytes;
        bundle->live_bytes += entry->stored_bytes;
        remote->n_objects++;
        remote->payload_bytes += entry->stored_bytes;
        if (remote->next_bundle <= bundle->number)
                remote->next_bundle = bundle->number + 1;
        put_bundle(bundle, changes);
}

static void apply_stored(struct remote *remote, struct remote_node *node,
                         const struct remote_news *news, const uint8_t *values,
                         struct database_changes *changes)
{
        const struct object_key *object_key = &news->object.key;
        uint8_t key[REMOTE_INDEX_ENTRY_KEY_BYTES];
        struct remote_bundle *bundle;
        struct remote_entry *entry;

        /* The first who has it stays. */
        if (memcmp(news->bundle.node, node->id, sizeof(node->id)) ||
            remote_map_find(&remote->map, object_key) ||
            !remote_replaced_allows(remote, node, object_key, news->checksum_total))
                return;
        bundle = remote_map_bundle(&remote->map, node, news->bundle.number, true);
        if (!bundle || bundle->state != REMOTE_BUNDLE_LIVE)
                return;
        entry = remote_map_add(&remote->map, object_key, bundle, news->part);
        if (!entry) {
                remote->counts.entries_refused++;
                if (node->is_own && !bundle->n_entries && !bundle->bytes)
                        remote_map_drop_bundle(&remote->map, bundle); /* the survey finds it */
                else
                        remote_release_bundle(remote, bundle);
                return;
        }
        entry->raw_bytes = news->object.raw_bytes;
        entry->stored_bytes = (uint32_t)news->stored_bytes;
        entry->checksum_total = news->checksum_total;
        entry->flags = REMOTE_ENTRY_LEARNED;
        if (node->is_own)
                take_own_part(remote, entry, changes);
        remote_index_entry_key(key, object_key, entry->claim);
        database_changes_put(changes, key, sizeof(key), values + news->value_at, news->value_bytes);
        remote_tell_vanished(remote);
        if (remote->tier.on_appeared)
                remote->tier.on_appeared(remote->tier.on_shared_user, &news->object,
                                         remote_map_place(&remote->map, entry));
}

/* ---- deleted, dropped ---- */

static void vanish_all(struct remote *remote, struct remote_bundle *bundle,
                       struct database_changes *changes)
{
        while (bundle->first_entry)
                remote_vanish(remote, remote_map_slot(&remote->map, bundle->first_entry), changes,
                              false, 0);
}

bool remote_drop_bundles_of(struct remote *remote, struct remote_node *node, uint32_t max,
                            struct database_changes *changes)
{
        struct remote_bundle *bundle, *next;

        for (bundle = remote_node_first_bundle(node); bundle; bundle = next) {
                next = remote_bundle_next(bundle);
                for (; bundle->first_entry && max; max--)
                        remote_vanish(remote, remote_map_slot(&remote->map, bundle->first_entry),
                                      changes, false, 0);
                if (bundle->first_entry)
                        return false;
                remote_release_bundle(remote, bundle);
        }
        return true;
}

static struct remote_bundle *find_bundle(struct remote *remote, const struct bundle_id *id)
{
        struct remote_node *node = remote_map_node(&remote->map, id->node, false);

        return node ? remote_map_bundle(&remote->map, node, id->number, false) : NULL;
}

/* Of the past; should it be in the pool all the same, the end of rebuilding finds it. */
static void drop_own(struct remote *remote, struct remote_bundle *bundle,
                     struct database_changes *changes)
{
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

        remote_index_number_key(key, REMOTE_INDEX_BUNDLE, bundle->number);
        database_changes_delete(changes, key, sizeof(key));
        remote->used_bytes -= bundle->bytes;
        remote->n_bundles--;
        remote_map_drop_bundle(&remote->map, bundle);
}

/* An own bundle that somebody else deletes, in our long absence, is ours to remove as well. */
void remote_apply_deleted(struct remote *remote, const struct bundle_id *id,
                          struct database_changes *changes)
{
        struct remote_bundle *bundle = find_bundle(remote, id);

        if (!bundle)
                return;
        vanish_all(remote, bundle, changes);
        if (remote->is_rebuilding && bundle->node->is_own && bundle->state == REMOTE_BUNDLE_LIVE &&
            !bundle->n_reads) {
                drop_own(remote, bundle, changes);
                return;
        }
        remote_examine(remote, bundle);
        remote_release_bundle(remote, bundle);
}

static void apply_dropped(struct remote *remote, const struct remote_news *news,
                          struct database_changes *changes)
{
        struct remote_bundle *bundle = find_bundle(remote, &news->bundle);
        struct remote_entry *entry =
                bundle ? remote_bundle_part(&remote->map, bundle, news->part) : NULL;

        if (!entry)
                return;
        remote_vanish(remote, entry, changes, false, 0);
        remote_examine(remote, bundle);
        remote_release_bundle(remote, bundle);
}

/* ---- the rest ---- */

void remote_tell_missed(struct remote *remote, struct database_changes *changes)
{
        if (!remote->tier.on_missed)
                return;
        remote->is_unvouched = true;
        remote->is_vouched = false;
        remote_put_meta(remote, changes);
        remote->tier.on_missed(remote->tier.on_shared_user);
}

void remote_forget_missed(struct remote *remote)
{
        struct database_changes changes = {NULL};

        /* After the last delete of what had to go, which a broken index may lack. */
        if (!remote->is_vouched || !STAILQ_EMPTY(&remote->forgets) || remote->is_broken)
                return;
        remote->is_unvouched = remote->is_vouched = false;
        remote_put_meta(remote, &changes);
        remote_change(remote, &changes, false, NULL);
}

void remote_vouched(struct tier *tier)
{
        struct remote *remote = (struct remote *)tier;

        remote->is_vouched = remote->is_unvouched;
        remote_forget_missed(remote);
}

/* @node's snapshot repeats nothing that it replaced up to @floor. */
static void look_for_missed(struct remote *remote, struct remote_node *node, uint64_t floor,
                            struct database_changes *changes)
{
        uint64_t read_to = UINT64_MAX;

        if (node->gap_at)
                read_to = node->gap_at - 1;
        else if (remote->is_rebuilding)
                read_to = remote_node_position(remote->own, node); /* as our journal says */
        if (read_to >= floor)
                return;
        node->gap_at = 0;
        remote_notice(remote, "replacements were missed while this node was away: what it has "
                              "kept itself may be outdated and is dropped");
        if (!remote->is_closing)
                remote_tell_missed(remote, changes);
}

/* Our own snapshot's, of a time that the index knows nothing of: the next one has to say it too. */
static void learn_own_floor(struct remote *remote, uint64_t floor, struct database_changes *changes)
{
        if (remote->own->floor >= floor)
                return;
        remote->own->floor = floor;
        remote->has_floors = true;
        remote_put_node(remote, remote->own, changes);
}

static void apply_read(struct remote *remote, struct remote_node *node,
                       const struct remote_news *news, struct database_changes *changes)
{
        struct remote_node *of = remote_map_node(&remote->map, news->node, false);
        int r = 0;

        if (of == node && node->is_own)
                learn_own_floor(remote, news->number, changes);
        else if (of == node)
                look_for_missed(remote, node, news->number, changes);
        else if (of)
                r = remote_node_set_position(node, of, news->number);
        if (r)
                remote_break(remote, r);
}

void remote_apply(struct remote *remote, struct remote_node *node, uint64_t number,
                  const struct remote_news *news, const uint8_t *values,
                  struct database_changes *changes)
{
        switch (news->kind) {
        case JOURNAL_STORED:
                apply_stored(remote, node, news, values, changes);
                break;
        case JOURNAL_DELETED:
                remote_apply_deleted(remote, &news->bundle, changes);
                break;
        case JOURNAL_DROPPED:
                apply_dropped(remote, news, changes);
                break;
        case JOURNAL_REPLACED:
                remote_replaced_learn(remote, node, number, &news->key, news->checksum_total,
                                      changes);
                break;
        case JOURNAL_READ:
                apply_read(remote, node, news, changes);
                break;
        case JOURNAL_LAYOUT:
                remote_layout_learned(remote, &news->layout, changes);
                break;
        case JOURNAL_SNAPSHOT:
                break; /* what it repeats is known, or was dropped at a gap */
        }
}
