// SPDX-License-Identifier: Apache-2.0
/* A pool whose objects somebody else has written, or turned into something else. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/piece_set.h"
#include "storage/pool_name.h"
#include "tests/support/fake_pool.h"
#include "tests/unit/storage/pool_sample.h"
#include "tests/unit/storage/remote_fixture.h"

static struct pool_fixture *fixture;
static struct node *a, *b;

static void begin(void)
{
        fixture = nodes_new(2);
        a = &fixture->nodes[0];
        b = &fixture->nodes[1];
        node_open(fixture, 0);
}

static void end(void)
{
        nodes_free(fixture);
}

/* ---- a hand that writes into the pool ---- */

static void set_flag(void *user)
{
        *(bool *)user = true;
}

static void on_put(struct pool_put *put, int result)
{
        ck_assert_int_eq(result, 0);
        set_flag(put->user);
}

static void put_object(const char *name, void *bytes, size_t length)
{
        struct pool_buffer buffer = {bytes, length};
        bool is_done = false, is_closed = false;
        struct pool_put put = {
                .name = name,
                .buffers = &buffer,
                .n_buffers = 1,
                .deadline_ms = 1000,
                .on_done = on_put,
                .user = &is_done,
        };
        struct pool *pool;
        uv_loop_t loop;

        ck_assert_int_eq(uv_loop_init(&loop), 0);
        ck_assert_int_eq(fake_pool_open(&pool, &loop, fixture->pool), 0);
        ck_assert_int_eq(pool->ops.put(pool, &put), 0);
        while (!is_done)
                uv_run(&loop, UV_RUN_NOWAIT);
        pool->ops.close(pool, set_flag, &is_closed);
        while (!is_closed)
                uv_run(&loop, UV_RUN_NOWAIT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void put_segment(const uint8_t node[16], uint64_t number,
                        const struct journal_record *records, uint32_t n)
{
        struct journal_segment segment;
        char name[POOL_NAME_MAX];

        journal_segment_init(&segment);
        for (uint32_t i = 0; i < n; i++)
                ck_assert_int_eq(journal_segment_add(&segment, &records[i]), 0);
        journal_segment_seal(&segment, node, number);
        journal_name(name, node, number);
        put_object(name, segment.bytes, segment.length);
        journal_segment_deinit(&segment);
}

static struct journal_record stored(const uint8_t node[16], uint64_t number, uint32_t part)
{
        struct journal_record record = {
                .kind = JOURNAL_STORED,
                .bundle = {.number = number},
                .part = part,
                .stored = pool_sample(0),
        };

        memcpy(record.bundle.node, node, sizeof(record.bundle.node));
        return record;
}

static const uint8_t x[16] = {0xaa, 1}, y[16] = {0xbb, 2};

/* ---- journals that nobody would have written ---- */

START_TEST(journals_that_wait_for_each_other_are_read_all_the_same)
{
        struct journal_record of_x[2] = {{.kind = JOURNAL_READ, .number = 1}, stored(x, 1, 0)};
        struct journal_record of_y[2] = {{.kind = JOURNAL_READ, .number = 1}, stored(y, 1, 0)};

        begin();
        memcpy(of_x[0].node, y, sizeof(y));
        memcpy(of_y[0].node, x, sizeof(x));
        put_segment(x, 1, of_x, 2);
        put_segment(y, 1, of_y, 2);
        nodes_settle(fixture);
        ck_assert(node_usage(a).caught_up);
        ck_assert_uint_eq(node_usage(a).journal_segments_read, 2);
        ck_assert_uint_eq(a->n_appeared, 1);
        end();
}
END_TEST

START_TEST(a_journal_that_waits_for_itself_is_read)
{
        struct journal_record records[2] = {{.kind = JOURNAL_READ, .number = 9}, stored(x, 1, 0)};

        begin();
        memcpy(records[0].node, x, sizeof(x));
        put_segment(x, 1, records, 2);
        nodes_settle(fixture);
        ck_assert_uint_eq(a->n_appeared, 1);
        end();
}
END_TEST

START_TEST(a_segment_with_the_highest_number_does_not_end_our_journal)
{
        struct driver_object object = driver_object(1, 50000);
        uint8_t junk[100] = "junk";
        char name[POOL_NAME_MAX];

        begin();
        journal_name(name, node_usage(a).node, UINT64_MAX);
        node_close(fixture, 0);
        put_object(name, junk, sizeof(junk));
        node_lose_index(fixture, 0, false);
        node_open(fixture, 0);
        nodes_settle(fixture);
        ck_assert_int_eq(driver_write(&a->driver, &object), 0);
        nodes_settle(fixture);
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open(fixture, 0), 1);
        node_open(fixture, 1);
        nodes_settle(fixture);
        ck_assert_int_eq(node_read_appeared(b, &object), 0);
        end();
}
END_TEST

START_TEST(a_journal_tells_nothing_of_others_bundles)
{
        struct journal_record record;
        uint8_t own[16];

        begin();
        memcpy(own, node_usage(a).node, sizeof(own));
        record = stored(own, 1, 0);
        put_segment(x, 1, &record, 1);
        record = stored(y, 1, 0);
        put_segment(x, 2, &record, 1);
        nodes_settle(fixture);
        ck_assert_uint_eq(a->n_appeared, 0);
        ck_assert_uint_eq(node_usage(a).entries, 0);
        end();
}
END_TEST

/* Announced, but what it says lies nowhere, or is something else. */
START_TEST(what_is_announced_and_not_there_is_a_miss)
{
        struct journal_record record = stored(x, 1, 0);
        struct bundle_id id = {.number = 1};
        uint8_t junk[100] = "junk";
        char name[POOL_NAME_MAX];
        struct driver_object object = {.object = record.stored.object};

        begin();
        put_segment(x, 1, &record, 1);
        nodes_settle(fixture);
        ck_assert_uint_eq(a->n_appeared, 1);
        object.place = a->appeared[0].place;
        ck_assert_int_eq(driver_read(&a->driver, &object), TIER_E_MISS);
        memcpy(id.node, x, sizeof(x));
        bundle_name(name, &id);
        put_object(name, junk, sizeof(junk));
        ck_assert_int_eq(driver_read(&a->driver, &object), TIER_E_MISS);
        fake_pool_resize(fixture->pool, name,
                         record.stored.offset + record.stored.stored_bytes + 1);
        ck_assert_int_eq(driver_read(&a->driver, &object), TIER_E_CORRUPT);
        end();
}
END_TEST

START_TEST(a_part_may_be_told_many_times_and_of_many_numbers)
{
        struct journal_record records[3 * BUNDLE_PARTS_MAX];

        begin();
        for (uint32_t i = 0; i < 3 * BUNDLE_PARTS_MAX; i++) {
                records[i] = stored(x, 1 + i % 7, i % BUNDLE_PARTS_MAX);
                records[i].stored.object.key.shard = (uint16_t)(i % 11);
                records[i].stored.checksums.total =
                        checksum_total(&records[i].stored.checksums, &records[i].stored.object.key);
        }
        for (uint32_t i = 0; i < 3; i++)
                put_segment(x, 1 + i, records + i * BUNDLE_PARTS_MAX, BUNDLE_PARTS_MAX);
        nodes_settle(fixture);
        ck_assert_uint_eq(a->n_appeared, 11);
        ck_assert_uint_eq(node_usage(a).entries, 11);
        end();
}
END_TEST

/* ---- objects with flipped bits, and of other lengths ---- */

#define OBJECTS 6u

/* A journal and bundles of a node that is gone, the objects in @objects. */
static void fill(struct driver_object objects[OBJECTS])
{
        begin();
        for (uint32_t i = 0; i < OBJECTS; i++) {
                objects[i] = chain_object(i / 2, i % 2, 3000 + 40000 * i);
                ck_assert_int_eq(driver_write(&a->driver, &objects[i]), 0);
        }
        nodes_settle(fixture);
        node_close(fixture, 0);
}

static uint32_t draw(uint64_t *state, uint64_t below)
{
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)((*state >> 33) % below);
}

