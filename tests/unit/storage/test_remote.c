// SPDX-License-Identifier: Apache-2.0
/* One node and its pool: bundles, reads, damage, caps, trouble. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "storage/bundle.h"
#include "tests/support/patience.h"
#include "tests/unit/storage/remote_fixture.h"

static struct pool_fixture *fixture;
static struct node *node;
static struct driver *driver;

static void begin(void)
{
        fixture = nodes_new(1);
        node = &fixture->nodes[0];
        driver = &node->driver;
}

static void begin_open(void)
{
        begin();
        node_open(fixture, 0);
}

static void end(void)
{
        nodes_free(fixture);
}

static uint64_t requests(enum fake_pool_kind kind)
{
        struct pool_usage usage;

        node->pool->ops.usage(node->pool, &usage);
        return usage.requests_total[kind];
}

static uint32_t n_bundles(void)
{
        return fake_pool_count(fixture->pool, "bundle/", NULL);
}

/* Writes all of @objects at once, each at its own megabyte of the arena. */
static void write_together(struct driver_object *objects, uint32_t n)
{
        static struct driver_request writes[16];

        ck_assert_uint_le(n, 16);
        for (uint32_t i = 0; i < n; i++)
                ck_assert_int_eq(driver_submit_write(driver, &writes[i], &objects[i], i << 20), 0);
        for (uint32_t i = 0; i < n; i++)
                ck_assert_int_eq(driver_wait(&writes[i]), 0);
}

static int read_together(struct driver_object *objects, uint32_t n)
{
        static struct driver_request reads[16];
        int r = 0;

        for (uint32_t i = 0; i < n; i++)
                ck_assert_int_eq(driver_submit_read(driver, &reads[i], &objects[i], i << 20), 0);
        for (uint32_t i = 0; i < n; i++) {
                if (driver_wait(&reads[i]))
                        r = reads[i].result;
                else
                        ck_assert(driver_holds(&reads[i]));
        }
        return r;
}

/* ---- bundles ---- */

START_TEST(a_prompt_becomes_one_bundle_and_one_get)
{
        struct driver_object objects[8];

        begin_open();
        for (uint32_t i = 0; i < 8; i++)
                objects[i] = chain_object(1, i, 200000);
        write_together(objects, 8);
        ck_assert_uint_eq(n_bundles(), 1);
        ck_assert_int_eq(read_together(objects, 8), 0);
        ck_assert_uint_eq(node_usage(node).read_requests, 1);
        end();
}
END_TEST

START_TEST(prompts_do_not_share_a_bundle)
{
        struct driver_object objects[6];

        begin_open();
        for (uint32_t i = 0; i < 6; i++)
                objects[i] = chain_object(1 + i % 2, i / 2, 50000);
        write_together(objects, 6);
        ck_assert_uint_eq(n_bundles(), 2);
        ck_assert_int_eq(read_together(objects, 6), 0);
        ck_assert_uint_eq(node_usage(node).read_requests, 2);
        end();
}
END_TEST

START_TEST(another_layout_or_domain_begins_another_bundle)
{
        struct driver_object objects[3];

        begin_open();
        for (uint32_t i = 0; i < 3; i++)
                objects[i] = chain_object(1, 0, 50000);
        objects[1].object.key.layout.bytes[0]++;
        objects[2].object.key.domain = 1;
        write_together(objects, 3);
        ck_assert_uint_eq(n_bundles(), 3);
        end();
}
END_TEST

START_TEST(a_bundle_is_no_larger_than_was_asked_for)
{
        struct driver_object objects[16];
        uint64_t bytes;

        begin();
        node->options.bundle_bytes = 1u << 20;
        node_open(fixture, 0);
        for (uint32_t i = 0; i < 16; i++)
                objects[i] = chain_object(1, i, 300000);
        write_together(objects, 16);
        ck_assert_uint_eq(n_bundles(), 6);
        fake_pool_count(fixture->pool, "bundle/", &bytes);
        ck_assert_uint_eq(driver_usage(driver).used_bytes, bytes);
        ck_assert_int_eq(read_together(objects, 16), 0);
        end();
}
END_TEST

static bool is_never_current(struct tier_write *write)
{
        (void)write;
        return false;
}

