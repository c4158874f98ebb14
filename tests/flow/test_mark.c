// SPDX-License-Identifier: Apache-2.0
/* Who wrote an object and when; reclaim and pins; sessions that see and leave no traces. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvtier.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"

#define MIB        (UINT64_C(1) << 20)
#define SECONDS(n) ((n)*UINT64_C(1000000000))

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static struct daemon_fixture fixture;
static struct kvt_session *session;

/* Two orders of eviction: layouts with states, and without (objects of 1 MiB then). */
static bool is_dense;

static struct kvt_session *open_session(uint32_t flags)
{
        static const struct kvt_group groups[] = {
                {.name = "state", .kind = KVT_GROUP_STATE},
                {.name = "kv", .kind = KVT_GROUP_ATTENTION, .page_tokens = 64, .page_bytes = MIB},
        };
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "mark",
                                    .chunk_tokens = is_dense ? 64 : 0,
                                    .groups = &groups[is_dense],
                                    .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = fixture.socket,
                                      .layout = &layout,
                                      .flags = flags,
                                      .connect_timeout_ns = SECONDS(60)};
        struct kvt_session *opened;
        char why[256];

        ck_assert_msg(kvt_open(&opened, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        return opened;
}

static void start(uint64_t nvme_bytes)
{
        struct daemon_options options = {.nvme_bytes = nvme_bytes};

        daemon_fixture_init(&fixture, &options);
        session = open_session(0);
}

static void stop(void)
{
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}

static struct kvt_digest digest(uint32_t name)
{
        struct kvt_digest digest = {{1}};

        if (!name)
                return (struct kvt_digest){{0}};
        memcpy(digest.bytes + 4, &name, sizeof(name));
        return digest;
}

/* Boundary @name, @depth steps from the root, below @parent (0: it is a root). */
static struct kvt_object object(uint32_t name, uint32_t parent, uint32_t depth, uint64_t bytes)
{
        return (struct kvt_object){.digest = digest(name),
                                   .parent = digest(parent),
                                   .boundary_tokens = depth * 64,
                                   .bytes = bytes};
}

static uint32_t run(struct kvt_session *by, submit_fn submit, struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        uint64_t id;

        ck_assert_int_eq(submit(by, &call, objects, n, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(by, id, &completion, SECONDS(60)), KVT_OK);
        return completion.status;
}

static uint32_t store(uint32_t name, uint32_t parent, uint32_t depth, uint64_t bytes)
{
        struct kvt_object stored = object(name, parent, depth, bytes);
        uint32_t status = run(session, kvt_reserve, &stored, 1);

        if (status != KVT_OK)
                return status;
        for (uint32_t i = 0; i < stored.n_segments; i++)
                memset(stored.segments[i].address, (int)name, stored.segments[i].bytes);
        return run(session, kvt_commit, &stored, 1);
}

/* ---- provenance ---- */

static uint64_t wall_clock_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * SECONDS(1) + (uint64_t)now.tv_nsec;
}

static void boot_id(uint8_t ret_boot_id[16])
{
        struct kvt_session_info info = {.size = sizeof(info)};

        ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
        memcpy(ret_boot_id, info.boot_id, 16);
}

static void expect_written_by(const uint8_t writer[16], uint64_t from_ns, uint64_t to_ns)
{
        struct kvt_object loaded = object(1, 0, 1, 0);

        ck_assert_uint_eq(run(session, kvt_acquire, &loaded, 1), KVT_OK);
        ck_assert_mem_eq(loaded.writer_boot_id, writer, 16);
        ck_assert_uint_ge(loaded.stored_ns, from_ns);
        ck_assert_uint_le(loaded.stored_ns, to_ns);
        ck_assert_uint_eq(run(session, kvt_release, &loaded, 1), KVT_OK);
}

START_TEST(what_is_granted_says_who_wrote_it_and_when)
{
        uint64_t from_ns, to_ns;
        uint8_t writer[16], later[16];

        start(64 * MIB);
        boot_id(writer);
        from_ns = wall_clock_ns();
        ck_assert_uint_eq(store(1, 0, 1, MIB), KVT_OK);
        to_ns = wall_clock_ns();
        expect_written_by(writer, from_ns, to_ns);

        /* From NVMe, and by a later run of the daemon. */
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        expect_written_by(writer, from_ns, to_ns);
        kvt_close(session);
        daemon_stop(&fixture);
        daemon_start(&fixture);
        session = open_session(0);
        boot_id(later);
        ck_assert_mem_ne(later, writer, 16);
        expect_written_by(writer, from_ns, to_ns);
        stop();
}
END_TEST

/* In one layout it is stored, in the other it is only the parent of something. */
START_TEST(show_names_a_boundary_that_another_layout_holds_a_place_for)
{
        char command[128] = "{\"command\":\"show\",\"digest\":\"";
        struct kvt_digest shown = digest(1);
        json_t *answer;

        start(0);
        ck_assert_uint_eq(store(1, 0, 1, MIB), KVT_OK);
        kvt_close(session);
        is_dense = true;
        session = open_session(0);
        ck_assert_uint_eq(store(2, 1, 2, MIB), KVT_OK);
        for (size_t i = 0; i < sizeof(shown.bytes); i++)
                sprintf(command + strlen(command), "%02x", shown.bytes[i]);
        strcat(command, "\"}");
        answer = daemon_ask(&fixture, command);
        ck_assert_uint_eq(json_array_size(json_object_get(answer, "objects")), 1);
        json_decref(answer);
        stop();
}
END_TEST

/* ---- reclaim ---- */

static bool is_there(uint32_t name)
{
        struct kvt_digest named = digest(name);
        uint64_t present = 0;

        ck_assert_int_eq(kvt_probe(session, &named, 1, &present, NULL), KVT_OK);
        return present;
}

static uint32_t mark(submit_fn submit, uint32_t name, uint32_t flags)
{
        struct kvt_object named = object(name, 0, 0, 0);
        uint32_t status;

        named.flags = flags;
        status = run(session, submit, &named, 1);
        ck_assert_uint_eq(named.status, status);
        return status;
}

static void expect_there(const char *names)
{
        for (uint32_t name = 1; name < 10; name++)
                ck_assert_msg(is_there(name) == !!strchr(names, (char)('0' + name)),
                              "boundary %u is %s", name, is_there(name) ? "there" : "gone");
}

/*
 *   1 - 2 - 3 - 4
 *        \- 5 - 6
 *         \ 7
 */
static void store_tree(void)
{
        static const uint32_t parents[] = {0, 1, 2, 3, 2, 5, 2}, depths[] = {1, 2, 3, 4, 3, 4, 3};

        for (uint32_t i = 0; i < 7; i++)
                ck_assert_uint_eq(store(i + 1, parents[i], depths[i], 65536), KVT_OK);
        expect_there("1234567");
}

static uint64_t n_objects(void)
{
        return daemon_number(&fixture, "objects");
}

START_TEST(what_hangs_on_a_boundary_goes_and_nothing_else)
{
        start(0);
        store_tree();
        ck_assert_uint_eq(mark(kvt_reclaim, 5, KVT_RECLAIM_BELOW), KVT_OK);
        expect_there("123457");
        ck_assert_uint_eq(mark(kvt_reclaim, 2, KVT_RECLAIM_BELOW), KVT_OK);
        expect_there("12");
        ck_assert_uint_eq(n_objects(), 2);
        ck_assert_uint_eq(mark(kvt_reclaim, 9, KVT_RECLAIM_BELOW), KVT_MISS);
        stop();
}
END_TEST

START_TEST(a_prefix_goes_as_far_up_as_nobody_needs_it)
{
        struct kvt_object held = object(7, 0, 0, 0);

        start(0);
        store_tree();
        /* Something hangs on it. */
        ck_assert_uint_eq(mark(kvt_reclaim, 3, KVT_RECLAIM_PREFIX), KVT_BUSY);
        expect_there("1234567");
        /* Up to the fork. */
        ck_assert_uint_eq(mark(kvt_reclaim, 4, KVT_RECLAIM_PREFIX), KVT_OK);
        expect_there("12567");
        /* Leased: by somebody who wants it. */
        ck_assert_uint_eq(run(session, kvt_acquire, &held, 1), KVT_OK);
        ck_assert_uint_eq(mark(kvt_reclaim, 7, KVT_RECLAIM_PREFIX), KVT_BUSY);
        expect_there("12567");
        ck_assert_uint_eq(run(session, kvt_release, &held, 1), KVT_OK);
        ck_assert_uint_eq(mark(kvt_reclaim, 7, KVT_RECLAIM_PREFIX), KVT_OK);
        expect_there("1256");
        ck_assert_uint_eq(mark(kvt_reclaim, 6, KVT_RECLAIM_PREFIX), KVT_OK);
        expect_there("");
        ck_assert_uint_eq(n_objects(), 0);
        stop();
}
END_TEST

START_TEST(a_topic_goes_as_a_whole)
{
        start(0);
        store_tree();
        ck_assert_uint_eq(mark(kvt_reclaim, 5, KVT_RECLAIM_BELOW | KVT_RECLAIM_PREFIX), KVT_OK);
        expect_there("12347");
        ck_assert_uint_eq(mark(kvt_reclaim, 2, KVT_RECLAIM_BELOW | KVT_RECLAIM_PREFIX), KVT_OK);
        expect_there("");
        ck_assert_uint_eq(n_objects(), 0);
        stop();
}
END_TEST

START_TEST(one_request_names_many_boundaries)
{
        struct kvt_object named[4];

        start(0);
        store_tree();
        for (uint32_t i = 0; i < 4; i++) {
                static const uint32_t names[] = {4, 9, 5, 6};

                named[i] = object(names[i], 0, 0, 0);
                named[i].flags = i == 2 ? KVT_RECLAIM_BELOW : KVT_RECLAIM_PREFIX;
        }
        ck_assert_uint_eq(run(session, kvt_reclaim, named, 4), KVT_MISS);
        ck_assert_uint_eq(named[0].status, KVT_OK);
        ck_assert_uint_eq(named[1].status, KVT_MISS);
        ck_assert_uint_eq(named[2].status, KVT_OK);
        ck_assert_uint_eq(named[3].status, KVT_MISS); /* it was below 5 */
        expect_there("1257");
        stop();
}
END_TEST

START_TEST(a_chain_whose_end_is_gone_goes_by_its_names)
{
        struct kvt_object named[4];

        start(0);
        for (uint32_t i = 1; i <= 3; i++)
                ck_assert_uint_eq(store(i, i - 1, i, 65536), KVT_OK);
        for (uint32_t i = 0; i < 4; i++) {
                named[i] = object(4 - i, 0, 0, 0); /* 4 has been evicted, so to speak */
                named[i].flags = KVT_RECLAIM_PREFIX;
        }
        ck_assert_uint_eq(run(session, kvt_reclaim, named, 4), KVT_MISS);
        ck_assert_uint_eq(named[1].status, KVT_OK);
        expect_there("");
        stop();
}
END_TEST

START_TEST(a_reclaim_outlives_the_session_that_asked)
{
        struct kvt_object named = object(1, 0, 0, 0);
        struct kvt_session *other;

        start(0);
        store_tree();
        other = open_session(0);
        named.flags = KVT_RECLAIM_BELOW | KVT_RECLAIM_PREFIX;
        ck_assert_int_eq(kvt_reclaim(other, NULL, &named, 1, NULL), KVT_OK);
        kvt_close(other);
        daemon_wait_number(&fixture, "objects", 0);
        stop();
}
END_TEST

START_TEST(reclaimed_objects_leave_every_tier)
{
        start(64 * MIB);
        store_tree();
        daemon_wait_written(&fixture);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), 7);
        daemon_evict(&fixture, "host");
        ck_assert_uint_eq(store(8, 1, 2, 65536), KVT_OK);
        ck_assert_uint_eq(mark(kvt_reclaim, 1, KVT_RECLAIM_BELOW | KVT_RECLAIM_PREFIX), KVT_OK);
        expect_there("");
        daemon_wait_number(&fixture, "nvme.objects", 0);
        daemon_wait_number(&fixture, "host.used_bytes", 0);
        /* And do not come back. */
        kvt_close(session);
        daemon_stop(&fixture);
        daemon_start(&fixture);
        session = open_session(0);
        expect_there("");
        stop();
}
END_TEST

