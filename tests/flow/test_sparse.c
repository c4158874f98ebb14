// SPDX-License-Identifier: Apache-2.0
/* Pages of chunks: slices of what is in host memory, private pieces of what is not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "proto/checksum.h"
#include "proto/status.h"
#include "tests/support/child.h"
#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/wire_client.h"

#define MIB  (UINT64_C(1) << 20)
#define UNIT UINT64_C(4096)

/* A chunk: 64 pages that fit neither units nor pieces, 6 pieces. A page of 24,000 bytes. */
#define PAGE_TOKENS  16u
#define N_PAGES      64u
#define CHUNK_TOKENS (PAGE_TOKENS * N_PAGES)
#define PAGE         UINT64_C(24000)
#define CHUNK        (PAGE * N_PAGES)
#define PIECE        ((uint64_t)CHECKSUM_PIECE_BYTES)

static struct daemon_fixture fixture;
static const uint8_t engine_id[16] = {7};

static struct kvt_session *open_session(void)
{
        struct kvt_group groups[] = {
                {.name = "kv",
                 .kind = KVT_GROUP_ATTENTION,
                 .page_tokens = PAGE_TOKENS,
                 .page_bytes = PAGE},
                {.name = "state", .kind = KVT_GROUP_STATE},
        };
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "sparse",
                                    .chunk_tokens = CHUNK_TOKENS,
                                    .groups = groups,
                                    .n_groups = 2};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = fixture.socket,
                                      .program = "sparse",
                                      .layout = &layout,
                                      .engine_id = engine_id,
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_session *session = NULL;
        char why[256] = "";

        ck_assert_msg(kvt_open(&session, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        return session;
}

/* ---- calls ---- */

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

static enum kvt_status call(struct kvt_session *session, submit_fn submit, uint32_t flags,
                            struct kvt_object *objects, size_t n, struct kvt_completion *ret)
{
        struct kvt_call how = {.size = sizeof(how),
                               .flags = KVT_CALL_WAITED | flags,
                               .timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_completion completion;
        enum kvt_status status;
        uint64_t id;

        status = submit(session, &how, objects, n, &id);
        if (status != KVT_OK)
                return status;
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, 2 * FLOW_TIMEOUT_NS), KVT_OK);
        ck_assert_msg(completion.status != KVT_TIMEOUT, "a call ran into its deadline");
        if (ret)
                *ret = completion;
        return completion.status;
}

static struct kvt_object chunk(uint64_t number)
{
        struct kvt_object object = {
                .boundary_tokens = CHUNK_TOKENS, .flags = KVT_PARENT_UNKNOWN, .bytes = CHUNK};
        struct digest digest;

        content_digest(&digest, number);
        memcpy(object.digest.bytes, digest.bytes, sizeof(digest.bytes));
        return object;
}

static struct kvt_object pages_of(uint64_t number, const uint32_t *pages, uint32_t n)
{
        struct kvt_object object = chunk(number);

        object.pages = pages;
        object.n_pages = n;
        return object;
}

static void put(struct kvt_session *session, uint64_t number, uint64_t generation, uint32_t flags)
{
        struct kvt_object object = chunk(number);
        uint64_t offset = 0;

        object.flags |= flags;
        ck_assert_int_eq(call(session, kvt_reserve, 0, &object, 1, NULL), KVT_OK);
        for (uint32_t i = 0; i < object.n_segments; i++) {
                content_fill(object.segments[i].address, offset, object.segments[i].bytes, number,
                             generation);
                offset += object.segments[i].bytes;
        }
        ck_assert_int_eq(call(session, kvt_commit, 0, &object, 1, NULL), KVT_OK);
}

static enum kvt_status acquire(struct kvt_session *session, struct kvt_object *object)
{
        return call(session, kvt_acquire, 0, object, 1, NULL);
}

static void release(struct kvt_session *session, struct kvt_object *objects, size_t n)
{
        ck_assert_int_eq(call(session, kvt_release, 0, objects, n, NULL), KVT_OK);
}

