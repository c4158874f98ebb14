// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/layout.h"
#include "storage/catalog.h"
#include "tests/support/scratch.h"

static uv_loop_t loop;
static char folder[64];
static struct database *catalog;
static int n_done;

static void set_up(void)
{
        scratch_make(folder, sizeof(folder));
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        n_done = 0;
}

static void tear_down(void)
{
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        scratch_remove(folder);
}

static const char *db_path(void)
{
        static char path[96];

        snprintf(path, sizeof(path), "%s/catalog", folder);
        return path;
}

static void open_catalog(void)
{
        struct why why = {""};

        ck_assert_msg(database_open(&catalog, &loop, &catalog_kind, db_path(), &why) == 0, "%s",
                      why.text);
}

static void close_catalog(void)
{
        database_close(catalog, NULL, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
}

static void on_done(struct database_op *op, int result)
{
        ck_assert_int_eq(result, 0);
        n_done++;
}

static void wait_done(int n)
{
        while (n_done < n)
                uv_run(&loop, UV_RUN_ONCE);
}

static struct catalog_entry sample(uint16_t shard, uint64_t claim)
{
        struct catalog_entry entry = {
                .object = {.generation = 3, .raw_bytes = 8192, .boundary_tokens = 64},
                .claim = claim,
                .epoch = 1,
                .stored_bytes = 8192,
                .n_extents = 1,
        };

        memset(entry.object.key.layout.bytes, 0x11, DIGEST_BYTES);
        entry.object.key.shard = shard;
        entry.extents[0] = (struct segment_extent){.first = 40, .count = 3, .member = 0};
        return entry;
}

static void put(struct database_op *op, const struct catalog_entry *entry)
{
        void *value = malloc(catalog_entry_bytes(entry));

        catalog_entry_encode(value, entry);
        op->on_done = on_done;
        catalog_put(catalog, op, &entry->object.key, entry->claim, value,
                    catalog_entry_bytes(entry));
}

/* Entries in the catalog; the claim of the last one in @ret_claim. */
static int count(uint64_t *ret_claim)
{
        struct database_cursor *cursor;
        struct catalog_entry entry;
        const void *key, *value;
        size_t key_bytes, value_bytes;
        int n = 0;

        ck_assert_int_eq(database_cursor_open(&cursor, catalog, CATALOG_ENTRY_PREFIX), 0);
        while (database_cursor_next(cursor, &key, &key_bytes, &value, &value_bytes)) {
                ck_assert_int_eq(catalog_entry_decode(&entry, key, key_bytes, value, value_bytes),
                                 0);
                *ret_claim = entry.claim;
                n++;
        }
        ck_assert_int_eq(database_cursor_close(cursor), 0);
        return n;
}

START_TEST(entry_comes_back_as_it_was)
{
        struct digest covers[3];
        struct catalog_entry entry = sample(9, 77), decoded;
        uint8_t key[CATALOG_ENTRY_KEY_BYTES], value[1024];

        memset(covers, 0x5a, sizeof(covers));
        entry.object.croppable = true;
        entry.object.covers = covers;
        entry.object.n_covers = 3;
        catalog_entry_key(key, &entry.object.key, entry.claim);
        catalog_entry_encode(value, &entry);
        ck_assert_int_eq(catalog_entry_decode(&decoded, key, sizeof(key), value,
                                              catalog_entry_bytes(&entry)),
                         0);
        ck_assert_uint_eq(decoded.claim, 77);
        ck_assert_uint_eq(decoded.object.generation, 3);
        ck_assert_uint_eq(decoded.object.raw_bytes, 8192);
        ck_assert(decoded.object.croppable && !decoded.object.parent_unknown);
        ck_assert_uint_eq(decoded.object.n_covers, 3);
        ck_assert_mem_eq(decoded.object.covers, covers, sizeof(covers));
        ck_assert_mem_eq(decoded.extents, entry.extents, sizeof(entry.extents));
        ck_assert(object_key_equal(&decoded.object.key, &entry.object.key));
}
END_TEST

START_TEST(entry_detects_each_flipped_bit_and_each_cut)
{
        struct catalog_entry entry = sample(9, 77), decoded;
        uint8_t key[CATALOG_ENTRY_KEY_BYTES], value[256];
        size_t bytes = catalog_entry_bytes(&entry);

        catalog_entry_key(key, &entry.object.key, entry.claim);
        catalog_entry_encode(value, &entry);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
                value[bit / 8] ^= (uint8_t)(1u << bit % 8);
                ck_assert_int_gt(catalog_entry_decode(&decoded, key, sizeof(key), value, bytes), 0);
                value[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        for (size_t cut = 0; cut < bytes; cut++)
                ck_assert_int_gt(catalog_entry_decode(&decoded, key, sizeof(key), value, cut), 0);
        ck_assert_int_eq(catalog_entry_decode(&decoded, key, sizeof(key), value, bytes), 0);
}
END_TEST

START_TEST(entry_keeps_how_the_object_is_stored)
{
        struct catalog_entry entry = sample(9, 77), decoded;
        uint8_t key[CATALOG_ENTRY_KEY_BYTES], value[256];
        const struct encoding encodings[] = {{ENCODING_KINDS, 2}, {ENCODING_PLANES_LZ4, 3}, {0, 0}};

        entry.stored_bytes = 4096;
        entry.encoding = (struct encoding){ENCODING_PLANES_LZ4, 2};
        entry.extents[0].count = 2;
        catalog_entry_key(key, &entry.object.key, entry.claim);
        catalog_entry_encode(value, &entry);
        ck_assert_int_eq(catalog_entry_decode(&decoded, key, sizeof(key), value,
                                              catalog_entry_bytes(&entry)),
                         0);
        ck_assert_uint_eq(decoded.stored_bytes, 4096);
        ck_assert_uint_eq(decoded.encoding.kind, ENCODING_PLANES_LZ4);
        ck_assert_uint_eq(decoded.encoding.element_bytes, 2);

        /* A place tells by its length that its object is encoded: none is as long as raw. */
        entry.stored_bytes = 4097;
        entry.extents[0].count = 3;
        catalog_entry_encode(value, &entry);
        ck_assert_int_gt(catalog_entry_decode(&decoded, key, sizeof(key), value,
                                              catalog_entry_bytes(&entry)),
                         0);
        entry.stored_bytes = 4096;
        entry.extents[0].count = 2;
        for (uint32_t i = 0; i < 3; i++) {
                entry.encoding = encodings[i];
                catalog_entry_encode(value, &entry);
                ck_assert_int_gt(catalog_entry_decode(&decoded, key, sizeof(key), value,
                                                      catalog_entry_bytes(&entry)),
                                 0);
        }
}
END_TEST

static int decode_again(const struct catalog_entry *entry)
{
        struct catalog_entry decoded;
        uint8_t key[CATALOG_ENTRY_KEY_BYTES], value[256];

        catalog_entry_key(key, &entry->object.key, entry->claim);
        catalog_entry_encode(value, entry);
        return catalog_entry_decode(&decoded, key, sizeof(key), value, catalog_entry_bytes(entry));
}

START_TEST(entry_of_a_cell_that_no_layout_has_is_damage)
{
        struct catalog_entry entry = sample(9, 77);

        entry.object.cell = LAYOUT_CELLS_MAX - 1;
        entry.object.key.group = LAYOUT_GROUPS_MAX - 1;
        entry.object.key.shard = LAYOUT_SHARDS_MAX - 1;
        ck_assert_int_eq(decode_again(&entry), 0);
        entry.object.cell++;
        ck_assert_int_eq(decode_again(&entry), CATALOG_ENTRY_E_DAMAGED);
        entry.object.cell--;
        entry.object.key.group++;
        ck_assert_int_eq(decode_again(&entry), CATALOG_ENTRY_E_DAMAGED);
        entry.object.key.group--;
        entry.object.key.shard++;
        ck_assert_int_eq(decode_again(&entry), CATALOG_ENTRY_E_DAMAGED);
}
END_TEST

START_TEST(entry_keys_of_one_object_sort_by_claim)
{
        struct catalog_entry entry = sample(1, 255);
        uint8_t a[CATALOG_ENTRY_KEY_BYTES], b[CATALOG_ENTRY_KEY_BYTES];

        catalog_entry_key(a, &entry.object.key, 255);
        catalog_entry_key(b, &entry.object.key, 256);
        ck_assert_int_lt(memcmp(a, b, sizeof(a)), 0);
}
END_TEST

START_TEST(catalog_keeps_puts_and_deletes_in_order)
{
        struct catalog_entry old = sample(1, 10), new = sample(1, 11), other = sample(2, 12);
        struct database_op ops[4];
        uint64_t claim = 0;

        open_catalog();
        put(&ops[0], &old);
        put(&ops[1], &new);
        put(&ops[2], &other);
        ops[3].on_done = on_done;
        catalog_delete(catalog, &ops[3], &old.object.key, 10, true);
        ck_assert_uint_eq(database_queued(catalog), 4);
        ck_assert_int_eq(n_done, 0);
        wait_done(4);
        ck_assert_uint_eq(database_queued(catalog), 0);
        ck_assert_int_eq(count(&claim), 2);
        close_catalog();

        open_catalog();
        ck_assert_int_eq(count(&claim), 2);
        ck_assert_uint_eq(claim, 12);
        close_catalog();
}
END_TEST

START_TEST(catalog_survives_death_after_the_acknowledgement)
{
        uint64_t claim = 0;
        int status;
        pid_t pid = fork();

        if (!pid) {
                struct catalog_entry entry = sample(1, 10);
                struct database_op op;

                uv_loop_fork(&loop);
                open_catalog();
                put(&op, &entry);
                wait_done(1);
                _exit(0);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
        open_catalog();
        ck_assert_int_eq(count(&claim), 1);
        ck_assert_uint_eq(claim, 10);
        close_catalog();
}
END_TEST

START_TEST(catalog_works_off_its_queue_before_it_closes)
{
        static struct database_op ops[3000];
        uint64_t claim = 0;

        open_catalog();
        for (size_t i = 0; i < 3000; i++) {
                struct catalog_entry entry = sample((uint16_t)(i % LAYOUT_SHARDS_MAX), 100 + i);

                put(&ops[i], &entry);
        }
        close_catalog();
        ck_assert_int_eq(n_done, 3000);
        open_catalog();
        ck_assert_int_eq(count(&claim), 3000);
        close_catalog();
}
END_TEST

START_TEST(catalog_sync_is_acknowledged)
{
        struct database_op op = {.on_done = on_done};

        open_catalog();
        database_sync(catalog, &op);
        wait_done(1);
        close_catalog();
}
END_TEST

START_TEST(catalog_pool_record_is_kept)
{
        struct catalog_pool pool = {.n_members = 2,
                                    .epoch = 4,
                                    .claim_limit = 500,
                                    .unit_bytes = 4096},
                            loaded;

        open_catalog();
        ck_assert_int_eq(catalog_load_pool(catalog, &loaded, NULL), CATALOG_E_ABSENT);
        catalog_pool_seal(&pool);
        ck_assert_int_eq(catalog_store_pool(catalog, &pool, NULL), 0);
        close_catalog();
        open_catalog();
        ck_assert_int_eq(catalog_load_pool(catalog, &loaded, NULL), 0);
        ck_assert_uint_eq(loaded.claim_limit, 500);
        close_catalog();
}
END_TEST

START_TEST(catalog_of_a_newer_format_names_both_versions)
{
        struct catalog_pool pool = {.n_members = 2, .epoch = 4, .unit_bytes = 4096}, loaded;
        struct why why = {""};

        catalog_pool_seal(&pool);
        pool.version = 88;
        open_catalog();
        ck_assert_int_eq(catalog_store_pool(catalog, &pool, NULL), 0);
        ck_assert_int_eq(catalog_load_pool(catalog, &loaded, &why), CATALOG_E_NEWER);
        ck_assert_ptr_nonnull(strstr(why.text, "88"));
        ck_assert_ptr_nonnull(strstr(why.text, "up to 1"));
        close_catalog();
}
END_TEST

START_TEST(catalog_pool_record_detects_each_flipped_byte)
{
        struct catalog_pool pool = {.n_members = 2, .epoch = 4, .unit_bytes = 4096}, decoded;
        uint8_t *bytes = (uint8_t *)&pool;

        catalog_pool_seal(&pool);
        for (size_t i = 0; i < sizeof(pool); i++) {
                bytes[i] ^= 0x10;
                ck_assert_int_gt(catalog_pool_decode(&decoded, &pool, sizeof(pool), NULL), 0);
                bytes[i] ^= 0x10;
        }
        ck_assert_int_eq(catalog_pool_decode(&decoded, &pool, sizeof(pool), NULL), 0);
}
END_TEST

START_TEST(catalog_refuses_a_second_opener)
{
        struct database *second;
        struct why why = {""};

        open_catalog();
        ck_assert_int_eq(database_open(&second, &loop, &catalog_kind, db_path(), &why),
                         DATABASE_E_BUSY);
        close_catalog();
}
END_TEST

START_TEST(catalog_refuses_a_folder_of_other_files)
{
        struct database *opened;
        struct why why = {""};
        char path[128];
        int fd;

        snprintf(path, sizeof(path), "%s/letter.txt", folder);
        fd = open(path, O_CREAT | O_WRONLY, 0600);
        ck_assert_int_ge(fd, 0);
        close(fd);
        ck_assert_int_eq(database_open(&opened, &loop, &catalog_kind, folder, &why),
                         DATABASE_E_FOREIGN);
        ck_assert_ptr_nonnull(strstr(why.text, "letter.txt"));
        ck_assert_int_lt(database_destroy(&catalog_kind, folder, &why), 0);
}
END_TEST

START_TEST(catalog_says_that_it_is_damaged)
{
        struct database *opened;
        struct why why = {""};
        char path[128];
        int fd;

        open_catalog();
        close_catalog();
        snprintf(path, sizeof(path), "%s/CURRENT", db_path());
        fd = open(path, O_WRONLY | O_TRUNC);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, "garbage", 7), 7);
        close(fd);
        ck_assert_int_eq(database_open(&opened, &loop, &catalog_kind, db_path(), &why),
                         DATABASE_E_DAMAGED);
        ck_assert_int_eq(database_destroy(&catalog_kind, db_path(), &why), 0);
        open_catalog();
        close_catalog();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/catalog");
        TCase *tcase = tcase_create("catalog");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 20);
        tcase_add_test(tcase, entry_comes_back_as_it_was);
        tcase_add_test(tcase, entry_keeps_how_the_object_is_stored);
        tcase_add_test(tcase, entry_detects_each_flipped_bit_and_each_cut);
        tcase_add_test(tcase, entry_of_a_cell_that_no_layout_has_is_damage);
        tcase_add_test(tcase, entry_keys_of_one_object_sort_by_claim);
        tcase_add_test(tcase, catalog_keeps_puts_and_deletes_in_order);
        tcase_add_test(tcase, catalog_survives_death_after_the_acknowledgement);
        tcase_add_test(tcase, catalog_works_off_its_queue_before_it_closes);
        tcase_add_test(tcase, catalog_sync_is_acknowledged);
        tcase_add_test(tcase, catalog_pool_record_is_kept);
        tcase_add_test(tcase, catalog_of_a_newer_format_names_both_versions);
        tcase_add_test(tcase, catalog_pool_record_detects_each_flipped_byte);
        tcase_add_test(tcase, catalog_refuses_a_second_opener);
        tcase_add_test(tcase, catalog_refuses_a_folder_of_other_files);
        tcase_add_test(tcase, catalog_says_that_it_is_damaged);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
