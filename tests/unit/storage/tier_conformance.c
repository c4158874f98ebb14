// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/tier_driver.h"
#include "tests/unit/storage/tier_conformance.h"

#define ARENA_BYTES (32u << 20)
#define N_MANY      48u

static const struct conformance_subject *subjects;
static const struct conformance_subject *subject;
static struct driver driver;
static void *made;

static void open_tier(void)
{
        struct tier *tier = subject->open(subject, made, &driver.loop);

        ck_assert_ptr_nonnull(tier);
        driver_attach(&driver, tier);
        driver_recover(&driver);
}

/* Every test begins with an empty tier of subject _i. */
static void begin(int i)
{
        subject = &subjects[i];
        made = subject->make(subject);
        driver_init(&driver, ARENA_BYTES);
        driver.encoding = subject->encoding;
        open_tier();
}

static void end(void)
{
        driver_close(&driver);
        driver_deinit(&driver);
        subject->remove(subject, made);
}

START_TEST(tier_returns_the_bytes_of_every_size)
{
        static const uint64_t sizes[] = {1,      4095,    4096,           4097,     65536,
                                         300000, 1572864, (6u << 20) + 3, 17u << 20};

        begin(_i);
        for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                struct driver_object object = driver_object(i, sizes[i]);

                ck_assert_int_eq(driver_write(&driver, &object), 0);
                ck_assert_int_eq(driver_read(&driver, &object), 0);
                ck_assert_int_eq(driver_forget(&driver, &object, false), 0);
        }
        end();
}
END_TEST

/* Bit i: piece i. */
static struct piece_set pieces_of(uint64_t bits)
{
        return (struct piece_set){{bits}};
}

START_TEST(tier_returns_the_pieces_that_were_asked_for)
{
        /* One piece, a few, 24 of 256 KiB and a short one, and 9 in several extents or members. */
        static const struct {
                uint64_t raw_bytes, sets[6];
        } cases[] = {
                {5000, {1}},
                {700000, {1, 2, 4, 5, 7}},
                {(6u << 20) + 3, {1, 1u << 24, 0x1000001, 0xf0f0f0, 0xaaaaaa, 0x1ffffff}},
                {(2u << 20) + 4096, {0x100, 0x180, 0x81, 0x155}},
        };

        begin(_i);
        for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct driver_object object = driver_object(i, cases[i].raw_bytes);

                ck_assert_int_eq(driver_write(&driver, &object), 0);
                for (uint32_t j = 0; j < 6 && cases[i].sets[j]; j++) {
                        struct piece_set set = pieces_of(cases[i].sets[j]);

                        ck_assert_int_eq(driver_read_pieces(&driver, &object, &set), 0);
                }
                ck_assert_int_eq(driver_read(&driver, &object), 0);
                ck_assert_int_eq(driver_forget(&driver, &object, false), 0);
        }
        end();
}
END_TEST

START_TEST(tier_reads_pieces_and_whole_objects_side_by_side)
{
        static struct driver_request requests[24];
        struct driver_object object = driver_object(1, (1u << 20) - 5);

        begin(_i);
        ck_assert_int_eq(driver_write(&driver, &object), 0);
        for (uint32_t i = 0; i < 24; i++) {
                struct piece_set set = pieces_of(i % 16);
                uint64_t at = (uint64_t)i << 20;
                int r = i % 16 ? driver_submit_read_pieces(&driver, &requests[i], &object, &set, at)
                               : driver_submit_read(&driver, &requests[i], &object, at);

                ck_assert_int_eq(r, 0);
        }
        for (uint32_t i = 0; i < 24; i++) {
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
                ck_assert(driver_holds(&requests[i]));
        }
        end();
}
END_TEST

START_TEST(tier_never_returns_pieces_under_another_name)
{
        struct driver_object object = driver_object(1, 1u << 20), other = object;
        struct piece_set set = pieces_of(2);

        begin(_i);
        ck_assert_int_eq(driver_write(&driver, &object), 0);
        other.place = object.place;
        other.object.generation = 2;
        ck_assert_int_eq(driver_read_pieces(&driver, &other, &set), TIER_E_CORRUPT);
        ck_assert_uint_eq(driver_usage(&driver).corrupt_total, 1);
        ck_assert_int_eq(driver_read_pieces(&driver, &object, &set), 0);
        end();
}
END_TEST

