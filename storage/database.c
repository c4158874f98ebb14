// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fnmatch.h>
#include <rocksdb/c.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "storage/database.h"

#define BATCH_OPS_MAX     1024
#define BATCH_BYTES_MAX   (8u << 20)
#define MEMTABLE_BYTES    (16u << 20)
#define WAL_BYTES_MAX     (32u << 20)
#define ROOM_BYTES_MIN    (1u << 20)
#define READAHEAD_BYTES   (2u << 20)
#define BLOCK_BYTES       (16u << 10)
#define CACHE_BYTES       (32u << 20)
#define FILTER_BITS       10 /* a key */
#define ROCKSDB_LOG_FATAL 4  /* InfoLogLevel::FATAL_LEVEL */

enum kind {
        KIND_PUT,
        KIND_DELETE,
        KIND_CHANGES, /* the value is a list of them */
        KIND_SYNC,
};

/* In front of each change of a list; key and value follow. */
struct change {
        uint32_t is_put;
        uint32_t key_bytes;
        uint64_t value_bytes;
};

STAILQ_HEAD(op_queue, database_op);

struct database {
        rocksdb_t *db;
        rocksdb_writeoptions_t *lazy;
        rocksdb_writeoptions_t *synced;
        int failed; /* helper: a write failed, RocksDB is not written to any more */
        uv_thread_t thread;
        uv_async_t async;
        uv_mutex_t mutex;
        uv_cond_t cond;
        struct op_queue queue; /* under the mutex */
        struct op_queue done;  /* under the mutex */
        bool closing;          /* under the mutex */
        bool closed;           /* under the mutex: the helper has ended */
        bool renewing;         /* under the mutex: until the helper has made it anew */
        uv_cond_t renewed;
        struct why why; /* why that failed */
        const struct database_kind *kind;
        char *path;
        size_t queued; /* loop only */
        void (*on_closed)(void *user);
        void *on_closed_user;
};

/* Turns RocksDB's message into an errno, kept in @why. */
static int from_rocksdb(char *message, struct why *why)
{
        int r = strstr(message, "No space left") ? -ENOSPC : -EIO;

        why_set(why, "%s", message);
        rocksdb_free(message);
        return err_raise(r);
}

static rocksdb_options_t *make_options(const struct database_kind *kind)
{
        rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
        rocksdb_options_t *options = rocksdb_options_create();

        if (kind->is_looked_up) {
                rocksdb_cache_t *cache = rocksdb_cache_create_lru(CACHE_BYTES);

                rocksdb_block_based_options_set_block_cache(table, cache);
                rocksdb_cache_destroy(cache); /* the table holds it */
                rocksdb_block_based_options_set_filter_policy(
                        table, rocksdb_filterpolicy_create_bloom_full(FILTER_BITS));
        } else {
                /* Only walks and blind writes: neither cache nor filters pay. */
                rocksdb_block_based_options_set_no_block_cache(table, 1);
        }
        rocksdb_block_based_options_set_block_size(table, BLOCK_BYTES);
        rocksdb_options_set_block_based_table_factory(options, table);
        rocksdb_block_based_options_destroy(table);
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_write_buffer_size(options, MEMTABLE_BYTES);
        rocksdb_options_set_max_total_wal_size(options, WAL_BYTES_MAX);
        rocksdb_options_set_max_background_jobs(options, 2);
        rocksdb_options_set_compression(options, rocksdb_no_compression);
        rocksdb_options_set_max_open_files(options, 256);
        /* Its errors come to us; on a full disk its own log must not be what fails. */
        rocksdb_options_set_info_log_level(options, ROCKSDB_LOG_FATAL);
        rocksdb_options_set_keep_log_file_num(options, 2);
        rocksdb_options_set_max_log_file_size(options, 1u << 20);
        return options;
}

