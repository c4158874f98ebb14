// SPDX-License-Identifier: Apache-2.0
/* Prefetch: objects come into host memory before they are acquired, and nobody holds them. */
#include <string.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"

#define MIB        (UINT64_C(1) << 20)
#define SECONDS(n) ((n)*UINT64_C(1000000000))
#define N_MAX      64u

static struct daemon_fixture fixture;
static struct kvt_session *session;
static struct kvt_object objects[N_MAX];

static struct kvt_session *open_session(uint32_t flags)
{
        static const struct kvt_group group = {.name = "state", .kind = KVT_GROUP_STATE};
        struct kvt_layout layout = {
                .size = sizeof(layout), .model = "prefetch", .groups = &group, .n_groups = 1};
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

/* Names the first @n objects, each below the one before. */
static void name(unsigned n)
{
        memset(objects, 0, sizeof(objects));
        for (unsigned i = 0; i < n; i++) {
                objects[i].digest = (struct kvt_digest){{7, (uint8_t)i}};
                if (i)
                        objects[i].parent = objects[i - 1].digest;
                objects[i].boundary_tokens = 64 * (i + 1);
                objects[i].bytes = MIB;
        }
}

static uint32_t wait_for(struct kvt_session *by, uint64_t call)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(by, call, &completion, SECONDS(60)), KVT_OK);
        return completion.status;
}

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static uint32_t run(submit_fn submit, unsigned n, uint32_t flags)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED | flags};
        uint64_t id;

        ck_assert_int_eq(submit(session, &call, objects, n, &id), KVT_OK);
        return wait_for(session, id);
}

static uint32_t prefetch_by(struct kvt_session *by, unsigned n, const char *hint)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        uint64_t id;

        ck_assert_int_eq(kvt_prefetch(by, &call, hint, objects, n, &id), KVT_OK);
        return wait_for(by, id);
}

/* Stores the first @n objects, 1 MiB each; then they are on NVMe alone. */
static void start_with_stored(unsigned n)
{
        struct daemon_options options = {.nvme_bytes = 128 * MIB};

        daemon_fixture_init(&fixture, &options);
        session = open_session(0);
        name(n);
        for (unsigned i = 0; i < n; i += 8) {
                unsigned part = n - i < 8 ? n - i : 8;
                uint64_t id;
                struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};

                ck_assert_int_eq(kvt_reserve(session, &call, objects + i, part, &id), KVT_OK);
                ck_assert_uint_eq(wait_for(session, id), KVT_OK);
                for (unsigned j = i; j < i + part; j++)
                        for (unsigned k = 0; k < objects[j].n_segments; k++)
                                memset(objects[j].segments[k].address, (int)j + 1,
                                       objects[j].segments[k].bytes);
                ck_assert_int_eq(kvt_commit(session, &call, objects + i, part, &id), KVT_OK);
                ck_assert_uint_eq(wait_for(session, id), KVT_OK);
        }
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        daemon_wait_number(&fixture, "host.objects", 0);
}

static void stop(void)
{
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}

START_TEST(prefetch_brings_objects_up_and_leases_nothing)
{
        uint8_t byte;

        start_with_stored(20);
        name(21);
        ck_assert_uint_eq(prefetch_by(session, 21, NULL), KVT_MISS);
        for (unsigned i = 0; i < 20; i++)
                ck_assert_uint_eq(objects[i].status, KVT_OK);
        ck_assert_uint_eq(objects[20].status, KVT_MISS);
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), 20);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        ck_assert_uint_eq(run(kvt_acquire, 20, KVT_CALL_RESIDENT), KVT_OK);
        for (unsigned i = 0; i < 20; i++) {
                ck_assert_int_eq(kvt_read(&objects[i], MIB - 1, &byte, 1), KVT_OK);
                ck_assert_uint_eq(byte, i + 1);
        }
        ck_assert_uint_eq(run(kvt_release, 20, 0), KVT_OK);
        ck_assert_uint_eq(prefetch_by(session, 20, NULL), KVT_OK);
        stop();
}
END_TEST