START_TEST(a_lease_keeps_reclaimed_bytes_until_it_ends)
{
        struct kvt_object held = object(4, 0, 0, 0);

        start(0);
        store_tree();
        ck_assert_uint_eq(run(session, kvt_acquire, &held, 1), KVT_OK);
        ck_assert_uint_eq(mark(kvt_reclaim, 1, KVT_RECLAIM_BELOW), KVT_OK);
        expect_there("1");
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 2 * 65536);
        for (uint64_t i = 0; i < held.bytes; i++)
                ck_assert_uint_eq(((uint8_t *)held.segments[0].address)[i], 4);
        ck_assert_uint_eq(run(session, kvt_release, &held, 1), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 65536);
        stop();
}
END_TEST

START_TEST(what_is_on_its_way_up_arrives_though_it_is_reclaimed)
{
        enum { N = 8 };
        struct kvt_object wanted[N], named = object(1, 0, 0, 0);
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        uint64_t acquire, reclaim;

        start(64 * MIB);
        for (uint32_t i = 1; i <= N; i++)
                ck_assert_uint_eq(store(i, i - 1, i, MIB), KVT_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        for (uint32_t i = 0; i < N; i++)
                wanted[i] = object(i + 1, 0, 0, 0);
        named.flags = KVT_RECLAIM_BELOW;
        ck_assert_int_eq(kvt_acquire(session, &call, wanted, N, &acquire), KVT_OK);
        ck_assert_int_eq(kvt_reclaim(session, &call, &named, 1, &reclaim), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(session, reclaim, &completion, SECONDS(60)), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_OK);
        expect_there("1");
        ck_assert_int_eq(kvt_wait_call(session, acquire, &completion, SECONDS(60)), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_OK);
        for (uint32_t i = 0; i < N; i++)
                ck_assert_uint_eq(((uint8_t *)wanted[i].segments[0].address)[MIB - 1], i + 1);
        ck_assert_uint_eq(run(session, kvt_release, wanted, N), KVT_OK);
        daemon_wait_number(&fixture, "host.used_bytes", MIB);
        daemon_wait_number(&fixture, "nvme.objects", 1);
        stop();
}
END_TEST

/* More than one slice of the walk and of the drops. */
START_TEST(thousands_go_while_others_are_served)
{
        enum { N = 6000 };
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_object *objects = calloc(N, sizeof(*objects)), named = object(1, 0, 0, 0);
        struct kvt_completion completion;
        uint64_t id;

        start(0);
        ck_assert_ptr_nonnull(objects);
        for (uint32_t i = 0; i < N; i++)
                objects[i] = object(i + 1, (i + 1) / 2, 1 + i, 64);
        ck_assert_uint_eq(run(session, kvt_reserve, objects, N), KVT_OK);
        ck_assert_uint_eq(run(session, kvt_commit, objects, N), KVT_OK);
        ck_assert_uint_eq(n_objects(), N);
        named.flags = KVT_RECLAIM_BELOW;
        ck_assert_int_eq(kvt_reclaim(session, &call, &named, 1, &id), KVT_OK);
        ck_assert_uint_eq(store(N + 1, 0, 1, 65536), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, SECONDS(60)), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_OK);
        /* The root itself, and what was stored beside it. */
        ck_assert_uint_eq(n_objects(), 2);
        free(objects);
        stop();
}
END_TEST

