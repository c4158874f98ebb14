// SPDX-License-Identifier: Apache-2.0
/*
 * The cache and its transfers over a tier that fails, waits and lies on demand: what is
 * held stays, what is old never comes back, and nothing is left waiting.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache.h"
#include "tests/support/fake_tier.h"

#define PIECE_BYTES (UINT64_C(8) << 20)
#define OBJECT      (UINT64_C(1) << 20)

static uv_loop_t loop;
static struct cache cache;
static struct metrics metrics;
static struct fake_store *store;
static unsigned n_forgotten;

static void spin(unsigned turns)
{
        while (turns--) {
                uv_run(&loop, UV_RUN_NOWAIT);
                usleep(200);
        }
}

/* Runs the loop until @condition holds; fails the test after ten seconds. */
#define wait_until(condition)                                                                      \
        do {                                                                                       \
                uint64_t end = uv_hrtime() + UINT64_C(10000000000);                                \
                while (!(condition)) {                                                             \
                        uv_run(&loop, UV_RUN_NOWAIT);                                              \
                        ck_assert_msg(uv_hrtime() < end, "never: " #condition);                    \
                        usleep(100);                                                               \
                }                                                                                  \
        } while (0)

static void setup(void)
{
        static const uint8_t boot_id[16] = {1};
        struct host_options options = {
                .total_bytes = 2 * PIECE_BYTES,
                .piece_bytes = PIECE_BYTES,
                .page_bytes = 4096,
        };

        memset(&cache, 0, sizeof(cache));
        memset(&metrics, 0, sizeof(metrics));
        n_forgotten = 0;
        ck_assert(!uv_loop_init(&loop));
        ck_assert(!fake_store_new(&store, 64 * OBJECT));
        ck_assert(!presence_table_new(&cache.presence, 1000, boot_id, 1000000));
        ck_assert(!index_new(&cache.index, 1000, cache.presence));
        ck_assert(!fake_tier_open(&cache.nvme, &loop, store));
        ck_assert(!host_pool_new(&cache.host, &loop, &options));
        cache.loop = &loop;
        cache.metrics = &metrics;
        ck_assert(!cache_init(&cache));
        cache.write_policy = PLACEMENT_WRITE_STORE;
        wait_until(host_n_arenas(cache.host) == 2);
}

static void on_closed(void *user)
{
        *(bool *)user = true;
}

static void teardown(void)
{
        bool nvme_closed = false, host_closed = false;

        wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
        cache_deinit(&cache);
        cache.nvme->ops.close(cache.nvme, on_closed, &nvme_closed);
        host_pool_close(cache.host, on_closed, &host_closed);
        wait_until(nvme_closed && host_closed);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert(!uv_loop_close(&loop));
        index_free(cache.index);
        presence_table_free(cache.presence);
        fake_store_free(store);
}

static struct object_key key_of(uint32_t n)
{
        struct object_key key = {.group = 0, .shard = 0};

        memset(key.layout.bytes, 7, sizeof(key.layout.bytes));
        memcpy(key.boundary.bytes, &n, sizeof(n));
        key.boundary.bytes[31] = 1;
        return key;
}

static struct index_new_object entry_of(uint32_t n, uint64_t bytes)
{
        struct object_key key = key_of(n);
        struct index_new_object entry = {
                .digest = key.boundary,
                .parent_unknown = true,
                .boundary_tokens = 256,
                .raw_bytes = (uint32_t)bytes,
        };

        ck_assert(!index_layout(cache.index, 0, &key.layout, &entry.layout));
        return entry;
}

static struct index_object *find(uint32_t n)
{
        struct index_new_object entry = entry_of(n, 1);
        struct index_boundary *boundary =
                index_find_boundary(cache.index, entry.layout, &entry.digest);

        return boundary ? index_find_object(cache.index, boundary, 0, 0) : NULL;
}

static void fill(struct host_copy *copy, uint8_t value)
{
        uint64_t left = copy->raw_bytes;

        for (uint32_t i = 0; i < copy->n_extents; i++) {
                uint64_t n = copy->extents[i].length < left ? copy->extents[i].length : left;

                memset(host_address(cache.host, &copy->extents[i]), value, n);
                left -= n;
        }
}

static uint8_t first_byte(const struct host_copy *copy)
{
        return *(uint8_t *)host_address(cache.host, &copy->extents[0]);
}

static void on_forgotten(void *user, int result)
{
        (void)user;
        ck_assert_int_eq(result, 0);
        n_forgotten++;
}

/* Stores object @n full of @value; returns what cache_publish() said. */
static int put(uint32_t n, uint8_t value, bool replace, bool *ret_forgetting)
{
        struct object_key key = key_of(n);
        struct index_new_object entry = entry_of(n, OBJECT);
        struct host_copy *copy;
        bool forgetting;
        int r;

        r = cache_new_copy(&cache, &key, OBJECT, HOST_COPY_WRITING, UINT32_MAX, false, &copy);
        if (r)
                return r;
        fill(copy, value);
        copy->state = HOST_COPY_READY;
        r = cache_publish(&cache, copy, &entry, replace, on_forgotten, NULL,
                          ret_forgetting ? ret_forgetting : &forgetting);
        host_copy_unuse(&cache.copies, copy);
        return r;
}

static struct host_copy *host_copy_of(uint32_t n)
{
        struct index_object *object = find(n);

        return object && object->host != INDEX_NONE ? host_copy_at(&cache.copies, object->host)
                                                    : NULL;
}

static bool is_below(uint32_t n)
{
        struct index_object *object = find(n);

        return object && object->place.claim;
}

/* Brings object @n up; the copy is returned with one use held. */
static struct host_copy *promote(uint32_t n)
{
        struct index_object *object = find(n);
        struct object_key key = key_of(n);
        struct host_copy *copy;

        ck_assert_ptr_nonnull(object);
        ck_assert_int_eq(cache_new_copy(&cache, &key, object->raw_bytes, HOST_COPY_ARRIVING,
                                        UINT32_MAX, false, &copy),
                         0);
        ck_assert_int_eq(transfer_up(&cache, object, copy, NULL), 0);
        return copy;
}

/* Brings one piece of object @n into a copy that nobody else knows. */
static struct host_copy *fetch_piece(uint32_t n, uint32_t piece)
{
        struct index_object *object = find(n);
        struct object_key key = key_of(n);
        struct piece_set pieces = {{UINT64_C(1) << piece}};
        struct host_copy *copy;

        ck_assert_ptr_nonnull(object);
        ck_assert_int_eq(cache_new_copy(&cache, &key, piece_set_bytes(&pieces, OBJECT),
                                        HOST_COPY_ARRIVING, UINT32_MAX, false, &copy),
                         0);
        ck_assert_int_eq(transfer_up(&cache, object, copy, &pieces), 0);
        return copy;
}

/* Object 1, in the tier alone. */
static void put_below(uint8_t value)
{
        ck_assert_int_eq(put(1, value, false, NULL), 0);
        wait_until(is_below(1));
        cache_drop_host(&cache, find(1), METRICS_FOR_SPACE);
}

static uint64_t tier_objects(void)
{
        struct tier_usage usage;

        cache.nvme->ops.usage(cache.nvme, &usage);
        return usage.objects;
}

START_TEST(what_is_stored_goes_down_and_comes_back_equal)
{
        struct host_copy *copy;

        ck_assert_int_eq(put(1, 0x5a, false, NULL), 0);
        wait_until(is_below(1));
        cache_drop_host(&cache, find(1), METRICS_FOR_SPACE);
        ck_assert_ptr_null(host_copy_of(1));
        copy = promote(1);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_READY);
        ck_assert_uint_eq(first_byte(copy), 0x5a);
        ck_assert_ptr_eq(host_copy_of(1), copy);
        host_copy_unuse(&cache.copies, copy);
}
END_TEST

