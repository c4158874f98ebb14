// SPDX-License-Identifier: Apache-2.0
/*
 * What the remote tier says that the pool has: this node's objects from before the start,
 * and other nodes', which come and go while it runs.
 *
 * An entry joins an object that is known here, or becomes one. What is this node's keeps its
 * generation; what is others' gets one of this node when it comes, for generations are each
 * node's own. What this node wrote before it lost the tier's index never joins what it has stored
 * since: that may have replaced it. Others' entries never push anything out: in a full index they
 * find no place, are counted and are not known. When others replace an object, copies here that do
 * not have the new checksum are wrong and go in the same turn; the tier remembers what was replaced
 * until they are gone durably, and says it again after a start that finds it in doubt. When it is
 * not known which objects others have replaced, all that this node has goes, in slices: own entries
 * in the pool too, and what is on its way from peers; nothing of theirs is taken for a minute then,
 * for they may have to read yet what was missed here. (One that does not reach the pool for longer
 * may still give older bytes.) The tier is told when what goes is gone durably; until then it asks
 * again.
 *
 * What comes from the pool was written by other machines: it is checked here once more for
 * what the index takes for granted. Loop thread only.
 */
#pragma once

#include <stdbool.h>

#include "storage/tier.h"

struct cache;

/* From now on the remote tier reports what others do (before its recover()). */
void remote_entries_listen(struct cache *cache);

/* The next slice of what is to go; true: there is more. Called after each turn of the loop. */
bool remote_entries_go_on(struct cache *cache);

/* For tier_ops.recover; @user begins with a struct cache *. */
void remote_entry_recovered(void *user, const struct tier_object *object, struct tier_place place);

/*
 * The number of a layout that the pool tells of. 0, or INDEX_E_FULL: all but those that are kept
 * for engines are taken, or nobody here can ask for it.
 */
int remote_entry_layout(struct cache *cache, uint32_t domain, const struct digest *id,
                        uint16_t *ret_layout);