START_TEST(parts_that_are_cancelled_are_dead_bytes_of_their_bundle)
{
        struct driver_object objects[3];
        static struct driver_request writes[3];

        begin_open();
        for (uint32_t i = 0; i < 3; i++) {
                objects[i] = chain_object(1, i, 50000);
                ck_assert_int_eq(driver_submit_write(driver, &writes[i], &objects[i], i << 20), 0);
        }
        writes[1].write.is_current = is_never_current;
        ck_assert_int_eq(driver_wait(&writes[0]), 0);
        ck_assert_int_eq(driver_wait(&writes[1]), TIER_E_CANCELLED);
        ck_assert_int_eq(driver_wait(&writes[2]), 0);
        ck_assert_uint_eq(driver_usage(driver).objects, 2);
        ck_assert_uint_gt(node_usage(node).dead_bytes, 50000);
        ck_assert_int_eq(driver_read(driver, &objects[2]), 0);
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open(fixture, 0), 2);
        end();
}
END_TEST

START_TEST(what_fits_no_bundle_is_refused)
{
        struct driver_object object = driver_object(1, 4096);

        begin_open();
        object.object.raw_bytes = BUNDLE_BYTES_MAX;
        ck_assert_int_lt(driver->tier->ops.write(driver->tier,
                                                 &(struct tier_write){.object = &object.object}),
                         0);
        end();
}
END_TEST

/* ---- reads ---- */

START_TEST(neighbours_are_read_together_and_others_apart)
{
        struct driver_object objects[16];
        struct driver_object some[3];

        begin_open();
        for (uint32_t i = 0; i < 16; i++)
                objects[i] = chain_object(1, i, 150000);
        write_together(objects, 16);
        ck_assert_uint_eq(n_bundles(), 1);
        some[0] = objects[0];
        some[1] = objects[1];
        some[2] = objects[9];
        ck_assert_int_eq(read_together(some, 3), 0);
        ck_assert_uint_eq(node_usage(node).read_requests, 2);
        ck_assert_uint_eq(driver_usage(driver).read_bytes_total, 3 * 150000);
        end();
}
END_TEST

START_TEST(pieces_are_read_alone)
{
        struct driver_object object = driver_object(1, 3u << 20);
        struct piece_set set = {{0x801}};

        begin_open();
        ck_assert_int_eq(driver_write(driver, &object), 0);
        ck_assert_int_eq(driver_read_pieces(driver, &object, &set), 0);
        ck_assert_uint_eq(driver_usage(driver).read_bytes_total, 2 * CHECKSUM_PIECE_BYTES);
        ck_assert_uint_eq(node_usage(node).read_requests, 2);
        end();
}
END_TEST

START_TEST(encoded_objects_come_back_whole_and_in_pieces)
{
        struct driver_object object = driver_object(1, 2000000);
        struct driver_request write, read;
        struct piece_set set = {{0x5}};

        begin_open();
        object.seed = 0;
        ck_assert_int_eq(driver_submit_write(driver, &write, &object, 0), 0);
        /* Bytes that shrink. */
        memset(driver->arena, 7, 2000000);
        checksum_compute(&write.checksums, &object.object.key, 2000000,
                         &(struct checksum_segment){driver->arena, 2000000}, 1);
        write.write.encoding = encoding_of(ENCODING_PLANES_LZ4, 2);
        ck_assert_int_eq(driver_wait(&write), 0);
        ck_assert_uint_lt(driver_usage(driver).written_bytes_total, 2500000);
        ck_assert_int_eq(driver_submit_read(driver, &read, &object, 0), 0);
        ck_assert_int_eq(driver_wait(&read), 0);
        ck_assert_uint_eq(driver->arena[1999999], 7);
        ck_assert_int_eq(driver_submit_read_pieces(driver, &read, &object, &set, 0), 0);
        ck_assert_int_eq(driver_wait(&read), 0);
        ck_assert_uint_eq(driver->arena[2 * CHECKSUM_PIECE_BYTES - 1], 7);
        end();
}
END_TEST

START_TEST(bundles_that_wait_for_an_encoder_all_get_there)
{
        static struct driver_object objects[12];
        static struct driver_request writes[12];

        begin_open();
        driver->encoding = encoding_of(ENCODING_PLANES_LZ4, 2);
        for (uint32_t i = 0; i < 12; i++) {
                objects[i] = driver_object(i, 1000000); /* each in a bundle of its own */
                ck_assert_int_eq(driver_submit_write(driver, &writes[i], &objects[i], i << 20), 0);
        }
        for (uint32_t i = 0; i < 12; i++)
                ck_assert_int_eq(driver_wait(&writes[i]), 0);
        ck_assert_uint_eq(n_bundles(), 12);
        for (uint32_t i = 0; i < 12; i++)
                ck_assert_int_eq(driver_read(driver, &objects[i]), 0);
        end();
}
END_TEST