START_TEST(tier_frees_space_only_after_reads_of_pieces)
{
        struct driver_object object = driver_object(1, 4u << 20);
        struct driver_request read, forget;
        struct piece_set set = pieces_of(0x8001);

        begin(_i);
        ck_assert_int_eq(driver_write(&driver, &object), 0);
        ck_assert_int_eq(driver_submit_read_pieces(&driver, &read, &object, &set, 0), 0);
        driver_submit_forget(&driver, &forget, &object, false);
        while (!forget.is_done) {
                if (!read.is_done)
                        ck_assert_uint_gt(driver_usage(&driver).used_bytes, 0);
                uv_run(&driver.loop, UV_RUN_ONCE);
        }
        ck_assert(read.is_done);
        ck_assert_int_eq(read.result, 0);
        ck_assert(driver_holds(&read));
        end();
}
END_TEST

START_TEST(tier_returns_the_checksums_that_were_written)
{
        struct driver_object object = driver_object(1, 700000);
        struct driver_request write, read;

        begin(_i);
        ck_assert_int_eq(driver_submit_write(&driver, &write, &object, 0), 0);
        ck_assert_int_eq(driver_wait(&write), 0);
        ck_assert_int_eq(driver_submit_read(&driver, &read, &object, 0), 0);
        ck_assert_int_eq(driver_wait(&read), 0);
        ck_assert_uint_eq(read.checksums.total, write.checksums.total);
        ck_assert_uint_eq(read.checksums.n_pieces, write.checksums.n_pieces);
        ck_assert_mem_eq(read.checksums.pieces, write.checksums.pieces,
                         write.checksums.n_pieces * sizeof(uint64_t));
        end();
}
END_TEST

START_TEST(tier_works_with_memory_it_does_not_know)
{
        struct driver_object object = driver_object(1, 1u << 20);

        begin(_i);
        driver.arena_id = TIER_MEMORY_UNREGISTERED;
        ck_assert_int_eq(driver_write(&driver, &object), 0);
        ck_assert_int_eq(driver_read(&driver, &object), 0);
        end();
}
END_TEST

START_TEST(tier_works_after_memory_has_come_and_gone)
{
        struct driver_object object = driver_object(1, 1u << 20);

        begin(_i);
        for (int i = 0; i < 3; i++) {
                driver.tier->ops.remove_memory(driver.tier, DRIVER_ARENA_ID);
                driver.arena_id = TIER_MEMORY_UNREGISTERED;
                ck_assert_int_eq(driver_write(&driver, &object), 0);
                driver.arena_id = DRIVER_ARENA_ID;
                ck_assert_int_eq(driver.tier->ops.add_memory(driver.tier, DRIVER_ARENA_ID,
                                                             driver.arena, driver.arena_bytes),
                                 0);
                ck_assert_int_eq(driver_read(&driver, &object), 0);
                ck_assert_int_eq(driver_forget(&driver, &object, false), 0);
        }
        end();
}
END_TEST

START_TEST(tier_never_returns_an_object_under_another_name)
{
        struct driver_object object = driver_object(1, 65536), other;

        begin(_i);
        ck_assert_int_eq(driver_write(&driver, &object), 0);
        other = object;
        other.object.key.shard = 9;
        ck_assert_int_eq(driver_read(&driver, &other), TIER_E_CORRUPT);
        other = object;
        other.object.key.domain = 1;
        ck_assert_int_eq(driver_read(&driver, &other), TIER_E_CORRUPT);
        other = object;
        other.object.generation = 2;
        ck_assert_int_eq(driver_read(&driver, &other), TIER_E_CORRUPT);
        ck_assert_uint_eq(driver_usage(&driver).corrupt_total, 3);
        ck_assert_int_eq(driver_read(&driver, &object), 0);
        end();
}
END_TEST