static void spoil(uint64_t *state, const char *name)
{
        uint64_t bytes = fake_pool_size(fixture->pool, name);

        switch (draw(state, 4)) {
        case 0:
                fake_pool_resize(fixture->pool, name, draw(state, bytes));
                break;
        case 1:
                fake_pool_resize(fixture->pool, name, bytes + 1 + draw(state, 5000));
                break;
        default:
                for (uint32_t i = 1 + draw(state, 20); i; i--)
                        fake_pool_flip(fixture->pool, name, draw(state, bytes));
        }
}

#define FORGED 200u

/* A part that a decoder accepts, and nobody can have stored. */
static struct journal_record forge(uint64_t *state, uint32_t i, uint8_t table[BUNDLE_TABLE_MAX])
{
        struct journal_record record = stored(x, 1 + i % 3, i);
        struct bundle_part *part = &record.stored;
        uint64_t raw_bytes = 1 + draw(state, 600000);

        part->object.key.domain = i; /* a key of its own */
        part->object.raw_bytes = part->checksums.raw_bytes = raw_bytes;
        part->object.boundary_tokens = draw(state, UINT32_MAX);
        part->object.croppable = draw(state, 2);
        part->object.parent_unknown = draw(state, 2);
        part->checksums.piece_bytes = checksum_piece_bytes(raw_bytes);
        part->checksums.n_pieces = checksum_n_pieces(raw_bytes);
        part->stored_bytes = raw_bytes;
        part->offset = 300 + draw(state, 100000);
        if (draw(state, 2)) {
                part->encoding = draw(state, 2) ? draw(state, UINT32_MAX)
                                                : 1 + draw(state, 3) + (draw(state, 5) << 8);
                part->stored_bytes = 1 + draw(state, raw_bytes);
                part->encoding_bytes = draw(state, BUNDLE_TABLE_MAX);
                part->encoding_table = table;
                for (uint32_t k = 0; k < part->encoding_bytes; k++)
                        table[k] = (uint8_t)draw(state, draw(state, 2) ? 256 : 2);
        }
        part->checksums.total = checksum_total(&part->checksums, &part->object.key);
        return record;
}