START_TEST(memory_of_encoded_bundles_has_a_cap)
{
        static struct driver_object objects[12];
        static struct driver_request writes[12];

        begin();
        node->options.encoded_bytes = 3000000;
        node_open(fixture, 0);
        driver->encoding = encoding_of(ENCODING_PLANES_LZ4, 2);
        fake_pool_delay(node->pool, 200); /* time enough to encode them all */
        for (uint32_t i = 0; i < 12; i++) {
                objects[i] = driver_object(i, 1000000);
                ck_assert_int_eq(driver_submit_write(driver, &writes[i], &objects[i], i << 20), 0);
        }
        for (uint32_t i = 0; i < 12; i++)
                ck_assert_int_eq(driver_wait(&writes[i]), 0);
        ck_assert_uint_gt(node_usage(node).encoded_bytes_most, 2000000);
        ck_assert_uint_le(node_usage(node).encoded_bytes_most, 3000000);
        end();
}
END_TEST

static void spoil_bundle(void (*spoil)(const char *folder, const char *name, uint64_t at),
                         uint64_t at)
{
        char name[POOL_NAME_MAX];

        ck_assert(fake_pool_name(fixture->pool, "bundle/", 0, name));
        spoil(fixture->pool, name, at);
}

START_TEST(a_flipped_bit_is_corrupt_and_harms_no_neighbour)
{
        struct driver_object objects[2];
        char name[POOL_NAME_MAX];

        begin_open();
        objects[0] = chain_object(1, 0, 100000);
        objects[1] = chain_object(1, 1, 100000);
        write_together(objects, 2);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 0, name));
        spoil_bundle(fake_pool_flip, fake_pool_size(fixture->pool, name) - 100001);
        ck_assert_int_eq(driver_read(driver, &objects[0]), TIER_E_CORRUPT);
        ck_assert_int_eq(driver_read(driver, &objects[1]), 0);
        ck_assert_uint_eq(driver_usage(driver).corrupt_total, 1);
        end();
}
END_TEST

START_TEST(a_shorter_bundle_is_a_miss)
{
        struct driver_object objects[2];
        char name[POOL_NAME_MAX];

        begin_open();
        objects[0] = chain_object(1, 0, 100000);
        objects[1] = chain_object(1, 1, 100000);
        write_together(objects, 2);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 0, name));
        spoil_bundle(fake_pool_resize, fake_pool_size(fixture->pool, name) - 1);
        ck_assert_int_eq(read_together(objects, 2), TIER_E_MISS);
        ck_assert_int_eq(driver_read(driver, &objects[0]), 0);
        ck_assert_uint_eq(node_usage(node).stale_entries, 1);
        end();
}
END_TEST

START_TEST(a_longer_bundle_or_reply_harms_nobody)
{
        struct driver_object object = driver_object(1, 100000);

        begin_open();
        ck_assert_int_eq(driver_write(driver, &object), 0);
        spoil_bundle(fake_pool_resize, 200000);
        ck_assert_int_eq(driver_read(driver, &object), 0);
        fake_pool_long_replies(node->pool, 1, 1u << 20);
        ck_assert_int_eq(driver_read(driver, &object), 0);
        end();
}
END_TEST

START_TEST(a_read_that_fails_says_so_and_the_next_succeeds)
{
        struct driver_object object = driver_object(1, 100000);

        begin_open();
        ck_assert_int_eq(driver_write(driver, &object), 0);
        fake_pool_fail(node->pool, 1u << FAKE_POOL_GET, 1, -EIO);
        ck_assert_int_eq(driver_read(driver, &object), -EIO);
        ck_assert_uint_eq(driver_usage(driver).io_errors_total, 1);
        ck_assert_int_eq(driver_read(driver, &object), 0);
        end();
}
END_TEST

/* ---- puts that fail ---- */

static bool is_pool_empty(void *user)
{
        (void)user;
        return !n_bundles() && !driver_usage(driver).used_bytes;
}

START_TEST(a_put_whose_reply_is_lost_is_removed_later)
{
        struct driver_object object = driver_object(1, 100000);

        begin();
        node->options.deadline_ms = 50;
        node_open(fixture, 0);
        nodes_settle(fixture);
        fake_pool_lose_replies(node->pool, 1u << FAKE_POOL_PUT, 1);
        ck_assert_int_eq(driver_write(driver, &object), -ETIMEDOUT);
        ck_assert_uint_eq(n_bundles(), 1);
        ck_assert_uint_gt(driver_usage(driver).used_bytes, 100000);
        ck_assert_uint_eq(driver_usage(driver).objects, 0);
        nodes_run_until(fixture, is_pool_empty, NULL);
        end();
}
END_TEST