/* Files that RocksDB makes, or that a file system puts there. */
static bool is_database_file(const char *name)
{
        static const char *const patterns[] = {
                ".",     "..",    "CURRENT", "LOCK",       "LOG",       "LOG.old.*",  "IDENTITY",
                "*.sst", "*.log", "*.dbtmp", "MANIFEST-*", "OPTIONS-*", "lost+found", "archive",
        };

        for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
                if (!fnmatch(patterns[i], name, 0))
                        return true;
        return false;
}

/* Does the folder hold nothing, or nothing but a database? */
static int check_folder(const struct database_kind *kind, const char *path, struct why *why)
{
        struct dirent *entry;
        DIR *dir = opendir(path);
        int r = 0;

        if (!dir) {
                r = -errno;
                why_set(why, "%s %s: %s", kind->noun, path, strerror(-r));
                return err_raise(r);
        }
        while (!r && (entry = readdir(dir)))
                if (!is_database_file(entry->d_name)) {
                        why_set(why,
                                "%s folder %s holds \"%s\", which is not the %s's: name an "
                                "empty folder",
                                kind->noun, path, entry->d_name, kind->noun);
                        r = DATABASE_E_FOREIGN;
                }
        closedir(dir);
        return r;
}

/*
 * RocksDB writes when it opens, and builds of it with assertions abort when that fails: a
 * full file system has to be noticed before.
 */
static int check_room(const struct database_kind *kind, const char *path, struct why *why)
{
        struct statvfs fs;
        uint64_t bytes;

        if (statvfs(path, &fs))
                return 0; /* what is wrong with it, RocksDB will say */
        bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (bytes >= ROOM_BYTES_MIN)
                return 0;
        why_set(why, "%s %s: its file system has %llu bytes free: make room for %u MiB", kind->noun,
                path, (unsigned long long)bytes, ROOM_BYTES_MIN >> 20);
        return err_raise(-ENOSPC);
}

static int open_db(struct database *database, const struct database_kind *kind, const char *path,
                   struct why *why)
{
        rocksdb_options_t *options;
        char *message = NULL;

        if (mkdir(path, 0700) < 0 && errno != EEXIST) {
                int r = -errno;

                why_set(why, "%s %s: %s", kind->noun, path, strerror(-r));
                return err_raise(r);
        }
        int r = check_folder(kind, path, why);
        if (!r)
                r = check_room(kind, path, why);
        if (r)
                return r;
        options = make_options(kind);
        database->db = rocksdb_open(options, path, &message);
        rocksdb_options_destroy(options);
        if (!message)
                return 0;
        if (strstr(message, "While lock file") || strstr(message, "lock hold by"))
                r = DATABASE_E_BUSY;
        else if (!strncmp(message, "Corruption", 10) || !strncmp(message, "Invalid argument", 16))
                r = DATABASE_E_DAMAGED;
        why_set(why, "%s %s: %s", kind->noun, path, message);
        if (!r)
                return from_rocksdb(message, NULL);
        rocksdb_free(message);
        return r;
}

/* Everything in it goes. A failed one is left as it is, see write_to_rocksdb(). */
static int make_anew(struct database *database)
{
        struct why *why = &database->why;
        int r;

        if (database->failed) {
                why_set(why, "%s %s: it has failed", database->kind->noun, database->path);
                return database->failed;
        }
        rocksdb_cancel_all_background_work(database->db, 1);
        rocksdb_close(steal_ptr(database->db));
        r = database_destroy(database->kind, database->path, why);
        if (!r)
                r = open_db(database, database->kind, database->path, why);
        return r > 0 ? err_raise(-EIO) : r;
}

/* On the helper, under the mutex; the loop waits. */
static void renew(struct database *database)
{
        database->failed = make_anew(database);
        database->renewing = false;
        uv_cond_signal(&database->renewed);
}

