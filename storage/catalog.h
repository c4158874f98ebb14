// SPDX-License-Identifier: Apache-2.0
/*
 * The catalog: what survives a restart, in RocksDB.
 *
 * One helper thread owns all writes and works through one FIFO, so that puts and deletes
 * keep their order. It takes what has gathered as one batch; an operation is acknowledged
 * on the loop when the batch is in the write-ahead log, that is, when it survives the end
 * of this process; with `sync` when it survives a power loss.
 *
 * Write-ahead log and memtable are small, so that opening after kill -9 stays quick.
 *
 * A write that fails ends all writing until the next start: every later operation ends
 * with the same failure.
 *
 * Functions are called on the loop thread unless they say otherwise. RocksDB's error
 * strings end here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <uv.h>

#include "base/error.h"
#include "storage/catalog_entry.h"
#include "storage/catalog_layout.h"

struct catalog;
struct catalog_cursor;

enum {
        CATALOG_E_ABSENT = 1, /* no pool record: a new catalog */
        CATALOG_E_DAMAGED,    /* RocksDB cannot read it: to be treated as lost */
        CATALOG_E_FOREIGN,    /* holds something else: not to be overwritten */
        CATALOG_E_NEWER,      /* of a newer format */
        CATALOG_E_BUSY,       /* open in another process */
};

/* Embedded in the caller's request; the catalog's from submit until @on_done. */
struct catalog_op {
        void (*on_done)(struct catalog_op *op, int result); /* 0 or a negative errno */
        STAILQ_ENTRY(catalog_op) link;
        uint32_t kind;
        bool sync;
        int result;
        uint8_t key[CATALOG_ENTRY_KEY_BYTES];
        uint32_t key_bytes;
        void *value; /* malloc'd, freed by the catalog */
        size_t value_bytes;
};

/*
 * Opens or creates the catalog in the folder @path (its parent must exist) and starts the
 * helper. 0, CATALOG_E_DAMAGED, _FOREIGN, _BUSY or a negative errno, with @why filled.
 * Blocks while RocksDB replays its log.
 */
int catalog_open(struct catalog **ret_catalog, uv_loop_t *loop, const char *path, struct why *why);

/*
 * Would catalog_open() take @path: does not exist, is an empty folder, or holds a catalog
 * and nothing else? 0, CATALOG_E_FOREIGN or a negative errno. Changes nothing.
 */
int catalog_check(const char *path, struct why *why);

/* Removes what catalog_open() made. 0 or a negative errno. */
int catalog_destroy(const char *path, struct why *why);

/*
 * Works off what is queued, closes RocksDB and calls @on_closed on the loop, after which
 * the catalog is gone.
 */
void catalog_close(struct catalog *catalog, void (*on_closed)(void *user), void *user);

/* Reads the pool record. 0, CATALOG_E_ABSENT, _DAMAGED, _FOREIGN, _NEWER or a negative errno. */
int catalog_load_pool(struct catalog *catalog, struct catalog_pool *ret_pool, struct why *why);

/* Writes the pool record durably, blocking: for the time of opening. */
int catalog_store_pool(struct catalog *catalog, const struct catalog_pool *pool, struct why *why);

/* Queue operations. @value becomes the catalog's. */
void catalog_put(struct catalog *catalog, struct catalog_op *op, const struct object_key *key,
                 uint64_t claim, void *value, size_t value_bytes);
void catalog_delete(struct catalog *catalog, struct catalog_op *op, const struct object_key *key,
                    uint64_t claim, bool sync);
/* Deletes an entry by the key that a cursor gave (at most CATALOG_ENTRY_KEY_BYTES). */
void catalog_delete_key(struct catalog *catalog, struct catalog_op *op, const void *key,
                        size_t key_bytes);
/* Queue what is kept of a layout; @value (from catalog_layout_encode()) becomes the catalog's. */
void catalog_put_layout(struct catalog *catalog, struct catalog_op *op,
                        const struct tier_layout *layout, void *value, size_t value_bytes);
void catalog_delete_layout(struct catalog *catalog, struct catalog_op *op,
                           const struct tier_layout *layout);
/* Makes all that was queued before durable. */
void catalog_sync(struct catalog *catalog, struct catalog_op *op);
/* Queues the (sealed) pool record, durably. @record is malloc'd and becomes the catalog's. */
void catalog_put_pool(struct catalog *catalog, struct catalog_op *op, struct catalog_pool *record);

/* Operations not acknowledged yet. */
size_t catalog_queued(const struct catalog *catalog);

/*
 * Walks all entries whose keys begin with @prefix (CATALOG_X_PREFIX) as they were when the
 * cursor was opened, in the order of their keys. Callable from any thread, one thread a
 * cursor; the catalog must outlive it.
 */
int catalog_cursor_open(struct catalog_cursor **ret_cursor, struct catalog *catalog, char prefix);
/* false at the end or on failure. Key and value are valid until the next call. */
bool catalog_cursor_next(struct catalog_cursor *cursor, const void **ret_key, size_t *ret_key_bytes,
                         const void **ret_value, size_t *ret_value_bytes);
/* Back to the first entry of the same view. */
void catalog_cursor_rewind(struct catalog_cursor *cursor);
/* Ends the walk. 0, or a negative errno when it ended early. */
int catalog_cursor_close(struct catalog_cursor *cursor);
