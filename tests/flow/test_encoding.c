// SPDX-License-Identifier: Apache-2.0
/* Objects that nvme.codec stores in less room: the same bytes come back, or none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"

#define MIB  (UINT64_C(1) << 20)
#define UNIT UINT64_C(4096)

/* A chunk: 64 pages of bf16 that fit neither units nor pieces, 6 pieces. */
#define PAGE_TOKENS  16u
#define N_PAGES      64u
#define CHUNK_TOKENS (PAGE_TOKENS * N_PAGES)
#define PAGE         UINT64_C(24000)
#define CHUNK        (PAGE * N_PAGES)

static struct daemon_fixture fixture;

static struct kvt_session *open_session(void)
{
        struct kvt_tensor tensors[] = {
                {.name = "k", .dtype = "bfloat16", .bytes = PAGE / 2},
                {.name = "v", .dtype = "bfloat16", .bytes = PAGE / 2},
        };
        struct kvt_group groups[] = {
                {.name = "kv",
                 .kind = KVT_GROUP_ATTENTION,
                 .page_tokens = PAGE_TOKENS,
                 .page_bytes = PAGE,
                 .tensors = tensors,
                 .n_tensors = 2},
                {.name = "state", .kind = KVT_GROUP_STATE},
        };
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "encoding",
                                    .chunk_tokens = CHUNK_TOKENS,
                                    .groups = groups,
                                    .n_groups = 2};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = fixture.socket,
                                      .program = "encoding",
                                      .layout = &layout,
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_session *session = NULL;
        char why[256] = "";

        ck_assert_msg(kvt_open(&session, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        return session;
}

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

static enum kvt_status call(struct kvt_session *session, submit_fn submit,
                            struct kvt_object *object)
{
        struct kvt_call how = {
                .size = sizeof(how), .flags = KVT_CALL_WAITED, .timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_completion completion;
        enum kvt_status status;
        uint64_t id;

        status = submit(session, &how, object, 1, &id);
        if (status != KVT_OK)
                return status;
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, 2 * FLOW_TIMEOUT_NS), KVT_OK);
        return completion.status;
}

/* Object @number of a group; a state has the length of a chunk as well. */
static struct kvt_object object_of(uint64_t number, uint16_t group)
{
        struct kvt_object object = {.boundary_tokens = CHUNK_TOKENS,
                                    .flags = KVT_PARENT_UNKNOWN,
                                    .group = group,
                                    .bytes = CHUNK};
        struct digest digest;

        content_digest(&digest, number);
        memcpy(object.digest.bytes, digest.bytes, sizeof(digest.bytes));
        return object;
}

static void put(struct kvt_session *session, uint64_t number, uint16_t group)
{
        struct kvt_object object = object_of(number, group);
        uint64_t offset = 0;

        ck_assert_int_eq(call(session, kvt_reserve, &object), KVT_OK);
        for (uint32_t i = 0; i < object.n_segments; i++) {
                content_fill(object.segments[i].address, offset, object.segments[i].bytes, number,
                             group);
                offset += object.segments[i].bytes;
        }
        ck_assert_int_eq(call(session, kvt_commit, &object), KVT_OK);
}

static enum kvt_status get(struct kvt_session *session, uint64_t number, uint16_t group)
{
        struct kvt_object object = object_of(number, group);
        enum kvt_status status = call(session, kvt_acquire, &object);
        uint64_t offset = 0;

        if (status != KVT_OK)
                return object.status;
        for (uint32_t i = 0; i < object.n_segments; i++) {
                ck_assert(content_is(object.segments[i].address, offset, object.segments[i].bytes,
                                     number, group));
                offset += object.segments[i].bytes;
        }
        ck_assert_uint_eq(offset, CHUNK);
        ck_assert_int_eq(call(session, kvt_release, &object), KVT_OK);
        return KVT_OK;
}

#define N 12u

/* A daemon with N chunks that shrink, two that do not and one state, on NVMe alone. */
static struct kvt_session *begin(const char *codec)
{
        char override[64];
        const char *overrides[] = {override, NULL};
        struct daemon_options options = {.nvme_bytes = 64 * MIB, .overrides = overrides};
        struct kvt_session *session;

        snprintf(override, sizeof(override), "nvme.codec=%s", codec);
        daemon_fixture_init(&fixture, &options);
        fixture.options.overrides = NULL; /* the next start has none */
        session = open_session();
        for (uint64_t i = 0; i < N; i++)
                put(session, CONTENT_SHRINKS | i, 0);
        put(session, N, 0);
        put(session, N + 1, 0);
        put(session, CONTENT_SHRINKS | N, 1);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        daemon_wait_number(&fixture, "host.objects", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), N + 3);
        return session;
}

