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
#include "storage/catalog.h"

#define BATCH_OPS_MAX     1024
#define BATCH_BYTES_MAX   (8u << 20)
#define MEMTABLE_BYTES    (16u << 20)
#define WAL_BYTES_MAX     (32u << 20)
#define ROOM_BYTES_MIN    (1u << 20)
#define READAHEAD_BYTES   (2u << 20)
#define BLOCK_BYTES       (16u << 10)
#define ROCKSDB_LOG_FATAL 4 /* InfoLogLevel::FATAL_LEVEL */

enum kind {
        KIND_PUT,
        KIND_DELETE,
        KIND_SYNC,
};

STAILQ_HEAD(op_queue, catalog_op);

struct catalog {
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
        size_t queued;         /* loop only */
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

static rocksdb_options_t *make_options(void)
{
        rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
        rocksdb_options_t *options = rocksdb_options_create();

        /* Only walks and blind writes, no lookups: neither cache nor filters pay. */
        rocksdb_block_based_options_set_no_block_cache(table, 1);
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
static bool is_catalog_file(const char *name)
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

/* Does the folder hold nothing, or nothing but a catalog? */
static int check_folder(const char *path, struct why *why)
{
        struct dirent *entry;
        DIR *dir = opendir(path);
        int r = 0;

        if (!dir) {
                r = -errno;
                why_set(why, "catalog %s: %s", path, strerror(-r));
                return err_raise(r);
        }
        while (!r && (entry = readdir(dir)))
                if (!is_catalog_file(entry->d_name)) {
                        why_set(why,
                                "catalog folder %s holds \"%s\", which is not the "
                                "catalog's: name an empty folder",
                                path, entry->d_name);
                        r = CATALOG_E_FOREIGN;
                }
        closedir(dir);
        return r;
}

/*
 * RocksDB writes when it opens, and builds of it with assertions abort when that fails: a
 * full file system has to be noticed before.
 */
static int check_room(const char *path, struct why *why)
{
        struct statvfs fs;
        uint64_t bytes;

        if (statvfs(path, &fs))
                return 0; /* what is wrong with it, RocksDB will say */
        bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (bytes >= ROOM_BYTES_MIN)
                return 0;
        why_set(why, "catalog %s: its file system has %llu bytes free: make room for %u MiB", path,
                (unsigned long long)bytes, ROOM_BYTES_MIN >> 20);
        return err_raise(-ENOSPC);
}

static int open_db(struct catalog *catalog, const char *path, struct why *why)
{
        rocksdb_options_t *options;
        char *message = NULL;

        if (mkdir(path, 0700) < 0 && errno != EEXIST) {
                int r = -errno;

                why_set(why, "catalog %s: %s", path, strerror(-r));
                return err_raise(r);
        }
        int r = check_folder(path, why);
        if (!r)
                r = check_room(path, why);
        if (r)
                return r;
        options = make_options();
        catalog->db = rocksdb_open(options, path, &message);
        rocksdb_options_destroy(options);
        if (!message)
                return 0;
        if (strstr(message, "While lock file") || strstr(message, "lock hold by"))
                r = CATALOG_E_BUSY;
        else if (!strncmp(message, "Corruption", 10) || !strncmp(message, "Invalid argument", 16))
                r = CATALOG_E_DAMAGED;
        why_set(why, "catalog %s: %s", path, message);
        if (!r)
                return from_rocksdb(message, NULL);
        rocksdb_free(message);
        return r;
}

/* Takes a batch off the queue; false when there is nothing left and the catalog closes. */
static bool take_batch(struct catalog *catalog, struct op_queue *batch)
{
        size_t n = 0, bytes = 0;

        STAILQ_INIT(batch);
        uv_mutex_lock(&catalog->mutex);
        while (STAILQ_EMPTY(&catalog->queue) && !catalog->closing)
                uv_cond_wait(&catalog->cond, &catalog->mutex);
        while (!STAILQ_EMPTY(&catalog->queue) && n < BATCH_OPS_MAX && bytes < BATCH_BYTES_MAX) {
                struct catalog_op *op = STAILQ_FIRST(&catalog->queue);

                STAILQ_REMOVE_HEAD(&catalog->queue, link);
                STAILQ_INSERT_TAIL(batch, op, link);
                n++;
                bytes += op->value_bytes;
        }
        uv_mutex_unlock(&catalog->mutex);
        return n;
}

/*
 * One batch in one write. After a failure nothing more is tried until the next start:
 * what the log holds then is unknown, and builds of RocksDB with assertions abort when
 * they meet the failed file again.
 */
static int write_to_rocksdb(struct catalog *catalog, const struct op_queue *batch)
{
        rocksdb_writebatch_t *writes = rocksdb_writebatch_create();
        bool sync = false, only_sync = true;
        const struct catalog_op *op;
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
        }
        if (only_sync)
                rocksdb_flush_wal(catalog->db, 1, &message);
        else
                rocksdb_write(catalog->db, sync ? catalog->synced : catalog->lazy, writes,
                              &message);
        rocksdb_writebatch_destroy(writes);
        return message ? from_rocksdb(message, NULL) : 0;
}

static void work_off(struct catalog *catalog, struct op_queue *batch)
{
        struct catalog_op *op;

        if (!catalog->failed)
                catalog->failed = write_to_rocksdb(catalog, batch);
        STAILQ_FOREACH(op, batch, link)
        {
                op->result = catalog->failed;
        }
}

static void run_helper(void *user)
{
        struct catalog *catalog = user;
        struct op_queue batch;

        while (take_batch(catalog, &batch)) {
                work_off(catalog, &batch);
                uv_mutex_lock(&catalog->mutex);
                STAILQ_CONCAT(&catalog->done, &batch);
                uv_mutex_unlock(&catalog->mutex);
                uv_async_send(&catalog->async);
        }
        /* What is in the log is safe: nothing waits for compactions. */
        if (!catalog->failed) {
                rocksdb_cancel_all_background_work(catalog->db, 1);
                rocksdb_close(catalog->db);
        }
        catalog->db = NULL; /* a failed one is left as it is until the process ends */
        uv_mutex_lock(&catalog->mutex);
        catalog->closed = true;
        uv_mutex_unlock(&catalog->mutex);
        uv_async_send(&catalog->async);
}

static void free_catalog(struct catalog *catalog)
{
        if (catalog->db)
                rocksdb_close(catalog->db);
        if (catalog->lazy)
                rocksdb_writeoptions_destroy(catalog->lazy);
        if (catalog->synced)
                rocksdb_writeoptions_destroy(catalog->synced);
        uv_cond_destroy(&catalog->cond);
        uv_mutex_destroy(&catalog->mutex);
        free(catalog);
}

static void on_async_closed(uv_handle_t *handle)
{
        struct catalog *catalog = handle->data;
        void (*on_closed)(void *user) = catalog->on_closed;
        void *user = catalog->on_closed_user;

        free_catalog(catalog);
        if (on_closed)
                on_closed(user);
}

static void on_async(uv_async_t *async)
{
        struct catalog *catalog = async->data;
        struct op_queue done;
        bool closed;

        STAILQ_INIT(&done);
        uv_mutex_lock(&catalog->mutex);
        STAILQ_CONCAT(&done, &catalog->done);
        closed = catalog->closed;
        uv_mutex_unlock(&catalog->mutex);
        while (!STAILQ_EMPTY(&done)) {
                struct catalog_op *op = STAILQ_FIRST(&done);

                STAILQ_REMOVE_HEAD(&done, link);
                catalog->queued--;
                free(op->value);
                op->value = NULL;
                op->on_done(op, op->result);
        }
        if (closed && !uv_is_closing((uv_handle_t *)async)) {
                uv_thread_join(&catalog->thread);
                uv_close((uv_handle_t *)async, on_async_closed);
        }
}

static struct catalog *make_catalog(void)
{
        struct catalog *catalog = calloc(1, sizeof(*catalog));