START_TEST(tier_accounts_for_what_it_holds)
{
        struct driver_object objects[5];
        struct tier_usage usage;
        uint64_t used = 0;

        begin(_i);
        usage = driver_usage(&driver);
        ck_assert_uint_eq(usage.used_bytes, 0);
        ck_assert_uint_ge(usage.capacity_bytes, CONFORMANCE_BYTES / 2);
        for (uint32_t i = 0; i < 5; i++) {
                objects[i] = driver_object(i, 10000 + 100000 * i);
                ck_assert_int_eq(driver_write(&driver, &objects[i]), 0);
                used += driver.tier->ops.footprint(driver.tier, objects[i].object.raw_bytes, 0);
                usage = driver_usage(&driver);
                if (subject->encoding.kind)
                        ck_assert_uint_lt(usage.used_bytes, used);
                else
                        ck_assert_uint_eq(usage.used_bytes, used);
                ck_assert_uint_ge(usage.used_bytes, usage.payload_bytes);
                ck_assert_uint_gt(usage.payload_bytes, 0);
                ck_assert_uint_eq(usage.objects, i + 1);
        }
        ck_assert_uint_eq(usage.queued_writes, 0);
        ck_assert_uint_gt(usage.written_bytes_total, 0);
        for (uint32_t i = 0; i < 5; i++)
                ck_assert_int_eq(driver_forget(&driver, &objects[i], i & 1), 0);
        usage = driver_usage(&driver);
        ck_assert_uint_eq(usage.used_bytes, 0);
        ck_assert_uint_eq(usage.objects, 0);
        ck_assert_uint_eq(usage.payload_bytes, 0);
        end();
}
END_TEST

/* What shrinks takes less room, over a restart too, and what does not is stored as it is. */
START_TEST(tier_stores_in_less_room_what_shrinks)
{
        struct driver_object shrinks = driver_object(1, 3u << 20);
        struct driver_object noise = driver_object(2, 3u << 20);
        struct piece_set set = pieces_of(1u << 3 | 1u << 11);
        uint64_t room, used;

        begin(_i);
        room = driver.tier->ops.footprint(driver.tier, 3u << 20, 0);
        driver.encoding = encoding_of(ENCODING_PLANES_ZSTD, 2);
        ck_assert_int_eq(driver_write(&driver, &shrinks), 0);
        used = driver_usage(&driver).used_bytes;
        ck_assert_uint_le(used, room);
        ck_assert_uint_eq(driver_usage(&driver).encoded.raw_bytes_total == 0, used == room);
        driver.encoding = (struct encoding){0};
        ck_assert_int_eq(driver_write(&driver, &noise), 0);
        ck_assert_uint_eq(driver_usage(&driver).used_bytes, used + room);
        driver_close(&driver);
        open_tier();
        ck_assert_uint_eq(driver_usage(&driver).used_bytes, used + room);
        shrinks.place = driver_find(&driver, &shrinks)->place;
        noise.place = driver_find(&driver, &noise)->place;
        ck_assert_int_eq(driver_read(&driver, &shrinks), 0);
        ck_assert_int_eq(driver_read_pieces(&driver, &shrinks, &set), 0);
        ck_assert_int_eq(driver_read(&driver, &noise), 0);
        ck_assert_int_eq(driver_forget(&driver, &shrinks, false), 0);
        ck_assert_uint_eq(driver_usage(&driver).used_bytes, room);
        end();
}
END_TEST

START_TEST(tier_refuses_when_full_and_takes_again_after_a_forget)
{
        static struct driver_object objects[160];
        struct driver_object more;
        uint32_t n = 0;
        int r = 0;

        begin(_i);
        while (n < 160) {
                objects[n] = driver_object(n, 2u << 20);
                r = driver_write(&driver, &objects[n]);
                if (r)
                        break;
                n++;
        }
        ck_assert_int_eq(r, TIER_E_FULL);
        ck_assert_uint_ge(n, 4);
        ck_assert_uint_le(driver_usage(&driver).used_bytes, driver_usage(&driver).capacity_bytes);
        more = driver_object(200, 2u << 20);
        ck_assert_int_eq(driver_write(&driver, &more), TIER_E_FULL);
        /* What is encoded asks for more room than an object like it gave back. */
        for (uint32_t i = 1; r == TIER_E_FULL && i <= (subject->encoding.kind ? 6 : 1); i++) {
                ck_assert_int_eq(driver_forget(&driver, &objects[i], false), 0);
                r = driver_write(&driver, &more);
        }
        ck_assert_int_eq(r, 0);
        ck_assert_int_eq(driver_read(&driver, &more), 0);
        ck_assert_int_eq(driver_read(&driver, &objects[0]), 0);
        end();
}
END_TEST