/* Are the object's bytes those of its pages, in order, and no others? */
static void expect_pages(const struct kvt_object *object, uint64_t number, uint64_t generation)
{
        uint8_t *page = malloc(PAGE);
        uint64_t held = 0;

        ck_assert_ptr_nonnull(page);
        ck_assert_int_eq(object->status, KVT_OK);
        ck_assert_uint_eq(object->bytes, object->n_pages * PAGE);
        for (uint32_t i = 0; i < object->n_segments; i++)
                held += object->segments[i].bytes;
        ck_assert_uint_eq(held, object->bytes);
        for (uint32_t i = 0; i < object->n_pages; i++) {
                ck_assert_int_eq(kvt_read(object, i * PAGE, page, PAGE), KVT_OK);
                ck_assert_msg(content_is(page, object->pages[i] * PAGE, PAGE, number, generation),
                              "page %u of %u is not its own", i, object->pages[i]);
        }
        ck_assert_int_eq(kvt_read(object, held, page, 1), KVT_INVALID);
        free(page);
}

static bool is_resident(struct kvt_session *session, uint64_t number)
{
        struct kvt_object object = chunk(number);
        uint64_t present = 0, resident = 0;

        ck_assert_int_eq(kvt_probe(session, &object.digest, 1, &present, &resident), KVT_OK);
        ck_assert_uint_eq(present & 1, 1);
        return resident & 1;
}

/* A daemon with NVMe and the chunks 0 .. n - 1 there alone. */
static struct kvt_session *begin(unsigned n)
{
        struct daemon_options options = {.piece_bytes = 8 * MIB, .nvme_bytes = 64 * MIB};
        struct kvt_session *session;

        daemon_fixture_init(&fixture, &options);
        session = open_session();
        for (unsigned i = 0; i < n; i++) {
                put(session, i, 0, 0);
                daemon_wait_written(&fixture); /* before it has to make room */
        }
        daemon_evict(&fixture, "host");
        daemon_wait_number(&fixture, "host.objects", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), n);
        return session;
}

static void end(struct kvt_session *session)
{
        kvt_close(session);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_fixture_deinit(&fixture);
}

/* ---- where the bytes are ---- */

START_TEST(pages_of_a_resident_chunk_are_slices_of_it)
{
        static const uint32_t pages[] = {0, 1, 2, 10, 31, 32, 63};
        struct kvt_object part = pages_of(1, pages, 7), whole = chunk(1);
        struct kvt_session *session;

        daemon_fixture_init(&fixture, NULL);
        session = open_session();
        put(session, 1, 0, 0);
        ck_assert_int_eq(acquire(session, &part), KVT_OK);
        ck_assert_int_eq(acquire(session, &whole), KVT_OK);
        expect_pages(&part, 1, 0);
        ck_assert_uint_eq(whole.n_segments, 1);
        ck_assert_uint_eq(part.n_segments, 4);
        ck_assert_uint_eq(part.segments[0].bytes, 3 * PAGE);
        ck_assert_uint_eq(part.segments[1].bytes, PAGE);
        ck_assert_uint_eq(part.segments[2].bytes, 2 * PAGE);
        ck_assert_ptr_eq(part.segments[1].address,
                         (uint8_t *)whole.segments[0].address + 10 * PAGE);
        ck_assert_uint_eq(part.segments[3].arena_offset,
                          whole.segments[0].arena_offset + 63 * PAGE);
        ck_assert_uint_eq(part.generation, whole.generation);
        release(session, &whole, 1);
        expect_pages(&part, 1, 0);
        release(session, &part, 1);
        end(session);
}
END_TEST