START_TEST(pieces_come_up_for_who_asked_and_are_never_published)
{
        struct host_copy *copy, *other;

        put_below(0x5a);
        copy = fetch_piece(1, 3);
        ck_assert_ptr_null(transfer_arriving(&cache, find(1)));
        other = fetch_piece(1, 3);
        ck_assert_ptr_ne(copy, other);
        wait_until(copy->state != HOST_COPY_ARRIVING && other->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_READY);
        ck_assert_uint_eq(first_byte(copy), 0x5a);
        ck_assert_uint_eq(copy->object, INDEX_NONE);
        ck_assert_ptr_null(copy->checksums);
        ck_assert_ptr_null(host_copy_of(1));
        ck_assert(is_below(1));
        ck_assert_uint_eq(metrics.page_loads_read_bytes_total, 2 * CHECKSUM_PIECE_BYTES);
        host_copy_unuse(&cache.copies, copy);
        host_copy_unuse(&cache.copies, other);
}
END_TEST

START_TEST(a_place_is_in_use_until_the_last_read_of_it_ends)
{
        struct host_copy *copies[3];

        put_below(1);
        fake_tier_hold(cache.nvme, true);
        copies[0] = fetch_piece(1, 0);
        copies[1] = promote(1);
        copies[2] = fetch_piece(1, 1);
        ck_assert_ptr_eq(transfer_arriving(&cache, find(1)), copies[1]);
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert(find(1)->flags & INDEX_READING);
                fake_tier_release(cache.nvme, 1);
                wait_until(copies[i]->state == HOST_COPY_READY);
        }
        ck_assert(!(find(1)->flags & INDEX_READING));
        ck_assert_ptr_eq(host_copy_of(1), copies[1]);
        for (uint32_t i = 0; i < 3; i++)
                host_copy_unuse(&cache.copies, copies[i]);
        fake_tier_hold(cache.nvme, false);
}
END_TEST