/* Takes a batch off the queue; false when there is nothing left and the database closes. */
static bool take_batch(struct database *database, struct op_queue *batch)
{
        size_t n = 0, bytes = 0;

        STAILQ_INIT(batch);
        uv_mutex_lock(&database->mutex);
        while (STAILQ_EMPTY(&database->queue) && !database->closing) {
                if (database->renewing)
                        renew(database);
                else
                        uv_cond_wait(&database->cond, &database->mutex);
        }
        while (!STAILQ_EMPTY(&database->queue) && n < BATCH_OPS_MAX && bytes < BATCH_BYTES_MAX) {
                struct database_op *op = STAILQ_FIRST(&database->queue);

                STAILQ_REMOVE_HEAD(&database->queue, link);
                STAILQ_INSERT_TAIL(batch, op, link);
                n++;
                bytes += op->value_bytes;
        }
        uv_mutex_unlock(&database->mutex);
        return n;
}

static void add_changes(rocksdb_writebatch_t *writes, const void *list, size_t length)
{
        const char *at = list, *end = at + length;
        struct change change;

        while (at < end) {
                memcpy(&change, at, sizeof(change));
                at += sizeof(change);
                if (change.is_put)
                        rocksdb_writebatch_put(writes, at, change.key_bytes, at + change.key_bytes,
                                               change.value_bytes);
                else
                        rocksdb_writebatch_delete(writes, at, change.key_bytes);
                at += change.key_bytes + change.value_bytes;
        }
}

/*
 * One batch in one write. After a failure nothing more is tried until the next start:
 * what the log holds then is unknown, and builds of RocksDB with assertions abort when
 * they meet the failed file again.
 */
static int write_to_rocksdb(struct database *database, const struct op_queue *batch)
{
        rocksdb_writebatch_t *writes = rocksdb_writebatch_create();
        bool sync = false, only_sync = true;
        const struct database_op *op;
        char *message = NULL;

        STAILQ_FOREACH(op, batch, link)
        {
                const char *key = (const char *)op->key;

                sync |= op->sync;
                only_sync &= op->kind == KIND_SYNC;
                if (op->kind == KIND_PUT)
                        rocksdb_writebatch_put(writes, key, op->key_bytes, op->value,
                                               op->value_bytes);
                else if (op->kind == KIND_DELETE)
                        rocksdb_writebatch_delete(writes, key, op->key_bytes);
                else if (op->kind == KIND_CHANGES)
                        add_changes(writes, op->value, op->value_bytes);
        }
        if (only_sync)
                rocksdb_flush_wal(database->db, 1, &message);
        else
                rocksdb_write(database->db, sync ? database->synced : database->lazy, writes,
                              &message);
        rocksdb_writebatch_destroy(writes);
        return message ? from_rocksdb(message, NULL) : 0;
}

static void work_off(struct database *database, struct op_queue *batch)
{
        struct database_op *op;

        if (!database->failed)
                database->failed = write_to_rocksdb(database, batch);
        STAILQ_FOREACH(op, batch, link)
        {
                op->result = database->failed;
        }
}

static void run_helper(void *user)
{
        struct database *database = user;
        struct op_queue batch;

        while (take_batch(database, &batch)) {
                work_off(database, &batch);
                uv_mutex_lock(&database->mutex);
                STAILQ_CONCAT(&database->done, &batch);
                uv_mutex_unlock(&database->mutex);
                uv_async_send(&database->async);
        }
        /* What is in the log is safe: nothing waits for compactions. */
        if (!database->failed) {
                rocksdb_cancel_all_background_work(database->db, 1);
                rocksdb_close(database->db);
        }
        database->db = NULL; /* a failed one is left as it is until the process ends */
        uv_mutex_lock(&database->mutex);
        database->closed = true;
        uv_mutex_unlock(&database->mutex);
        uv_async_send(&database->async);
}

static void free_database(struct database *database)
{
        if (database->db)
                rocksdb_close(database->db);
        if (database->lazy)
                rocksdb_writeoptions_destroy(database->lazy);
        if (database->synced)
                rocksdb_writeoptions_destroy(database->synced);
        uv_cond_destroy(&database->renewed);
        uv_cond_destroy(&database->cond);
        uv_mutex_destroy(&database->mutex);
        free(database->path);
        free(database);
}