START_TEST(pages_from_nvme_are_this_leases_alone)
{
        /* In the pieces 0, 2 and 3 (a page on both), and the last, which is short. */
        static const uint32_t pages[] = {0, 1, 22, 31, 32, 63};
        const uint64_t read = 3 * PIECE + (CHUNK - 5 * PIECE);
        struct kvt_session *session = begin(2), *other = open_session();
        struct kvt_object part = pages_of(1, pages, 6), again = part, whole = chunk(1);
        uint64_t before = daemon_number(&fixture, "nvme.read_bytes");

        ck_assert_int_eq(acquire(session, &part), KVT_OK);
        expect_pages(&part, 1, 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.read_bytes") - before,
                          (UNIT + read + UNIT - 1) / UNIT * UNIT);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"),
                          (read + UNIT - 1) / UNIT * UNIT);
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), 0);
        ck_assert(!is_resident(session, 1));

        /* Nobody else gets them. */
        ck_assert_int_eq(acquire(other, &again), KVT_OK);
        expect_pages(&again, 1, 0);
        ck_assert(again.segments[0].arena_id != part.segments[0].arena_id ||
                  again.segments[0].arena_offset != part.segments[0].arena_offset);
        ck_assert_int_eq(call(other, kvt_acquire, KVT_CALL_RESIDENT, &whole, 1, NULL), KVT_BUSY);
        release(other, &again, 1);
        release(session, &part, 1);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 0);
        ck_assert(!is_resident(session, 1));

        /* The whole chunk comes up as ever, and pages are slices of it from then on. */
        ck_assert_int_eq(acquire(session, &whole), KVT_OK);
        ck_assert(is_resident(session, 1));
        ck_assert_int_eq(acquire(session, &part), KVT_OK);
        expect_pages(&part, 1, 0);
        ck_assert_ptr_eq(part.segments[0].address, whole.segments[0].address);
        release(session, &part, 1);
        release(session, &whole, 1);
        kvt_close(other);
        end(session);
}
END_TEST

/* The first item of the whole chunk brings it up; pages behind it are slices of that. */
START_TEST(one_call_may_ask_for_pages_and_for_all)
{
        static const uint32_t few[] = {5}, many[] = {0, 20, 21, 40, 63};
        struct kvt_session *session = begin(3);
        struct kvt_object objects[5] = {pages_of(1, few, 1), chunk(1), pages_of(1, many, 5),
                                        pages_of(0, many, 5), chunk(2)};

        ck_assert_int_eq(call(session, kvt_acquire, 0, objects, 5, NULL), KVT_OK);
        expect_pages(&objects[0], 1, 0);
        expect_pages(&objects[2], 1, 0);
        expect_pages(&objects[3], 0, 0);
        ck_assert_ptr_eq(objects[2].segments[0].address, objects[1].segments[0].address);
        ck_assert_ptr_ne(objects[0].segments[0].address,
                         (uint8_t *)objects[1].segments[0].address + 5 * PAGE);
        ck_assert(!is_resident(session, 0));
        ck_assert(is_resident(session, 1));
        ck_assert(is_resident(session, 2));
        release(session, objects, 5);
        end(session);
}
END_TEST