START_TEST(a_corrupt_piece_drops_the_object_from_the_tier)
{
        struct host_copy *copy;

        put_below(1);
        fake_tier_fail_reads(cache.nvme, 1, TIER_E_CORRUPT);
        copy = fetch_piece(1, 2);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_FAILED);
        ck_assert_ptr_null(find(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_NVME], 1);
        host_copy_unuse(&cache.copies, copy);
}
END_TEST

/* Also when they are bad: the new generation has nothing to do with them. */
START_TEST(pieces_of_a_replaced_generation_serve_who_waits_and_touch_nothing)
{
        struct host_copy *good, *bad;

        put_below(1);
        fake_tier_hold(cache.nvme, true);
        good = fetch_piece(1, 0);
        fake_tier_fail_reads(cache.nvme, 1, TIER_E_CORRUPT);
        bad = fetch_piece(1, 0);
        ck_assert_int_eq(put(1, 2, true, NULL), 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(good->state != HOST_COPY_ARRIVING && bad->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(good->state, HOST_COPY_READY);
        ck_assert_uint_eq(first_byte(good), 1);
        ck_assert_int_eq(bad->state, HOST_COPY_FAILED);
        wait_until(is_below(1));
        ck_assert_uint_eq(first_byte(host_copy_of(1)), 2);
        host_copy_unuse(&cache.copies, good);
        host_copy_unuse(&cache.copies, bad);
}
END_TEST

START_TEST(room_is_made_by_evicting_the_oldest_but_never_what_is_leased)
{
        struct host_copy *leased;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        ck_assert_int_eq(put(0, 0xee, false, NULL), 0);
        leased = host_copy_of(0);
        host_copy_lease(&cache.copies, leased);
        for (uint32_t n = 1; n < 40; n++)
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
        ck_assert_ptr_eq(host_copy_of(0), leased);
        ck_assert_uint_eq(first_byte(leased), 0xee);
        ck_assert_ptr_null(host_copy_of(1));
        ck_assert_ptr_nonnull(host_copy_of(39));
        host_copy_unlease(&cache.copies, leased);
}
END_TEST

START_TEST(what_is_leased_does_not_stay_at_the_old_end)
{
        struct host_copy *copy;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        for (uint32_t n = 0; n < 12; n++)
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
        copy = host_copy_of(0);
        host_copy_lease(&cache.copies, copy);
        for (uint32_t n = 0; n < 12; n++)
                index_boundary_at(cache.index, find(n)->boundary)->touched_s = 0;
        ck_assert_uint_eq(
                index_boundary_id(cache.index, placement_next(cache.index, INDEX_HOST, NULL)),
                find(0)->boundary);
        for (uint32_t n = 12; host_copy_of(1); n++)
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
        ck_assert_ptr_eq(host_copy_of(0), copy);
        ck_assert_uint_ne(
                index_boundary_id(cache.index, placement_next(cache.index, INDEX_HOST, NULL)),
                find(0)->boundary);
        host_copy_unlease(&cache.copies, copy);
}
END_TEST

START_TEST(all_leased_is_busy_and_holds_nothing)
{
        struct host_copy *leased[16];
        struct host_usage before, after;
        uint32_t n = 0;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        while (n < 16 && !put(n, 1, false, NULL)) {
                leased[n] = host_copy_of(n);
                host_copy_lease(&cache.copies, leased[n]);
                n++;
        }
        host_usage(cache.host, &before);
        ck_assert_int_eq(put(99, 1, false, NULL), CACHE_E_BUSY);
        host_usage(cache.host, &after);
        ck_assert_uint_eq(before.used_bytes, after.used_bytes);
        while (n--)
                host_copy_unlease(&cache.copies, leased[n]);
}
END_TEST

START_TEST(first_commit_wins)
{
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        ck_assert_int_eq(put(1, 2, false, NULL), CACHE_E_EXISTS);
        ck_assert_uint_eq(first_byte(host_copy_of(1)), 1);
}
END_TEST

START_TEST(a_replaced_generation_in_flight_never_enters_the_catalog)
{
        bool forgetting = false;

        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(fake_tier_held(cache.nvme) == 1);
        ck_assert_int_eq(put(1, 2, true, &forgetting), 0);
        ck_assert_msg(forgetting, "the write-down is at the tier: its end must be waited for");
        ck_assert_uint_eq(n_forgotten, 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1 && is_below(1));
        ck_assert_uint_eq(tier_objects(), 1);
        ck_assert_uint_eq(first_byte(host_copy_of(1)), 2);
}
END_TEST

START_TEST(a_replaced_generation_that_got_in_is_forgotten_before_the_answer)
{
        bool forgetting = false;

        fake_tier_ask_early(cache.nvme, true);
        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(fake_tier_held(cache.nvme) == 1);
        ck_assert_int_eq(put(1, 2, true, &forgetting), 0);
        ck_assert(forgetting);
        fake_tier_release(cache.nvme, 1); /* the write; the forget is held */
        spin(20);
        ck_assert_uint_eq(n_forgotten, 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1 && is_below(1));
        ck_assert_uint_eq(tier_objects(), 1);
}
END_TEST

START_TEST(every_replacement_waits_for_the_write_of_the_first_generation)
{
        bool forgetting = false;

        fake_tier_ask_early(cache.nvme, true);
        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(fake_tier_held(cache.nvme) == 1);
        ck_assert_int_eq(put(1, 2, true, &forgetting), 0);
        ck_assert(forgetting);
        ck_assert_int_eq(put(1, 3, true, &forgetting), 0);
        ck_assert_msg(forgetting, "the first generation's write has not ended");
        spin(20);
        ck_assert_uint_eq(n_forgotten, 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 2 && is_below(1));
        ck_assert_uint_eq(tier_objects(), 1);
        ck_assert_uint_eq(first_byte(host_copy_of(1)), 3);
}
END_TEST

START_TEST(a_generation_that_was_dropped_in_flight_is_gone_before_the_answer)
{
        bool forgetting = false;

        fake_tier_ask_early(cache.nvme, true);
        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(fake_tier_held(cache.nvme) == 1);
        cache_drop(&cache, find(1), METRICS_RECLAIMED);
        ck_assert_int_eq(put(1, 2, true, &forgetting), 0);
        ck_assert_msg(forgetting, "the dropped generation's write has not ended");
        fake_tier_release(cache.nvme, 1); /* the write; the forget is held */
        spin(20);
        ck_assert_uint_eq(n_forgotten, 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1 && is_below(1));
        ck_assert_uint_eq(tier_objects(), 1);
}
END_TEST

START_TEST(a_write_that_is_cancelled_leaves_older_deletes_to_be_waited_for)
{
        bool forgetting = false;

        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(is_below(1) && transfers_are_idle(&cache.transfers));
        cache_drop(&cache, find(1), METRICS_FOR_SPACE);
        wait_until(!cache.n_forgetting);
        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(put(1, 2, false, NULL), 0);
        wait_until(fake_tier_held(cache.nvme) == 1);
        ck_assert_int_eq(put(1, 3, true, &forgetting), 0);
        ck_assert(forgetting);
        fake_tier_release(cache.nvme, 1); /* the write of the second generation */
        wait_until(cache.n_syncing || n_forgotten);
        ck_assert_uint_eq(n_forgotten, 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1 && is_below(1));
}
END_TEST

START_TEST(after_a_write_that_failed_a_sync_tells_whether_its_entry_can_come_back)
{
        bool forgetting = false;

        fake_tier_fail_writes(cache.nvme, 1, -EIO);
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(metrics.tier_io_errors_total[METRICS_NVME] == 1);
        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(put(1, 2, true, &forgetting), 0);
        ck_assert(forgetting);
        spin(20);
        ck_assert_uint_eq(n_forgotten, 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1 && is_below(1));
}
END_TEST

START_TEST(a_stored_generation_is_durably_gone_before_the_answer)
{
        bool forgetting = false;

        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(is_below(1));
        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(put(1, 2, true, &forgetting), 0);
        ck_assert(forgetting);
        spin(20);
        ck_assert_uint_eq(n_forgotten, 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1);
}
END_TEST

START_TEST(a_generation_that_was_dropped_before_is_durably_gone_before_the_answer)
{
        bool forgetting = false;

        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(is_below(1));
        wait_until(transfers_are_idle(&cache.transfers));
        cache_drop(&cache, find(1), METRICS_FOR_SPACE);
        wait_until(!cache.n_forgetting);
        ck_assert_int_eq(put(1, 2, true, &forgetting), 0);
        ck_assert(forgetting);
        ck_assert_uint_eq(n_forgotten, 0);
        wait_until(n_forgotten == 1 && !cache.n_syncing);
        /* Nothing has been dropped since: nothing to wait for. */
        ck_assert_int_eq(put(2, 3, true, &forgetting), 0);
        ck_assert(!forgetting);
}
END_TEST

START_TEST(a_promotion_of_an_older_generation_is_not_published)
{
        struct host_copy *copy;

        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(is_below(1));
        cache_drop_host(&cache, find(1), METRICS_FOR_SPACE);
        fake_tier_hold(cache.nvme, true);
        copy = promote(1);
        ck_assert_int_eq(put(1, 2, true, NULL), 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_uint_eq(copy->object, INDEX_NONE);
        ck_assert_uint_eq(first_byte(host_copy_of(1)), 2);
        host_copy_unuse(&cache.copies, copy);
}
END_TEST

START_TEST(corrupt_bytes_are_a_miss_and_leave_the_tier)
{
        struct host_copy *copy;

        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(is_below(1));
        cache_drop_host(&cache, find(1), METRICS_FOR_SPACE);
        fake_tier_corrupt(cache.nvme, find(1)->place);
        copy = promote(1);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_FAILED);
        ck_assert_int_eq(copy->failure, TIER_E_CORRUPT);
        ck_assert_ptr_null(find(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_NVME], 1);
        host_copy_unuse(&cache.copies, copy);
        wait_until(!cache.n_forgetting);
        ck_assert_uint_eq(tier_objects(), 0);
}
END_TEST

START_TEST(a_failing_write_leaves_the_object_in_host_memory)
{
        fake_tier_fail_writes(cache.nvme, 1, -EIO);
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert(!is_below(1));
        ck_assert_ptr_nonnull(host_copy_of(1));
        ck_assert_uint_eq(metrics.tier_io_errors_total[METRICS_NVME], 1);
        /* The next one goes down as if nothing had been. */
        ck_assert_int_eq(put(2, 2, false, NULL), 0);
        wait_until(is_below(2));
}
END_TEST

START_TEST(a_full_tier_makes_room_by_its_oldest)
{
        for (uint32_t n = 0; n < 80; n++) {
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
                wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
        }
        ck_assert(!is_below(0));
        ck_assert(is_below(79));
        ck_assert_uint_gt(metrics.removed_objects_total[METRICS_NVME][METRICS_FOR_SPACE], 10);
}
END_TEST

START_TEST(full_in_pieces_evicts_something_all_the_same)
{
        for (uint32_t n = 0; n < 4; n++)
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
        wait_until(is_below(3));
        fake_tier_set_full(cache.nvme, true);
        ck_assert_int_eq(put(9, 9, false, NULL), 0);
        wait_until(metrics.removed_objects_total[METRICS_NVME][METRICS_FOR_SPACE] > 0);
        fake_tier_set_full(cache.nvme, false);
        wait_until(is_below(9));
}
END_TEST

START_TEST(write_behind_stops_when_paused_and_goes_on_when_ready)
{
        fake_tier_set_paused(cache.nvme, true);
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(cache.transfers.paused);
        spin(20);
        ck_assert(!is_below(1));
        /* Host service goes on. */
        ck_assert_int_eq(put(2, 2, false, NULL), 0);
        fake_tier_set_paused(cache.nvme, false);
        cache.transfers.paused = false; /* what the daemon does in on_ready */
        transfers_pump(&cache);
        wait_until(is_below(1) && is_below(2));
}
END_TEST

START_TEST(a_writer_whose_checksums_do_not_match_is_dropped)
{
        struct checksum_list *list = calloc(1, sizeof(*list));
        struct host_copy *copy;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        copy = host_copy_of(1);
        list->n_pieces = checksum_n_pieces(OBJECT);
        ck_assert_int_eq(transfer_verify_written(&cache, copy, list), 0);
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert_ptr_null(find(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_HOST], 1);
}
END_TEST

/* Under "store" the write-down has begun to hash before the writer's list is looked at. */
static void verify_while_it_goes_down(bool right)
{
        struct checksum_list *list = calloc(1, sizeof(*list));
        struct checksum_segment segments[HOST_EXTENTS_MAX];
        struct object_key key = key_of(1);
        struct host_copy *copy;

        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        copy = host_copy_of(1);
        ck_assert(copy->hashing);
        checksum_compute(list, &key, OBJECT, segments,
                         host_copy_checksum_segments(&cache.copies, copy, segments));
        list->pieces[0] ^= !right;
        ck_assert_int_eq(transfer_verify_written(&cache, copy, list), 0);
        wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
        ck_assert_uint_eq(metrics.checksum_bytes_total, OBJECT);
}

START_TEST(a_written_list_costs_no_second_hash)
{
        verify_while_it_goes_down(true);
        ck_assert(is_below(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_HOST], 0);
}
END_TEST

START_TEST(a_wrong_written_list_keeps_the_object_out_of_the_tier)
{
        verify_while_it_goes_down(false);
        ck_assert_ptr_null(find(1));
        ck_assert_uint_eq(tier_objects(), 0);
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_HOST], 1);
}
END_TEST

