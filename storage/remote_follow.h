// SPDX-License-Identifier: Apache-2.0
/*
 * What is learned from journals: read by remote_follow.c, obeyed by remote_apply.c, with
 * remote_replaced.c for what replacing commits said, remote_survey.c for our own bundles in
 * the pool, remote_layouts.c for layouts. Private to the remote tier.
 *
 * Order. Within a journal segments are read in theirs. Across journals: a segment whose
 * writer had read others waits for these, so that what replaces an object is obeyed before
 * what was stored in its knowledge; what was stored without it is not entered, however late
 * it is read.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/tree.h"
#include "storage/database.h"
#include "storage/journal.h"
#include "storage/remote_map.h"

struct remote;
struct remote_follow;

/* A record of a segment, decoded on a worker; its pointers live as long as the segment. */
struct remote_news {
        enum journal_kind kind;
        struct bundle_id bundle;
        uint32_t part;
        struct tier_object object; /* stored */
        uint64_t stored_bytes;
        uint64_t checksum_total; /* stored, replaced */
        size_t value_at;         /* stored: of the index, in the segment's values */
        size_t value_bytes;
        struct object_key key; /* replaced */
        uint8_t node[16];      /* read */
        uint64_t number;
        struct tier_layout layout;
};

/* What a replacing commit said; until everybody has read it. */
struct remote_replaced {
        RB_ENTRY(remote_replaced) tree;
        TAILQ_ENTRY(remote_replaced) link; /* in the order of arrival */
        struct object_key key;
        struct remote_node *node;
        uint64_t number;  /* of the segment; UINT64_MAX: ours, not in the pool yet */
        uint64_t ordinal; /* ours: of the segment that it waits in */
        uint64_t checksum_total;
};

RB_HEAD(remote_replaced_tree, remote_replaced);
TAILQ_HEAD(remote_replaced_queue, remote_replaced);

/* What is remembered of a layout that is kept. */
struct remote_layout {
        struct digest id;
        uint32_t domain;
        uint32_t length;
};

/* remote_follow.c */
int remote_follow_init(struct remote *remote);
void remote_follow_deinit(struct remote *remote);
void remote_begin_following(struct remote *remote); /* the start is over */
void remote_follow_poll(struct remote *remote);

/* remote_apply.c */
/* Of @node's segment @number, whose values of the index lie at @values. */
void remote_apply(struct remote *remote, struct remote_node *node, uint64_t number,
                  const struct remote_news *news, const uint8_t *values,
                  struct database_changes *changes);
/* tier.h's on_missed, which the index remembers by the same @changes as what was missed. */
void remote_tell_missed(struct remote *remote, struct database_changes *changes);
void remote_vouched(struct tier *tier);
void remote_forget_missed(struct remote *remote); /* when it is time */
void remote_apply_deleted(struct remote *remote, const struct bundle_id *id,
                          struct database_changes *changes);
/* What is known of its bundles goes, @max entries of it; true: that was all. */
bool remote_drop_bundles_of(struct remote *remote, struct remote_node *node, uint32_t max,
                            struct database_changes *changes);
void remote_put_node(struct remote *remote, const struct remote_node *node,
                     struct database_changes *changes);

/* remote_replaced.c */
void remote_replaced(struct tier *tier, const struct object_key *key, uint64_t checksum_total);
bool remote_is_replaced(const struct tier *tier, const struct object_key *key,
                        uint64_t checksum_total);
/* May @node have stored bytes of this total under @key in knowledge of all we know? */
bool remote_replaced_allows(const struct remote *remote, const struct remote_node *node,
                            const struct object_key *key, uint64_t checksum_total);
void remote_replaced_learn(struct remote *remote, struct remote_node *node, uint64_t number,
                           const struct object_key *key, uint64_t checksum_total,
                           struct database_changes *changes);
/* What was just learned of ourselves waits in our segment of that ordinal. */
void remote_replaced_wait(struct remote *remote, uint64_t ordinal);
/* That segment is in the pool. */
void remote_replaced_sealed(struct remote *remote, uint64_t ordinal, uint64_t number,
                            struct database_changes *changes);
/* What everybody has read needs no remembering; some of it now, the rest with later calls. */
void remote_replaced_trim(struct remote *remote, struct database_changes *changes);
/* After a start: what had not left yet when the last run ended. */
void remote_replaced_say_again(struct remote *remote);
void remote_replaced_drop_node(struct remote *remote, struct remote_node *node,
                               struct database_changes *changes);
/* Into an index that has none. */
void remote_replaced_put_all(const struct remote *remote, struct database_changes *changes);
void remote_replaced_deinit(struct remote *remote);
int remote_replaced_restore(struct remote *remote, const void *key, size_t key_bytes,
                            const void *value, size_t value_bytes);

/* remote_survey.c: begun after each round of reading, until it has succeeded. */
void remote_survey(struct remote *remote);

/* remote_layouts.c */
int remote_keep_layout(struct tier *tier, const struct tier_layout *layout);
void remote_forget_layout(struct tier *tier, const struct tier_layout *layout);
/* Of the index; @layout is told. */
void remote_layout_found(struct remote *remote, const struct tier_layout *layout);
/* Of another node: kept and told, unless it is known. */
void remote_layout_learned(struct remote *remote, const struct tier_layout *layout,
                           struct database_changes *changes);
