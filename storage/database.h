// SPDX-License-Identifier: Apache-2.0
/*
 * RocksDB behind one helper thread: what the catalog of the NVMe tier and the index of the
 * remote tier are made of.
 *
 * The helper owns all writes and works through one FIFO, so that puts and deletes keep
 * their order. It takes what has gathered as one batch; an operation is acknowledged on
 * the loop when the batch is in the write-ahead log, that is, when it survives the end of
 * this process; with `sync` when it survives a power loss.
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

#define DATABASE_KEY_MAX 88u

struct database;
struct database_cursor;

enum {
        DATABASE_E_DAMAGED = 1, /* RocksDB cannot read it: to be treated as lost */
        DATABASE_E_FOREIGN,     /* holds something else: not to be overwritten */
        DATABASE_E_BUSY,        /* open in another process */
        DATABASE_E_ABSENT,      /* no such key */
};

struct database_kind {
        const char *noun;  /* in messages: "catalog" */
        bool is_looked_up; /* single keys are read, not only walks */
};

/* Embedded in the caller's request; the database's from submit until @on_done. */
struct database_op {
        void (*on_done)(struct database_op *op, int result); /* 0 or a negative errno */
        STAILQ_ENTRY(database_op) link;
        uint32_t kind;
        bool sync;
        int result;
        uint8_t key[DATABASE_KEY_MAX];
        uint32_t key_bytes;
        void *value; /* malloc'd, freed by the database */
        size_t value_bytes;
};

/*
 * Opens or creates the database in the folder @path (its parent must exist) and starts the
 * helper. 0, DATABASE_E_DAMAGED, _FOREIGN, _BUSY or a negative errno, with @why filled.
 * Blocks while RocksDB replays its log.
 */
int database_open(struct database **ret_database, uv_loop_t *loop, const struct database_kind *kind,
                  const char *path, struct why *why);

/*
 * Would database_open() take @path: does not exist, is an empty folder, or holds a database
 * and nothing else? 0, DATABASE_E_FOREIGN or a negative errno. Changes nothing.
 */
int database_check(const struct database_kind *kind, const char *path, struct why *why);

/* Removes what database_open() made. 0 or a negative errno. */
int database_destroy(const struct database_kind *kind, const char *path, struct why *why);

/*
 * Works off what is queued, then has everything in it deleted, what cannot be read as well.
 * Blocks; the caller has no cursor, and no other thread reads. 0, or a negative errno with
 * @why: then nothing is written to it until the process ends.
 */
int database_renew(struct database *database, struct why *why);

/*
 * Works off what is queued, closes RocksDB and calls @on_closed on the loop, after which
 * the database is gone.
 */
void database_close(struct database *database, void (*on_closed)(void *user), void *user);

/* Queue operations. @value becomes the database's. */
void database_put(struct database *database, struct database_op *op, const void *key,
                  size_t key_bytes, void *value, size_t value_bytes, bool sync);
void database_delete(struct database *database, struct database_op *op, const void *key,
                     size_t key_bytes, bool sync);
/* Makes all that was queued before durable. */
void database_sync(struct database *database, struct database_op *op);

/* Several puts and deletes that are done all or none. All zero is an empty one. */
struct database_changes {
        uint8_t *bytes;
        size_t length, capacity;
        bool is_short; /* memory failed: they cannot be submitted */
};

void database_changes_put(struct database_changes *changes, const void *key, size_t key_bytes,
                          const void *value, size_t value_bytes);
void database_changes_delete(struct database_changes *changes, const void *key, size_t key_bytes);
void database_changes_deinit(struct database_changes *changes);
/* Queues them, and empties @changes. 0 or -ENOMEM: nothing was queued. */
int database_submit(struct database *database, struct database_op *op,
                    struct database_changes *changes, bool sync);

/* Operations not acknowledged yet. */
size_t database_queued(const struct database *database);

/*
 * Reads what is in the database now. Any thread; blocks. *@ret_value is freed by
 * database_value_free(). 0, DATABASE_E_ABSENT, _DAMAGED (with @why, which may be NULL).
 */
int database_get(struct database *database, const void *key, size_t key_bytes, void **ret_value,
                 size_t *ret_value_bytes, struct why *why);
void database_value_free(void *value);
/* Any thread; blocks. */
bool database_is_empty(struct database *database);
/* Writes durably, blocking: for the time of opening. 0 or a negative errno. */
int database_store(struct database *database, const void *key, size_t key_bytes, const void *value,
                   size_t value_bytes, struct why *why);

/*
 * Walks all entries whose keys begin with @prefix as they were when the cursor was opened,
 * in the order of their keys. Callable from any thread, one thread a cursor; the database
 * must outlive it.
 */
int database_cursor_open(struct database_cursor **ret_cursor, struct database *database,
                         char prefix);
/* false at the end or on failure. Key and value are valid until the next call. */
bool database_cursor_next(struct database_cursor *cursor, const void **ret_key,
                          size_t *ret_key_bytes, const void **ret_value, size_t *ret_value_bytes);
/* The next call gives the same entry again. */
void database_cursor_hold(struct database_cursor *cursor);
/* Back to the first entry of the same view. */
void database_cursor_rewind(struct database_cursor *cursor);
/* Ends the walk. 0, or a negative errno when it ended early. */
int database_cursor_close(struct database_cursor *cursor);