START_TEST(a_stop_ends_the_writing)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        for (uint32_t n = 0; n < 12; n++)
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
        fake_tier_hold(cache.nvme, true);
        transfers_drain(&cache);
        wait_until(fake_tier_held(cache.nvme));
        transfers_stop(&cache);
        fake_tier_hold(cache.nvme, false);
        wait_until(transfers_are_idle(&cache.transfers));
        spin(10);
        ck_assert(transfers_are_idle(&cache.transfers));
        ck_assert(!TAILQ_EMPTY(&cache.copies.dirty));
        ck_assert_uint_ge(tier_objects(), 1);
}
END_TEST

START_TEST(a_stop_ends_what_waits_for_the_tier)
{
        fake_tier_set_paused(cache.nvme, true);
        ck_assert_int_eq(put(1, 1, false, NULL), 0);
        wait_until(cache.transfers.paused);
        ck_assert(!transfers_are_idle(&cache.transfers));
        transfers_stop(&cache);
        ck_assert(transfers_are_idle(&cache.transfers));
        ck_assert_uint_eq(cache.transfers.down_bytes, 0);
}
END_TEST

START_TEST(a_drain_writes_the_newest_and_does_not_push_it_out_again)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        for (uint32_t n = 0; n < 8; n++)
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
        ck_assert_uint_eq(tier_objects(), 0);
        transfers_drain(&cache);
        wait_until(transfers_are_idle(&cache.transfers) && TAILQ_EMPTY(&cache.copies.dirty));
        for (uint32_t n = 0; n < 8; n++)
                ck_assert(is_below(n));
}
END_TEST