static void on_async_closed(uv_handle_t *handle)
{
        struct database *database = handle->data;
        void (*on_closed)(void *user) = database->on_closed;
        void *user = database->on_closed_user;

        free_database(database);
        if (on_closed)
                on_closed(user);
}

static void on_async(uv_async_t *async)
{
        struct database *database = async->data;
        struct op_queue done;
        bool closed;

        STAILQ_INIT(&done);
        uv_mutex_lock(&database->mutex);
        STAILQ_CONCAT(&done, &database->done);
        closed = database->closed;
        uv_mutex_unlock(&database->mutex);
        while (!STAILQ_EMPTY(&done)) {
                struct database_op *op = STAILQ_FIRST(&done);

                STAILQ_REMOVE_HEAD(&done, link);
                database->queued--;
                free(op->value);
                op->value = NULL;
                op->on_done(op, op->result);
        }
        if (closed && !uv_is_closing((uv_handle_t *)async)) {
                uv_thread_join(&database->thread);
                uv_close((uv_handle_t *)async, on_async_closed);
        }
}

static bool init_locks(struct database *database)
{
        if (uv_mutex_init(&database->mutex) < 0)
                return false;
        if (uv_cond_init(&database->cond) < 0) {
                uv_mutex_destroy(&database->mutex);
                return false;
        }
        if (uv_cond_init(&database->renewed) < 0) {
                uv_cond_destroy(&database->cond);
                uv_mutex_destroy(&database->mutex);
                return false;
        }
        return true;
}

static struct database *make_database(const struct database_kind *kind, const char *path)
{
        struct database *database = calloc(1, sizeof(*database));

        if (!database)
                return NULL;
        database->kind = kind;
        database->path = strdup(path);
        if (!database->path || !init_locks(database)) {
                free(database->path);
                free(database);
                return NULL;
        }
        STAILQ_INIT(&database->queue);
        STAILQ_INIT(&database->done);
        database->lazy = rocksdb_writeoptions_create();
        database->synced = rocksdb_writeoptions_create();
        rocksdb_writeoptions_set_sync(database->synced, 1);
        return database;
}

int database_open(struct database **ret_database, uv_loop_t *loop, const struct database_kind *kind,
                  const char *path, struct why *why)
{
        struct database *database = make_database(kind, path);
        int r;

        if (!database)
                return err_raise(-ENOMEM);
        r = open_db(database, kind, path, why);
        if (r) {
                free_database(database);
                return r;
        }
        r = uv_async_init(loop, &database->async, on_async);
        if (r < 0) {
                free_database(database);
                return err_raise(r);
        }
        database->async.data = database;
        r = uv_thread_create(&database->thread, run_helper, database);
        if (r < 0) {
                uv_close((uv_handle_t *)&database->async, on_async_closed);
                return err_raise(r);
        }
        *ret_database = database;
        return 0;
}

int database_check(const struct database_kind *kind, const char *path, struct why *why)
{
        return access(path, F_OK) < 0 && errno == ENOENT ? 0 : check_folder(kind, path, why);
}

int database_destroy(const struct database_kind *kind, const char *path, struct why *why)
{
        struct stat st;
        rocksdb_options_t *options;
        char *message = NULL;
        int r;

        if (stat(path, &st) < 0)
                return errno == ENOENT ? 0 : err_raise(-errno);
        r = check_folder(kind, path, why);
        if (r)
                return r == DATABASE_E_FOREIGN ? err_raise(-EEXIST) : r;
        options = make_options(kind);
        rocksdb_destroy_db(options, path, &message);
        rocksdb_options_destroy(options);
        return message ? from_rocksdb(message, why) : 0;
}