/* ---- pins ---- */

static uint64_t pinned(const char *tier)
{
        char name[64];

        snprintf(name, sizeof(name), "%s.pinned_bytes", tier);
        return daemon_number(&fixture, name);
}

static void fill_up(uint32_t first, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                ck_assert_uint_eq(store(first + i, 0, 1, MIB), KVT_OK);
}

static void expect_pinned_to_stay_in_host(void)
{
        start(0);
        ck_assert_uint_eq(store(1, 0, 1, MIB), KVT_OK);
        ck_assert_uint_eq(store(2, 1, 2, MIB), KVT_OK);
        ck_assert_uint_eq(store(3, 2, 3, MIB), KVT_OK);
        ck_assert_uint_eq(mark(kvt_pin, 2, 0), KVT_OK);
        ck_assert_uint_eq(pinned("host"), 2 * MIB);
        fill_up(100, 100);
        expect_there("12");
        ck_assert_uint_eq(mark(kvt_unpin, 2, 0), KVT_OK);
        ck_assert_uint_eq(mark(kvt_unpin, 2, 0), KVT_MISS);
        ck_assert_uint_eq(pinned("host"), 0);
        fill_up(200, 100);
        expect_there("");
        stop();
}

START_TEST(what_is_pinned_stays_when_room_is_needed)
{
        expect_pinned_to_stay_in_host();
        is_dense = true;
        expect_pinned_to_stay_in_host();
}
END_TEST