        if (!catalog)
                return NULL;
        if (uv_mutex_init(&catalog->mutex) < 0) {
                free(catalog);
                return NULL;
        }
        if (uv_cond_init(&catalog->cond) < 0) {
                uv_mutex_destroy(&catalog->mutex);
                free(catalog);
                return NULL;
        }
        STAILQ_INIT(&catalog->queue);
        STAILQ_INIT(&catalog->done);
        catalog->lazy = rocksdb_writeoptions_create();
        catalog->synced = rocksdb_writeoptions_create();
        rocksdb_writeoptions_set_sync(catalog->synced, 1);
        return catalog;
}

int catalog_open(struct catalog **ret_catalog, uv_loop_t *loop, const char *path, struct why *why)
{
        struct catalog *catalog = make_catalog();
        int r;

        if (!catalog)
                return err_raise(-ENOMEM);
        r = open_db(catalog, path, why);
        if (r) {
                free_catalog(catalog);
                return r;
        }
        r = uv_async_init(loop, &catalog->async, on_async);
        if (r < 0) {
                free_catalog(catalog);
                return err_raise(r);
        }
        catalog->async.data = catalog;
        r = uv_thread_create(&catalog->thread, run_helper, catalog);
        if (r < 0) {
                uv_close((uv_handle_t *)&catalog->async, on_async_closed);
                return err_raise(r);
        }
        *ret_catalog = catalog;
        return 0;
}

int catalog_check(const char *path, struct why *why)
{
        return access(path, F_OK) < 0 && errno == ENOENT ? 0 : check_folder(path, why);
}

int catalog_destroy(const char *path, struct why *why)
{
        struct stat st;
        rocksdb_options_t *options;
        char *message = NULL;
        int r;

        if (stat(path, &st) < 0)
                return errno == ENOENT ? 0 : err_raise(-errno);
        r = check_folder(path, why);
        if (r)
                return r == CATALOG_E_FOREIGN ? err_raise(-EEXIST) : r;
        options = make_options();
        rocksdb_destroy_db(options, path, &message);
        rocksdb_options_destroy(options);
        return message ? from_rocksdb(message, why) : 0;
}

void catalog_close(struct catalog *catalog, void (*on_closed)(void *user), void *user)
{
        catalog->on_closed = on_closed;
        catalog->on_closed_user = user;
        uv_mutex_lock(&catalog->mutex);
        catalog->closing = true;
        uv_cond_signal(&catalog->cond);
        uv_mutex_unlock(&catalog->mutex);
}

static bool is_empty(struct catalog *catalog)
{
        rocksdb_readoptions_t *options = rocksdb_readoptions_create();
        rocksdb_iterator_t *iterator = rocksdb_create_iterator(catalog->db, options);
        bool empty;

        rocksdb_iter_seek_to_first(iterator);
        empty = !rocksdb_iter_valid(iterator);
        rocksdb_iter_destroy(iterator);
        rocksdb_readoptions_destroy(options);
        return empty;
}

int catalog_load_pool(struct catalog *catalog, struct catalog_pool *ret_pool, struct why *why)
{
        rocksdb_readoptions_t *options = rocksdb_readoptions_create();
        char *message = NULL, *value;
        size_t value_bytes;
        int r;

        value = rocksdb_get(catalog->db, options, CATALOG_POOL_KEY, CATALOG_POOL_KEY_BYTES,
                            &value_bytes, &message);
        rocksdb_readoptions_destroy(options);
        if (message) {
                why_set(why, "catalog: %s", message);
                rocksdb_free(message);
                return CATALOG_E_DAMAGED;
        }
        if (!value) {
                if (is_empty(catalog))
                        return CATALOG_E_ABSENT;
                why_set(why, "the catalog folder holds another program's database");
                return CATALOG_E_FOREIGN;
        }
        r = catalog_pool_decode(ret_pool, value, value_bytes, why);
        rocksdb_free(value);
        if (r == CATALOG_ENTRY_E_NEWER)
                return CATALOG_E_NEWER;
        return r ? CATALOG_E_DAMAGED : 0;
}

int catalog_store_pool(struct catalog *catalog, const struct catalog_pool *pool, struct why *why)
{
        char *message = NULL;

        rocksdb_put(catalog->db, catalog->synced, CATALOG_POOL_KEY, CATALOG_POOL_KEY_BYTES,
                    (const char *)pool, sizeof(*pool), &message);
        /* The helper has nothing to do yet. */
        if (message)
                catalog->failed = from_rocksdb(message, why);
        return catalog->failed;
}

static void submit(struct catalog *catalog, struct catalog_op *op)
{
        catalog->queued++;
        uv_mutex_lock(&catalog->mutex);
        STAILQ_INSERT_TAIL(&catalog->queue, op, link);
        uv_cond_signal(&catalog->cond);
        uv_mutex_unlock(&catalog->mutex);
}

static void set_entry_key(struct catalog_op *op, const struct object_key *key, uint64_t claim)
{
        catalog_entry_key(op->key, key, claim);
        op->key_bytes = CATALOG_ENTRY_KEY_BYTES;
}

void catalog_put(struct catalog *catalog, struct catalog_op *op, const struct object_key *key,
                 uint64_t claim, void *value, size_t value_bytes)
{
        op->kind = KIND_PUT;
        op->sync = false;
        op->value = value;
        op->value_bytes = value_bytes;
        set_entry_key(op, key, claim);
        submit(catalog, op);
}

void catalog_delete(struct catalog *catalog, struct catalog_op *op, const struct object_key *key,
                    uint64_t claim, bool sync)
{
        op->kind = KIND_DELETE;
        op->sync = sync;
        op->value = NULL;
        op->value_bytes = 0;
        set_entry_key(op, key, claim);
        submit(catalog, op);
}

void catalog_delete_key(struct catalog *catalog, struct catalog_op *op, const void *key,
                        size_t key_bytes)
{
        op->kind = KIND_DELETE;
        op->sync = false;
        op->value = NULL;
        op->value_bytes = 0;
        memcpy(op->key, key, key_bytes);
        op->key_bytes = (uint32_t)key_bytes;
        submit(catalog, op);
}

void catalog_put_layout(struct catalog *catalog, struct catalog_op *op,
                        const struct tier_layout *layout, void *value, size_t value_bytes)
{
        op->kind = KIND_PUT;
        op->sync = false;
        op->value = value;
        op->value_bytes = value_bytes;
        catalog_layout_key(op->key, layout->domain, &layout->id);
        op->key_bytes = CATALOG_LAYOUT_KEY_BYTES;
        submit(catalog, op);
}

void catalog_delete_layout(struct catalog *catalog, struct catalog_op *op,
                           const struct tier_layout *layout)
{
        uint8_t key[CATALOG_LAYOUT_KEY_BYTES];

        catalog_layout_key(key, layout->domain, &layout->id);
        catalog_delete_key(catalog, op, key, sizeof(key));
}

void catalog_sync(struct catalog *catalog, struct catalog_op *op)
{
        op->kind = KIND_SYNC;
        op->sync = true;
        op->value = NULL;
        op->value_bytes = 0;
        submit(catalog, op);
}

void catalog_put_pool(struct catalog *catalog, struct catalog_op *op, struct catalog_pool *record)
{
        op->kind = KIND_PUT;
        op->sync = true;
        op->value = record;
        op->value_bytes = sizeof(*record);
        memcpy(op->key, CATALOG_POOL_KEY, CATALOG_POOL_KEY_BYTES);
        op->key_bytes = CATALOG_POOL_KEY_BYTES;
        submit(catalog, op);
}

size_t catalog_queued(const struct catalog *catalog)
{
        return catalog->queued;
}

struct catalog_cursor {
        rocksdb_readoptions_t *options;
        rocksdb_iterator_t *iterator;
        char first, end; /* RocksDB borrows the bound */
        bool started;
};

int catalog_cursor_open(struct catalog_cursor **ret_cursor, struct catalog *catalog, char prefix)
{
        struct catalog_cursor *cursor = calloc(1, sizeof(*cursor));

        if (!cursor)
                return err_raise(-ENOMEM);
        cursor->first = prefix;
        cursor->end = (char)(prefix + 1);
        cursor->options = rocksdb_readoptions_create();
        rocksdb_readoptions_set_fill_cache(cursor->options, 0);
        rocksdb_readoptions_set_readahead_size(cursor->options, READAHEAD_BYTES);
        rocksdb_readoptions_set_iterate_upper_bound(cursor->options, &cursor->end, 1);
        cursor->iterator = rocksdb_create_iterator(catalog->db, cursor->options);
        catalog_cursor_rewind(cursor);
        *ret_cursor = cursor;
        return 0;
}

void catalog_cursor_rewind(struct catalog_cursor *cursor)
{
        rocksdb_iter_seek(cursor->iterator, &cursor->first, 1);
        cursor->started = false;
}

bool catalog_cursor_next(struct catalog_cursor *cursor, const void **ret_key, size_t *ret_key_bytes,
                         const void **ret_value, size_t *ret_value_bytes)
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

int catalog_cursor_close(struct catalog_cursor *cursor)
{
        char *message = NULL;

        rocksdb_iter_get_error(cursor->iterator, &message);
        rocksdb_iter_destroy(cursor->iterator);
        rocksdb_readoptions_destroy(cursor->options);
        free(cursor);
        return message ? from_rocksdb(message, NULL) : 0;
}