START_TEST(forged_parts_are_read_by_nobody)
{
        static struct journal_record records[FORGED];
        static uint8_t tables[FORGED][BUNDLE_TABLE_MAX], bytes[800000];
        uint64_t state = (uint64_t)_i + 7;
        struct bundle_id id = {.number = 1};
        char name[POOL_NAME_MAX];

        begin();
        memcpy(id.node, x, sizeof(x));
        for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (uint8_t)draw(&state, 256);
        for (; id.number <= 3; id.number++) {
                bundle_name(name, &id);
                put_object(name, bytes, 200000 * id.number);
        }
        for (uint32_t i = 0; i < FORGED; i++)
                records[i] = forge(&state, i, tables[i]);
        put_segment(x, 1, records, FORGED);
        nodes_settle(fixture);
        ck_assert_uint_eq(a->n_appeared, FORGED);
        for (uint32_t i = 0; i < FORGED; i++) {
                struct driver_object object = {.object = a->appeared[i].object,
                                               .place = a->appeared[i].place};
                struct piece_set pieces = {{0}};

                ck_assert_int_ne(driver_read(&a->driver, &object), 0);
                piece_set_add(&pieces, object.object.raw_bytes, 0, 1);
                ck_assert_int_ne(driver_read_pieces(&a->driver, &object, &pieces), 0);
        }
        end();
}
END_TEST

/* What a node reads in such a pool is what was stored, or a failure: the driver compares. */
START_TEST(a_spoiled_pool_gives_right_bytes_or_none)
{
        struct driver_object objects[OBJECTS];
        uint64_t state = (uint64_t)_i * 977 + 1;
        char name[POOL_NAME_MAX];

        fill(objects);
        for (uint32_t i = 0; fake_pool_name(fixture->pool, "", i, name); i++)
                if (!draw(&state, 3))
                        spoil(&state, name);
        node_open(fixture, 1);
        nodes_settle(fixture);
        for (uint32_t i = 0; i < OBJECTS; i++) {
                const struct event *event = node_appeared(b, &objects[i]);

                if (event && !node_vanished(b, &objects[i]))
                        ck_assert_int_ge(node_read_appeared(b, &objects[i]), 0);
        }
        ck_assert(node_usage(b).caught_up);
        /* Whose pool it was comes back to it. */
        node_lose_index(fixture, 0, false);
        node_open(fixture, 0);
        nodes_settle(fixture);
        ck_assert_uint_le(driver_usage(&a->driver).used_bytes,
                          driver_usage(&a->driver).capacity_bytes);
        end();
}
END_TEST

static void add_tests(TCase *tcase)
{
        tcase_add_test(tcase, journals_that_wait_for_each_other_are_read_all_the_same);
        tcase_add_test(tcase, a_journal_that_waits_for_itself_is_read);
        tcase_add_test(tcase, a_segment_with_the_highest_number_does_not_end_our_journal);
        tcase_add_test(tcase, a_journal_tells_nothing_of_others_bundles);
        tcase_add_test(tcase, what_is_announced_and_not_there_is_a_miss);
        tcase_add_test(tcase, a_part_may_be_told_many_times_and_of_many_numbers);
        tcase_add_loop_test(tcase, forged_parts_are_read_by_nobody, 0, 3);
        tcase_add_loop_test(tcase, a_spoiled_pool_gives_right_bytes_or_none, 0, 12);
}

int main(void)
{
        Suite *suite = suite_create("storage/remote_hostile");
        TCase *tcase = tcase_create("remote_hostile");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 30);
        add_tests(tcase);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