static void expect_pinned_to_stay_on_nvme(void)
{
        start(32 * MIB);
        ck_assert_uint_eq(store(1, 0, 1, MIB), KVT_OK);
        ck_assert_uint_eq(store(2, 0, 1, MIB), KVT_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        ck_assert_uint_eq(mark(kvt_pin, 1, 0), KVT_OK);
        ck_assert_uint_eq(pinned("host"), 0);
        ck_assert_uint_eq(pinned("nvme"), MIB + 4096);
        fill_up(100, 120);
        daemon_wait_written(&fixture);
        expect_there("1");
        ck_assert_uint_gt(daemon_number(&fixture, "nvme.evicted"), 0);
        stop();
}

START_TEST(what_is_pinned_stays_on_nvme)
{
        expect_pinned_to_stay_on_nvme();
        is_dense = true;
        expect_pinned_to_stay_on_nvme();
}
END_TEST

START_TEST(pins_keep_to_their_share)
{
        /* 20 percent of 64 MiB. */
        start(0);
        for (uint32_t i = 1; i <= 14; i++)
                ck_assert_uint_eq(store(i, i - 1, i, MIB), KVT_OK);
        ck_assert_uint_eq(mark(kvt_pin, 14, 0), KVT_REFUSED);
        ck_assert_uint_eq(pinned("host"), 0);
        ck_assert_uint_eq(mark(kvt_pin, 12, 0), KVT_OK);
        ck_assert_uint_eq(mark(kvt_pin, 13, 0), KVT_REFUSED);
        ck_assert_uint_eq(pinned("host"), 12 * MIB);
        ck_assert_uint_le(pinned("host"), daemon_number(&fixture, "host.pinned_limit_bytes"));
        ck_assert_uint_eq(mark(kvt_pin, 99, 0), KVT_MISS);
        stop();
}
END_TEST

START_TEST(reclaim_and_evict_leave_what_is_pinned)
{
        start(0);
        store_tree();
        ck_assert_uint_eq(mark(kvt_pin, 3, 0), KVT_OK);
        ck_assert_uint_eq(mark(kvt_reclaim, 1, KVT_RECLAIM_BELOW | KVT_RECLAIM_PREFIX),
                          KVT_REFUSED);
        expect_there("123");
        daemon_evict(&fixture, "host");
        expect_there("123");
        ck_assert_uint_eq(mark(kvt_reclaim, 3, KVT_RECLAIM_PREFIX), KVT_REFUSED);
        ck_assert_uint_eq(mark(kvt_unpin, 3, 0), KVT_OK);
        ck_assert_uint_eq(mark(kvt_reclaim, 3, KVT_RECLAIM_PREFIX), KVT_OK);
        expect_there("");
        stop();
}
END_TEST

START_TEST(clear_overrides_pins)
{
        start(64 * MIB);
        store_tree();
        ck_assert_uint_eq(mark(kvt_pin, 4, 0), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "pins"), 1);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, NULL);
        expect_there("");
        ck_assert_uint_eq(daemon_number(&fixture, "pins"), 0);
        ck_assert_uint_eq(pinned("host") + pinned("nvme"), 0);
        ck_assert_uint_eq(mark(kvt_unpin, 4, 0), KVT_MISS);
        stop();
}
END_TEST

