// SPDX-License-Identifier: Apache-2.0
/*
 * What replacing commits said: which bytes hold under a key. A record is obeyed at once, and
 * remembered, for a node that had not read it may announce older bytes later on, and older
 * bytes of this node may come back in a restart. When every node has read it, and what had to
 * go here has gone durably, it is forgotten; a floor then keeps out whoever comes back with a
 * journal from before. So it is, too, when there are too many.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/remote_tier.h"

#define NO_ORDINAL UINT64_MAX /* ours, and just learned */
#define TRIM_MAX   512u       /* in one turn of the loop */

static int compare(const struct remote_replaced *a, const struct remote_replaced *b)
{
        return memcmp(&a->key, &b->key, sizeof(a->key));
}

TREE_GENERATE(remote_replaced_tree, remote_replaced, tree, compare)

static struct remote_replaced *find(const struct remote *remote, const struct object_key *key)
{
        struct remote_replaced wanted = {.key = *key};

        return RB_FIND(remote_replaced_tree,
                       (struct remote_replaced_tree *)(uintptr_t)&remote->replaced, &wanted);
}

static void index_key(uint8_t ret_key[1 + sizeof(struct object_key)], const struct object_key *key)
{
        ret_key[0] = REMOTE_INDEX_REPLACED;
        memcpy(ret_key + 1, key, sizeof(*key));
}

static void put(const struct remote_replaced *replaced, struct database_changes *changes)
{
        struct remote_index_replaced value = {
                .number = replaced->number,
                .checksum_total = replaced->checksum_total,
        };
        uint8_t key[1 + sizeof(struct object_key)];

        memcpy(value.node, replaced->node->id, sizeof(value.node));
        index_key(key, &replaced->key);
        database_changes_put(changes, key, sizeof(key), &value, sizeof(value));
}

static void drop(struct remote *remote, struct remote_replaced *replaced,
                 struct database_changes *changes)
{
        uint8_t key[1 + sizeof(struct object_key)];

        index_key(key, &replaced->key);
        database_changes_delete(changes, key, sizeof(key));
        RB_REMOVE(remote_replaced_tree, &remote->replaced, replaced);
        TAILQ_REMOVE(&remote->replaced_list, replaced, link);
        remote->n_replaced--;
        free(replaced);
}

/* From now on its node's journal has to be read up to it by whoever is believed. */
static void raise_floor(struct remote *remote, const struct remote_replaced *replaced)
{
        struct remote_node *node = replaced->node;

        if (replaced->number == UINT64_MAX || node->floor >= replaced->number)
                return;
        node->floor = replaced->number;
        remote->has_floors = true;
}

/* ---- who is believed ---- */

/*
 * Was it said here, and @node is we ourselves, as of before? Until all of our journal that is in
 * the pool has been read nothing of this run is in it, so what is read there is older.
 */
static bool is_later_than_journal(const struct remote *remote,
                                  const struct remote_replaced *replaced,
                                  const struct remote_node *node)
{
        return node->is_own && replaced->node == node && replaced->number == UINT64_MAX &&
               !remote->is_own_read;
}

bool remote_replaced_allows(const struct remote *remote, const struct remote_node *node,
                            const struct object_key *key, uint64_t checksum_total)
{
        const struct remote_replaced *replaced = find(remote, key);
        const struct remote_node *other;

        if (replaced && replaced->checksum_total == checksum_total)
                return true;
        if (replaced && is_later_than_journal(remote, replaced, node))
                return false;
        if (replaced && replaced->node != node &&
            remote_node_position(node, replaced->node) < replaced->number)
                return false;
        if (!remote->has_floors)
                return true;
        LIST_FOREACH(other, &remote->map.nodes, link) {
                if (other != node && other->floor &&
                    remote_node_position(node, other) < other->floor)
                        return false;
        }
        return true;
}

bool remote_is_replaced(const struct tier *tier, const struct object_key *key,
                        uint64_t checksum_total)
{
        const struct remote_replaced *replaced = find((const struct remote *)tier, key);

        return replaced && (!checksum_total || replaced->checksum_total != checksum_total);
}

/* ---- remembering ---- */

