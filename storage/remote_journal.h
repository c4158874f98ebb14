// SPDX-License-Identifier: Apache-2.0
/*
 * Our own journal (remote_journal.c) and its snapshots (remote_compact.c). Private to the
 * remote tier.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "storage/journal.h"
#include "storage/remote_change.h"

/* An own journal segment: the last of the queue takes records, the first is in flight. */
struct remote_segment {
        TAILQ_ENTRY(remote_segment) link;
        struct journal_segment journal;
        uint64_t ordinal;
        uint64_t end_sequence; /* pending records of the index below it are in it */
        bool is_sealed;
        bool was_tried;   /* it may be there */
        bool was_refused; /* it is not: the pool did not take the put at all */
};

/* Records that are announced together: pending in the index by the same changes as what
 * they say. */
struct remote_group {
        struct database_changes *changes;
        struct journal_segment journal;
};

TAILQ_HEAD(remote_segment_queue, remote_segment);

void remote_group_init(struct remote_group *group, struct database_changes *changes);
void remote_group_add(struct remote *remote, struct remote_group *group,
                      const struct journal_record *record);
/* Its records are pending from now on. The ordinal of the segment that has the last one. */
uint64_t remote_group_commit(struct remote *remote, struct remote_group *group, bool urgent);
/* What we have read, though we have nothing to tell, when somebody waits for that. */
void remote_tell_positions(struct remote *remote);
int remote_journal_restore(struct remote *remote, const void *bytes, size_t length,
                           uint64_t sequence);
/* What waits, into an index that has none of it. */
void remote_journal_put_all(struct remote *remote, struct database_changes *changes);
void remote_journal_work(struct remote *remote);
/* Tells those whose records are in the pool; with a negative @result, all others too. */
void remote_end_appends(struct remote *remote, int result);
void remote_journal_init(struct remote *remote);
void remote_journal_deinit(struct remote *remote);
uint64_t remote_journal_wait(const struct remote *remote); /* ms, or UINT64_MAX */

/* remote_compact.c */
void remote_compact(struct remote *remote);