START_TEST(tier_serves_many_requests_at_once)
{
        static struct driver_object objects[N_MANY];
        static struct driver_request requests[N_MANY];

        begin(_i);
        for (uint32_t i = 0; i < N_MANY; i++) {
                objects[i] = driver_object(i, 100000 + 5000 * i);
                ck_assert_int_eq(
                        driver_submit_write(&driver, &requests[i], &objects[i], i * (512u << 10)),
                        0);
        }
        for (uint32_t i = 0; i < N_MANY; i++)
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
        for (uint32_t i = 0; i < N_MANY; i++)
                ck_assert_int_eq(
                        driver_submit_read(&driver, &requests[i], &objects[i], i * (512u << 10)),
                        0);
        for (uint32_t i = 0; i < N_MANY; i++) {
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
                ck_assert(driver_holds(&requests[i]));
        }
        end();
}
END_TEST

START_TEST(tier_reads_while_it_writes)
{
        static struct driver_request writes[16], reads[16];
        static struct driver_object olds[16], news[16];

        begin(_i);
        for (uint32_t i = 0; i < 16; i++) {
                olds[i] = driver_object(i, 500000);
                ck_assert_int_eq(driver_write(&driver, &olds[i]), 0);
        }
        for (uint32_t i = 0; i < 16; i++) {
                news[i] = driver_object(100 + i, 500000);
                ck_assert_int_eq(
                        driver_submit_write(&driver, &writes[i], &news[i], i * (512u << 10)), 0);
                ck_assert_int_eq(
                        driver_submit_read(&driver, &reads[i], &olds[i], (16 + i) * (512u << 10)),
                        0);
        }
        for (uint32_t i = 0; i < 16; i++) {
                ck_assert_int_eq(driver_wait(&reads[i]), 0);
                ck_assert(driver_holds(&reads[i]));
                ck_assert_int_eq(driver_wait(&writes[i]), 0);
        }
        for (uint32_t i = 0; i < 16; i++)
                ck_assert_int_eq(driver_read(&driver, &news[i]), 0);
        end();
}
END_TEST

START_TEST(tier_frees_space_only_after_reads_in_flight)
{
        struct driver_object object = driver_object(1, 4u << 20);
        struct driver_request reads[4], forget;

        begin(_i);
        ck_assert_int_eq(driver_write(&driver, &object), 0);
        for (uint32_t i = 0; i < 4; i++)
                ck_assert_int_eq(driver_submit_read(&driver, &reads[i], &object, i * (4u << 20)),
                                 0);
        driver_submit_forget(&driver, &forget, &object, false);
        while (!forget.is_done) {
                bool read = reads[0].is_done && reads[1].is_done && reads[2].is_done &&
                            reads[3].is_done;

                if (!read)
                        ck_assert_uint_gt(driver_usage(&driver).used_bytes, 0);
                uv_run(&driver.loop, UV_RUN_ONCE);
        }
        for (uint32_t i = 0; i < 4; i++) {
                ck_assert(reads[i].is_done);
                ck_assert_int_eq(reads[i].result, 0);
                ck_assert(driver_holds(&reads[i]));
        }
        ck_assert_uint_eq(driver_usage(&driver).used_bytes, 0);
        end();
}
END_TEST

START_TEST(tier_keeps_its_objects_over_a_restart)
{
        struct driver_object objects[20], *found;
        uint64_t used;

        begin(_i);
        for (uint32_t i = 0; i < 20; i++) {
                objects[i] = driver_object(i, 4096 + 70000 * i);
                objects[i].object.parent_unknown = i & 1;
                objects[i].object.cell = (uint16_t)(i * 3);
                ck_assert_int_eq(driver_write(&driver, &objects[i]), 0);
        }
        used = driver_usage(&driver).used_bytes;
        driver_close(&driver);
        open_tier();
        ck_assert_uint_eq(driver.n_found, 20);
        ck_assert_uint_eq(driver_usage(&driver).used_bytes, used);
        ck_assert_uint_eq(driver_usage(&driver).objects, 20);
        for (uint32_t i = 0; i < 20; i++) {
                found = driver_find(&driver, &objects[i]);
                ck_assert_ptr_nonnull(found);
                ck_assert_mem_eq(&found->object.parent, &objects[i].object.parent, DIGEST_BYTES);
                ck_assert_uint_eq(found->object.parent_unknown, i & 1);
                ck_assert_uint_eq(found->object.cell, i * 3);
                ck_assert_uint_eq(found->object.boundary_tokens, objects[i].object.boundary_tokens);
                ck_assert_uint_eq(found->object.raw_bytes, objects[i].object.raw_bytes);
                ck_assert_uint_eq(found->object.committed_ns, objects[i].object.committed_ns);
                ck_assert_mem_eq(found->object.writer_boot_id, objects[i].object.writer_boot_id,
                                 16);
                objects[i].place = found->place;
                ck_assert_int_eq(driver_read(&driver, &objects[i]), 0);
        }
        end();
}
END_TEST