START_TEST(an_acquire_of_pages_waits_for_a_chunk_that_is_being_written)
{
        static const uint32_t pages[] = {3, 40};
        struct kvt_call how = {
                .size = sizeof(how), .flags = KVT_CALL_WAIT, .timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_object written = chunk(9), part = pages_of(9, pages, 2);
        struct kvt_completion completion;
        struct kvt_session *session = begin(0);

        ck_assert_int_eq(call(session, kvt_reserve, 0, &written, 1, NULL), KVT_OK);
        ck_assert_int_eq(kvt_acquire(session, &how, &part, 1, NULL), KVT_OK);
        ck_assert_uint_eq(kvt_poll(session, &completion, 1), 0);
        content_fill(written.segments[0].address, 0, CHUNK, 9, 0);
        ck_assert_int_eq(call(session, kvt_commit, 0, &written, 1, NULL), KVT_OK);
        ck_assert_uint_eq(kvt_wait(session, &completion, 1, FLOW_TIMEOUT_NS), 1);
        ck_assert_int_eq(completion.status, KVT_OK);
        expect_pages(&part, 9, 0);
        release(session, &part, 1);
        end(session);
}
END_TEST

/* ---- damage, replacement ---- */

static void flip_on_device(uint64_t number, uint64_t offset)
{
        int fd = daemon_open_data(&fixture);
        uint8_t bytes[64];
        struct stat file;

        ck_assert_int_eq(fstat(fd, &file), 0);
        for (off_t at = (off_t)UNIT; at + (off_t)UNIT <= file.st_size; at += (off_t)UNIT) {
                ck_assert_int_eq(pread(fd, bytes, sizeof(bytes), at), sizeof(bytes));
                if (!content_is(bytes, 0, sizeof(bytes), number, 0))
                        continue;
                ck_assert_int_eq(pread(fd, bytes, 1, at + (off_t)offset), 1);
                bytes[0] ^= 0x10;
                ck_assert_int_eq(pwrite(fd, bytes, 1, at + (off_t)offset), 1);
                ck_assert_int_eq(fsync(fd), 0);
                close(fd);
                return;
        }
        ck_abort_msg("chunk %llu is not on the device", (unsigned long long)number);
}

START_TEST(damage_is_found_where_pages_touch_it_and_nowhere_else)
{
        static const uint32_t sound[] = {0, 21, 50}, touching[] = {12}; /* pieces 0, 1, 4; 1 */
        struct kvt_session *session = begin(2);
        struct kvt_object part = pages_of(1, sound, 3), bad = pages_of(1, touching, 1);

        flip_on_device(1, 3 * PIECE + 5);
        ck_assert_int_eq(acquire(session, &part), KVT_OK);
        expect_pages(&part, 1, 0);
        release(session, &part, 1);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), 2);

        /* Of the same piece, though of no byte that was asked for: a miss, and gone. */
        flip_on_device(1, 2 * PIECE - 1);
        ck_assert_int_eq(acquire(session, &bad), KVT_CORRUPT);
        ck_assert_uint_eq(bad.lease, 0);
        daemon_wait_number(&fixture, "nvme.objects", 1);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 1);
        ck_assert_int_eq(acquire(session, &part), KVT_MISS);
        part = pages_of(0, sound, 3);
        ck_assert_int_eq(acquire(session, &part), KVT_OK);
        expect_pages(&part, 0, 0);
        release(session, &part, 1);
        end(session);
}
END_TEST

START_TEST(pages_stay_those_of_their_generation)
{
        static const uint32_t pages[] = {7, 60};
        struct kvt_session *session = begin(1);
        struct kvt_object old = pages_of(0, pages, 2), new = old;

        ck_assert_int_eq(acquire(session, &old), KVT_OK);
        put(session, 0, 1, KVT_REPLACE);
        ck_assert_int_eq(acquire(session, &new), KVT_OK);
        expect_pages(&new, 0, 1);
        expect_pages(&old, 0, 0);
        ck_assert_uint_gt(new.generation, old.generation);
        release(session, &new, 1);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        ck_assert_int_eq(acquire(session, &new), KVT_OK);
        expect_pages(&new, 0, 1);
        expect_pages(&old, 0, 0);
        release(session, &new, 1);
        release(session, &old, 1);
        end(session);
}
END_TEST

/* ---- limits and leases ---- */