int database_renew(struct database *database, struct why *why)
{
        int r;

        uv_mutex_lock(&database->mutex);
        database->renewing = true;
        uv_cond_signal(&database->cond);
        while (database->renewing)
                uv_cond_wait(&database->renewed, &database->mutex);
        r = database->failed;
        uv_mutex_unlock(&database->mutex);
        if (r)
                why_set(why, "%s", database->why.text);
        return r;
}

void database_close(struct database *database, void (*on_closed)(void *user), void *user)
{
        database->on_closed = on_closed;
        database->on_closed_user = user;
        uv_mutex_lock(&database->mutex);
        database->closing = true;
        uv_cond_signal(&database->cond);
        uv_mutex_unlock(&database->mutex);
}

static void submit(struct database *database, struct database_op *op)
{
        database->queued++;
        uv_mutex_lock(&database->mutex);
        STAILQ_INSERT_TAIL(&database->queue, op, link);
        uv_cond_signal(&database->cond);
        uv_mutex_unlock(&database->mutex);
}

static void set_key(struct database_op *op, const void *key, size_t key_bytes)
{
        memcpy(op->key, key, key_bytes);
        op->key_bytes = (uint32_t)key_bytes;
}

void database_put(struct database *database, struct database_op *op, const void *key,
                  size_t key_bytes, void *value, size_t value_bytes, bool sync)
{
        op->kind = KIND_PUT;
        op->sync = sync;
        op->value = value;
        op->value_bytes = value_bytes;
        set_key(op, key, key_bytes);
        submit(database, op);
}

void database_delete(struct database *database, struct database_op *op, const void *key,
                     size_t key_bytes, bool sync)
{
        op->kind = KIND_DELETE;
        op->sync = sync;
        op->value = NULL;
        op->value_bytes = 0;
        set_key(op, key, key_bytes);
        submit(database, op);
}

void database_sync(struct database *database, struct database_op *op)
{
        op->kind = KIND_SYNC;
        op->sync = true;
        op->value = NULL;
        op->value_bytes = 0;
        submit(database, op);
}

/* Room for one more change of @key_bytes and @value_bytes; NULL when there is none. */
static uint8_t *append(struct database_changes *changes, const struct change *change)
{
        size_t needed = sizeof(*change) + change->key_bytes + change->value_bytes;
        uint8_t *at;

        if (!changes->is_short && changes->capacity - changes->length < needed) {
                size_t capacity = 2 * changes->capacity + needed;
                uint8_t *bytes = realloc(changes->bytes, capacity);

                changes->is_short = !bytes;
                if (bytes) {
                        changes->bytes = bytes;
                        changes->capacity = capacity;
                }
        }
        if (changes->is_short)
                return NULL;
        at = changes->bytes + changes->length;
        memcpy(at, change, sizeof(*change));
        changes->length += needed;
        return at + sizeof(*change);
}

void database_changes_put(struct database_changes *changes, const void *key, size_t key_bytes,
                          const void *value, size_t value_bytes)
{
        struct change change = {1, (uint32_t)key_bytes, value_bytes};
        uint8_t *at = append(changes, &change);

        if (!at)
                return;
        memcpy(at, key, key_bytes);
        memcpy(at + key_bytes, value, value_bytes);
}

void database_changes_delete(struct database_changes *changes, const void *key, size_t key_bytes)
{
        struct change change = {0, (uint32_t)key_bytes, 0};
        uint8_t *at = append(changes, &change);

        if (at)
                memcpy(at, key, key_bytes);
}

void database_changes_deinit(struct database_changes *changes)
{
        free(changes->bytes);
        *changes = (struct database_changes){NULL};
}

int database_submit(struct database *database, struct database_op *op,
                    struct database_changes *changes, bool sync)
{
        if (changes->is_short)
                return err_raise(-ENOMEM);
        op->kind = KIND_CHANGES;
        op->sync = sync;
        op->value = changes->bytes;
        op->value_bytes = changes->length;
        op->key_bytes = 0;
        *changes = (struct database_changes){NULL};
        submit(database, op);
        return 0;
}