/* 64 MiB of host memory, 80 % of it to be leased. */
START_TEST(prefetch_does_not_evict_its_own_beginning)
{
        unsigned n_up = 0;

        start_with_stored(60);
        ck_assert_uint_eq(prefetch_by(session, 60, NULL), KVT_TOO_LARGE);
        while (n_up < 60 && objects[n_up].status == KVT_OK)
                n_up++;
        ck_assert_uint_eq(n_up, 51);
        for (unsigned i = n_up; i < 60; i++)
                ck_assert_uint_eq(objects[i].status, KVT_TOO_LARGE);
        ck_assert_uint_eq(run(kvt_acquire, n_up, KVT_CALL_RESIDENT), KVT_OK);
        ck_assert_uint_eq(run(kvt_release, n_up, 0), KVT_OK);
        stop();
}
END_TEST

START_TEST(a_hint_that_names_no_peer_concerns_only_what_is_missing)
{
        char longest[65];

        start_with_stored(2);
        name(3);
        ck_assert_uint_eq(prefetch_by(session, 3, "10.9.8.7:7428"), KVT_UNSUPPORTED);
        ck_assert_uint_eq(objects[1].status, KVT_OK);
        ck_assert_uint_eq(objects[2].status, KVT_UNSUPPORTED);
        memset(longest, 'x', 64);
        longest[64] = 0;
        ck_assert_int_eq(kvt_prefetch(session, NULL, longest, objects, 3, NULL), KVT_INVALID);
        ck_assert_int_eq(kvt_prefetch(session, &(struct kvt_call){.size = sizeof(struct kvt_call),
                                                                  .flags = KVT_CALL_PARTIAL},
                                      NULL, objects, 3, NULL),
                         KVT_UNSUPPORTED);
        stop();
}
END_TEST

START_TEST(a_session_that_loads_nothing_prefetches_nothing)
{
        struct kvt_session *blind;

        start_with_stored(2);
        blind = open_session(KVT_OPEN_NO_LOADS);
        ck_assert_uint_eq(prefetch_by(blind, 2, NULL), KVT_MISS);
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), 0);
        kvt_close(blind);
        stop();
}
END_TEST

START_TEST(prefetch_tells_what_is_corrupt)
{
        uint8_t zeros[4096] = {0};
        int fd;

        start_with_stored(1);
        fd = daemon_open_data(&fixture);
        for (off_t at = 0; at < (off_t)(4 * MIB); at += (off_t)sizeof(zeros))
                ck_assert_int_eq(pwrite(fd, zeros, sizeof(zeros), (off_t)(64 * 1024) + at),
                                 sizeof(zeros));
        close(fd);
        ck_assert_uint_eq(prefetch_by(session, 1, NULL), KVT_CORRUPT);
        ck_assert_uint_eq(prefetch_by(session, 1, NULL), KVT_MISS);
        stop();
}
END_TEST

START_TEST(a_session_may_go_while_its_prefetch_moves)
{
        struct kvt_session *gone;
        uint64_t id;

        start_with_stored(40);
        gone = open_session(0);
        ck_assert_int_eq(kvt_prefetch(gone, NULL, NULL, objects, 40, NULL), KVT_OK);
        kvt_close(gone);
        ck_assert_int_eq(kvt_prefetch(session, NULL, NULL, objects, 40, &id), KVT_OK);
        ck_assert_int_eq(kvt_cancel(session,
                                    &(struct kvt_call){.size = sizeof(struct kvt_call),
                                                       .flags = KVT_CALL_WAITED},
                                    id, &id),
                         KVT_OK);
        ck_assert_uint_eq(wait_for(session, id), KVT_OK);
        for (unsigned i = 0; i < 40; i++)
                ck_assert(objects[i].status == KVT_OK || objects[i].status == KVT_CANCELLED);
        ck_assert_uint_eq(prefetch_by(session, 40, NULL), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), 40);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                prefetch_brings_objects_up_and_leases_nothing,
                prefetch_does_not_evict_its_own_beginning,
                a_hint_that_names_no_peer_concerns_only_what_is_missing,
                a_session_that_loads_nothing_prefetches_nothing,
                prefetch_tells_what_is_corrupt,
                a_session_may_go_while_its_prefetch_moves,
                NULL,
        };

        return flow_run("prefetch", tests, 60);
}
