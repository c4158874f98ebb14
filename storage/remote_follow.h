// SPDX-License-Identifier: Apache-2.0
/*
 * What is learned from journals: read by remote_follow.c, obeyed by remote_apply.c, with
 * remote_replaced.c for what replacing commits said, remote_rebuild.c for our own journal
 * when the index was lost, remote_layouts.c for layouts. Private to the remote tier.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/tree.h"
#include "storage/journal.h"
#include "storage/remote_map.h"

struct remote;

/* What a replacing commit said; until everybody has read it. */
struct remote_replaced {
        RB_ENTRY(remote_replaced) tree;
        TAILQ_ENTRY(remote_replaced) link; /* in the order of arrival */
        struct object_key key;
        struct remote_node *node;
        uint64_t number; /* of the segment; UINT64_MAX: ours, not in the pool yet */
        uint64_t checksum_total;
};

RB_HEAD(remote_replaced_tree, remote_replaced);

/* remote_follow.c */
int remote_follow_init(struct remote *remote);
void remote_follow_deinit(struct remote *remote);
void remote_begin_following(struct remote *remote); /* the start is over */
void remote_follow_poll(struct remote *remote);

/* remote_apply.c: one decoded record of a journal of @node, in segment @number. */
struct remote_news;
void remote_apply(struct remote *remote, struct remote_node *node, uint64_t number,
                  const struct remote_news *news, struct database_changes *changes);
/* All that is known of it goes. */
void remote_drop_bundles_of(struct remote *remote, struct remote_node *node,
                            struct database_changes *changes);
void remote_replaced(struct tier *tier, const struct object_key *key, uint64_t checksum_total);
void remote_replaced_sealed(struct remote *remote, uint64_t number);
void remote_replaced_deinit(struct remote *remote);
int remote_replaced_restore(struct remote *remote, const void *key, size_t key_bytes,
                            const void *value, size_t value_bytes);

/* remote_rebuild.c */
void remote_rebuild(struct remote *remote);

/* remote_layouts.c */
int remote_keep_layout(struct tier *tier, const struct tier_layout *layout);
void remote_forget_layout(struct tier *tier, const struct tier_layout *layout);
/* Of the index; @layout is told. */
void remote_layout_found(struct remote *remote, const struct tier_layout *layout);