size_t database_queued(const struct database *database)
{
        return database->queued;
}

int database_get(struct database *database, const void *key, size_t key_bytes, void **ret_value,
                 size_t *ret_value_bytes, struct why *why)
{
        rocksdb_readoptions_t *options = rocksdb_readoptions_create();
        char *message = NULL, *value;

        value = rocksdb_get(database->db, options, key, key_bytes, ret_value_bytes, &message);
        rocksdb_readoptions_destroy(options);
        if (message) {
                why_set(why, "%s", message);
                rocksdb_free(message);
                return DATABASE_E_DAMAGED;
        }
        if (!value)
                return DATABASE_E_ABSENT;
        *ret_value = value;
        return 0;
}

void database_value_free(void *value)
{
        rocksdb_free(value);
}

bool database_is_empty(struct database *database)
{
        rocksdb_readoptions_t *options = rocksdb_readoptions_create();
        rocksdb_iterator_t *iterator = rocksdb_create_iterator(database->db, options);
        bool empty;

        rocksdb_iter_seek_to_first(iterator);
        empty = !rocksdb_iter_valid(iterator);
        rocksdb_iter_destroy(iterator);
        rocksdb_readoptions_destroy(options);
        return empty;
}

int database_store(struct database *database, const void *key, size_t key_bytes, const void *value,
                   size_t value_bytes, struct why *why)
{
        char *message = NULL;

        rocksdb_put(database->db, database->synced, key, key_bytes, value, value_bytes, &message);
        /* The helper has nothing to do yet. */
        if (message)
                database->failed = from_rocksdb(message, why);
        return database->failed;
}

struct database_cursor {
        rocksdb_readoptions_t *options;
        rocksdb_iterator_t *iterator;
        char first, end; /* RocksDB borrows the bound */
        bool started;
};

int database_cursor_open(struct database_cursor **ret_cursor, struct database *database,
                         char prefix)
{
        struct database_cursor *cursor = calloc(1, sizeof(*cursor));

        if (!cursor)
                return err_raise(-ENOMEM);
        cursor->first = prefix;
        cursor->end = (char)(prefix + 1);
        cursor->options = rocksdb_readoptions_create();
        rocksdb_readoptions_set_fill_cache(cursor->options, 0);
        rocksdb_readoptions_set_readahead_size(cursor->options, READAHEAD_BYTES);
        rocksdb_readoptions_set_iterate_upper_bound(cursor->options, &cursor->end, 1);
        cursor->iterator = rocksdb_create_iterator(database->db, cursor->options);
        database_cursor_rewind(cursor);
        *ret_cursor = cursor;
        return 0;
}

void database_cursor_rewind(struct database_cursor *cursor)
{
        rocksdb_iter_seek(cursor->iterator, &cursor->first, 1);
        cursor->started = false;
}

bool database_cursor_next(struct database_cursor *cursor, const void **ret_key,
                          size_t *ret_key_bytes, const void **ret_value, size_t *ret_value_bytes)
{
        if (cursor->started)
                rocksdb_iter_next(cursor->iterator);
        cursor->started = true;
        if (!rocksdb_iter_valid(cursor->iterator))
                return false;
        *ret_key = rocksdb_iter_key(cursor->iterator, ret_key_bytes);
        *ret_value = rocksdb_iter_value(cursor->iterator, ret_value_bytes);
        return true;
}

void database_cursor_hold(struct database_cursor *cursor)
{
        cursor->started = false;
}

int database_cursor_close(struct database_cursor *cursor)
{
        char *message = NULL;

        rocksdb_iter_get_error(cursor->iterator, &message);
        rocksdb_iter_destroy(cursor->iterator);
        rocksdb_readoptions_destroy(cursor->options);
        free(cursor);
        return message ? from_rocksdb(message, NULL) : 0;
}