static struct remote_replaced *remember(struct remote *remote, struct remote_node *node,
                                        uint64_t number, const struct object_key *key,
                                        uint64_t checksum_total, struct database_changes *changes)
{
        struct remote_replaced *replaced = find(remote, key);

        if (!replaced) {
                while (remote->n_replaced >= REMOTE_REPLACED_MAX) {
                        struct remote_replaced *first = TAILQ_FIRST(&remote->replaced_list);

                        raise_floor(remote, first);
                        remote_put_node(remote, first->node, changes);
                        drop(remote, first, changes);
                }
                replaced = calloc(1, sizeof(*replaced));
                if (!replaced) {
                        remote_break(remote, err_raise(-ENOMEM));
                        return NULL;
                }
                replaced->key = *key;
                RB_INSERT(remote_replaced_tree, &remote->replaced, replaced);
                remote->n_replaced++;
        } else {
                TAILQ_REMOVE(&remote->replaced_list, replaced, link);
        }
        TAILQ_INSERT_TAIL(&remote->replaced_list, replaced, link);
        replaced->node = node;
        replaced->number = number;
        replaced->ordinal = number == UINT64_MAX ? NO_ORDINAL : 0;
        replaced->checksum_total = checksum_total;
        put(replaced, changes);
        return replaced;
}

static bool has_everybody_read(const struct remote *remote, const struct remote_replaced *replaced)
{
        const struct remote_node *node;

        if (replaced->number == UINT64_MAX)
                return false;
        LIST_FOREACH(node, &remote->map.nodes, link) {
                uint64_t position = node->is_own ? replaced->node->read_to
                                                 : remote_node_position(node, replaced->node);

                if (node != replaced->node && position < replaced->number)
                        return false;
        }
        return true;
}

/* From the tiers above, of what was learned to be replaced: none of it can come back. */
static bool have_all_left(struct remote *remote, struct database_changes *changes)
{
        if (!remote->is_leaving)
                return true;
        if (remote->tier.is_leaving && remote->tier.is_leaving(remote->tier.on_shared_user))
                return false;
        remote->is_leaving = false;
        remote_put_meta(remote, changes);
        return true;
}

void remote_replaced_trim(struct remote *remote, struct database_changes *changes)
{
        struct remote_node *raised = NULL;
        struct remote_replaced *first;

        if (!have_all_left(remote, changes))
                return;
        for (uint32_t n = 0; n < TRIM_MAX && (first = TAILQ_FIRST(&remote->replaced_list)) &&
                             has_everybody_read(remote, first);
             n++) {
                /* A floor is written once, not with each record below it. */
                if (raised && raised != first->node)
                        remote_put_node(remote, raised, changes);
                raised = first->node;
                raise_floor(remote, first);
                drop(remote, first, changes);
        }
        if (raised)
                remote_put_node(remote, raised, changes);
}

void remote_replaced_drop_node(struct remote *remote, struct remote_node *node,
                               struct database_changes *changes)
{
        struct remote_replaced *replaced, *next;

        for (replaced = TAILQ_FIRST(&remote->replaced_list); replaced; replaced = next) {
                next = TAILQ_NEXT(replaced, link);
                if (replaced->node == node)
                        drop(remote, replaced, changes);
        }
}

void remote_replaced_sealed(struct remote *remote, uint64_t ordinal, uint64_t number,
                            struct database_changes *changes)
{
        struct remote_replaced *replaced;

        TAILQ_FOREACH(replaced, &remote->replaced_list, link) {
                if (replaced->number != UINT64_MAX || replaced->ordinal > ordinal)
                        continue;
                replaced->number = number;
                put(replaced, changes);
        }
}

/* ---- obeying ---- */

/* Drops what has other bytes; the number of places that the daemon is told of. */
static uint32_t drop_others(struct remote *remote, const struct object_key *key,
                            uint64_t checksum_total, struct database_changes *changes)
{
        struct remote_entry *entry, *next;
        uint32_t n_told = 0;

        for (entry = remote_map_find(&remote->map, key); entry; entry = next) {
                struct remote_bundle *bundle = entry->bundle;
                struct journal_record record = {
                        .kind = JOURNAL_DROPPED,
                        .bundle = {.number = bundle->number},
                        .part = entry->part,
                };
                struct remote_group group;

                next = remote_map_find_next(&remote->map, entry);
                if (checksum_total && entry->checksum_total == checksum_total)
                        continue;
                n_told += !(entry->flags & REMOTE_ENTRY_ENTERING);
                remote_vanish(remote, entry, changes, true, checksum_total);
                remote_examine(remote, bundle);
                if (bundle->node->is_own && bundle->state == REMOTE_BUNDLE_LIVE) {
                        memcpy(record.bundle.node, bundle->node->id, sizeof(record.bundle.node));
                        remote_group_init(&group, changes);
                        remote_group_add(remote, &group, &record);
                        remote_group_commit(remote, &group, false);
                }
                remote_release_bundle(remote, bundle);
        }
        return n_told;
}