START_TEST(tier_forgets_over_a_restart)
{
        struct driver_object objects[10];

        begin(_i);
        for (uint32_t i = 0; i < 10; i++) {
                objects[i] = driver_object(i, 65536);
                ck_assert_int_eq(driver_write(&driver, &objects[i]), 0);
        }
        for (uint32_t i = 0; i < 10; i += 2)
                ck_assert_int_eq(driver_forget(&driver, &objects[i], i & 2), 0);
        driver_close(&driver);
        open_tier();
        ck_assert_uint_eq(driver.n_found, 5);
        for (uint32_t i = 0; i < 10; i++)
                ck_assert_int_eq(!driver_find(&driver, &objects[i]), !(i & 1));
        end();
}
END_TEST

START_TEST(tier_forgets_an_old_generation_and_keeps_the_new)
{
        struct driver_object old = driver_object(1, 65536), new = old, *found;

        begin(_i);
        new.object.generation = 2;
        new.seed = 4711;
        ck_assert_int_eq(driver_write(&driver, &old), 0);
        ck_assert_int_eq(driver_write(&driver, &new), 0);
        ck_assert_int_eq(driver_forget(&driver, &old, true), 0);
        ck_assert_int_eq(driver_read(&driver, &new), 0);
        driver_close(&driver);
        open_tier();
        ck_assert_uint_eq(driver.n_found, 1);
        found = driver_find(&driver, &new);
        ck_assert_ptr_nonnull(found);
        new.place = found->place;
        ck_assert_int_eq(driver_read(&driver, &new), 0);
        end();
}
END_TEST

START_TEST(tier_keeps_what_a_croppable_blob_covers)
{
        const uint32_t counts[] = {3, TIER_COVERS_MAX};
        struct digest *covers = calloc(TIER_COVERS_MAX, sizeof(*covers));

        begin(_i);
        for (uint32_t i = 0; i < TIER_COVERS_MAX; i++)
                memcpy(covers[i].bytes, &i, sizeof(i));
        for (uint32_t i = 0; i < 2; i++) {
                struct driver_object object = driver_object(i, 100000), *found;

                object.object.croppable = true;
                object.object.covers = covers;
                object.object.n_covers = counts[i];
                ck_assert_int_eq(driver_write(&driver, &object), 0);
                driver_close(&driver);
                open_tier();
                found = driver_find(&driver, &object);
                ck_assert_ptr_nonnull(found);
                ck_assert(found->object.croppable);
                ck_assert_uint_eq(found->covers_sum, driver_covers_sum(&object.object));
                object.place = found->place;
                ck_assert_int_eq(driver_read(&driver, &object), 0);
        }
        end();
        free(covers);
}
END_TEST

START_TEST(tier_syncs)
{
        struct driver_object object = driver_object(1, 65536);

        begin(_i);
        ck_assert_int_eq(driver_sync(&driver), 0);
        ck_assert_int_eq(driver_write(&driver, &object), 0);
        ck_assert_int_eq(driver_sync(&driver), 0);
        end();
}
END_TEST

static void on_ready(void *user)
{
        ++*(int *)user;
}