START_TEST(the_cold_end_is_written_before_it_is_evicted)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        for (uint32_t n = 0; n < 64; n++) {
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
                wait_until(transfers_are_idle(&cache.transfers));
        }
        ck_assert_uint_eq(metrics.host_dropped_objects_total, 0);
        ck_assert(is_below(20));
}
END_TEST

/* ---- a layout with states: group 1 ---- */

static struct index_object *find_part(uint32_t n, uint16_t group)
{
        struct index_new_object entry = entry_of(n, 1);
        struct index_boundary *boundary =
                index_find_boundary(cache.index, entry.layout, &entry.digest);

        return boundary ? index_find_object(cache.index, boundary, group, 0) : NULL;
}

/* KV or state of boundary @n, which hangs on @parent (0: a root). */
static void put_part(uint32_t n, uint32_t parent, uint16_t group)
{
        struct index_new_object entry = entry_of(n, OBJECT);
        struct object_key key = key_of(n);
        struct host_copy *copy;
        bool forgetting;

        placement_learn_groups(cache.index, entry.layout, 1u << 1);
        key.group = entry.group = entry.cell = group;
        entry.boundary_tokens = 256 * (n % 100);
        entry.parent_unknown = false;
        if (parent)
                entry.parent = key_of(parent).boundary;
        ck_assert_int_eq(cache_new_copy(&cache, &key, OBJECT, HOST_COPY_WRITING, UINT32_MAX, false,
                                        &copy),
                         0);
        fill(copy, (uint8_t)n);
        copy->state = HOST_COPY_READY;
        ck_assert_int_eq(cache_publish(&cache, copy, &entry, false, on_forgotten, NULL,
                                       &forgetting),
                         0);
        host_copy_unuse(&cache.copies, copy);
}