START_TEST(private_bytes_stay_below_the_lease_share_and_make_room)
{
        static const uint32_t all_pieces[] = {0, 12, 23, 34, 45, 56};
        struct kvt_session *session = begin(16);
        struct kvt_object parts[16], whole;
        uint64_t limit = 16 * MIB / 100 * 80;
        unsigned n = 0;

        /* Host memory full of what may go. */
        for (unsigned i = 0; i < 10; i++) {
                whole = chunk(i);
                ck_assert_int_eq(acquire(session, &whole), KVT_OK);
                release(session, &whole, 1);
        }
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), 10);
        for (; n < 16; n++) {
                parts[n] = pages_of(15, all_pieces, 6);
                if (acquire(session, &parts[n]) != KVT_OK)
                        break;
                expect_pages(&parts[n], 15, 0);
                ck_assert_uint_le(daemon_number(&fixture, "host.leased_bytes"), limit);
                ck_assert_uint_le(daemon_number(&fixture, "host.used_bytes"), 16 * MIB);
        }
        ck_assert_uint_eq(n, limit / ((CHUNK + UNIT - 1) / UNIT * UNIT));
        ck_assert_int_eq(parts[n].status, KVT_BUSY);
        for (unsigned i = 0; i < n; i++)
                expect_pages(&parts[i], 15, 0);
        release(session, parts, n);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);

        for (unsigned i = 0; i < 16; i++)
                parts[i] = pages_of(i, all_pieces, 6);
        daemon_evict(&fixture, "host");
        ck_assert_int_eq(call(session, kvt_acquire, 0, parts, 16, NULL), KVT_TOO_LARGE);
        /* One piece each is much less than the chunks that they are of. */
        for (unsigned i = 0; i < 16; i++)
                parts[i].n_pages = 1;
        ck_assert_int_eq(call(session, kvt_acquire, 0, parts, 16, NULL), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 16 * PIECE);
        for (unsigned i = 0; i < 16; i++)
                expect_pages(&parts[i], i, 0);
        release(session, parts, 16);
        end(session);
}
END_TEST

START_TEST(pages_are_not_adopted)
{
        static const uint32_t pages[] = {1};
        struct kvt_session *session = begin(2), *other = open_session();
        struct kvt_object objects[2] = {chunk(0), pages_of(1, pages, 1)}, adopted;
        struct kvt_completion completion;
        static const uint8_t zeros[16];
        uint8_t token[16];

        ck_assert_int_eq(call(session, kvt_acquire, 0, objects, 2, &completion), KVT_OK);
        memcpy(token, completion.token, sizeof(token));
        adopted = chunk(0);
        ck_assert_int_eq(kvt_adopt(other, NULL, token, &adopted, 1, NULL), KVT_OK);
        ck_assert_uint_eq(kvt_wait(other, &completion, 1, FLOW_TIMEOUT_NS), 1);
        ck_assert_int_eq(completion.status, KVT_OK);
        release(other, &adopted, 1);
        adopted = chunk(1);
        ck_assert_int_eq(kvt_adopt(other, NULL, token, &adopted, 1, NULL), KVT_OK);
        ck_assert_uint_eq(kvt_wait(other, &completion, 1, FLOW_TIMEOUT_NS), 1);
        ck_assert_int_eq(completion.status, KVT_MISS);
        ck_assert_int_eq(kvt_adopt(other, NULL, token, &objects[1], 1, NULL), KVT_INVALID);

        /* But their lease is one of the acquire, and keeps the token as any other. */
        release(session, objects, 1);
        adopted = chunk(0);
        ck_assert_int_eq(kvt_adopt(other, NULL, token, &adopted, 1, NULL), KVT_OK);
        ck_assert_uint_eq(kvt_wait(other, &completion, 1, FLOW_TIMEOUT_NS), 1);
        ck_assert_int_eq(completion.status, KVT_OK);
        release(other, &adopted, 1);
        release(session, &objects[1], 1);
        ck_assert_int_eq(kvt_adopt(other, NULL, token, &adopted, 1, NULL), KVT_OK);
        ck_assert_uint_eq(kvt_wait(other, &completion, 1, FLOW_TIMEOUT_NS), 1);
        ck_assert_int_eq(completion.status, KVT_GONE);

        /* Pages alone: there is nothing to adopt, and no token. */
        objects[1] = pages_of(1, pages, 1);
        ck_assert_int_eq(call(session, kvt_acquire, 0, &objects[1], 1, &completion), KVT_OK);
        ck_assert_mem_eq(completion.token, zeros, sizeof(zeros));
        release(session, &objects[1], 1);
        kvt_close(other);
        end(session);
}
END_TEST