START_TEST(a_number_that_is_taken_is_not_written_over)
{
        struct driver_object first = driver_object(1, 1000), second = driver_object(2, 2000);
        struct bundle_id id = {.number = 2};
        char name[POOL_NAME_MAX], taken[POOL_NAME_MAX];

        begin_open();
        ck_assert_int_eq(driver_write(driver, &first), 0);
        ck_assert(fake_pool_name(fixture->pool, "bundle/", 0, name));
        ck_assert(bundle_name_parse(name, &id));
        id.number++;
        bundle_name(taken, &id);
        fake_pool_copy(fixture->pool, name, taken);
        ck_assert_int_eq(driver_write(driver, &second), 0);
        ck_assert_uint_eq(fake_pool_size(fixture->pool, taken),
                          fake_pool_size(fixture->pool, name));
        ck_assert_int_eq(driver_read(driver, &first), 0);
        ck_assert_int_eq(driver_read(driver, &second), 0);
        end();
}
END_TEST

static bool is_ready(void *user)
{
        (void)user;
        return node->n_ready;
}

START_TEST(a_full_pool_is_asked_again_after_a_while)
{
        struct driver_object object = driver_object(1, 10000);

        begin_open();
        nodes_settle(fixture);
        fake_pool_fail(node->pool, 1u << FAKE_POOL_PUT, 1, -ENOSPC);
        ck_assert_int_eq(driver_write(driver, &object), -ENOSPC);
        ck_assert_ptr_nonnull(strstr(node->notice, "full"));
        ck_assert_int_eq(driver_write(driver, &object), TIER_E_PAUSED);
        nodes_run_until(fixture, is_ready, NULL);
        ck_assert_int_eq(driver_write(driver, &object), 0);
        ck_assert(!node_usage(node).breaker_opened);
        end();
}
END_TEST

/* ---- caps ---- */

START_TEST(the_cap_counts_bundles_that_are_not_removed_yet)
{
        struct driver_object objects[2], more = driver_object(9, 600000);
        struct driver_request forget;

        begin();
        node->options.bytes = 1u << 20;
        node->options.deadline_ms = 300;
        node_open(fixture, 0);
        objects[0] = driver_object(0, 500000);
        objects[1] = driver_object(1, 500000);
        ck_assert_int_eq(driver_write(driver, &objects[0]), 0);
        ck_assert_int_eq(driver_write(driver, &objects[1]), 0);
        ck_assert_int_eq(driver_write(driver, &more), TIER_E_FULL);
        fake_pool_hold(node->pool, 1u << FAKE_POOL_REMOVE);
        driver_submit_forget(driver, &forget, &objects[0], false);
        while (!fake_pool_held(node->pool))
                uv_run(&driver->loop, UV_RUN_ONCE);
        ck_assert(!forget.is_done);
        ck_assert_int_eq(driver_write(driver, &more), TIER_E_FULL);
        /* The attempt fails: the forget ends, the bytes still count. */
        ck_assert_int_eq(driver_wait(&forget), 0);
        ck_assert_uint_gt(driver_usage(driver).used_bytes, 1000000);
        ck_assert_int_eq(driver_write(driver, &more), TIER_E_FULL);
        fake_pool_hold(node->pool, 0);
        while (!node->n_ready)
                uv_run(&driver->loop, UV_RUN_ONCE);
        ck_assert_int_eq(driver_write(driver, &objects[0]), 0);
        end();
}
END_TEST

START_TEST(the_index_has_a_cap_too)
{
        struct driver_object objects[4];

        begin();
        node->options.entries_max = 3;
        node_open(fixture, 0);
        for (uint32_t i = 0; i < 4; i++) {
                objects[i] = driver_object(i, 1000);
                ck_assert_int_eq(driver_write(driver, &objects[i]), i < 3 ? 0 : TIER_E_FULL);
        }
        ck_assert_int_eq(driver_forget(driver, &objects[0], false), 0);
        ck_assert_int_eq(driver_write(driver, &objects[3]), 0);
        end();
}
END_TEST