START_TEST(pins_end_with_their_session)
{
        struct kvt_object named = object(1, 0, 0, 0);
        struct kvt_session *other;

        start(0);
        store_tree();
        other = open_session(0);
        /* Another layout's handle is of another session, the layout the same. */
        ck_assert_uint_eq(run(other, kvt_pin, &named, 1), KVT_OK);
        ck_assert_uint_eq(mark(kvt_pin, 1, 0), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "pins"), 2);
        kvt_close(other);
        daemon_wait_number(&fixture, "pins", 1);
        ck_assert_uint_eq(pinned("host"), 65536);
        ck_assert_uint_eq(mark(kvt_unpin, 1, 0), KVT_OK);
        ck_assert_uint_eq(pinned("host"), 0);
        stop();
}
END_TEST

START_TEST(pins_come_back_with_the_connection)
{
        start(64 * MIB);
        store_tree();
        ck_assert_uint_eq(mark(kvt_pin, 4, 0), KVT_OK);
        ck_assert_uint_eq(mark(kvt_pin, 6, 0), KVT_OK);
        ck_assert_uint_eq(mark(kvt_unpin, 6, 0), KVT_OK);
        ck_assert_uint_eq(mark(kvt_pin, 9, 0), KVT_MISS);
        daemon_wait_written(&fixture);
        daemon_stop(&fixture);
        daemon_start(&fixture);
        daemon_wait_number(&fixture, "pins", 1);
        ck_assert_uint_eq(pinned("nvme"), 4 * (65536 + 4096));
        ck_assert_int_eq(kvt_wait_attached(session, SECONDS(60)), KVT_OK);
        ck_assert_uint_eq(mark(kvt_unpin, 4, 0), KVT_OK);
        ck_assert_uint_eq(pinned("nvme"), 0);
        stop();
}
END_TEST