void remote_replaced_learn(struct remote *remote, struct remote_node *node, uint64_t number,
                           const struct object_key *key, uint64_t checksum_total,
                           struct database_changes *changes)
{
        struct remote_replaced *known = find(remote, key);

        if (known && known->node == node && known->checksum_total == checksum_total &&
            number != UINT64_MAX)
                return; /* told again, by a snapshot or after a crash */
        if (known && number != UINT64_MAX && is_later_than_journal(remote, known, node))
                return;
        if (!remote->is_leaving) {
                remote->is_leaving = true;
                remote_put_meta(remote, changes);
        }
        remember(remote, node, number, key, checksum_total, changes);
        /* Higher tiers may have a copy that the pool never had. */
        if (!drop_others(remote, key, checksum_total, changes))
                remote_queue_vanished(remote, key, (struct tier_place){0, 0}, true, checksum_total);
}

void remote_replaced(struct tier *tier, const struct object_key *key, uint64_t checksum_total)
{
        struct remote *remote = (struct remote *)tier;
        struct journal_record record = {
                .kind = JOURNAL_REPLACED,
                .key = *key,
                .checksum_total = checksum_total,
        };
        struct database_changes changes = {NULL};
        struct remote_group group;

        drop_others(remote, key, checksum_total, &changes);
        remember(remote, remote->own, UINT64_MAX, key, checksum_total, &changes);
        remote_group_init(&group, &changes);
        remote_group_add(remote, &group, &record);
        remote_replaced_wait(remote, remote_group_commit(remote, &group, true));
        remote_change(remote, &changes, false, NULL);
}

void remote_replaced_wait(struct remote *remote, uint64_t ordinal)
{
        struct remote_replaced *replaced;

        TAILQ_FOREACH_REVERSE(replaced, &remote->replaced_list, remote_replaced_queue, link)
        {
                if (replaced->ordinal != NO_ORDINAL)
                        break;
                replaced->ordinal = ordinal;
        }
}

/* ---- over a restart ---- */

int remote_replaced_restore(struct remote *remote, const void *key, size_t key_bytes,
                            const void *value, size_t value_bytes)
{
        struct remote_index_replaced kept;
        struct database_changes nothing = {NULL};
        struct remote_replaced *replaced;
        struct object_key object_key;
        struct remote_node *node;

        if (key_bytes != 1 + sizeof(object_key) || value_bytes != sizeof(kept))
                return 0;
        memcpy(&kept, value, sizeof(kept));
        memcpy(&object_key, (const uint8_t *)key + 1, sizeof(object_key));
        node = remote_map_node(&remote->map, kept.node, true);
        if (!node)
                return err_raise(-ENOMEM);
        replaced = remember(remote, node, kept.number, &object_key, kept.checksum_total, &nothing);
        database_changes_deinit(&nothing);
        if (!replaced)
                return err_raise(-ENOMEM);
        /* Pending records were restored before: it is in the last of them at the latest. */
        replaced->ordinal = remote->next_ordinal - 1;
        return 0;
}

void remote_replaced_say_again(struct remote *remote)
{
        const struct remote_replaced *replaced;

        if (!remote->is_leaving)
                return;
        TAILQ_FOREACH(replaced, &remote->replaced_list, link) {
                remote_queue_vanished(remote, &replaced->key, (struct tier_place){0, 0}, true,
                                      replaced->checksum_total);
        }
}

void remote_replaced_put_all(const struct remote *remote, struct database_changes *changes)
{
        const struct remote_replaced *replaced;

        TAILQ_FOREACH(replaced, &remote->replaced_list, link) {
                put(replaced, changes);
        }
}

void remote_replaced_deinit(struct remote *remote)
{
        struct remote_replaced *replaced;

        while ((replaced = TAILQ_FIRST(&remote->replaced_list))) {
                TAILQ_REMOVE(&remote->replaced_list, replaced, link);
                free(replaced);
        }
}