START_TEST(what_is_no_page_is_refused)
{
        static const uint32_t beyond[] = {0, N_PAGES}, unsorted[] = {2, 1}, twice[] = {3, 3};
        uint32_t runs[65];
        struct kvt_session *session = begin(1);
        struct kvt_object object = pages_of(0, beyond, 2);

        ck_assert_int_eq(acquire(session, &object), KVT_INVALID);
        object.pages = unsorted;
        ck_assert_int_eq(acquire(session, &object), KVT_INVALID);
        object.pages = twice;
        ck_assert_int_eq(acquire(session, &object), KVT_INVALID);
        object.pages = NULL;
        ck_assert_int_eq(acquire(session, &object), KVT_INVALID);
        object = pages_of(0, beyond, 0);
        ck_assert_int_eq(acquire(session, &object), KVT_INVALID);
        object = pages_of(0, beyond, 1);
        object.group = 1; /* a state has no pages */
        ck_assert_int_eq(acquire(session, &object), KVT_INVALID);
        object.group = 2;
        ck_assert_int_eq(acquire(session, &object), KVT_INVALID);
        for (uint32_t i = 0; i < 65; i++)
                runs[i] = 2 * i;
        object = pages_of(0, runs, 65);
        ck_assert_int_eq(acquire(session, &object), KVT_TOO_LARGE);
        object = pages_of(0, runs, 32);
        ck_assert_int_eq(acquire(session, &object), KVT_OK);
        expect_pages(&object, 0, 0);
        release(session, &object, 1);
        object = pages_of(77, runs, 1);
        ck_assert_int_eq(acquire(session, &object), KVT_MISS);
        end(session);
}
END_TEST

START_TEST(pages_have_no_checksums_to_verify)
{
        static const uint32_t pages[] = {1, 2};
        struct kvt_session *session = begin(1);
        struct kvt_object objects[2] = {pages_of(0, pages, 2), chunk(0)};

        ck_assert_int_eq(call(session, kvt_acquire, KVT_CALL_CHECKSUMS, objects, 2, NULL), KVT_OK);
        expect_pages(&objects[0], 0, 0);
        ck_assert_int_eq(kvt_verify(session, &objects[0]), KVT_MISS);
        ck_assert_int_eq(kvt_verify(session, &objects[1]), KVT_OK);
        release(session, objects, 2);
        end(session);
}
END_TEST

/* ---- death ---- */

static void acquire_and_stay(struct child *self, void *argument)
{
        static const uint32_t pages[] = {0, 40};
        struct kvt_session *session = open_session();
        struct kvt_object part = pages_of(1, pages, 2);

        child_say(self, acquire(session, &part));
        child_hear(self); /* is killed here */
}

START_TEST(private_bytes_die_with_their_client)
{
        struct kvt_session *session;
        struct child child;

        kvt_close(begin(2));
        child_start(&child, acquire_and_stay, NULL);
        ck_assert_uint_eq(child_hear(&child), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 2 * PIECE);
        child_kill(&child);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "quarantined"), 0);
        session = open_session();
        ck_assert(!is_resident(session, 1));
        end(session);
}
END_TEST

/* With the layout of wire_client.h, whose chunks are one page. */
static void hang_up_and_live(struct child *self, void *argument)
{
        static const struct wire_page_run run = {0, 1};
        struct wire_client *client = calloc(1, sizeof(*client));
        struct wire_object object = wire_object(50, TEST_CHUNK_BYTES);

        ck_assert_ptr_nonnull(client);
        object.group = TEST_GROUP_CHUNK;
        object.runs = &run;
        object.n_runs = 1;
        wire_client_open(client, fixture.socket);
        child_say(self, wire_client_acquire(client, 0, NULL, &object, 1));
        child_hear(self);
        wire_client_hang_up(client);
        child_hear(self); /* others have pressed */
        child_say(self, wire_client_holds(client, &object));
        child_hear(self);
}