static void put_chain(uint32_t first, uint32_t last)
{
        for (uint32_t n = first; n <= last; n++)
                put_part(n, n == first ? 0 : n - 1, 0);
        put_part(last, last - 1, 1);
}

START_TEST(kv_without_its_state_goes_before_older_states)
{
        cache.write_policy = PLACEMENT_WRITE_OFF;
        put_chain(1, 3);
        put_chain(101, 105);
        cache_drop_host(&cache, find_part(105, 1), METRICS_UNREADABLE);
        put_chain(201, 208);
        ck_assert_ptr_nonnull(find_part(3, 1));
        ck_assert_ptr_nonnull(find_part(1, 0));
        ck_assert_ptr_null(find_part(105, 0));
        ck_assert_ptr_nonnull(find_part(208, 1));
}
END_TEST

START_TEST(a_leased_state_stays_and_its_kv_with_it)
{
        struct host_copy *leased;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        put_chain(1, 3);
        leased = host_copy_at(&cache.copies, find_part(3, 1)->host);
        host_copy_lease(&cache.copies, leased);
        for (uint32_t n = 101; n < 1000; n += 100)
                put_chain(n, n + 3);
        for (uint32_t n = 1; n <= 3; n++)
                ck_assert_ptr_nonnull(find_part(n, 0));
        ck_assert_ptr_nonnull(find_part(3, 1));
        ck_assert_ptr_null(find_part(104, 1));
        host_copy_unlease(&cache.copies, leased);
}
END_TEST