START_TEST(bandwidth_is_capped_in_both_directions)
{
        struct driver_object objects[3];
        uint64_t begun;

        begin();
        node->options.write_bytes_per_s = 5000000;
        node->options.read_bytes_per_s = 10000000;
        node_open(fixture, 0);
        for (uint32_t i = 0; i < 3; i++)
                objects[i] = driver_object(i, 1000000);
        begun = uv_hrtime();
        write_together(objects, 3); /* the third begins when two have been paid for */
        ck_assert_uint_ge(uv_hrtime() - begun, 380000000);
        begun = uv_hrtime();
        ck_assert_int_eq(read_together(objects, 3), 0);
        ck_assert_uint_ge(uv_hrtime() - begun, 180000000);
        ck_assert_uint_lt(uv_hrtime() - begun, patience_ns(3000000000));
        end();
}
END_TEST

/* ---- trouble ---- */

static bool is_breaker_open(void *user)
{
        (void)user;
        return node_usage(node).breaker_open;
}

static bool is_breaker_closed(void *user)
{
        (void)user;
        return !node_usage(node).breaker_open;
}

START_TEST(breaker_opens_probes_and_closes)
{
        struct driver_object object = driver_object(1, 10000), more = driver_object(2, 10000);
        struct driver_request request;
        uint64_t gets;

        begin();
        node->options.deadline_ms = 50;
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(driver, &object), 0);
        nodes_settle(fixture);
        fake_pool_stop(node->pool, true);
        nodes_run_until(fixture, is_breaker_open, NULL);
        ck_assert_uint_eq(node_usage(node).breaker_opened, 1);
        ck_assert(driver_usage(driver).degraded);
        ck_assert_ptr_nonnull(strstr(node->notice, "out of reach"));
        ck_assert_int_eq(driver_submit_read(driver, &request, &object, 0), -EHOSTDOWN);
        ck_assert_int_eq(driver_write(driver, &more), TIER_E_PAUSED);
        /* A forget does not wait for a pool that is down. */
        ck_assert_int_eq(driver_forget(driver, &object, false), 0);
        gets = requests(FAKE_POOL_GET);
        while (requests(FAKE_POOL_GET) == gets)
                uv_run(&driver->loop, UV_RUN_ONCE);
        ck_assert(node_usage(node).breaker_open);
        fake_pool_stop(node->pool, false);
        nodes_run_until(fixture, is_breaker_closed, NULL);
        ck_assert_int_eq(node->n_ready, 1);
        ck_assert(!driver_usage(driver).degraded);
        ck_assert_int_eq(driver_write(driver, &more), 0);
        ck_assert_int_eq(driver_read(driver, &more), 0);
        nodes_settle(fixture);
        ck_assert_uint_eq(n_bundles(), 1); /* what was forgotten has gone */
        end();
}
END_TEST

static bool are_all_sent(void *user)
{
        return requests(FAKE_POOL_LIST) >= *(uint64_t *)user;
}

START_TEST(fewer_requests_are_in_flight_after_some_timed_out)
{
        static struct driver_request writes[8];
        static struct driver_object objects[8];
        uint64_t lists;

        begin();
        node->options.queue_depth = 8;
        node_open(fixture, 0);
        nodes_settle(fixture);
        fake_pool_lose_replies(node->pool, 1u << FAKE_POOL_PUT, 2);
        for (uint32_t i = 0; i < 8; i++)
                objects[i] = driver_object(i, 10000);
        ck_assert_int_eq(driver_write(driver, &objects[0]), -ETIMEDOUT);
        ck_assert_int_eq(driver_write(driver, &objects[1]), -ETIMEDOUT);
        fake_pool_hold(node->pool, 1u << FAKE_POOL_PUT);
        for (uint32_t i = 0; i < 8; i++)
                ck_assert_int_eq(driver_submit_write(driver, &writes[i], &objects[i], i << 16), 0);
        lists = requests(FAKE_POOL_LIST) + 2;
        nodes_run_until(fixture, are_all_sent, &lists);
        ck_assert_uint_ge(fake_pool_held(node->pool), 1);
        ck_assert_uint_le(fake_pool_held(node->pool), 5);
        fake_pool_hold(node->pool, 0);
        for (uint32_t i = 0; i < 8; i++)
                ck_assert_int_eq(driver_wait(&writes[i]), 0);
        end();
}
END_TEST