START_TEST(private_bytes_of_a_living_process_outlast_its_socket)
{
        struct daemon_options options = {.piece_bytes = 8 * MIB, .nvme_bytes = 64 * MIB};
        struct wire_client *client = calloc(1, sizeof(*client));
        struct wire_object object = wire_object(50, TEST_CHUNK_BYTES);
        struct child child;

        ck_assert_ptr_nonnull(client);
        daemon_fixture_init(&fixture, &options);
        wire_client_open(client, fixture.socket);
        object.group = TEST_GROUP_CHUNK;
        ck_assert_uint_eq(wire_client_put(client, &object), KVT_WIRE_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        child_start(&child, hang_up_and_live, NULL);
        ck_assert_uint_eq(child_hear(&child), KVT_WIRE_OK);
        child_say(&child, 1);
        daemon_wait_number(&fixture, "host.quarantined_bytes", TEST_CHUNK_BYTES);
        for (uint64_t i = 0; i < 48; i++) {
                struct wire_object press = wire_object(1000 + i, MIB);

                ck_assert_uint_eq(wire_client_put(client, &press), KVT_WIRE_OK);
        }
        child_say(&child, 1);
        ck_assert_uint_eq(child_hear(&child), 1);
        child_kill(&child);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        wire_client_close(client);
        free(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* Whatever has arrived by then is the client's; nothing else is left of it. */
START_TEST(a_cancelled_acquire_of_pages_leaves_nothing)
{
        static const struct wire_page_run run = {0, 1};
        static struct wire_object objects[100];
        struct daemon_options options = {.piece_bytes = 8 * MIB, .nvme_bytes = 64 * MIB};
        struct wire_client *client = calloc(1, sizeof(*client));
        struct wire_cancel cancel = {.target = 0};

        ck_assert_ptr_nonnull(client);
        daemon_fixture_init(&fixture, &options);
        wire_client_open(client, fixture.socket);
        for (unsigned i = 0; i < 100; i++) {
                objects[i] = wire_object(i, TEST_CHUNK_BYTES);
                objects[i].group = TEST_GROUP_CHUNK;
                ck_assert_uint_eq(wire_client_put(client, &objects[i]), KVT_WIRE_OK);
                objects[i].runs = &run;
                objects[i].n_runs = 1;
        }
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");

        cancel.target = wire_client_send_acquire(client, 0, 0, objects, 100);
        cancel.header = wire_client_header(client, WIRE_CANCEL);
        cancel.header.length = sizeof(cancel);
        ck_assert(wire_client_send(client, &cancel, sizeof(cancel)));
        ck_assert_uint_eq(wire_client_finish(client, cancel.target, NULL, objects, 100),
                          KVT_WIRE_OK);
        for (unsigned i = 0; i < 100; i++) {
                ck_assert(objects[i].status == KVT_WIRE_OK ||
                          objects[i].status == KVT_WIRE_CANCELLED);
                if (objects[i].status == KVT_WIRE_OK)
                        ck_assert(wire_client_holds(client, &objects[i]));
        }
        wire_client_finish(client, cancel.header.request, NULL, NULL, 0);
        wire_client_end(client, WIRE_RELEASE, 0, objects, 100); /* GONE for those cancelled */
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_wait_number(&fixture, "host.used_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), 100);
        wire_client_close(client);
        free(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                pages_of_a_resident_chunk_are_slices_of_it,
                pages_from_nvme_are_this_leases_alone,
                one_call_may_ask_for_pages_and_for_all,
                an_acquire_of_pages_waits_for_a_chunk_that_is_being_written,
                damage_is_found_where_pages_touch_it_and_nowhere_else,
                pages_stay_those_of_their_generation,
                private_bytes_stay_below_the_lease_share_and_make_room,
                pages_are_not_adopted,
                what_is_no_page_is_refused,
                pages_have_no_checksums_to_verify,
                private_bytes_die_with_their_client,
                private_bytes_of_a_living_process_outlast_its_socket,
                a_cancelled_acquire_of_pages_leaves_nothing,
                NULL,
        };

        return flow_run("sparse", tests, 60);
}