static void expect_all(struct kvt_session *session)
{
        for (uint64_t i = 0; i < N; i++)
                ck_assert_int_eq(get(session, CONTENT_SHRINKS | i, 0), KVT_OK);
        ck_assert_int_eq(get(session, N, 0), KVT_OK);
        ck_assert_int_eq(get(session, N + 1, 0), KVT_OK);
        ck_assert_int_eq(get(session, CONTENT_SHRINKS | N, 1), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
}

static void end(struct kvt_session *session)
{
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}

static void expect_less_room(const char *codec, unsigned percent)
{
        struct kvt_session *session = begin(codec);
        uint64_t used = daemon_number(&fixture, "nvme.used_bytes");

        ck_assert_uint_eq(daemon_number(&fixture, "nvme.encode_raw_bytes"), (N + 3) * CHUNK);
        ck_assert_uint_lt(daemon_number(&fixture, "nvme.encode_stored_bytes"), used);
        ck_assert_uint_lt(used, N * CHUNK * percent / 100 + 3 * CHUNK);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.decode_raw_bytes"), 0);
        expect_all(session);
        ck_assert_uint_ge(daemon_number(&fixture, "nvme.decode_raw_bytes"), N * CHUNK);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        end(session);
}

START_TEST(what_shrinks_takes_less_room_by_lz4)
{
        expect_less_room("planes-lz4", 95);
}
END_TEST

START_TEST(what_shrinks_takes_less_room_by_zstd)
{
        expect_less_room("planes-zstd", 75);
}
END_TEST

START_TEST(kinds_of_groups_are_told_apart)
{
        struct kvt_session *session = begin("off,state=planes-zstd");

        ck_assert_uint_eq(daemon_number(&fixture, "nvme.encode_raw_bytes"), CHUNK);
        expect_all(session);
        end(session);
}
END_TEST

START_TEST(encoded_objects_outlive_a_kill_and_the_codec)
{
        struct kvt_session *session = begin("planes-zstd");
        uint64_t used = daemon_number(&fixture, "nvme.used_bytes");

        daemon_kill(&fixture);
        daemon_start(&fixture);
        flow_wait_attached(session);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), N + 3);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.used_bytes"), used);
        expect_all(session);
        put(session, CONTENT_SHRINKS | 100, 0);
        daemon_wait_written(&fixture);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.encode_raw_bytes"), 0);
        ck_assert_uint_gt(daemon_number(&fixture, "nvme.used_bytes"), used + CHUNK);
        end(session);
}
END_TEST

START_TEST(pages_of_encoded_chunks_are_read_alone)
{
        static const uint32_t pages[] = {0, 22, 63};
        struct kvt_session *session = begin("planes-zstd");
        struct kvt_object part = object_of(CONTENT_SHRINKS | 3, 0);
        uint8_t *page = malloc(PAGE);

        ck_assert_ptr_nonnull(page);
        part.pages = pages;
        part.n_pages = 3;
        ck_assert_int_eq(call(session, kvt_acquire, &part), KVT_OK);
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert_int_eq(kvt_read(&part, i * PAGE, page, PAGE), KVT_OK);
                ck_assert(content_is(page, pages[i] * PAGE, PAGE, CONTENT_SHRINKS | 3, 0));
        }
        ck_assert_uint_lt(daemon_number(&fixture, "nvme.decode_raw_bytes"), CHUNK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), 0);
        ck_assert_int_eq(call(session, kvt_release, &part), KVT_OK);
        free(page);
        end(session);
}
END_TEST

/* Flips a bit in each unit that holds the daemon's stored forms, headers left alone. */
static void flip_stored_forms(void)
{
        int fd = daemon_open_data(&fixture);
        uint8_t unit[UNIT];
        struct stat file;

        ck_assert_int_eq(fstat(fd, &file), 0);
        for (off_t at = 128 << 10; at + (off_t)UNIT <= file.st_size; at += (off_t)UNIT) {
                ck_assert_int_eq(pread(fd, unit, UNIT, at), (ssize_t)UNIT);
                if (!memcmp(unit, "KVTIEROB", 8) || !unit[100])
                        continue;
                unit[100] ^= 4;
                ck_assert_int_eq(pwrite(fd, unit + 100, 1, at + 100), 1);
        }
        ck_assert_int_eq(fsync(fd), 0);
        close(fd);
}

START_TEST(damaged_stored_forms_are_misses)
{
        struct kvt_session *session = begin("planes-zstd");

        flip_stored_forms();
        for (uint64_t i = 0; i < N; i++) {
                ck_assert_int_ne(get(session, CONTENT_SHRINKS | i, 0), KVT_OK);
                ck_assert_int_eq(get(session, CONTENT_SHRINKS | i, 0), KVT_MISS);
        }
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), N);
        daemon_expect_alive(&fixture);
        /* It may be stored again. */
        put(session, CONTENT_SHRINKS, 0);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        ck_assert_int_eq(get(session, CONTENT_SHRINKS, 0), KVT_OK);
        end(session);
}
END_TEST

/* More than the tier holds: room is made by what objects take, not by what they were. */
START_TEST(a_full_tier_holds_more_objects_when_they_shrink)
{
        static const char *const overrides[] = {"nvme.codec=planes-zstd", NULL};
        struct daemon_options options = {
                .nvme_bytes = 32 * MIB, .overrides = overrides, .nvme_write = "store"};
        struct kvt_session *session;
        unsigned n = 0;

        daemon_fixture_init(&fixture, &options);
        session = open_session();
        for (uint64_t i = 0; i < 80; i++) {
                put(session, CONTENT_SHRINKS | i, 0);
                daemon_wait_written(&fixture);
        }
        daemon_evict(&fixture, "host");
        ck_assert_uint_le(daemon_number(&fixture, "nvme.used_bytes"), 32 * MIB);
        for (uint64_t i = 0; i < 80; i++)
                n += get(session, CONTENT_SHRINKS | i, 0) == KVT_OK;
        ck_assert_uint_gt(n, 32 * MIB / CHUNK);
        ck_assert_int_eq(get(session, CONTENT_SHRINKS | 79, 0), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        end(session);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                what_shrinks_takes_less_room_by_lz4,
                what_shrinks_takes_less_room_by_zstd,
                kinds_of_groups_are_told_apart,
                encoded_objects_outlive_a_kill_and_the_codec,
                pages_of_encoded_chunks_are_read_alone,
                damaged_stored_forms_are_misses,
                a_full_tier_holds_more_objects_when_they_shrink,
                NULL,
        };

        return flow_run("encoding", tests, 60);
}