START_TEST(what_waits_when_the_breaker_opens_fails)
{
        static struct driver_request writes[12];
        static struct driver_object objects[12];

        begin();
        node->options.deadline_ms = 50;
        node->options.queue_depth = 1;
        node_open(fixture, 0);
        nodes_settle(fixture);
        fake_pool_stop(node->pool, true);
        for (uint32_t i = 0; i < 12; i++) {
                objects[i] = driver_object(i, 10000);
                ck_assert_int_eq(driver_submit_write(driver, &writes[i], &objects[i], i << 16), 0);
        }
        for (uint32_t i = 0; i < 12; i++)
                ck_assert_int_lt(driver_wait(&writes[i]), 0);
        ck_assert_int_eq(writes[11].result, -EHOSTDOWN);
        fake_pool_stop(node->pool, false);
        nodes_run_until(fixture, is_breaker_closed, NULL);
        end();
}
END_TEST

START_TEST(a_missing_bucket_costs_nothing_that_is_known)
{
        struct driver_object object = driver_object(1, 10000);

        begin_open();
        ck_assert_int_eq(driver_write(driver, &object), 0);
        nodes_settle(fixture);
        fake_pool_fail(node->pool, FAKE_POOL_ANY, UINT32_MAX, -ENODEV);
        ck_assert_int_lt(driver_read(driver, &object), 0); /* no miss */
        nodes_run_until(fixture, is_breaker_open, NULL);
        ck_assert(driver_usage(driver).degraded);
        fake_pool_fail(node->pool, 0, 0, 0);
        nodes_run_until(fixture, is_breaker_closed, NULL);
        ck_assert_int_eq(driver_read(driver, &object), 0);
        ck_assert_uint_eq(n_bundles(), 1);
        end();
}
END_TEST

START_TEST(a_pool_that_is_down_from_the_start_is_no_failure)
{
        struct driver_object object = driver_object(1, 10000);

        begin();
        node->options.deadline_ms = 50;
        node_open(fixture, 0);
        ck_assert_int_eq(driver_write(driver, &object), 0);
        node_close(fixture, 0);
        ck_assert_uint_eq(node_open_stopped(fixture, 0), 1);
        nodes_run_until(fixture, is_breaker_open, NULL);
        fake_pool_stop(node->pool, false);
        nodes_run_until(fixture, is_breaker_closed, NULL);
        object.place = driver_find(driver, &object)->place;
        ck_assert_int_eq(driver_read(driver, &object), 0);
        end();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/remote");
        TCase *tcase = tcase_create("remote");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_prompt_becomes_one_bundle_and_one_get);
        tcase_add_test(tcase, prompts_do_not_share_a_bundle);
        tcase_add_test(tcase, another_layout_or_domain_begins_another_bundle);
        tcase_add_test(tcase, a_bundle_is_no_larger_than_was_asked_for);
        tcase_add_test(tcase, parts_that_are_cancelled_are_dead_bytes_of_their_bundle);
        tcase_add_test(tcase, what_fits_no_bundle_is_refused);
        tcase_add_test(tcase, neighbours_are_read_together_and_others_apart);
        tcase_add_test(tcase, pieces_are_read_alone);
        tcase_add_test(tcase, bundles_that_wait_for_an_encoder_all_get_there);
        tcase_add_test(tcase, memory_of_encoded_bundles_has_a_cap);
        tcase_add_test(tcase, encoded_objects_come_back_whole_and_in_pieces);
        tcase_add_test(tcase, a_flipped_bit_is_corrupt_and_harms_no_neighbour);
        tcase_add_test(tcase, a_shorter_bundle_is_a_miss);
        tcase_add_test(tcase, a_longer_bundle_or_reply_harms_nobody);
        tcase_add_test(tcase, a_read_that_fails_says_so_and_the_next_succeeds);
        tcase_add_test(tcase, a_put_whose_reply_is_lost_is_removed_later);
        tcase_add_test(tcase, a_number_that_is_taken_is_not_written_over);
        tcase_add_test(tcase, a_full_pool_is_asked_again_after_a_while);
        tcase_add_test(tcase, the_cap_counts_bundles_that_are_not_removed_yet);
        tcase_add_test(tcase, the_index_has_a_cap_too);
        tcase_add_test(tcase, bandwidth_is_capped_in_both_directions);
        tcase_add_test(tcase, breaker_opens_probes_and_closes);
        tcase_add_test(tcase, fewer_requests_are_in_flight_after_some_timed_out);
        tcase_add_test(tcase, what_waits_when_the_breaker_opens_fails);
        tcase_add_test(tcase, a_missing_bucket_costs_nothing_that_is_known);
        tcase_add_test(tcase, a_pool_that_is_down_from_the_start_is_no_failure);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