START_TEST(a_cold_state_is_written_with_the_kv_that_it_makes_usable)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        for (uint32_t n = 101; n < 1200; n += 100) {
                put_chain(n, n + 3);
                wait_until(transfers_are_idle(&cache.transfers));
        }
        ck_assert_uint_eq(metrics.host_dropped_objects_total, 0);
        for (uint32_t n = 101; n <= 104; n++)
                ck_assert(find_part(n, 0) && find_part(n, 0)->place.claim);
        ck_assert(find_part(104, 1) && find_part(104, 1)->place.claim);
}
END_TEST

START_TEST(what_is_dead_is_not_drained)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        put_chain(1, 3);
        put_chain(101, 103);
        cache_drop_host(&cache, find_part(103, 1), METRICS_UNREADABLE);
        transfers_drain(&cache);
        wait_until(transfers_are_idle(&cache.transfers) && TAILQ_EMPTY(&cache.copies.dirty));
        ck_assert_uint_eq(tier_objects(), 4);
        ck_assert(find_part(3, 1)->place.claim && !find_part(102, 0)->place.claim);
}
END_TEST

START_TEST(what_was_never_used_since_the_start_makes_room_below)
{
        for (uint32_t n = 0; n < 80; n++) {
                ck_assert_int_eq(put(n, (uint8_t)n, false, NULL), 0);
                wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
                for (uint32_t i = 0; i <= n; i++)
                        if (find(i))
                                index_boundary_at(cache.index, find(i)->boundary)->touched_s =
                                        INDEX_NEVER;
        }
        ck_assert_uint_eq(metrics.tier_io_errors_total[METRICS_NVME], 0);
        ck_assert(is_below(79));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache");
        TCase *tcase = tcase_create("cache");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, what_is_stored_goes_down_and_comes_back_equal);
        tcase_add_test(tcase, pieces_come_up_for_who_asked_and_are_never_published);
        tcase_add_test(tcase, a_place_is_in_use_until_the_last_read_of_it_ends);
        tcase_add_test(tcase, a_corrupt_piece_drops_the_object_from_the_tier);
        tcase_add_test(tcase, pieces_of_a_replaced_generation_serve_who_waits_and_touch_nothing);
        tcase_add_test(tcase, room_is_made_by_evicting_the_oldest_but_never_what_is_leased);
        tcase_add_test(tcase, what_is_leased_does_not_stay_at_the_old_end);
        tcase_add_test(tcase, all_leased_is_busy_and_holds_nothing);
        tcase_add_test(tcase, first_commit_wins);
        tcase_add_test(tcase, a_replaced_generation_in_flight_never_enters_the_catalog);
        tcase_add_test(tcase, a_replaced_generation_that_got_in_is_forgotten_before_the_answer);
        tcase_add_test(tcase, every_replacement_waits_for_the_write_of_the_first_generation);
        tcase_add_test(tcase, a_generation_that_was_dropped_in_flight_is_gone_before_the_answer);
        tcase_add_test(tcase, a_write_that_is_cancelled_leaves_older_deletes_to_be_waited_for);
        tcase_add_test(tcase,
                       after_a_write_that_failed_a_sync_tells_whether_its_entry_can_come_back);
        tcase_add_test(tcase, a_stored_generation_is_durably_gone_before_the_answer);
        tcase_add_test(tcase,
                       a_generation_that_was_dropped_before_is_durably_gone_before_the_answer);
        tcase_add_test(tcase, a_promotion_of_an_older_generation_is_not_published);
        tcase_add_test(tcase, corrupt_bytes_are_a_miss_and_leave_the_tier);
        tcase_add_test(tcase, a_failing_write_leaves_the_object_in_host_memory);
        tcase_add_test(tcase, a_full_tier_makes_room_by_its_oldest);
        tcase_add_test(tcase, full_in_pieces_evicts_something_all_the_same);
        tcase_add_test(tcase, write_behind_stops_when_paused_and_goes_on_when_ready);
        tcase_add_test(tcase, a_writer_whose_checksums_do_not_match_is_dropped);
        tcase_add_test(tcase, a_written_list_costs_no_second_hash);
        tcase_add_test(tcase, a_wrong_written_list_keeps_the_object_out_of_the_tier);
        tcase_add_test(tcase, a_stop_ends_the_writing);
        tcase_add_test(tcase, a_stop_ends_what_waits_for_the_tier);
        tcase_add_test(tcase, a_drain_writes_the_newest_and_does_not_push_it_out_again);
        tcase_add_test(tcase, the_cold_end_is_written_before_it_is_evicted);
        tcase_add_test(tcase, kv_without_its_state_goes_before_older_states);
        tcase_add_test(tcase, a_leased_state_stays_and_its_kv_with_it);
        tcase_add_test(tcase, a_cold_state_is_written_with_the_kv_that_it_makes_usable);
        tcase_add_test(tcase, what_is_dead_is_not_drained);
        tcase_add_test(tcase, what_was_never_used_since_the_start_makes_room_below);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