/* A write that is told to wait is told when to come back. */
START_TEST(tier_calls_back_whoever_it_paused)
{
        static struct driver_request requests[2000];
        static struct driver_object objects[2000];
        uint32_t n = 0;
        int n_ready = 0, r = 0;

        begin(_i);
        driver.tier->on_ready = on_ready;
        driver.tier->on_ready_user = &n_ready;
        while (n < 2000) {
                objects[n] = driver_object(n, 4096);
                r = driver_submit_write(&driver, &requests[n], &objects[n], n * 4096u);
                if (r)
                        break;
                n++;
        }
        ck_assert(r == 0 || r == TIER_E_PAUSED);
        for (uint32_t i = 0; i < n; i++)
                ck_assert_int_eq(driver_wait(&requests[i]), 0);
        if (r == TIER_E_PAUSED) {
                ck_assert_int_eq(n_ready, 1);
                ck_assert_int_eq(driver_write(&driver, &objects[n]), 0);
        }
        end();
}
END_TEST

START_TEST(tier_is_right_after_much_coming_and_going)
{
        static struct driver_object objects[40];
        bool is_there[40] = {false};
        uint32_t random = 12345;

        begin(_i);
        for (uint32_t step = 0; step < 400; step++) {
                uint32_t i;

                random = random * 1664525u + 1013904223u;
                i = random >> 16;
                if (is_there[i % 40]) {
                        ck_assert_int_eq(driver_read(&driver, &objects[i % 40]), 0);
                        ck_assert_int_eq(driver_forget(&driver, &objects[i % 40], false), 0);
                        is_there[i % 40] = false;
                        continue;
                }
                objects[i % 40] = driver_object(step, 1 + random % 900000);
                ck_assert_int_eq(driver_write(&driver, &objects[i % 40]), 0);
                is_there[i % 40] = true;
        }
        for (uint32_t i = 0; i < 40; i++)
                if (is_there[i])
                        ck_assert_int_eq(driver_read(&driver, &objects[i]), 0);
        end();
}
END_TEST

int conformance_run(const char *suite_name, const struct conformance_subject *all, uint32_t n)
{
        Suite *suite = suite_create(suite_name);
        TCase *tcase = tcase_create("conformance");
        SRunner *runner = srunner_create(suite);
        int failed;

        subjects = all;
        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, tier_returns_the_bytes_of_every_size, 0, (int)n);
        tcase_add_loop_test(tcase, tier_returns_the_pieces_that_were_asked_for, 0, (int)n);
        tcase_add_loop_test(tcase, tier_reads_pieces_and_whole_objects_side_by_side, 0, (int)n);
        tcase_add_loop_test(tcase, tier_never_returns_pieces_under_another_name, 0, (int)n);
        tcase_add_loop_test(tcase, tier_frees_space_only_after_reads_of_pieces, 0, (int)n);
        tcase_add_loop_test(tcase, tier_returns_the_checksums_that_were_written, 0, (int)n);
        tcase_add_loop_test(tcase, tier_works_with_memory_it_does_not_know, 0, (int)n);
        tcase_add_loop_test(tcase, tier_works_after_memory_has_come_and_gone, 0, (int)n);
        tcase_add_loop_test(tcase, tier_never_returns_an_object_under_another_name, 0, (int)n);
        tcase_add_loop_test(tcase, tier_accounts_for_what_it_holds, 0, (int)n);
        tcase_add_loop_test(tcase, tier_stores_in_less_room_what_shrinks, 0, (int)n);
        tcase_add_loop_test(tcase, tier_refuses_when_full_and_takes_again_after_a_forget, 0,
                            (int)n);
        tcase_add_loop_test(tcase, tier_serves_many_requests_at_once, 0, (int)n);
        tcase_add_loop_test(tcase, tier_reads_while_it_writes, 0, (int)n);
        tcase_add_loop_test(tcase, tier_frees_space_only_after_reads_in_flight, 0, (int)n);
        tcase_add_loop_test(tcase, tier_keeps_its_objects_over_a_restart, 0, (int)n);
        tcase_add_loop_test(tcase, tier_forgets_over_a_restart, 0, (int)n);
        tcase_add_loop_test(tcase, tier_forgets_an_old_generation_and_keeps_the_new, 0, (int)n);
        tcase_add_loop_test(tcase, tier_keeps_what_a_croppable_blob_covers, 0, (int)n);
        tcase_add_loop_test(tcase, tier_syncs, 0, (int)n);
        tcase_add_loop_test(tcase, tier_calls_back_whoever_it_paused, 0, (int)n);
        tcase_add_loop_test(tcase, tier_is_right_after_much_coming_and_going, 0, (int)n);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