/* ---- reproducible runs ---- */

START_TEST(a_session_without_loads_sees_nothing_and_disturbs_nobody)
{
        struct kvt_object wanted = object(1, 0, 0, 0), new = object(2, 1, 2, 65536);
        struct kvt_digest named = digest(1);
        struct kvt_match_query query = {.size = sizeof(query), .digests = &named, .n_digests = 1};
        struct kvt_match found = {.size = sizeof(found)};
        struct kvt_session *blind;
        uint8_t token[16] = {1};
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        uint64_t present = 0, id, n_messages;

        start(0);
        ck_assert_uint_eq(store(1, 0, 1, 65536), KVT_OK);
        blind = open_session(KVT_OPEN_NO_LOADS);
        n_messages = daemon_number(&fixture, "hits") + daemon_number(&fixture, "misses");
        ck_assert_int_eq(kvt_match(blind, &query, &found), KVT_OK);
        ck_assert_uint_eq(found.state_boundaries + found.boundaries + found.kv_boundaries, 0);
        ck_assert_int_eq(kvt_probe(blind, &named, 1, &present, NULL), KVT_OK);
        ck_assert_uint_eq(present, 0);
        ck_assert_uint_eq(run(blind, kvt_acquire, &wanted, 1), KVT_MISS);
        ck_assert_uint_eq(wanted.status, KVT_MISS);
        ck_assert_int_eq(kvt_adopt(blind, &call, token, &wanted, 1, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(blind, id, &completion, SECONDS(60)), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_MISS);
        /* The daemon was not asked. */
        ck_assert_uint_eq(daemon_number(&fixture, "hits") + daemon_number(&fixture, "misses"),
                          n_messages);
        /* Stores are another question. */
        ck_assert_uint_eq(run(blind, kvt_reserve, &new, 1), KVT_OK);
        ck_assert_uint_eq(run(blind, kvt_commit, &new, 1), KVT_OK);
        expect_there("12");
        kvt_close(blind);
        stop();
}
END_TEST

START_TEST(a_session_without_stores_leaves_no_traces)
{
        struct kvt_object known = object(1, 0, 0, 0), new = object(2, 1, 2, 65536);
        struct kvt_session *silent;
        json_t *answer, *each;
        size_t i, n_silent = 0;

        start(0);
        ck_assert_uint_eq(store(1, 0, 1, 65536), KVT_OK);
        silent = open_session(KVT_OPEN_NO_STORES);
        ck_assert_uint_eq(run(silent, kvt_acquire, &known, 1), KVT_OK);
        ck_assert_uint_eq(run(silent, kvt_release, &known, 1), KVT_OK);
        ck_assert_uint_eq(run(silent, kvt_reserve, &new, 1), KVT_REFUSED);
        ck_assert_uint_eq(run(silent, kvt_pin, &known, 1), KVT_REFUSED);
        known.flags = KVT_RECLAIM_PREFIX;
        ck_assert_uint_eq(run(silent, kvt_reclaim, &known, 1), KVT_REFUSED);
        expect_there("1");
        answer = daemon_ask(&fixture, "{\"command\":\"sessions\"}");
        json_array_foreach(json_object_get(answer, "sessions"), i, each)
        {
                ck_assert(json_is_true(json_object_get(each, "loads")));
                n_silent += json_is_false(json_object_get(each, "stores"));
        }
        ck_assert_uint_eq(n_silent, 1);
        json_decref(answer);
        kvt_close(silent);
        stop();
}
END_TEST

START_TEST(one_request_can_bypass_the_store)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED | KVT_CALL_BYPASS};
        struct kvt_object known = object(1, 0, 0, 0), new = object(2, 1, 2, 65536);
        struct kvt_digest named = digest(1);
        struct kvt_match_query query = {.size = sizeof(query),
                                        .digests = &named,
                                        .n_digests = 1,
                                        .flags = KVT_MATCH_BYPASS | KVT_MATCH_STATE};
        struct kvt_match found = {.size = sizeof(found)};
        struct kvt_completion completion;
        uint64_t id;

        start(0);
        ck_assert_uint_eq(store(1, 0, 1, 65536), KVT_OK);
        ck_assert_int_eq(kvt_match(session, &query, &found), KVT_OK);
        ck_assert_uint_eq(found.boundaries + found.state_boundaries, 0);
        query.flags = KVT_MATCH_STATE;
        ck_assert_int_eq(kvt_match(session, &query, &found), KVT_OK);
        ck_assert_uint_eq(found.state_boundaries, 1);
        ck_assert_int_eq(kvt_acquire(session, &call, &known, 1, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, SECONDS(60)), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_MISS);
        ck_assert_int_eq(kvt_reserve(session, &call, &new, 1, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, SECONDS(60)), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_REFUSED);
        expect_there("1");
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                what_is_granted_says_who_wrote_it_and_when,
                show_names_a_boundary_that_another_layout_holds_a_place_for,
                what_hangs_on_a_boundary_goes_and_nothing_else,
                a_prefix_goes_as_far_up_as_nobody_needs_it,
                a_topic_goes_as_a_whole,
                one_request_names_many_boundaries,
                a_chain_whose_end_is_gone_goes_by_its_names,
                a_reclaim_outlives_the_session_that_asked,
                reclaimed_objects_leave_every_tier,
                a_lease_keeps_reclaimed_bytes_until_it_ends,
                what_is_on_its_way_up_arrives_though_it_is_reclaimed,
                thousands_go_while_others_are_served,
                what_is_pinned_stays_when_room_is_needed,
                what_is_pinned_stays_on_nvme,
                pins_keep_to_their_share,
                reclaim_and_evict_leave_what_is_pinned,
                clear_overrides_pins,
                pins_end_with_their_session,
                pins_come_back_with_the_connection,
                a_session_without_loads_sees_nothing_and_disturbs_nobody,
                a_session_without_stores_leaves_no_traces,
                one_request_can_bypass_the_store,
                NULL,
        };

        return flow_run("mark", tests, 60);
}
